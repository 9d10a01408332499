"""Compares what the encoders of trained agents look for: the filters of their layers, between runs and over time.

Run:   python filter_comparison.py --runs 'runs/CartPoleEasy__*' 'runs/multi-4__*'
Page:  docs/filter_comparison.md

Writes `distances.csv` (a row per pair of agents, step, layer and matching), `summary.csv` (means over the pairs of two
groups), `changes.csv` (how far each agent has moved from where it began) and pictures of all three.
Shapes: F filters of a layer, k x k pixels, C channels.
"""

import dataclasses
import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from tqdm import tqdm

from popgym_arcade.analysis.agents import Agent, each_seed, load_agent, one_seed, params_at
from popgym_arcade.analysis.command_line import AnalysisArgs, launch
from popgym_arcade.analysis.groups import WITHIN_A_GROUP
from popgym_arcade.analysis.output import new_folder
from popgym_arcade.analysis.runs import find_runs
from popgym_arcade.baselines.devices.mesh import leaf_name
from popgym_arcade.baselines.environment import shows_pixels, spaces_of
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import NonNegativeInt, PathName
from popgym_arcade.baselines.running.checkpoints import saved_steps
from popgym_arcade.baselines.running.files import write_csv
from popgym_arcade.baselines.running.pictures import in_rgb
from popgym_arcade.baselines.scripts import script_name

MOST_TOWERS = 8  # in the picture of filters
FIRST = "script env_id env_ids partial_obs obs_size env_params total_timesteps".split()  # in a group's name
ABOUT = ("layer", "matching", "filters", "weights")  # columns that describe a distance between two layers
DISTANCES = ("distance_sum", "distance_mean", "relative")
COLUMNS = ("group_a", "group_b", "step", "run_a", "seed_a", "step_a", "run_b", "seed_b", "step_b", *ABOUT, *DISTANCES)
CHANGE_COLUMNS = ("group", "run", "seed", "step", *ABOUT, *DISTANCES)
GROUP_COLUMNS = ("group_a", "group_b", "step", *ABOUT, "pairs", *DISTANCES, "low", "high")


# --------------------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True)
class Args(AnalysisArgs):
    runs: tuple[PathName, ...]
    """run folders, or patterns that match some: at least two agents, which may be seeds of one run"""
    by: str = ""
    """argument by which agents are grouped; empty: all arguments that differ, except the seed"""
    step: NonNegativeInt | None = None
    """checkpoint to compare, 0 for the initial parameters; None: the initial parameters and every checkpoint"""
    matching: tuple[Literal["index", "hungarian"], ...] = ("index", "hungarian")
    """how to pair filters: by index, and/or so that the sum of the distances is smallest (hungarian)"""
    pairs: Literal["all", "same-seed"] = "all"
    """which agents to compare: all pairs, or those with the same seed, which began with the same filters"""

    def check(self) -> None:
        if not self.matching:
            raise UserError("--matching: use index, hungarian, or both")
        self.check_distinct("matching")


# ----------------------------------------------------------------------------------------------------------- filters


@dataclass(frozen=True)
class Layer:
    """A layer of filters, and how its channels relate to those of other layers, since filters may be reordered."""

    name: str  # in the encoder's parameters
    reads: str = ""  # the layer whose filters are its input channels; empty: colours
    adds_to: str = ""  # the layer that its filters are added to, so that both share an order; empty: any order


def layers_of(encoder: str) -> list[Layer]:
    """The layers of an encoder that apply the same weights everywhere in a picture, from the first to the last."""
    if encoder == "patch":
        return [Layer("Dense_0"), Layer("Dense_1", reads="Dense_0")]
    if encoder == "paper":
        return [Layer(f"Conv_{i}", reads=f"Conv_{i - 1}" if i else "") for i in range(4)]
    found = []
    for first in (0, 5, 10):  # a convolution, then two residual blocks of two
        stem = f"Conv_{first}"
        found.append(Layer(stem, reads=f"Conv_{first - 5}" if first else ""))
        for i in (first + 1, first + 3):
            found += [Layer(f"Conv_{i}", reads=stem), Layer(f"Conv_{i + 1}", reads=f"Conv_{i}", adds_to=stem)]
    return found


