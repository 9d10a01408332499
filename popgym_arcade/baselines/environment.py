"""The environment a script trains on, and many copies of it stepped in parallel.

An id comes from popgym_arcade or gymnax, or is `LIBRARY/ID` of another library, or `MODULE:CLASS`, a class of your own.
Shapes: E environments.
"""

import dataclasses
import difflib
import functools
import math
from collections.abc import Callable
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces
from gymnax.environments.environment import Environment

import popgym_arcade
from popgym_arcade.anywhere import anywhere
from popgym_arcade.baselines.env_params import with_changes
from popgym_arcade.baselines.errors import UserError, one_line
from popgym_arcade.environments.arcade import OBS_SIZES, ArcadeEnvironment
from popgym_arcade.environments.contract import check_interface
from popgym_arcade.environments.two_player import TwoPlayerEnvironment, both_seats, check_seats, has_two_seats
from popgym_arcade.own_classes import class_of
from popgym_arcade.registration import make_game


def make_env(args: Any) -> tuple[Environment, Any]:
    """The environment of `args.env_id` and its parameters, with the changes in `args.env_params`.

    The same arguments return the same object, so that programs for it are compiled once.

    Raises:
        UserError: for an unknown id or parameter, and for a twin or frame size the environment does not have.
    """
    partial_obs, obs_size = getattr(args, "partial_obs", False), getattr(args, "obs_size", 128)
    return _make_env(args.env_id, partial_obs, obs_size, tuple(args.env_params))


@functools.lru_cache
def _make_env(env_id: str, partial_obs: bool, obs_size: int, changes: tuple[str, ...]):
    arcade = has_twins(env_id)
    if partial_obs and not arcade:
        raise UserError(f"--env-id {env_id} has no partially observable twin: leave out --partial-obs")
    if obs_size != 128 and not arcade:
        raise UserError(f"--env-id {env_id} has no other size of frames: leave out --obs-size")
    if arcade and obs_size not in OBS_SIZES:
        raise UserError(f"--obs-size {obs_size}: use {' or '.join(map(str, OBS_SIZES))}")
    if env_id == "MNISTBandit-bsuite":
        raise UserError(f"--env-id {env_id} downloads its data when it is created: use another id")
    twin = {"partial_obs": partial_obs, "obs_size": obs_size} if arcade else {}
    if ":" in env_id:
        env, env_params = make_own(env_id, twin)
    elif "/" in env_id:
        env = make_other(env_id)
        env_params = env.default_params
    else:
        env, env_params = gymnax.make(env_id, **twin)
    return env, with_changes(env_id, env_params, changes)


def make_own(env_id: str, twin: dict) -> tuple[Environment, Any]:
    """An environment of the class that `MODULE:CLASS` names. Raises UserError if it violates its contract."""
    own = environment_class(env_id)
    try:
        env = make_game(env_id, **twin) if issubclass(own, ArcadeEnvironment) else own()
        env_params = env.default_params
        if has_two_seats(env):
            check_seats(own.__name__, both_seats(env), env_params)
        elif not issubclass(own, ArcadeEnvironment):
            check_interface(own.__name__, env, env_params)
    except Exception as error:
        text = str(error) if isinstance(error, ValueError) else one_line(error)
        raise UserError(f"--env-id {env_id}: {text}") from None
    return env, env_params


def make_other(env_id: str) -> Environment:
    """The environment that `LIBRARY/ID` names. Raises UserError for an unknown one, or without its library."""
    from popgym_arcade.worlds import make_world  # imported only for such an id

    try:
        return make_world(env_id)
    except Exception as error:
        text = str(error) if isinstance(error, ValueError) else one_line(error)
        raise UserError(f"--env-id {env_id!r}: {text}") from None


def has_twins(env_id: str) -> bool:
    """Whether the id is a popgym_arcade game, or a class of your own that is one, with twins and frame sizes."""
    if ":" in env_id:
        return issubclass(environment_class(env_id), ArcadeEnvironment)
    if "/" in env_id:
        return False
    known = gymnax.registered_envs
    if env_id not in known:
        close = " or ".join(difflib.get_close_matches(env_id, known, 3, 0))
        other = "Write LIBRARY/ID for another library's, and MODULE:CLASS for a class of your own"
        raise UserError(f"--env-id {env_id!r} is unknown: did you mean {close}? {other}")
    return env_id in popgym_arcade.REGISTERED_ENVIRONMENTS


def environment_class(env_id: str) -> type[Environment]:
    """The class that `MODULE:CLASS` names. Raises UserError if there is none."""
    try:
        return class_of(env_id)
    except ValueError as error:
        raise UserError(f"--env-id {env_id}: {error}") from None


def runs_on_host(env: Environment) -> bool:
    """Whether the environment runs outside JAX, so that its state cannot be saved. See `worlds.host`."""
    return getattr(env, "on_host", False)


def in_names(env_id: str) -> str:
    """The id as a part of file names."""
    return env_id.replace(":", ".").replace("/", ".")


def spaces_of(args: Any) -> tuple:
    """What a network depends on: shape and dtype of the observations, shape and number of the actions."""
    env, env_params = make_env(args)
    observation, action = env.observation_space(env_params), env.action_space(env_params)
    return observation.shape, jnp.dtype(observation.dtype), action.shape, getattr(action, "n", None)


