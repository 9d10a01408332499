"""How far back does an agent need to look? Its return with only the last k frames, and how far its gradients reach.

Run:   python last_frames.py --runs 'runs/MineSweeperEasy__*' --frames 1 2 4 8
Page:  docs/last_frames.md

At every step, the memory is cleared, reads the last k observations of the episode, and decides. How much the agent
looks at these frames is their share of the gradient of its last decision (see recall_density.py).

Shapes: T steps, E episodes, K = k - 1 frames before the current one.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from tqdm import tqdm

from popgym_arcade.analysis.agents import Agent, describe
from popgym_arcade.analysis.colors import colors_of
from popgym_arcade.analysis.command_line import PlayArgs, launch, showcase
from popgym_arcade.analysis.groups import GROUP, about_group, groups_of, in_panel, load_all, title_of_panel
from popgym_arcade.analysis.intervals import over_agents, ratio_over_agents
from popgym_arcade.analysis.networks import other_inputs
from popgym_arcade.analysis.output import new_folder
from popgym_arcade.analysis.recall import recall_density
from popgym_arcade.analysis.trajectories import record
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import NonNegativeInt, PathName, Range
from popgym_arcade.baselines.running.evaluation import make_evaluate
from popgym_arcade.baselines.running.files import write_csv
from popgym_arcade.baselines.scripts import script_of

MEASURES = ("mean_return", "kept", "looked_at")
COLUMNS = (
    *GROUP,
    *("frames", "agents", "episodes"),
    *(f"{measure}{what}" for measure in MEASURES for what in ("", "_low", "_high")),
    *("looked_at_agents", "random_return"),
)
AGENT_COLUMNS = (
    *("run", "seed", *GROUP, "global_step", "frames", "episodes"),
    *(*MEASURES, "random_return"),
)
MOST_FRAMES = 1_000
ALL = "all"  # in the column `frames`: the agent as it is


# --------------------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True)
class Args(PlayArgs):
    runs: tuple[PathName, ...] = showcase(__file__)
    """run folders, or patterns that match some (agents/MineSweeperEasy, which comes with the repository)"""
    frames: tuple[int, ...] = (1, 2, 4, 8)
    """numbers of frames to give an agent at every step"""
    episodes: Annotated[int, Range(1, 10_000)] = 64
    """episodes for each seed of a run, each twin and each number of frames"""
    traced: Annotated[int, Range(1, 10_000)] = 16
    """number of these episodes, from the first on, whose gradients are computed; at most all"""
    seed: NonNegativeInt = 0
    """seed of the episodes"""

    def check(self) -> None:
        if not (self.frames and all(1 <= frames <= MOST_FRAMES for frames in self.frames)):
            raise UserError(f"--frames {' '.join(map(str, self.frames))}: use numbers from 1 to {MOST_FRAMES}")
        self.check_distinct("frames")


# ------------------------------------------------------------------------------------------------------- last frames


@struct.dataclass
class Window:
    """What an agent's network read in the K steps before the current one, [K, E, ...]."""

    obs: jax.Array
    others: tuple  # `other_inputs` of its script

    def after(self, obs: jax.Array, others: tuple) -> "Window":
        """The window of the next step: without its first entry, with the inputs [E, ...] of the current step."""
        push = lambda x, new: jnp.concatenate([x, new[None]])[1:]
        return Window(push(self.obs, obs), jax.tree.map(push, self.others, others))


@struct.dataclass
class WindowedActor:
    """A script's actor and what it has seen in the last steps."""

    actor: Any
    window: Window

    @property
    def episode(self) -> Any:
        """The actor's, which an evaluation counts."""
        return self.actor.episode


def with_last_frames(script: ModuleType, args: Any, frames: int) -> tuple[Callable, Callable]:
    """`begin` and `act` like those of `script.make_actor`, of an agent that only knows the last `frames` frames.

    With each frame it reads the action before it, as always, and it forgets earlier episodes, as always.
    """
    network, begin, act = script.make_actor(args)
    names = other_inputs(script)

    def inputs_of(actor: Any) -> tuple[jax.Array, tuple]:
        return actor.obs, tuple(getattr(actor, name) for name in names)

    def begin_windowed(key: jax.Array, num_envs: int) -> WindowedActor:
        actor = begin(key, num_envs)
        empty = lambda x: jnp.zeros((frames - 1, *x.shape), x.dtype)
        return WindowedActor(actor, Window(*jax.tree.map(empty, inputs_of(actor))))

    def act_windowed(params, windowed: WindowedActor, policy) -> tuple[WindowedActor, Any, dict]:
        actor, window = windowed.actor, windowed.window
        after = window.after(*inputs_of(actor))
        carry = script.initial_carry(network, len(actor.start))
        if frames > 1:
            carry, _ = script.forward(network, params, carry, window.obs, *window.others)
        actor, transition, info = act(params, actor.replace(carry=carry), policy)
        return WindowedActor(actor, after), transition, info

    return begin_windowed, act_windowed


