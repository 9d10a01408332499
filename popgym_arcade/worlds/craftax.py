"""Craftax and Craftax-Classic (MIT), `craftax/Craftax-Symbolic-v1` (Matthews et al. 2024, arXiv:2402.16801)."""

import jax
import jax.numpy as jnp
from craftax.craftax_env import make_craftax_env_from_name
from gymnax.environments import spaces
from gymnax.environments.environment import EnvParams

from popgym_arcade.worlds.device import DeviceEnvironment

NAMES = ("Craftax-Symbolic-v1", "Craftax-Pixels-v1", "Craftax-Classic-Symbolic-v1", "Craftax-Classic-Pixels-v1")


class Craftax(DeviceEnvironment):
    """One of the four. Observations are float32 [F], or frames uint8 [height, width, 3]."""

    def __init__(self, name: str):
        self.env = make_craftax_env_from_name(name, auto_reset=False)
        self.max_steps = self.env.default_params.max_timesteps
        self.params = self.env.default_params.replace(max_timesteps=2**30)  # limited by this class
        self.pixels = "Pixels" in name

    def first(self, key: jax.Array):
        return self.env.reset(key, self.params)[1]

    def advance(self, key: jax.Array, inner, action: jax.Array):
        _, inner, reward, done, _ = self.env.step(key, inner, action, self.params)
        return inner, reward, done, jnp.bool_(False)

    def observe(self, inner) -> jax.Array:
        obs = self.env.get_obs(inner)
        return jnp.round(255 * obs).astype(jnp.uint8) if self.pixels else obs

    def action_space(self, params: EnvParams) -> spaces.Discrete:
        return spaces.Discrete(int(self.env.action_space(self.params).n))


def ids() -> list[str]:
    return list(NAMES)


def make(name: str) -> Craftax:
    return Craftax(name)
