"""Plays complete episodes with trained agents, on the twin they were trained on or on the other.

Run:   python evaluate.py --runs 'runs/CartPoleEasy__*' --twin both --gif
Page:  docs/evaluate.md

Writes `evaluate.csv` (a row per run, seed and twin), `episodes.csv` (a row per episode) and, if asked for, films.
Shapes: S seeds of a run, K episodes of each, L frames of a film.
"""

import contextlib
import csv
import dataclasses
import functools
import glob
import importlib
import importlib.util
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
from PIL import Image
from scipy import stats
from tqdm import tqdm

SCRIPT = Path(__file__).stem
SHIPPED = Path(__file__).parent / "agents"
RESAMPLES = 10_000  # of a bootstrap
FILM_STEPS = 32  # of a film between two looks at whether it is over
COLUMNS = (
    *("run", "script", "memory", "trained_env_id", "trained_partial_obs", "global_step", "seed"),
    *("env_id", "partial_obs", "twin", "policy", "episodes", "return_mean", "return_std", "return_low", "return_high"),
    *("return_min", "return_max", "length_mean", "wall_seconds"),
)
EPISODE_COLUMNS = ("run", "seed", "env_id", "partial_obs", "policy", "episode", "return", "length")


# --------------------------------------------------------------------------------------------------------- arguments


class UserError(Exception):
    """Something the user can put right: shown as one line, exit code 2."""


@dataclass(frozen=True)
class Args:
    runs: tuple[str, ...] = (glob.escape(str(SHIPPED)) + "/*",)
    """run folders, or patterns of them (the agents that come with the repository)"""
    out: str = ""
    """new folder for what is written; empty: analysis/evaluate-TIME"""
    twin: Literal["own", "mdp", "pomdp", "both"] = "own"
    """twin to play: that of the training, the fully or the partially observable one, or both"""
    env_id: str = ""
    """another environment, with the same observations and actions; empty: that of the training"""
    step: int | None = None
    """checkpoint to load; None: the last"""
    episodes: int | None = None
    """episodes of each seed and twin; None: as many as training evaluated"""
    sample: bool = False
    """sample from the policy; of action values, explore with the epsilon that training ended with"""
    seed: int | None = None
    """seed of the episodes; None: those of training's own evaluation at that step"""
    gif: bool = False
    """films of whole episodes as GIF (popgym_arcade ids only)"""
    mp4: bool = False
    """films as MP4; needs the package av"""
    films: int = 1
    """episodes to film, of each run's first seed and each twin"""
    side_by_side: bool = False
    """films show both twins, the partially observable one on the left"""

    def checked(self) -> "Args":
        """These arguments. Raises UserError for what can be refused before anything is loaded."""
        for name in ("episodes", "films"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name} {value}: use 1 or more")
        if self.seed is not None and not 0 <= self.seed < 2**31:
            raise UserError(f"--seed {self.seed}: use a number from 0 to {2**31 - 1}")
        if self.side_by_side and not (self.gif or self.mp4):
            raise UserError("--side-by-side is about films: add --gif or --mp4")
        if self.mp4 and importlib.util.find_spec("av") is None:
            raise UserError("--mp4 needs the package av: pip install av")
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


# ----------------------------------------------------------------------------------------------------------- episodes


@dataclass(frozen=True)
class Episodes:
    """Returns and lengths [S, K] of complete episodes, and the seconds that they took."""

    agent: Agent
    policy: str
    returns: np.ndarray
    lengths: np.ndarray
    seconds: float


def policy_of(agent: Agent, sample: bool) -> Any:
    """What a script's `act` takes for its policy: greedy, or as in training's last steps."""
    if not sample:
        return agent.script.POLICIES["greedy"]
    return agent.script.SAMPLE if hasattr(agent.script, "SAMPLE") else agent.args.end_e


def evaluation_keys(agent: Agent, seed: int | None) -> jax.Array:
    """Keys of training's evaluation at the checkpoint's step, or of a seed of one's own; one per seed of the run."""
    script, args = agent.script, agent.args
    if seed is not None:
        return script.make_keys(dataclasses.replace(args, seed=seed))[1]
    return script.over_seeds(jax.random.fold_in, args, (0, None))(script.make_keys(args)[1], agent.step)


