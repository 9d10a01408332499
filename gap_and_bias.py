"""What partial observability costs an agent that remembers, and what its memory costs where none is needed.

Observability gap and memory bias are those of Wang et al. 2025, "Investigating Memory in Model-Free RL with POPGym
Arcade", https://arxiv.org/abs/2503.01450; interquartile means and intervals are rliable's (Agarwal et al. 2021, "Deep
Reinforcement Learning at the Edge of the Statistical Precipice", https://arxiv.org/abs/2108.13264).

Run:   python gap_and_bias.py --runs 'runs/*'
Page:  docs/gap_and_bias.md

Writes `gap_and_bias.png`, `gap_and_bias.csv`, `cells.csv` and `missing.csv`. A cell holds the returns of one algorithm
with one memory on one twin of one environment, where it was both trained and evaluated. Shapes: S seeds of a cell.
"""

import glob
import math
import os
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tqdm import tqdm

import popgym_arcade
from popgym_arcade.analysis.command_line import AnalysisArgs, launch
from popgym_arcade.analysis.interquartile import Estimate, estimate
from popgym_arcade.analysis.output import new_folder
from popgym_arcade.analysis.reference_returns import reference_returns
from popgym_arcade.analysis.runs import evaluated_with
from popgym_arcade.analysis.tables import read_table
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import PathName, Range
from popgym_arcade.baselines.running.files import write_csv
from popgym_arcade.baselines.scripts import read_about

ALL = "all"  # in place of an environment: aggregated over all of them
QUANTITIES = ("pomdp_return", "mdp_return", "gap", "bias")
CELL_COLUMNS = (
    *("algorithm", "memory", "env_id", "twin", "seeds", "return_iqm", "return_low", "return_high", "return_mean"),
    *("return_min", "return_max", "step_min", "step_max", "seed_numbers", "runs"),
)
COLUMNS = (
    *("algorithm", "memory", "env_id", "quantity", "value", "low", "high", "seeds_min", "seeds_max", "ids", "env_ids"),
)
MISSING_COLUMNS = ("algorithm", "memory", "env_id", "twin", "why")
READ = {"run", "script", "memory", "global_step", "seed", "env_id", "partial_obs", "policy", "return_mean"}


# --------------------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True)
class Args(AnalysisArgs):
    runs: tuple[PathName, ...]
    """run folders, tables of evaluate.py or benchmark/report.py, or patterns that match some"""
    baseline: str = "none"
    """memory that the bias is measured against: none (the script without one) or another, such as MLP"""
    normalised: bool = False
    """scale returns so that 0 is the random policy and 1 the best possible; only for popgym_arcade's ids"""
    resamples: Annotated[int, Range(100)] = 2_000
    """bootstrap resamples"""

    def check(self) -> None:
        if not self.runs:
            raise UserError("--runs: name run folders, or tables of evaluations")


# ------------------------------------------------------------------------------------------------------- evaluations


@dataclass(frozen=True, order=True)
class Cell:
    """What all seeds of a run share, as far as gap and bias are concerned."""

    algorithm: str
    memory: str
    env_id: str  # followed by the parameters of the environment that the run changed
    twin: str  # mdp or pomdp

    @property
    def registered(self) -> str:
        """The id without parameters."""
        return self.env_id.partition(" ")[0]

    def __str__(self) -> str:
        return f"{self.algorithm} {self.memory} {self.env_id} {self.twin}"


@dataclass(frozen=True)
class Score:
    """The greedy policy's mean return over the episodes of an evaluation, on the twin it was trained on."""

    cell: Cell
    seed: int
    step: int
    value: float
    run: str
    source: Path  # run folder, or table

    @property
    def is_of_table(self) -> bool:
        """Whether it comes from a table, and not from the run's own folder."""
        return self.source.suffix == ".csv"

    def __str__(self) -> str:
        return str(self.source) if self.source.name == self.run else f"{self.run} of {self.source}"


