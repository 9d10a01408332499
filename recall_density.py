"""How far back does an agent look? Recall density: where in an episode the gradient of its last decision lies.

Run:   python recall_density.py --runs 'runs/NavigatorEasy__*' --episodes 32
Page:  docs/recall_density.md

Paper: Wang et al. 2025, "Investigating Memory in RL with POPGym Arcade", https://arxiv.org/abs/2503.01450
Shapes: T steps of a complete episode, n = T - 1 its last step, A actions.
"""

import contextlib
import csv
import dataclasses
import functools
import glob
import importlib
import inspect
import itertools
import json
import os
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
THIRDS = {"first": (0.0, 0.33), "middle": (0.33, 0.66), "last": (0.66, 1.0)}  # of an episode, as in the paper
MASSES = (*THIRDS, "last_frame")
MANY = 6  # groups of an id that are drawn beside each other
VARYING = {  # from one seed of a training to another
    *("seed", "num_seeds", "run_dir", "resume", "log_every", "eval_every", "eval_episodes", "checkpoint_every"),
    *("capture_video", "target_return"),
}
GROUP = ("group", "script", "memory", "trained_env_id", "trained_partial_obs", "env_id", "partial_obs", "twin")
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


class UserError(Exception):
    """Something the user can put right: shown as one line, exit code 2."""


@dataclass(frozen=True)
class Args:
    runs: tuple[str, ...] = (glob.escape(str(SHIPPED)) + "/*",)
    """run folders, or patterns of them (the agents that come with the repository)"""
    out: str = ""
    """new folder for what is written; empty: analysis/recall_density-TIME"""
    twin: Literal["own", "mdp", "pomdp", "both"] = "own"
    """twin to play: that of the training, the fully or the partially observable one, or both"""
    env_id: str = ""
    """another environment, with the same observations and actions; empty: that of the training"""
    step: int | None = None
    """checkpoint to load; None: the last"""
    episodes: int = 16
    """complete episodes of each seed of a run and each twin"""
    seed: int = 0
    """seed of the episodes"""
    norm: Literal["l1", "l2"] = "l2"
    """norm of a frame's gradient; l2 is the root of the saliency's sum"""
    bins: int = 10
    """intervals of normalised time in the density"""

    def checked(self) -> "Args":
        """These arguments. Raises UserError for what can be refused before anything is loaded."""
        for name, high in {"episodes": 10_000, "bins": 100}.items():
            if not 1 <= getattr(self, name) <= high:
                raise UserError(f"--{name} {getattr(self, name)}: use a number from 1 to {high}")
        if not 0 <= self.seed < 2**31:
            raise UserError(f"--seed {self.seed}: use a number from 0 to {2**31 - 1}")
        return self


# ------------------------------------------------------------------------------------------------------------- agents


@dataclass(frozen=True)
class Agent:
    """A trained network and the environment that it is asked in."""

    name: str  # of the folder; no two in one call have the same
    folder: Path
    step: int  # of the checkpoint
    script: ModuleType  # the training script
    saved: Any  # its arguments in training
    args: Any  # the same with the environment and the twin asked for
    params: Any  # with a leading seed axis if `args.num_seeds` is not 1


def find_runs(patterns: tuple[str, ...]) -> list[Path]:
    """The run folders that the patterns name, each once. Raises UserError for a pattern that names none."""
    folders: dict[Path, None] = {}
    for pattern in map(os.path.expanduser, patterns):
        paths = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern))
        found = [path for path in map(Path, paths) if (path / "args.json").is_file()]
        if not found:
            raise UserError(f"--runs {pattern}: no run folder there, which is one with an args.json")
        folders |= dict.fromkeys(path.resolve() for path in found)
    if not folders:
        raise UserError("--runs: name a run folder, or a pattern of them")
    return list(folders)


