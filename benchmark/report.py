"""Learning curves and a table of final returns from run folders, grouped by one argument.

    python benchmark/report.py --runs 'runs/encoders/*' --by encoder --out docs/figures/encoders

Writes OUT.png (greedy return over steps: mean over seeds and 95% bootstrap interval, the random policy beside it),
OUT.csv (one row per run and evaluation) and OUT.md (the table), and prints the table. Behind a ± is the standard
deviation over the seeds (of the population: divided by their number). Where a run has several tasks, each has a panel
and its lines in the table, also of the runs on it alone, and steps are those of the task.
"""

import csv
import functools
import glob
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

RESAMPLES = 10_000  # of the seeds, for an interval


@dataclass(frozen=True)
class Args:
    runs: tuple[str, ...]
    """run folders, or patterns of them"""
    out: str
    """path of the files to write, without their endings"""
    by: str = "memory"
    """argument of the runs that tells the groups apart, or: script"""
    training: bool = False
    """columns more, from TensorBoard: mean return of the last 100 training episodes, as CleanRL has it; minutes"""
    title: str = ""
    """title of the picture"""


def read_run(folder: Path) -> tuple[dict, list[dict]]:
    """A run's arguments and the rows of its `eval.csv`."""
    with (folder / "eval.csv").open(newline="") as file:
        return json.loads((folder / "args.json").read_text()), list(csv.DictReader(file))


def interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95% percentile bootstrap interval of the mean over the first axis (the seeds), with a fixed generator."""
    values = np.asarray(values, float)
    picks = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    return tuple(np.percentile(values[picks].mean(axis=1), [2.5, 97.5], axis=0))


@functools.cache
def read_events(folder: Path):
    """All TensorBoard events of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # takes seconds to import

    return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()


def last_episodes(folder: Path, count: int = 100, charts: str = "charts") -> float:
    """Mean return of about the last `count` training episodes in a folder of TensorBoard events: whole points of the
    curve, each the mean of so many episodes, from the end until they make up the count. `charts` is their tags' prefix.

    Raises:
        ValueError: when no training episode was over.
    """
    events = read_events(folder)
    if f"{charts}/episodes" not in events.Tags()["scalars"]:
        raise ValueError(f"--training: {folder} has no finished training episode")
    episodes = {point.step: point.value for point in events.Scalars(f"{charts}/episodes")}
    total, seen = 0.0, 0.0
    for point in reversed(events.Scalars(f"{charts}/episodic_return")):
        total, seen = total + point.value * episodes[point.step], seen + episodes[point.step]
        if seen >= count:
            break
    return total / seen


def minutes(folder: Path) -> float:
    """Minutes from a run's first event, before it compiles, to its last evaluation; a pause before a resume counts."""
    events = read_events(folder)
    return (events.Scalars("eval/episodic_return")[-1].wall_time - events.FirstEventTimestamp()) / 60


def add_training(groups: dict[str, list[dict]], folders: dict[str, Path]) -> None:
    """Gives every row `training_return`, that of its run and seed, and `minutes`, those of its run."""
    for row in (row for rows in groups.values() for row in rows):
        folder = folders[row["run"]]
        seeded = folder / f"seed_{row['seed']}"
        row["training_return"] = last_episodes(
            seeded if seeded.exists() else folder, charts=row["task"] if "task_steps" in row else "charts"
        )
        row["minutes"] = round(minutes(folder), 2)


def group_of(about: dict, by: str) -> str:
    """The value of `by` among a run's arguments, or the script's name. Raises ValueError without such an argument."""
    values = {"memory": "none"} | about["args"] | {"script": about.get("script")}
    if values.get(by) is None:
        raise ValueError(f"--by {by}: runs have {', '.join(about['args'])}")
    return str(values[by])


