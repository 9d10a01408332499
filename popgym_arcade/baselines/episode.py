"""The episodes being played: what they have earned so far, how long they are, and whether they are over.

Shapes: E environments.
"""

from typing import Self

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Episode:
    """The episodes [E] after a step; a rollout stacks them to [T, E].

    Counted as the player sees them, in the game's own units. Some environments show the learner something else:
    clipped rewards, or a termination with every lost life.
    """

    total_reward: jax.Array  # float32, of the steps so far: once the episode is over, its return
    length: jax.Array  # int32, steps so far
    over: jax.Array  # bool

    @classmethod
    def begin(cls, num_envs: int) -> Self:
        """Before the first step."""
        return cls(
            total_reward=jnp.zeros(num_envs, jnp.float32),
            length=jnp.zeros(num_envs, jnp.int32),
            over=jnp.zeros(num_envs, bool),
        )

    def after(self, info: dict) -> Self:
        """After one more step, of the same episode or, if that was over, of the next. `info` is from `envs.step`."""
        return type(self)(
            total_reward=jnp.where(self.over, 0, self.total_reward) + info["raw_reward"],
            length=jnp.where(self.over, 0, self.length) + 1,
            over=info["over"],
        )
