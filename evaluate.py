"""Plays complete episodes with trained agents, on the twin they were trained on or on the other.

Run:   python evaluate.py --runs 'runs/CartPoleEasy__*' --twin both --gif
Page:  docs/evaluate.md

Writes `evaluate.csv` (a row per run, seed and twin), `episodes.csv` (a row per episode) and, on request, videos.
Shapes: S seeds of a run, K episodes of each, L frames of a video.
"""

import dataclasses
import functools
import importlib.util
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from popgym_arcade.analysis.agents import Agent, describe, one_seed
from popgym_arcade.analysis.command_line import PlayArgs, launch, shipped_agents
from popgym_arcade.analysis.intervals import interval
from popgym_arcade.analysis.matches import load_rival, match_actor
from popgym_arcade.analysis.output import new_folder
from popgym_arcade.analysis.runs import evaluated_with
from popgym_arcade.analysis.twins import load_in_twins
from popgym_arcade.baselines import seats
from popgym_arcade.baselines.devices.mesh import over_seeds
from popgym_arcade.baselines.environment import is_arcade, make_env, shows_pixels, spaces_of
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import Count, NonNegativeInt, PathName
from popgym_arcade.baselines.running.evaluation import keys_at_step, make_evaluate, make_keys
from popgym_arcade.baselines.running.files import write_csv
from popgym_arcade.baselines.running.pictures import make_renderer, save_gif
from popgym_arcade.baselines.scripts import script_of

VIDEO_STEPS = 32  # of a video, between two checks of whether the episodes are over
RESULTS = ("won", "drawn", "lost")
COLUMNS = (
    *("run", "script", "memory", "trained_env_id", "trained_partial_obs", "global_step", "seed"),
    *("env_id", "env_params", "partial_obs", "twin", "policy", "episodes"),
    *("return_mean", "return_std", "return_low", "return_high"),
    *("return_min", "return_max", "length_mean", "wall_seconds", "against", *RESULTS),
)
EPISODE_COLUMNS = ("run", "against", "seed", "env_id", "partial_obs", "policy", "episode", "return", "length")


# --------------------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True)
class Args(PlayArgs):
    runs: tuple[PathName, ...] = shipped_agents(__file__)
    """run folders, or patterns that match some (the agents that come with the repository)"""
    episodes: Count | None = None
    """episodes of each seed and twin; None: as many as an evaluation during training"""
    sample: bool = False
    """sample actions from the policy; Q networks explore with the epsilon at the end of training"""
    env_params: tuple[str, ...] = ()
    """fields of the environment's parameters to replace, as NAME=VALUE ...; others stay as in training evaluations"""
    seed: NonNegativeInt | None = None
    """seed of the episodes; None: those of the run's own evaluation at that step"""
    gif: bool = False
    """record whole episodes as GIF (environments with pixels only)"""
    mp4: bool = False
    """record whole episodes as MP4, which needs the package av"""
    videos: Count = 1
    """episodes to record, of the first seed of each run and of each twin"""
    side_by_side: bool = False
    """show both twins in the videos, the partially observable one on the left"""
    against: PathName = ""
    """run folder of an opponent, in two-player games; empty: the game's own opponent, or a random one"""

    def check(self) -> None:
        if self.side_by_side and not (self.gif or self.mp4):
            raise UserError("--side-by-side applies to videos: add --gif or --mp4")
        if self.mp4 and importlib.util.find_spec("av") is None:
            raise UserError("--mp4 needs the package av: pip install av")


# ---------------------------------------------------------------------------------------------------------- episodes


@dataclass(frozen=True)
class Episodes:
    """Returns and lengths [S, K] of complete episodes, and the seconds they took."""

    agent: Agent
    policy: str
    returns: np.ndarray
    lengths: np.ndarray
    seconds: float
    against: str = ""  # the opponent's run, if any

    @property
    def results(self) -> np.ndarray:
        """Numbers of games that each seed won, drew and lost, [S, 3]."""
        return seats.results(self.returns)


def policy_of(agent: Agent, sample: bool) -> Any:
    """The policy to pass to a script's `act`: the greedy one, or that of the last training steps."""
    if not sample:
        return agent.script.POLICIES["greedy"]
    return agent.script.SAMPLE if hasattr(agent.script, "SAMPLE") else agent.args.end_e


def evaluation_keys(agent: Agent, seed: int | None) -> jax.Array:
    """The keys of the run's evaluation at the checkpoint's step, or of another seed; one for each seed."""
    if seed is not None:
        return make_keys(dataclasses.replace(agent.args, seed=seed))[1]
    return keys_at_step(agent.args, make_keys(agent.args)[1], agent.step)


def actor_of(args: Any, rival_args: Any = None) -> tuple:
    """The functions begin and act of a script, or those of a match."""
    return match_actor(args, rival_args) if rival_args else script_of(args).make_actor(args)[1:]


