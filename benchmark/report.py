"""Makes tables and learning curves from run folders, over several seeds and environments, with intervals.

    python benchmark/report.py --runs 'runs/encoders/*/*' --by encoder --out docs/figures/encoders
    python benchmark/report.py --csv docs/figures/encoders.csv --by encoder --out docs/figures/encoders
    python benchmark/report.py --docs docs/*.md

The first command reads `eval.csv` and the TensorBoard events of the runs. It writes OUT.csv (a row for each run, seed
and evaluation) and, from that file alone, OUT.md (the table), OUT.png (greedy return over steps) and OUT_minutes.png
(over wall time). The second makes the table and the pictures again: the same CSV gives the same files. With --runs as
well, it adds their rows. The third puts tables into pages, between `<!-- report: FILE -->` and `<!-- end -->`.

--by names the argument that separates the groups. A cell of the table has the returns of one group on one environment
and twin. If its runs differ in more than their seed, a line says so. The number after ± is the standard deviation over
seeds (divided by their number). Interquartile means and intervals are rliable's (Agarwal et al. 2021,
https://arxiv.org/abs/2108.13264). With three seeds or fewer, the interquartile mean of one id is the mean, and tables
and pictures call it that.

--over also draws OUT_over.png, a map of returns by group and parameter; with --solved, of how many seeds reach a return
and after how many steps. Returns on popgym_arcade's ids are also normalised: 0 is the random policy, 1 the best
possible (benchmark/results). The table has the minutes until halfway. Several ids also give OUT_summary.md (ids by
groups), OUT_half_way.md (the minutes until halfway, ids by groups), OUT_normalised.png (all ids on one axis), and over
all ids together OUT_aggregate.md, OUT_aggregate.png (curves over steps and wall time, performance profiles) and
OUT_profile.csv.
"""

import csv
import functools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rliable import library

from popgym_arcade.analysis.colors import colors_of
from popgym_arcade.analysis.command_line import launch
from popgym_arcade.analysis.groups import WITHIN_A_GROUP
from popgym_arcade.analysis.interquartile import middle_half, numpy_seed
from popgym_arcade.analysis.reference_returns import reference_returns
from popgym_arcade.analysis.runs import find_runs, read_run, scalars
from popgym_arcade.analysis.tables import MEMORIES_IN_WORDS, TWINS_IN_WORDS, markdown, read_csv
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import PathName
from popgym_arcade.baselines.running.files import write_csv

FEWEST_CUT = 4  # with fewer values, an interquartile mean is the mean
RESAMPLES = 2_000  # bootstrap samples of the seeds for an interval
NUMBERS = {"global_step", "task_steps", "return_mean", "minutes", "sps", "training_return"}  # columns of OUT.csv
MAY_DIFFER = WITHIN_A_GROUP | {"total_timesteps", "exp_name"}  # arguments in which the runs of a cell may differ
EXTRAS = (  # written if they apply
    *("_minutes.png", "_over.png"),
    *("_summary.md", "_half_way.md", "_normalised.png", "_aggregate.md", "_aggregate.png", "_profile.csv"),
)
THRESHOLDS = np.linspace(-0.2, 1, 61)  # of performance profiles


@dataclass(frozen=True)
class Args:
    runs: tuple[PathName, ...] = ()
    """run folders, or patterns that match some"""
    csv: tuple[PathName, ...] = ()
    """tables of earlier reports, instead of or in addition to runs; if a run is in several, the last one counts"""
    out: PathName = ""
    """path of the files to write, without their endings"""
    by: str = "memory"
    """argument of the runs that separates the groups, or: script; join several with +"""
    training: bool = False
    """add a column: mean return of the last 100 training episodes, as in CleanRL"""
    title: str = ""
    """title of the pictures"""
    over: str = ""
    """add a picture: last returns over a parameter of the environment, such as memory_length"""
    solved: float | None = None
    """show with --over how many seeds end with this return or more, and the steps they take to it"""
    docs: tuple[PathName, ...] = ()
    """pages to fill in, without other flags"""

    def checked(self) -> "Args":
        """These arguments. Raises UserError for flags that do not go together."""
        if bool(self.docs) == bool(self.runs or self.csv) or bool(self.docs) == bool(self.out):
            raise UserError("give --runs or --csv, and --out; or --docs alone")
        if self.solved is not None and not self.over:
            raise UserError("--solved shows returns over a parameter: name it with --over")
        return self


# --------------------------------------------------------------------------------------------------------------- runs


def last_episodes(folder: Path, count: int = 100, charts: str = "charts") -> float | None:
    """Mean return of about the last `count` training episodes, from a folder of TensorBoard events; None if none ended.

    Takes whole points of the curve, each a mean over episodes, from the end until they cover `count` episodes. `charts`
    is the prefix of the tags.
    """
    episodes = {point.step: point.value for point in scalars(folder, f"{charts}/episodes")}
    if not episodes:
        return None
    total, seen = 0.0, 0.0
    for point in reversed(scalars(folder, f"{charts}/episodic_return")):
        total, seen = total + point.value * episodes[point.step], seen + episodes[point.step]
        if seen >= count:
            break
    return total / seen