def filters_of(agent: Agent) -> dict[tuple[str, str], np.ndarray]:
    """One seed's filters float32 [F, k, k, C] by tower ("actor", "critic", or "" if there is only one) and layer.

    Raises:
        UserError: for an agent that reads no pictures, or has another encoder
    """
    args = agent.args
    if not (hasattr(args, "encoder") and shows_pixels(args)):
        raise UserError(f"{agent.name} reads no frames, so it has no filters: leave it out")
    colours, found = spaces_of(args.tasks[0])[0][-1], {}
    wanted = {layer.name: 0 if layer.reads else colours for layer in layers_of(args.encoder)}
    for path, leaf in jax.tree_util.tree_flatten_with_path(agent.params)[0]:
        *tower, layer, kind = leaf_name(path).split(".")
        if layer in wanted and kind == "kernel" and tower[-1] == "encode":
            found[".".join(tower[1:-1]), layer] = as_pictures(np.asarray(leaf), wanted[layer])
    towers = dict.fromkeys(tower for tower, _ in found)
    if not found or len(found) < len(towers) * len(wanted):
        raise UserError(f"{agent.name} lacks some of the layers {', '.join(wanted)} of --encoder {args.encoder}")
    return {(tower, layer): found[tower, layer] for tower in towers for layer in wanted}


