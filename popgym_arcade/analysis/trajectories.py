"""Episodes that an agent plays, step by step, and what it saw in them.

Shapes: T steps of an episode, E episodes side by side.
"""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from popgym_arcade.analysis.agents import Agent
from popgym_arcade.baselines.environment import is_arcade, make_env
from popgym_arcade.baselines.scripts import script_of

RECORD_STEPS = 32  # between two checks of whether the episodes are over
OF_MEMORY = ("prev_action", "start", "prev_reward")  # what a script with a memory may read next to observations


@dataclass(frozen=True)
class Trajectory:
    """The first T steps of an episode: what the agent saw and did."""

    state: Any  # of the environment, before each step, leaves [T, ...]
    obs: np.ndarray | None  # [T, ...]; None where `observations` draws it from the state
    prev_action: np.ndarray  # like action, as the network read it; zero without a memory
    start: np.ndarray  # bool [T], where the memory was reset: at the first step, or also after every lost life
    prev_reward: np.ndarray  # float32 [T], in the units of learning; zero for a network that does not read it
    action: np.ndarray  # int32 [T], or float32 [T, A]
    reward: np.ndarray  # float32 [T], in the game's own units
    over: bool  # whether the episode ended with the last step

    def __len__(self) -> int:
        return len(self.reward)


def record(agent: Agent, key: jax.Array, episodes: int, steps: int | None = None) -> list[Trajectory]:
    """The first `steps` steps (None: all) of each of several episodes of the greedy policy."""
    begin, advance = record_program(dataclasses.replace(agent.args, seed=0), episodes)
    actor, chunks, over = begin(key), [], np.zeros(episodes, bool)
    while not over.all() and (steps is None or len(chunks) * RECORD_STEPS < steps):
        actor, chunk = advance(agent.params, actor)
        chunks.append(jax.tree.map(np.asarray, chunk))
        over |= chunks[-1]["over"].any(axis=0)
    recorded = jax.tree.map(lambda *parts: np.concatenate(parts)[:steps], *chunks)  # [T, E, ...]
    return [one_trajectory(jax.tree.map(lambda x, i=i: x[:, i], recorded)) for i in range(episodes)]


@functools.lru_cache
def record_program(args: Any, episodes: int):
    """begin(key) -> actor of that many episodes; advance(params, actor) -> (actor, greedy steps [T, E, ...])."""
    script = script_of(args)
    _, begin, act = script.make_actor(args)

    def step(params, actor):
        before = {"state": actor.env_state, "obs": None if is_arcade(args) else actor.obs}
        before |= {name: getattr(actor, name) for name in OF_MEMORY if hasattr(actor, name)}
        actor, transition, info = act(params, actor, script.POLICIES["greedy"])
        after = {"action": transition.action, "reward": info["raw_reward"]}
        return actor, before | after | {"over": transition.episode.over}

    def advance(params, actor):
        return jax.lax.scan(lambda actor, _: step(params, actor), actor, length=RECORD_STEPS)

    return jax.jit(lambda key: begin(key, episodes)), jax.jit(advance)


def one_trajectory(recorded: dict) -> Trajectory:
    """What was recorded in one environment, [T, ...], up to the end of its first episode."""
    ends = np.flatnonzero(recorded["over"])
    length = int(ends[0]) + 1 if ends.size else len(recorded["over"])
    kept = jax.tree.map(lambda x: x[:length], recorded)
    without = {"prev_action": 0 * kept["action"], "start": np.arange(length) == 0, "prev_reward": 0 * kept["reward"]}
    return Trajectory(
        **{name: kept.get(name, without[name]) for name in OF_MEMORY},
        state=kept["state"],
        obs=kept["obs"],
        action=kept["action"],
        reward=kept["reward"],
        over=bool(ends.size),
    )


def observations(agent: Agent, trajectory: Trajectory) -> np.ndarray:
    """What the agent saw, [T, ...]. Frames are drawn from the states, as the twin that it plays shows them."""
    if trajectory.obs is not None:
        return trajectory.obs
    return np.asarray(draw_program(agent.args)(trajectory.state))


@functools.lru_cache
def draw_program(args: Any):
    """The frames [T, ...] of states [T, ...]."""
    env, _ = make_env(args)
    return jax.jit(jax.vmap(env.get_obs))