def find_sources(patterns: tuple[str, ...]) -> list[Path]:
    """Run folders and tables that match the patterns, each once. Raises UserError for a pattern that matches none."""
    sources: dict[Path, None] = {}
    for pattern in map(os.path.expanduser, patterns):
        paths = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern))
        found = [source for path in paths if (source := source_at(Path(path)))]
        if not found:
            raise UserError(f"--runs {pattern}: no run folder there; name folders that contain args.json, or tables")
        sources |= dict.fromkeys(path.resolve() for path in found)
    return list(sources)


def source_at(path: Path) -> Path | None:
    """The run folder or the table at a path, or None."""
    if (path / "args.json").is_file():
        return path
    if (path / "evaluate.csv").is_file():
        return path / "evaluate.csv"
    return path if path.is_file() and path.suffix == ".csv" else None


def read_evaluations(source: Path) -> list[Score]:
    """The greedy policy's last evaluation of every seed, from a run folder or a table.

    Only those on the environment and twin of the run count. Raises UserError for files that cannot be read.
    """
    if source.suffix == ".csv":
        path, origin = source, {}
    else:
        about = read_about(source)
        args = about["args"]
        path, origin = source / "eval.csv", {"run": source.name, "script": about["script"]}
        origin["memory"] = str(args.get("memory", "none"))
        origin["env_params"] = evaluated_with(args)
    scores: dict[tuple, Score] = {}
    for line, row in enumerate(read_table(path, READ - {*origin}), start=2):
        try:
            score = read_score(row | origin, source)
        except (ValueError, TypeError, AttributeError):
            raise UserError(f"{path}: line {line} is damaged") from None
        key = score.run, score.cell, score.seed
        if counts(row) and (key not in scores or score.step >= scores[key].step):
            scores[key] = score
    return list(scores.values())


def read_score(row: dict, source: Path) -> Score:
    """A row of a source. Raises ValueError, TypeError or AttributeError if it is damaged."""
    twin = {"False": "mdp", "True": "pomdp"}.get(row["partial_obs"])
    value = float(row["return_mean"])
    if twin is None or not math.isfinite(value):
        raise ValueError
    env_id = f"{row['env_id']} {row.get('env_params', '')}".strip()
    cell = Cell(row["script"].removesuffix("_mlp").removesuffix("_rnn"), row["memory"], env_id, twin)
    return Score(cell, int(row["seed"]), int(row["global_step"]), value, row["run"], source)


def counts(row: dict) -> bool:
    """Whether it is an evaluation of the greedy policy on the environment and twin of the run, not a match."""
    own = all(row.get(f"trained_{name}", row[name]) == row[name] for name in ("env_id", "partial_obs"))
    return own and row["policy"] == "greedy" and not row.get("against")


def gather(scores: list[Score]) -> dict[Cell, list[Score]]:
    """The scores by cell, one for each seed, in order. A run given twice counts once, preferably in a table.

    Raises:
        UserError: if two runs, or two different evaluations of one, have the same seed of a cell
    """
    cells: dict[Cell, dict[int, Score]] = {}
    for score in sorted(scores, key=lambda score: not score.is_of_table):
        seeds = cells.setdefault(score.cell, {})
        other = seeds.setdefault(score.seed, score)
        if other.run == score.run and other.is_of_table and not score.is_of_table:
            continue
        if (other.run, other.step, other.value) != (score.run, score.step, score.value):
            raise UserError(f"{score.cell} seed {score.seed} appears twice: in {other} and in {score}")
    return {cell: [seeds[seed] for seed in sorted(seeds)] for cell, seeds in sorted(cells.items())}


# ------------------------------------------------------------------------------------------------------------- study


