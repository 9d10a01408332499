"""The base class of all games: spaces, twins, and auto-reset with one drawing per step."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import Environment, EnvParams, EnvState

from popgym_arcade.environments.identity import fingerprint

OBS_SIZES = (128, 256)
UP, DOWN, LEFT, RIGHT, FIRE = range(5)
ACTION_NAMES = ("up", "down", "left", "right", "fire")


@struct.dataclass
class ArcadeState(EnvState):
    """The field that every game's state has; a game adds its own, each with a fixed dtype.

    time: int32, steps taken in this episode. The base class counts them.
    """

    time: jax.Array


@struct.dataclass
class ArcadeParams(EnvParams):
    """What can change from one call to the next without recompiling. A game's own parameters extend it.

    max_steps_in_episode: int, the time limit.
    num_levels: int, the number of first states: levels `start_level`, `start_level` + 1, ... An episode starts in one
        of them, drawn uniformly. 0: all first states. Under `vmap`, levels need JAX's default generator, threefry: a
        batch of "rbg" keys draws other numbers than the keys one by one.
    start_level: int in 0..2^31 - 1, the first level. With JAX's default generator, a number is one level of an id.
    """

    num_levels: int = 0
    start_level: int = 0


class ArcadeEnvironment(Environment[ArcadeState, ArcadeParams]):
    """A pixel game with two twins: fully observable, and partially observable with `partial_obs=True`.

    A game sets `max_steps`, its time limit, and supplies three pure functions:

    * `reset_state(key, params) -> state`, whose `time` is 0;
    * `transition(key, state, action, params) -> (state, reward, terminated)`, one step of the rules. `action` is int32
      in 0..4 (`UP`, `DOWN`, `LEFT`, `RIGHT`, `FIRE`), `state` the one before the step;
    * `render(state, params=None) -> frame`, uint8[obs_size, obs_size, 3], which depends only on the state (gymnax's Gym
      wrappers pass parameters). The partially observable twin shows the full frame at time 0, see `shows_all`.

    Everything else is the same for all games: `reset` and `step` with auto-reset, the time limit and the levels (see
    `ArcadeParams`), spaces, clipping of actions, and fixed dtypes that are never weak.

    Two objects are equal if their class and everything they hold are equal: twin, size, pictures, and whatever a
    subclass adds. What JAX compiled for one serves the other. Set attributes only in `__init__`.
    """

    max_steps = 1000

    def __init__(self, partial_obs: bool = False, obs_size: int = 128):
        """Raises ValueError if `partial_obs` is not a bool, or `obs_size` is neither 128 nor 256."""
        if not isinstance(partial_obs, bool):
            raise ValueError(f"partial_obs must be True or False, not {partial_obs!r}")
        if not isinstance(obs_size, int | np.integer) or obs_size not in OBS_SIZES:
            raise ValueError(f"obs_size must be 128 or 256, not {obs_size!r}")
        self.partial_obs = partial_obs
        self.obs_size = int(obs_size)

    def reset_state(self, key: jax.Array, params: EnvParams) -> ArcadeState:
        """Draw the first state of an episode."""
        raise NotImplementedError

    def transition(
        self, key: jax.Array, state: ArcadeState, action: jax.Array, params: EnvParams
    ) -> tuple[ArcadeState, jax.Array, jax.Array]:
        """Apply the rules once: the next state, the reward (a scalar), and whether the episode terminated (bool)."""
        raise NotImplementedError

    def render(self, state: ArcadeState, params: EnvParams | None = None) -> jax.Array:
        """Draw the state as this twin sees it, uint8[obs_size, obs_size, 3]."""
        raise NotImplementedError

    def shows_all(self, state: ArcadeState) -> jax.Array:
        """Whether the frame shows everything (bool): always if fully observable, only at time 0 if partially."""
        return (state.time == 0) | (not self.partial_obs)

    @property
    def default_params(self) -> ArcadeParams:
        """The game's time limit, and all first states."""
        return ArcadeParams(max_steps_in_episode=self.max_steps)

    @partial(jax.jit, static_argnames=("self",))
    def step(
        self, key: jax.Array, state: ArcadeState, action: jax.Array | int, params: EnvParams | None = None
    ) -> tuple[jax.Array, ArcadeState, jax.Array, jax.Array, jax.Array, dict[str, Any]]:
        """Take one step and start the next episode if this one has ended.

        Returns `obs, state, reward, terminated, truncated, info`: uint8[obs_size, obs_size, 3], the next state,
        float32, and two bools that are never both true (`truncated` is the time limit). `info` holds both flags and
        the state before the auto-reset, as `final_state` and drawn as `final_observation`. Inside a jit,
        `final_observation` is drawn only if it is used.
        """
        if params is None:
            params = self.default_params
        key_step, key_reset = jax.random.split(key)
        final_state, reward, terminated = self._advance(key_step, state, action, params)
        truncated = self.is_truncated(final_state, params) & ~terminated
        # Choose the state before drawing, so that a step draws one frame and not two.
        done = terminated | truncated
        first_state = self._first(key_reset, params)
        next_state = jax.tree.map(partial(jnp.where, done), first_state, final_state)
        info = {
            "terminated": terminated,
            "truncated": truncated,
            "final_state": final_state,
            "final_observation": self.get_obs(final_state, params),
        }
        return self.get_obs(next_state, params), next_state, reward, terminated, truncated, info

    def step_env(
        self, key: jax.Array, state: ArcadeState, action: jax.Array | int, params: EnvParams
    ) -> tuple[jax.Array, ArcadeState, jax.Array, jax.Array, dict[str, Any]]:
        """Take one step without auto-reset: `obs, state, reward, terminated, {}`, as gymnax defines it."""
        state, reward, terminated = self._advance(key, state, action, params)
        return self.get_obs(state, params), state, reward, terminated, {}

    def reset_env(self, key: jax.Array, params: EnvParams) -> tuple[jax.Array, ArcadeState]:
        """Start an episode: its first observation and state."""
        state = self._first(key, params)
        return self.get_obs(state, params), state

    def get_obs(self, state: ArcadeState, params: EnvParams | None = None, key: jax.Array | None = None) -> jax.Array:
        """Draw a state, uint8[obs_size, obs_size, 3]. gymnax passes a key; no game's frame depends on it."""
        return self.render(state)

    def action_space(self, params: EnvParams | None = None) -> spaces.Discrete:
        """0 up, 1 down, 2 left, 3 right, 4 fire."""
        return spaces.Discrete(self.num_actions)

    def observation_space(self, params: EnvParams | None = None) -> spaces.Box:
        """uint8[obs_size, obs_size, 3]: red, green and blue by row and column."""
        return spaces.Box(0, 255, (self.obs_size, self.obs_size, 3), jnp.uint8)

    def state_space(self, params: EnvParams | None = None) -> spaces.Dict:
        """One `Box` for each field of the state, by name, with the field's shape and dtype.

        The bounds are those of the dtype (0 and 1 for bool): the space describes the arrays, not the states that occur.
        """
        params = self.default_params if params is None else params
        state = jax.eval_shape(lambda: self._first(jax.random.key(0), params))
        return spaces.Dict({field.name: _box_of(getattr(state, field.name)) for field in dataclasses.fields(state)})

    @property
    def num_actions(self) -> int:
        """Always 5."""
        return 5

    def __eq__(self, other: object) -> bool:
        """Whether `other` is the same game: the same class with equal parts."""
        if self is other:
            return True
        return type(self) is type(other) and self._identity() == other._identity()

    def __hash__(self) -> int:
        """JAX looks up compiled programs by this and `==`, because the object is a static argument of `step`."""
        return hash((type(self), self._identity()))

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle keeps."""
        return {name: value for name, value in vars(self).items() if name != "_fingerprint"}

    def _identity(self) -> bytes:
        """The digest of all attributes, computed once."""
        if "_fingerprint" not in vars(self):
            self._fingerprint = fingerprint(vars(self))
        return self._fingerprint

    def _first(self, key: jax.Array, params: EnvParams) -> ArcadeState:
        return _strong(self.reset_state(_level_key(key, params), params))

    def _advance(
        self, key: jax.Array, state: ArcadeState, action: jax.Array | int, params: EnvParams
    ) -> tuple[ArcadeState, jax.Array, jax.Array]:
        """The game's transition with the action clipped, the step counted and all dtypes fixed.

        Raises ValueError for an action that is not a scalar.
        """
        if jnp.shape(action) != ():
            raise ValueError(
                f"an action is a whole number of shape (), not {jnp.shape(action)}: use jax.vmap for a batch"
            )
        action = jnp.clip(jnp.asarray(action), 0, self.num_actions - 1).astype(jnp.int32)
        next_state, reward, terminated = self.transition(key, state, action, params)
        next_state = _strong(next_state.replace(time=state.time + 1))
        return next_state, jnp.asarray(reward, jnp.float32), jnp.asarray(terminated, jnp.bool_)


def _level_key(key: jax.Array, params: ArcadeParams) -> jax.Array:
    """The key for the first state of a level drawn with `key`; without levels, `key` itself."""
    num_levels, start_level = (jnp.asarray(x, jnp.uint32) for x in (params.num_levels, params.start_level))

    def of_level(key):
        draw = jax.random.bits(jax.random.fold_in(key, 1))
        level = start_level + draw % jnp.maximum(num_levels, 1)  # biased by less than num_levels / 2^32
        if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
            zeros = jnp.zeros_like(jax.random.key_data(jax.random.clone(key)))
            origin = jax.random.wrap_key_data(zeros, impl=jax.random.key_impl(key))
        else:
            origin = jnp.zeros_like(key)
        return jax.random.fold_in(origin, level)

    # As long as all environments share their parameters, this stays a branch, which costs nothing without levels.
    return jax.lax.cond(num_levels > 0, of_level, lambda key: key, key)


def _strong(state: ArcadeState) -> ArcadeState:
    """The state without weak types, which would make JAX compile the second step again."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), state)


def _box_of(leaf: jax.ShapeDtypeStruct) -> spaces.Box:
    """The space of all arrays of this shape and dtype."""
    if leaf.dtype == jnp.bool_:
        return spaces.Box(0, 1, leaf.shape, leaf.dtype)
    limits = jnp.iinfo(leaf.dtype) if jnp.issubdtype(leaf.dtype, jnp.integer) else jnp.finfo(leaf.dtype)
    return spaces.Box(limits.min, limits.max, leaf.shape, leaf.dtype)
