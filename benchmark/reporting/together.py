"""All ids of a group and twin together, by their normalised returns. Shapes: S seeds, M ids, N steps."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rliable import library

from popgym_arcade.analysis.interquartile import Estimate, estimate, numpy_seed
from popgym_arcade.analysis.tables import TWINS_IN_WORDS, markdown
from popgym_arcade.baselines.errors import UserError
from reporting.cells import Cell, normalised
from reporting.statistics import RESAMPLES, interval, iqm
from reporting.tables import by_words, in_words, least_to_most, of_seeds, unbroken

THRESHOLDS = np.linspace(-0.2, 1, 61)  # of performance profiles


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


def table_against(together: list[Together], by: str, others: Sequence[str]) -> str:
    """Markdown: a line for each group, with its interquartile mean on each twin, by how much this is above that of the
    others, and steps per second. A group on both twins also has the observability gap. Intervals are 95%.

    The group that earns most comes first, on the partially observable twin if there is one. Raises UserError for
    another group that is not there.
    """
    groups: dict[str, dict[str, Together]] = {}
    for each in together:
        groups.setdefault(each.group, {})[each.twin] = each
    for other in set(others) - set(groups):
        raise UserError(f"--against {other}: no group of that name has every id")
    twins = [twin for twin in ("mdp", "pomdp", "single") if any(twin in of_group for of_group in groups.values())]

    def line(group: str) -> list[str]:
        cells, of_group = [in_words(group)], groups[group]
        for twin in twins:
            each = of_group.get(twin)
            compared = [above(each, groups[other].get(twin)) for other in others]
            cells += [returned(each), *compared, f"{each.sps:,.0f}" if each and each.sps else ""]
        return [*cells, above(of_group.get("mdp"), of_group.get("pomdp"))]

    def earned(group: str) -> float:
        last = groups[group].get(twins[-1])
        return iqm(last.final[..., None])[0] if last else -np.inf

    head = [by_words(by)]
    for twin in twins:
        head += [TWINS_IN_WORDS[twin] or "return", *(f"above {in_words(other)}" for other in others), "steps/s"]
    return markdown([*head, "observability gap"], [line(group) for group in sorted(groups, key=earned, reverse=True)])


def returned(each: Together | None) -> str:
    """The interquartile mean over all ids in words; empty for None."""
    return in_cell(estimate(list(each.final.T))) if each else ""


def above(each: Together | None, other: Together | None) -> str:
    """By how much one interquartile mean is above another, in words; empty for the same one, or if one is None."""
    if each is None or other is None or each is other:
        return ""
    return in_cell(estimate(list(each.final.T), list(other.final.T)))


def in_cell(found: Estimate) -> str:
    """An estimate in words that may wrap before its interval, but not within it."""
    return unbroken(str(found)).replace("\N{NO-BREAK SPACE}(", " (")


def profile_rows(together: list[Together], by: str) -> list[dict]:
    """Rows of OUT_profile.csv: the performance profiles (Agarwal et al. 2021) as drawn; one seed has no interval."""
    rows = []
    for each in together:
        for at, share, low, high in zip(THRESHOLDS, *each.profile, strict=True):
            row = {"twin": each.twin, by: each.group, "normalised_return": f"{at:.2f}", "share": f"{share:.4f}"}
            within = {"low": "", "high": ""} if len(each.final) == 1 else {"low": f"{low:.4f}", "high": f"{high:.4f}"}
            rows.append(row | within)
    return rows
