"""Rows of a report: the evaluations of runs, from their folders or from tables of earlier reports."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from popgym_arcade.analysis.groups import WITHIN_A_GROUP
from popgym_arcade.analysis.runs import evaluated_with, find_runs, read_run, scalars
from popgym_arcade.analysis.tables import read_table
from popgym_arcade.baselines.errors import UserError

NUMBERS = {"global_step", "task_steps", "return_mean", "minutes", "sps", "training_return"}  # columns of OUT.csv
NEEDED = ("run", "seed", "env_id", "partial_obs", "policy", "global_step", "return_mean")
MAY_DIFFER = WITHIN_A_GROUP | {"total_timesteps", "exp_name"}  # arguments in which the runs of a cell may differ


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


def check_by(abouts: Sequence[dict], by: str) -> None:
    """Raises UserError if no run has one of the arguments that `by` joins with +."""
    known = {"memory", "script"}.union(*(about["args"] for about in abouts))
    if lacking := [name for name in by.split("+") if name not in known]:
        raise UserError(f"--by {lacking[0]}: no run has this argument; there are {', '.join(sorted(known))}")


def group_of(about: dict, by: str) -> str:
    """The group of a run: the value of its argument `by`, its script's name, or several values joined by +.

    A run whose script has no such argument, such as a memory, counts as `none`.
    """
    values = about["args"] | {"script": about.get("script")}
    found = [values.get(name, "none") for name in by.split("+")]
    found = [list(value) if isinstance(value, tuple) else value for value in found]
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


def rows_of(folder: Path, name: str, by: str, training: bool) -> Iterator[dict]:
    """Rows of OUT.csv: a run's evaluations with its name, group, minutes, speed and, if asked for, training return.

    A run without an evaluation of its greedy policy has no rows, and a line says so.
    """
    about, rows = read_run(folder)
    group = group_of(about, by)
    agent = {"script": about["script"], "memory": about["args"].get("memory", "none")}
    origin = {key: about[key] for key in ("git_commit", "device") if about.get(key)}
    if not any(row["policy"] == "greedy" for row in rows):
        print(f"left out: {folder} has no evaluation of the greedy policy", file=sys.stderr)
        return
    tasks, minutes, speed = len(about["args"].get("env_ids", ("",))), minutes_at(folder), steps_per_second(folder)
    for row in rows:
        step, more = int(row["global_step"]), {}
        if tasks > 1:
            more["task_steps"] = step // tasks
        if env_params := evaluated_with(about["args"]):
            more["env_params"] = env_params
        if row["policy"] == "greedy" and step in minutes:
            more["minutes"] = round(minutes[step], 2)
        if speed is not None:
            more["sps"] = round(speed)
        if training:
            seeded = folder / f"seed_{row['seed']}"
            charts = row["task"] if tasks > 1 else "charts"
            mean = last_episodes(seeded if seeded.exists() else folder, charts=charts)
            more |= {} if mean is None else {"training_return": mean}
        yield {"run": name, by: group, **agent, **row, **more, **origin}


def collect(patterns: Sequence[str], by: str, training: bool = False) -> list[dict]:
    """The rows of OUT.csv for all runs that match a pattern.

    Raises:
        UserError: if a pattern matches no run, the runs have no such argument, or none has been evaluated
    """
    folders = find_runs(patterns, holding="eval.csv")
    names = [folder.name for folder in folders]
    shown = {folder: folder.name if names.count(folder.name) == 1 else str(folder) for folder in folders}
    abouts = [read_run(folder)[0] for folder in folders]
    check_by(abouts, by)
    for line in mixed_cells(abouts, by):
        print(line, file=sys.stderr)
    rows = [row for folder, name in shown.items() for row in rows_of(folder, name, by, training)]
    if not rows:
        raise UserError("--runs: no run has evaluated its greedy policy yet")
    return [{name: str(value) for name, value in row.items()} for row in rows]


def read_earlier(path: str, by: str) -> list[dict]:
    """The rows of an earlier report's table, without empty values, with their group in the column `by`.

    A group that the table lacks is put together from other columns, such as script+memory from script and memory.
    Raises UserError if it is not such a table.
    """
    rows = read_table(Path(path), NEEDED, "--csv")
    if not rows:
        raise UserError(f"--csv {path}: it has no rows")
    parts = [by] if by in rows[0] else by.split("+")
    if lacking := [name for name in parts if name not in rows[0]]:
        raise UserError(f"--csv {path}: it lacks {', '.join(lacking)}")
    rows = [{"run": row["run"], by: "+".join(row[name] for name in parts)} | row for row in rows]
    rows = [{name: value for name, value in row.items() if value} for row in rows]
    for line, row in enumerate(rows, 2):
        wrong = [name for name in NUMBERS & set(row) if not is_number(row[name])] + sorted({*NEEDED, by} - set(row))
        if wrong:
            raise UserError(f"--csv {path}: line {line} has no valid {wrong[0]}")
    return rows


def all_rows(patterns: Sequence[str], tables: Sequence[str], by: str, training: bool) -> list[dict]:
    """Rows of the earlier tables, then of the runs. If a run is in several of them, the last one counts."""
    found = [read_earlier(path, by) for path in tables]
    if patterns:
        found.append(collect(patterns, by, training))
    last = {row["run"]: at for at, table in enumerate(found) for row in table}
    return [row for at, table in enumerate(found) for row in table if last[row["run"]] == at]


def is_number(text: str) -> bool:
    """Whether a cell of a table is a finite number."""
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False