def collect(patterns: tuple[str, ...], by: str) -> dict[str, list[dict]]:
    """Rows of all evaluations by group, each with its run's name; groups in the order of their names.

    Raises:
        ValueError: when a pattern matches no run, or the runs have no such argument.
    """
    groups: dict[str, list[dict]] = {}
    for pattern in patterns:
        folders = sorted(Path(match) for match in glob.glob(pattern) if (Path(match) / "eval.csv").exists())
        if not folders:
            raise ValueError(f"--runs {pattern}: no run folder there")
        for folder in folders:
            about, rows = read_run(folder)
            name = group_of(about, by)
            group = groups.setdefault(name, [])
            count = len(about["args"].get("env_ids", ("",)))
            steps = [{"task_steps": int(row["global_step"]) // count} if count > 1 else {} for row in rows]
            group += [{"run": folder.name, by: name, **row, **more} for row, more in zip(rows, steps, strict=True)]
            if not any(row["policy"] == "greedy" for row in rows):
                raise ValueError(f"{folder}: no evaluation of the greedy policy yet")
    groups = dict(sorted(groups.items()))
    for of_task in by_task(groups).values():
        for name, rows in of_task.items():
            runs = dict.fromkeys((row["seed"], row["run"]) for row in rows)
            if len(runs) > len({seed for seed, _ in runs}):
                raise ValueError(f"{by} {name}: a seed twice, in {', '.join(sorted({run for _, run in runs}))}")
    return groups


def task_of(row: dict) -> str:
    """The task that a row is about: what its run calls it, or the only one's id."""
    return row.get("task") or row["env_id"]


def by_task(groups: dict[str, list[dict]]) -> dict[str, dict[str, list[dict]]]:
    """The groups' rows of each task, in the order of a run that has several; all under "" if none has."""
    rows = [row for group in groups.values() for row in group]
    tasks = dict.fromkeys(task_of(row) for row in rows if "task_steps" in row)
    if not tasks:
        return {"": groups}
    tasks |= dict.fromkeys(task_of(row) for row in rows)
    split = {
        task: {name: [row for row in group if task_of(row) == task] for name, group in groups.items()} for task in tasks
    }
    return {task: {name: group for name, group in of_task.items() if group} for task, of_task in split.items()}


def by_seed(rows: list[dict]) -> dict[str, dict[int, float]]:
    """Mean return of the greedy policy by seed and step."""
    seeds: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["policy"] == "greedy":
            step = int(row.get("task_steps", row["global_step"]))
            seeds.setdefault(row["seed"], {})[step] = float(row["return_mean"])
    return seeds


def curve(rows: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    """Global steps [N] and mean returns [seeds, N] of the greedy policy, up to the last step that all seeds reached."""
    seeds = by_seed(rows)
    steps = sorted(set.intersection(*(set(points) for points in seeds.values())))
    return np.array(steps), np.array([[points[step] for step in steps] for points in seeds.values()])


def table(groups: dict[str, list[dict]], by: str) -> str:
    """Markdown: every group's last greedy returns, mean, std and interval over the seeds, and the random policy's."""
    tasks = by_task(groups)
    tables = [table_of_task(of_task, by) for of_task in tasks.values()]
    if len(tasks) == 1 and "" in tasks:
        return "\n".join(tables[0]) + "\n"
    head, rule = tables[0][:2]
    lines = [f"| task {head}", f"|-{rule}"]
    for task, (_, _, *rows) in zip(tasks, tables, strict=True):
        lines += [f"| {task} {row}" for row in rows]
    return "\n".join(lines) + "\n"


def table_of_task(groups: dict[str, list[dict]], by: str) -> list[str]:
    """The lines of the table of one task."""
    training = any("training_return" in row for rows in groups.values() for row in rows)
    head = f"| {by} | seeds | steps | greedy return | 95% interval | each seed | random policy |"
    lines = [head + " last 100 training episodes | minutes |" * training, "|-|-|-|-|-|-|-|" + "-|-|" * training]
    for name, rows in groups.items():
        lasts = [max(points) for points in by_seed(rows).values()]  # they differ where runs stopped early
        steps = " to ".join(str(step) for step in sorted({min(lasts), max(lasts)}))
        final = np.array([points[max(points)] for points in by_seed(rows).values()])
        low, high = interval(final)
        random = np.mean([float(row["return_mean"]) for row in rows if row["policy"] == "random"])
        greedy, each = f"{final.mean():.3f} ± {final.std():.3f}", ", ".join(f"{value:.2f}" for value in final)
        line = f"| {name} | {len(final)} | {steps} | {greedy} | {low:.3f} to {high:.3f} | {each} | {random:.3f} |"
        if training:
            values = np.array(list({row["seed"]: row["training_return"] for row in rows}.values()))
            digits = 1 if np.abs(values).max() >= 10 else 3
            slowest = max(row["minutes"] for row in rows)
            line += f" {values.mean():.{digits}f} ± {values.std():.{digits}f} | {slowest:.1f} |"
        lines.append(line)
    return lines


def draw(groups: dict[str, list[dict]], args: Args, path: Path) -> None:
    """The learning curves of all groups, a panel for each task."""
    from matplotlib.figure import Figure

    tasks = by_task(groups)
    columns = min(len(tasks), 2)
    rows = -(-len(tasks) // columns)
    size = (8.5, 4) if len(tasks) == 1 else (4.2 * columns + 2.2, 3.2 * rows + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in grid[len(tasks) :]:
        axes.axis("off")
    for axes, (task, of_task) in zip(grid, tasks.items(), strict=False):
        draw_task(axes, of_task, list(groups))
        axes.set(xlabel="environment steps of the task" if task else "environment steps", title=task or args.title)
        axes.set(ylabel="greedy return, mean and 95% interval", xlim=(0, None))
        if task:
            axes.locator_params(axis="x", nbins=6)
    if len(tasks) > 1:
        figure.suptitle(args.title)
    lines = {line.get_label(): line for axes in grid for line in axes.get_lines()}
    labels = sorted(lines, key=lambda label: (label == "random policy", list(lines).index(label)))
    figure.legend([lines[label] for label in labels], labels, loc="outside right upper", title=args.by)
    figure.savefig(path, dpi=120)


def draw_task(axes, groups: dict[str, list[dict]], names: list[str]) -> None:
    """The learning curves of one task; a group has the colour of its place among the names."""
    for name, rows in groups.items():
        steps, means = curve(rows)
        look = {"color": f"C{names.index(name)}", "label": f"{name} ({len(means)} seeds)"}
        axes.plot(steps, means.mean(axis=0), marker="o", markersize=3, **look)
        axes.fill_between(steps, *interval(means), color=look["color"], alpha=0.2, linewidth=0)
    random = [float(row["return_mean"]) for rows in groups.values() for row in rows if row["policy"] == "random"]
    axes.axhline(np.mean(random), color="gray", linestyle="--", label="random policy")
    axes.grid(alpha=0.3)


def main(args: Args) -> None:
    groups = collect(args.runs, args.by)
    if args.training:
        add_training(groups, {Path(match).name: Path(match) for pattern in args.runs for match in glob.glob(pattern)})
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = [row for group in groups.values() for row in group]
    with open(f"{out}.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    Path(f"{out}.md").write_text(table(groups, args.by))
    draw(groups, args, Path(f"{out}.png"))
    print(table(groups, args.by), end="")


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except ValueError as error:
        print(f"report.py: error: {error}", file=sys.stderr)
        sys.exit(2)
