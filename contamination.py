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
from matplotlib.ticker import MaxNLocator
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
VARYING = {  # from one seed of a training to another
    *("seed", "num_seeds", "run_dir", "resume", "log_every", "eval_every", "eval_episodes", "checkpoint_every"),
    *("capture_video", "target_return"),
}
GROUP = ("group", "script", "memory", "trained_env_id", "trained_partial_obs", "env_id", "partial_obs", "twin")
COLUMNS = (
    *GROUP,
    *("kind", "strength", "lag", "agents", "episodes"),
    *(f"{measure}{what}" for measure in MEASURES for what in ("", "_low", "_high")),
)
SUMMARY_COLUMNS = (
    *(*GROUP, "kind", "strength", "measure"),
    *("at_once", "one_step_later", "largest", "largest_lag", "half_life"),
)
MOST_FRAMES = 10  # of a picture
MANY = 6  # groups of which a picture shows every strength


# --------------------------------------------------------------------------------------------------------- arguments


class UserError(Exception):
    """Something the user can put right: shown as one line, exit code 2."""


@dataclass(frozen=True)
class Args:
    runs: tuple[str, ...] = (glob.escape(str(SHIPPED)) + "/*",)
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
        for name in ("kind", "sigma"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise UserError(f"--{name} {' '.join(map(str, getattr(self, name)))}: name each once")
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


def noisy(frame: np.ndarray, sigmas: tuple[float, ...], unit: Any, rng: np.random.Generator) -> np.ndarray:
    """[V, B, ...]: what was seen in one step, frame[B, ...], untouched and with Gaussian noise of sigma * unit.

    Every strength has the same noise, only larger. uint8 frames stay within 0 to 255; anything else becomes float32.
    """
    noise = rng.standard_normal(frame.shape)
    changed = np.stack([frame + sigma * unit * noise for sigma in (0, *sigmas)])
    return np.rint(changed).clip(0, 255).astype(np.uint8) if frame.dtype == np.uint8 else changed.astype(np.float32)


def shuffled(obs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[2, C, B, ...]: obs[C, B, ...], untouched and in another order in each episode."""
    versions = np.stack([obs] * 2)
    for episode in range(obs.shape[1]):
        versions[1, :, episode] = obs[rng.permutation(len(obs)), episode]
    return versions


@functools.lru_cache
def replay_program(script: ModuleType, args: Any):
    """replay(params, before, versions[V, C, B, ...], after, beside, each [T, B]) -> outputs [L, V, B, A].

    The outputs are those from the last changed step on. `before` and `after` are the states (or observations) of the
    steps before and after the changed ones, [P, B, ...] and [T - P - C, B, ...]. They are the same for all versions and
    read once: only the memories differ.
    """
    network, _, _ = script.make_actor(args)
    env, _ = script.make_env(args)

    def replay(params, before, versions, after, *beside):
        first, changed = len(jax.tree.leaves(before)[0]), versions.shape[1]
        met = [tuple(x[part] for x in beside) for part in parts(first, changed)]

        def read(carry, now):
            """One step that all versions share, with one memory."""
            seen, *rest = now
            obs = jax.vmap(env.get_obs)(seen) if script_draws(script, args) else seen
            return script.forward(network, params, carry, obs[None], *(x[None] for x in rest))

        def read_all(carry, now):
            """The same with a memory for each version."""
            carry, output = jax.vmap(lambda carry: read(carry, now), axis_size=len(versions))(carry)
            return carry, jax.vmap(last_of)(output)

        carry = script.initial_carry(network, versions.shape[2])
        carry, _ = jax.lax.scan(lambda carry, now: (read(carry, now)[0], None), carry, (before, *met[0]))
        carry, output = jax.vmap(lambda obs: script.forward(network, params, carry, obs, *met[1]))(versions)
        at_once = jax.vmap(last_of)(output)
        _, later = jax.lax.scan(read_all, carry, (after, *met[2]))
        return jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), at_once, later)

    return jax.jit(replay)


def parts(first: int, changed: int) -> tuple[slice, slice, slice]:
    """The steps before the changed ones, these, and those after."""
    return slice(first), slice(first, first + changed), slice(first + changed, None)


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


def reaching(trajectories: list[Trajectory], kind: str, args: Args) -> list[Trajectory]:
    """The episodes that last until the change is over."""
    return [trajectory for trajectory in trajectories if len(trajectory) >= changed_steps(kind, args).stop]


def changed_steps(kind: str, args: Args) -> range:
    """The steps whose frames are changed."""
    return range(args.at, args.at + 1) if kind == "noise" else range(args.first)


def contaminate(agent: Agent, trajectories: list[Trajectory], kind: str, args: Args) -> Contamination:
    """Replays episodes that last until the change is over, untouched and changed.

    Raises:
        UserError: when what the agent sees never changes, and noise has no unit.
    """
    changed = changed_steps(kind, args)
    steps = min(changed.stop + args.steps, max(map(len, trajectories)))
    rng = np.random.default_rng([args.seed, ("noise", "permutation").index(kind)])
    seen = stacked(trajectories, "state" if script_draws(agent.script, agent.args) else "obs", steps)
    of_change = [cut(trajectory, changed) for trajectory in trajectories]
    obs = np.stack([observations(agent, trajectory) for trajectory in of_change], axis=1)  # [C, B, ...]
    if kind == "noise":
        versions = noisy(obs[0], args.sigma, unit_of(agent, trajectories), rng)[:, None]
    else:
        versions = shuffled(obs, rng)
    before, _, after = (jax.tree.map(lambda x, part=part: x[part], seen) for part in parts(changed.start, len(changed)))
    met = (stacked(trajectories, name, steps) for name in read_beside(agent.script))
    replay = replay_program(agent.script, dataclasses.replace(agent.args, seed=0))
    effects = effects_of(replay(agent.params, before, versions, after, *met))  # from the last changed step on
    lasts = np.array([len(trajectory) for trajectory in trajectories])
    over = np.arange(changed.stop - 1, steps)[:, None] >= lasts  # [L, B]
    effects = {name: np.where(over, np.nan, values) for name, values in effects.items()}
    strengths = args.sigma if kind == "noise" else (float(args.first),)
    return Contamination(agent, kind, strengths, effects, versions[:, :MOST_FRAMES, 0].copy())


def cut(trajectory: Trajectory, steps: range) -> Trajectory:
    """Some steps of a trajectory, as far as `observations` needs them."""
    part = slice(steps.start, steps.stop)
    obs = None if trajectory.obs is None else trajectory.obs[part]
    return dataclasses.replace(trajectory, state=jax.tree.map(lambda x: x[part], trajectory.state), obs=obs)


def unit_of(agent: Agent, trajectories: list[Trajectory]) -> Any:
    """What noise of sigma 1 is: the whole range of frames, of other observations each number's standard deviation.

    Raises:
        UserError: when no number ever changes.
    """
    if trajectories[0].obs is None or trajectories[0].obs.dtype == np.uint8:
        return 255.0
    unit = np.concatenate([trajectory.obs for trajectory in trajectories]).astype(float).std(axis=0)
    if not unit.any():
        raise UserError(f"--kind noise: what {agent.name} sees never changes")
    return unit


def curve(group: list[Contamination], measure: str, version: int) -> dict[str, np.ndarray]:
    """Mean, low and high [L] of an effect: over agents, or over episodes of an only one; episodes still going on."""
    lags = max(each.effects[measure].shape[1] for each in group)

    def filled_up(values):  # [L', B] -> [L, B]
        return np.concatenate([values, np.full((lags - len(values), values.shape[1]), np.nan)])

    each = [filled_up(one.effects[measure][version]) for one in group]
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
    """Steps until an effect means[L] has come down to half of its largest for good; 0 if it was none, None if never."""
    if not means.any():
        return 0
    above = np.flatnonzero(means > means.max() / 2)
    return int(above[-1]) + 1 if above[-1] + 1 < len(means) else None


def followed(steps: list[dict]) -> list[dict]:
    """Rows of one strength, step after step, as long as half of the episodes are still going on."""
    return [row for row in steps if 2 * row["episodes"] >= steps[0]["episodes"]]


# ---------------------------------------------------------------------------------------------------- tables, pictures


def rows_of(name: str, group: list[Contamination]) -> list[dict]:
    """A group's rows of `contamination.csv`: one for each strength and step since the change."""
    about = describe(group[0].agent) | {"group": name}
    rows, about = [], {name: about[name] for name in GROUP} | {"kind": group[0].kind, "agents": len(group)}
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

    A panel for each group, a line for each strength; of more than MANY groups a panel for each id and twin, and a line
    for each agent at the strongest change.
    """
    many, strongest = are_many(rows), max(row["strength"] for row in rows)
    panels: dict[str, dict[str, list[dict]]] = {}
    for row in rows:
        env_id, twin, panel, line = row["env_id"], f", {row['twin']}", row["group"], f"{row['strength']:g}"
        if many:
            panel, line = env_id + twin, row["group"].removeprefix(f"{env_id}, ").replace(twin, "", 1)
        if not many or row["strength"] == strongest:
            panels.setdefault(panel, {}).setdefault(line, []).append(row)
    return panels


def are_many(rows: list[dict]) -> bool:
    """Whether there are more groups than a picture shows every strength of."""
    return len({row["group"] for row in rows}) > MANY


def draw_curves(rows: list[dict], kind: str) -> Figure:
    """Effects over the steps since the change: a row for each of `panels_of`, a column for each measure.

    A line ends where less than half of the episodes are still going on.
    """
    rows = [row for row in rows if row["kind"] == kind]
    panels = panels_of(rows)
    measures = [name for name in MEASURES if not all(np.isnan(row[name]) for row in rows)]
    colours = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(itertools.chain(*panels.values())))}
    figure = Figure(figsize=(4.6 * len(measures) + 0.9, 3.0 * len(panels) + 0.4), layout="constrained")
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
    title = "sigma of\nthe noise" if kind == "noise" else "frames\nshuffled"
    if are_many(rows):
        title += f": {max(row['strength'] for row in rows):g}"
    figure.legend(handles, colours, title=title, loc="outside right upper", fontsize=8)
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
    """What the network saw: the frame with each noise, or frames in both orders. None for what is no frame."""
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
    figure.suptitle(label(found.agent), fontsize=9)
    return figure


def table(summary: list[dict]) -> str:
    """A line per group, strength and measure."""
    width = max(len(row["group"]) for row in summary)
    heads = (
        f"{'kind':<12} {'strength':>8} {'measure':<16} {'at once':>9} {'1 later':>9} {'largest':>9} {'half-life':>9}"
    )
    lines = [f"{'':<{width}} {heads}"]
    for row in summary:
        later = "-" if row["one_step_later"] is None else f"{row['one_step_later']:.4f}"
        life = "never" if row["half_life"] is None else row["half_life"]
        about = f"{row['group']:<{width}} {row['kind']:<12} {row['strength']:>8g} {row['measure']:<16}"
        lines.append(f"{about} {row['at_once']:>9.4f} {later:>9} {row['largest']:>9.4f} {life:>9}")
    return "\n".join(lines)


# --------------------------------------------------------------------------------------------------------------- main


def load_all(args: Args) -> list[Agent]:
    """Every seed of every run in every twin asked for. Raises UserError at the first that cannot be."""
    agents = load_agents(args.runs, args.step)
    agents = [twin for agent in agents for twin in in_twins(agent, args.twin, args.env_id)]
    agents = [one_seed(agent, index) for agent in agents for index in range(agent.args.num_seeds)]
    groups_of(agents)  # refuses an agent that is there twice
    return agents


def measure(agents: list[Agent], args: Args) -> list[Contamination]:
    """Every kind of change asked for, done to every agent whose episodes last that long; the others are named.

    Raises:
        UserError: when there is none.
    """
    longest, found = max(args.at + 1, args.first) + args.steps, []
    played = {
        place: record(agent, jax.random.key(args.seed), args.episodes, longest) for place, agent in enumerate(agents)
    }
    jobs = [(place, kind, reaching(played[place], kind, args)) for kind in args.kind for place in played]
    notes = [f"left out, no episode lasts that long: {agents[place].name}, {kind}" for place, kind, x in jobs if not x]
    if len(notes) == len(jobs):
        raise UserError(f"--at {args.at}, --first {args.first}: no episode lasts that long, use lower numbers")
    for place, kind, trajectories in tqdm([job for job in jobs if job[2]], unit="replay", disable=None):
        found.append(contaminate(agents[place], trajectories, kind, args))
    print(*notes, sep="\n", end="\n" if notes else "")
    return found


def write(out: Path, found: list[Contamination]) -> list[dict]:
    """Tables and pictures; the rows of the summary."""
    rows = []
    for kind in dict.fromkeys(each.kind for each in found):
        of_kind = [each for each in found if each.kind == kind]
        for name, places in groups_of([each.agent for each in of_kind]).items():
            group = [of_kind[place] for place in places]
            rows += rows_of(name, group)
            figure = draw_frames(group[0])
            if figure:
                figure.savefig(out / f"{group[0].agent.name}__{twin_name(group[0].agent)}__{kind}.png", dpi=120)
        draw_curves(rows, kind).savefig(out / f"{kind}.png", dpi=150)
    summary = summary_of(rows)
    write_csv(out / "contamination.csv", COLUMNS, rows)
    write_csv(out / "summary.csv", SUMMARY_COLUMNS, summary)
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