def inputs_of(agent: Agent, rival: Agent | None, sample: bool) -> tuple[Any, Any]:
    """The parameters and the policy that `act` of `actor_of` reads."""
    return ((agent.params, rival.params), sample) if rival else (agent.params, policy_of(agent, sample))


@functools.lru_cache
def evaluation_program(args: Any, rival_args: Any = None):
    """The run's own evaluate(params, keys, policy), or that of a match, over all seeds. Runs that differ in their
    seed share it."""
    of_rival = 0 if rival_args and rival_args.num_seeds > 1 else None  # a rival with one seed plays against all seeds
    of_params = (0, of_rival) if rival_args else 0
    evaluate = make_evaluate(args, *actor_of(args, rival_args))
    return jax.jit(over_seeds(evaluate, args, (of_params, 0, None)))


def play(agent: Agent, sample: bool = False, seed: int | None = None, rival: Agent | None = None) -> Episodes:
    """`agent.args.eval_episodes` complete episodes of every seed of a run, against those of a rival if there is one."""
    evaluate = evaluation_program(*(dataclasses.replace(x.args, seed=0) for x in (agent, rival) if x))
    params, policy = inputs_of(agent, rival, sample)
    began = time.perf_counter()
    found = jax.block_until_ready(evaluate(params, evaluation_keys(agent, seed), policy))
    seconds = time.perf_counter() - began
    returns, lengths = (np.asarray(x, float).reshape(agent.args.num_seeds, -1) for x in (found.returns, found.lengths))
    how = {"policy": "sample" if sample else "greedy", "against": rival.name if rival else ""}
    return Episodes(agent=agent, returns=returns, lengths=lengths, seconds=seconds, **how)


def rows_of(episodes: Episodes) -> list[dict]:
    """The rows of `evaluate.csv`."""
    rows = []
    for i, (returns, lengths) in enumerate(zip(episodes.returns, episodes.lengths, strict=True)):
        low, high = interval(returns)
        rows.append(
            describe(episodes.agent)
            | {"seed": episodes.agent.args.seed + i, "policy": episodes.policy, "episodes": returns.size}
            | {"env_params": evaluated_with(dataclasses.asdict(episodes.agent.args))}
            | {"return_mean": returns.mean(), "return_std": returns.std(), "return_low": low, "return_high": high}
            | {"return_min": returns.min(), "return_max": returns.max(), "length_mean": lengths.mean()}
            | {"wall_seconds": round(episodes.seconds, 3), "against": episodes.against}
            | (dict(zip(RESULTS, episodes.results[i], strict=True)) if episodes.against else {})
        )
    return rows


def episode_rows_of(episodes: Episodes) -> list[dict]:
    """The rows of `episodes.csv`."""
    about = describe(episodes.agent) | {"policy": episodes.policy, "against": episodes.against}
    about = {name: value for name, value in about.items() if name in EPISODE_COLUMNS}
    return [
        about
        | {"seed": episodes.agent.args.seed + i, "episode": k}
        | {"return": episodes.returns[i, k], "length": int(episodes.lengths[i, k])}
        for i, k in np.ndindex(episodes.returns.shape)
    ]


def table(played: list[Episodes]) -> str:
    """A line per run and twin: mean and deviation over episodes; interval over seeds or, with one, over episodes."""
    width = max(len(episodes.agent.name) for episodes in played)
    columns = f"{'twin':<5} {'seeds':>5} {'episodes':>8} {'return':>16} {'95% interval':>18} {'length':>8}"
    lines = [f"{'run':<{width}} {columns}"]
    for episodes in played:
        means = episodes.returns.mean(axis=1)
        low, high = interval(means if means.size > 1 else episodes.returns[0])
        value, bounds = f"{means.mean():.3f} ± {episodes.returns.std():.3f}", f"{low:.3f} to {high:.3f}"
        run = f"{episodes.agent.name:<{width}} {episodes.agent.twin:<5} {means.size:>5}"
        lines.append(f"{run} {episodes.returns.size:>8} {value:>16} {bounds:>18} {episodes.lengths.mean():>8.1f}")
        if episodes.against:
            counts = ", ".join(f"{n} {name}" for n, name in zip(episodes.results.sum(axis=0), RESULTS, strict=True))
            lines.append(f"  against {episodes.against}: {counts}")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------------------- videos


