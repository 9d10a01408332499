"""How far back does an agent look? Recall density: where in an episode the gradient of its last decision lies.

Run:   python recall_density.py --runs 'runs/NavigatorEasy__*' --episodes 32
Page:  docs/recall_density.md

Paper: Wang et al. 2025, "Investigating Memory in Model-Free RL with POPGym Arcade", https://arxiv.org/abs/2503.01450
Shapes: T steps of a complete episode, n = T - 1 its last step, A actions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from tqdm import tqdm

from popgym_arcade.analysis.agents import Agent, describe
from popgym_arcade.analysis.colors import colors_of
from popgym_arcade.analysis.command_line import PlayArgs, launch, showcase
from popgym_arcade.analysis.groups import GROUP, about_group, groups_of, in_panel, load_all, title_of_panel
from popgym_arcade.analysis.intervals import over_agents
from popgym_arcade.analysis.output import new_folder
from popgym_arcade.analysis.recall import recall_density
from popgym_arcade.analysis.trajectories import record
from popgym_arcade.baselines.limits import NonNegativeInt, PathName, Range
from popgym_arcade.baselines.running.files import write_csv

THIRDS = {"first": (0.0, 0.33), "middle": (0.33, 0.66), "last": (0.66, 1.0)}  # of an episode, as in the paper
MASSES = (*THIRDS, "last_frame")
PARTS = {  # of a bar: labels and colours
    "last_frame": ("last frame", "#3b528b"),
    "last": ("rest of the last third", "#8da0cb"),
    "middle": ("middle third", "#fb8861"),
    "first": ("first third", "#b5367a"),
}
COLUMNS = (
    *GROUP,
    *("agents", "episodes", "episodes_left_out", "length_mean"),
    *(f"{mass}{what}" for mass in MASSES for what in ("", "_low", "_high")),
)
DENSITY_COLUMNS = (*GROUP, "tau_low", "tau_high", "density", "density_low", "density_high")
AGENT_COLUMNS = (
    *("run", "seed", *GROUP, "global_step", "episodes", "episodes_left_out", "length_mean", "return_mean"),
    *("first_frame", *MASSES),
)
EPISODE_COLUMNS = ("run", "seed", "env_id", "partial_obs", "episode", "length", *MASSES)


# --------------------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True)
class Args(PlayArgs):
    runs: tuple[PathName, ...] = showcase(__file__)
    """run folders, or patterns that match some (agents/MineSweeperEasy, which comes with the repository)"""
    episodes: Annotated[int, Range(1, 10_000)] = 16
    """complete episodes for each seed of a run and each twin"""
    seed: NonNegativeInt = 0
    """seed of the episodes"""
    norm: Literal["l1", "l2"] = "l2"
    """norm of a frame's gradient; l2 is the square root of the frame's total saliency"""
    bins: Annotated[int, Range(1, 100)] = 10
    """intervals of normalised time in the density"""


# ---------------------------------------------------------------------------------------------------- recall density


def normalised_time(length: int) -> np.ndarray:
    """tau_t = t / n of an episode's steps, [T]; a single step counts as the last."""
    return np.arange(length) / (length - 1) if length > 1 else np.ones(1)


def density_of(delta: np.ndarray, bins: int) -> np.ndarray:
    """Density [bins] of delta[T] over the episode, in which all steps are equally long; its integral is 1."""
    reached = np.interp(np.linspace(0, 1, bins + 1), np.linspace(0, 1, len(delta) + 1), [0, *np.cumsum(delta)])
    return bins * np.diff(reached)


def masses(delta: np.ndarray) -> dict[str, float]:
    """Mass of delta[T] in [0, .33), [.33, .66) and [.66, 1], and of the last frame alone."""
    found = np.histogram(normalised_time(len(delta)), [0, 0.33, 0.66, 1], weights=delta)[0].tolist()
    return dict(zip(MASSES, [*found, float(delta[-1])], strict=True))


@dataclass(frozen=True)
class Recall:
    """The recall densities of one agent on one twin."""

    agent: Agent  # without a seed axis
    deltas: dict[int, np.ndarray]  # float64 [T], by episode in which something matters to the last decision
    blind: int = 0  # number of the other episodes
    returns: tuple[float, ...] = ()  # of all episodes


