"""The form of a family's facts, and what several families share."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

LEVELS = ("Easy", "Medium", "Hard")
UP, DOWN, LEFT, RIGHT, FIRE = range(5)

Batch = Any  # an environment's state dataclass, its fields numpy arrays with a leading batch axis
Color = tuple[int, int, int]


class Game(NamedTuple):
    """An episode of known result: from `state` (one state), `plan` is worth exactly `value`."""

    name: str
    state: Any
    plan: np.ndarray
    value: float


def follow_plan(plan, state):
    """The policy of most experts: they know everything beforehand and write all actions down."""
    return plan[state.time]


@dataclasses.dataclass(frozen=True)
class Family:
    """What the tests need to know about a family. `level` is 0, 1, 2; batches of states are numpy."""

    # The table of the specification
    limits: tuple[int, int, int]
    fields: Callable[[int], dict[str, tuple[tuple[int, ...], type]]]  # name -> shape and dtype, `time` included
    bounds: Callable[[int], tuple[float, float]]  # of the undiscounted return; some game in `games` reaches each end
    palette: frozenset[Color]  # all colours that the specification names; each occurs in full frames
    score_color: Color
    name_color: Color

    # The rules. step(level, state, action, limit) -> (state, reward, terminated): a slow model of one transition, on a
    # dictionary of numpy values; it leaves the fields named in `drawn` alone, as they are random.
    step: Callable[[int, dict, int, int], tuple[dict, float, bool]]
    check_fresh: Callable[[int, Batch], None]  # asserts that every state could come from reset
    draws: Callable[[int, Batch], dict[str, float]]  # p-value of each test of uniformity, given many fresh states

    # Experts: games(level, fresh states)
    games: Callable[[int, Batch], list[Game]]

    # Twins and Markov property
    possible: Callable[[int, Batch], np.ndarray]  # which (altered) states may occur in the middle of an episode
    equal_secrets: Callable[[int, Batch, Batch], Batch]  # the second batch with the secrets of the first
    hidden: Callable[[int, Batch, np.random.Generator], dict[str, Batch]]  # altered where the partial frame is blind
    shown: Callable[[int, Batch, np.random.Generator], dict[str, Batch]]  # altered where the partial frame is not
    cues: dict[str, Callable[[np.ndarray], np.ndarray]]  # each takes something from full frames that Markov needs

    # Pictures for tests/reference: gallery(level, any one state) -> states
    gallery: Callable[[int, Any], list[Any]]

    extra_colors: frozenset[Color] = frozenset()  # that a frame may hold besides
    policy: Callable[[Any, Any], Any] = follow_plan  # policy(plan, state) -> action, in jax
    drawn: tuple[str, ...] = ()
    starts: Callable[[int], int] | None = None  # how many first states there are, where there are only a few
    markov: str = "exact"  # or "pixel": up to the resolution of the picture; or "noisy": not at all, by design


def one(batch, index):
    """One state of a batch."""
    import jax

    return jax.tree.map(lambda leaf: leaf[index], batch)


def pad(actions, length, action):
    """The plan, followed by one action for ever."""
    assert len(actions) <= length, "the plan is longer than the game"
    return np.array([*actions] + [action] * (length - len(actions)), np.int32)


def blank(left, top, right, bottom):
    """A cue-remover: paint a rectangle of the 128-px frames grey."""

    def remove(frames):
        frames = frames.copy()
        frames[:, top:bottom, left:right] = 128
        return frames

    return remove


def repaint(old, new, rows=slice(None)):
    """A cue-remover: replace one colour by another, in some rows of pixels."""

    def remove(frames):
        frames = frames.copy()
        part = frames[:, rows]
        part[(part == old).all(-1)] = new
        return frames

    return remove


def no_secrets(level, one, other):
    """Nothing that matters is hidden from the full frame."""
    return other
