"""The games as Gymnasium environments: NumPy in and out, one compiled program for a whole vector of them.

`gymnasium.make("popgym_arcade/NavigatorEasy-v0", partial_obs=True)` returns an `ArcadeEnv`,
`gymnasium.make_vec("popgym_arcade/NavigatorEasy-v0", num_envs=64)` an `ArcadeVectorEnv`.
Shapes: E environments, S pixels of a frame's side.
"""

import dataclasses
import difflib
import operator
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnax.environments.environment import EnvParams

from popgym_arcade.environments.arcade import ArcadeEnvironment, ArcadeState
from popgym_arcade.registration import make_game

RENDER = {"render_modes": ["rgb_array"], "render_fps": 10}
KEEP, STEP, RESET = range(3)  # what a call does with an environment
FINAL_FRAMES = 8  # drawn per call
NO_LIMIT = np.int32(2**31 - 1)


class ArcadeEnv(gymnasium.Env):
    """One game. Observations are uint8[S, S, 3], actions 0..4; `info` is empty.

    The time limit is the game's own (`truncated`), and `gymnasium.make`'s `max_episode_steps` can shorten it. `reset`,
    `step` and `render` return copies of frames, which the caller may change.
    """

    metadata = RENDER

    def __init__(
        self,
        env_id: str,
        partial_obs: bool = False,
        obs_size: int = 128,
        render_mode: str | None = None,
        env_params: Mapping[str, Any] | None = None,
        **unknown: Any,
    ):
        """`env_params` replaces parameters of the game, for example {"max_steps_in_episode": 100}.

        Raises ValueError for an unknown argument or a value that the game does not accept.
        """
        _refuse(unknown, ("partial_obs", "obs_size", "render_mode", "env_params", "max_episode_steps"))
        env = make_game(env_id, partial_obs, obs_size)
        self._games = _Games(env, _params(env, env_params), num_envs=1)
        self.metadata = dict(RENDER)  # a copy, because gymnasium's vector environments write into it
        self.render_mode = _render_mode(render_mode)
        self.action_space, self.observation_space = _spaces(env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Start an episode: its first observation, and {}. The same seed gives the same episodes.

        Raises ValueError for any option.
        """
        _refuse(options or {}, (), "option")
        super().reset(seed=seed)
        if seed is not None or not self._games.has_keys:
            self._games.set_keys(_key(self.np_random)[None])
        self._games.run(np.array([RESET]))
        return self._games.frames()[0], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Take one step: `obs, reward, terminated, truncated, {}`.

        Raises ResetNeeded before the first reset and after the end of an episode, and ValueError for an action that is
        not a whole number.
        """
        self._games.check_running()
        self._games.run(np.array([STEP]), _whole(action, ())[None])
        reward, terminated, truncated = (values[0] for values in self._games.outcome)
        return self._games.frames()[0], float(reward), bool(terminated), bool(truncated), {}

    def render(self) -> np.ndarray | None:
        """What the agent sees, uint8[S, S, 3]; None without `render_mode="rgb_array"`.

        Raises ResetNeeded before `reset`.
        """
        return None if self.render_mode is None else self._games.frames()[0]


class ArcadeVectorEnv(VectorEnv):
    """E copies of a game. Observations are uint8[E, S, S, 3], actions int[E], rewards float64[E], ends bool[E].

    Every `autoreset_mode` behaves as in gymnasium's `SyncVectorEnv`. With seed s, environment i plays the episodes of
    an `ArcadeEnv` with seed s + i. In mode SAME_STEP, `info["final_obs"]` has the last frames of the episodes that
    ended, and only those are drawn. Every call returns copies, which the caller may change.
    """

    metadata = {**RENDER, "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self,
        env_id: str,
        num_envs: int = 1,
        partial_obs: bool = False,
        obs_size: int = 128,
        render_mode: str | None = None,
        max_episode_steps: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        env_params: Mapping[str, Any] | None = None,
        **unknown: Any,
    ):
        """`max_episode_steps` shortens episodes, as in `gymnasium.make`; `env_params` replaces parameters of the game.

        Raises ValueError for an unknown argument or an invalid value.
        """
        names = (
            "num_envs",
            "partial_obs",
            "obs_size",
            "render_mode",
            "max_episode_steps",
            "autoreset_mode",
            "env_params",
        )
        _refuse(unknown, names)
        self.num_envs = _count("num_envs", num_envs)
        limit = NO_LIMIT
        if max_episode_steps not in (None, -1):
            limit = np.int32(_count("max_episode_steps", max_episode_steps))
        env = make_game(env_id, partial_obs, obs_size)
        self._mode = _autoreset_mode(autoreset_mode)
        at_once = self._mode is AutoresetMode.SAME_STEP
        self._games = _Games(env, _params(env, env_params), self.num_envs, limit, at_once)
        self.metadata = {**RENDER, "autoreset_mode": self._mode}
        self.render_mode = _render_mode(render_mode)
        self.single_action_space, self.single_observation_space = _spaces(env)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode in every environment, or in those of `options["reset_mask"]`, bool[E].

        `seed` is one number, of which environment i gets seed + i, or a number or None for each environment.
        Raises ValueError for any other option, mask, or number of seeds.
        """
        mask = self._reset_mask(options)
        if isinstance(seed, int | np.integer):
            super().reset(seed=int(seed))
        self._seed(self._seeds(seed), mask)
        self._games.run(np.where(mask, RESET, KEEP))
        return self._games.frames(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take one step in every environment: `obs, rewards, terminated, truncated, info`.

        Raises ResetNeeded before the first reset and, in mode DISABLED, if an episode is over. Raises ValueError unless
        `actions` are E whole numbers.
        """
        actions = _whole(actions, (self.num_envs,))
        self._games.check_running(or_over=self._mode is not AutoresetMode.DISABLED)
        self._games.run(np.where(self._games.over, RESET, STEP), actions)
        rewards, terminated, truncated = self._games.outcome
        ended = np.flatnonzero(terminated | truncated)
        info = self._final(ended) if self._mode is AutoresetMode.SAME_STEP and len(ended) else {}
        return self._games.frames(), rewards.astype(np.float64), terminated.copy(), truncated.copy(), info

    def render(self) -> tuple[np.ndarray, ...] | None:
        """What each agent sees, E frames; None without `render_mode="rgb_array"`. Raises ResetNeeded before `reset`."""
        return None if self.render_mode is None else tuple(self._games.frames())

    def _final(self, ended: np.ndarray) -> dict[str, Any]:
        """`final_obs` and `final_info` of the environments that ended, in the form of gymnasium's `SyncVectorEnv`."""
        info: dict[str, Any] = {}
        for i, frame in zip(ended, self._games.final_frames(ended), strict=True):
            info = self._add_info(info, {"final_obs": frame, "final_info": {}}, i)
        return info

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        """A seed or None for each environment."""
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"{len(seed)} seeds for {self.num_envs} environments: give one number, or one for each")
        return [None if one is None else operator.index(one) for one in seed]

    def _seed(self, seeds: list[int | None], mask: np.ndarray) -> None:
        """Give new keys to the environments in the mask that have a seed; the first time, to all environments."""
        if not self._games.has_keys:
            self._games.set_keys(np.stack([_key(self.np_random) for _ in seeds]))
        rows = [i for i in np.flatnonzero(mask) if seeds[i] is not None]
        if rows:
            keys = np.array(self._games.keys)
            keys[rows] = [_key(seeding.np_random(seeds[i])[0]) for i in rows]
            self._games.set_keys(keys)

    def _reset_mask(self, options: dict[str, Any] | None) -> np.ndarray:
        """Which environments to reset, bool[E]. (`options` is left unchanged, because wrappers read it too.)"""
        options = options or {}
        _refuse({name: value for name, value in options.items() if name != "reset_mask"}, ("reset_mask",), "option")
        mask = options.get("reset_mask", np.ones(self.num_envs, bool))
        if not isinstance(mask, np.ndarray) or mask.dtype != bool or mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(f"reset_mask must be a NumPy array, bool[{self.num_envs}], with at least one True")
        return mask


