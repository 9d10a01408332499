"""A search for what the full frame lacks: states that look alike, but behave differently.

A frame is Markov if it determines the distribution of the next reward, the end of the episode, and the next frame. The
search plays at random and collects pairs of states with equal frames. From both states of a pair, it takes the same
actions with the same random keys. Where the rewards, the ends or the frames differ, the frame lacked something.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from popgym_arcade.environments.arcade import ArcadeEnvironment, ArcadeState

NUM_ENVS = 64  # that play side by side
CHUNK = 64  # states drawn, or pairs followed, at a time
MOST_PAIRS = 1024
OUTCOMES = ("reward", "end", "frame")


@dataclasses.dataclass(frozen=True)
class Counterexample:
    """Two states with equal full frames whose futures differ.

    states: both states, as numpy arrays.
    actions: what was done in both, tuple[int, ...].
    outcomes: which of `OUTCOMES` differed after the last action.
    """

    states: tuple[ArcadeState, ArcadeState]
    actions: tuple[int, ...]
    outcomes: tuple[str, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields in which the states differ."""
        return differing_fields(*self.states)


class Search(NamedTuple):
    """What a search found.

    repeated: bool, whether any frame occurred twice; if none did, the search says nothing.
    look_alikes: int, pairs of different states with equal frames; with 0, equal frames meant equal states.
    counterexamples: at most one for each pair, those whose states differ in the fewest fields first.
    """

    repeated: bool
    look_alikes: int
    counterexamples: list[Counterexample]


def search(
    env: ArcadeEnvironment, states: ArcadeState, key: jax.Array, secrets: Sequence[str] = (), depth: int = 4
) -> Search:
    """Searches states [N, ...], such as those of `play`, for pairs that look alike, and follows each for some actions.

    `env` is the fully observable twin, and `depth` the number of actions. `secrets` are fields that the player is meant
    to discover, such as the mines of MineSweeper: they are made equal before a pair is followed. The search cannot
    prove that a frame is Markov, and it reports a game whose random draws depend on something that does not matter,
    such as the order of a list.

    Raises ValueError for an unknown field, or a secret that is in the frame.
    """
    check_secrets(states, secrets)
    repeated, ones, others = look_alikes(states, frames(env, states), secrets)
    if secrets and not all(map(np.array_equal, frames(env, ones), frames(env, others))):
        raise ValueError(f"the frame shows {' or '.join(secrets)}: what it shows is not secret")
    found = list(counterexamples(env, ones, others, depth, key))
    return Search(repeated, size(ones), sorted(found, key=lambda x: (len(x.fields), len(x.actions))))


def check_secrets(state: ArcadeState, secrets: Sequence[str]) -> None:
    """Raises ValueError for a secret that is not a field of the state."""
    names = [field.name for field in dataclasses.fields(state)]
    for name in secrets:
        if name not in names:
            raise ValueError(f"the state has no field {name!r}; it has {', '.join(names)}")


def hidden_share(states: ArcadeState, twins: Iterable[ArcadeEnvironment]) -> float:
    """The share of the states in which the frames of two twins differ, in 0..1."""
    equal = list(map(np.array_equal, *(frames(env, states) for env in twins)))
    return 1 - float(np.mean(equal))


