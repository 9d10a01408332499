"""Random minibatches that need no communication between devices.

A minibatch takes the same number of steps from every group of neighbouring environments. Devices hold whole groups, so
each finds its share of every minibatch in its own memory. Shapes: G groups, n of each group in a minibatch, B = G n.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp


def group_size(num_minibatches: int, num_steps: int = 1) -> int:
    """Environments in a group: the fewest that give every minibatch an equal share. Devices must hold whole groups."""
    return num_minibatches // math.gcd(num_minibatches, num_steps)


def shuffled(
    keys: Sequence[jax.Array], num_envs: int, num_steps: int, num_minibatches: int
) -> tuple[jax.Array, jax.Array]:
    """For each key, every step of every environment once, in random order.

    Returns:
        Steps and environments, int32 [len(keys), num_minibatches, G, n]. Environments are counted within their group.
    """
    group = group_size(num_minibatches, num_steps)
    orders = jnp.stack([random_order(key, num_envs // group, group * num_steps) for key in keys])
    orders = orders.reshape(len(keys), num_envs // group, num_minibatches, -1).swapaxes(1, 2)
    return orders % num_steps, orders // num_steps


def shuffled_envs(keys: Sequence[jax.Array], num_envs: int, num_minibatches: int) -> jax.Array:
    """For each key, every environment once, in random order, int32 [len(keys), num_minibatches, G, 1].

    A minibatch gets one environment of every group of `num_minibatches` neighbours, counted within its group.
    """
    return shuffled(keys, num_envs, 1, num_minibatches)[1]


def pick_steps(tree: Any, steps: jax.Array, envs: jax.Array) -> Any:
    """A minibatch of single steps: from leaves [T, E, ...] those of steps[G, n] and envs[G, n], as leaves [B, ...]."""

    def pick(x):
        groups = x.reshape(x.shape[0], len(envs), x.shape[1] // len(envs), *x.shape[2:])  # [T, G, E / G, ...]
        picked = jax.vmap(lambda x, step, env: x[step, env], in_axes=(1, 0, 0))(groups, steps, envs)
        return picked.reshape(steps.size, *picked.shape[2:])

    return jax.tree.map(pick, tree)


def pick_envs(tree: Any, envs: jax.Array, axis: int = 1) -> Any:
    """A minibatch of whole environments: from leaves with an axis of E environments, one per group, envs[G, 1]."""

    def pick(x):
        groups = x.reshape(*x.shape[:axis], len(envs), x.shape[axis] // len(envs), *x.shape[axis + 1 :])
        # not a vmap of indexing: that transposes x, and sums over the minibatch are then rounded differently
        dims = jax.lax.GatherDimensionNumbers(
            offset_dims=tuple(dim for dim in range(x.ndim) if dim != axis),
            operand_batching_dims=(axis,),
            start_indices_batching_dims=(0,),
            collapsed_slice_dims=(axis + 1,),
            start_index_map=(axis + 1,),
        )
        return jax.lax.gather(groups, envs, dims, (*x.shape[:axis], 1, 1, *x.shape[axis + 1 :]), mode="clip")

    return jax.tree.map(pick, tree)


def random_order(key: jax.Array, rows: int, length: int) -> jax.Array:
    """int32 [rows, length]: the numbers 0 ... length - 1 in an independent random order in each row.

    `jax.random.permutation` sorts pairs, which XLA's CPU backend does four to nine times slower than plain numbers.
    Here the high bits of each number are random and the low bits are the number itself. Numbers with the same random
    bits, about one pair in 2,048 numbers and 512 in 16,384, keep their order.
    """
    bits = (length - 1).bit_length()
    if bits > 16:
        numbers = jnp.broadcast_to(jnp.arange(length), (rows, length))
        return jax.random.permutation(key, numbers, axis=1, independent=True)
    high = (jax.random.bits(key, (rows, length)) >> bits) << bits
    marked = high | jnp.arange(length, dtype=jnp.uint32)[None]
    return (jnp.sort(marked, axis=1) & ((1 << bits) - 1)).astype(jnp.int32)
