"""Last greedy returns of the same trainings before and after a change, and whether any of them became worse.

    python benchmark/regression.py --before 'runs/a/*' --after 'runs/b/*'

Prints a table: interquartile means over the seeds, their difference, and its 95% bootstrap interval (both sides are
resampled independently, as in gap_and_bias.py). The exit code is 1 if an interval lies below 0, or a training is
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
class Last:
    """The last evaluations of a training: returns [S] of the greedy policy, and the step they are of."""

    returns: np.ndarray
    step: int


def last_evaluations(patterns: tuple[str, ...]) -> dict[tuple[str, ...], Last]:
    """The last evaluations of every training, by script, memory, id (of several tasks: task) and twin.

    Raises:
        UserError: when there is no run, a training twice, or one without an evaluation or with a single seed.
    """
    matches = [Path(match) for pattern in patterns for match in sorted(glob.glob(pattern))]
    folders = [folder for folder in matches if (folder / "eval.csv").exists()]
    if not folders:
        raise UserError(f"{' '.join(patterns)}: no run folder there")
    found: dict[tuple[str, ...], Last] = {}
    for folder in folders:
        for key, last in last_of_run(folder).items():
            if key in found:
                raise UserError(f"{folder}: {' '.join(key)} is there twice")
            found[key] = last
    return found


def last_of_run(folder: Path) -> dict[tuple[str, ...], Last]:
    """The last evaluations of one run, of each task. Raises UserError without one, or where there is a single seed."""
    about, rows = read_run(folder)
    steps = [int(row["global_step"]) for row in rows if row["policy"] == "greedy"]
    if not steps:
        raise UserError(f"{folder}: no evaluation of the greedy policy")
    returns: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        if row["policy"] == "greedy" and int(row["global_step"]) == max(steps):
            twin = "pomdp" if row["partial_obs"] == "True" else "mdp"
            key = about["script"], about["args"].get("memory", "none"), row.get("task") or row["env_id"], twin
            returns.setdefault(key, []).append(float(row["return_mean"]))
    if min(map(len, returns.values())) == 1:
        raise UserError(f"{folder}: one seed says nothing about a difference, train two or more")
    return {key: Last(np.array(each), max(steps)) for key, each in returns.items()}


def compare(before: dict, after: dict) -> tuple[str, int]:
    """A table of all trainings, and how many of them are worse or missing.

    Raises:
        UserError: when a training had another number of steps.
    """
    lines, bad = [], 0
    for key in sorted(before.keys() | after.keys()):
        if key not in before or key not in after:
            lines.append([*key, "", "", "", "", "missing"])
            bad += 1
            continue
        if before[key].step != after[key].step:
            steps = f"{before[key].step:,} steps before and {after[key].step:,} after"
            raise UserError(f"{' '.join(key)}: {steps}, which cannot be compared")
        middle = [estimate([side[key].returns]).value for side in (before, after)]
        difference = estimate([after[key].returns], [before[key].returns])
        worse = difference.high is not None and difference.high < 0
        known = "" if difference.low is None else f"{difference.low:+.3f} to {difference.high:+.3f}"
        numbers = [f"{value:.3f}" for value in middle]
        lines.append([*key, *numbers, f"{difference.value:+.3f}", known, "worse" if worse else ""])
        bad += worse
    head = ["script", "memory", "id", "twin", "before", "after", "difference", "95% interval", "verdict"]
    return markdown(head, lines), bad


def main(args: Args) -> bool:
    """Prints the table; whether nothing is worse or missing."""
    table, bad = compare(last_evaluations(args.before), last_evaluations(args.after))
    print(table, end="")
    print(f"{bad} of these are worse or missing" if bad else "none of these is worse")
    return not bad


if __name__ == "__main__":
    try:
        sys.exit(0 if main(tyro.cli(Args, description=__doc__)) else 1)
    except UserError as error:
        print(f"regression.py: error: {error}", file=sys.stderr)
        sys.exit(2)
