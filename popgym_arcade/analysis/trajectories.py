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


@dataclass(frozen=True)
class Trajectory:
    """The first T steps of an episode: what the agent saw and did."""

    state: Any  # of the environment, before each step, leaves [T, ...]
    obs: np.ndarray | None  # [T, ...]; None where `observations` draws it from the state
    prev_action: np.ndarray  # like action; zero at an episode's first step, which follows no action
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


def record(agent: Agent, key: jax.Array, episodes: int, steps: int | None = None) -> list[Trajectory]:
    """The first `steps` steps (None: all) of each of several episodes of the greedy policy."""
    begin, advance = record_program(dataclasses.replace(agent.args, seed=0), episodes)
    actor, chunks, over = begin(key), [], np.zeros(episodes, bool)
    while not over.all() and (steps is None or len(chunks) * RECORD_STEPS < steps):
        actor, chunk = advance(agent.params, actor)
        chunks.append(jax.tree.map(np.asarray, chunk))
        over |= chunks[-1]["over"].any(axis=0)
    met = jax.tree.map(lambda *parts: np.concatenate(parts)[:steps], *chunks)  # [T, E, ...]
    return [one_trajectory(jax.tree.map(lambda x, i=i: x[:, i], met)) for i in range(episodes)]


@functools.lru_cache
def record_program(args: Any, episodes: int):
    """begin(key) -> actor of that many episodes; advance(params, actor) -> (actor, greedy steps [T, E, ...])."""
    script = script_of(args)
    _, begin, act = script.make_actor(args)

    def step(params, actor):
        before = {"state": actor.env_state, "obs": None if is_arcade(args) else actor.obs}
        actor, transition, _ = act(params, actor, script.POLICIES["greedy"])
        after = {"action": transition.action, "reward": transition.reward}
        return actor, before | after | {"over": transition.episode.over}

    def advance(params, actor):
        return jax.lax.scan(lambda actor, _: step(params, actor), actor, length=RECORD_STEPS)

    return jax.jit(lambda key: begin(key, episodes)), jax.jit(advance)


def one_trajectory(met: dict) -> Trajectory:
    """What was recorded in one environment, [T, ...], up to the end of its first episode."""
    ends = np.flatnonzero(met["over"])
    length = int(ends[0]) + 1 if ends.size else len(met["over"])
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
