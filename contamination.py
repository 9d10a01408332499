"""What does one bad frame do to an agent, and for how long? Noise on one frame, or the first frames in another order.

Run:   python contamination.py --runs 'runs/CartPoleEasy__pomdp__*' --sigma 0.1 0.3 1.0 --at 5
Page:  docs/contamination.md

The agent's own episodes are replayed with its own actions; only what the network sees is changed, and its outputs are
compared with those of the untouched replay, step by step after the change.

Paper: Wang et al. 2025, "Investigating Memory in RL with POPGym Arcade", https://arxiv.org/abs/2503.01450
Shapes: T steps, B episodes, V versions of what is seen (the first untouched), A actions, L steps since the change.
"""

import contextlib
import csv
import dataclasses
import functools
import glob
import importlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from matplotlib.figure import Figure
from scipy import stats
from tqdm import tqdm

SCRIPT = Path(__file__).stem
SHIPPED = Path(__file__).parent / "agents"
RESAMPLES = 10_000  # of a bootstrap
RECORD_STEPS = 32  # between two looks at whether the episodes are over
MEASURES = {
    "relative_values": "change of Q - mean Q (L2)",
    "kl": "KL(untouched policy || changed)",
    "flips": "share of greedy actions that change",
}
GROUP = ("script", "memory", "trained_env_id", "trained_partial_obs", "env_id", "partial_obs", "twin")
COLUMNS = (
    *GROUP,
    *("kind", "strength", "lag", "agents", "episodes"),
    *(f"{measure}{what}" for measure in MEASURES for what in ("", "_low", "_high")),
)
SUMMARY_COLUMNS = (*GROUP, "kind", "strength", "measure", "at_once", "one_step_later", "half_life")


# --------------------------------------------------------------------------------------------------------- arguments


class UserError(Exception):
    """Something the user can put right: shown as one line, exit code 2."""


@dataclass(frozen=True)
class Args:
    runs: tuple[str, ...] = (str(SHIPPED / "*"),)
    """run folders, or patterns of them (the agents that come with the repository)"""
    out: str = ""
    """new folder for what is written; empty: analysis/contamination-TIME"""
    kind: tuple[Literal["noise", "permutation"], ...] = ("noise", "permutation")
    """noise on one frame, and/or the first frames in another order"""
    twin: Literal["own", "mdp", "pomdp", "both"] = "own"
    """twin to play: that of the training, the fully or the partially observable one, or both"""
    env_id: str = ""
    """another environment, with the same observations and actions; empty: that of the training"""
    step: int | None = None
    """checkpoint to load; None: the last"""
    episodes: int = 32
    """episodes of each seed of a run and each twin; those that end before the change do not count"""
    seed: int = 0
    """seed of the episodes, the noise and the orders"""
    sigma: tuple[float, ...] = (0.1, 0.3, 1.0)
    """noise: standard deviations, of frames with values from 0 to 1, of other observations in units of their own"""
    at: int = 5
    """noise: step whose frame is changed"""
    first: int = 10
    """permutation: how many of the first frames are shuffled"""
    steps: int = 50
    """steps to follow after the change"""

    def checked(self) -> "Args":
        """These arguments. Raises UserError for what can be refused before anything is loaded."""
        limits = {"episodes": (1, 10_000), "seed": (0, 2**31 - 1), "at": (0, 1_000), "first": (2, 1_000)}
        limits |= {"steps": (1, 10_000)}
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise UserError(f"--{name} {getattr(self, name)}: use a number from {low} to {high}")
        if not (self.sigma and all(0 < sigma < 100 for sigma in self.sigma)):
            raise UserError(f"--sigma {' '.join(map(str, self.sigma))}: use numbers above 0 and below 100")
        if not self.kind:
            raise UserError("--kind: use noise, permutation, or both")
        return self


# ------------------------------------------------------------------------------------------------------------- agents


@dataclass(frozen=True)
class Agent:
    """A trained network and the environment that it is asked in."""

    folder: Path
    step: int  # of the checkpoint
    script: ModuleType  # the training script
    saved: Any  # its arguments in training
    args: Any  # the same with the environment and the twin asked for
    params: Any  # with a leading seed axis if `args.num_seeds` is not 1