def play(env: ArcadeEnvironment, num_states: int, key: jax.Array) -> ArcadeState:
    """States that random play meets, from several episodes; numpy arrays [num_states, ...]."""
    params = env.default_params

    @jax.jit
    def rollout(key: jax.Array) -> ArcadeState:
        key, reset_key = jax.random.split(key)
        _, state = jax.vmap(env.reset_env, in_axes=(0, None))(jax.random.split(reset_key, NUM_ENVS), params)

        def step(now, _):
            state, key = now
            key, action_key, step_key = jax.random.split(key, 3)
            actions = jax.random.randint(action_key, (NUM_ENVS,), 0, env.num_actions)
            keys = jax.random.split(step_key, NUM_ENVS)
            _, next_state, *_ = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, state, actions, params)
            return (next_state, key), state

        return jax.lax.scan(step, (state, key), length=-(-num_states // NUM_ENVS))[1]

    def flat(leaf):  # [T, E, ...] -> [num_states, ...]
        return np.asarray(leaf).reshape(-1, *leaf.shape[2:])[:num_states]

    return jax.tree.map(flat, rollout(key))


def frames(env: ArcadeEnvironment, states: ArcadeState) -> Iterator[np.ndarray]:
    """The frame of each state of a batch, uint8[obs_size, obs_size, 3], or whatever the game observes."""
    draw = jax.jit(jax.vmap(env.get_obs))
    for part, count in chunks(states):
        yield from np.asarray(draw(part))[:count]


def look_alikes(
    states: ArcadeState, pictures: Iterable[np.ndarray], secrets: Sequence[str]
) -> tuple[bool, ArcadeState, ArcadeState]:
    """Whether a frame occurred twice, and pairs of different states with equal frames, with equal secrets.

    At most MOST_PAIRS, spread over all frames.
    """
    groups: dict[bytes, list[int]] = {}
    for i, picture in enumerate(pictures):
        groups.setdefault(blake2b(picture.tobytes()).digest(), []).append(i)
    ranks = range(1, max(map(len, groups.values())))
    pairs = [(group[0], group[rank]) for rank in ranks for group in groups.values() if rank < len(group)]
    first, second = np.array(pairs, int).reshape(-1, 2).T
    ones, others = take(states, first), take(states, second)
    others = others.replace(**{name: getattr(ones, name) for name in secrets})
    differs = [
        (one != other).any(axis=tuple(range(1, one.ndim)))
        for one, other in zip(jax.tree.leaves(ones), jax.tree.leaves(others), strict=True)
    ]
    different = np.flatnonzero(np.any(differs, axis=0))[:MOST_PAIRS]
    return bool(pairs), take(ones, different), take(others, different)


def counterexamples(
    env: ArcadeEnvironment, ones: ArcadeState, others: ArcadeState, depth: int, key: jax.Array
) -> Iterator[Counterexample]:
    """For each pair [N, ...] whose futures differ, the shortest actions that show it: any one, then random ones."""
    follow = jax.jit(jax.vmap(partial(futures, env, depth)))
    first_actions = np.tile(np.arange(env.num_actions), CHUNK)
    start = 0
    pairs = jax.tree.map(lambda *both: np.stack(both, axis=1), ones, others)  # [N, 2, ...]
    for part, count in chunks(pairs):
        key, part_key = jax.random.split(key)
        each = take(part, np.repeat(np.arange(CHUNK), env.num_actions))  # a pair for each first action
        results = follow(jax.random.split(part_key, len(first_actions)), each, first_actions)
        actions, differs = (np.asarray(x).reshape(CHUNK, env.num_actions, *x.shape[1:])[:count] for x in results)
        for i in np.flatnonzero(differs.any(axis=(1, 2, 3))):  # actions [N, A, T], differs [N, A, T, 3]
            when = differs[i].any(axis=-1)  # [A, T]
            first = np.where(when.any(axis=1), when.argmax(axis=1), depth)
            best, last = first.argmin(), first.min()
            outcomes = tuple(np.array(OUTCOMES)[differs[i, best, last]].tolist())
            states = take(ones, start + i), take(others, start + i)
            yield Counterexample(states, tuple(actions[i, best, : last + 1].tolist()), outcomes)
        start += count


def futures(
    env: ArcadeEnvironment, depth: int, key: jax.Array, pair: ArcadeState, first: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Actions int32[T] taken in both states of a pair [2, ...], and which OUTCOMES then differ, bool[T, 3].

    The actions after the first are random. After the end of an episode, nothing differs.
    """
    params = env.default_params
    action_key, step_key = jax.random.split(key)
    actions = jax.random.randint(action_key, (depth,), 0, env.num_actions).at[0].set(first)

    def step(now, this):
        pair, over = now
        key, action = this
        # one call for both states, so that they share the key
        result = jax.vmap(env.step_env, in_axes=(None, 0, None, None))(key, pair, action, params)
        frame, pair, reward, terminated, _ = result
        differs = jnp.stack([(x[0] != x[1]).any() for x in (reward, terminated, frame)]) & ~over
        over |= (terminated | jax.vmap(env.is_truncated, in_axes=(0, None))(pair, params)).any()
        return (pair, over), differs

    _, differs = jax.lax.scan(step, (pair, jnp.bool_(False)), (jax.random.split(step_key, depth), actions))
    return actions, differs


def differing_fields(one: ArcadeState, other: ArcadeState) -> tuple[str, ...]:
    """The fields in which two states differ."""
    names = [field.name for field in dataclasses.fields(one)]
    return tuple(name for name in names if not same(getattr(one, name), getattr(other, name)))


def same(one: Any, other: Any) -> bool:
    """Whether all arrays of two trees of the same structure are equal."""
    return all(np.array_equal(*leaves) for leaves in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def size(states: ArcadeState) -> int:
    """The length of a batch."""
    return len(states.time)


def take(states: ArcadeState, index: Any) -> ArcadeState:
    """The states of a batch at an index, a slice or several indices."""
    return jax.tree.map(lambda leaf: leaf[index], states)


def chunks(states: ArcadeState) -> Iterator[tuple[ArcadeState, int]]:
    """A batch in pieces of CHUNK states, the last one padded with its last state, and how many are not padding."""
    for start in range(0, size(states), CHUNK):
        index = np.minimum(np.arange(start, start + CHUNK), size(states) - 1)
        yield take(states, index), min(CHUNK, size(states) - start)