@dataclass(frozen=True)
class Study:
    """The scores by cell, all in environments with twins, and the memory that the bias is measured against."""

    cells: dict[Cell, list[Score]]
    baseline: str
    normalised: bool

    @property
    def agents(self) -> list[tuple[str, str]]:
        """Algorithms and memories that have a cell."""
        return sorted({(cell.algorithm, cell.memory) for cell in self.cells})

    @property
    def env_ids(self) -> list[str]:
        """Environments that have a cell."""
        return sorted({cell.env_id for cell in self.cells})

    def returns(self, cell: Cell) -> np.ndarray:
        """The scores [S] of a cell, in the game's own units or normalised."""
        low, best = reference_returns()[cell.env_id] if self.normalised else (0, 1)
        return (np.array([score.value for score in self.cells[cell]]) - low) / (best - low)


@dataclass(frozen=True)
class Missing:
    """A cell without a run, and what cannot be computed without it."""

    cell: Cell
    why: str


def read_study(args: Args) -> tuple[Study, list[str]]:
    """The evaluations of `--runs`, and a line about everything that was left out.

    Raises:
        UserError: for files that cannot be read, a seed that appears twice, and if there is neither a gap nor a bias
    """
    read = {source: read_evaluations(source) for source in find_sources(args.runs)}
    notes = [f"left out, no greedy evaluation on its own twin: {path}" for path, scores in read.items() if not scores]
    cells = gather([score for scores in read.values() for score in scores])
    twins = {*popgym_arcade.REGISTERED_ENVIRONMENTS, *(cell.registered for cell in cells if cell.twin == "pomdp")}
    without = sorted({cell.env_id for cell in cells if cell.registered not in twins})
    notes += [f"left out, no twins: {', '.join(without)}"] if without else []
    there = {cell: scores for cell, scores in cells.items() if cell.registered in twins}
    study = Study(there, args.baseline, args.normalised)
    if not study.cells:
        raise UserError(f"nothing to compare: {'; '.join(notes)}")
    if args.normalised and (unknown := {*study.env_ids} - {*reference_returns()}):
        raise UserError(f"--normalised: the random and the best return of {min(unknown)} are not known")
    memories = sorted({memory for _, memory in study.agents})
    if args.baseline not in {"none", *memories}:
        raise UserError(f"--baseline {args.baseline}: no run has this memory; they have {', '.join(memories)}")
    if not any(task.quantity in ("gap", "bias") for task in find_tasks(study)):
        raise UserError(
            "nothing to compare: no memory has runs on both twins of an id, and none has a run on a fully observable "
            f"twin where memory {args.baseline} has one too"
        )
    return study, notes


def terms(quantity: str, algorithm: str, memory: str, env_id: str, baseline: str) -> tuple[Cell, ...]:
    """The cells behind a quantity: one if it is a return, two if it is a difference (first minus second).

    Wang et al. 2025: observability gap J(f, MDP) - J(f, POMDP), memory bias J(f, MDP) - J(no memory, MDP).
    """
    mdp, pomdp = Cell(algorithm, memory, env_id, "mdp"), Cell(algorithm, memory, env_id, "pomdp")
    without = Cell(algorithm, baseline, env_id, "mdp")
    return {"pomdp_return": (pomdp,), "mdp_return": (mdp,), "gap": (mdp, pomdp), "bias": (mdp, without)}[quantity]


def find_missing(study: Study) -> list[Missing]:
    """Cells without a run: both twins of all environments for every agent, and the MDPs for the one without memory."""
    agents = {*study.agents, *((algorithm, study.baseline) for algorithm, _ in study.agents)}
    missing = []
    for algorithm, memory, env_id in sorted((*agent, env_id) for agent in agents for env_id in study.env_ids):
        is_baseline = memory == study.baseline
        no_bias = "no bias of any memory" if is_baseline else "no bias"
        why = {"mdp": f"no run, so no gap and {no_bias}", "pomdp": "no run, so no POMDP return and no gap"}
        if (algorithm, memory) not in study.agents:  # the gap of this baseline was not asked for
            why = {"mdp": f"no run, so {no_bias}"}
        cells = {Cell(algorithm, memory, env_id, twin): reason for twin, reason in why.items()}
        missing += [Missing(cell, reason) for cell, reason in cells.items() if cell not in study.cells]
    return missing


