"""Interquartile means over seeds and ids, with rliable's intervals, along curves. Shapes: S seeds, M ids, N steps."""

import functools

import numpy as np
from rliable import library

from popgym_arcade.analysis.interquartile import middle_half, numpy_seed

RESAMPLES = 2_000  # bootstrap samples of the seeds for an interval


def iqm(scores: np.ndarray) -> np.ndarray:
    """Interquartile mean over seeds and ids of scores [S, M, N], for each N."""
    return middle_half(scores.reshape(-1, scores.shape[-1]))


def interval(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95% interval [N] of the interquartile mean of scores [S, M, N]; the seeds of each id are resampled separately."""
    return interval_of(scores.shape, scores.astype(float).tobytes())


@functools.cache  # the same curves are drawn over steps and over minutes
def interval_of(shape: tuple[int, ...], scores: bytes) -> tuple[np.ndarray, np.ndarray]:
    with numpy_seed(0):  # rliable 1.2 draws from numpy's global generator
        _, found = library.get_interval_estimates({"": np.frombuffer(scores).reshape(shape)}, iqm, reps=RESAMPLES)
    return tuple(found[""])