def find_runs(patterns: tuple[str, ...]) -> list[Path]:
    """The run folders that the patterns name, each once. Raises UserError for a pattern that names none."""
    folders: dict[Path, None] = {}
    for pattern in patterns:
        found = sorted(path for path in map(Path, glob.glob(pattern)) if (path / "args.json").is_file())
        if not found:
            raise UserError(f"--runs {pattern}: no run folder there, which is one with an args.json")
        folders |= dict.fromkeys(path.resolve() for path in found)
    return list(folders)


def load_agent(folder: Path, step: int | None = None) -> Agent:
    """The agent of a run folder, from its last sound checkpoint or that of `step`.

    Raises:
        UserError: when the folder holds no run, its script is not beside this one, or the parameters do not fit it.
    """
    try:
        name = json.loads((folder / "args.json").read_text())["script"]
    except (OSError, ValueError, LookupError, TypeError):
        raise UserError(f"{folder} is no run folder: its args.json cannot be read") from None
    if not (str(name).isidentifier() and (Path(__file__).parent / f"{name}.py").is_file()):
        raise UserError(f"{folder} was made by {name}.py, which is not beside {SCRIPT}.py")
    script = importlib.import_module(name)
    try:
        step = script.find_checkpoint(folder, step)
        saved, params = script.load_run(folder, step)
    except script.UserError as error:
        raise UserError(str(error)) from None
    return Agent(folder=folder, step=step, script=script, saved=saved, args=saved, params=params)


def in_twins(agent: Agent, twin: str, env_id: str = "") -> list[Agent]:
    """The agent in the twin asked for (own, mdp, pomdp), or in both; `env_id` stands for another environment.

    Raises:
        UserError: when there are no twins, or the observations or the actions there are others.
    """
    script, saved = agent.script, agent.saved
    args = dataclasses.replace(saved, env_id=env_id or saved.env_id)
    has_twins = hasattr(saved, "partial_obs") and script.is_arcade(args)
    if twin != "own" and not has_twins:
        raise UserError(f"--twin {twin}: {args.env_id} has no twins, use own")
    try:
        (shape, *rest), (other_shape, *other_rest) = (spaces_of(script, arguments) for arguments in (saved, args))
    except script.UserError as error:
        raise UserError(str(error)) from None
    if shape != other_shape:
        raise UserError(f"--env-id {env_id} has observations of shape {other_shape}, {agent.folder.name} reads {shape}")
    if rest != other_rest:
        raise UserError(f"--env-id {env_id} has other observations or actions than {agent.folder.name} was trained on")
    partial = {"own": [getattr(saved, "partial_obs", False)], "mdp": [False], "pomdp": [True], "both": [False, True]}
    changes = [{"partial_obs": value} for value in partial[twin]] if has_twins else [{}]
    return [dataclasses.replace(agent, args=dataclasses.replace(args, **change)) for change in changes]


def spaces_of(script: ModuleType, args: Any) -> tuple:
    """What a network depends on: shape and dtype of the observations, shape and number of the actions."""
    env, env_params = script.make_env(args)
    observation, action = env.observation_space(env_params), env.action_space(env_params)
    return observation.shape, jnp.dtype(observation.dtype), action.shape, getattr(action, "n", None)


def one_seed(agent: Agent, index: int) -> Agent:
    """The agent of one of a run's seeds, without the seed axis."""
    if agent.args.num_seeds == 1:
        return agent
    args = dataclasses.replace(agent.args, num_seeds=1, seed=agent.args.seed + index)
    return dataclasses.replace(agent, args=args, params=jax.tree.map(lambda x: x[index], agent.params))


def twin_name(agent: Agent) -> str:
    """The twin that the agent is asked in: mdp, pomdp, or full for an id without twins."""
    if not (hasattr(agent.args, "partial_obs") and agent.script.is_arcade(agent.args)):
        return "full"
    return "pomdp" if agent.args.partial_obs else "mdp"


def describe(agent: Agent) -> dict:
    """What the tables say of an agent."""
    return {
        "run": agent.folder.name,
        "script": agent.script.SCRIPT,
        "memory": getattr(agent.args, "memory", "none"),
        "trained_env_id": agent.saved.env_id,
        "trained_partial_obs": getattr(agent.saved, "partial_obs", False),
        "global_step": agent.step,
        "env_id": agent.args.env_id,
        "partial_obs": getattr(agent.args, "partial_obs", False),
        "twin": twin_name(agent),
    }


