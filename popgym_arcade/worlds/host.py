"""Environments that run outside JAX: a single callback steps all of them from within a compiled program.

A `Pool` holds N environments on the host. `vmap` turns `HostEnvironment.reset` or `.step` into one `io_callback` for
the whole pool, which works in a `lax.scan` and in a `lax.while_loop`. Of an environment's state, JAX holds only which
pool it is in, and how many resets and steps that pool had done. A state that is no longer the pool's is refused.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import Environment, EnvParams
from jax.custom_batching import custom_vmap
from jax.experimental import io_callback

from popgym_arcade.environments.two_player import SEATS, TwoPlayerEnvironment


@dataclass(frozen=True)
class PoolStep:
    """A step of N environments. Those whose episode is over have begun the next one."""

    obs: np.ndarray  # [N, ...], the first of the next episode if this one is over
    final_obs: np.ndarray  # [N, ...], before any reset
    reward: np.ndarray  # [N], to learn from
    raw_reward: np.ndarray  # [N], in the game's own units
    terminated: np.ndarray  # bool [N]: for the learner, nothing follows
    truncated: np.ndarray  # bool [N]: by the time limit
    over: np.ndarray  # bool [N]: the episode is over


class Pool(Protocol):
    """N environments on the host."""

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        """Begins N episodes with seeds [N] from 0 to 2^31 - 1: observations [N, ...]."""

    def step(self, action: np.ndarray) -> PoolStep:
        """One step of each environment."""


@struct.dataclass
class HostState:
    """Where the state of an environment is, int32: the number of its pool, and the pool's resets and steps so far."""

    pool: jax.Array
    time: jax.Array


pool_numbers = itertools.count()
pools: dict[int, Pool] = {}  # by number
times: dict[int, int] = {}  # resets and steps of each, so that no state from before a reset looks like one after it


class HostEnvironment(Environment):
    """An environment of a library that is not written in JAX.

    A subclass supplies `default_params`, whose fields are static, and `make_pool`, `observation_space` and
    `action_space`. Every call of `reset` in a program has a pool of its own, made when the call first runs. When the
    call runs again, the episodes of its pool end and new ones begin.
    """

    on_host = True
    seat_axis: ClassVar[tuple[int, ...]] = ()  # of observations, rewards and actions

    def make_pool(self, num_envs: int, params: EnvParams) -> Pool:
        """A pool of this many environments."""
        raise NotImplementedError

    def observation_space(self, params: EnvParams) -> spaces.Box:
        """Of one environment or, in a two-player game, of one seat."""
        raise NotImplementedError

    def action_space(self, params: EnvParams) -> spaces.Box | spaces.Discrete:
        """Of one environment or, in a two-player game, of one seat."""
        raise NotImplementedError

    def reset(self, key: jax.Array, params: EnvParams | None = None) -> tuple[jax.Array, HostState]:
        """First observation and state. In a pool of the same size, the same key begins the same episode."""
        params = self.default_params if params is None else params
        number, space = next(pool_numbers), self.observation_space(params)
        obs_shape = (*self.seat_axis, *space.shape)

        def on_host(seeds) -> tuple[np.ndarray, HostState]:
            seeds = np.asarray(seeds)  # JAX's operations on them could deadlock here
            if number not in pools:
                pools[number] = self.make_pool(len(seeds), params)
            times[number] = times.get(number, -1) + 1
            state = HostState(*(np.full(len(seeds), x, np.int32) for x in (number, times[number])))
            return like(pools[number].reset(seeds), obs_shape, space.dtype), state

        def of_all(seeds):
            obs = jax.ShapeDtypeStruct((*seeds.shape, *obs_shape), space.dtype)
            whole = jax.ShapeDtypeStruct(seeds.shape, jnp.int32)
            return io_callback(on_host, (obs, HostState(pool=whole, time=whole)), seeds)

        return for_all(of_all)(jax.random.randint(key, (), 0, 2**31 - 1, jnp.int32))

    def step(
        self, key: jax.Array, state: HostState, action: jax.Array, params: EnvParams | None = None
    ) -> tuple[jax.Array, HostState, jax.Array, jax.Array, jax.Array, dict[str, Any]]:
        """One step, and the first observation of the next episode if this one is over. The key is not used.

        Returns `obs, state, reward, terminated, truncated, info`. `info` holds `final_observation`, `raw_reward` and
        `over`, see `PoolStep`. The callback raises RuntimeError for a state that is not the pool's latest.
        """
        params = self.default_params if params is None else params
        space = self.observation_space(params)
        obs_shape = (*self.seat_axis, *space.shape)

        def on_host(state, action) -> tuple:
            state, action = jax.tree.map(np.asarray, (state, action))  # JAX's operations on them could deadlock here
            number, time = int(state.pool[0]), int(state.time[0])
            if np.any(state.pool != number) or np.any(state.time != time) or times.get(number) != time:
                raise RuntimeError("this state of environments on the host is not their latest: step each state once")
            if len(state.pool) != pools[number].num_envs:
                raise RuntimeError(f"step all {pools[number].num_envs} environments of a pool at once")
            found = pools[number].step(action)
            times[number] = time + 1
            obs, final_obs = (like(x, obs_shape, space.dtype) for x in (found.obs, found.final_obs))
            rewards = (np.asarray(x, np.float32) for x in (found.reward, found.raw_reward))
            flags = (np.asarray(x, bool) for x in (found.terminated, found.truncated & ~found.terminated, found.over))
            return (obs, final_obs, *rewards, *flags, np.full(len(obs), time + 1, np.int32))

        def of_all(state, action):
            def batch(dtype, *shape) -> jax.ShapeDtypeStruct:
                return jax.ShapeDtypeStruct((*state.pool.shape, *shape), dtype)

            obs = batch(space.dtype, *obs_shape)
            reward = batch(jnp.float32, *self.seat_axis)
            flag, time = batch(jnp.bool_), batch(jnp.int32)
            shapes = (obs, obs, reward, reward, flag, flag, flag, time)
            return io_callback(on_host, shapes, state, action)

        found = for_all(of_all)(state, action)
        obs, final_obs, reward, raw_reward, terminated, truncated, over, time = found
        info = {"final_observation": final_obs, "raw_reward": raw_reward, "over": over}
        return obs, state.replace(time=time), reward, terminated, truncated, info


class HostSeats(HostEnvironment, TwoPlayerEnvironment):
    """A two-player game that runs outside JAX. Pools have observations [N, 2, ...], and actions and rewards [N, 2]."""

    seat_axis = (SEATS,)


def for_all(function: Callable) -> Callable:
    """A function of one environment that becomes `function`, of all N environments at once, under `vmap`."""

    @custom_vmap
    def of_one(*inputs):
        return jax.tree.map(lambda x: x[0], function(*jax.tree.map(lambda x: x[None], inputs)))

    @of_one.def_vmap
    def of_all(size, batched, *inputs):
        def with_axis(x, has_axis):
            return x if has_axis else jnp.broadcast_to(x, (size, *x.shape))

        found = function(*jax.tree.map(with_axis, inputs, tuple(batched)))
        return found, jax.tree.map(lambda _: True, found)

    return of_one


def like(x: np.ndarray, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """`x`, [N, ...], as N arrays of this shape and dtype."""
    return np.ascontiguousarray(x, dtype).reshape(len(x), *shape)
