"""Markdown tables of a report's cells."""

from collections.abc import Callable, Sequence

import numpy as np

from popgym_arcade.analysis.reference_returns import reference_returns
from popgym_arcade.analysis.tables import MEMORIES_IN_WORDS, TWINS_IN_WORDS, markdown
from reporting.cells import Cell, average, half_way
from reporting.statistics import interval, iqm


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
    """Markdown: a table for each twin, the fully observable first, with its groups. Empty tables are left out."""
    twins = sorted({cell.twin for cell in cells})
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