@functools.lru_cache
def return_program(args: Any, frames: int | None):
    """returns(params, key, policy) -> [E], of `args.eval_episodes` episodes with the last `frames` frames, or all."""
    script = script_of(args)
    begin, act = script.make_actor(args)[1:] if frames is None else with_last_frames(script, args, frames)
    evaluate = make_evaluate(args, begin, act)
    return jax.jit(lambda params, key, policy: evaluate(params, key, policy).returns)


def returns_of(agent: Agent, frames: int | None, seed: int, policy: str = "greedy") -> np.ndarray:
    """Returns float64 [E] of an agent, without a seed axis, that is given the last `frames` frames (None: all)."""
    program = return_program(dataclasses.replace(agent.args, seed=0), frames)
    return np.asarray(program(agent.params, jax.random.key(seed), agent.script.POLICIES[policy]), float)


def mass_on_last(frames: int | None, deltas: list[np.ndarray]) -> np.ndarray:
    """The mass of each recall density on the last `frames` frames (None: all)."""
    return np.array([delta[-frames:].sum() if frames else delta.sum() for delta in deltas])


@dataclass(frozen=True)
class Measured:
    """One agent on one twin. Keys are numbers of frames, and "all"."""

    agent: Agent  # without a seed axis
    random_returns: np.ndarray  # [E], of the random policy
    returns: dict[int | str, np.ndarray]  # [E], from the same initial states
    looked_at: dict[int | str, np.ndarray]  # of each traced episode: share of the gradient of its last decision

    def earned(self, frames: int | str) -> np.ndarray:
        """What the agent earns above the random policy in each episode, [E]."""
        return self.returns[frames] - self.random_returns


def measure(agent: Agent, args: Args) -> Measured:
    """Plays `args.episodes` episodes with each number of frames, and traces the first `args.traced` with all frames.

    Episodes in which no frame affects the last decision are left out of `looked_at`.
    """
    agent = dataclasses.replace(agent, args=dataclasses.replace(agent.args, eval_episodes=args.episodes))
    played = record(agent, jax.random.key(args.seed), min(args.traced, args.episodes))
    deltas = [recall_density(agent, trajectory) for trajectory in played]
    deltas = [delta for delta in deltas if not np.isnan(delta).any()]
    given = {frames: frames for frames in args.frames} | {ALL: None}
    return Measured(
        agent=agent,
        random_returns=returns_of(agent, None, args.seed, "random"),
        returns={name: returns_of(agent, frames, args.seed) for name, frames in given.items()},
        looked_at={name: mass_on_last(frames, deltas) for name, frames in given.items()},
    )


def mean_and_interval(each: list[np.ndarray]) -> tuple[float, float, float]:
    """The mean and 95% interval of `over_agents`. Agents without a value are left out."""
    each = [values for values in each if values.size]
    return tuple(map(float, over_agents(each))) if each else (np.nan,) * 3


def share_kept(found: list[Measured], frames: int | str) -> tuple[float, float, float]:
    """How much of what agents earn above the random policy they keep with the last `frames` frames, and its interval.

    NaN if they earn no more than the random policy.
    """
    parts, wholes = ([one.earned(given) for one in found] for given in (frames, ALL))
    return ratio_over_agents(parts, wholes)


def rows_of(group: str, found: list[Measured]) -> list[dict]:
    """A group's rows of `last_frames.csv`, one for each number of frames."""
    about = about_group(group, found[0].agent) | {"agents": len(found)}
    about |= {"episodes": sum(one.returns[ALL].size for one in found)}
    about |= {"looked_at_agents": sum(one.looked_at[ALL].size > 0 for one in found)}
    about |= {"random_return": np.mean([one.random_returns.mean() for one in found])}
    rows = []
    for frames in found[0].returns:
        mean_return = mean_and_interval([one.returns[frames] for one in found])
        looked_at = mean_and_interval([one.looked_at[frames] for one in found])
        row = about | {"frames": frames}
        for name, values in zip(MEASURES, (mean_return, share_kept(found, frames), looked_at), strict=True):
            row |= {f"{name}{what}": value for what, value in zip(("", "_low", "_high"), values, strict=True)}
        rows.append(row)
    return rows


def agent_rows_of(group: str, one: Measured) -> list[dict]:
    """An agent's rows of `agents.csv`, with means over its episodes."""
    about = describe(one.agent) | {"group": group, "seed": one.agent.args.seed}
    about = {name: value for name, value in about.items() if name in AGENT_COLUMNS}
    about |= {"episodes": one.returns[ALL].size, "random_return": one.random_returns.mean()}
    rows = []
    for frames, returns in one.returns.items():
        looked_at = one.looked_at[frames].mean() if one.looked_at[frames].size else np.nan
        values = returns.mean(), share_kept([one], frames)[0], looked_at
        rows.append(about | {"frames": frames} | dict(zip(MEASURES, values, strict=True)))
    return rows


