"""Wrappers for environments from `popgym_arcade.make`, whose step returns five values.

`LogWrapper` has the same fields and keys as the published package's. For environments from `gymnax.make`, whose step
returns six values, use `gymnax.wrappers`.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import Environment

Step = tuple[jax.Array, Any, jax.Array, jax.Array, dict[str, jax.Array]]


class Wrapper:
    """An environment that wraps another and exposes its attributes.

    Two are equal if their class, wrapped environment and options are: what JAX compiled for one serves the other.
    """

    def __init__(self, env: Any):
        """Raises ValueError for a gymnax environment, whose step returns six values."""
        if isinstance(env, Environment):
            raise ValueError(
                f"{type(self).__name__} takes the five values of popgym_arcade.make and {env.name} returns six: "
                "use the wrappers of gymnax.wrappers"
            )
        self._env = env

    def __getattr__(self, name: str) -> Any:
        """An attribute of the wrapped environment. (`copy` looks up special names before `_env` is set.)"""
        if name == "_env" or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._env, name)

    def __eq__(self, other: object) -> bool:
        """Whether `other` is the same kind of wrapper around an equal environment."""
        return self is other or (type(self) is type(other) and vars(self) == vars(other))

    def __hash__(self) -> int:
        """Equal wrappers have equal hashes."""
        return hash((type(self), self._env))


@struct.dataclass
class LogEnvState:
    """The state of `LogWrapper`.

    env_state: the state of the environment.
    episode_returns: float32, sum of the rewards of this episode so far.
    episode_lengths: int32, steps of this episode so far.
    returned_episode_returns, returned_episode_lengths: the same for the last episode that ended, 0 until one has.
    timestep: int32, steps since `reset`.
    """

    env_state: Any
    episode_returns: jax.Array
    episode_lengths: jax.Array
    returned_episode_returns: jax.Array
    returned_episode_lengths: jax.Array
    timestep: jax.Array


class LogWrapper(Wrapper):
    """Tracks returns and lengths of episodes, and reports those of the last episode that ended in `info`.

    New keys of `info`: `returned_episode_returns` (float32), `returned_episode_lengths` (int32), `timestep` (int32) and
    `returned_episode` (bool, whether an episode ended in this step).
    """

    @partial(jax.jit, static_argnames=("self",))
    def reset(self, key: jax.Array, params: Any = None) -> tuple[jax.Array, LogEnvState]:
        """Start an episode, with all sums at 0."""
        obs, env_state = self._env.reset(key, params)
        no_return, no_steps = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
        state = LogEnvState(
            env_state=env_state,
            episode_returns=no_return,
            episode_lengths=no_steps,
            returned_episode_returns=no_return,
            returned_episode_lengths=no_steps,
            timestep=no_steps,
        )
        return obs, state

    @partial(jax.jit, static_argnames=("self",))
    def step(self, key: jax.Array, state: LogEnvState, action: jax.Array | int, params: Any = None) -> Step:
        """Take one step: `obs, state, reward, done, info`."""
        obs, env_state, reward, done, info = self._env.step(key, state.env_state, action, params)
        total = state.episode_returns + jnp.asarray(reward, jnp.float32)
        length = state.episode_lengths + jnp.int32(1)
        state = LogEnvState(
            env_state=env_state,
            episode_returns=jnp.where(done, jnp.float32(0), total),
            episode_lengths=jnp.where(done, jnp.int32(0), length),
            returned_episode_returns=jnp.where(done, total, state.returned_episode_returns),
            returned_episode_lengths=jnp.where(done, length, state.returned_episode_lengths),
            timestep=state.timestep + jnp.int32(1),
        )
        log = {
            "returned_episode_returns": state.returned_episode_returns,
            "returned_episode_lengths": state.returned_episode_lengths,
            "timestep": state.timestep,
            "returned_episode": done,
        }
        return obs, state, reward, done, {**info, **log}


class FlattenObservationWrapper(Wrapper):
    """Flattens observations to one axis: uint8[obs_size * obs_size * 3] for a game."""

    def observation_space(self, params: Any = None) -> spaces.Box:
        """The space of the flat observations."""
        space = self._env.observation_space(params)
        return spaces.Box(_flat(space.low), _flat(space.high), (math.prod(space.shape),), space.dtype)

    @partial(jax.jit, static_argnames=("self",))
    def reset(self, key: jax.Array, params: Any = None) -> tuple[jax.Array, Any]:
        """Start an episode."""
        obs, state = self._env.reset(key, params)
        return jnp.ravel(obs), state

    @partial(jax.jit, static_argnames=("self",))
    def step(self, key: jax.Array, state: Any, action: jax.Array | int, params: Any = None) -> Step:
        """Take one step: `obs, state, reward, done, info`."""
        obs, state, reward, done, info = self._env.step(key, state, action, params)
        return jnp.ravel(obs), state, reward, done, info


def _flat(bound: Any) -> Any:
    """A flat bound of a `Box`, which is one number or an array of the observations' shape."""
    return jnp.ravel(bound) if jnp.ndim(bound) else bound
