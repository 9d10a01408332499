"""Pictures of a report: curves, all ids together, last returns on one axis, and maps over a parameter."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from popgym_arcade.analysis.colors import colors_of
from popgym_arcade.analysis.reference_returns import reference_returns
from popgym_arcade.analysis.tables import TWINS_IN_WORDS
from popgym_arcade.baselines.errors import UserError
from reporting.cells import Cell, average, can_be_normalised, natural, normalised
from reporting.statistics import interval, iqm
from reporting.tables import by_words, in_words
from reporting.together import THRESHOLDS, Together

MARKERS = "os^Dv"


def look(cell: Cell | Together, groups: list[str]) -> dict:
    """The style of a group's curve, and its label in the legend."""
    marker = MARKERS[groups.index(cell.group) // 10 % len(MARKERS)]  # there are ten colours
    return {"color": colors_of(groups)[cell.group], "marker": marker, "markersize": 3, "label": in_words(cell.group)}


def legend(figure: Figure, panels: Iterable[Axes], by: str) -> None:
    """One legend for all panels, below them; the random policy and the best possible come last."""
    lines = {line.get_label(): line for axes in panels for line in axes.get_lines()}
    named = (label for label in lines if not label.startswith("_"))  # matplotlib's names for unlabelled lines
    labels = sorted(named, key=lambda label: (label in ("random policy", "best possible"), natural(label)))
    handles = [lines[label] for label in labels]
    labels = [label.replace("_", " ") if by == "exp_name" else label for label in labels]
    inches = 0.6 + 0.08 * max(map(len, labels))  # of a column
    rows = math.ceil(len(labels) / max(1, int(figure.get_figwidth() / inches)))
    columns = math.ceil(len(labels) / rows)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, title=by_words(by))


def from_the_start(x: np.ndarray, scores: np.ndarray, random: float) -> tuple[np.ndarray, np.ndarray]:
    """A curve x [N], scores [..., N], extended by the random policy's score at 0 unless it starts there already."""
    return (x, scores) if x[0] <= 0 else (np.append(0, x), np.insert(scores, 0, random, axis=-1))


def draw_curve(axes: Axes, x: np.ndarray, scores: np.ndarray, how: dict) -> None:
    """The interquartile mean of scores [S, M, N] over x [N], with its interval if there are several seeds."""
    axes.plot(x, iqm(scores), **how)
    if len(scores) > 1:
        axes.fill_between(x, *interval(scores), color=how["color"], alpha=0.15, linewidth=0)


# -------------------------------------------------------------------------------------------------------------- curves


def draw_curves(cells: list[Cell], path: Path, title: str, by: str, over_minutes: bool) -> bool:
    """Draws learning curves over steps or wall time, a panel for each id and twin; returns whether there are any."""
    tasks = list(dict.fromkeys(cell.task for cell in cells))
    twins = sorted({cell.twin for cell in cells})
    # Both twins of an id are next to each other, even if one of them has no curve.
    places = [(task, twin) for task in tasks for twin in twins]
    figure, panels, columns = panels_for(len(places), len(tasks), len(twins))
    shown = {place: axes for place, axes in zip(places, panels, strict=False) if cells_at(cells, *place)}
    for axes in panels:
        axes.set_visible(axes in shown.values())
    groups = sorted({cell.group for cell in cells})
    drawn = [draw_panel(axes, cells_at(cells, *place), groups, over_minutes) for place, axes in shown.items()]
    for (task, twin), axes in shown.items():
        axes.set_title(f"{task}, {TWINS_IN_WORDS[twin]}" if len(twins) > 1 else task, fontsize=9)
    for task in tasks:
        with_same_range([axes for (name, _), axes in shown.items() if name == task])
    lowest = {places.index(place) % columns: axes for place, axes in shown.items()}  # of each column
    for axes in lowest.values():
        axes.set_xlabel(label_of_x(cells, over_minutes))
    gap = "\n" if figure.get_figheight() < 5 else " "  # a low picture needs the label in two lines
    figure.supylabel(f"greedy return,{gap}{average(cells)} and 95% interval", fontsize=11, multialignment="center")
    if len(places) == 1:
        panels[0].set_title(title, fontsize=11)
    else:
        figure.suptitle(title)
    legend(figure, shown.values(), by)
    if any(drawn):
        figure.savefig(path, dpi=120)
    return any(drawn)


