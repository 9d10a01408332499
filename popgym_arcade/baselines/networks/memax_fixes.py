"""Replacements for three of memax's memories, with the same results: two can deadlock, and one compiles slowly.

`jax.scipy.linalg.expm` needs an LU decomposition. XLA's CPU backend (jax 0.10.2) decomposes a batch on the threads of a
pool and waits for them on a thread of the same pool. A program that decomposes as many batches at once as the pool has
threads deadlocks, for example an actor and a critic, each with a spherical memory, on two cores.
"""

import functools
import math

import jax
import jax.numpy as jnp
from memax.equinox.groups import Resettable
from memax.equinox.semigroups import spherical as semigroups
from memax.equinox.semigroups import stack
from memax.equinox.set_actions import spherical as set_actions

LARGEST = 2.0  # norm up to which the series of degree 13 is exact in float32: 2**14 / 14! < 2**-22
MAX_SQUARINGS = 64  # beyond that float32 has no significant digits left


@jax.custom_vjp
def expm(a: jax.Array) -> jax.Array:
    """The matrix exponential of a[N, N], float32, by scaling and squaring of its Taylor series.

    The number of squarings depends on the norm of `a` (under `vmap`, on the largest in the batch), so `expm` has its
    own gradient: that of <g, expm(a)> is the derivative of expm at a^T in the direction g (Higham 2008, Functions of
    Matrices, theorem 3.1 and section 10.6).
    """
    return squared_series(a)


def squared_series(a: jax.Array) -> jax.Array:
    """`expm` of a[N, N] with forward derivatives only."""
    dot = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    norm = jax.lax.stop_gradient(jnp.abs(a).sum(0).max())
    squarings = jnp.clip(jnp.ceil(jnp.log2(norm / LARGEST)), 0, MAX_SQUARINGS).astype(jnp.int32)
    a = a * jnp.ldexp(jnp.ones((), a.dtype), -squarings)
    one = jnp.eye(len(a), dtype=a.dtype)
    a2 = dot(a, a)
    a4 = dot(a2, a2)
    a6 = dot(a2, a4)

    def even_powers(c):  # c[0] + c[1] a**2 + ... + c[6] a**12
        return c[0] * one + c[1] * a2 + c[2] * a4 + dot(a6, c[3] * one + c[4] * a2 + c[5] * a4 + c[6] * a6)

    even, odd = (even_powers([1 / math.factorial(k) for k in range(first, 14, 2)]) for first in (0, 1))
    x = even + dot(a, odd)

    def unfinished(state):
        count, _ = state
        return count < squarings

    def square(state):
        count, x = state
        return count + 1, dot(x, x)

    return jax.lax.while_loop(unfinished, square, (0, x))[1]


def expm_forward(a):
    """The forward rule of `expm`: its result, and what `expm_backward` needs."""
    return squared_series(a), a


def expm_backward(a, g):
    """The backward rule of `expm`."""
    return (jax.jvp(squared_series, (a.T,), (g,))[1],)


expm.defvjp(expm_forward, expm_backward)


def rotation(project, x: jax.Array, size: int) -> jax.Array:
    """A rotation [size, size]: the exponential of the skew-symmetric matrix with the entries project(x)."""
    upper = jnp.zeros((size, size)).at[jnp.triu_indices(size, 1)].set(project(x))
    return expm(upper - upper.T)


class PSpherical(semigroups.PSpherical):
    """memax's memory of the same name: h_t = h_{t-1} R(x_t), a product of rotations, as an associative scan."""

    def rot(self, x):
        return rotation(self.project, x, self.recurrent_size)


class SphericalMagma(set_actions.SphericalMagma):
    """h_t = R(x_t) h_{t-1}: a vector on a sphere, rotated by each input."""

    def rot(self, z):
        return rotation(self.project, z, self.recurrent_size)


class Spherical(set_actions.Spherical):
    """memax's memory of the same name; Biegun et al. 2024, "RotRNN", https://arxiv.org/abs/2407.07239."""

    def __init__(self, recurrent_size: int, hidden_size: int, key: jax.Array):
        layer_key, magma_key = jax.random.split(key)
        super().__init__(recurrent_size, hidden_size, layer_key)
        self.algebra = Resettable(SphericalMagma(recurrent_size, key=magma_key))


class StackSemigroup(stack.StackSemigroup):
    """The latest inputs of two sequences, (values[S, H], valid[S]) each, with the valid ones at the end.

    memax's own uses cumulative sums and a scatter, which compile and run more slowly.
    """

    def __call__(self, carry, input):
        (early, early_valid), (late, late_valid) = carry, input
        place = jnp.arange(self.stack_size)
        moved = place[:, None] + late_valid.sum() == place  # [S, S]; the early ones make room for the late ones
        early = jnp.matmul(moved.astype(early.dtype), early, precision=jax.lax.Precision.HIGHEST)
        values = jnp.where(late_valid[:, None], late, early)
        return values, late_valid | (moved & early_valid).any(1)


class Stack(stack.Stack):
    """memax's memory of the same name: a linear map of the last `window_size` inputs."""

    def __init__(self, recurrent_size: int, window_size: int, key: jax.Array):
        super().__init__(recurrent_size, window_size, key)
        self.algebra = Resettable(StackSemigroup(recurrent_size, window_size))
