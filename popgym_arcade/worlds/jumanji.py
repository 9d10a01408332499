"""Jumanji's games and puzzles with discrete actions (Apache-2.0), `jumanji/Snake-v1`.

Bonnet et al. 2024, arXiv:2306.09884. Everything an agent may observe is joined into one vector, the mask of its valid
actions included.
"""

import jax
import jax.numpy as jnp
import jumanji
from gymnax.environments import spaces
from gymnax.environments.environment import EnvParams
from jumanji.specs import DiscreteArray

from popgym_arcade.worlds.device import DeviceEnvironment


class Puzzle(DeviceEnvironment):
    """An environment. Observations are float32 [F]. Some have a time limit of their own."""

    max_steps = 10_000

    def __init__(self, name: str):
        """Raises ValueError for an environment whose actions are not one number."""
        self.env = jumanji.make(name)
        if not isinstance(self.env.action_spec, DiscreteArray):
            raise ValueError(f"{name} has {type(self.env.action_spec).__name__} actions: use one with discrete actions")

    def first(self, key: jax.Array):
        return self.env.reset(key)

    def advance(self, key: jax.Array, inner, action: jax.Array):
        state, timestep = self.env.step(inner[0], action)
        terminated = timestep.last() & (timestep.discount == 0)
        return (state, timestep), timestep.reward, terminated, timestep.last() & ~terminated

    def observe(self, inner) -> jax.Array:
        parts = jax.tree.leaves(inner[1].observation)
        return jnp.concatenate([jnp.asarray(part, jnp.float32).reshape(-1) for part in parts])

    def action_space(self, params: EnvParams) -> spaces.Discrete:
        return spaces.Discrete(int(self.env.action_spec.num_values))


def ids() -> list[str]:
    return [name for name in jumanji.registered_environments() if name != "Sokoban-v0"]  # its levels are a download


def make(name: str) -> Puzzle:
    return Puzzle(name)
