"""Games that run on the host and count their steps."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import EnvParams

from popgym_arcade.worlds.host import HostEnvironment, HostSeats, PoolStep


@struct.dataclass
class CountingParams(EnvParams):
    max_steps_in_episode: int = struct.field(default=6, pytree_node=False)


class CountingPool:
    """An observation is (the episode's length, the steps in it so far, the latest action)."""

    def __init__(self, num_envs, limit):
        self.num_envs, self.limit = num_envs, limit

    def reset(self, seeds):
        self.random = np.random.default_rng(seeds.tolist())
        self.lengths, self.times = np.zeros((2, self.num_envs), int)
        self.begin(np.ones(self.num_envs, bool))
        return self.observe(np.zeros(self.num_envs))

    def begin(self, over):
        self.lengths[over] = self.random.integers(2, 10, over.sum())
        self.times[over] = 0

    def observe(self, action):
        return np.stack([self.lengths, self.times, action], axis=1)

    def step(self, action):
        latest = action.reshape(self.num_envs, -1)[:, 0]
        self.times += 1
        terminated = self.times == self.lengths
        truncated = (self.times == self.limit) & ~terminated
        final_obs, time = self.observe(latest), self.times.copy()
        lost_life = time == 1  # a termination for the learner, while the episode goes on
        self.begin(terminated | truncated)
        obs = self.observe(np.where(terminated | truncated, 0, latest))
        return PoolStep(
            obs=obs,
            final_obs=final_obs,
            reward=np.sign(time),
            raw_reward=time,
            terminated=terminated | lost_life,
            truncated=truncated,
            over=terminated | truncated,
        )


class Counting(HostEnvironment):
    @property
    def default_params(self):
        return CountingParams()

    def make_pool(self, num_envs, params):
        return CountingPool(num_envs, params.max_steps_in_episode)

    def observation_space(self, params):
        return spaces.Box(-10.0, 10.0, (3,), jnp.float32)

    def action_space(self, params):
        return spaces.Discrete(3)


class CountingByForce(Counting):
    """The same, with a continuous action."""

    def action_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,), jnp.float32)


class PoolForTwo(CountingPool):
    """Both seats see the same, with the latest action of the first, which wins what the second loses."""

    def reset(self, seeds):
        return np.stack([super().reset(seeds)] * 2, axis=1)

    def step(self, action):
        found = super().step(action)
        parts = {name: np.stack([getattr(found, name)] * 2, axis=1) for name in ("obs", "final_obs")}
        parts |= {name: np.stack([x, -x], axis=1) for name, x in vars(found).items() if "reward" in name}
        return dataclasses.replace(found, **parts)


class CountingForTwo(HostSeats, Counting):
    """The same for two."""

    def make_pool(self, num_envs, params):
        return PoolForTwo(num_envs, params.max_steps_in_episode)
