"""Policy churn of runs trained with --log-churn (docs/study.md): how many greedy actions an update changes.

    python benchmark/churn.py --runs 'runs/study/*/*' --out docs/figures/churn
    python benchmark/churn.py --csv docs/figures/churn.csv --out docs/figures/churn

The first command reads the TensorBoard events of the runs. It writes OUT.csv (a row for each run, seed and tenth of the
run) and, from that file alone, OUT.md and OUT.png. The second makes these again. With --runs as well, it adds
their rows, and replaces those of the same runs. Unfinished runs are left out.

Churn is the share of steps whose greedy action one gradient step changes, or all gradient steps of a rollout but the
last (Schaul et al. 2022, https://arxiv.org/abs/2206.00730). The table and the dots are interquartile means over ids and
seeds of the mean over a run, with 95% stratified bootstrap intervals (Agarwal et al. 2021).
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

import popgym_arcade
from popgym_arcade.analysis.command_line import launch
from popgym_arcade.analysis.interquartile import Estimate, estimate
from popgym_arcade.analysis.runs import find_runs, read_run, scalars
from popgym_arcade.analysis.tables import MEMORIES_IN_WORDS, TWINS_IN_WORDS, markdown, read_table, write_table
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import PathName
from popgym_arcade.baselines.running.churn import CHURN

TENTHS = 10  # of a run
COLUMNS = ("run", "memory", "env_id", "twin", "seed", "tenth", *CHURN)
COLORS = {"mdp": "#1f77b4", "pomdp": "#ff7f0e"}
IN_WORDS = {"churn_per_step": "one gradient step", "churn_per_rollout": "one rollout"}


@dataclass(frozen=True)
class Args:
    runs: tuple[PathName, ...] = ()
    """run folders, or patterns that match some"""
    csv: PathName = ""
    """table of an earlier call, instead of or in addition to runs"""
    out: PathName = ""
    """path of the files to write, without their endings"""

    def checked(self) -> "Args":
        """These arguments. Raises UserError for flags that do not go together."""
        if not (self.runs or self.csv) or not self.out:
            raise UserError("give --runs or --csv, and --out")
        return self


# --------------------------------------------------------------------------------------------------------------- runs


def rows_of(folder: Path) -> Iterator[dict]:
    """The rows of a run. Raises UserError if it is not a run on a game with twins, trained with --log-churn."""
    about, _ = read_run(folder)
    args = about["args"]
    env_id = args.get("env_id", "a run of several games")
    if env_id not in popgym_arcade.REGISTERED_ENVIRONMENTS:
        raise UserError(f"{folder}: {env_id} has no twins to compare")
    for seed in range(args["seed"], args["seed"] + args["num_seeds"]):
        seeded = folder / f"seed_{seed}"
        curves = {name: scalars(seeded if seeded.exists() else folder, f"charts/{name}") for name in CHURN}
        if not all(curves.values()):
            raise UserError(f"{folder} has no curve of the churn: train it with --log-churn")
        parts = {name: tenths(curve, args["total_timesteps"]) for name, curve in curves.items()}
        twin = "pomdp" if args["partial_obs"] else "mdp"
        about_run = {"run": folder.name, "memory": args.get("memory", "none"), "env_id": args["env_id"], "twin": twin}
        for k in range(TENTHS):
            yield about_run | {"seed": seed, "tenth": k + 1} | {name: round(part[k], 5) for name, part in parts.items()}


def tenths(curve: list, total: int) -> np.ndarray:
    """[10]: the mean of a curve in each tenth of a run of `total` steps; NaN where it has no point."""
    place = np.array([min(TENTHS - 1, (point.step - 1) * TENTHS // total) for point in curve])
    value = np.array([point.value for point in curve])
    return np.array([value[place == k].mean() if (place == k).any() else np.nan for k in range(TENTHS)])


def collect(patterns: tuple[str, ...], table: str = "") -> list[dict]:
    """The rows of an earlier table and of all runs. Rows of a run replace those that the table has of it.

    A run without churn in its last tenth is left out, and a line says so. Raises UserError for a
    pattern that matches no run, for a seed that appears twice, and if nothing is left.
    """
    folders = find_runs(patterns, holding="eval.csv") if patterns else []
    of_runs = {str(folder): list(rows_of(folder)) for folder in folders}
    for folder in [folder for folder, rows in of_runs.items() if np.isnan(rows[-1]["churn_per_step"])]:
        print(f"left out, unfinished: {folder}", file=sys.stderr)
        del of_runs[folder]
    earlier = read_table(Path(table), COLUMNS, "--csv") if table else []
    again = {Path(folder).name for folder in of_runs}
    found = {table: [row for row in earlier if row["run"] not in again]} | of_runs
    if not any(found.values()):
        raise UserError("--runs: no run has ended yet")
    sources: dict[tuple, str] = {}
    for source, rows in found.items():
        for row in rows:
            cell = tuple(str(row[name]) for name in ("memory", "env_id", "twin", "seed"))
            other = sources.setdefault(cell, source)
            if other != source:
                raise UserError(f"{' '.join(cell)} appears twice, in {other} and in {source}")
    return [row for rows in found.values() for row in rows]


# --------------------------------------------------------------------------------------------------------------- churn


def by_id(rows: list[dict], memory: str, twin: str, name: str) -> list[np.ndarray]:
    """The churn of a memory on a twin, [seeds, 10] for each id."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if (row["memory"], row["twin"]) == (memory, twin):
            found.setdefault(row["env_id"], {}).setdefault(str(row["seed"]), []).append(float(row[name]))
    return [np.array(list(seeds.values())) for seeds in found.values()]