def sessions(folder: Path) -> list[tuple[float, float]]:
    """First and last time of each file of TensorBoard events, in seconds. A resumed run starts another file."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    times = [[e.wall_time for e in LegacyEventFileLoader(str(file)).Load()] for file in folder.glob("events.out.*")]
    times = [[time for time in each if time > 0] for each in times]  # the event that marks a resume has no time
    return sorted((min(each), max(each)) for each in times if each)


def minutes_at(folder: Path) -> dict[int, float]:
    """Minutes from a run's first event, before it compiles, to each evaluation, without pauses before a resume."""
    found = sessions(folder)
    starts, ends = [start for start, _ in found], [end for _, end in found]
    pauses = [(start, max(0.0, start - end)) for start, end in zip(starts[1:], ends, strict=False)]
    minutes = {}
    for point in scalars(folder, "eval/episodic_return"):
        paused = sum(pause for start, pause in pauses if start <= point.wall_time)
        minutes[point.step] = (point.wall_time - starts[0] - paused) / 60
    return minutes


def steps_per_second(folder: Path) -> float | None:
    """Median over the log points after the first, all seeds together; None if there is no point."""
    points = [point.value for point in scalars(folder, "charts/SPS")]
    return float(np.median(points[1:] or points)) if points else None


def group_of(about: dict, by: str) -> str:
    """The group of a run: the value of its argument `by`, its script's name, or several values joined by +.

    Raises UserError for an unknown argument.
    """
    values = {"memory": "none"} | about["args"] | {"script": about.get("script")}
    names = by.split("+")
    if not values.keys() >= {*names}:
        raise UserError(f"--by {by}: runs have {', '.join(about['args'])}")
    found = [list(values[name]) if isinstance(values[name], tuple) else values[name] for name in names]
    return "+".join(f"{value:.3g}" if isinstance(value, float) else str(value) for value in found)


def mixed_cells(abouts: Sequence[dict], by: str) -> list[str]:
    """A line for each cell whose runs differ in arguments other than MAY_DIFFER."""
    cells: dict[tuple, list[dict]] = {}
    for about in abouts:
        where = [str(about["args"].get(name)) for name in ("env_id", "env_ids", "partial_obs", "env_params")]
        cells.setdefault((group_of(about, by), *where), []).append({"script": about.get("script")} | about["args"])
    lines = []
    for (group, *_), runs in cells.items():
        names = sorted(set().union(*runs) - MAY_DIFFER)
        values = {name: list(dict.fromkeys(str(run.get(name)) for run in runs)) for name in names}
        found = [f"{name} ({', '.join(each)})" for name, each in values.items() if len(each) > 1]
        if found:
            lines.append(f"--by {by}: runs of {group} share a cell but differ in {', '.join(found)}")
    return list(dict.fromkeys(lines))


def rows_of(folder: Path, name: str, args: Args) -> Iterator[dict]:
    """Rows of OUT.csv: a run's evaluations with its name, group, minutes, speed, and what `args` ask for.

    A run without an evaluation of its greedy policy has no rows, and a line says so.
    """
    about, rows = read_run(folder)
    group = group_of(about, args.by)
    origin = {key: about[key] for key in ("git_commit", "device") if about.get(key)}
    if not any(row["policy"] == "greedy" for row in rows):
        print(f"left out: {folder} has no evaluation of the greedy policy", file=sys.stderr)
        return
    tasks, minutes, speed = len(about["args"].get("env_ids", ("",))), minutes_at(folder), steps_per_second(folder)
    for row in rows:
        step, more = int(row["global_step"]), {}
        if tasks > 1:
            more["task_steps"] = step // tasks
        if about["args"].get("env_params"):
            more["env_params"] = " ".join(about["args"]["env_params"])
        if row["policy"] == "greedy" and step in minutes:
            more["minutes"] = round(minutes[step], 2)
        if speed is not None:
            more["sps"] = round(speed)
        if args.training:
            seeded = folder / f"seed_{row['seed']}"
            charts = row["task"] if tasks > 1 else "charts"
            training = last_episodes(seeded if seeded.exists() else folder, charts=charts)
            more |= {} if training is None else {"training_return": training}
        yield {"run": name, args.by: group, **row, **more, **origin}


def collect(args: Args) -> list[dict]:
    """The rows of OUT.csv for all runs.

    Raises:
        UserError: if a pattern matches no run, the runs have no such argument, or none has been evaluated
    """
    folders = find_runs(args.runs, holding="eval.csv")
    names = [folder.name for folder in folders]
    shown = {folder: folder.name if names.count(folder.name) == 1 else str(folder) for folder in folders}
    for line in mixed_cells([read_run(folder)[0] for folder in folders], args.by):
        print(line, file=sys.stderr)
    rows = [row for folder, name in shown.items() for row in rows_of(folder, name, args)]
    if not rows:
        raise UserError("--runs: no run has evaluated its greedy policy yet")
    return [{name: str(value) for name, value in row.items()} for row in rows]


