"""XLand-MiniGrid's MiniGrid tasks (Apache-2.0), `xminigrid/MiniGrid-MemoryS16`.

Nikulin et al. 2023, arXiv:2312.12044. The agent sees a few squares ahead, each as the kind and the colour of what is
there, one-hot. (The XLand tasks need rule sets, which are a download, and are not here.)
"""

import jax
import jax.numpy as jnp
import xminigrid
from gymnax.environments import spaces
from gymnax.environments.environment import EnvParams
from xminigrid.core.constants import NUM_COLORS, NUM_TILES

from popgym_arcade.worlds.device import DeviceEnvironment


class Grid(DeviceEnvironment):
    """A task. Observations are float32 [view, view, kinds + colours], 0 or 1."""

    def __init__(self, name: str):
        self.env, self.params = xminigrid.make(name)
        self.max_steps = self.params.max_steps

    def first(self, key: jax.Array):
        return self.env.reset(self.params, key)

    def advance(self, key: jax.Array, inner, action: jax.Array):
        inner = self.env.step(self.params, inner, action)
        terminated = inner.last() & (inner.discount == 0)
        return inner, inner.reward, terminated, inner.last() & ~terminated

    def observe(self, inner) -> jax.Array:
        kind, colour = inner.observation[..., 0], inner.observation[..., 1]
        return jnp.concatenate([jax.nn.one_hot(kind, NUM_TILES), jax.nn.one_hot(colour, NUM_COLORS)], axis=-1)

    def action_space(self, params: EnvParams) -> spaces.Discrete:
        return spaces.Discrete(self.env.num_actions(self.params))


def ids() -> list[str]:
    return [name for name in xminigrid.registered_environments() if name.startswith("MiniGrid-")]


def make(name: str) -> Grid:
    return Grid(name)
