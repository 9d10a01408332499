"""Cells of a report: the returns of one group of runs on one task and twin. Shapes: S seeds, N steps."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from popgym_arcade.analysis.reference_returns import reference_returns
from popgym_arcade.baselines.errors import UserError
from reporting.statistics import iqm

FEWEST_CUT = 4  # with fewer values, an interquartile mean is the mean


@dataclass(frozen=True)
class Cell:
    """The returns of one group on one task and twin."""

    task: str
    twin: str  # mdp, pomdp, or empty for ids without twins
    group: str
    rows: tuple[dict, ...]

    @property
    def env_id(self) -> str:
        """The id, without parameters of the environment."""
        return self.rows[0]["env_id"]

    @property
    def seeds(self) -> dict[str, dict[int, float]]:
        """Mean return of the greedy policy by seed, in order, and step."""
        found: dict[str, dict[int, float]] = {}
        for row in self.rows:
            if row["policy"] == "greedy":
                step = int(row.get("task_steps", row["global_step"]))
                found.setdefault(row["seed"], {})[step] = float(row["return_mean"])
        return {seed: found[seed] for seed in sorted(found, key=natural)}

    @property
    def final(self) -> np.ndarray:
        """[S]: the last greedy return of each seed."""
        return np.array([points[max(points)] for points in self.seeds.values()])

    @property
    def random(self) -> float:
        """Mean return of the random policy."""
        return float(np.mean([float(row["return_mean"]) for row in self.rows if row["policy"] == "random"]))

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps [N] at which all seeds were evaluated, and greedy returns [S, N]."""
        seeds = self.seeds
        steps = sorted(set.intersection(*(set(points) for points in seeds.values())))
        return np.array(steps), np.array([[points[step] for step in steps] for points in seeds.values()])

    def minutes(self, steps: np.ndarray) -> np.ndarray | None:
        """[N]: minutes until these steps, mean over seeds; None if unknown.

        In a run on several tasks, each task gets an equal part of the minutes, as of the steps.
        """
        at: dict[int, list[float]] = {}
        for row in self.rows:
            if row["policy"] == "greedy" and "minutes" in row:
                step = int(row.get("task_steps", row["global_step"]))
                part = step / int(row["global_step"]) if step else 1
                at.setdefault(step, []).append(part * float(row["minutes"]))
        means = np.array([np.mean(at[step]) for step in steps if step in at])
        return means if len(means) == len(steps) > 1 and means[-1] > means[0] else None

    def of_runs(self, name: str) -> dict[str, float]:
        """The greatest value of a column by run; empty if a run lacks the column."""
        found: dict[str, float] = {}
        for row in self.rows:
            if name in row:
                found[row["run"]] = max(float(row[name]), found.get(row["run"], -np.inf))
        return found if len(found) == len({row["run"] for row in self.rows}) else {}


def make_cells(rows: list[dict], by: str) -> list[Cell]:
    """The cells, by task, twin and group, in the order of the table.

    Raises:
        UserError: for a seed that appears twice, or a cell that lacks an evaluation of the greedy or random policy
    """
    with_twins = {row["env_id"] for row in rows if row["partial_obs"] == "True"} | set(reference_returns())
    differ = len({row.get("env_params") for row in rows}) > 1
    found: dict[tuple[str, str, str], list[dict]] = {}
    for row in rows:
        task = row.get("task") or " ".join(
            [row["env_id"], *([row["env_params"]] if differ and "env_params" in row else [])]
        )
        twin = {"True": "pomdp"}.get(row["partial_obs"], "mdp") if row["env_id"] in with_twins else ""
        found.setdefault((task, twin, row[by]), []).append(row)
    several = dict.fromkeys(row.get("task") for row in rows if "task_steps" in row)  # in the order of their run
    place = {task: i for i, task in enumerate(several)}
    cells = []
    for key in sorted(found, key=lambda key: (place.get(key[0], len(place)), natural(key[0]), key)):
        runs = dict.fromkeys((row["seed"], row["run"]) for row in found[key])
        if len(runs) > len({seed for seed, _ in runs}):
            raise UserError(f"{by} {key[2]}: a seed appears twice, in {', '.join(sorted({run for _, run in runs}))}")
        cells.append(Cell(*key, tuple(found[key])))
        missing = {"greedy", "random"} - {row["policy"] for row in found[key]}
        if missing:
            raise UserError(f"{by} {key[2]}, {key[0]}: no evaluation of the {min(missing)} policy")
        if not len(cells[-1].curve()[0]):
            raise UserError(f"{by} {key[2]}, {key[0]}: no step at which all seeds were evaluated")
    return cells


def natural(text: str) -> list:
    """A sort key that orders numbers within a text by size."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", text)]


def normalised(cell: Cell, returns: np.ndarray) -> np.ndarray:
    """Returns of a cell, scaled so that 0 is the random policy's mean and 1 the best possible."""
    low, high = reference_returns()[cell.task]
    return (returns - low) / (high - low)


def can_be_normalised(cell: Cell) -> bool:
    """Whether random and best returns are known: for popgym_arcade's ids with their default parameters."""
    return cell.task in reference_returns() and not any("env_params" in row for row in cell.rows)


def half_way(cell: Cell) -> str:
    """Minutes until the first evaluation at which the seeds' interquartile mean is halfway from the random policy's
    return to the best possible, or "not reached". Empty if returns cannot be normalised or minutes are unknown.
    """
    steps, returns = cell.curve()
    minutes = cell.minutes(steps)
    if minutes is None or not can_be_normalised(cell):
        return ""
    passed = np.flatnonzero(iqm(normalised(cell, returns)[:, None]) >= 0.5)
    return f"{minutes[passed[0]]:.1f}" if len(passed) else "not reached"


def average(cells: Sequence[Cell]) -> str:
    """The name of `iqm` over each cell's seeds: "mean" if the seeds are too few to leave any out."""
    return "mean" if all(len(cell.final) < FEWEST_CUT for cell in cells) else "interquartile mean"