def uneven_steps(study: Study) -> list[str]:
    """A line for every algorithm and environment whose runs were last evaluated at different steps."""
    steps: dict[tuple[str, str], set[int]] = {}
    for cell, scores in study.cells.items():
        steps.setdefault((cell.algorithm, cell.env_id), set()).update(score.step for score in scores)
    told = "last evaluations at different steps"
    return [f"{told}: {' '.join(at)}, {min(n)} to {max(n)}" for at, n in steps.items() if len(n) > 1]


# -------------------------------------------------------------------------------------------------------- statistics


@dataclass(frozen=True)
class Task:
    """A quantity of an agent to estimate, in one environment or aggregated over all that have the cells for it."""

    algorithm: str
    memory: str
    env_id: str  # or ALL
    quantity: str
    env_ids: tuple[str, ...]
    sides: tuple[tuple[Cell, ...], ...]  # cells of the first term and of the second, one for each environment


def find_tasks(study: Study) -> list[Task]:
    """Every quantity for which there are cells, but not the bias of the baseline, which is 0 by definition."""
    tasks = []
    for algorithm, memory, quantity in ((*agent, quantity) for agent in study.agents for quantity in QUANTITIES):
        if quantity == "bias" and memory == study.baseline:
            continue
        needed = {env_id: terms(quantity, algorithm, memory, env_id, study.baseline) for env_id in study.env_ids}
        there = [env_id for env_id, cells in needed.items() if all(cell in study.cells for cell in cells)]
        labels = {env_id: (env_id,) for env_id in there} | ({ALL: tuple(there)} if there else {})
        for label, env_ids in labels.items():
            sides = tuple(zip(*(needed[env_id] for env_id in env_ids), strict=True))
            tasks.append(Task(algorithm, memory, label, quantity, env_ids, sides))
    return tasks


def estimate_all(study: Study, resamples: int) -> dict[Task, Estimate]:
    """Every quantity for which there are cells, estimated."""
    estimates = {}
    for task in tqdm(find_tasks(study), "bootstrap", disable=None):
        sides = [[study.returns(cell) for cell in side] for side in task.sides]
        estimates[task] = estimate(*sides, resamples=resamples)
    return estimates


# ------------------------------------------------------------------------------------------------------------ tables


def seeds_of(study: Study, task: Task) -> list[int]:
    """The number of seeds of each of a quantity's cells."""
    return [len(study.cells[cell]) for side in task.sides for cell in side]


def row_of(study: Study, task: Task, found: Estimate) -> dict:
    """A row of `gap_and_bias.csv`."""
    seeds = seeds_of(study, task)
    return (
        {"algorithm": task.algorithm, "memory": task.memory, "env_id": task.env_id, "quantity": task.quantity}
        | {"value": found.value, "low": found.low, "high": found.high}
        | {"seeds_min": min(seeds), "seeds_max": max(seeds)}
        | {"ids": len(task.env_ids), "env_ids": " ".join(task.env_ids)}
    )


def cell_row_of(study: Study, task: Task, found: Estimate) -> dict:
    """A row of `cells.csv`, from the return in one environment."""
    ((cell,),) = task.sides
    scores, returns = study.cells[cell], study.returns(cell)
    steps = [score.step for score in scores]
    return (
        {"algorithm": cell.algorithm, "memory": cell.memory, "env_id": cell.env_id, "twin": cell.twin}
        | {"seeds": len(scores), "return_iqm": found.value, "return_low": found.low, "return_high": found.high}
        | {"return_mean": returns.mean(), "return_min": returns.min(), "return_max": returns.max()}
        | {"step_min": min(steps), "step_max": max(steps)}
        | {"seed_numbers": " ".join(str(score.seed) for score in scores)}
        | {"runs": " ".join(dict.fromkeys(score.run for score in scores))}
    )


