"""Environments of other libraries that are written in JAX: what they need to follow gymnax's interface."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import Environment, EnvParams

from popgym_arcade.anywhere import anywhere


@struct.dataclass
class WorldState:
    """The library's own state, and int32 steps taken in this episode."""

    inner: Any
    time: jax.Array


class DeviceEnvironment(Environment):
    """Time limit, auto-reset and final observation for an environment written in JAX.

    A subclass sets `max_steps`, and supplies

    * `first(key) -> inner`, the library's state at the beginning of an episode;
    * `advance(key, inner, action) -> (inner, reward, terminated, truncated)`, without a reset;
    * `observe(inner) -> observation`, float32 or uint8;
    * `action_space(params)`.
    """

    max_steps = 1000

    @property
    def default_params(self) -> EnvParams:
        return EnvParams(max_steps_in_episode=self.max_steps)

    @functools.cached_property
    def observation(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of an observation. Tracing the library's reset can take a second, so it happens once."""
        return jax.eval_shape(lambda key: self.observe(self.first(key)), jax.random.key(0))

    def observation_space(self, params: EnvParams) -> spaces.Box:
        """uint8 from 0 to 255, or float32 without bounds."""
        low, high = (0, 255) if self.observation.dtype == jnp.uint8 else (-np.inf, np.inf)
        return spaces.Box(low, high, self.observation.shape, self.observation.dtype)

    def get_obs(self, state: WorldState, params: EnvParams | None = None, key: jax.Array | None = None) -> jax.Array:
        """What a state shows. The key, which gymnax passes, is not used."""
        return self.observe(state.inner)

    def reset(self, key: jax.Array, params: EnvParams | None = None) -> tuple[jax.Array, WorldState]:
        """First observation and state of an episode."""
        inner = self.first(key)
        return self.observe(inner), WorldState(inner=inner, time=jnp.int32(0))

    def step(
        self, key: jax.Array, state: WorldState, action: jax.Array, params: EnvParams | None = None
    ) -> tuple[jax.Array, WorldState, jax.Array, jax.Array, jax.Array, dict[str, Any]]:
        """One step, and the first observation of the next episode if this one is over.

        Returns `obs, state, reward, terminated, truncated, info`. `info` holds `final_state`, from before any reset,
        and `final_observation`, what it shows. Under `vmap`, first states are computed only in steps in which some
        episode is over.
        """
        params = self.default_params if params is None else params
        step_key, reset_key = jax.random.split(key)
        inner, reward, terminated, truncated = self.advance(step_key, state.inner, action)
        time = state.time + 1
        terminated = terminated.astype(bool)
        truncated = (truncated | (time >= params.max_steps_in_episode)) & ~terminated
        done = terminated | truncated
        first = jax.lax.cond(anywhere(done), lambda key, _: self.first(key), lambda _, inner: inner, reset_key, inner)
        following = jax.tree.map(lambda new, old: jnp.where(done, new, old), first, inner)
        following = WorldState(inner=following, time=jnp.where(done, 0, time))
        # the scripts observe the final state themselves, in the steps in which they read it
        info = {"final_state": WorldState(inner=inner, time=time), "final_observation": self.observe(inner)}
        return self.observe(following.inner), following, jnp.float32(reward), terminated, truncated, info
