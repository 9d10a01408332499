"""Check a game of your own: `popgym-arcade-check MODULE:CLASS`.

Both twins must satisfy the contract of ArcadeEnvironment, and the fully observable twin should be Markov: a search
looks for states with the same full frame whose futures differ (`popgym_arcade.environments.markov`).
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from popgym_arcade.environments import markov
from popgym_arcade.environments.arcade import ACTION_NAMES, OBS_SIZES
from popgym_arcade.one_line_parser import OneLineParser
from popgym_arcade.registration import make_game

SHOWN = 3  # counterexamples
HIDDEN_STATES = 1024  # of which both twins are drawn


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags on the command line."""
    parser = OneLineParser("popgym-arcade-check", description="Check the twins of a game, above all of your own.")
    parser.add_argument("env_id", help="MODULE:CLASS of your own, or an id: NavigatorEasy, for example")
    parser.add_argument(
        "--secrets", nargs="*", default=(), metavar="FIELD", help="fields of the state that the player has to discover"
    )
    parser.add_argument("--states", type=int, default=4096, help="states of random play among which to search")
    parser.add_argument("--depth", type=int, default=4, help="actions for which a pair of states is followed")
    parser.add_argument("-o", "--obs-size", type=int, choices=OBS_SIZES, default=128, help="side of a frame in pixels")
    parser.add_argument("--seed", type=int, default=0, help="seed of random play")
    args = parser.parse_args(argv)
    for name, low, high in (("states", 2, 100_000), ("depth", 1, 1_000), ("seed", 0, 2**32 - 1)):
        value = getattr(args, name)
        if not low <= value <= high:
            parser.error(f"--{name} {value}: use a number from {low} to {high}")
    try:
        args.twins = [make_game(args.env_id, partial_obs, args.obs_size) for partial_obs in (False, True)]
        full, _ = args.twins
        markov.check_secrets(jax.eval_shape(full.reset_state, jax.random.key(0), full.default_params), args.secrets)
    except ValueError as error:
        parser.error(str(error))
    return args


def described(example: markov.Counterexample) -> str:
    """A counterexample in one line."""
    fields = [value_of(name, *(getattr(state, name) for state in example.states)) for name in example.fields]
    then = ", ".join(ACTION_NAMES[action] for action in example.actions)
    verb = "differs" if len(example.outcomes) == 1 else "differ"
    return f"states that differ in {listed(fields)}: after {then}, the {listed(example.outcomes)} {verb}"


def value_of(name: str, one: Any, other: Any) -> str:
    """A field with both values, if they are scalars, or with the number of elements that differ."""
    if np.ndim(one) == 0:
        return f"{name} ({one} and {other})"
    return f"{name} ({(one != other).sum()} of {one.size} elements)"


def listed(words: Sequence[str]) -> str:
    """Words in a sentence: "one, two and three"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of `popgym-arcade-check`: exits with 0, with 1 if the frame is not Markov, or with 2 on bad input."""
    args = parse_args(argv)
    full, _ = args.twins
    print(f"{args.env_id}: both twins pass check_game")
    play_key, search_key = jax.random.split(jax.random.key(args.seed))
    states = markov.play(full, args.states, play_key)
    try:
        found = markov.search(full, states, search_key, args.secrets, args.depth)
    except ValueError as error:
        print(f"popgym-arcade-check: error: {error}", file=sys.stderr)
        sys.exit(2)
    hidden = markov.hidden_share(markov.take(states, slice(HIDDEN_STATES)), args.twins)
    print(f"the twins' frames differ in {hidden:.1%} of the states of random play")
    if not found.repeated:
        print("no full frame occurred twice: the search says nothing about the Markov property")
    elif not found.look_alikes:
        print("states with the same full frame were equal: no counterexample to the Markov property")
    elif not found.counterexamples:
        pairs = f"{found.look_alikes:,} pairs of states"
        print(f"{pairs} have the same full frame, and the same futures: no counterexample to the Markov property")
    else:
        many = f"{len(found.counterexamples):,} of {found.look_alikes:,} pairs"
        print(f"not Markov: {many} of states with the same full frame have different futures, for example")
        kinds = {}
        for example in found.counterexamples:
            kinds.setdefault((example.fields, example.outcomes), example)
        for example in list(kinds.values())[:SHOWN]:
            print(f"* {described(example)}")
        print("Draw what is missing. A field that the player has to discover is a secret: --secrets FIELD")
        sys.exit(1)


if __name__ == "__main__":
    main()
