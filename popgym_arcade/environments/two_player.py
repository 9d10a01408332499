"""Two-player games: both seats act at once, and each has its own observation and reward.

A turn-based game fits as well: the seat whose turn it is not has a single legal action, which does nothing.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces
from gymnax.environments.environment import Environment, EnvParams

from popgym_arcade.environments.arcade import ArcadeEnvironment, ArcadeState
from popgym_arcade.environments.contract import kind

SEATS = 2


class TwoPlayerEnvironment(Environment):
    """A two-player game. Its interface is gymnax's, with a leading axis of 2, the seats, where the seats differ.

    * `reset(key, params) -> obs[2, ...], state`
    * `step(key, state, actions int32[2], params) -> obs[2, ...], state, reward float32[2], terminated, truncated, info`
      with auto-reset; `info` holds `final_observation`, [2, ...], the last one before a reset, and can hold
      `final_state`
    * `views(state) -> obs[2, ...]`, what each seat sees; needed only if `info` holds `final_state`
    * `legal(state) -> bool[2, A]`, the actions that each seat may choose: all by default; a game that restricts them
      must put `final_state` in `info`
    * `default_params`, and `observation_space(params)` and `action_space(params)` of one seat
    """

    def views(self, state: Any) -> jax.Array:
        """What each seat sees, [2, ...]."""
        raise NotImplementedError

    def legal(self, state: Any) -> jax.Array:
        """The actions that each seat may choose, bool[2, A]."""
        return jnp.ones((SEATS, self.action_space(self.default_params).n), bool)


class ArcadeSeats(TwoPlayerEnvironment):
    """Both seats of an arcade game that has two more methods: `play(key, state, actions[2]) -> state, rewards[2],
    terminated`, and `mirrored(state) -> state`, in which the seats have changed places.

    The second seat sees the screen as it is, the first one that of the mirrored state: both see themselves on the same
    side.
    """

    def __init__(self, game: ArcadeEnvironment):
        self.game = game

    @property
    def default_params(self) -> EnvParams:
        """The game's."""
        return self.game.default_params

    def reset(self, key: jax.Array, params: EnvParams | None = None) -> tuple[jax.Array, ArcadeState]:
        """Start a game."""
        _, state = self.game.reset_env(key, params or self.default_params)
        return self.views(state), state

    def step(
        self, key: jax.Array, state: ArcadeState, actions: jax.Array, params: EnvParams | None = None
    ) -> tuple[jax.Array, ArcadeState, jax.Array, jax.Array, jax.Array, dict[str, Any]]:
        """Take one step, and start the next game if this one has ended. `info` also holds `final_state`."""
        params = params or self.default_params
        step_key, reset_key = jax.random.split(key)
        final_state, reward, terminated = self.game.play(step_key, state, actions)
        final_state = final_state.replace(time=state.time + 1)
        truncated = self.game.is_truncated(final_state, params) & ~terminated
        _, first_state = self.game.reset_env(reset_key, params)
        state = jax.tree.map(functools.partial(jnp.where, terminated | truncated), first_state, final_state)
        info = {"final_observation": self.views(final_state), "final_state": final_state}
        return self.views(state), state, reward, terminated, truncated, info

    def views(self, state: ArcadeState) -> jax.Array:
        """The frames of the mirrored state and of the state, uint8[2, obs_size, obs_size, 3]."""
        return jnp.stack([self.game.get_obs(self.game.mirrored(state)), self.game.get_obs(state)])

    def observation_space(self, params: EnvParams) -> spaces.Box:
        """Of one seat: a frame."""
        return self.game.observation_space(params)

    def action_space(self, params: EnvParams) -> spaces.Discrete:
        """Of one seat: the game's."""
        return self.game.action_space(params)


def has_two_seats(env: Environment) -> bool:
    """Whether two can play this game. A two-player arcade game can also be played by one, against its script."""
    if isinstance(env, ArcadeEnvironment):
        return hasattr(env, "play") and hasattr(env, "mirrored")
    return isinstance(env, TwoPlayerEnvironment)


def both_seats(env: Environment) -> TwoPlayerEnvironment:
    """A two-player game, played by two."""
    return env if isinstance(env, TwoPlayerEnvironment) else ArcadeSeats(env)


def check_seats(name: str, env: TwoPlayerEnvironment, params: Any) -> None:
    """Raises ValueError, in one line, unless all that a two-player game returns has the right shapes and dtypes."""
    key, space = jax.random.key(0), env.observation_space(params)
    num_actions, flag = env.action_space(params).n, jax.ShapeDtypeStruct((), bool)
    seen = jax.ShapeDtypeStruct((SEATS, *space.shape), space.dtype)
    obs, state = jax.eval_shape(env.reset, key, params)
    stepped = jax.eval_shape(env.step, key, state, jnp.zeros(SEATS, jnp.int32), params)
    if len(stepped) != 6:
        parts = "obs, state, reward, terminated, truncated, info"
        raise ValueError(f"{name}: step returns {len(stepped)} values, not {parts}")
    obs_after, state_after, reward, terminated, truncated, info = stepped
    found = {
        "reset returns an observation": (obs, seen),
        "step returns an observation": (obs_after, seen),
        "step returns rewards": (reward, jax.ShapeDtypeStruct((SEATS,), np.float32)),
        "step returns terminated as": (terminated, flag),
        "step returns truncated as": (truncated, flag),
        "step returns a final_observation": (info.get("final_observation"), seen),
        "legal returns": (jax.eval_shape(env.legal, state), jax.ShapeDtypeStruct((SEATS, num_actions), bool)),
    }
    has_views = type(env).views is not TwoPlayerEnvironment.views
    has_final_state = "final_state" in info
    if has_final_state and not has_views:
        raise ValueError(f"{name}: info holds final_state, so the game needs the method views")
    if type(env).legal is not TwoPlayerEnvironment.legal and not has_final_state:
        raise ValueError(f"{name}: a game with the method legal needs final_state in info")
    if has_views:
        found["views returns an observation"] = jax.eval_shape(env.views, state), seen
    for what, (value, right) in found.items():
        if kind(value) != kind(right):
            raise ValueError(f"{name}: {what} {kind(value)}, not {kind(right)}")
    if jax.tree.map(kind, state) != jax.tree.map(kind, state_after):
        raise ValueError(f"{name}: step changes the shape or dtype of a part of the state")