def of_memory(rows: list[dict], memory: str, twin: str, name: str) -> Estimate | None:
    """The mean over the run, as an interquartile mean over ids and seeds; None without a run."""
    churn = by_id(rows, memory, twin, name)
    return estimate([np.nanmean(seeds, axis=1) for seeds in churn]) if churn else None


def memories_of(rows: list[dict]) -> list[str]:
    """The memories in the order of the picture: that with the most churn on the partially observable twin first."""
    twin = "pomdp" if any(row["twin"] == "pomdp" for row in rows) else "mdp"
    found: dict[str, list[float]] = {row["memory"]: [] for row in rows}
    for row in rows:
        if row["twin"] == twin:
            found[row["memory"]].append(float(row["churn_per_step"]))
    return sorted(found, key=lambda name: -np.nanmean(found[name]) if found[name] else 0.0)


def table(rows: list[dict]) -> str:
    """A line for each memory, a column for each twin and kind of churn."""
    kinds = [(twin, name) for twin in TWINS_IN_WORDS for name in CHURN if any(row["twin"] == twin for row in rows)]
    lines = []
    for memory in memories_of(rows):
        found = [of_memory(rows, memory, twin, name) for twin, name in kinds]
        lines.append([MEMORIES_IN_WORDS.get(memory, memory), *("" if each is None else str(each) for each in found)])
    return markdown(["memory", *(f"{TWINS_IN_WORDS[twin]}, {IN_WORDS[name]}" for twin, name in kinds)], lines)


# ------------------------------------------------------------------------------------------------------------- picture


def draw(rows: list[dict]) -> Figure:
    """Left: churn over the run, a line for each twin. Right: a row for each memory, a dot for each twin."""
    memories = memories_of(rows)
    figure = Figure(figsize=(9, 1.6 + 0.34 * max(6, len(memories))), layout="constrained")
    over_time, by_memory = figure.subplots(1, 2)
    draw_over_time(over_time, rows)
    draw_by_memory(by_memory, rows, memories)
    handles, labels = over_time.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def draw_over_time(axes: Axes, rows: list[dict]) -> None:
    """The mean over all memories, ids and seeds for each tenth, and the middle half of ids and memories as a band."""
    middle = (np.arange(TENTHS) + 0.5) / TENTHS
    for twin, color in COLORS.items():
        found = [by_id(rows, memory, twin, "churn_per_step") for memory in {row["memory"] for row in rows}]
        cells = np.array([np.nanmean(seeds, axis=0) for churn in found for seeds in churn])  # [memories * ids, 10]
        if len(cells):
            axes.plot(middle, np.nanmean(cells, axis=0), "o-", color=color, markersize=4, label=TWINS_IN_WORDS[twin])
            low, high = np.nanquantile(cells, [0.25, 0.75], axis=0)
            axes.fill_between(middle, low, high, color=color, alpha=0.15, linewidth=0)
    axes.set(xlabel="share of the run", ylabel="greedy actions changed", xlim=(0, 1), ylim=(0, None))
    axes.set_title("by one gradient step, all memories", fontsize=11)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def draw_by_memory(axes: Axes, rows: list[dict], memories: list[str]) -> None:
    """Mean churn of one gradient step, with its interval."""
    for y, memory in enumerate(memories):
        if y % 2 == 0:
            axes.axhspan(y - 0.5, y + 0.5, color="0.96", zorder=0)
        for offset, (twin, color) in zip((-0.15, 0.15), COLORS.items(), strict=True):
            found = of_memory(rows, memory, twin, "churn_per_step")
            if found is None:
                continue
            axes.plot(found.value, y + offset, "o", color=color, markersize=5)
            if found.low is not None:
                axes.hlines(y + offset, found.low, found.high, color=color, linewidth=2)
    axes.set_yticks(range(len(memories)), [MEMORIES_IN_WORDS.get(memory, memory) for memory in memories])
    axes.set(ylim=(len(memories) - 0.5, -0.5), xlabel="greedy actions changed", xlim=(0, 1.05 * axes.get_xlim()[1]))
    axes.set_title("by one gradient step, mean of the run", fontsize=11)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)


def main(args: Args) -> None:
    """Writes the table and the picture."""
    args = args.checked()
    rows = collect(args.runs, args.csv)
    write_table(args.out, COLUMNS, rows, table(rows))
    draw(rows).savefig(f"{args.out}.png", dpi=120)


if __name__ == "__main__":
    launch(main, Args)
