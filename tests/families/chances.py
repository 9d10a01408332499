"""p-values for the tests of uniformity. Each is exact, or close to it, at 10,000 resets."""

import numpy as np
from scipy import stats


def choice(values, options):
    """Chi-square: `values` are drawn uniformly from 0..options-1."""
    counts = np.bincount(values, minlength=options)
    assert len(counts) == options, f"a value beyond {options - 1}"
    return stats.chisquare(counts).pvalue


def table(rows, columns, shape):
    """Chi-square: two draws, each uniform, are independent of each other (so every pair is equally likely)."""
    return choice(rows * shape[1] + columns, shape[0] * shape[1])


def coarse(values, options, bins=10):
    """Values uniform over 0..options-1 as `bins` classes of nearly equal size, with the chance of each class."""
    classes = np.arange(options) * bins // options
    return values * bins // options, np.bincount(classes, minlength=bins) / options


def coarse_table(rows, row_options, columns, column_options):
    """Chi-square of the joint draw of two uniform values with too many pairs to count one by one."""
    rows, row_chances = coarse(rows, row_options)
    columns, column_chances = coarse(columns, column_options)
    counts = np.zeros((len(row_chances), len(column_chances)))
    np.add.at(counts, (rows, columns), 1)
    return stats.chisquare(counts.ravel(), len(rows) * np.outer(row_chances, column_chances).ravel()).pvalue


def subset_members(subsets):
    """Chi-square for bool[draws, cells], each row a uniform subset of fixed size: all cells are chosen equally often.

    Cells of one draw are dependent (their number is fixed), which shrinks the statistic by (cells - 1) / cells.
    """
    draws, cells = subsets.shape
    chance = subsets[0].sum() / cells
    deviation = subsets.sum(0) - draws * chance
    statistic = (deviation**2).sum() / (draws * chance * (1 - chance)) * (cells - 1) / cells
    return stats.chi2.sf(statistic, cells - 1)


def subset_share(subsets, region):
    """Chi-square: how many members fall into a region is hypergeometric, as for a draw of distinct cells."""
    draws, cells = subsets.shape
    members = int(subsets[0].sum())
    chances = stats.hypergeom(cells, int(region.sum()), members).pmf(np.arange(members + 1))
    # High shares are too rare to count one by one: put them into one class with at least five expected.
    top = np.flatnonzero(draws * chances[::-1].cumsum()[::-1] >= 5)[-1]
    counts = np.bincount(np.minimum((subsets & region).sum(1), top), minlength=top + 1)
    return stats.chisquare(counts, draws * np.append(chances[:top], chances[top:].sum())).pvalue


def share(events, chance):
    """Binomial: independent events bool[draws] of a known chance."""
    return stats.binomtest(int(events.sum()), len(events), chance).pvalue


def same_means(one, other):
    """Two samples of vectors, [draws, features] each, have the same means: Hotelling's test for large samples.

    For laws that are easier to draw from than to compute. Features may depend on each other in any way.
    """
    covariance = np.cov(np.concatenate([one, other]).astype(np.float64), rowvar=False)
    size, directions = np.linalg.eigh(covariance)
    varied = size > 1e-9 * size.max()  # what is constant in both samples has no direction; one that differs has
    difference = (one.mean(0) - other.mean(0)) @ directions[:, varied]
    statistic = (difference**2 / size[varied]).sum() / (1 / len(one) + 1 / len(other))
    return stats.chi2.sf(statistic, varied.sum())


def permutation(cards, types):
    """Chi-square for int[draws, places], each row a uniform permutation of one multiset: every type at every place.

    Places are dependent (the multiset is fixed): (places - 1) / places of the statistic has
    (places - 1) (types - 1) degrees of freedom.
    """
    draws, places = cards.shape
    counts = np.stack([(cards == kind).sum(0) for kind in range(types)], axis=1)
    expected = draws * np.array([(cards[0] == kind).mean() for kind in range(types)])
    statistic = ((counts - expected) ** 2 / expected).sum() * (places - 1) / places
    return stats.chi2.sf(statistic, (places - 1) * (types - 1))


def two_places(cards, first, second, types):
    """Chi-square for the pair of cards at two places of a permutation: drawn without replacement."""
    places = cards.shape[1]
    numbers = np.array([(cards[0] == kind).sum() for kind in range(types)])
    chances = (np.outer(numbers, numbers) - np.diag(numbers)) / (places * (places - 1))
    counts = np.zeros((types, types))
    np.add.at(counts, (cards[:, first], cards[:, second]), 1)
    return stats.chisquare(counts.ravel(), len(cards) * chances.ravel()).pvalue


def independent(rows, columns, types):
    """Chi-square: two cards from two independent permutations."""
    counts = np.zeros((types, types))
    np.add.at(counts, (rows, columns), 1)
    return stats.chi2_contingency(counts, correction=False).pvalue


def uniform(values, low, high):
    """Kolmogorov-Smirnov against a continuous uniform law."""
    return stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue


def normal(values, sigma):
    """Kolmogorov-Smirnov against N(0, sigma^2)."""
    return stats.kstest(values, stats.norm(0, sigma).cdf).pvalue


def unrelated(one, other):
    """Two continuous draws share nothing: their ranks, each spread over [0, 1], add up (modulo 1) to a uniform value.

    Correlation alone would miss draws that depend on each other in another way.
    """
    ranks = stats.rankdata(one) / len(one), stats.rankdata(other) / len(other)
    return min(stats.kstest((ranks[0] + sign * ranks[1]) % 1, "uniform").pvalue for sign in (1, -1))