def missing_row_of(missing: Missing) -> dict:
    """A row of `missing.csv`."""
    cell = missing.cell
    about = {"algorithm": cell.algorithm, "memory": cell.memory, "env_id": cell.env_id, "twin": cell.twin}
    return about | {"why": missing.why}


def aggregated(estimates: dict[Task, Estimate]) -> dict[tuple[str, str, str], tuple[Task, Estimate]]:
    """The estimates aggregated over environments, by algorithm, memory and quantity."""
    return {(t.algorithm, t.memory, t.quantity): (t, found) for t, found in estimates.items() if t.env_id == ALL}


def remark(study: Study, agent: tuple[str, str], quantity: str, task: Task | None) -> str:
    """A remark on an aggregated value, or one to replace it; often empty."""
    if task is None:
        return "baseline" if quantity == "bias" and agent[1] == study.baseline else "missing"
    ids = f"{len(task.env_ids)}/{len(study.env_ids)} ids" if len(task.env_ids) < len(study.env_ids) else ""
    seeds = "1 seed" if min(seeds_of(study, task)) == 1 else ""
    return ", ".join(filter(None, [ids, seeds]))


def table(study: Study, estimates: dict[Task, Estimate]) -> str:
    """A line per algorithm and memory, aggregated over environments: interquartile mean, 95% interval, remarks."""
    found = aggregated(estimates)
    heads = {"pomdp_return": "POMDP return", "gap": "gap", "bias": "bias"}
    lines = [["algorithm", "memory", *heads.values()]]
    for agent in study.agents:
        line = list(agent)
        for quantity in heads:
            task, value = found.get((*agent, quantity), (None, None))
            note = remark(study, agent, quantity, task)
            line.append(note if task is None else f"{value}" + (f", {note}" if note else ""))
        lines.append(line)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


# ----------------------------------------------------------------------------------------------------------- picture


PANELS = {
    "pomdp_return": ("POMDP return", "return,\npartially observable"),
    "gap": ("Observability gap", "return, fully minus\npartially observable\n(above 0: hiding costs return)"),
    "bias": ("Memory bias", "return, fully observable,\nminus that of {}\n(below 0: memory costs return)"),
}
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")  # Okabe and Ito's palette


def order_of(study: Study, estimates: dict[Task, Estimate]) -> list[str]:
    """The memories by POMDP return (mean over algorithms), the best first and those without one last."""
    found = aggregated(estimates)

    def rank(memory: str) -> tuple[bool, float, str]:
        keys = [(algorithm, memory, "pomdp_return") for algorithm, _ in study.agents]
        values = [found[key][1].value for key in dict.fromkeys(keys) if key in found]
        return not values, -float(np.mean(values)) if values else 0.0, memory

    return sorted({memory for _, memory in study.agents}, key=rank)


def draw(study: Study, estimates: dict[Task, Estimate]) -> Figure:
    """Three panels side by side, aggregated over environments: a row for each memory, a colour for each algorithm."""
    memories, algorithms = order_of(study, estimates), sorted({algorithm for algorithm, _ in study.agents})
    height = 2.4 + len(memories) * (0.14 + 0.16 * len(algorithms))
    figure = Figure(figsize=(8.4, height), layout="constrained")
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (quantity, (title, formula)) in zip(panels, PANELS.items(), strict=True):
        draw_panel(axes, study, estimates, quantity, memories, algorithms)
        axes.set_title(title, fontsize=11)
        axes.set_xlabel(formula.format("no memory" if study.baseline == "none" else study.baseline))
    panels[0].set_yticks(range(len(memories)), memories)
    panels[0].set_ylim(len(memories) - 0.5, -0.5)
    if len(algorithms) > 1:
        handles = [panels[0].plot([], [], "o-", color=COLORS[i % len(COLORS)])[0] for i in range(len(algorithms))]
        figure.legend(handles, algorithms, loc="outside upper center", ncols=len(algorithms), frameon=False)
    figure.supxlabel(caption(study, estimates), fontsize=9, color="0.3")
    return figure