def panels_for(num_places: int, num_tasks: int, num_twins: int) -> tuple[Figure, Sequence[Axes], int]:
    """A figure, its panels in reading order, and the number of columns."""
    few = num_places < 5 or (num_twins == 2 and num_tasks < 4)
    columns = min(num_places, 2 if few else 4 if num_twins == 2 else 3)
    rows = -(-num_places // columns)
    size = (7, 4.4) if num_places == 1 else (3.4 * columns + 0.4, 2.9 * rows + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False).flatten(), columns


def cells_at(cells: list[Cell], task: str, twin: str) -> list[Cell]:
    """The cells of a task and twin."""
    return [cell for cell in cells if (cell.task, cell.twin) == (task, twin)]


def draw_panel(axes: Axes, cells: list[Cell], groups: list[str], over_minutes: bool) -> bool:
    """Draws the curves of one id and twin; returns whether there are any."""
    drawn = False
    for cell in cells:
        steps, returns = cell.curve()
        x = cell.minutes(steps) if over_minutes else steps
        if x is None:
            continue
        drawn = True
        x, returns = from_the_start(x, returns, cell.random)
        draw_curve(axes, x, returns[:, None], look(cell, groups))
    axes.axhline(np.mean([cell.random for cell in cells]), color="gray", linestyle=":", label="random policy")
    if can_be_normalised(cells[0]):
        best = reference_returns()[cells[0].task].best
        axes.axhline(best, color="gray", linestyle="--", linewidth=1, label="best possible")
    axes.set_xlim(0, None)
    axes.grid(alpha=0.3)
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return drawn


def with_same_range(panels: Sequence[Axes]) -> None:
    """Gives panels the same range of returns."""
    low = min(axes.get_ylim()[0] for axes in panels)
    high = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(low, high)


def label_of_x(cells: list[Cell], over_minutes: bool) -> str:
    """What the curves are drawn over. Tasks that are trained together share steps and minutes."""
    several = any("task_steps" in row for cell in cells for row in cell.rows)
    if over_minutes:
        return "minutes, all seeds of a process" + (", by number of tasks" if several else "")
    return "environment steps of the task" if several else "environment steps of a seed"


# ------------------------------------------------------------------------------------------------------------ together


def draw_together(together: list[Together], path: Path, title: str, by: str) -> None:
    """Normalised returns of all ids over steps and wall time, and performance profiles; a row for each twin."""
    groups, twins = (sorted({getattr(each, name) for each in together}) for name in ("group", "twin"))
    timed = any(each.minutes is not None for each in together)
    figure = Figure(figsize=(15 if timed else 11, 3.4 * len(twins) + 1), layout="constrained")
    grid = figure.subplots(len(twins), 3 if timed else 2, squeeze=False, sharex="col", sharey="col")
    for row, twin in zip(grid, twins, strict=True):
        draw_row_together(row, [each for each in together if each.twin == twin], groups)
        if len(twins) > 1:
            row[0].set_title(TWINS_IN_WORDS[twin], fontsize=11, loc="left")
    minutes = ["minutes per id, all seeds of a process"] if timed else []
    labels = ["environment steps of a seed", *minutes, "normalised return"]
    for axes, label in zip(grid[-1], labels, strict=True):
        axes.set_xlabel(label)
    grid[0, 0].xaxis.set_major_formatter(EngFormatter(sep=""))
    ids = len(together[0].tasks)
    figure.suptitle(f"{title}: {ids} ids together, 0 the random policy, 1 the best possible")
    legend(figure, grid.flatten(), by)
    figure.savefig(path, dpi=120)


def draw_row_together(row: Sequence[Axes], together: list[Together], groups: list[str]) -> None:
    """Curves over steps and, if there is a panel for it, wall time; performance profiles in the last panel."""
    *curves, profiles = row
    for each in together:
        how = look(each, groups)
        for axes, x in zip(curves, (each.steps, each.minutes), strict=False):
            if x is not None:
                draw_curve(axes, *from_the_start(x, each.scores, 0.0), how)
        share, low, high = each.profile
        profiles.plot(THRESHOLDS, share, **(how | {"marker": ""}))
        if len(each.final) > 1:
            profiles.fill_between(THRESHOLDS, low, high, color=how["color"], alpha=0.15, linewidth=0)
    for axes in curves:
        axes.set_xlim(0, None)
    curves[0].set_ylabel("normalised return,\ninterquartile mean")
    profiles.set(ylabel="share of runs above it", ylim=(0, 1.02))
    for axes in row:
        axes.grid(alpha=0.3)


# -------------------------------------------------------------------------------------------------------- last returns


def draw_normalised(cells: list[Cell], path: Path, title: str, by: str) -> None:
    """Last returns of every id on one axis from the random policy to the best possible, a panel for each twin."""
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
            how = look(cell, groups) | {"linestyle": "", "markersize": 6}
            y = tasks.index(cell.task) + place
            axes.plot(iqm(scores), [y], **how | {"marker": "os^Dv"[groups.index(cell.group) % 5]})
            if len(scores) > 1:
                axes.hlines(y, *np.ravel(interval(scores)), color=how["color"], linewidth=2)
        axes.set_title("" if TWINS_IN_WORDS[twin] in title else TWINS_IN_WORDS[twin], fontsize=11)
        axes.set_xticks([0, 0.5, 1], ["random", "halfway", "best"])
        for words, place in zip(axes.get_xticklabels(), ("left", "center", "right"), strict=True):
            words.set_horizontalalignment(place)  # those of two panels do not touch
        axes.grid(axis="y", alpha=0.3)
    panels[0].set_yticks(range(len(tasks)), tasks)
    panels[0].set_ylim(len(tasks) - 0.5, -0.5)
    figure.suptitle(title)
    legend(figure, panels, by)
    figure.savefig(path, dpi=120)


def draw_over(cells: list[Cell], path: Path, title: str, over: str, solved: float | None) -> None:
    """A map of groups (the best one on top) by the parameter `over` of the environment, a panel for each id and twin.

    It shows the mean of the seeds' last returns, or with `solved` the share of seeds that reach this return.
    Raises UserError if a run has no such parameter.
    """
    groups = sorted({cell.group for cell in cells}, key=natural)
    panels = list(dict.fromkeys((cell.env_id, cell.twin) for cell in cells))
    values = sorted({parameter(cell, over) for cell in cells})
    shown, words = np.full((len(panels), len(groups), len(values)), np.nan), {}
    for cell in cells:
        x, y = values.index(parameter(cell, over)), groups.index(cell.group)
        place = panels.index((cell.env_id, cell.twin)), y, x
        shown[place], words[place] = in_map(cell, solved)
    order = np.argsort(-np.nanmean(shown, axis=(0, 2)), kind="stable")
    low, high = (0, 1) if solved is not None else (np.nanmin(shown), np.nanmax(shown))
    height = 0.36 if solved is None else 0.5
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
        of_panel = ", ".join(filter(None, [env_id.split(":")[-1], TWINS_IN_WORDS.get(twin)]))
        axes.set(xlabel=over.replace("_", " "), title=of_panel if len(panels) > 1 else title)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    label = "greedy return after training" if solved is None else "share of seeds that solve it"
    figure.colorbar(drawn, ax=all_axes, label=label)
    if len(panels) > 1:
        figure.suptitle(title)
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