@functools.lru_cache
def evaluation_program(script: ModuleType, args: Any):
    """Training's own evaluate(params, keys, policy), over all seeds; runs that differ in their seed share it."""
    return jax.jit(script.over_seeds(script.make_evaluate(args), args, (0, 0, None)))


def play(agent: Agent, sample: bool = False, seed: int | None = None) -> Episodes:
    """`agent.args.eval_episodes` complete episodes of every seed of a run."""
    evaluate = evaluation_program(agent.script, dataclasses.replace(agent.args, seed=0))
    keys = evaluation_keys(agent, seed)
    began = time.perf_counter()
    found = jax.block_until_ready(evaluate(agent.params, keys, policy_of(agent, sample)))
    seconds = time.perf_counter() - began
    returns, lengths = (np.asarray(x, float).reshape(agent.args.num_seeds, -1) for x in (found.returns, found.lengths))
    return Episodes(agent, "sample" if sample else "greedy", returns, lengths, seconds)


def rows_of(episodes: Episodes) -> list[dict]:
    """The rows of `evaluate.csv`."""
    rows = []
    for i, (returns, lengths) in enumerate(zip(episodes.returns, episodes.lengths, strict=True)):
        low, high = interval(returns)
        rows.append(
            describe(episodes.agent)
            | {"seed": episodes.agent.args.seed + i, "policy": episodes.policy, "episodes": returns.size}
            | {"return_mean": returns.mean(), "return_std": returns.std(), "return_low": low, "return_high": high}
            | {"return_min": returns.min(), "return_max": returns.max(), "length_mean": lengths.mean()}
            | {"wall_seconds": round(episodes.seconds, 3)}
        )
    return rows


def episode_rows_of(episodes: Episodes) -> list[dict]:
    """The rows of `episodes.csv`."""
    about = describe(episodes.agent) | {"policy": episodes.policy}
    about = {name: value for name, value in about.items() if name in EPISODE_COLUMNS}
    return [
        about
        | {"seed": episodes.agent.args.seed + i, "episode": k}
        | {"return": episodes.returns[i, k], "length": int(episodes.lengths[i, k])}
        for i, k in np.ndindex(episodes.returns.shape)
    ]


def table(played: list[Episodes]) -> str:
    """A line per run and twin: mean and deviation over episodes, interval over seeds, or over episodes of one seed."""
    lines = [f"{'run':<56} {'on':<5} {'seeds':>5} {'episodes':>8} {'return':>16} {'95% interval':>18} {'length':>8}"]
    for episodes in played:
        means = episodes.returns.mean(axis=1)
        low, high = interval(means if means.size > 1 else episodes.returns[0])
        value, bounds = f"{means.mean():.3f} ± {episodes.returns.std():.3f}", f"{low:.3f} to {high:.3f}"
        run = f"{episodes.agent.name:<56} {twin_name(episodes.agent):<5} {means.size:>5}"
        lines.append(f"{run} {episodes.returns.size:>8} {value:>16} {bounds:>18} {episodes.lengths.mean():>8.1f}")
    return "\n".join(lines)


# -------------------------------------------------------------------------------------------------------------- films


def film(agent: Agent, films: int, sample: bool, seed: int | None, side_by_side: bool) -> list[np.ndarray]:
    """Frames uint8[L, side, side or 2 side, 3] of the first episodes that `play` plays of a run's first seed."""
    key = evaluation_keys(agent, seed)
    if agent.args.num_seeds > 1:
        agent, key = one_seed(agent, 0), key[0]
    script, args, policy = agent.script, agent.args, policy_of(agent, sample)
    _, begin, act = script.make_actor(args)
    partials = (True, False) if side_by_side else (args.partial_obs,)
    twins = [script.make_env(dataclasses.replace(args, partial_obs=partial))[0] for partial in partials]

    def draw(states):
        shown = jax.tree.map(lambda x: x[:films], states)
        return jnp.concatenate([jax.vmap(twin.get_obs)(shown) for twin in twins], axis=2)

    def step(actor, _):
        actor, transition, info = act(agent.params, actor, policy)
        return actor, (draw(info["final_state"]), (transition.terminated | transition.truncated)[:films])

    actor = begin(key, args.eval_episodes)
    shots = [[frame] for frame in np.asarray(draw(actor.env_state))]
    advance = jax.jit(lambda actor: jax.lax.scan(step, actor, length=FILM_STEPS))
    over = np.zeros(len(shots), bool)
    while not over.all():
        actor, (frames, ends) = advance(actor)
        for shot, end in zip(np.asarray(frames), np.asarray(ends), strict=True):
            for i in np.flatnonzero(~over):
                shots[i].append(shot[i])
            over |= end
    return [np.stack(frames) for frames in shots]


