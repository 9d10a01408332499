"""Jumanji's games and puzzles with discrete actions (Apache-2.0), `jumanji/Snake-v1`.

Bonnet et al. 2024, arXiv:2306.09884. Everything an agent may observe is joined into one vector, the mask of its valid
actions included.
"""

import jax
import jax.numpy as jnp
import jumanji
import numpy as np
from gymnax.environments import spaces
from gymnax.environments.environment import EnvParams
from jumanji.specs import DiscreteArray

from popgym_arcade.worlds.device import DeviceEnvironment


class Puzzle(DeviceEnvironment):
    """An environment. Observations are float32 [F]; it has its own time limit."""

    max_steps = 2**31 - 1

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
        return jnp.concatenate([part.reshape(-1).astype(jnp.float32) for part in parts])

    def observation_space(self, params: EnvParams) -> spaces.Box:
        obs = jax.eval_shape(lambda key: self.observe(self.first(key)), jax.random.key(0))
        return spaces.Box(-np.inf, np.inf, obs.shape, jnp.float32)

    def action_space(self, params: EnvParams) -> spaces.Discrete:
        return spaces.Discrete(int(self.env.action_spec.num_values))


def ids() -> list[str]:
    return jumanji.registered_environments()


def make(name: str) -> Puzzle:
    return Puzzle(name)