def load_agents(patterns: tuple[str, ...], step: int | None = None) -> list[Agent]:
    """The agents of all runs that the patterns name, one for each task; a name that was there before gets a number."""
    agents: dict[str, Agent] = {}
    for folder in find_runs(patterns):
        for agent in each_task(load_agent(folder, step)):
            names = (agent.name if i == 1 else f"{agent.name}-{i}" for i in itertools.count(1))
            name = next(name for name in names if name not in agents)
            agents[name] = dataclasses.replace(agent, name=name)
    return list(agents.values())


def each_task(agent: Agent) -> list[Agent]:
    """An agent for each task of a training on several, with the task's name behind the folder's; else the agent."""
    tasks = getattr(agent.saved, "task_names", ())
    if len(tasks) < 2:
        return [agent]
    alone = [agent.script.select_task(agent.saved, agent.params, i) for i in range(len(tasks))]
    return [
        dataclasses.replace(agent, name=f"{agent.name}__{task}", saved=args, args=args, params=params)
        for task, (args, params) in zip(tasks, alone, strict=True)
    ]


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
    if not hasattr(script, "load_run"):
        raise UserError(f"{folder} was made by {name}.py, which is no training script")
    try:
        step = script.find_checkpoint(folder, step)
        saved, params = script.load_run(folder, step)
    except script.UserError as error:
        raise UserError(str(error)) from None
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise UserError(f"{folder}: its arguments do not fit {name}.py: {str(error).partition(chr(10))[0]}") from None
    return Agent(name=folder.name, folder=folder, step=step, script=script, saved=saved, args=saved, params=params)


