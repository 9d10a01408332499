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
    before: str
    """run folders before the change: a pattern"""
    after: str
    """run folders after it"""


def returns(pattern: str) -> dict[tuple[str, ...], np.ndarray]:
    """Last greedy returns [S] of every training, by script, memory, id and twin.

    Raises:
        UserError: when there is no run, or a training twice.
    """
    found: dict[tuple[str, ...], np.ndarray] = {}
    folders = [Path(match) for match in sorted(glob.glob(pattern)) if (Path(match) / "eval.csv").exists()]
    for folder in folders:
        about, rows = read_run(folder)
        greedy = [row for row in rows if row["policy"] == "greedy"]
        last = max((int(row["global_step"]) for row in greedy), default=0)
        finals = np.array([float(row["return_mean"]) for row in greedy if int(row["global_step"]) == last])
        twin = "pomdp" if rows and rows[0]["partial_obs"] == "True" else "mdp"
        key = about["script"], about["args"].get("memory", "none"), rows[0]["env_id"] if rows else "", twin
        if key in found:
            raise UserError(f"{pattern}: {' '.join(key)} is there twice, the second time in {folder.name}")
        found[key] = finals
    if not folders:
        raise UserError(f"{pattern}: no run folder there")
    if any(not len(finals) for finals in found.values()):
        raise UserError(f"{pattern}: a run has no evaluation of the greedy policy")
    return found


def compare(before: dict, after: dict) -> tuple[str, int]:
    """A table of all trainings, and how many of them are worse or missing."""
    lines, bad = [], 0
    for key in sorted(before.keys() | after.keys()):
        if key not in before or key not in after:
            lines.append([*key, "", "", "", "", "missing"])
            bad += 1
            continue
        middle = [estimate([side[key]]).value for side in (before, after)]
        difference = estimate([after[key]], [before[key]])
        worse = difference.high is not None and difference.high < 0
        known = "" if difference.low is None else f"{difference.low:+.3f} to {difference.high:+.3f}"
        numbers = [f"{value:.3f}" for value in middle]
        lines.append([*key, *numbers, f"{difference.value:+.3f}", known, "worse" if worse else ""])
        bad += worse
    head = ["script", "memory", "id", "twin", "before", "after", "difference", "95% interval", "verdict"]
    return markdown(head, lines), bad


def main(args: Args) -> bool:
    """Prints the table; whether nothing is worse or missing."""
    table, bad = compare(returns(args.before), returns(args.after))
    print(table, end="")
    print(f"{bad} of these are worse or missing" if bad else "none of these is worse")
    return not bad


if __name__ == "__main__":
    try:
        sys.exit(0 if main(tyro.cli(Args, description=__doc__)) else 1)
    except UserError as error:
        print(f"regression.py: error: {error}", file=sys.stderr)
        sys.exit(2)
