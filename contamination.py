"""What does one bad frame do to an agent, and for how long? Noise on one frame, or the first frames in another order.

Run:   python contamination.py --runs 'runs/CartPoleEasy__pomdp__*' --sigma 0.1 0.3 1.0 --at 5
Page:  docs/contamination.md

The agent's own episodes are replayed with its own actions. Only what the network sees is changed, and its outputs are
compared with those of the unchanged replay, step by step after the change.

Paper: Wang et al. 2025, "Investigating Memory in Model-Free RL with POPGym Arcade", https://arxiv.org/abs/2503.01450
Shapes: T steps, P before the change, C changed, L from the last changed step on (T = P + C + L - 1); B episodes, V
versions (the first unchanged), A actions.
"""

import dataclasses
import functools
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from tqdm import tqdm

from popgym_arcade.analysis.agents import Agent
from popgym_arcade.analysis.colors import colors_of
from popgym_arcade.analysis.command_line import PlayArgs, launch, showcase
from popgym_arcade.analysis.groups import GROUP, about_group, groups_of, in_panel, label, load_all, title_of_panel
from popgym_arcade.analysis.intervals import interval
from popgym_arcade.analysis.networks import other_inputs, relative_scores, scores_name
from popgym_arcade.analysis.output import new_folder
from popgym_arcade.analysis.trajectories import Trajectory, observations, record
from popgym_arcade.baselines.environment import is_arcade, make_env
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import NonNegativeInt, PathName, Range
from popgym_arcade.baselines.running.files import write_csv
from popgym_arcade.baselines.running.pictures import in_rgb
from popgym_arcade.baselines.scripts import script_of

MEASURES = {
    "relative_values": "relative change of Q − mean Q",
    "kl": "KL(unchanged policy || changed)",
    "flips": "greedy actions changed",
}
COLUMNS = (
    *GROUP,
    *("kind", "strength", "lag", "agents", "episodes"),
    *(f"{measure}{what}" for measure in MEASURES for what in ("", "_low", "_high")),
)
SUMMARY_COLUMNS = (
    *(*GROUP, "kind", "strength", "measure"),
    *("at_once", "one_step_later", "largest", "largest_lag", "half_life"),
)
MOST_FRAMES = 10  # in a picture
MANY = 6  # most groups for which a picture shows every strength


# --------------------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True)
class Args(PlayArgs):
    runs: tuple[PathName, ...] = showcase(__file__)
    """run folders, or patterns that match some (agents/MineSweeperEasy, which comes with the repository)"""
    kind: tuple[Literal["noise", "permutation"], ...] = ("noise", "permutation")
    """noise on one frame, and/or the first frames in another order"""
    episodes: Annotated[int, Range(1, 10_000)] = 32
    """episodes for each seed of a run and each twin; those that end before the change do not count"""
    seed: NonNegativeInt = 0
    """seed of the episodes, the noise and the orders"""
    sigma: tuple[float, ...] = (0.1, 0.3, 1.0)
    """noise: standard deviations, in units of a frame's range or, for other observations, of each number's deviation"""
    at: Annotated[int, Range(0, 1_000)] = 5
    """noise: step whose frame is changed"""
    first: Annotated[int, Range(2, 1_000)] = 10
    """permutation: how many of the first frames are shuffled"""
    steps: Annotated[int, Range(1, 10_000)] = 50
    """steps after the change for which its effects are followed"""

    def check(self) -> None:
        if not (self.sigma and all(0 < sigma < 100 for sigma in self.sigma)):
            raise UserError(f"--sigma {' '.join(map(str, self.sigma))}: use numbers above 0 and below 100")
        if not self.kind:
            raise UserError("--kind: use noise, permutation, or both")
        self.check_distinct("kind", "sigma")


# ----------------------------------------------------------------------------------------------------- contamination


@dataclass(frozen=True)
class Contamination:
    """What a change did to one agent."""

    agent: Agent  # without a seed axis
    kind: str  # noise or permutation
    strengths: tuple[float, ...]  # of each changed version: sigma, or the number of frames shuffled
    effects: dict[str, np.ndarray]  # measure -> [V - 1, L, B], NaN after the end of an episode and where undefined
    shown: np.ndarray  # [V, frames, ...], what was seen in the first episode while the versions differed