def record_video(args: Args, agent: Agent, rival: Agent | None) -> list[np.ndarray]:
    """Frames uint8[L, height, width, 3] of the first episodes that `play` plays with a run's first seed."""
    key, videos = evaluation_keys(agent, args.seed), args.videos
    if agent.args.num_seeds > 1:
        agent, key = one_seed(agent, 0), key[0]
    rival = one_seed(rival, 0) if rival else None
    begin, act = actor_of(agent.args, rival and rival.args)
    params, policy = inputs_of(agent, rival, args.sample)
    twins = (True, False) if args.side_by_side else (getattr(agent.args, "partial_obs", False),)
    render = make_renderer(agent.args, twins)

    def draw(*seen):
        """The first environments; two-player games have two rows of what is seen."""
        return render(*jax.tree.map(lambda x: x[: len(x) // agent.args.eval_episodes * videos], seen))

    def step(actor, _):
        actor, transition, info = act(params, actor, policy)
        return actor, (draw(info.get("final_state"), info["final_observation"]), transition.episode.over[:videos])

    actor = begin(key, agent.args.eval_episodes)
    shots = [[frame] for frame in np.asarray(draw(actor.env_state, actor.obs))]
    advance = jax.jit(lambda actor: jax.lax.scan(step, actor, length=VIDEO_STEPS))
    over = np.zeros(len(shots), bool)
    while not over.all():
        actor, (frames, ends) = advance(actor)
        for shot, end in zip(np.asarray(frames), np.asarray(ends), strict=True):
            for i in np.flatnonzero(~over):
                shots[i].append(shot[i])
            over |= end
    return [np.stack(frames) for frames in shots]


def save_mp4(frames: np.ndarray, path: Path) -> None:
    """The video that `save_gif` writes, as H.264."""
    import av  # optional: it takes 36 MB

    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=20, options={"crf": "18"})
        stream.height, stream.width, stream.pix_fmt = 2 * frames.shape[1], 2 * frames.shape[2], "yuv420p"
        for frame in frames.repeat(2, axis=1).repeat(2, axis=2):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame)))
        container.mux(stream.encode())


WRITERS = {"gif": save_gif, "mp4": save_mp4}


# -------------------------------------------------------------------------------------------------------------- main


def load_all(args: Args) -> tuple[list[Agent], Agent | None]:
    """Every agent on every twin asked for, with `--episodes`, and their rival, if any. Raises UserError for what one of
    them cannot do."""
    agents = load_in_twins(args, two_player=True)
    if args.side_by_side and not all(is_arcade(agent.args) for agent in agents):
        raise UserError("--side-by-side: one of these environments has no twins")
    if (args.gif or args.mp4) and not all(shows_pixels(agent.args) for agent in agents):
        raise UserError("--gif and --mp4 record environments with pixels only: leave them out")
    if args.sample and not all(hasattr(agent.script, "SAMPLE") or hasattr(agent.args, "end_e") for agent in agents):
        raise UserError("--sample: one of these scripts has neither a policy nor an epsilon")
    agents = [dataclasses.replace(agent, args=agent.args.in_evaluation(args.env_params)) for agent in agents]
    for task in (task for agent in agents for task in agent.args.tasks):
        make_env(task)  # rejects parameters that it does not have
    for agent in agents:
        if spaces_of(agent.args) != spaces_of(agent.saved):
            raise UserError(f"--env-params change the observations or actions that {agent.name} was trained on")
    rival = load_rival(args.against, agents) if args.against else None
    episodes = {} if args.episodes is None else {"eval_episodes": args.episodes}
    fewest = min(episodes.get("eval_episodes", agent.args.eval_episodes) for agent in agents)
    if (args.gif or args.mp4) and args.videos > fewest:
        raise UserError(f"--videos {args.videos}: only {fewest} episodes are played")
    return [dataclasses.replace(agent, args=dataclasses.replace(agent.args, **episodes)) for agent in agents], rival


def write_videos(args: Args, agent: Agent, rival: Agent | None, out: Path) -> None:
    """`{run}__{twin}__{episode}.gif` and `.mp4`, as asked for."""
    writers = {kind: write for kind, write in WRITERS.items() if getattr(args, kind)}
    for i, frames in enumerate(record_video(args, agent, rival)):
        for kind, write in writers.items():
            write(frames, out / f"{agent.name}__{agent.twin}__{i}.{kind}")


def main(args: Args) -> Path:
    """Plays, prints a table, writes the results and returns their folder."""
    args = args.checked()
    agents, rival = load_all(args)
    with new_folder(args) as out:
        each = tqdm(agents, "playing", unit="run", disable=None)
        played = [play(agent, args.sample, args.seed, rival) for agent in each]
        write_csv(out / "evaluate.csv", COLUMNS, sum(map(rows_of, played), []))
        write_csv(out / "episodes.csv", EPISODE_COLUMNS, sum(map(episode_rows_of, played), []))
        for agent in tqdm(agents if args.gif or args.mp4 else [], "recording", unit="run", disable=None):
            write_videos(args, agent, rival, out)
    print(table(played), f"written to {out}", sep="\n")
    return out


if __name__ == "__main__":
    launch(main, Args)
