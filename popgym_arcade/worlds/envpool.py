"""EnvPool's environments (Apache-2.0): Atari, Procgen, Gym's MuJoCo, dm_control and more, `envpool/HalfCheetah-v4`.

Weng et al. 2022, https://arxiv.org/abs/2206.10558. Each option that EnvPool has for an id is a parameter, such as
`num_levels` and `start_level` for Procgen. The defaults are EnvPool's: unlike `atari/...`, its Atari games have four
stacked frames, and neither clip rewards nor end an episode with a life.
"""

import functools
from typing import Any

import envpool
import gymnasium
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import EnvParams

from popgym_arcade.worlds.host import HostEnvironment, PoolStep

LIMIT = "max_episode_steps"  # EnvPool's name for max_steps_in_episode
OF_POOL = {  # options that say how a pool runs, not what it plays
    *("num_envs", "batch_size", "num_threads", "max_num_players", "thread_affinity_offset", "base_path"),
    *("seed", "env_seed", "gym_reset_return_info", "channel_first", "reward_threshold", LIMIT),
}


def ids() -> list[str]:
    """All of EnvPool's ids."""
    return envpool.list_all_envs()


def parameters_of(config: dict[str, Any]) -> EnvParams:
    """The parameters of an environment with these options: static fields of the same names."""
    options = {"max_steps_in_episode": config[LIMIT]}
    options |= {name: x for name, x in config.items() if name not in OF_POOL and isinstance(x, bool | int | float)}
    fields = {name: struct.field(default=value, pytree_node=False) for name, value in options.items()}
    kinds = {name: type(value) for name, value in options.items()}
    return struct.dataclass(type("EnvPoolParams", (EnvParams,), fields | {"__annotations__": kinds}))()


def options_of(params: EnvParams) -> dict[str, Any]:
    """EnvPool's options for these parameters."""
    options = dict(vars(params))
    return options | {LIMIT: options.pop("max_steps_in_episode")}


class EnvPoolPool:
    """See `host.Pool`. EnvPool seeds an environment only when it is made, so that every reset makes a new pool."""

    def __init__(self, name: str, num_envs: int, params: EnvParams):
        self.num_envs = num_envs
        self.make = functools.partial(envpool.make, name, env_type="gymnasium", num_envs=num_envs, **options_of(params))

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        self.envs = self.make(seed=seeds.tolist())
        self.dtype = self.envs.action_space.dtype
        return joined(self.envs.reset()[0])

    def step(self, action: np.ndarray) -> PoolStep:
        obs, reward, terminated, truncated, info = self.envs.step(action.astype(self.dtype))
        # Atari's own words, for games whose rewards are clipped and whose lives are episodes
        raw_reward, over = info.get("reward", reward), info.get("terminated", terminated).astype(bool) | truncated
        obs = final_obs = joined(obs)
        reset = np.flatnonzero(terminated | truncated)  # with episodic_life, a lost life goes on with the same game
        if len(reset):
            obs = final_obs.copy()
            obs[reset] = joined(self.envs.reset(reset)[0])
        return PoolStep(obs, final_obs, reward, raw_reward, terminated, truncated, over)


def joined(obs: Any) -> np.ndarray:
    """Observations [N, ...]: pictures as uint8 [N, height, width, channels], all else as one float32 vector [N, F]."""
    if isinstance(obs, dict):
        return np.concatenate([vectors(joined(x)) for x in obs.values()], axis=1)
    if not is_picture(obs[0]):
        return vectors(obs)
    return obs.transpose(0, 2, 3, 1) if obs.shape[1] < obs.shape[3] else obs  # channels last


def vectors(x: np.ndarray) -> np.ndarray:
    """`x`, [N, ...], as float32 [N, F]."""
    return x.reshape(len(x), -1).astype(np.float32)


def is_picture(space: Any) -> bool:
    """Whether an observation, or its space, is bytes with a height and a width of 64 pixels or more."""
    return space.dtype == np.uint8 and len(space.shape) == 3 and sorted(space.shape)[1] >= 64


class EnvPoolEnvironment(HostEnvironment):
    """An environment of EnvPool."""

    def __init__(self, name: str):
        """Raises ValueError for an environment whose actions are neither discrete nor a box, or that has players."""
        self.env_id = name
        self.params = parameters_of(envpool.make_spec(name).config._asdict())
        kind = self.spec(self.params).gymnasium_action_space
        if not isinstance(kind, gymnasium.spaces.Discrete | gymnasium.spaces.Box):
            raise ValueError(f"{name} has {type(kind).__name__} actions: use one with Discrete or Box actions")

    def spec(self, params: EnvParams) -> Any:
        return envpool.make_spec(self.env_id, **options_of(params))

    @property
    def default_params(self) -> EnvParams:
        return self.params

    def make_pool(self, num_envs: int, params: EnvParams) -> EnvPoolPool:
        return EnvPoolPool(self.env_id, num_envs, params)

    def observation_space(self, params: EnvParams) -> spaces.Box:
        space = self.spec(params).gymnasium_observation_space
        blank = joined(blank_of(space))
        if blank.dtype == np.uint8:
            return spaces.Box(0, 255, blank.shape[1:], jnp.uint8)
        return spaces.Box(-np.inf, np.inf, blank.shape[1:], jnp.float32)

    def action_space(self, params: EnvParams) -> spaces.Box | spaces.Discrete:
        space = self.spec(params).gymnasium_action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            return spaces.Discrete(int(space.n))
        return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), space.shape, jnp.float32)


def blank_of(space: gymnasium.Space) -> Any:
    """An observation [1, ...] of zeros."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: blank_of(part) for name, part in space.items()}
    return np.zeros((1, *space.shape), space.dtype)


def make(name: str) -> EnvPoolEnvironment:
    return EnvPoolEnvironment(name)