def in_twins(agent: Agent, twin: str, env_id: str = "") -> list[Agent]:
    """The agent in the twin asked for (own, mdp, pomdp), or in both; `env_id` stands for another environment.

    Raises:
        UserError: when there are no twins, or the observations or the actions there are others.
    """
    script, saved = agent.script, agent.saved
    env_id_field = {"env_ids": (env_id,)} if hasattr(saved, "env_ids") else {"env_id": env_id}
    args = dataclasses.replace(saved, **env_id_field) if env_id else saved
    has_twins = hasattr(saved, "partial_obs") and script.is_arcade(args)
    if twin != "own" and not has_twins:
        raise UserError(f"--twin {twin}: {args.env_id} has no twins, use own")
    if hasattr(saved, "partial_obs") and not has_twins:
        args = dataclasses.replace(args, partial_obs=False)
    try:
        (shape, *rest), (other_shape, *other_rest) = (spaces_of(script, arguments) for arguments in (saved, args))
    except script.UserError as error:
        raise UserError(f"--env-id {env_id}: {error}" if env_id else str(error)) from None
    if shape != other_shape:
        raise UserError(f"--env-id {env_id} has observations of shape {other_shape}, {agent.name} reads {shape}")
    if rest != other_rest:
        raise UserError(f"--env-id {env_id} has other observations or actions than {agent.name} was trained on")
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
        "run": agent.name,
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
    options = {"n_resamples": RESAMPLES, "method": "percentile", "batch": max(1, 10_000_000 // values.size)}
    found = stats.bootstrap((values,), np.mean, rng=np.random.default_rng(0), **options)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def setting(agent: Agent) -> tuple:
    """What the agents of a group have in common: all but their seeds, and what does not bear on what they learned."""
    saved = {name: value for name, value in dataclasses.asdict(agent.saved).items() if name not in VARYING}
    return agent.script.SCRIPT, *saved.items(), agent.args.env_id, twin_name(agent)


def label(agent: Agent) -> str:
    """A group in a few words: environment, experiment, memory, the twin it plays, and what it was trained on."""
    memory, twin = getattr(agent.saved, "memory", "no memory"), twin_name(agent)
    trained = twin_name(dataclasses.replace(agent, args=agent.saved))
    elsewhere = (agent.saved.env_id, trained) != (agent.args.env_id, twin)
    return f"{agent.args.env_id}, {agent.saved.exp_name}, {memory}, {twin}" + (
        f" (trained on {agent.saved.env_id} {trained})" if elsewhere else ""
    )


def groups_of(agents: list[Agent]) -> dict[str, list[int]]:
    """Places of the agents in their list, by group, under a label of its own. Raises UserError where one is twice."""
    groups: dict[tuple, list[int]] = {}
    for place, agent in enumerate(agents):
        groups.setdefault(setting(agent), []).append(place)
    labels: dict[str, list[int]] = {}
    for places in groups.values():
        seeds: dict[int, Agent] = {}
        for agent in (agents[place] for place in places):
            if seeds.setdefault(agent.args.seed, agent) is not agent:
                both = f"{seeds[agent.args.seed].folder} and {agent.folder}"
                raise UserError(f"seed {agent.args.seed} of one training is there twice, in {both}: leave one out")
        name = label(agents[places[0]])
        labels[f"{name} ({agents[places[0]].name})" if name in labels else name] = places
    return labels


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

    @property
    def prev_reward(self) -> np.ndarray:
        """float32 [T]; zero at an episode's first step."""
        return np.concatenate([np.zeros_like(self.reward[:1]), self.reward[:-1]])

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


def read_beside(script: ModuleType) -> tuple[str, ...]:
    """What a script's network reads beside observations, as fields of a trajectory."""
    rewards = "prev_reward" in inspect.signature(script.forward).parameters
    return ("prev_action", "start", *["prev_reward"] * rewards)


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


def network_args(agent: Agent) -> Any:
    """Arguments that its network hangs on: the same for all seeds and both twins, so that these share a program."""
    return dataclasses.replace(agent.saved, seed=0, num_seeds=1)


def action_values(output: Any) -> jax.Array:
    """[T, B, A]: Q values; of a policy its probabilities, of a continuous one its mean action."""
    if hasattr(output, "q"):
        return output.q
    return jax.nn.softmax(output.logits) if hasattr(output, "logits") else output.mean


# ------------------------------------------------------------------------------------------------------ recall density


@functools.lru_cache
def norm_program(script: ModuleType, args: Any, norm: str):
    """norms(params, obs[T, ...], beside, n) -> [A, T], norms of the gradient of each action value at n."""
    network, _, _ = script.make_actor(args)

    def norms(params, obs, beside, n):
        scale = 255.0 if obs.dtype == jnp.uint8 else 1.0

        def values(x):
            carry = script.initial_carry(network, 1)
            _, output = script.forward(network, params, carry, scale * x[:, None], *(y[:, None] for y in beside))
            return action_values(output)[n, 0]

        y, pull_back = jax.vjp(values, obs.astype(jnp.float32) / scale)

        def of_action(cotangent):
            size = jnp.abs(pull_back(cotangent)[0].reshape(len(obs), -1))
            if norm == "l1":
                return size.sum(axis=1)
            largest = size.max(axis=1)  # the squares of a saturated policy's gradient would vanish in float32
            return largest * jnp.linalg.norm(size / jnp.where(largest > 0, largest, 1)[:, None], axis=1)

        # one action after the other: the gradients of a long episode of frames would not fit all at once
        return jax.lax.map(of_action, jnp.eye(y.size))

    return jax.jit(norms)


def padded(x: np.ndarray, length: int) -> np.ndarray:
    """x[T, ...] with zeros up to `length` steps."""
    return np.concatenate([x, np.zeros((length - len(x), *x.shape[1:]), x.dtype)])


def recall_density(agent: Agent, trajectory: Trajectory, norm: str = "l2") -> np.ndarray:
    """delta_t = g_t / sum g, float64 [T], with g_t the norm of the gradient at the last step n with respect to o_t.

    The gradient is that of `saliency.gradient_saliency`: d y(s_n, a) / d o_t of all actions a, y being Q, a policy's
    probability or a continuous policy's mean, o_t a frame with values from 0 to 1. Sums to 1; nan where nothing matters
    to the last decision. Wang et al. 2025, https://arxiv.org/abs/2503.01450.
    """
    program = norm_program(agent.script, network_args(agent), norm)
    length = 2 ** max(5, (len(trajectory) - 1).bit_length())  # few lengths, few programs
    beside = tuple(getattr(trajectory, name) for name in read_beside(agent.script))
    met = jax.tree.map(lambda x: padded(x, length), (observations(agent, trajectory), beside))
    norms = np.asarray(program(agent.params, *met, len(trajectory) - 1), float)
    norms = norms[:, : len(trajectory)]  # what comes after the last step is zero
    total = norms.sum(axis=0) if norm == "l1" else np.linalg.norm(norms, axis=0)
    return total / total.sum() if total.any() else np.full(len(total), np.nan)


def normalised_time(length: int) -> np.ndarray:
    """tau_t = t / n of an episode's steps, [T]; an only step is the last."""
    return np.arange(length) / (length - 1) if length > 1 else np.ones(1)


def density_of(delta: np.ndarray, bins: int) -> np.ndarray:
    """Density [bins] of delta[T] over the episode, every step taking an equal part of it; its integral is 1."""
    reached = np.interp(np.linspace(0, 1, bins + 1), np.linspace(0, 1, len(delta) + 1), [0, *np.cumsum(delta)])
    return bins * np.diff(reached)


def masses(delta: np.ndarray) -> dict[str, float]:
    """Mass of delta[T] in [0, .33), [.33, .66) and [.66, 1], and of the last frame alone."""
    found = np.histogram(normalised_time(len(delta)), [0, 0.33, 0.66, 1], weights=delta)[0].tolist()
    return dict(zip(MASSES, [*found, float(delta[-1])], strict=True))


@dataclass(frozen=True)
class Recall:
    """The recall densities of one agent in one twin."""

    agent: Agent  # without a seed axis
    deltas: list[np.ndarray]  # float64 [T] of each episode to whose last decision anything matters
    blind: int = 0  # the other episodes
    returns: tuple[float, ...] = ()  # of all episodes


def mean_and_interval(recalls: list[Recall], measure) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean of measure(delta) -> [K], 95% bootstrap interval, [K] each: over agents, or over episodes of an only one.

    Every agent counts the same, however many episodes it has; one without any is left out.
    """
    recalls = [recall for recall in recalls if recall.deltas]
    if not recalls:
        size = np.shape(measure(np.ones(1)))
        return (np.full(size, np.nan),) * 3
    each = [np.stack([measure(delta) for delta in recall.deltas]) for recall in recalls]  # [episodes, K]
    units = each[0] if len(each) == 1 else np.stack([values.mean(axis=0) for values in each])
    low, high = np.transpose([interval(column) for column in units.T])
    return units.mean(axis=0), low, high


def about_group(group: str, recalls: list[Recall]) -> dict:
    """The columns that say what a group is."""
    about = describe(recalls[0].agent) | {"group": group}
    return {name: about[name] for name in GROUP}


def row_of(group: str, recalls: list[Recall]) -> dict:
    """A group's row of `recall_density.csv`."""
    mean, low, high = mean_and_interval(recalls, lambda delta: np.array(list(masses(delta).values())))
    lengths = [len(delta) for recall in recalls for delta in recall.deltas]
    row = about_group(group, recalls)
    blind = sum(recall.blind for recall in recalls)
    row |= {"agents": len(recalls), "episodes": len(lengths), "episodes_left_out": blind}
    row |= {"length_mean": np.mean(lengths) if lengths else np.nan}
    for i, mass in enumerate(MASSES):
        row |= {mass: mean[i], f"{mass}_low": low[i], f"{mass}_high": high[i]}
    return row


def density_rows_of(group: str, recalls: list[Recall], bins: int) -> list[dict]:
    """A group's rows of `density.csv`: the expected density over normalised time, whose integral is 1."""
    edges = np.linspace(0, 1, bins + 1)
    density = mean_and_interval(recalls, lambda delta: density_of(delta, bins))
    about = about_group(group, recalls)
    names = "tau_low", "tau_high", "density", "density_low", "density_high"
    columns = zip(edges[:-1], edges[1:], *density, strict=True)
    return [about | dict(zip(names, numbers, strict=True)) for numbers in columns]


def agent_row_of(group: str, recall: Recall) -> dict:
    """An agent's row of `agents.csv`: means over its episodes, the return over all of them."""
    found = [{"length_mean": len(delta), "first_frame": delta[0]} | masses(delta) for delta in recall.deltas]
    names = ("length_mean", "first_frame", *MASSES)
    row = {name: np.mean([each[name] for each in found]) if found else np.nan for name in names}
    row |= {"return_mean": np.mean(recall.returns), "episodes": len(found), "episodes_left_out": recall.blind}
    about = describe(recall.agent) | {"group": group, "seed": recall.agent.args.seed}
    return {name: row[name] if name in row else about[name] for name in AGENT_COLUMNS}


def episode_rows_of(recall: Recall) -> list[dict]:
    """An agent's rows of `episodes.csv`."""
    about = {name: value for name, value in describe(recall.agent).items() if name in EPISODE_COLUMNS}
    about |= {"seed": recall.agent.args.seed}
    return [about | {"episode": k, "length": len(delta)} | masses(delta) for k, delta in enumerate(recall.deltas)]


# ----------------------------------------------------------------------------------------------------------- pictures


def draw(rows: list[dict], densities: list[list[dict]]) -> Figure:
    """A column for each id: above the mass of each third for every group, below the densities over normalised time.

    Where an id has more than MANY groups, each twin has two rows of its own.
    """
    ids, twins = (list(dict.fromkeys(row[name] for row in rows)) for name in ("env_id", "twin"))
    by_twin = max(sum(row["env_id"] == env_id for row in rows) for env_id in ids) > MANY
    twins = twins if by_twin else [""]
    panels = {(twin, env_id): [] for twin in twins for env_id in ids}
    for row, density in zip(rows, densities, strict=True):
        panels[row["twin"] if by_twin else "", row["env_id"]].append((row, density))
    width = max(4.2, 1.2 * max(map(len, panels.values())) + 0.8)
    figure = Figure(figsize=(width * len(ids), 7 * len(twins)), layout="constrained")
    grid = figure.subplots(2 * len(twins), len(ids), squeeze=False, sharey="row")
    axes = np.stack([grid[::2].ravel(), grid[1::2].ravel()], axis=1)
    for ((twin, env_id), found), (bars, curves) in zip(panels.items(), axes, strict=True):
        if not found:
            bars.set_axis_off()
            curves.set_axis_off()
            continue
        bars.set_title(f"{env_id}, {twin}" if twin else env_id, fontsize=10)
        draw_thirds(bars, [row for row, _ in found])
        draw_densities(curves, found)
    for bars, curves in zip(grid[::2, 0], grid[1::2, 0], strict=True):
        bars.set_ylabel("share of the gradient\nof the last decision")
        curves.set_ylabel("recall density")
    return figure


def draw_densities(axes: Any, found: list[tuple[dict, list[dict]]]) -> None:
    """A line with its interval for each group, its row and its density."""
    for row, density in found:
        middle = [(part["tau_low"] + part["tau_high"]) / 2 for part in density]
        low, mean, high = ([part[name] for part in density] for name in ("density_low", "density", "density_high"))
        line = axes.plot(middle, mean, marker=".", label=row["group"].partition(", ")[2])[0]
        axes.fill_between(middle, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel="normalised time of the frame, t / n", xlim=(0, 1))
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3)


def tick(row: dict) -> str:
    """A group's name below its bars, without the environment, in lines."""
    return row["group"].partition(", ")[2].replace(", ", "\n").replace(" (", "\n(")


def draw_thirds(axes: Any, rows: list[dict]) -> None:
    """Three bars with intervals for each group, and in the third of them the last frame's part."""
    for i, (third, (low, high)) in enumerate(THIRDS.items()):
        places = np.arange(len(rows)) + (i - 1) * 0.27
        means = np.array([row[third] for row in rows])
        errors = [means - [row[f"{third}_low"] for row in rows], [row[f"{third}_high"] for row in rows] - means]
        colour = ("#b5367a", "#fb8861", "#3b528b")[i]
        axes.bar(places, means, 0.25, yerr=np.maximum(errors, 0), capsize=2, color=colour, label=f"{low} to {high}")
    places = np.arange(len(rows)) + 0.27
    axes.plot(places, [row["last_frame"] for row in rows], "wD", markeredgecolor="black", label="t = n alone")
    axes.set_xticks(range(len(rows)), [tick(row) for row in rows], fontsize=8)
    axes.set(ylim=(0, 1.45), yticks=np.linspace(0, 1, 6), xlim=(-0.5, len(rows) - 0.5))
    axes.legend(title="t / n", fontsize=7, title_fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, 1.02))
    axes.grid(axis="y", alpha=0.3)