def interval(values: np.ndarray) -> tuple[float, float]:
    """95% percentile bootstrap interval of the mean of values[N]; the mean twice if N is 1 or all are alike."""
    values = np.asarray(values, float)
    if values.size < 2 or np.ptp(values) == 0:
        return float(values.mean()), float(values.mean())
    found = stats.bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(0)
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


@contextlib.contextmanager
def new_folder(out: str) -> Iterator[Path]:
    """A new folder for what is written, gone again if nothing was. Raises UserError where one cannot be made."""
    for attempt in range(1, 1000):
        default = f"analysis/{SCRIPT}-{time.strftime('%Y%m%d-%H%M%S')}" + (f"-{attempt}" if attempt > 1 else "")
        path = Path(out or default)
        try:
            path.mkdir(parents=True)
            break
        except OSError as error:
            if out or not isinstance(error, FileExistsError):
                raise UserError(f"--out {path}: {error.strerror}") from None
    try:
        yield path
    finally:
        if not any(path.iterdir()):
            path.rmdir()


def write_csv(path: Path, columns: tuple[str, ...], rows: list[dict]) -> None:
    """A table with a head, one line per row."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


# ------------------------------------------------------------------------------------------------------- trajectories


@dataclass(frozen=True)
class Trajectory:
    """The first T steps of an episode: what the agent met and did."""

    state: Any  # of the environment, before each step, leaves [T, ...]
    obs: np.ndarray | None  # [T, ...]; None where `observations` draws it from the state
    prev_action: np.ndarray  # like action; zero at an episode's first step, which follows none
    start: np.ndarray  # bool [T], True at an episode's first step
    action: np.ndarray  # int32 [T], or float32 [T, A]
    reward: np.ndarray  # float32 [T]
    over: bool  # whether the episode ended with the last step

    def __len__(self) -> int:
        return len(self.reward)


@functools.lru_cache
def record_program(script: ModuleType, args: Any, episodes: int):
    """begin(key) -> actor of so many episodes; advance(params, actor) -> (actor, greedy steps [T, E, ...])."""
    _, begin, act = script.make_actor(args)

    def step(params, actor):
        before = {"state": actor.env_state, "obs": None if script_draws(script, args) else actor.obs}
        actor, transition, _ = act(params, actor, script.POLICIES["greedy"])
        after = {"action": transition.action, "reward": transition.reward}
        return actor, before | after | {"done": transition.terminated | transition.truncated}

    def advance(params, actor):
        return jax.lax.scan(lambda actor, _: step(params, actor), actor, length=RECORD_STEPS)

    return jax.jit(lambda key: begin(key, episodes)), jax.jit(advance)


def script_draws(script: ModuleType, args: Any) -> bool:
    """Whether frames can be drawn again from states, as those of popgym_arcade can."""
    return hasattr(script, "is_arcade") and script.is_arcade(args)


def record(agent: Agent, key: jax.Array, episodes: int, steps: int | None = None) -> list[Trajectory]:
    """The first `steps` steps (None: all) of each of several episodes of the greedy policy."""
    begin, advance = record_program(agent.script, dataclasses.replace(agent.args, seed=0), episodes)
    actor, chunks, over = begin(key), [], np.zeros(episodes, bool)
    while not over.all() and (steps is None or len(chunks) * RECORD_STEPS < steps):
        actor, chunk = advance(agent.params, actor)
        chunks.append(jax.tree.map(np.asarray, chunk))
        over |= chunks[-1]["done"].any(axis=0)
    met = jax.tree.map(lambda *parts: np.concatenate(parts)[:steps], *chunks)  # [T, E, ...]
    return [one_trajectory(jax.tree.map(lambda x, i=i: x[:, i], met)) for i in range(episodes)]


def one_trajectory(met: dict) -> Trajectory:
    """What was met in one environment, [T, ...], up to the end of its first episode."""
    ends = np.flatnonzero(met["done"])
    length = int(ends[0]) + 1 if ends.size else len(met["done"])
    kept = jax.tree.map(lambda x: x[:length], met)
    action = kept["action"]
    return Trajectory(
        state=kept["state"],
        obs=kept["obs"],
        prev_action=np.concatenate([np.zeros_like(action[:1]), action[:-1]]),
        start=np.arange(length) == 0,
        action=action,
        reward=kept["reward"],
        over=bool(ends.size),
    )


@functools.lru_cache
def draw_program(script: ModuleType, args: Any):
    env, _ = script.make_env(args)
    return jax.jit(jax.vmap(env.get_obs))


def observations(agent: Agent, trajectory: Trajectory) -> np.ndarray:
    """What the agent saw, [T, ...]; frames are drawn again, as the twin that it is asked in shows them."""
    if trajectory.obs is not None:
        return trajectory.obs
    return np.asarray(draw_program(agent.script, agent.args)(trajectory.state))


def action_values(output: Any) -> jax.Array:
    """[T, B, A]: Q values; of a policy its probabilities, of a continuous one its mean action."""
    if hasattr(output, "q"):
        return output.q
    return jax.nn.softmax(output.logits) if hasattr(output, "logits") else output.mean


# ------------------------------------------------------------------------------------------------------- contamination


@dataclass(frozen=True)
class Contamination:
    """What a change did to one agent."""

    agent: Agent  # without a seed axis
    kind: str  # noise or permutation
    strengths: tuple[float, ...]  # of each version but the untouched: sigma, or the number of frames shuffled
    effects: dict[str, np.ndarray]  # measure -> [V - 1, L, B], nan after the end of an episode and where undefined
    shown: np.ndarray  # [V, frames, ...] what was seen in the first episode while the versions differed

    @property
    def group(self) -> tuple:
        """What is compared: agents that differ in their seed or run alone are of one group."""
        return tuple(describe(self.agent)[name] for name in GROUP)


def noisy(obs: np.ndarray, sigmas: tuple[float, ...], at: int, rng: np.random.Generator) -> np.ndarray:
    """[V, at + 1, B, ...]: obs[T, B, ...] up to `at`, untouched and with Gaussian noise on the last frame.

    Every strength has the same noise, only larger. uint8 frames stay within 0 to 255; other observations take noise in
    units of the standard deviation that each of their numbers has over the episodes.
    """
    versions = np.stack([obs[: at + 1]] * (1 + len(sigmas)))
    noise = rng.standard_normal(obs.shape[1:])
    unit = 255.0 if obs.dtype == np.uint8 else obs.astype(float).std(axis=(0, 1))
    for version, sigma in zip(versions[1:], sigmas, strict=True):
        changed = obs[at] + sigma * unit * noise
        version[at] = np.rint(changed).clip(0, 255) if obs.dtype == np.uint8 else changed
    return versions


def shuffled(obs: np.ndarray, first: int, rng: np.random.Generator) -> np.ndarray:
    """[2, first, B, ...]: the first frames of obs[T, B, ...], untouched and in another order in each episode."""
    versions = np.stack([obs[:first]] * 2)
    for episode in range(obs.shape[1]):
        versions[1, :, episode] = obs[rng.permutation(first), episode]
    return versions


@functools.lru_cache
def replay_program(script: ModuleType, args: Any):
    """replay(params, versions[V, C, B, ...], rest, prev_action[T, B], start[T, B]) -> outputs [T - C + 1, V, ...].

    The outputs are those from the last changed step on. `rest` are the states (or observations) of the steps after it,
    [T - C, B, ...]. These are the same for all versions and read once: only the memories differ.
    """
    network, _, _ = script.make_actor(args)
    env, _ = script.make_env(args)

    def replay(params, versions, rest, prev_action, start):
        changed = versions.shape[1]

        def read_version(obs):
            carry = script.initial_carry(network, obs.shape[1])
            carry, output = script.forward(network, params, carry, obs, prev_action[:changed], start[:changed])
            return carry, last_of(output)

        carry, at_once = jax.vmap(read_version)(versions)

        def step(carry, now):
            seen, *before = now
            obs = jax.vmap(env.get_obs)(seen) if script_draws(script, args) else seen
            read = lambda carry: script.forward(network, params, carry, obs[None], *(x[None] for x in before))  # noqa: E731
            carry, output = jax.vmap(read, axis_size=len(versions))(carry)
            return carry, jax.vmap(last_of)(output)

        _, later = jax.lax.scan(step, carry, (rest, prev_action[changed:], start[changed:]))
        return jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), at_once, later)

    return jax.jit(replay)


def last_of(output: Any) -> dict[str, jax.Array]:
    """The scores [B, A] at the last step of an output [T, B, A] (Q, logits or mean), and a mean's log_std [B, A]."""
    name = next(name for name in ("q", "logits", "mean") if hasattr(output, name))
    scores = getattr(output, name)[-1]
    spread = {"log_std": jnp.broadcast_to(output.log_std, scores.shape)} if name == "mean" else {}
    return {name: scores} | spread


