"""Compares greedy returns of the same runs before and after a change, and reports those that got worse.

    python benchmark/regression.py --before 'runs/a/*' --after 'runs/b/*'

The score of a seed is the mean of all its greedy evaluations, so slower learning shows as well. Prints a table:
interquartile means over the seeds, their difference with a 95% bootstrap interval (both sides are resampled
independently, as in gap_and_bias.py), and interquartile means of the last evaluations. A run is worse if its
interval lies below 0. With --again-before and --again-after (runs with other seeds), their interval must lie below 0
too. The exit code is 3 if a run is worse or missing. benchmark/regression.sh starts the runs.
"""

import glob
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from popgym_arcade.analysis.command_line import launch
from popgym_arcade.analysis.interquartile import estimate, iqm, matrices_of
from popgym_arcade.analysis.runs import read_run
from popgym_arcade.analysis.tables import markdown
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import PathName


@dataclass(frozen=True)
class Args:
    before: tuple[PathName, ...]
    """run folders before the change, or patterns that match some"""
    after: tuple[PathName, ...]
    """run folders after the change"""
    again_before: tuple[PathName, ...] = ()
    """run folders with other seeds before the change"""
    again_after: tuple[PathName, ...] = ()
    """run folders with other seeds after the change"""

    def checked(self) -> "Args":
        """These arguments. Raises UserError for flags that do not go together."""
        if bool(self.again_before) != bool(self.again_after):
            raise UserError("give --again-before and --again-after together")
        return self


@dataclass(frozen=True)
class Training:
    """Greedy returns by seed, at every evaluated step [N]."""

    steps: tuple[int, ...]
    returns: dict[int, list[float]]

    @property
    def means(self) -> np.ndarray:
        """[S]: the mean of each seed's evaluations."""
        return np.array([np.mean(each) for each in self.returns.values()])

    @property
    def last(self) -> np.ndarray:
        """[S]: the last evaluation of each seed."""
        return np.array([each[-1] for each in self.returns.values()])


def read_trainings(patterns: tuple[str, ...]) -> dict[tuple[str, ...], Training]:
    """Every run, by script, memory, id (or task, if there are several) and twin.

    Raises:
        UserError: if there is none, one appears twice, or one has no evaluation or a single seed
    """
    matches = [Path(match) for pattern in patterns for match in sorted(glob.glob(pattern))]
    folders = [folder for folder in matches if (folder / "eval.csv").exists()]
    if not folders:
        raise UserError(f"{' '.join(patterns)}: no run folder matches")
    found: dict[tuple[str, ...], Training] = {}
    for folder in folders:
        for key, training in trainings_of(folder).items():
            if key in found:
                raise UserError(f"{folder}: {' '.join(key)} appears twice")
            found[key] = training
    return found


def trainings_of(folder: Path) -> dict[tuple[str, ...], Training]:
    """The returns on each of a run's tasks.

    Raises:
        UserError: if there is no evaluation of the greedy policy, there is a single seed, or seeds were evaluated at
            different steps
    """
    about, rows = read_run(folder)
    points: dict[tuple[str, ...], dict[int, dict[int, float]]] = {}
    for row in rows:
        if row["policy"] == "greedy":
            twin = "pomdp" if row["partial_obs"] == "True" else "mdp"
            key = about["script"], about["args"].get("memory", "none"), row.get("task") or row["env_id"], twin
            of_seed = points.setdefault(key, {}).setdefault(int(row["seed"]), {})
            of_seed[int(row["global_step"])] = float(row["return_mean"])
    if not points:
        raise UserError(f"{folder}: no evaluation of the greedy policy")
    found = {}
    for key, seeds in points.items():
        steps = sorted(next(iter(seeds.values())))
        if any(sorted(of_seed) != steps for of_seed in seeds.values()):
            raise UserError(f"{folder}: seeds of {' '.join(key)} were evaluated at different steps")
        if len(seeds) == 1:
            raise UserError(f"{folder}: one seed says nothing about a difference, train with two or more")
        found[key] = Training(tuple(steps), {seed: [seeds[seed][step] for step in steps] for seed in sorted(seeds)})
    return found


def compare(before: dict, after: dict) -> tuple[str, list[tuple[str, ...]]]:
    """A table of all runs, and the keys of those that are worse or missing.

    Raises:
        UserError: if a run was evaluated at different steps
    """
    lines, bad = [], []
    for key in sorted(before.keys() | after.keys()):
        if key not in before or key not in after:
            lines.append([*key, *[""] * 6, "missing"])
            bad.append(key)
            continue
        if before[key].steps != after[key].steps:
            ends = f"up to {before[key].steps[-1]:,} before and {after[key].steps[-1]:,} after the change"
            raise UserError(f"{' '.join(key)}: evaluated at different steps, {ends}")
        sides = before[key], after[key]
        means, lasts = ([middle(getattr(side, name)) for side in sides] for name in ("means", "last"))
        difference = estimate([after[key].means], [before[key].means])
        worse = not difference.high >= 0  # NaN is worse
        within = f"{difference.low:+.3f} to {difference.high:+.3f}"
        lines.append([*key, *means, f"{difference.value:+.3f}", within, *lasts, "worse" if worse else ""])
        bad += [key] * worse
    head = ["script", "memory", "id", "twin", "before", "after", "difference", "95% interval"]
    return markdown([*head, "last before", "last after", "verdict"], lines), bad


def middle(values: np.ndarray) -> str:
    """The interquartile mean."""
    return f"{iqm(*matrices_of([values])):.3f}"


def main(args: Args) -> bool:
    """Prints a table, and a second one for the other seeds; returns whether nothing is worse or missing."""
    args = args.checked()
    pairs = [(args.before, args.after), *([(args.again_before, args.again_after)] if args.again_after else [])]
    compared = [compare(*map(read_trainings, pair)) for pair in pairs]
    print(*(table for table, _ in compared), sep="\n", end="")
    bad = [key for key in compared[0][1] if all(key in each for _, each in compared)]
    print(f"worse or missing: {', '.join(map(' '.join, bad))}" if bad else "no run is worse")
    return not bad


if __name__ == "__main__":
    sys.exit(0 if launch(main, Args) else 3)
