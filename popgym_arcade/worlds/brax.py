"""Brax's robots (Apache-2.0), `brax/ant`, with its default physics (Freeman et al. 2021, arXiv:2106.13281)."""

import jax
import jax.numpy as jnp
from brax import envs
from gymnax.environments import spaces
from gymnax.environments.environment import EnvParams

from popgym_arcade.worlds.device import DeviceEnvironment


class Robot(DeviceEnvironment):
    """A robot of Brax or of MuJoCo Playground, whose environments have the same interface. Actions are in [-1, 1]."""

    def __init__(self, env):
        self.env = env

    def first(self, key: jax.Array):
        return self.env.reset(key)

    def advance(self, key: jax.Array, inner, action: jax.Array):
        inner = self.env.step(inner, action)
        return inner, inner.reward, inner.done > 0, jnp.bool_(False)

    def observe(self, inner) -> jax.Array:
        return inner.obs

    def action_space(self, params: EnvParams) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (self.env.action_size,), jnp.float32)


def ids() -> list[str]:
    return list(envs._envs)


def make(name: str) -> Robot:
    return Robot(envs.get_environment(name))
