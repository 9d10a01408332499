"""An environment with frames like Atari's: stacked, grey, and wider than high."""

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import Environment

SHAPE = (40, 64, 4)  # the latest frame last


@struct.dataclass
class State:
    time: jax.Array


@struct.dataclass
class Params:
    max_steps_in_episode: int = 6


class GreyFrames(Environment):
    """A bar moves to the right, one step of eight pixels after another."""

    @property
    def default_params(self):
        return Params()

    def reset_env(self, key, params):
        state = State(jnp.int32(0))
        return self.get_obs(state), state

    def step_env(self, key, state, action, params):
        state = State(state.time + 1)
        return self.get_obs(state), state, jnp.float32(action == 1), jnp.bool_(False), {}

    def get_obs(self, state, params=None, key=None):
        column, age = jnp.arange(SHAPE[1])[None, :, None], jnp.arange(SHAPE[2])[::-1]
        here = column // 8 == state.time - age
        return jnp.broadcast_to(jnp.where(here, 200, 20), SHAPE).astype(jnp.uint8)

    def action_space(self, params=None):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(0, 255, SHAPE, jnp.uint8)