def mean_and_interval(recalls: list[Recall], measure: Callable) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean of measure(delta) -> [K] and its 95% interval, see `over_agents`. An agent without episodes is left out."""
    recalls = [recall for recall in recalls if recall.deltas]
    if not recalls:
        size = np.shape(measure(np.ones(1)))
        return (np.full(size, np.nan),) * 3
    return over_agents([np.stack([measure(delta) for delta in recall.deltas.values()]) for recall in recalls])


def row_of(group: str, recalls: list[Recall]) -> dict:
    """A group's row of `recall_density.csv`."""
    mean, low, high = mean_and_interval(recalls, lambda delta: np.array(list(masses(delta).values())))
    lengths = [len(delta) for recall in recalls for delta in recall.deltas.values()]
    row = about_group(group, recalls[0].agent)
    blind, agents = sum(recall.blind for recall in recalls), sum(bool(recall.deltas) for recall in recalls)
    row |= {"agents": agents, "episodes": len(lengths), "episodes_left_out": blind}
    row |= {"length_mean": np.mean(lengths) if lengths else np.nan}
    for i, mass in enumerate(MASSES):
        row |= {mass: mean[i], f"{mass}_low": low[i], f"{mass}_high": high[i]}
    return row


def density_rows_of(group: str, recalls: list[Recall], bins: int) -> list[dict]:
    """A group's rows of `density.csv`: the mean density over normalised time, whose integral is 1."""
    edges = np.linspace(0, 1, bins + 1)
    density = mean_and_interval(recalls, lambda delta: density_of(delta, bins))
    about = about_group(group, recalls[0].agent)
    names = "tau_low", "tau_high", "density", "density_low", "density_high"
    columns = zip(edges[:-1], edges[1:], *density, strict=True)
    return [about | dict(zip(names, numbers, strict=True)) for numbers in columns]


def agent_row_of(group: str, recall: Recall) -> dict:
    """An agent's row of `agents.csv`: means over its episodes; the return is the mean over all of them."""
    deltas = recall.deltas.values()
    found = [{"length_mean": len(delta), "first_frame": delta[0]} | masses(delta) for delta in deltas]
    names = ("length_mean", "first_frame", *MASSES)
    row = {name: np.mean([each[name] for each in found]) if found else np.nan for name in names}
    row |= {"return_mean": np.mean(recall.returns), "episodes": len(found), "episodes_left_out": recall.blind}
    about = describe(recall.agent) | {"group": group, "seed": recall.agent.args.seed}
    return {name: row[name] if name in row else about[name] for name in AGENT_COLUMNS}


def episode_rows_of(recall: Recall) -> list[dict]:
    """An agent's rows of `episodes.csv`."""
    about = {name: value for name, value in describe(recall.agent).items() if name in EPISODE_COLUMNS}
    about |= {"seed": recall.agent.args.seed}
    return [about | {"episode": k, "length": len(delta)} | masses(delta) for k, delta in recall.deltas.items()]


# ---------------------------------------------------------------------------------------------------------- pictures


def draw(rows: list[dict], densities: list[list[dict]]) -> Figure:
    """A row for each environment and twin: where the gradient of each of its groups lies, as bars and as densities."""
    panels: dict[str, list[tuple[dict, list[dict]]]] = {}
    for row, density in zip(rows, densities, strict=True):
        panels.setdefault(title_of_panel(row), []).append((row, density))
    colours = colors_of(list(dict.fromkeys(in_panel(row) for row in rows)))
    heights = [max(2.2, 0.9 + 0.4 * len(found)) for found in panels.values()]
    figure = Figure(figsize=(8, sum(heights) + 0.6), layout="constrained")
    grid = figure.subplots(len(panels), 2, squeeze=False, sharex="col", height_ratios=heights)
    for (bars, curves), (title, found) in zip(grid, panels.items(), strict=True):
        bars.set_title(title, loc="left", fontsize=10)
        draw_parts(bars, [row for row, _ in found])
        draw_densities(curves, found, colours)
    grid[-1, 0].set_xlabel("share of the gradient")
    grid[-1, 1].set_xlabel("time of the frame (0 first, 1 last)")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9)
    lines = [Line2D([], [], color=colour, marker=".") for colour in colours.values()]
    grid[0, 1].legend(lines, colours, loc="upper left", fontsize=8)
    return figure


def draw_parts(axes: Any, rows: list[dict]) -> None:
    """A bar of length 1 for each group, divided into the three parts of the episode and its last frame."""
    left = np.zeros(len(rows))
    for part, (label, colour) in PARTS.items():
        shares = np.array([row[part] for row in rows])
        shares -= np.array([row["last_frame"] for row in rows]) if part == "last" else 0
        axes.barh(range(len(rows)), shares, 0.6, left=left, color=colour, label=label)
        left += shares
    axes.set_yticks(range(len(rows)), [in_panel(row).replace(", ", ",\n", 1) for row in rows], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)


