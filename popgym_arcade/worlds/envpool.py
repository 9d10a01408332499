"""EnvPool's environments (Apache-2.0): Atari, Procgen, Gym's MuJoCo, dm_control and more, `envpool/HalfCheetah-v4`.

Weng et al. 2022, https://arxiv.org/abs/2206.10558. Each option that EnvPool has for an id is a parameter, such as
`num_levels` and `start_level` for Procgen. The defaults are EnvPool's: unlike `atari/...`, its Atari games have four
stacked frames, do not clip rewards, and do not end an episode with a lost life.
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
    "episodic_life",  # after a lost life, EnvPool's reset begins another game
}
LONGEST = 27_000  # steps of an episode where EnvPool sets no limit, or one that an evaluation would not reach


def ids() -> list[str]:
    """All of EnvPool's ids."""
    return envpool.list_all_envs()


def parameters_of(config: dict[str, Any]) -> EnvParams:
    """The parameters of an environment with these options: static fields of the same names."""
    limit = config[LIMIT]
    options = {"max_steps_in_episode": limit if 0 < limit <= 10**6 else LONGEST}
    options |= {name: x for name, x in config.items() if name not in OF_POOL and isinstance(x, bool | int | float)}
    fields = {name: struct.field(default=value, pytree_node=False) for name, value in options.items()}
    kinds = {name: type(value) for name, value in options.items()}
    return struct.dataclass(type("EnvPoolParams", (EnvParams,), fields | {"__annotations__": kinds}))()


def options_of(params: EnvParams) -> dict[str, Any]:
    """EnvPool's options for these parameters."""
    options = dict(vars(params))
    return options | {LIMIT: options.pop("max_steps_in_episode")}


class EnvPoolPool:
    """See `host.Pool`. EnvPool seeds an environment only when it is made, so every reset makes a new pool.

    Steps are counted here, because some of EnvPool's environments ignore the limit.
    """

    def __init__(self, name: str, num_envs: int, params: EnvParams):
        self.num_envs, self.limit = num_envs, params.max_steps_in_episode
        self.make = functools.partial(envpool.make, name, env_type="gymnasium", num_envs=num_envs, **options_of(params))

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        self.envs = self.make(seed=seeds.tolist())
        self.dtype = self.envs.action_space.dtype
        self.time = np.zeros(self.num_envs, int)
        return joined(self.envs.reset()[0])

    def step(self, action: np.ndarray) -> PoolStep:
        obs, reward, terminated, truncated, info = self.envs.step(action.astype(self.dtype))
        raw_reward = info["reward"] if "lives" in info else reward  # Atari's, which may be clipped
        self.time += 1
        truncated = truncated | (self.time >= self.limit)
        over = terminated | truncated
        obs = final_obs = joined(obs)
        if over.any():
            obs = final_obs.copy()
            obs[over] = joined(self.envs.reset(np.flatnonzero(over))[0])
            self.time[over] = 0
        ends = {"terminated": terminated, "truncated": truncated, "over": over}
        return PoolStep(obs=obs, final_obs=final_obs, reward=reward, raw_reward=raw_reward, **ends)


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
    """Whether an observation, or its space, is bytes with a height and a width of 32 pixels or more."""
    return space.dtype == np.uint8 and len(space.shape) == 3 and sorted(space.shape)[1] >= 32


class EnvPoolEnvironment(HostEnvironment):
    """An environment of EnvPool."""

    def __init__(self, name: str):
        """Raises ValueError for an environment of several players, or without discrete or continuous actions."""
        self.env_id = name
        config = envpool.make_spec(name).config._asdict()
        if config["max_num_players"] > 1:
            raise ValueError(f"{name} has several players")
        self.params = parameters_of(config)
        actions = self.spec(self.params).gymnasium_action_space
        continuous = isinstance(actions, gymnasium.spaces.Box) and actions.dtype.kind == "f"
        if not (continuous or isinstance(actions, gymnasium.spaces.Discrete)):
            raise ValueError(f"{name} has neither discrete nor continuous actions, but {actions}")

    def spec(self, params: EnvParams) -> Any:
        """EnvPool's description of the environment with these parameters."""
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