class _Games:
    """E games with their random keys, states and frames.

    keys: uint32[E, 2]. over: bool[E], whether a game's episode has ended without a reset since.
    outcome: rewards float32[E], terminated and truncated bool[E] of the last call.
    """

    def __init__(
        self,
        env: ArcadeEnvironment,
        params: EnvParams,
        num_envs: int,
        limit: np.int32 = NO_LIMIT,
        resets_at_once: bool = False,
    ):
        self._env, self._params, self._limit, self._resets_at_once = env, params, limit, resets_at_once
        self.keys = None
        self.over = np.zeros(num_envs, bool)
        self.outcome = None
        self._started = np.zeros(num_envs, bool)
        one = jax.eval_shape(lambda: env.reset_env(jax.random.key(0), params)[1])
        self._states = jax.tree.map(lambda leaf: np.zeros((num_envs, *leaf.shape), leaf.dtype), one)
        self._final_states = self._frames = None

    @property
    def has_keys(self) -> bool:
        """Whether the games have been seeded."""
        return self.keys is not None

    def set_keys(self, keys: np.ndarray) -> None:
        """Give all games new keys, uint32[E, 2]."""
        self.keys = keys

    def check_running(self, or_over: bool = False) -> None:
        """Raises ResetNeeded if a game was never reset or, unless `or_over`, is over."""
        if not self._started.all():
            raise ResetNeeded("reset the environment before its first step")
        if self.over.any() and not or_over:
            raise ResetNeeded("an episode has ended: reset its environment before the next step")

    def run(self, commands: np.ndarray, actions: np.ndarray | None = None) -> None:
        """Keep, step or reset each game."""
        actions = np.zeros(len(commands), np.int32) if actions is None else actions
        self.keys, self._states, self._final_states, self._frames, outcome = _advance(
            self._env,
            self._resets_at_once,
            self.keys,
            self._states,
            actions,
            commands.astype(np.int32),
            self._params,
            self._limit,
        )
        self.outcome = jax.device_get(outcome)
        self._started |= commands != KEEP
        ended = False if self._resets_at_once else self.outcome[1] | self.outcome[2]
        self.over = np.where(commands == KEEP, self.over, ended)

    def frames(self) -> np.ndarray:
        """A copy of the current frames, uint8[E, S, S, 3]. Raises ResetNeeded before the first reset."""
        if self._frames is None:
            raise ResetNeeded("reset the environment before drawing it")
        return np.array(self._frames)

    def final_frames(self, rows: np.ndarray) -> np.ndarray:
        """The last frames of the episodes of these rows, which ended in the last call, uint8[len(rows), S, S, 3]."""
        width = min(len(self.over), FINAL_FRAMES)
        padded = np.resize(rows, -(-len(rows) // width) * width).astype(np.int32)
        pieces = [_draw(self._env, self._final_states, some) for some in padded.reshape(-1, width)]
        return np.concatenate(pieces)[: len(rows)]


@partial(jax.jit, static_argnums=(0, 1))
def _advance(
    env: ArcadeEnvironment,
    resets_at_once: bool,
    keys: jax.Array,
    states: ArcadeState,
    actions: jax.Array,
    commands: jax.Array,
    params: EnvParams,
    limit: jax.Array,
) -> tuple[jax.Array, ArcadeState, ArcadeState | None, jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    """Keep, step or reset E games: keys, states, the states before an immediate reset, frames, and the outcome.

    Each step and each reset uses one key, so that a game plays the same in a vector as alone.
    """

    def one(data, state, action, command):
        stepped, reset = command == STEP, command == RESET
        after, step_key, reset_key = _split(data)
        moved, reward, terminated = env.step_env(_typed(step_key), state, action, params)[1:4]
        truncated = (env.is_truncated(moved, params) | (moved.time >= limit)) & ~terminated
        terminated, truncated = stepped & terminated, stepped & truncated
        if resets_at_once:
            ended = terminated | truncated
            later, _, later_reset_key = _split(after)
            after, reset_key = _select(ended, (later, later_reset_key), (after, reset_key))
            reset |= ended
        final = _select(stepped, moved, state)
        first = env.reset_env(_typed(reset_key), params)[1]
        state = _select(reset, first, final)
        data = jnp.where(command == KEEP, data, after)
        outcome = jnp.where(stepped, reward, 0), terminated, truncated
        return data, state, final if resets_at_once else None, env.get_obs(state), outcome

    return jax.vmap(one)(keys, states, actions, commands)


@partial(jax.jit, static_argnums=0)
def _draw(env: ArcadeEnvironment, states: ArcadeState, rows: jax.Array) -> jax.Array:
    """The frames of some of the states, uint8[len(rows), S, S, 3]."""
    return jax.vmap(env.get_obs)(jax.tree.map(lambda leaf: leaf[rows], states))


def _split(data: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The next key, a key for a step and one for a reset. Keys are data, uint32[2]."""
    return tuple(jax.random.key_data(jax.random.split(_typed(data), 3)))


def _typed(data: jax.Array) -> jax.Array:
    """The threefry key with this data, whatever JAX's default generator."""
    return jax.random.wrap_key_data(data, impl="threefry2x32")


def _select(condition: jax.Array, one: Any, other: Any) -> Any:
    """The tree `one` if the scalar condition holds, else `other`."""
    return jax.tree.map(partial(jnp.where, condition), one, other)


def _key(generator: np.random.Generator) -> np.ndarray:
    """Draw the data of a JAX key, uint32[2]."""
    return generator.integers(0, 2**32, 2, dtype=np.uint32)


def _spaces(env: ArcadeEnvironment) -> tuple[spaces.Discrete, spaces.Box]:
    """The spaces of actions and observations."""
    shape = env.observation_space().shape
    return spaces.Discrete(env.num_actions), spaces.Box(0, 255, shape, np.uint8)


def _params(env: ArcadeEnvironment, changes: Mapping[str, Any] | None) -> EnvParams:
    """The game's default parameters with some replaced."""
    params, changes = env.default_params, changes or {}
    _refuse(
        {name: value for name, value in changes.items() if not hasattr(params, name)},
        tuple(field.name for field in dataclasses.fields(params)),
        "parameter",
    )
    return params.replace(**changes)


def _whole(actions: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Actions as int32 of this shape."""
    array = np.asarray(actions)
    if array.shape != shape or array.dtype.kind not in "iu":
        kind = f"{shape[0]} whole numbers" if shape else "a whole number"
        raise ValueError(f"step takes {kind} of shape {shape}, not {array.dtype} of shape {array.shape}")
    return array.astype(np.int32)


def _count(name: str, value: Any) -> int:
    """The value as an int. Raises ValueError unless it is a whole number of at least 1."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 1 <= value < 2**31:
        raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
    return int(value)


def _autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """The mode, or the mode with this value or name."""
    for known in AutoresetMode:
        if mode in (known, known.value, known.name):
            return known
    raise ValueError(f"unknown autoreset_mode {mode!r}; the modes are {', '.join(m.value for m in AutoresetMode)}")


def _render_mode(mode: str | None) -> str | None:
    """The mode. Raises ValueError if it is unknown."""
    if mode not in (None, *RENDER["render_modes"]):
        raise ValueError(f"unknown render_mode {mode!r}; use 'rgb_array' or None")
    return mode


def _refuse(unknown: Mapping[str, Any], known: Sequence[str], kind: str = "argument") -> None:
    """Raises ValueError, naming the unknown argument and the known ones."""
    if not unknown:
        return
    name = str(next(iter(unknown)))
    close = difflib.get_close_matches(name, known, 1)
    if close:
        advice = f"did you mean {close[0]!r}?"
    elif known:
        advice = f"use one of {', '.join(known)}"
    else:
        advice = "there are none"
    raise ValueError(f"unknown {kind} {name!r}: {advice}")
