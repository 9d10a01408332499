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


def over_agents(each: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean [...] and both ends of its 95% interval, from the values [episodes, ...] of each agent.

    The interval is over agents or, with a single one, over its episodes. Each agent has the same weight, however many
    episodes it has.
    """
    units = each[0] if len(each) == 1 else np.stack([values.mean(axis=0) for values in each])
    bounds = np.array([interval(column) for column in units.reshape(len(units), -1).T])
    low, high = bounds.T.reshape(2, *units.shape[1:])
    return units.mean(axis=0), low, high