def check_env(args: Any, env_id: str, env: Environment, actions: Any) -> None:
    """Raises UserError for an environment, called `env_id`, or an action space that these arguments cannot train on."""
    if not isinstance(actions, args.ACTIONS):
        kinds = f"{type(actions).__name__} actions: use one with {args.ACTIONS.__name__} actions"
        raise UserError(f"{env_id} has {kinds}")
    if isinstance(actions, spaces.Box) and not (np.isfinite(actions.low).all() and np.isfinite(actions.high).all()):
        raise UserError(f"{env_id} has unbounded actions, but the random policy needs finite bounds")
    if isinstance(env, TwoPlayerEnvironment) and not args.TWO_PLAYER:
        raise UserError(f"{env_id} is a two-player game: use ppo_selfplay.py")
    if args.TWO_PLAYER and not has_two_seats(env):
        raise UserError(f"{env_id} is not a two-player game")
    if runs_on_host(env) and args.num_seeds > 1:
        raise UserError(f"{env_id} runs outside JAX, where seeds cannot train together: use --num-seeds 1")
    if runs_on_host(env) and (args.distributed or (args.num_devices or jax.device_count()) > 1):
        raise UserError(f"{env_id} runs outside JAX, on one device: use --num-devices 1")
    if runs_on_host(env) and getattr(args, "save_buffer", False):
        raise UserError(f"{env_id} runs outside JAX, and resumes with an empty replay buffer: leave out --save-buffer")


def is_pixels(space: Any) -> bool:
    """Whether an observation (or its space) is a picture: uint8 [height, width, channels] of 32 pixels or more."""
    return space.dtype == jnp.uint8 and len(space.shape) == 3 and min(space.shape[:2]) >= 32


def is_arcade(args: Any) -> bool:
    """Whether every task is a popgym_arcade game, and the script can choose its twin and frame size."""
    return hasattr(args, "partial_obs") and all(has_twins(task.env_id) for task in args.tasks)


def shows_pixels(args: Any) -> bool:
    """Whether the observations of every task are pictures."""
    return all(is_pixels(env.observation_space(env_params)) for env, env_params in map(make_env, args.tasks))


@dataclasses.dataclass(frozen=True)
class ParallelEnvs:
    """E copies of an environment, each with its own key. Everything is pure."""

    env: Environment
    env_params: Any
    stores_states: bool = False  # store states instead of observations, and draw observations again from states

    @property
    def observation_space(self) -> Any:
        """Of one environment."""
        return self.env.observation_space(self.env_params)

    @property
    def num_actions(self) -> int:
        """The number of discrete actions, or of components of a continuous action."""
        space = self.env.action_space(self.env_params)
        return space.n if hasattr(space, "n") else math.prod(space.shape)

    def reset(self, key: jax.Array, num_envs: int) -> tuple[jax.Array, Any]:
        """First observations and states, [E, ...]."""
        keys = jax.random.split(key, num_envs)
        return jax.vmap(self.env.reset, in_axes=(0, None))(keys, self.env_params)

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple:
        """One step of each: obs, state, reward (float32), terminated, truncated (bool, never both true), info.

        `info` also has `raw_reward`, in the game's own units, and `over`, whether the episode is over. An environment
        sets them if its learner sees other rewards or episodes than the player does, such as clipped rewards in Atari.
        """
        keys = jax.random.split(key, len(action))
        step = jax.vmap(self.env.step, in_axes=(0, 0, 0, None))
        obs, state, reward, terminated, truncated, info = step(keys, state, action, self.env_params)
        reward, terminated = reward.astype(jnp.float32), terminated.astype(bool)
        truncated = truncated.astype(bool) & ~terminated  # some gymnax ids set both: termination wins
        info = {"raw_reward": reward, "over": terminated | truncated} | info
        return obs, state, reward, terminated, truncated, info

    def most_truncations(self, steps: int) -> int:
        """How many of `steps` steps of one environment may be truncated: all, unless only the time limit truncates."""
        kind = type(self.env)
        if kind.is_truncated is Environment.is_truncated and kind.step in (Environment.step, ArcadeEnvironment.step):
            return math.ceil(steps / max(1, int(self.env_params.max_steps_in_episode)))
        return steps

    def seen(self, state: Any, obs: jax.Array) -> Any:
        """What to store for these observations: their states if `stores_states`, else the observations."""
        return state if self.stores_states else obs

    def next_seen(self, info: dict) -> Any:
        """The same for the observations after a step, before any reset."""
        return info["final_state" if self.stores_states else "final_observation"]

    def observe(self, seen: Any) -> jax.Array:
        """The observations [E, ...], from what was stored."""
        return jax.vmap(self.env.get_obs)(seen) if self.stores_states else seen

    def final_observation(self, info: dict) -> tuple[Any, Callable]:
        """What `info` holds of an episode's last observation, and a function that turns it into that observation.

        The function draws a frame from the state, so a branch that is rarely taken rarely draws.
        """
        if "final_state" in info:
            return info["final_state"], jax.vmap(self.env.get_obs)
        return info["final_observation"], lambda obs: obs


def final_values(envs: ParallelEnvs, info: dict, truncated: jax.Array, value_of: Callable) -> jax.Array:
    """Values [E] of the final observations of truncated episodes, 0 elsewhere, by value_of(obs[E, ...]) -> [E].

    Observations are drawn and read only in steps that truncate an episode.
    """
    final, observe = envs.final_observation(info)

    def read_final(final):
        return jnp.where(truncated, value_of(observe(final)), 0.0)

    return jax.lax.cond(anywhere(truncated), read_final, lambda _: jnp.zeros_like(truncated, jnp.float32), final)


def in_parallel(args: Any) -> ParallelEnvs:
    """The parallel environments of these arguments."""
    # a script without the flag --storage stores observations
    stores_states = getattr(args, "storage", "frames") == "states" and has_twins(args.env_id)
    return ParallelEnvs(*make_env(args), stores_states)
