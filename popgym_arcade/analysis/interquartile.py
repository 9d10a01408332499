"""Interquartile means of scores over seeds and ids, with rliable's stratified bootstrap intervals.

Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice",
https://arxiv.org/abs/2108.13264. Shapes: S seeds, M ids.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rliable import library


@dataclass(frozen=True)
class Estimate:
    """An interquartile mean, or the difference of two, and its 95% interval, which is None if some id has one seed."""

    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        return f"{self.value:.3f}" + ("" if self.low is None else f" ({self.low:.3f} to {self.high:.3f})")


def estimate(first: Sequence[np.ndarray], second: Sequence[np.ndarray] = (), resamples: int = 2_000) -> Estimate:
    """The interquartile mean of the scores [S] of each id in `first`, minus that of `second` if there is any.

    The interval is a percentile bootstrap, stratified by id: every id of both is resampled separately.
    """
    of_first, of_second = matrices_of(first), matrices_of(second)

    def difference(*matrices: np.ndarray) -> np.ndarray:
        subtrahend = iqm(*matrices[len(of_first) :]) if of_second else 0.0
        return np.array([iqm(*matrices[: len(of_first)]) - subtrahend])

    matrices = [*of_first, *of_second]
    if min(map(len, matrices)) < 2:
        return Estimate(float(difference(*matrices)[0]), None, None)
    with numpy_seed(0):
        values, bounds = library.get_interval_estimates({"": matrices}, difference, reps=resamples)
    return Estimate(float(values[""][0]), *(float(bound) for bound in bounds[""][:, 0]))


@contextlib.contextmanager
def numpy_seed(seed: int) -> Iterator[None]:
    """Within the context, numpy's global generator starts from `seed`: rliable 1.2 ignores any other it is given."""
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(state)


def matrices_of(returns: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The scores [S] of each id as rliable's matrices [S, M], one for each number of seeds."""
    sizes = sorted({len(scores) for scores in returns})
    return [np.stack([scores for scores in returns if len(scores) == size], axis=1) for size in sizes]


def iqm(*matrices: np.ndarray) -> float:
    """The interquartile mean over all scores of matrices [S, M], in which every id has the same weight.

    If the numbers of seeds differ, scores are repeated up to their least common multiple. For one matrix it is
    rliable's own.
    """
    rows = math.lcm(*map(len, matrices))
    repeated = np.hstack([matrix.repeat(rows // len(matrix), axis=0) for matrix in matrices])
    return float(middle_half(repeated.ravel()))


def middle_half(scores: np.ndarray) -> np.ndarray:
    """Mean of the middle half of scores [K, ...] over K: what SciPy's trim_mean computes for rliable, much faster."""
    ordered = np.sort(scores, axis=0)
    cut = len(ordered) // 4
    mean = ordered[cut : len(ordered) - cut].mean(axis=0)
    return np.where(np.isnan(ordered[-1]), np.nan, mean)  # NaN is sorted to the end, where it would be cut off
