"""Convolution and max-pooling that are fast in a compiled loop on a CPU, which is where training scripts use them.

XLA's CPU backend runs a convolution inside a `scan` 15 to 20 times slower than outside. So here both are strided slices
and matrix products, with a gradient of their own; on other devices XLA's own convolution is used. In flax:

    pooled = functools.partial(convolve, pool=(2, 2))
    nn.Conv(64, (5, 5), 2, "VALID", promote_dtype=keep_bytes, conv_general_dilated=pooled)

Shapes: N frames, h rows, w columns, c input channels, f output channels.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

AT_ONCE = 8  # frames of bytes; see `largest_product`


def keep_bytes(*arrays: jax.Array | None, dtype: Any) -> list[jax.Array | None]:
    """flax's `promote_dtype`: all arrays as `dtype`, except bytes (uint8), which `convolve` reads as they are."""
    return [x if x is None or x.dtype == jnp.uint8 else x.astype(dtype) for x in arrays]


def convolve(
    x: jax.Array,
    kernel: jax.Array,
    strides: tuple[int, int],
    padding: str = "VALID",
    *,
    pool: tuple[int, int] = (1, 1),
    lhs_dilation: tuple[int, int] = (1, 1),
    rhs_dilation: tuple[int, int] = (1, 1),
    feature_group_count: int = 1,
    **options,
) -> jax.Array:
    """VALID convolution, then VALID max-pooling over windows of pool[0] x pool[0], pool[1] apart.

    x[N, h, w, c] holds bytes from 0 to 255, which stand for 0 to 1, or numbers of the kernel's dtype. The result has
    the kernel's dtype. kernel is [k, k, c, f]; `strides` are the same in both directions. The other arguments are those
    of `jax.lax.conv_general_dilated`, as flax passes them; `options` make no difference on a CPU.

    Raises:
        ValueError: for padding, dilation, groups, oblong kernels or strides that differ, which a CPU would not apply
    """
    plain = padding == "VALID" and feature_group_count == 1
    square = len({*strides}) == 1 and kernel.shape[0] == kernel.shape[1]
    if not (plain and square and {*lhs_dilation, *rhs_dilation} == {1}):
        raise ValueError("convolve: use padding VALID, square kernels, equal strides, no dilation and no groups")
    if jax.default_backend() != "cpu":
        y = jax.lax.conv_general_dilated(scaled(x, kernel.dtype), kernel, strides, padding, **options)
        return max_pool(y, *pool)
    if pool[0] > pool[1]:  # the windows overlap: each product is used by several
        return max_pool(convolve(x, kernel, strides), *pool)
    look = functools.partial(look_at, size=kernel.shape[0], stride=strides[0], pool=pool, dtype=kernel.dtype)
    return largest_product(look, x, kernel.reshape(-1, kernel.shape[-1]))


def max_pool(x: jax.Array, window: int, stride: int) -> jax.Array:
    """VALID max-pooling of x[N, h, w, c], as a maximum of slices: on a CPU, faster backwards than a reduce-window."""
    return functools.reduce(jnp.maximum, window_slices(x, window, stride))


def window_slices(x: jax.Array, window: int, stride: int) -> list[jax.Array]:
    """The window * window strided slices of x[N, h, w, c] that a VALID window sees, row by row."""
    rows, columns = ((side - window) // stride * stride + 1 for side in x.shape[1:3])
    offsets = [(i, j) for i in range(window) for j in range(window)]
    return [x[:, i : i + rows : stride, j : j + columns : stride] for i, j in offsets]


def look_at(x: jax.Array, size: int, stride: int, pool: tuple[int, int], dtype: Any) -> list[jax.Array]:
    """What the kernel is multiplied by at each place that pooling compares: [N, h', w', size * size * c] each."""
    reach = stride * (pool[0] - 1) + size
    slices = window_slices(x, reach, stride * pool[1])
    offsets = [(i, j) for i in range(size) for j in range(size)]
    corners = [(stride * i, stride * j) for i in range(pool[0]) for j in range(pool[0])]
    places = [[slices[(top + i) * reach + left + j] for i, j in offsets] for top, left in corners]
    return [scaled(jnp.concatenate(place, axis=-1), dtype) for place in places]


def scaled(x: jax.Array, dtype: Any) -> jax.Array:
    """Bytes as 0 to 1; anything else unchanged."""
    return x.astype(dtype) / 255 if x.dtype == jnp.uint8 else x


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def largest_product(look: Callable, x: jax.Array, kernel: jax.Array) -> jax.Array:
    """The largest of `place @ kernel` over the places of look(x); among equal ones, the first gets the whole gradient.

    x[N, h, w, c], kernel[k * k * c, f] -> [N, h', w', f]. Bytes are read 8 frames at a time: as floats, repeated for
    every window that sees them, all frames together would not fit into a processor's cache.
    """
    return choose_largest(look, x, kernel)[0]


def choose_largest(look, x, kernel):
    """The forward rule of `largest_product`: its result, and what `pull_back` needs."""

    def choose(_, x):
        largest, *others = (place @ kernel for place in look(x))
        which = jnp.zeros(largest.shape, jnp.int8)
        for i, product in enumerate(others, 1):
            which = jnp.where(product > largest, jnp.int8(i), which)
            largest = jnp.maximum(largest, product)
        return None, (largest, which)

    _, (largest, which) = jax.lax.scan(choose, None, split(x, at_once(x)))
    return join(largest), (x, kernel, join(which))


def pull_back(look, kept, gradient):
    """The backward rule of `largest_product`: the gradients of x (None for bytes) and of the kernel."""
    x, kernel, which = kept
    constant = x.dtype == jnp.uint8

    def add(kernel_gradient, part):
        x, which, gradient = part
        places, to_x = (look(x), None) if constant else jax.vjp(look, x)
        gradients = [jnp.where(which == i, gradient, 0).reshape(-1, kernel.shape[-1]) for i in range(len(places))]
        # without barriers XLA recomputes their values for each element of a product that reads them
        places, gradients = jax.lax.optimization_barrier((places, gradients))
        for place, g in zip(places, gradients, strict=True):
            rows = place.reshape(len(g), -1)
            kernel_gradient += jax.lax.dot_general(
                rows, g, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32
            )
        if constant:
            return kernel_gradient, None
        transposed = jax.lax.optimization_barrier(kernel.T)
        return kernel_gradient, to_x([(g @ transposed).reshape(places[0].shape) for g in gradients])[0]

    frames = at_once(x)
    parts = split(x, frames), split(which, frames), split(gradient, frames)
    kernel_gradient, x_gradient = jax.lax.scan(add, jnp.zeros(kernel.shape, jnp.float32), parts)
    return None if constant else join(x_gradient), kernel_gradient.astype(kernel.dtype)


largest_product.defvjp(choose_largest, pull_back)


def at_once(x: jax.Array) -> int:
    """Frames of x[N, ...] to read at once: for bytes a divisor of N, at most 8; for anything else all."""
    return math.gcd(len(x), AT_ONCE) if x.dtype == jnp.uint8 else len(x)


def split(x: jax.Array, frames: int) -> jax.Array:
    """[N, ...] -> [N / frames, frames, ...]. If devices share x, each holds a part of every piece."""
    return x.reshape(frames, -1, *x.shape[1:]).swapaxes(0, 1)


def join(x: jax.Array) -> jax.Array:
    """Undoes `split`."""
    return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])