def draw_densities(axes: Any, found: list[tuple[dict, list[dict]]], colours: dict[str, str]) -> None:
    """A line with its interval for each group, given as its row and its density. Densities of 0 are not drawn."""
    for row, density in found:
        middle = [(part["tau_low"] + part["tau_high"]) / 2 for part in density]
        low, mean, high = ([part[name] for part in density] for name in ("density_low", "density", "density_high"))
        colour = colours[in_panel(row)]
        axes.plot(middle, mean, color=colour, marker=".")
        axes.fill_between(middle, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.axhline(1, color="gray", linestyle=":", linewidth=1)
    axes.set(yscale="log", ylabel="recall density", xlim=(0, 1), ylim=(1e-3, 20))
    axes.grid(alpha=0.3)


# -------------------------------------------------------------------------------------------------------------- main


def measure(agents: list[Agent], args: Args) -> list[Recall]:
    """The recall densities of every agent."""
    recalls = []
    with tqdm(total=len(agents) * args.episodes, unit="episode", disable=None) as bar:
        for agent in agents:
            deltas, returns = [], []
            for trajectory in record(agent, jax.random.key(args.seed), args.episodes):
                deltas.append(recall_density(agent, trajectory, args.norm))
                returns.append(float(trajectory.reward.sum()))
                bar.update()
            known = {k: delta for k, delta in enumerate(deltas) if not np.isnan(delta).any()}
            recalls.append(Recall(agent, known, len(deltas) - len(known), tuple(returns)))
    return recalls


def filled_up(recall: Recall) -> np.ndarray:
    """The densities as one array [episodes, steps], NaN after the end of an episode."""
    deltas = recall.deltas.values()
    longest = max(map(len, deltas), default=0)
    ends = [np.pad(delta, (0, longest - len(delta)), constant_values=np.nan) for delta in deltas]
    return np.stack(ends) if ends else np.empty((0, 0))


def write(out: Path, recalls: list[Recall], bins: int) -> list[dict]:
    """Writes tables, picture and the densities themselves, and returns the rows of the groups."""
    positions = groups_of([recall.agent for recall in recalls])
    groups = {label: [recalls[position] for position in group] for label, group in positions.items()}
    rows = [row_of(label, group) for label, group in groups.items()]
    densities = [density_rows_of(label, group, bins) for label, group in groups.items()]
    write_csv(out / "recall_density.csv", COLUMNS, rows)
    write_csv(out / "density.csv", DENSITY_COLUMNS, sum(densities, []))
    agents = [agent_row_of(label, recall) for label, group in groups.items() for recall in group]
    write_csv(out / "agents.csv", AGENT_COLUMNS, agents)
    write_csv(out / "episodes.csv", EPISODE_COLUMNS, sum(map(episode_rows_of, recalls), []))
    names = [f"{one.agent.name}__seed_{one.agent.args.seed}__{one.agent.twin}" for one in recalls]
    np.savez_compressed(out / "deltas.npz", **dict(zip(names, map(filled_up, recalls), strict=True)))
    draw(rows, densities).savefig(out / "recall_density.png", dpi=150)
    return rows


def table(rows: list[dict]) -> str:
    """A line per group: its masses with intervals over its agents, or over the episodes of a single one."""
    width = max(len(row["group"]) for row in rows)
    heads = "".join(f"{mass.replace('_', ' '):>22}" for mass in MASSES)
    lines = [f"{'':<{width}} {'agents':>6} {'episodes':>8}{heads}"]
    for row in rows:
        cells = [f"{row[mass]:.3f} ({row[f'{mass}_low']:.3f}, {row[f'{mass}_high']:.3f})" for mass in MASSES]
        numbers = f"{row['agents']:>6} {row['episodes']:>8}"
        lines.append(f"{row['group']:<{width}} {numbers}" + "".join(f"{cell:>22}" for cell in cells))
    return "\n".join(lines)


def main(args: Args) -> Path:
    """Plays, measures, prints a table, writes the results and returns their folder."""
    args = args.checked()
    agents = load_all(args)
    with new_folder(args) as out:
        rows = write(out, measure(agents, args), args.bins)
    print(table(rows), f"written to {out}", sep="\n")
    return out


if __name__ == "__main__":
    launch(main, Args)