def effects_of(output: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Each of MEASURES, [V - 1, L, B], of outputs [L, V, B, A]; nan where it is not defined.

    Relative values are Q - mean over actions Q, their change the L2 norm of the difference (Wang et al. 2025). KL is
    that of the policy, of a continuous one between normal distributions of equal width.
    """
    output = {name: np.moveaxis(np.asarray(x, float), 1, 0) for name, x in output.items()}  # [V, L, B, A]
    name, x = next((name, x) for name, x in output.items() if name != "log_std")
    nothing = np.full((len(x) - 1, *x.shape[1:3]), np.nan)
    relative, kl, flips = nothing, nothing, (x[1:].argmax(axis=-1) != x[0].argmax(axis=-1)).astype(float)
    if name == "q":
        advantage = x - x.mean(axis=-1, keepdims=True)
        relative = np.linalg.norm(advantage[1:] - advantage[0], axis=-1)
    elif name == "logits":
        log_policy = x - np.logaddexp.reduce(x, axis=-1, keepdims=True)
        kl = (np.exp(log_policy[0]) * (log_policy[0] - log_policy[1:])).sum(axis=-1)
    else:
        kl = (np.square(x[1:] - x[0]) / (2 * np.exp(2 * output["log_std"][0]))).sum(axis=-1)
        flips = nothing
    return {"relative_values": relative, "kl": kl, "flips": flips}


def stacked(trajectories: list[Trajectory], name: str, steps: int) -> Any:
    """One field of several episodes as [steps, B, ...], the shorter ones going on with their last."""

    def one(x):
        return np.concatenate([x[:steps], np.repeat(x[-1:], max(0, steps - len(x)), axis=0)])

    fields = [jax.tree.map(one, getattr(trajectory, name)) for trajectory in trajectories]
    return jax.tree.map(lambda *parts: np.stack(parts, axis=1), *fields)


def contaminate(agent: Agent, trajectories: list[Trajectory], kind: str, args: Args) -> Contamination:
    """Replays the episodes that last longer than the change, untouched and changed.

    Raises:
        UserError: when all of them end before.
    """
    changed = args.at + 1 if kind == "noise" else args.first
    trajectories = [trajectory for trajectory in trajectories if len(trajectory) > changed]
    if not trajectories:
        flag = f"--at {args.at}" if kind == "noise" else f"--first {args.first}"
        raise UserError(f"{flag}: no episode of {agent.folder.name} lasts that long, use a lower number")
    steps = min(changed + args.steps, max(map(len, trajectories)))
    rng = np.random.default_rng([args.seed, ("noise", "permutation").index(kind)])
    early = [dataclasses.replace(x, state=jax.tree.map(lambda leaf: leaf[:changed], x.state)) for x in trajectories]
    obs = np.stack([observations(agent, x)[:changed] for x in early], axis=1)  # [C, B, ...]
    versions = noisy(obs, args.sigma, args.at, rng) if kind == "noise" else shuffled(obs, args.first, rng)
    seen = "state" if script_draws(agent.script, agent.args) else "obs"
    rest = jax.tree.map(lambda x: x[changed:], stacked(trajectories, seen, steps))
    met = (stacked(trajectories, name, steps) for name in ("prev_action", "start"))
    replay = replay_program(agent.script, dataclasses.replace(agent.args, seed=0))
    effects = effects_of(replay(agent.params, versions, rest, *met))  # from the last changed step on
    lasts = np.array([len(trajectory) for trajectory in trajectories])
    over = changed - 1 + np.arange(steps - changed + 1)[:, None] >= lasts  # [L, B]
    effects = {name: np.where(over, np.nan, values) for name, values in effects.items()}
    strengths = args.sigma if kind == "noise" else (float(args.first),)
    shown = versions[:, -1:, 0] if kind == "noise" else versions[:, :, 0]
    return Contamination(agent, kind, strengths, effects, shown)


def curve(group: list[Contamination], measure: str, version: int) -> dict[str, np.ndarray]:
    """Mean, low and high [L] of an effect: over agents, or over episodes of an only one; episodes still going on."""
    lags = max(each.effects[measure].shape[1] for each in group)

    def cut(values):  # [L', B] -> [L, B]
        return np.concatenate([values, np.full((lags - len(values), values.shape[1]), np.nan)])

    each = [cut(one.effects[measure][version]) for one in group]
    counts = np.sum([(~np.isnan(values)).sum(axis=1) for values in each], axis=0)
    units = each[0] if len(each) == 1 else np.stack([mean_told(values) for values in each], axis=1)  # [L, agents]
    bounds = [interval(told) if (told := row[~np.isnan(row)]).size else (np.nan, np.nan) for row in units]
    low, high = np.transpose(bounds)
    return {"mean": mean_told(units), "low": low, "high": high, "episodes": counts}


def mean_told(values: np.ndarray) -> np.ndarray:
    """Mean over the last axis of what is not nan, nan where nothing is: [L, B] -> [L]."""
    told = ~np.isnan(values)
    total = np.where(told, values, 0).sum(axis=-1)
    return np.where(told.any(axis=-1), total / np.maximum(told.sum(axis=-1), 1), np.nan)


def half_life(means: np.ndarray) -> int | None:
    """Steps until an effect means[L] is at most half of what it was at once; 0 if it was none, None if never."""
    if means[0] == 0:
        return 0
    below = np.flatnonzero(means[1:] <= means[0] / 2)
    return int(below[0]) + 1 if below.size else None


# ---------------------------------------------------------------------------------------------------- tables, pictures


def rows_of(group: list[Contamination]) -> list[dict]:
    """A group's rows of `contamination.csv`: one for each strength and step since the change."""
    rows, about = [], dict(zip(GROUP, group[0].group, strict=True)) | {"kind": group[0].kind, "agents": len(group)}
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
    """What `contamination.csv` says in short: a row for each group, kind, strength and measure that is defined."""
    curves: dict[tuple, list[dict]] = {}
    for row in rows:
        curves.setdefault(tuple(row[name] for name in (*GROUP, "kind", "strength")), []).append(row)
    summary = []
    for key, steps in curves.items():
        for measure in MEASURES:
            means = np.array([row[measure] for row in steps])
            if np.isnan(means[0]):
                continue
            about = dict(zip((*GROUP, "kind", "strength"), key, strict=True)) | {"measure": measure}
            later = means[1] if len(means) > 1 else None
            summary.append(about | {"at_once": means[0], "one_step_later": later, "half_life": half_life(means)})
    return summary


def label(row: dict) -> str:
    """A group in a few words: environment, algorithm, memory, the twin it plays, and was trained on."""
    trained = "pomdp" if row["trained_partial_obs"] else "mdp"
    elsewhere = "" if row["partial_obs"] == row["trained_partial_obs"] else f" (trained on {trained})"
    memory = row["memory"] if row["memory"] != "none" else "no memory"
    return f"{row['env_id']}, {row['script']}, {memory}, {row['twin']}{elsewhere}"


def draw_curves(rows: list[dict], kind: str) -> Figure:
    """Effects over the steps since the change: a row for each group, a column for each measure, a line per strength.

    A line ends where less than half of the episodes are still going on.
    """
    rows = [row for row in rows if row["kind"] == kind]
    groups = list(dict.fromkeys(label(row) for row in rows))
    measures = [name for name in MEASURES if not all(np.isnan(row[name]) for row in rows)]
    figure = Figure(figsize=(4.6 * len(measures), 3.0 * len(groups) + 0.4), layout="constrained")
    grid = figure.subplots(len(groups), len(measures), squeeze=False, sharex=True)
    for line, group in zip(grid, groups, strict=True):
        mine = [row for row in rows if label(row) == group]
        for axes, measure in zip(line, measures, strict=True):
            for strength in dict.fromkeys(row["strength"] for row in mine):
                draw_curve(axes, [row for row in mine if row["strength"] == strength], measure)
            axes.set_ylabel(MEASURES[measure], fontsize=8)
            axes.set_ylim(0, None)
            axes.grid(alpha=0.3)
        line[0].set_title(group, fontsize=9, loc="left")
        title = "noise, sigma" if kind == "noise" else "frames shuffled"
        line[-1].legend(title=title, fontsize=7, title_fontsize=7)
    for axes in grid[-1]:
        axes.set_xlabel("steps since the frame" if kind == "noise" else "steps since the last of them")
    return figure


def draw_curve(axes: Any, steps: list[dict], measure: str) -> None:
    """One line with its interval."""
    steps = [row for row in steps if 2 * row["episodes"] >= steps[0]["episodes"] and not np.isnan(row[measure])]
    low, mean, high = ([row[measure + side] for row in steps] for side in ("_low", "", "_high"))
    lags = [row["lag"] for row in steps]
    line = axes.plot(lags, mean, marker=".", markersize=4, label=f"{steps[0]['strength']:g}" if steps else None)[0]
    axes.fill_between(lags, low, high, color=line.get_color(), alpha=0.2, linewidth=0)


def draw_frames(found: Contamination) -> Figure | None:
    """What the network saw: the frame with each noise, or the frames in both orders. None for what is no frame."""
    shown = found.shown
    if not (shown.dtype == np.uint8 and shown.ndim == 5):
        return None
    rows = [shown[:, 0]] if found.kind == "noise" else shown
    figure = Figure(figsize=(1.7 * len(rows[0]), 1.9 * len(rows) + 0.3), layout="constrained")
    grid = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for line, frames in zip(grid, rows, strict=True):
        for axes, frame in zip(line, frames, strict=True):
            axes.imshow(frame)
            axes.set(xticks=[], yticks=[])
    if found.kind == "noise":
        for axes, sigma in zip(grid[0], (0, *found.strengths), strict=True):
            axes.set_title(f"sigma {sigma:g}" if sigma else "untouched", fontsize=9)
    else:
        for line, text in zip(grid, ("untouched", "shuffled"), strict=True):
            line[0].set_ylabel(text, fontsize=9)
    figure.suptitle(found.agent.folder.name.rpartition("__")[0].replace("__", " · "), fontsize=9)
    return figure


def table(summary: list[dict]) -> str:
    """A line per group, strength and measure."""
    lines = [
        f"{'agent':<64} {'kind':<12} {'strength':>8} {'measure':<16} {'at once':>9} {'1 later':>9} {'half-life':>9}"
    ]
    for row in summary:
        later = "-" if row["one_step_later"] is None else f"{row['one_step_later']:.4f}"
        life = "never" if row["half_life"] is None else row["half_life"]
        about = f"{label(row):<64} {row['kind']:<12} {row['strength']:>8g} {row['measure']:<16}"
        lines.append(f"{about} {row['at_once']:>9.4f} {later:>9} {life:>9}")
    return "\n".join(lines)


# --------------------------------------------------------------------------------------------------------------- main


def load_all(args: Args) -> list[Agent]:
    """Every seed of every run in every twin asked for. Raises UserError at the first that cannot be."""
    agents = [load_agent(folder, args.step) for folder in find_runs(args.runs)]
    agents = [twin for agent in agents for twin in in_twins(agent, args.twin, args.env_id)]
    return [one_seed(agent, index) for agent in agents for index in range(agent.args.num_seeds)]


def measure(agents: list[Agent], args: Args) -> list[Contamination]:
    """Every kind of change asked for, done to every agent."""
    found, longest = [], max(args.at + 1, args.first) + args.steps
    for agent in tqdm(agents, unit="agent", disable=None):
        trajectories = record(agent, jax.random.key(args.seed), args.episodes, longest)
        found += [contaminate(agent, trajectories, kind, args) for kind in args.kind]
    return found


def write(out: Path, found: list[Contamination]) -> list[dict]:
    """Tables and pictures; the rows of the summary."""
    groups: dict[tuple, list[Contamination]] = {}
    for each in found:
        groups.setdefault((each.kind, *each.group), []).append(each)
    rows = [row for group in groups.values() for row in rows_of(group)]
    summary = summary_of(rows)
    write_csv(out / "contamination.csv", COLUMNS, rows)
    write_csv(out / "summary.csv", SUMMARY_COLUMNS, summary)
    for kind in dict.fromkeys(each.kind for each in found):
        draw_curves(rows, kind).savefig(out / f"{kind}.png", dpi=150)
    for each in (group[0] for group in groups.values()):
        figure = draw_frames(each)
        if figure:
            figure.savefig(out / f"{each.agent.folder.name}__{twin_name(each.agent)}__{each.kind}.png", dpi=120)
    return summary


def main(args: Args) -> Path:
    """Plays, changes, measures, prints a table and writes; returns the folder."""
    agents = load_all(args.checked())
    with new_folder(args.out) as out:
        summary = write(out, measure(agents, args))
    print(table(summary), f"written to {out}", sep="\n")
    return out


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except UserError as error:
        print(f"{SCRIPT}.py: error: {error}", file=sys.stderr)
        sys.exit(2)