def caption(study: Study, estimates: dict[Task, Estimate]) -> str:
    """What the points, lines and hollow points of the picture mean."""
    shown = [task for task, _ in aggregated(estimates).values() if task.quantity in PANELS]
    hollow = any(len(task.env_ids) < len(study.env_ids) for task in shown)
    counts = {len(scores) for scores in study.cells.values()}
    seeds = " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
    ids = ", ".join(study.env_ids) if len(study.env_ids) < 10 else f"{len(study.env_ids)} ids"
    points = f"Interquartile mean and 95% stratified bootstrap interval over seeds ({seeds} per cell) on {ids}."
    points += " Returns: 0 is the random policy, 1 the best possible." if study.normalised else ""
    return textwrap.fill(points, 105) + ("\nHollow points: on some of these ids only." if hollow else "")


def draw_panel(
    axes: Axes,
    study: Study,
    estimates: dict[Task, Estimate],
    quantity: str,
    memories: list[str],
    algorithms: list[str],
) -> None:
    """One quantity: a point with its interval for every agent, and remarks at the right edge."""
    found = aggregated(estimates)
    for row in range(0, len(memories), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="0.96", zorder=0)
    if quantity != "pomdp_return":
        axes.axvline(0, color="0.5", linewidth=1, zorder=1)
    for algorithm, memory in study.agents:
        i = algorithms.index(algorithm)
        y, color = memories.index(memory) + (i + 0.5) / len(algorithms) * 0.7 - 0.35, COLORS[i % len(COLORS)]
        task, value = found.get((algorithm, memory, quantity), (None, None))
        note = remark(study, (algorithm, memory), quantity, task)
        at = axes.get_yaxis_transform()  # x in units of the panel
        axes.text(1.01, y, note, transform=at, fontsize=8, va="center", color="0.4" if len(algorithms) == 1 else color)
        if task is None:
            continue
        if value.low is not None:
            axes.hlines(y, value.low, value.high, color=color, linewidth=2, zorder=2)
        face = "white" if len(task.env_ids) < len(study.env_ids) else color
        axes.plot(value.value, y, "o", color=color, markerfacecolor=face, markersize=5, zorder=3)
    if not any(task.quantity == quantity for task, _ in found.values()):
        axes.set_xticks([])
    axes.margins(x=0.08)
    axes.grid(axis="x", alpha=0.3)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


# -------------------------------------------------------------------------------------------------------------- main


def main(args: Args) -> Path:
    """Reads, estimates, prints what is missing and a table, writes the results and returns their folder."""
    args = args.checked()
    study, notes = read_study(args)
    missing = find_missing(study)
    with new_folder(args) as out:
        estimates = estimate_all(study, args.resamples)
        figure = draw(study, estimates)
        cells = {t: e for t, e in estimates.items() if t.env_id != ALL and t.quantity in ("pomdp_return", "mdp_return")}
        write_csv(out / "cells.csv", CELL_COLUMNS, [cell_row_of(study, *item) for item in cells.items()])
        write_csv(out / "gap_and_bias.csv", COLUMNS, [row_of(study, *item) for item in estimates.items()])
        write_csv(out / "missing.csv", MISSING_COLUMNS, [missing_row_of(cell) for cell in missing])
        figure.savefig(out / "gap_and_bias.png", dpi=120)
    single = sum(found.low is None for found in estimates.values())
    notes += uneven_steps(study) + ([f"no interval for {single} values: a cell has a single seed"] if single else [])
    print(*notes, *(f"{cell.cell}: {cell.why}" for cell in missing), sep="\n", end="\n" if notes or missing else "")
    print(f"aggregated over {', '.join(study.env_ids)}", table(study, estimates), f"written to {out}", sep="\n")
    return out


if __name__ == "__main__":
    launch(main, Args)