# --------------------------------------------------------------------------------------------------------------- main


def load_all(args: Args) -> list[Agent]:
    """Every seed of every run in every twin asked for. Raises UserError at the first that cannot be."""
    agents = load_agents(args.runs, args.step)
    agents = [twin for agent in agents for twin in in_twins(agent, args.twin, args.env_id)]
    agents = [one_seed(agent, index) for agent in agents for index in range(agent.args.num_seeds)]
    groups_of(agents)  # refuses an agent that is there twice
    return agents


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
            told = [delta for delta in deltas if not np.isnan(delta).any()]
            recalls.append(Recall(agent, told, len(deltas) - len(told), tuple(returns)))
    return recalls


def filled_up(recall: Recall) -> np.ndarray:
    """The densities as one array [episodes, steps], nan after an episode's end."""
    longest = max(map(len, recall.deltas), default=0)
    ends = [np.pad(delta, (0, longest - len(delta)), constant_values=np.nan) for delta in recall.deltas]
    return np.stack(ends) if ends else np.empty((0, 0))


def write(out: Path, recalls: list[Recall], bins: int) -> list[dict]:
    """Tables, picture and the densities themselves; the rows of the groups."""
    places = groups_of([recall.agent for recall in recalls])
    groups = {label: [recalls[place] for place in group] for label, group in places.items()}
    rows = [row_of(label, group) for label, group in groups.items()]
    densities = [density_rows_of(label, group, bins) for label, group in groups.items()]
    write_csv(out / "recall_density.csv", COLUMNS, rows)
    write_csv(out / "density.csv", DENSITY_COLUMNS, sum(densities, []))
    agents = [agent_row_of(label, recall) for label, group in groups.items() for recall in group]
    write_csv(out / "agents.csv", AGENT_COLUMNS, agents)
    write_csv(out / "episodes.csv", EPISODE_COLUMNS, sum(map(episode_rows_of, recalls), []))
    names = [f"{one.agent.name}__seed_{one.agent.args.seed}__{twin_name(one.agent)}" for one in recalls]
    np.savez_compressed(out / "deltas.npz", **dict(zip(names, map(filled_up, recalls), strict=True)))
    draw(rows, densities).savefig(out / "recall_density.png", dpi=150)
    return rows


def table(rows: list[dict]) -> str:
    """A line per group: its masses with their intervals, over its agents, or over the episodes of an only one."""
    width = max(len(row["group"]) for row in rows)
    heads = "".join(f"{mass.replace('_', ' '):>22}" for mass in MASSES)
    lines = [f"{'':<{width}} {'agents':>6} {'episodes':>8}{heads}"]
    for row in rows:
        cells = [f"{row[mass]:.3f} ({row[f'{mass}_low']:.3f}, {row[f'{mass}_high']:.3f})" for mass in MASSES]
        numbers = f"{row['agents']:>6} {row['episodes']:>8}"
        lines.append(f"{row['group']:<{width}} {numbers}" + "".join(f"{cell:>22}" for cell in cells))
    return "\n".join(lines)


def main(args: Args) -> Path:
    """Plays, measures, prints a table and writes; returns the folder."""
    agents = load_all(args.checked())
    with new_folder(args.out) as out:
        rows = write(out, measure(agents, args), args.bins)
    print(table(rows), f"written to {out}", sep="\n")
    return out


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except UserError as error:
        print(f"{SCRIPT}.py: error: {error}", file=sys.stderr)
        sys.exit(2)