# ---------------------------------------------------------------------------------------------------------- pictures


def draw(rows: dict[str, list[dict]]) -> Figure:
    """A row for each environment and twin: returns by frames given, and the shares of return and gradient."""
    panels: dict[str, list[list[dict]]] = {}
    for group in rows.values():
        panels.setdefault(title_of_panel(group[0]), []).append(group)
    colours = colors_of(list(dict.fromkeys(in_panel(group[0]) for group in rows.values())))
    figure = Figure(figsize=(9, 2.6 * len(panels) + 0.7), layout="constrained")
    grid = figure.subplots(len(panels), 2, squeeze=False)
    for (left, right), (title, groups) in zip(grid, panels.items(), strict=True):
        left.set_title(title, loc="left", fontsize=10)
        for group in groups:
            colour = colours[in_panel(group[0])]
            draw_line(left, group, "mean_return", color=colour)
            draw_line(right, group, "kept", color=colour)
            draw_line(right, group, "looked_at", color=colour, linestyle="--")
        left.axhline(groups[0][0]["random_return"], color="gray", linestyle=":", linewidth=1)
        left.set(ylabel="return")
        right.set(ylabel="share")
    for axes in grid[-1]:
        axes.set_xlabel("last frames given")
    lines = {name: Line2D([], [], color=colour, marker=".") for name, colour in colours.items()}
    lines["share of the return that is kept"] = Line2D([], [], color="black")
    lines["share of the gradient on these frames"] = Line2D([], [], color="black", linestyle="--")
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=2, fontsize=9)
    return figure


def draw_line(axes: Any, group: list[dict], what: str, **style) -> None:
    """A column of a group's rows over the number of frames, with its interval."""
    places = range(len(group))
    axes.plot(places, [row[what] for row in group], marker=".", **style)
    bounds = ([row[f"{what}_{bound}"] for row in group] for bound in ("low", "high"))
    axes.fill_between(places, *bounds, color=style["color"], alpha=0.15, linewidth=0)
    axes.set_xticks(places, [str(row["frames"]) for row in group])
    axes.grid(alpha=0.3)


# -------------------------------------------------------------------------------------------------------------- main


def table(rows: dict[str, list[dict]]) -> str:
    """A line for each group and number of frames: means with intervals."""
    width = max(map(len, rows))
    lines = [f"{'':<{width}} {'frames':>6} {'agents':>6}{'return':>26}{'kept':>26}{'looked at':>26}"]
    for group, found in rows.items():
        for row in found:
            cells = [f"{row[what]:.3f} ({row[f'{what}_low']:.3f}, {row[f'{what}_high']:.3f})" for what in MEASURES]
            about = f"{group:<{width}} {row['frames']:>6} {row['agents']:>6}"
            lines.append(about + "".join(f"{cell:>26}" for cell in cells))
    return "\n".join(lines)


def left_out(rows: dict[str, list[dict]]) -> list[str]:
    """A line for each group without a share that is kept, and for each in which some agents look at no frame."""
    lines = []
    for group, (row, *_) in rows.items():
        blind = row["agents"] - row["looked_at_agents"]
        if np.isnan(row["kept"]):
            lines.append(f"{group}: no share is kept, because these agents earn no more than the random policy")
        if blind:
            lines.append(f"{group}: {blind} of {row['agents']} agents left out of looked at: no frame affects them")
    return lines


def load_with_memory(args: Args) -> list[Agent]:
    """Every seed of the agents. Raises UserError for one without a memory."""
    agents = load_all(args)
    for agent in agents:
        if getattr(agent.saved, "memory", "none") == "none":
            raise UserError(
                f"--runs {agent.name}: this agent only knows the last frame, as it has no memory: leave it out"
            )
    return agents


def main(args: Args) -> Path:
    """Plays, measures, prints a table, writes the results and returns their folder."""
    args = args.checked()
    agents = load_with_memory(args)
    with new_folder(args) as out:
        found = [measure(agent, args) for agent in tqdm(agents, "measuring", unit="agent", disable=None)]
        groups = {name: [found[i] for i in positions] for name, positions in groups_of(agents).items()}
        rows = {name: rows_of(name, group) for name, group in groups.items()}
        write_csv(out / "last_frames.csv", COLUMNS, sum(rows.values(), []))
        each = [row for name, group in groups.items() for one in group for row in agent_rows_of(name, one)]
        write_csv(out / "agents.csv", AGENT_COLUMNS, each)
        draw(rows).savefig(out / "last_frames.png", dpi=150)
    print(table(rows), *left_out(rows), f"written to {out}", sep="\n")
    return out


if __name__ == "__main__":
    launch(main, Args)
