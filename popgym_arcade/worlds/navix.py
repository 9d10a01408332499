"""NAVIX's MiniGrid tasks (Apache-2.0), `navix/Navix-DoorKey-8x8-v0` (Pignatelli et al. 2024, arXiv:2407.19396).

The agent sees the 7 x 7 squares in front of it, each as MiniGrid's three numbers: kind, colour and state.
"""

import jax
import jax.numpy as jnp
import navix
from gymnax.environments import spaces
from gymnax.environments.environment import EnvParams

from popgym_arcade.worlds.device import DeviceEnvironment

NUMBERS = (11, 6, 4)  # kinds, colours and states of MiniGrid


class Grid(DeviceEnvironment):
    """A task. Observations are float32 [7, 7, kinds + colours + states], 0 or 1."""

    def __init__(self, name: str):
        self.env = navix.make(name, observation_fn=navix.observations.symbolic_first_person)
        self.max_steps = self.env.max_steps

    def first(self, key: jax.Array):
        return self.env.reset(key)

    def advance(self, key: jax.Array, inner, action: jax.Array):
        inner = self.env._step(inner, action)  # `step` also resets, with its own key
        return inner, inner.reward, inner.is_termination(), inner.is_truncation()

    def observe(self, inner) -> jax.Array:
        return jnp.concatenate([jax.nn.one_hot(inner.observation[..., i], n) for i, n in enumerate(NUMBERS)], axis=-1)

    def action_space(self, params: EnvParams) -> spaces.Discrete:
        return spaces.Discrete(int(self.env.action_space.maximum) + 1)


def ids() -> list[str]:
    return list(navix.registry())


def make(name: str) -> Grid:
    return Grid(name)