def read_table(path: str, by: str) -> list[dict]:
    """The rows of an earlier report's table, without empty values. Raises UserError if it is not such a table."""
    try:
        rows = [{name: value for name, value in row.items() if value} for row in read_csv(Path(path))]
    except OSError as error:
        raise UserError(f"--csv {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise UserError(f"--csv {path}: this is not a table") from None
    columns = {by, "run", "seed", "env_id", "partial_obs", "policy", "global_step", "return_mean"}
    lacking = columns - set(rows[0] if rows else ())
    if lacking:
        raise UserError(f"--csv {path}: it lacks {', '.join(sorted(lacking))}")
    for line, row in enumerate(rows, 2):
        wrong = [name for name in NUMBERS & set(row) if not is_number(row[name])] + sorted(columns - set(row))
        if wrong:
            raise UserError(f"--csv {path}: line {line} has no valid {wrong[0]}")
    return rows


def all_rows(args: Args) -> list[dict]:
    """Rows of the earlier tables, then of the runs. If a run is in several of them, the last one counts."""
    tables = [read_table(path, args.by) for path in args.csv]
    if args.runs:
        tables.append(collect(args))
    last = {row["run"]: at for at, table in enumerate(tables) for row in table}
    return [row for at, table in enumerate(tables) for row in table if last[row["run"]] == at]


def is_number(text: str) -> bool:
    """Whether a cell of a table is a finite number."""
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


# -------------------------------------------------------------------------------------------------------------- cells


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

        In a training on several tasks, each task gets an equal part of the minutes, as of the steps.
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


# ---------------------------------------------------------------------------------------------------------- statistics


def iqm(scores: np.ndarray) -> np.ndarray:
    """Interquartile mean over seeds and ids of scores [S, M, N], for each N."""
    return middle_half(scores.reshape(-1, scores.shape[-1]))


def interval(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95% interval [N] of the interquartile mean of scores [S, M, N]; the seeds of each id are resampled separately."""
    return interval_of(scores.shape, scores.astype(float).tobytes())


@functools.cache  # the same curves are drawn over steps and over minutes
def interval_of(shape: tuple[int, ...], scores: bytes) -> tuple[np.ndarray, np.ndarray]:
    with numpy_seed(0):  # rliable 1.2 draws from numpy's global generator
        _, found = library.get_interval_estimates({"": np.frombuffer(scores).reshape(shape)}, iqm, reps=RESAMPLES)
    return tuple(found[""])


def average(cells: Sequence[Cell]) -> str:
    """The name of `iqm` over each cell's seeds: "mean" if the seeds are too few to leave any out."""
    return "mean" if all(len(cell.final) < FEWEST_CUT for cell in cells) else "interquartile mean"


# -------------------------------------------------------------------------------------------------------------- tables


def in_words(group: str) -> str:
    """A group as tables and legends show it: "pqn_rnn+MinGRU" is "pqn_rnn MinGRU", "pqn_mlp+none" is "pqn_mlp"."""
    parts = [part for part in group.split("+") if part != "none"] or ["none"]
    words = {"MLP": MEMORIES_IN_WORDS["MLP"], "True": "yes", "False": "no"}
    return " ".join(words.get(part, part) for part in parts)


def by_words(by: str) -> str:
    """`--by` as tables and legends show it."""
    return by.replace("exp_name", "variant").replace("+", ", ").replace("_", " ")


def digits(returns: np.ndarray) -> int:
    """Decimal places for returns of this size."""
    return 1 if np.abs(returns).max() >= 10 else 3


def unbroken(text: str) -> str:
    """The text with spaces at which a cell of a table does not wrap."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def estimate(returns: np.ndarray) -> str:
    """The interval of returns [S], as "0.500 to 0.750"; a single seed has none."""
    if len(returns) == 1:
        return "one seed"
    (low,), (high,) = interval(returns[:, None, None])
    return f"{low:.{digits(returns)}f} to {high:.{digits(returns)}f}"


def least_to_most(steps: Sequence[int]) -> str:
    """Steps in order, as "1,024" or "1,024 to 2,048"."""
    return f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"


def of_seeds(values: list[float]) -> str:
    """Mean and standard deviation."""
    return f"{np.mean(values):.{digits(values)}f} ± {np.std(values):.{digits(values)}f}"


def table(cells: list[Cell], by: str) -> str:
    """Markdown: last greedy returns of every cell, and their cost."""
    several = len({(cell.task, cell.twin) for cell in cells}) > 1
    cut = average(cells) != "mean"
    lines = []
    for cell in cells:
        final, number = cell.final, digits(cell.final)
        lasts = sorted({max(points) for points in cell.seeds.values()})  # they differ where runs stopped early
        training = {row["seed"]: float(row["training_return"]) for row in cell.rows if "training_return" in row}
        minutes, speed = cell.of_runs("minutes"), cell.of_runs("sps")
        lines.append(
            [
                *((cell.task, TWINS_IN_WORDS[cell.twin]) if several else ("", "")),
                in_words(cell.group),
                str(len(final)),
                least_to_most(lasts),
                of_seeds(final),
                *([f"{iqm(final[:, None, None])[0]:.{number}f}"] if cut else []),
                estimate(final),
                ", ".join(f"{value:.{min(number, 2)}f}" for value in final),
                f"{cell.random:.{number}f}",
                of_seeds(list(training.values())) if len(training) == len(final) else "",
                f"{np.median(list(speed.values())):,.0f}" if speed else "",
                f"{max(minutes.values()):.1f}" if minutes else "",
                half_way(cell),
            ]
        )
    head = ["id", "twin", by_words(by), "seeds", "steps", "greedy return", *(["interquartile mean"] if cut else [])]
    head += ["95% interval", "each seed", "random policy", "last 100 training episodes", "steps/s", "minutes"]
    return markdown([*head, "halfway, minutes"], lines)


def by_twin(cells: list[Cell], table: Callable[[list[Cell]], str]) -> str:
    """Markdown: a table for each twin, with the groups that it has. Empty tables are left out."""
    twins = list(dict.fromkeys(cell.twin for cell in cells))
    found = {twin: table([cell for cell in cells if cell.twin == twin]) for twin in twins}
    if len(twins) == 1:
        return found[twins[0]]
    titles = {twin: f"{TWINS_IN_WORDS[twin] or 'no twins'}:".capitalize() for twin in twins}
    return "\n".join(f"{titles[twin]}\n\n{of_twin}" for twin, of_twin in found.items() if of_twin)


def summary(cells: list[Cell]) -> str:
    """Markdown: ids by groups, means with intervals, next to the random policy's and the best return; by twin."""
    return by_twin(cells, summary_of_twin)


def summary_of_twin(cells: list[Cell]) -> str:
    """Markdown: the summary of one twin, turned around if it has more groups than ids."""
    groups, tasks = sorted({cell.group for cell in cells}), list(dict.fromkeys(cell.task for cell in cells))
    found = {(cell.task, cell.group): cell.final for cell in cells}
    table = [["id", *map(in_words, groups), "random policy", "best possible"]]
    for task in tasks:
        there = [found.get((task, group)) for group in groups]
        each = ["" if final is None else f"{iqm(final[:, None, None])[0]:.3f} ({estimate(final)})" for final in there]
        low, high = reference_returns()[task]
        table.append([task, *map(unbroken, each), f"{low:.3f}", f"{high:.3f}"])
    if len(groups) > len(tasks):
        table = [list(column) for column in zip(*table, strict=True)]
        table[0][0] = "variant"
    return markdown(table[0], table[1:])


def table_half_way(cells: list[Cell]) -> str:
    """Markdown: ids by groups, the minutes until halfway; by twin. Empty if no cell has any."""
    return by_twin(cells, half_way_of_twin)


def half_way_of_twin(cells: list[Cell]) -> str:
    """Markdown: the minutes until halfway of one twin. Empty if no cell has any."""
    groups, tasks = sorted({cell.group for cell in cells}), list(dict.fromkeys(cell.task for cell in cells))
    found = {(cell.task, cell.group): half_way(cell) for cell in cells}
    if not any(found.values()):
        return ""
    return markdown(
        ["id", *map(in_words, groups)],
        [[task, *(unbroken(found.get((task, group), "")) for group in groups)] for task in tasks],
    )


# ------------------------------------------------------------------------------------------------------------ together


@dataclass(frozen=True)
class Together:
    """All ids of a group and twin: normalised returns [S, M, N] of the last evaluation at or before each step [N]."""

    twin: str
    group: str
    tasks: tuple[str, ...]
    steps: np.ndarray
    scores: np.ndarray
    final: np.ndarray  # [S, M]
    final_steps: tuple[int, ...]  # they differ where ids are trained for longer, or runs stopped early
    minutes: np.ndarray | None  # [N]: until each step, mean over ids; None if unknown
    took: float | None  # minutes of all runs, added up
    sps: float | None  # steps per second, median over the runs

    @functools.cached_property
    def profile(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Share of runs (a seed on an id) above each of THRESHOLDS, and both ends of its interval: each [61]."""
        with numpy_seed(0):
            found, bands = library.create_performance_profile(
                {"": self.final}, THRESHOLDS, custom_profile_func=shares_above, reps=RESAMPLES
            )
        return found[""], *bands[""]


def shares_above(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Share of scores [S, M] above each of the thresholds [N]. rliable's own function loops over the thresholds."""
    return (scores[..., None] > thresholds).mean(axis=(0, 1))


def put_together(cells: list[Cell]) -> tuple[list[Together], list[str]]:
    """The groups and twins that have every id with equally many seeds, and a line for each one that is left out."""
    tasks = sorted({cell.task for cell in cells})
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.twin, cell.group), []).append(cell)
    together, left_out = [], []
    for (twin, group), of_group in found.items():
        seeds = {cell.task: len(cell.final) for cell in of_group}
        if set(seeds) != set(tasks):
            left_out.append(
                f"{in_words(group)}, {TWINS_IN_WORDS[twin]}: no {', '.join(sorted(set(tasks) - set(seeds)))}"
            )
        elif len(set(seeds.values())) > 1:
            left_out.append(f"{in_words(group)}, {TWINS_IN_WORDS[twin]}: ids with different numbers of seeds")
        else:
            together.append(one_together(twin, group, of_group))
    return together, left_out


def one_together(twin: str, group: str, cells: list[Cell]) -> Together:
    """The cells of one group and twin, one for each id."""
    curves = [cell.curve() for cell in cells]
    first = max(steps[0] for steps, _ in curves)
    steps = np.array(sorted({step for each, _ in curves for step in each if step >= first}))
    until = [np.searchsorted(each, steps, side="right") - 1 for each, _ in curves]
    scores = [normalised(c, returns[:, at]) for c, (_, returns), at in zip(cells, curves, until, strict=True)]
    final = np.stack([normalised(cell, cell.final) for cell in cells], axis=1)
    lasts = sorted({max(points) for cell in cells for points in cell.seeds.values()})
    tasks = tuple(cell.task for cell in cells)
    minutes = [cell.minutes(each) for cell, (each, _) in zip(cells, curves, strict=True)]
    known = None
    if all(each is not None for each in minutes):
        known = np.mean([np.interp(steps, x, y) for (x, _), y in zip(curves, minutes, strict=True)], axis=0)
    took, sps = (each_run(cells, name) for name in ("minutes", "sps"))
    cost = sum(took.values()) if took else None, float(np.median(list(sps.values()))) if sps else None
    return Together(twin, group, tasks, steps, np.stack(scores, axis=1), final, tuple(lasts), known, *cost)


def each_run(cells: list[Cell], name: str) -> dict[str, float]:
    """A column's greatest value in every run of the cells; empty if a run lacks the column."""
    found = [cell.of_runs(name) for cell in cells]
    return {run: value for each in found for run, value in each.items()} if all(found) else {}


def table_together(together: list[Together], by: str) -> str:
    """Markdown: interquartile mean and mean of the last normalised returns, over ids and seeds."""
    lines = []
    for each in together:
        last = each.final[..., None]
        seeds, ids = each.final.shape
        within = "one seed" if seeds == 1 else "{:.3f} to {:.3f}".format(*np.ravel(interval(last)))
        numbers = f"{iqm(last)[0]:.3f}", within, of_seeds(list(each.final.mean(axis=1)))
        cost = f"{each.sps:,.0f}" if each.sps else "", f"{each.took:.0f}" if each.took else ""
        numbers = [unbroken(text) if text != "one seed" else text for text in numbers]
        lines.append(
            [
                TWINS_IN_WORDS[each.twin],
                in_words(each.group),
                str(ids),
                str(seeds),
                least_to_most(each.final_steps),
                *numbers,
                *cost,
            ]
        )
    head = ["twin", by_words(by), "ids", "seeds", "steps", "interquartile mean", "95% interval", "mean"]
    return markdown([*head, "steps/s", "minutes, all runs"], lines)


def profile_rows(together: list[Together], by: str) -> list[dict]:
    """Rows of OUT_profile.csv: the performance profiles (Agarwal et al. 2021) as drawn; one seed has no interval."""
    rows = []
    for each in together:
        for at, share, low, high in zip(THRESHOLDS, *each.profile, strict=True):
            row = {"twin": each.twin, by: each.group, "normalised_return": f"{at:.2f}", "share": f"{share:.4f}"}
            within = {"low": "", "high": ""} if len(each.final) == 1 else {"low": f"{low:.4f}", "high": f"{high:.4f}"}
            rows.append(row | within)
    return rows


# ------------------------------------------------------------------------------------------------------------ pictures


def look(cell: Cell | Together, groups: list[str], twins: list[str]) -> dict:
    """The style of a curve: colour and marker by group, dashes by twin, and the label in the legend."""
    number = groups.index(cell.group)
    twin = f", {TWINS_IN_WORDS[cell.twin]}" if len(twins) > 1 else ""
    style = "--" if len(twins) > 1 and cell.twin == "mdp" else "-"
    marker = "os^Dv"[number // 10 % 5]  # there are ten colours
    how = {"color": colors_of(groups)[cell.group], "marker": marker, "markersize": 3}
    return how | {"linestyle": style, "label": f"{in_words(cell.group)}{twin}"}


def draw(cells: list[Cell], args: Args, path: Path, over_minutes: bool) -> bool:
    """Draws learning curves over steps or wall time, a panel for each id and twin; returns whether there are any."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    groups = sorted({cell.group for cell in cells})
    tasks = {task: [cell for cell in cells if cell.task == task] for task in dict.fromkeys(cell.task for cell in cells)}
    twins = sorted({cell.twin for cell in cells})
    there = {(cell.task, cell.twin) for cell in cells}
    # Both twins of an id are next to each other, even if one of them has no curve.
    places = [(task, twin) for task in tasks for twin in twins]
    few = len(places) < 5 or (len(twins) == 2 and len(tasks) < 4)
    many = 4 if len(twins) == 2 else 3
    columns = min(len(places), 2 if few else many)
    rows = -(-len(places) // columns)
    size = (7, 4.4) if len(places) == 1 else (3.4 * columns + 0.4, 2.9 * rows + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    shown = {place: axes for place, axes in zip(places, panels, strict=False) if place in there}
    for axes in panels:
        axes.set_visible(axes in shown.values())
    drawn = 0
    for (task, twin), axes in shown.items():
        of_panel = [cell for cell in tasks[task] if cell.twin == twin]
        for cell in of_panel:
            steps, returns = cell.curve()
            x = cell.minutes(steps) if over_minutes else steps
            if x is None:
                continue
            drawn += 1
            x, returns = from_the_start(x, returns, cell.random)
            how = look(cell, groups, [twin])
            axes.plot(x, iqm(returns[:, None]), **how)
            if len(returns) > 1:
                axes.fill_between(x, *interval(returns[:, None]), color=how["color"], alpha=0.15, linewidth=0)
        axes.axhline(np.mean([cell.random for cell in of_panel]), color="gray", linestyle=":", label="random policy")
        if can_be_normalised(of_panel[0]):
            axes.axhline(
                reference_returns()[task].best, color="gray", linestyle="--", linewidth=1, label="best possible"
            )
        axes.set_title(f"{task}, {TWINS_IN_WORDS[twin]}" if len(twins) > 1 else task, fontsize=10)
        axes.set_xlim(0, None)
        axes.grid(alpha=0.3)
        axes.locator_params(axis="x", nbins=6)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    for task in tasks:  # the same range of returns for both twins
        own = [axes for (name, _), axes in shown.items() if name == task]
        low, high = (pick(axes.get_ylim()[end] for axes in own) for pick, end in ((min, 0), (max, 1)))
        for axes in own:
            axes.set_ylim(low, high)
    several = any("task_steps" in row for cell in cells for row in cell.rows)
    steps = "environment steps of the task" if several else "environment steps of a seed"
    minutes = "minutes, all seeds of a process" + (", by number of tasks" if several else "")
    lowest = {places.index(place) % columns: axes for place, axes in shown.items()}  # of each column
    for axes in lowest.values():
        axes.set_xlabel(minutes if over_minutes else steps)
    gap = "\n" if size[1] < 5 else " "  # a low picture needs the label in two lines
    figure.supylabel(f"greedy return,{gap}{average(cells)} and 95% interval", fontsize=11, multialignment="center")
    if len(places) == 1:
        panels[0].set_title(args.title, fontsize=11)
    else:
        figure.suptitle(args.title)
    legend(figure, shown.values(), args.by)
    if drawn:
        figure.savefig(path, dpi=120)
    return drawn > 0


def from_the_start(x: np.ndarray, scores: np.ndarray, random: float) -> tuple[np.ndarray, np.ndarray]:
    """A curve x [N], scores [..., N], extended by the random policy's score at 0 unless it starts there already."""
    return (x, scores) if x[0] <= 0 else (np.append(0, x), np.insert(scores, 0, random, axis=-1))


def legend(figure, panels, title: str) -> None:
    """One legend for all panels, below them; the random policy and the best possible come last."""
    lines = {line.get_label(): line for axes in panels for line in axes.get_lines()}
    named = (label for label in lines if not label.startswith("_"))  # matplotlib's names for unlabelled lines
    labels = sorted(named, key=lambda label: (label in ("random policy", "best possible"), natural(label)))
    handles = [lines[label] for label in labels]
    labels = [label.replace("_", " ") if title == "exp_name" else label for label in labels]
    columns = max(1, min(len(labels), int(figure.get_figwidth() / 2)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, title=by_words(title))


def draw_together(together: list[Together], args: Args, path: Path) -> None:
    """Normalised returns of all ids over steps and wall time, and performance profiles of the last ones."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    groups, twins = (sorted({getattr(each, name) for each in together}) for name in ("group", "twin"))
    timed = any(each.minutes is not None for each in together)
    figure = Figure(figsize=(15 if timed else 11, 4), layout="constrained")
    panels = figure.subplots(1, 3 if timed else 2)
    profiles = panels[-1]
    for each in together:
        how = look(each, groups, twins)
        for axes, x in zip(panels[:-1], (each.steps, each.minutes), strict=False):
            if x is None:
                continue
            x, scores = from_the_start(x, each.scores, 0.0)
            axes.plot(x, iqm(scores), **how)
            if len(each.final) > 1:
                axes.fill_between(x, *interval(scores), color=how["color"], alpha=0.15, linewidth=0)
        share, low, high = each.profile
        profiles.plot(THRESHOLDS, share, **(how | {"marker": ""}))
        if len(each.final) > 1:
            profiles.fill_between(THRESHOLDS, low, high, color=how["color"], alpha=0.15, linewidth=0)
    minutes = "minutes per id, all seeds of a process"
    for axes, label in zip(panels[:-1], ("environment steps of a seed", minutes), strict=False):
        axes.set(xlabel=label, xlim=(0, None))
    panels[0].set_ylabel("normalised return, interquartile mean")
    panels[0].xaxis.set_major_formatter(EngFormatter(sep=""))
    profiles.set(xlabel="normalised return", ylabel="share of runs above it", ylim=(0, 1.02))
    for axes in panels:
        axes.grid(alpha=0.3)
    ids = len(together[0].tasks)
    figure.suptitle(f"{args.title}: {ids} ids together, 0 the random policy, 1 the best possible")
    legend(figure, panels, args.by)
    figure.savefig(path, dpi=120)


def draw_normalised(cells: list[Cell], args: Args, path: Path) -> None:
    """Last returns of every id on one axis from the random policy to the best possible, a panel for each twin."""
    from matplotlib.figure import Figure

    groups, twins = (sorted({getattr(cell, name) for cell in cells}) for name in ("group", "twin"))
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    row = max(0.34, 0.12 * len(groups))  # inches of an id
    figure = Figure(figsize=(3.6 * len(twins) + 1.2, row * len(tasks) + 2.2), layout="constrained")
    panels = figure.subplots(1, len(twins), sharex=True, sharey=True, squeeze=False)[0]
    for axes, twin in zip(panels, twins, strict=True):
        for edge, style in ((0, "-"), (0.5, ":"), (1, "-")):
            axes.axvline(edge, color="gray", linestyle=style, linewidth=1)
        there = [cell for cell in cells if cell.twin == twin]
        for cell in there:
            scores = normalised(cell, cell.final)[:, None, None]
            of_task = sorted({other.group for other in there if other.task == cell.task})
            place = 0.7 * (of_task.index(cell.group) + 0.5) / len(of_task) - 0.35  # groups are below each other
            how = look(cell, groups, [twin]) | {"linestyle": "", "markersize": 6}
            y = tasks.index(cell.task) + place
            axes.plot(iqm(scores), [y], **how | {"marker": "os^Dv"[groups.index(cell.group) % 5]})
            if len(scores) > 1:
                axes.hlines(y, *np.ravel(interval(scores)), color=how["color"], linewidth=2)
        axes.set_title("" if TWINS_IN_WORDS[twin] in args.title else TWINS_IN_WORDS[twin], fontsize=11)
        axes.set_xticks([0, 0.5, 1], ["random", "halfway", "best"])
        for words, place in zip(axes.get_xticklabels(), ("left", "center", "right"), strict=True):
            words.set_horizontalalignment(place)  # those of two panels do not touch
        axes.grid(axis="y", alpha=0.3)
    panels[0].set_yticks(range(len(tasks)), tasks)
    panels[0].set_ylim(len(tasks) - 0.5, -0.5)
    figure.suptitle(args.title)
    legend(figure, panels, args.by)
    figure.savefig(path, dpi=120)


def draw_over(cells: list[Cell], args: Args, path: Path) -> None:
    """A map of groups (the best one on top) by a parameter of the environment, a panel for each id and twin.

    It shows the mean of the seeds' last returns, or with `args.solved` the share of seeds that reach this return.
    Raises UserError if a run has no such parameter.
    """
    from matplotlib.figure import Figure

    groups = sorted({cell.group for cell in cells}, key=natural)
    panels = list(dict.fromkeys((cell.env_id, cell.twin) for cell in cells))
    values = sorted({parameter(cell, args.over) for cell in cells})
    shown, words = np.full((len(panels), len(groups), len(values)), np.nan), {}
    for cell in cells:
        x, y = values.index(parameter(cell, args.over)), groups.index(cell.group)
        place = panels.index((cell.env_id, cell.twin)), y, x
        shown[place], words[place] = in_map(cell, args.solved)
    order = np.argsort(-np.nanmean(shown, axis=(0, 2)), kind="stable")
    low, high = (0, 1) if args.solved is not None else (np.nanmin(shown), np.nanmax(shown))
    height = 0.36 if args.solved is None else 0.5
    size = 2.4 + 0.8 * len(values) * len(panels), 1.4 + height * len(groups)
    figure = Figure(figsize=size, layout="constrained")
    all_axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (panel, (env_id, twin)) in zip(all_axes, enumerate(panels), strict=True):
        drawn = axes.imshow(shown[panel, order], cmap="viridis", vmin=low, vmax=high, aspect="auto")
        for y, x in np.ndindex(len(groups), len(values)):
            place = panel, order[y], x
            shade = "black" if shown[place] > (low + high) / 2 else "white"
            axes.text(x, y, words.get(place, ""), color=shade, ha="center", va="center", size=9, linespacing=0.95)
        axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        axes.set_yticks(range(len(groups)), [in_words(groups[place]) for place in order])
        title = ", ".join(filter(None, [env_id.split(":")[-1], TWINS_IN_WORDS.get(twin)]))
        axes.set(xlabel=args.over.replace("_", " "), title=title if len(panels) > 1 else args.title)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    label = "greedy return after training" if args.solved is None else "share of seeds that solve it"
    figure.colorbar(drawn, ax=all_axes, label=label)
    if len(panels) > 1:
        figure.suptitle(args.title)
    figure.savefig(path, dpi=120)


def in_map(cell: Cell, solved: float | None) -> tuple[float, str]:
    """What a map shows of a cell, as a number and in words.

    That is the mean return. Or, with `solved`, the share of seeds that end with this return or more, their number, and
    the median of the steps after which they first have it.
    """
    if solved is None:
        return cell.final.mean(), f"{cell.final.mean():.2f}"
    took = [
        min(step for step, value in points.items() if value >= solved)
        for points, final in zip(cell.seeds.values(), cell.final, strict=True)
        if final >= solved
    ]
    share = f"{len(took)}/{len(cell.final)}"
    return len(took) / len(cell.final), f"{share}\n{np.median(took) / 1000:.0f}k" if took else share


def parameter(cell: Cell, name: str) -> float:
    """A parameter of the environment, from --env-params of the runs. Raises UserError if it is not there."""
    given = dict(item.split("=", 1) for item in cell.rows[0].get("env_params", "").split() if "=" in item)
    try:
        return float(given[name])
    except (KeyError, ValueError):
        raise UserError(f"--over {name}: {cell.rows[0]['run']} has no such number among its --env-params") from None


# --------------------------------------------------------------------------------------------------------------- pages


def filled(page: Path) -> str:
    """The page's text with the tables it asks for. Raises UserError for a missing table."""

    def place(match: re.Match) -> str:
        file = page.parent / match[2]
        if not file.is_file():
            raise UserError(f"{page} asks for {match[2]}, which does not exist")
        return f"{match[1]}\n{file.read_text()}\n{match[3]}"

    if not page.is_file():
        raise UserError(f"--docs {page}: no such page")
    return re.sub(r"(<!-- report: (\S+) -->\n).*?(<!-- end -->)", place, page.read_text(), flags=re.DOTALL)


# ---------------------------------------------------------------------------------------------------------------- main


def columns_of(rows: list[dict]) -> list[str]:
    """The columns of any of the rows, in the order in which they first appear."""
    return list(dict.fromkeys(name for row in rows for name in row))


def main(args: Args) -> None:
    """Writes the files of a report, or fills in pages. Raises UserError before anything is written."""
    args = args.checked()
    if args.docs:
        for page, text in [(Path(page), filled(Path(page))) for page in args.docs]:
            page.write_text(text)
        return
    rows = all_rows(args)
    cells = make_cells(rows, args.by)
    for cell in cells if args.over else ():
        parameter(cell, args.over)
    arcade = [cell for cell in cells if can_be_normalised(cell)]
    several = len({cell.task for cell in arcade}) > 1
    together, left_out = put_together(arcade) if several else ([], [])
    text = table(cells, args.by)
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_csv(Path(f"{out}.csv"), columns_of(rows), rows)
    Path(f"{out}.md").write_text(text)
    for ending in EXTRAS:  # of an earlier report
        Path(f"{out}{ending}").unlink(missing_ok=True)
    draw(cells, args, Path(f"{out}.png"), over_minutes=False)
    draw(cells, args, Path(f"{out}_minutes.png"), over_minutes=True)
    if args.over:
        draw_over(cells, args, Path(f"{out}_over.png"))
    if several:
        Path(f"{out}_summary.md").write_text(summary(arcade))
        draw_normalised(arcade, args, Path(f"{out}_normalised.png"))
        if half_way := table_half_way(arcade):
            Path(f"{out}_half_way.md").write_text(half_way)
    if together:
        Path(f"{out}_aggregate.md").write_text(table_together(together, args.by))
        profiles = profile_rows(together, args.by)
        write_csv(Path(f"{out}_profile.csv"), columns_of(profiles), profiles)
        draw_together(together, args, Path(f"{out}_aggregate.png"))
    print(text, end="")
    for words in left_out:
        print(f"left out of the aggregate: {words}")


if __name__ == "__main__":
    launch(main, Args)
