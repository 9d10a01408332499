"""Bootstrap intervals of a mean."""

import numpy as np
from scipy import stats

RESAMPLES = 10_000


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 95% percentile bootstrap interval of the mean of values[N]; (mean, mean) if N is 1 or all are equal."""
    values = np.asarray(values, float)
    if values.size < 2 or np.ptp(values) == 0:
        return float(values.mean()), float(values.mean())
    options = {"n_resamples": RESAMPLES, "method": "percentile", "batch": max(1, 10_000_000 // values.size)}
    found = stats.bootstrap((values,), np.mean, rng=np.random.default_rng(0), **options)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)
