"""Running moments, and rewards in units of the spread of returns, so that one learning rate suits every game.

Shapes: T steps of a rollout, E environments, N samples.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Moments:
    """Running mean and variance of `count` samples."""

    mean: jax.Array
    var: jax.Array
    count: jax.Array

    @classmethod
    def fresh(cls, shape: tuple[int, ...]) -> "Moments":
        """Mean 0 and variance 1, with the weight of a ten-thousandth of a sample: soon forgotten."""
        return cls(mean=jnp.zeros(shape, jnp.float32), var=jnp.ones(shape, jnp.float32), count=jnp.float32(1e-4))

    def updated(self, x: jax.Array) -> "Moments":
        """The moments once the samples x[N, ...] are added (Chan et al. 1979, the parallel algorithm)."""
        count = self.count + x.shape[0]
        weight = x.shape[0] / count
        delta = x.mean(axis=0) - self.mean
        var = (1 - weight) * self.var + weight * x.var(axis=0) + weight * (1 - weight) * delta**2
        return Moments(mean=self.mean + weight * delta, var=var, count=count)


@struct.dataclass
class RewardScale:
    """The unit in which an agent learns: the standard deviation of the discounted sums of past rewards.

    Rewards divided by it have returns of a size that does not depend on the game (Engstrom et al. 2020, section 3,
    https://arxiv.org/abs/2005.12729). Rollouts before the first reward do not count: with them, the unit would shrink
    until the first reward looks huge. It is part of the train state, so checkpoints include it.
    """

    sums: jax.Array  # [E] float32, discounted, of the current episodes
    moments: Moments  # of all such sums so far

    @classmethod
    def fresh(cls, num_envs: int) -> "RewardScale":
        """The scale before the first reward: the game's own unit."""
        return cls(sums=jnp.zeros(num_envs, jnp.float32), moments=Moments.fresh(()))

    def updated(self, rollout: Any, gamma: float) -> "RewardScale":
        """The scale once a rollout's rewards, terminated and truncated [T, E] are known."""
        sums, every_sum = discounted_sums(rollout, self.sums, gamma)
        moments = self.moments.updated(every_sum.T.reshape(-1))  # E first, because devices share it
        begun = (self.moments.count > 1) | (every_sum != 0).any()
        return RewardScale(sums, jax.tree.map(lambda new, old: jnp.where(begun, new, old), moments, self.moments))

    @property
    def std(self) -> jax.Array:
        """The unit: float32 [], 1 until the first reward."""
        return jnp.sqrt(self.moments.var + 1e-8)


def discounted_sums(rollout: Any, before: jax.Array, gamma: float) -> tuple[jax.Array, jax.Array]:
    """The next rollout's `before`, and S[T, E]: S_t = r_t + gamma S_{t-1} within each episode, S_{-1} = before[E]."""

    def forward_in_time(previous, now):
        reward, done = now
        total = reward + gamma * previous
        return jnp.where(done, 0.0, total), total

    return jax.lax.scan(forward_in_time, before, (rollout.reward, rollout.terminated | rollout.truncated))
