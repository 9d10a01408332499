"""Bootstrap intervals of a mean."""

import math

import numpy as np
from scipy import stats

RESAMPLES = 10_000


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 95% percentile bootstrap interval of the mean of values[N]: NaN if N is 1, (mean, mean) if all are equal."""
    values = np.asarray(values, float)
    if values.size < 2:
        return math.nan, math.nan
    if np.ptp(values) == 0:
        return float(values.mean()), float(values.mean())
    options = {"n_resamples": RESAMPLES, "method": "percentile", "batch": max(1, 10_000_000 // values.size)}
    found = stats.bootstrap((values,), np.mean, rng=np.random.default_rng(0), **options)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def units_of(each: list[np.ndarray]) -> np.ndarray:
    """What is resampled, [N, ...]: the means of the agents or, with a single one, its episodes.

    `each` has the values [episodes, ...] of each agent. Agents have the same weight, however many episodes they have.
    """
    return each[0] if len(each) == 1 else np.stack([values.mean(axis=0) for values in each])


def ratio_interval(parts: np.ndarray, wholes: np.ndarray) -> tuple[float, float]:
    """The 95% percentile bootstrap interval of mean(parts) / mean(wholes) of pairs [N], which are resampled together.

    NaN if N is 1, or if more than 2.5% of the resamples have no positive mean of `wholes`.
    """
    if len(parts) < 2:
        return math.nan, math.nan
    resamples = np.random.default_rng(0).integers(len(parts), size=(RESAMPLES, len(parts)))
    of_parts, of_wholes = parts[resamples].mean(axis=1), wholes[resamples].mean(axis=1)
    ratios = np.where(of_wholes > 0, of_parts / np.where(of_wholes > 0, of_wholes, 1), math.inf)
    low, high = np.quantile(ratios, (0.025, 0.975), method="inverted_cdf")
    return (float(low), float(high)) if math.isfinite(high) else (math.nan, math.nan)


def over_agents(each: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean [...] and both ends of its 95% interval, from the values [episodes, ...] of each agent, see `units_of`."""
    units = units_of(each)
    bounds = np.array([interval(column) for column in units.reshape(len(units), -1).T])
    low, high = bounds.T.reshape(2, *units.shape[1:])
    return units.mean(axis=0), low, high


def ratio_over_agents(parts: list[np.ndarray], wholes: list[np.ndarray]) -> tuple[float, float, float]:
    """mean(parts) / mean(wholes) and both ends of its 95% interval, from values [episodes] of each agent in pairs.

    See `units_of`. All NaN if the mean of `wholes` is not positive.
    """
    part, whole = units_of(parts), units_of(wholes)
    if whole.mean() <= 0:
        return math.nan, math.nan, math.nan
    return float(part.mean() / whole.mean()), *ratio_interval(part, whole)