def noisy(frame: np.ndarray, sigmas: tuple[float, ...], unit: Any, rng: np.random.Generator) -> np.ndarray:
    """[V, B, ...]: what was seen in one step, frame[B, ...], unchanged and with Gaussian noise of sigma * unit.

    Every strength has the same noise, only scaled. uint8 frames stay within 0 to 255; anything else becomes float32.
    """
    noise = rng.standard_normal(frame.shape)
    changed = np.stack([frame + sigma * unit * noise for sigma in (0, *sigmas)])
    return np.rint(changed).clip(0, 255).astype(np.uint8) if frame.dtype == np.uint8 else changed.astype(np.float32)


def shuffled(obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[2, C, B, ...]: obs[C, B, ...], unchanged and in another order in each episode."""
    versions, same = np.stack([obs] * 2), np.arange(len(obs))
    for episode in range(obs.shape[1]):
        order = rng.permutation(len(obs))
        while (order == same).all():
            order = rng.permutation(len(obs))
        versions[1, :, episode] = obs[order, episode]
    return versions


@functools.lru_cache
def replay_program(args: Any):
    """replay(params, before, versions[V, C, B, ...], after, *others, each [T, B]) -> outputs [L, V, B, A].

    The outputs begin with the last changed step. `before` and `after` are the states (or observations) of the steps
    before and after the changed ones, [P, B, ...] and [T - P - C, B, ...]. They are the same for all versions, so they
    are read once; only the memories differ.
    """
    script = script_of(args)
    network, _, _ = script.make_actor(args)
    env, _ = make_env(args)

    def replay(params, before, versions, after, *others):
        first, changed = len(jax.tree.leaves(before)[0]), versions.shape[1]
        others_before, others_changed, others_after = (tuple(x[part] for x in others) for part in parts(first, changed))

        def read(carry, now):
            """One step that all versions share, with one memory."""
            seen, *rest = now
            obs = jax.vmap(env.get_obs)(seen) if is_arcade(args) else seen
            return script.forward(network, params, carry, obs[None], *(x[None] for x in rest))

        def read_all(carry, now):
            """The same step with a memory for each version."""
            carry, output = jax.vmap(lambda carry: read(carry, now), axis_size=len(versions))(carry)
            return carry, jax.vmap(last_of)(output)

        carry = script.initial_carry(network, versions.shape[2])
        carry, _ = jax.lax.scan(lambda carry, now: (read(carry, now)[0], None), carry, (before, *others_before))
        carry, output = jax.vmap(lambda obs: script.forward(network, params, carry, obs, *others_changed))(versions)
        at_once = jax.vmap(last_of)(output)
        _, later = jax.lax.scan(read_all, carry, (after, *others_after))
        return jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), at_once, later)

    return jax.jit(replay)


def parts(first: int, changed: int) -> tuple[slice, slice, slice]:
    """The steps before the change, the changed ones, and those after."""
    return slice(first), slice(first, first + changed), slice(first + changed, None)


def last_of(output: Any) -> dict[str, jax.Array]:
    """The `relative_scores` [B, A] at the last step of an output [T, B, A], and a mean's log_std [B, A]."""
    name, scores = scores_name(output), relative_scores(output)[-1]
    spread = {"log_std": jnp.broadcast_to(output.log_std, scores.shape)} if name == "mean" else {}
    return {name: scores} | spread


def effects_of(output: dict[str, np.ndarray], lasts: np.ndarray) -> dict[str, np.ndarray]:
    """Each of MEASURES, [V - 1, L, B], for outputs [L, V, B, A]; NaN where it is undefined, and where not lasts[L, B].

    The change of relative values, Q minus its mean over actions, is the L2 norm of the difference (Wang et al. 2025),
    divided by the mean norm of the unchanged ones: every seed learns Q from rewards on a scale of its own. KL is
    that of the policy, for a continuous one between normal distributions of equal width.
    """
    output = {name: np.moveaxis(np.asarray(x, float), 1, 0) for name, x in output.items()}  # [V, L, B, A]
    name, x = next((name, x) for name, x in output.items() if name != "log_std")
    effects = dict.fromkeys(MEASURES, np.full((len(x) - 1, *x.shape[1:3]), np.nan))
    if name != "mean":
        effects["flips"] = (x[1:].argmax(axis=-1) != x[0].argmax(axis=-1)).astype(float)
    if name == "q":
        size, change = np.linalg.norm(x[0], axis=-1)[lasts].mean(), np.linalg.norm(x[1:] - x[0], axis=-1)
        effects["relative_values"] = change / (size or 1)  # the size is 0 if all actions always have the same value
    elif name == "logits":
        log_policy = x - np.logaddexp.reduce(x, axis=-1, keepdims=True)
        effects["kl"] = (np.exp(log_policy[0]) * (log_policy[0] - log_policy[1:])).sum(axis=-1)
    else:
        effects["kl"] = (np.square(x[1:] - x[0]) / (2 * np.exp(2 * output["log_std"][0]))).sum(axis=-1)
    return {name: np.where(lasts, values, np.nan) for name, values in effects.items()}


def stacked(trajectories: list[Trajectory], name: str, steps: int) -> Any:
    """One field of several episodes as [steps, B, ...]; shorter ones repeat their last value."""

    def one(x):
        return np.concatenate([x[:steps], np.repeat(x[-1:], max(0, steps - len(x)), axis=0)])

    fields = [jax.tree.map(one, getattr(trajectory, name)) for trajectory in trajectories]
    return jax.tree.map(lambda *parts: np.stack(parts, axis=1), *fields)


def reaching(trajectories: list[Trajectory], kind: str, args: Args) -> list[Trajectory]:
    """The episodes that last until the change."""
    return [trajectory for trajectory in trajectories if len(trajectory) >= changed_steps(kind, args).stop]


def changed_steps(kind: str, args: Args) -> range:
    """The steps whose frames are changed."""
    return range(args.at, args.at + 1) if kind == "noise" else range(args.first)


def contaminate(agent: Agent, trajectories: list[Trajectory], kind: str, args: Args) -> Contamination:
    """Replays episodes that last until the change, once unchanged and once for each change.

    Raises:
        UserError: if what the agent sees never changes, so that noise has no unit
    """
    changed = changed_steps(kind, args)
    steps = min(changed.stop + args.steps, max(map(len, trajectories)))
    rng = np.random.default_rng([args.seed, ("noise", "permutation").index(kind)])
    seen = stacked(trajectories, "state" if is_arcade(agent.args) else "obs", steps)
    of_change = [cut(trajectory, changed) for trajectory in trajectories]
    obs = np.stack([observations(agent, trajectory) for trajectory in of_change], axis=1)  # [C, B, ...]
    if kind == "noise":
        versions = noisy(obs[0], args.sigma, unit_of(agent, trajectories), rng)[:, None]
    else:
        versions = shuffled(obs, rng)
    before, _, after = (jax.tree.map(lambda x, part=part: x[part], seen) for part in parts(changed.start, len(changed)))
    others = (stacked(trajectories, name, steps) for name in other_inputs(agent.script))
    replay = replay_program(dataclasses.replace(agent.args, seed=0))
    lengths = np.array([len(trajectory) for trajectory in trajectories])
    lasts = np.arange(changed.stop - 1, steps)[:, None] < lengths  # [L, B], from the last changed step on
    effects = effects_of(replay(agent.params, before, versions, after, *others), lasts)
    strengths = args.sigma if kind == "noise" else (float(args.first),)
    return Contamination(agent, kind, strengths, effects, versions[:, :MOST_FRAMES, 0].copy())


def cut(trajectory: Trajectory, steps: range) -> Trajectory:
    """Some steps of a trajectory, with what `observations` needs of them."""
    part = slice(steps.start, steps.stop)
    obs = None if trajectory.obs is None else trajectory.obs[part]
    return dataclasses.replace(trajectory, state=jax.tree.map(lambda x: x[part], trajectory.state), obs=obs)


def unit_of(agent: Agent, trajectories: list[Trajectory]) -> Any:
    """The size of noise with sigma 1: the whole range of a frame, or the standard deviation of each number.

    Raises:
        UserError: if no number ever changes
    """
    if trajectories[0].obs is None or trajectories[0].obs.dtype == np.uint8:
        return 255.0
    unit = np.concatenate([trajectory.obs for trajectory in trajectories]).astype(float).std(axis=0)
    if not unit.any():
        raise UserError(f"--kind noise: what {agent.name} sees never changes")
    return unit


def curve(group: list[Contamination], measure: str, version: int) -> dict[str, np.ndarray]:
    """Mean, low and high [L] of an effect, over agents or a single one's episodes, and the number of episodes left."""
    lags = max(each.effects[measure].shape[1] for each in group)

    def filled_up(values):  # [L', B] -> [L, B]
        return np.concatenate([values, np.full((lags - len(values), values.shape[1]), np.nan)])

    each = [filled_up(one.effects[measure][version]) for one in group]
    counts = np.sum([(~np.isnan(values)).sum(axis=1) for values in each], axis=0)
    units = each[0] if len(each) == 1 else np.stack([mean_known(values) for values in each], axis=1)  # [L, agents]
    bounds = [interval(known) if (known := row[~np.isnan(row)]).size else (np.nan, np.nan) for row in units]
    low, high = np.transpose(bounds)
    return {"mean": mean_known(units), "low": low, "high": high, "episodes": counts}


def mean_known(values: np.ndarray) -> np.ndarray:
    """Mean over the last axis, ignoring NaN, [L, B] -> [L]; NaN where everything is NaN."""
    known = ~np.isnan(values)
    total = np.where(known, values, 0).sum(axis=-1)
    return np.where(known.any(axis=-1), total / np.maximum(known.sum(axis=-1), 1), np.nan)


def half_life(means: np.ndarray) -> int | None:
    """Steps after the change until an effect means[L] stays at or below half of the largest it has after that frame.

    The effect on the changed frame itself does not count, because no memory is needed for it. 0 if there is no later
    effect, None if it never falls that far.
    """
    later = means[1:]
    if not later.any():
        return 0
    above = np.flatnonzero(later > later.max() / 2)
    return int(above[-1]) + 2 if above[-1] + 1 < len(later) else None


def followed(steps: list[dict]) -> list[dict]:
    """Rows of one strength, step after step, while at least half of the episodes last."""
    return [row for row in steps if 2 * row["episodes"] >= steps[0]["episodes"]]


# ----------------------------------------------------------------------------------------------- tables and pictures


def rows_of(name: str, group: list[Contamination]) -> list[dict]:
    """A group's rows of `contamination.csv`: one for each strength and step since the change."""
    rows, about = [], about_group(name, group[0].agent) | {"kind": group[0].kind, "agents": len(group)}
    for version, strength in enumerate(group[0].strengths):
        curves = {measure: curve(group, measure, version) for measure in MEASURES}
        episodes = np.max([each["episodes"] for each in curves.values()], axis=0)
        for lag, count in enumerate(episodes):
            row = about | {"strength": strength, "lag": lag, "episodes": int(count)}
            for measure, each in curves.items():
                row |= {measure: each["mean"][lag]}
                row |= {f"{measure}_{side}": each[side][lag] for side in ("low", "high")}
            rows.append(row)
    return rows


def summary_of(rows: list[dict]) -> list[dict]:
    """The rows of `summary.csv`: one for each group, kind, strength and measure that is defined."""
    curves: dict[tuple, list[dict]] = {}
    for row in rows:
        curves.setdefault(tuple(row[name] for name in (*GROUP, "kind", "strength")), []).append(row)
    summary = []
    for key, steps in curves.items():
        for measure in MEASURES:
            means = np.array([row[measure] for row in followed(steps)])
            if np.isnan(means[0]):
                continue
            about = dict(zip((*GROUP, "kind", "strength"), key, strict=True)) | {"measure": measure}
            about |= {"at_once": means[0], "one_step_later": means[1] if len(means) > 1 else None}
            largest = {"largest": means.max(), "largest_lag": int(means.argmax())}
            summary.append(about | largest | {"half_life": half_life(means)})
    return summary


def panels_of(rows: list[dict]) -> dict[str, dict[str, list[dict]]]:
    """Rows of `contamination.csv` of one kind, by the title of a panel and the label of a line.

    A panel for each group, a line for each strength; with more than MANY groups a panel for each environment and twin,
    and a line for each group at the strongest change.
    """
    many, strongest = are_many(rows), max(row["strength"] for row in rows)
    panels: dict[str, dict[str, list[dict]]] = {}
    for row in rows:
        panel, line = title_of_panel(row), in_panel(row)
        if not many:
            panel, line = f"{panel}: {line}", f"{row['strength']:g}"
        if not many or row["strength"] == strongest:
            panels.setdefault(panel, {}).setdefault(line, []).append(row)
    return panels


def are_many(rows: list[dict]) -> bool:
    """Whether there are too many groups for a picture to show every strength."""
    return len({row["group"] for row in rows}) > MANY


def draw_curves(rows: list[dict], kind: str) -> Figure:
    """Effects over the steps since the change: a row for each of `panels_of`, a column for each measure.

    A line ends where less than half of the episodes last.
    """
    rows = [row for row in rows if row["kind"] == kind]
    panels = panels_of(rows)
    measures = [name for name in MEASURES if not all(np.isnan(row[name]) for row in rows)]
    colours = colors_of(list(dict.fromkeys(itertools.chain(*panels.values()))))
    figure = Figure(figsize=(4 * len(measures), 2.4 * len(panels) + 0.9), layout="constrained")
    grid = figure.subplots(len(panels), len(measures), squeeze=False)
    for row_of_axes, (title, lines) in zip(grid, panels.items(), strict=True):
        for axes, measure in zip(row_of_axes, measures, strict=True):
            draw_measure(axes, lines, measure, colours)
        row_of_axes[0].set_title(title, fontsize=9, loc="left")
    longest = max(row["lag"] for row in rows)
    for axes in grid.flat:
        axes.set_xlim(-0.02 * longest - 0.1, 1.02 * longest + 0.1)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in grid[-1]:
        axes.set_xlabel("steps since the frame" if kind == "noise" else "steps since the last of them")
    handles = [grid[0, 0].plot([], [], colour, marker=".")[0] for colour in colours.values()]
    title = "sigma of the noise" if kind == "noise" else "frames shuffled"
    if are_many(rows):
        title += f": {max(row['strength'] for row in rows):g}"
    figure.legend(handles, colours, title=title, loc="outside lower center", ncols=4, fontsize=9)
    return figure


def draw_measure(axes: Any, lines: dict[str, list[dict]], measure: str, colours: dict[str, str]) -> None:
    """A panel's lines of one measure, with intervals."""
    axes.set_ylabel(MEASURES[measure], fontsize=8)
    if all(np.isnan(row[measure]) for rows in lines.values() for row in rows):
        axes.text(0.5, 0.5, "not defined", transform=axes.transAxes, ha="center", color="gray")
        axes.set(xticks=[], yticks=[])
        return
    for name, rows in lines.items():
        steps = followed(rows)
        low, mean, high = ([row[measure + side] for row in steps] for side in ("_low", "", "_high"))
        lags = [row["lag"] for row in steps]
        axes.plot(lags, mean, colours[name], marker=".", markersize=4)
        axes.fill_between(lags, low, high, color=colours[name], alpha=0.2, linewidth=0)
    axes.set_ylim(0, 1.02 if measure == "flips" else None)
    axes.grid(alpha=0.3)


def draw_frames(found: Contamination) -> Figure | None:
    """What the network saw: the frame with each noise, or the frames in both orders. None if it saw no frames."""
    shown = found.shown
    if not (shown.dtype == np.uint8 and shown.ndim == 5):
        return None
    rows = [shown[:, 0]] if found.kind == "noise" else shown
    figure = Figure(figsize=(1.7 * len(rows[0]), 1.9 * len(rows) + 0.3), layout="constrained")
    grid = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for line, frames in zip(grid, rows, strict=True):
        for axes, frame in zip(line, frames, strict=True):
            axes.imshow(in_rgb(frame))
            axes.set(xticks=[], yticks=[])
    if found.kind == "noise":
        for axes, sigma in zip(grid[0], (0, *found.strengths), strict=True):
            axes.set_title(f"sigma {sigma:g}" if sigma else "original", fontsize=9)
    else:
        for line, text in zip(grid, ("original", "shuffled"), strict=True):
            line[0].set_ylabel(text, fontsize=9)
    row = about_group(label(found.agent), found.agent)
    figure.suptitle(f"{title_of_panel(row)}: {in_panel(row)}", fontsize=9)
    return figure


def table(summary: list[dict]) -> str:
    """A line per group, strength and measure."""
    width = max(len(row["group"]) for row in summary)
    heads = (
        f"{'kind':<12} {'strength':>8} {'measure':<16} {'at once':>9} {'1 later':>9} {'largest':>9} {'half-life':>11}"
    )
    lines = [f"{'':<{width}} {heads}"]
    for row in summary:
        later = "-" if row["one_step_later"] is None else f"{row['one_step_later']:.4f}"
        life = "not reached" if row["half_life"] is None else row["half_life"]
        about = f"{row['group']:<{width}} {row['kind']:<12} {row['strength']:>8g} {row['measure']:<16}"
        lines.append(f"{about} {row['at_once']:>9.4f} {later:>9} {row['largest']:>9.4f} {life:>11}")
    return "\n".join(lines)


# -------------------------------------------------------------------------------------------------------------- main


def measure(agents: list[Agent], args: Args) -> list[Contamination]:
    """Every kind of change asked for, on every agent whose episodes last that long; the others are reported.

    Raises:
        UserError: if there is none
    """
    longest, found = max(args.at + 1, args.first) + args.steps, []
    played = [record(agent, jax.random.key(args.seed), args.episodes, longest) for agent in agents]
    jobs = [
        (agent, kind, reaching(trajectories, kind, args))
        for kind in args.kind
        for agent, trajectories in zip(agents, played, strict=True)
    ]
    notes = [
        f"left out, no episode lasts that long: {agent.name}, {kind}" for agent, kind, lasting in jobs if not lasting
    ]
    if len(notes) == len(jobs):
        raise UserError(f"--at {args.at}, --first {args.first}: no episode lasts that long, use lower numbers")
    for agent, kind, lasting in tqdm([job for job in jobs if job[2]], unit="replay", disable=None):
        found.append(contaminate(agent, lasting, kind, args))
    print(*notes, sep="\n", end="\n" if notes else "")
    return found


def write(out: Path, found: list[Contamination]) -> list[dict]:
    """Writes tables and pictures, and returns the rows of the summary."""
    rows = []
    for kind in dict.fromkeys(each.kind for each in found):
        of_kind = [each for each in found if each.kind == kind]
        for name, positions in groups_of([each.agent for each in of_kind]).items():
            group = [of_kind[position] for position in positions]
            rows += rows_of(name, group)
            figure, agent = draw_frames(group[0]), group[0].agent
            if figure:
                figure.savefig(out / f"{agent.name}__{agent.twin}__{kind}.png", dpi=120)
        draw_curves(rows, kind).savefig(out / f"{kind}.png", dpi=150)
    summary = summary_of(rows)
    write_csv(out / "contamination.csv", COLUMNS, rows)
    write_csv(out / "summary.csv", SUMMARY_COLUMNS, summary)
    return summary


def main(args: Args) -> Path:
    """Plays, changes, measures, prints a table, writes the results and returns their folder."""
    args = args.checked()
    agents = load_all(args)
    with new_folder(args) as out:
        summary = write(out, measure(agents, args))
    print(table(summary), f"written to {out}", sep="\n")
    return out


if __name__ == "__main__":
    launch(main, Args)
