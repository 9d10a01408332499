"""Greedy returns of the same trainings before and after a change, and whether any of them became worse.

    python benchmark/regression.py --before 'runs/a/*' --after 'runs/b/*'

What counts of a seed is the mean of all its evaluations but the one before the training, so that learning more slowly
counts too. Prints a table: interquartile means of that over the seeds, their difference and its 95% bootstrap interval
(both sides are resampled independently, as in gap_and_bias.py), and interquartile means of the last evaluations. Runs
of one training with other seeds are put together. The exit code is 1 if an interval lies below 0, or a training is
missing. benchmark/regression.sh makes the trainings.
"""

import glob
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmark")]
from report import UserError, markdown, read_run  # noqa: E402

from gap_and_bias import estimate  # noqa: E402


@dataclass(frozen=True)
class Args:
    before: tuple[str, ...]
    """run folders before the change, or patterns of them"""
    after: tuple[str, ...]
    """run folders after it"""


@dataclass(frozen=True)
class Training:
    """Greedy returns of a training by seed: at every step [N] that was evaluated."""

    steps: tuple[int, ...]
    returns: dict[int, list[float]]

    @property
    def means(self) -> np.ndarray:
        """[S]: the mean of each seed's evaluations, but for one at step 0."""
        first = int(self.steps[0] == 0 and len(self.steps) > 1)
        return np.array([np.mean(each[first:]) for each in self.returns.values()])

    @property
    def last(self) -> np.ndarray:
        """[S]: the last evaluation of each seed."""
        return np.array([each[-1] for each in self.returns.values()])


def read_trainings(patterns: tuple[str, ...]) -> dict[tuple[str, ...], Training]:
    """Every training, by script, memory, id (of several tasks: task) and twin.

    Raises:
        UserError: when there is no run, a seed twice, one that was evaluated at other steps than another, a training
            without an evaluation or with a single seed.
    """
    matches = [Path(match) for pattern in patterns for match in sorted(glob.glob(pattern))]
    folders = [folder for folder in matches if (folder / "eval.csv").exists()]
    if not folders:
        raise UserError(f"{' '.join(patterns)}: no run folder there")
    found: dict[tuple[str, ...], Training] = {}
    for folder in folders:
        for key, new in trainings_of(folder).items():
            known = found.get(key, Training(new.steps, {}))
            if known.returns.keys() & new.returns.keys():
                raise UserError(f"{folder}: a seed of {' '.join(key)} is there twice")
            if known.steps != new.steps:
                raise UserError(f"{folder}: {' '.join(key)} was evaluated at other steps than in another run")
            found[key] = Training(new.steps, known.returns | new.returns)
    for key, training in found.items():
        if len(training.returns) < 2:
            raise UserError(f"{' '.join(key)}: one seed says nothing about a difference, train two or more")
    return found


def trainings_of(folder: Path) -> dict[tuple[str, ...], Training]:
    """What one run says of each of its tasks. Raises UserError without an evaluation of the greedy policy."""
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
        steps = sorted(set.intersection(*map(set, seeds.values())))
        returns = {seed: [seeds[seed][step] for step in steps] for seed in sorted(seeds)}
        found[key] = Training(tuple(steps), returns)
    return found


def compare(before: dict, after: dict) -> tuple[str, int]:
    """A table of all trainings, and how many of them are worse or missing.

    Raises:
        UserError: when a training was evaluated at other steps.
    """
    lines, bad = [], 0
    for key in sorted(before.keys() | after.keys()):
        if key not in before or key not in after:
            lines.append([*key, *[""] * 7, "missing"])
            bad += 1
            continue
        if before[key].steps != after[key].steps:
            until = f"{before[key].steps[-1]:,} steps before and {after[key].steps[-1]:,} after"
            raise UserError(f"{' '.join(key)}: evaluated at other steps, until {until}, which cannot be compared")
        sides = before[key], after[key]
        means, lasts = ([middle(getattr(side, name)) for side in sides] for name in ("means", "last"))
        difference = estimate([after[key].means], [before[key].means])
        worse = difference.high < 0
        within = f"{difference.low:+.3f} to {difference.high:+.3f}"
        seeds = " and ".join(dict.fromkeys(str(len(side.returns)) for side in sides))
        lines.append([*key, seeds, *means, f"{difference.value:+.3f}", within, *lasts, "worse" if worse else ""])
        bad += worse
    head = ["script", "memory", "id", "twin", "seeds", "before", "after", "difference", "95% interval"]
    return markdown([*head, "last before", "last after", "verdict"], lines), bad


def middle(values: np.ndarray) -> str:
    """The interquartile mean."""
    return f"{estimate([values]).value:.3f}"


def main(args: Args) -> bool:
    """Prints the table; whether nothing is worse or missing."""
    table, bad = compare(read_trainings(args.before), read_trainings(args.after))
    print(table, end="")
    print(f"{bad} of these are worse or missing" if bad else "none of these is worse")
    return not bad


if __name__ == "__main__":
    try:
        sys.exit(0 if main(tyro.cli(Args, description=__doc__)) else 1)
    except UserError as error:
        print(f"regression.py: error: {error}", file=sys.stderr)
        sys.exit(2)