def as_pictures(kernel: np.ndarray, colours: int) -> np.ndarray:
    """Weights [k, k, C, F], or [k * k * C, F] of flat patches (of 2 x 2 neighbours for 0 colours), as [F, k, k, C]."""
    if kernel.ndim == 2:
        side = math.isqrt(kernel.shape[0] // colours) if colours else 2
        kernel = kernel.reshape(side, side, -1, kernel.shape[1])
    return np.ascontiguousarray(np.moveaxis(kernel, -1, 0))


def matched(one: dict, other: dict, layers: list[Layer], matching: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each layer, the filter of `other` that matches each filter of `one` [F], and their squared distances [F].

    "index" matches filters with the same index. "hungarian" takes, layer by layer, the order with the smallest sum of
    squared Euclidean distances (Kuhn 1955), and reorders the next layer's input channels accordingly, so networks that
    differ only in the order of their filters have distance 0. Layers that add to each other share an order.
    """
    orders, found = {}, {}
    for layer in layers:
        x, y = one[layer.name], other[layer.name]
        if matching == "hungarian" and layer.reads:
            y = y[..., orders[layer.reads]]
        distance = cdist(*(filters.reshape(len(filters), -1).astype(float) for filters in (x, y)), "sqeuclidean")
        order = np.arange(len(x))
        if matching == "hungarian":
            order = orders[layer.adds_to] if layer.adds_to else linear_sum_assignment(distance)[1]
        orders[layer.name] = order
        found[layer.name] = order, distance[np.arange(len(x)), order]
    return found


@dataclass(frozen=True)
class Snapshot:
    """The filters of one seed of a run at one step."""

    agent: Agent  # of one seed, without its parameters
    group: str
    step: int
    filters: dict[tuple[str, str], np.ndarray]  # by tower and layer

    @property
    def towers(self) -> list[str]:
        return list(dict.fromkeys(tower for tower, _ in self.filters))

    def of_tower(self, tower: str) -> dict[str, np.ndarray]:
        return {layer: filters for (name, layer), filters in self.filters.items() if name == tower}


def distance_rows(one: Snapshot, other: Snapshot, matchings: tuple[str, ...]) -> list[dict]:
    """The columns that compare two snapshots, a row for each layer and matching.

    `relative` is the sum of the distances divided by the mean of both layers' squared norms: 0 for equal filters, 2 for
    unrelated ones of equal norm.
    """
    rows, layers = [], layers_of(one.agent.args.encoder)
    for tower, matching in itertools.product(one.towers, matchings):
        x, y = one.of_tower(tower), other.of_tower(tower)
        for layer, (_, distances) in matched(x, y, layers, matching).items():
            norm = 0.5 * (np.square(x[layer], dtype=float).sum() + np.square(y[layer], dtype=float).sum())
            about = {"layer": f"{tower} {layer}".strip(), "matching": matching}
            about |= {"filters": len(distances), "weights": x[layer][0].size}
            sums = {"distance_sum": distances.sum(), "distance_mean": distances.mean()}
            rows.append(about | sums | {"relative": distances.sum() / norm})
    return rows


# --------------------------------------------------------------------------------------------------------- snapshots


def group_names(agents: list[Agent], by: str) -> list[str]:
    """The group of each agent: the value of one argument, or of all that differ between agents and affect learning.

    Raises:
        UserError: if an agent has no such argument
    """
    saved = [agent.saved for agent in agents]
    about = [{"script": script_name(args), "env_id": args.env_id} | dataclasses.asdict(args) for args in saved]
    lacking = [each for each in about if by and by not in each]
    if lacking:
        raise UserError(f"--by {by}: use one of {', '.join(lacking[0])}")
    if by:
        return [text_of(each[by]) or f"no {by}" for each in about]
    common = [name for name in about[0] if name not in WITHIN_A_GROUP and all(name in each for each in about)]
    names = [name for name in common if len({each[name] for each in about}) > 1]
    names = [name for name in names if name != "env_id" or "env_ids" not in names]
    names.sort(key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name == "exp_name"))
    words = [", ".join(f"{name} {text_of(each[name])}" for name in names) for each in about]
    return [each or agent.saved.env_id for each, agent in zip(words, agents, strict=True)]


def text_of(value: Any) -> str:
    """An argument's value as part of a group's name."""
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def snapshots_of(folders: list[Path], args: Args) -> list[Snapshot]:
    """Every seed of every run at every step asked for. Raises UserError for agents that cannot be compared."""
    agents = [load_agent(folder, args.step or None) for folder in folders]
    groups, found = group_names(agents, args.by), []
    for agent, group in zip(agents, groups, strict=True):
        filters_of(one_seed(agent, 0))  # rejects an agent without filters
        steps = [0, *saved_steps(agent.folder)] if args.step is None else [args.step]
        for step in tqdm(steps, agent.name, unit="checkpoint", leave=False, disable=None):
            for seed in each_seed(dataclasses.replace(agent, params=params_at(agent, step))):
                found.append(Snapshot(dataclasses.replace(seed, params=None), group, step, filters_of(seed)))
    shapes = {str({key: x.shape for key, x in each.filters.items()}): each.agent.name for each in found}
    if len(shapes) > 1:
        one, other = list(shapes.values())[:2]
        raise UserError(f"--runs: {one} and {other} have filters of different shapes: use runs with the same --encoder")
    if len({(each.agent.folder, each.agent.args.seed) for each in found}) < 2:
        raise UserError("--runs: name at least two agents, which may be seeds of one run")
    return found


def histories_of(snapshots: list[Snapshot]) -> list[list[Snapshot]]:
    """The snapshots of each agent, from the first to the last."""
    agents: dict[tuple, list[Snapshot]] = {}
    for each in snapshots:
        agents.setdefault((each.agent.folder, each.agent.args.seed), []).append(each)
    return [sorted(history, key=lambda each: each.step) for history in agents.values()]


def pairs_of(one: list[Snapshot], other: list[Snapshot]) -> list[tuple[tuple, Snapshot, Snapshot]]:
    """Two agents at every step that both have, and at the last step of each, which is also called "last"."""
    steps = {each.step: each for each in other}
    same = [((each.step,), each, steps[each.step]) for each in one if each.step in steps]
    if one[-1].step != other[-1].step:
        return [*same, (("last",), one[-1], other[-1])]
    return [*same[:-1], ((one[-1].step, "last"), one[-1], other[-1])]


def chosen_pairs(histories: list[list[Snapshot]], pairs: str) -> list[tuple[list[Snapshot], list[Snapshot]]]:
    """All pairs of agents, or of agents with the same seed, ordered by the position of their groups in --runs.

    Raises:
        UserError: if no two agents have the same seed
    """
    groups = list(dict.fromkeys(history[0].group for history in histories))
    histories = sorted(histories, key=lambda history: groups.index(history[0].group))
    found = list(itertools.combinations(histories, 2))
    if pairs == "same-seed":
        found = [(one, other) for one, other in found if one[0].agent.args.seed == other[0].agent.args.seed]
    if not found:
        raise UserError("--pairs same-seed: no two of these agents have the same seed; use all")
    return found


def compare(pairs: list[tuple[list[Snapshot], list[Snapshot]]], matchings: tuple[str, ...]) -> list[dict]:
    """The rows of `distances.csv`."""
    rows = []
    for one, other in tqdm(pairs, "comparing", unit="pair", disable=None):
        for steps, a, b in pairs_of(one, other):
            about = {"group_a": a.group, "group_b": b.group}
            for side, x in (("a", a), ("b", b)):
                about |= {f"run_{side}": x.agent.name, f"seed_{side}": x.agent.args.seed, f"step_{side}": x.step}
            found = distance_rows(a, b, matchings)
            rows += [about | {"step": step} | row for step in steps for row in found]
    return rows


def changes(histories: list[list[Snapshot]]) -> list[dict]:
    """The rows of `changes.csv`: how far each agent's filters have moved since its first snapshot."""
    rows = []
    for history in histories:
        for each in history if len(history) > 1 else []:
            about = {"group": each.group, "run": each.agent.name, "seed": each.agent.args.seed, "step": each.step}
            rows += [about | row for row in distance_rows(history[0], each, ("index",))]
    return rows


def over_groups(rows: list[dict]) -> list[dict]:
    """The rows of `summary.csv`: means over all pairs of two groups, and the distances of the closest and farthest."""
    cells: dict[tuple, list[dict]] = {}
    for row in rows:
        key = row["group_a"], row["group_b"], row["step"], *(row[name] for name in ABOUT)
        cells.setdefault(key, []).append(row)
    found = []
    for key, cell in cells.items():
        means = {name: np.mean([row[name] for row in cell]) for name in DISTANCES}
        each = [row["distance_mean"] for row in cell]
        about = dict(zip(("group_a", "group_b", "step", *ABOUT), key, strict=True))
        found.append(about | {"pairs": len(cell)} | means | {"low": min(each), "high": max(each)})
    return found


# ---------------------------------------------------------------------------------------------------------- pictures


def draw_filters(histories: list[list[Snapshot]], learned: bool) -> Figure:
    """First-layer filters of agents at their last step, or what they have `learned` since their first snapshot.

    Filters that match those of the first agent are in the same place.
    """
    groups = list(dict.fromkeys(history[0].group for history in histories))
    of_each = [[history for history in histories if history[0].group == group] for group in groups]
    histories = filter(None, itertools.chain(*itertools.zip_longest(*of_each)))  # one of each group first
    shown = [(history, tower) for history in histories for tower in history[-1].towers][:MOST_TOWERS]
    layers = layers_of(shown[0][0][-1].agent.args.encoder)[:1]
    one, name = shown[0][0][-1].of_tower(shown[0][1]), layers[0].name
    columns = min(len(shown), 4)
    rows = -(-len(shown) // columns)
    tall = on_one_picture(one[name]).shape
    figure = Figure(figsize=(4 * columns, (4 * tall[0] / tall[1] + 0.55) * rows + 0.3), layout="constrained")
    figure.get_layout_engine().set(wspace=0.06, hspace=0.06)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in grid:
        axes.axis("off")
    for axes, (history, tower) in zip(grid, shown, strict=False):
        first, last = (each.of_tower(tower) for each in (history[0], history[-1]))
        order, _ = matched(one, last, layers, "hungarian")[name]
        axes.imshow(
            on_one_picture((last[name] - first[name] if learned else last[name])[order]), interpolation="nearest"
        )
        args = history[-1].agent.args
        about = f"{args.env_id}, seed {args.seed}, {tower}, step {history[-1].step}".replace(", ,", ",")
        axes.set_title("\n".join([*wrapped(history[-1].group, 52), about]), fontsize=8)
    what = "filters, changes since the start" if learned else "filters"
    figure.suptitle(f"{name}: {len(one[name])} {what}, each on its own scale", fontsize=10)
    return figure


def on_one_picture(filters: np.ndarray, columns: int = 8) -> np.ndarray:
    """Filters [F, k, k, C] in one picture, row by row, each with its own scale, grey where it is 0."""
    filters = in_rgb(filters)
    size = np.abs(filters).max(axis=(1, 2, 3), keepdims=True)
    pictures = 0.5 + 0.5 * filters / np.maximum(size, np.finfo(np.float32).tiny)
    border = max(1, filters.shape[1] // 8)
    pictures = np.pad(pictures, ((0, -len(filters) % columns), (0, border), (0, border), (0, 0)), constant_values=1)
    rows = pictures.reshape(-1, columns, *pictures.shape[1:]).transpose(0, 2, 1, 3, 4)
    return rows.reshape(rows.shape[0] * rows.shape[1], -1, 3)[:-border, :-border]


def wrapped(text: str, width: int) -> list[str]:
    """A group's name on several lines, broken after commas."""
    lines = [""]
    for part in text.split(", "):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += (", " if lines[-1] else "") + part
    return lines


def draw_lines(curves: dict[str, dict[str, list[tuple]]], title: str, ylabel: str) -> Figure:
    """A panel for each layer, a line for each label, of points (step, mean, smallest, largest)."""
    columns = min(len(curves), 4)
    rows = -(-len(curves) // columns)
    labels = list(dict.fromkeys(label for lines in curves.values() for label in lines))
    figure = Figure(figsize=(max(3.2 * columns, 6), 2.7 * rows + 0.6 + 0.32 * len(labels)), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True).flatten()
    for axes in grid[len(curves) :]:
        axes.axis("off")
    for axes, (layer, lines) in zip(grid, curves.items(), strict=False):
        for label, points in lines.items():
            step, mean, low, high = zip(*sorted(points), strict=True)
            color = f"C{labels.index(label)}"
            axes.plot(step, mean, color, marker="o", markersize=3, label=label)
            axes.fill_between(step, low, high, color=color, alpha=0.15, linewidth=0)
        axes.set_title(layer, fontsize=9)
        axes.set(ylim=(0, None), xlabel="environment steps of all tasks")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.label.set_size(8)
        axes.tick_params(labelsize=7, labelbottom=True)
        axes.grid(alpha=0.3)
    handles = [figure.axes[0].plot([], [], f"C{i}", marker="o", markersize=3)[0] for i in range(len(labels))]
    figure.legend(handles, labels, loc="outside lower center", fontsize=7)
    figure.suptitle(title, fontsize=10)
    figure.supylabel(ylabel, fontsize=8)
    return figure


def pair_curves(summary: list[dict], matching: str) -> dict[str, dict[str, list[tuple]]]:
    """The points of `draw_lines` for each layer and pair of groups."""
    curves: dict[str, dict[str, list[tuple]]] = {}
    for row in summary:
        if row["matching"] == matching and row["step"] != "last":
            alike = row["group_a"] == row["group_b"]
            label = f"within {row['group_a']}" if alike else f"{row['group_a']}  and  {row['group_b']}"
            point = row["step"], row["distance_mean"], row["low"], row["high"]
            curves.setdefault(row["layer"], {}).setdefault(label, []).append(point)
    return curves


def change_curves(rows: list[dict]) -> dict[str, dict[str, list[tuple]]]:
    """The points of `draw_lines` for each layer and group."""
    cells: dict[tuple, list[float]] = {}
    for row in rows:
        cells.setdefault((row["layer"], row["group"], row["step"]), []).append(row["distance_mean"])
    curves: dict[str, dict[str, list[tuple]]] = {}
    for (layer, group, step), each in cells.items():
        curves.setdefault(layer, {}).setdefault(group, []).append((step, np.mean(each), min(each), max(each)))
    return curves


def table(summary: list[dict]) -> str:
    """A line per pair of groups, layer and matching, for the agents' last steps."""
    lines = [f"{'layer':<14} {'pairs':>5}  {'matching':<10} {'sum':>9} {'mean':>9} {'relative':>9}  groups, last steps"]
    for row in (row for row in summary if row["step"] == "last"):
        one, other = row["group_a"], row["group_b"]
        about = f"{row['layer']:<14} {row['pairs']:>5}  {row['matching']:<10}"
        numbers = f"{row['distance_sum']:>9.4g} {row['distance_mean']:>9.4g} {row['relative']:>9.3f}"
        lines.append(f"{about} {numbers}  " + (f"within {one}" if one == other else f"{one}  and  {other}"))
    return "\n".join(lines)


# -------------------------------------------------------------------------------------------------------------- main


def main(args: Args) -> Path:
    """Compares, prints a table, writes the results and returns their folder."""
    args = args.checked()
    histories = histories_of(snapshots_of(find_runs(args.runs), args))
    rows = compare(chosen_pairs(histories, args.pairs), args.matching)
    summary, moved = over_groups(rows), changes(histories)
    with new_folder(args) as out:
        write_csv(out / "distances.csv", COLUMNS, rows)
        write_csv(out / "summary.csv", GROUP_COLUMNS, summary)
        write_csv(out / "changes.csv", CHANGE_COLUMNS, moved)
        draw_filters(histories, learned=False).savefig(out / "filters.png", dpi=150)
        for matching in args.matching:
            title = f"squared distance of a filter from the other agent's, matched by {matching}"
            over = "mean over filters and pairs; smallest and largest pair"
            draw_lines(pair_curves(summary, matching), title, over).savefig(out / f"distances_{matching}.png", dpi=150)
        if moved:
            draw_filters(histories, learned=True).savefig(out / "learned.png", dpi=150)
            title = "squared distance of a filter from where it began"
            over = "mean over filters and agents; smallest and largest agent"
            draw_lines(change_curves(moved), title, over).savefig(out / "changes.png", dpi=150)
    print(table(summary), f"written to {out}", sep="\n")
    return out


if __name__ == "__main__":
    launch(main, Args)
