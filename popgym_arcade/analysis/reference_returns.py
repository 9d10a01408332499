"""Reference returns of popgym_arcade's games, which `benchmark/random_policy.py` and `benchmark/oracle.py` measured."""

import functools
from pathlib import Path
from typing import NamedTuple

from popgym_arcade.analysis.tables import read_csv

RESULTS = Path(__file__).parents[2] / "benchmark" / "results"


class Reference(NamedTuple):
    """Mean undiscounted returns of an id with its default parameters, the same for both twins."""

    random: float
    """of the random policy"""
    best: float
    """of players that know the whole state"""


@functools.cache
def reference_returns() -> dict[str, Reference]:
    """The reference returns of every id. Raises OSError where there is no `benchmark/results`."""
    random, best = (
        {row["env_id"]: float(row["return_mean"]) for row in read_csv(RESULTS / name)}
        for name in ("random_policy.csv", "oracle.csv")
    )
    return {env_id: Reference(random[env_id], best[env_id]) for env_id in random}
