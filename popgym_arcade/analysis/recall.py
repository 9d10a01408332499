"""Where in an episode the gradient of an agent's last decision lies.

Shapes: T steps of a complete episode, n = T - 1 its last step, A actions.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from popgym_arcade.analysis.agents import Agent
from popgym_arcade.analysis.networks import differentiable, network_args, other_inputs
from popgym_arcade.analysis.trajectories import Trajectory, observations


@functools.lru_cache
def norm_program(args: Any, norm: str):
    """norms(params, obs[T, ...], others, n) -> [A, T], norms of the gradient of each action value at n."""
    prepare = differentiable(args)

    def norms(params, obs, others, n):
        x, values = prepare(params, obs, others)
        y, pull_back = jax.vjp(lambda x: values(x)[n], x)

        def of_action(cotangent):
            size = jnp.abs(pull_back(cotangent)[0].reshape(len(obs), -1))
            if norm == "l1":
                return size.sum(axis=1)
            largest = size.max(axis=1)  # the squares of a saturated policy's gradient would underflow
            return largest * jnp.linalg.norm(size / jnp.where(largest > 0, largest, 1)[:, None], axis=1)

        # one action after the other: all gradients of a long episode of frames would not fit in memory at once
        return jax.lax.map(of_action, jnp.eye(y.size))

    return jax.jit(norms)


def padded(x: np.ndarray, length: int) -> np.ndarray:
    """x[T, ...] with zeros up to `length` steps."""
    return np.concatenate([x, np.zeros((length - len(x), *x.shape[1:]), x.dtype)])


def recall_density(agent: Agent, trajectory: Trajectory, norm: str = "l2") -> np.ndarray:
    """delta_t = g_t / sum g, float64 [T], where g_t is the norm of the gradient at the last step n with respect to o_t.

    The gradient is that of `saliency.gradient_saliency`: d y(s_n, a) / d o_t for all actions a, where y is Q, the
    probability of a policy or the mean of a continuous one, and o_t a frame with values from 0 to 1. Sums to 1; NaN if
    nothing matters to the last decision. Wang et al. 2025, https://arxiv.org/abs/2503.01450.
    """
    program = norm_program(network_args(agent), norm)
    length = 2 ** max(5, (len(trajectory) - 1).bit_length())  # few lengths, few programs
    others = tuple(getattr(trajectory, name) for name in other_inputs(agent.script))
    obs, others = jax.tree.map(lambda x: padded(x, length), (observations(agent, trajectory), others))
    norms = np.asarray(program(agent.params, obs, others, len(trajectory) - 1), float)
    norms = norms[:, : len(trajectory)]  # they are zero after the last step
    total = norms.sum(axis=0) if norm == "l1" else np.linalg.norm(norms, axis=0)
    return total / total.sum() if total.any() else np.full(len(total), np.nan)