def write_gif(path: Path, frames: np.ndarray) -> None:
    """An endless film of frames uint8[L, h, w, 3], twice as large, twenty frames a second."""
    size = 2 * frames.shape[2], 2 * frames.shape[1]
    images = [Image.fromarray(frame).resize(size, Image.Resampling.NEAREST) for frame in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=50, loop=0)


def write_mp4(path: Path, frames: np.ndarray) -> None:
    """The same film as H.264."""
    import av  # an extra of 36 MB

    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=20, options={"crf": "18"})
        stream.height, stream.width, stream.pix_fmt = 2 * frames.shape[1], 2 * frames.shape[2], "yuv420p"
        for frame in frames.repeat(2, axis=1).repeat(2, axis=2):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame)))
        container.mux(stream.encode())


WRITERS = {"gif": write_gif, "mp4": write_mp4}


# --------------------------------------------------------------------------------------------------------------- main


def load_all(args: Args) -> list[Agent]:
    """Every agent in every twin asked for. Raises UserError at the first that cannot be."""
    agents = load_agents(args.runs, args.step)
    agents = [twin for agent in agents for twin in in_twins(agent, args.twin, args.env_id)]
    if (args.gif or args.mp4) and not all(twin_name(agent) != "full" for agent in agents):
        raise UserError("--gif and --mp4 film popgym_arcade ids only: leave them out")
    if args.sample and not all(hasattr(agent.script, "SAMPLE") or hasattr(agent.args, "end_e") for agent in agents):
        raise UserError("--sample: one of these scripts has neither a policy nor an epsilon")
    episodes = {} if args.episodes is None else {"eval_episodes": args.episodes}
    fewest = min(episodes.get("eval_episodes", agent.args.eval_episodes) for agent in agents)
    if (args.gif or args.mp4) and args.films > fewest:
        raise UserError(f"--films {args.films}: only {fewest} episodes are played")
    return [dataclasses.replace(agent, args=dataclasses.replace(agent.args, **episodes)) for agent in agents]


def write_films(args: Args, agent: Agent, out: Path) -> None:
    """`{run}__{twin}__{episode}.gif` and `.mp4`, as asked for."""
    writers = {kind: write for kind, write in WRITERS.items() if getattr(args, kind)}
    for i, frames in enumerate(film(agent, args.films, args.sample, args.seed, args.side_by_side)):
        for kind, write in writers.items():
            write(out / f"{agent.name}__{twin_name(agent)}__{i}.{kind}", frames)


def main(args: Args) -> Path:
    """Plays, prints a table and writes; returns the folder."""
    agents = load_all(args.checked())
    with new_folder(args.out) as out:
        played = [play(agent, args.sample, args.seed) for agent in tqdm(agents, "playing", unit="run", disable=None)]
        write_csv(out / "evaluate.csv", COLUMNS, [row for episodes in played for row in rows_of(episodes)])
        write_csv(
            out / "episodes.csv", EPISODE_COLUMNS, [row for episodes in played for row in episode_rows_of(episodes)]
        )
        for agent in tqdm(agents if args.gif or args.mp4 else [], "filming", unit="run", disable=None):
            write_films(args, agent, out)
    print(table(played), f"written to {out}", sep="\n")
    return out


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except UserError as error:
        print(f"{SCRIPT}.py: error: {error}", file=sys.stderr)
        sys.exit(2)
