"""Memory of a device: what there is of it, and what a computation will take, told before it is compiled."""

import contextlib
import math
import os
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

PROCESS_BYTES = 1.0e9  # of a CPU's process beside its arrays: Python, JAX, and what compiling leaves


def available() -> float:
    """Bytes that a process has for its arrays on each of its devices; infinity where the device does not tell.

    Of CPUs, their part of what the machine, or the container, allows the process and Python does not take.
    """
    if jax.default_backend() != "cpu":
        return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", math.inf)
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError):  # a container's, or "max"
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return (min(limits) - PROCESS_BYTES) / jax.local_device_count()


def size_of(x) -> int:
    """Bytes of an array, or of what has its `shape` and `dtype`; of a random key, those of its two numbers."""
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return math.prod(x.shape) * (8 if is_key else x.dtype.itemsize)


def byte_size(tree) -> int:
    """Bytes of the arrays of a tree, or of what `jax.eval_shape` has in their places."""
    return sum(map(size_of, jax.tree.leaves(tree)))


def backward_bytes(function, params) -> int:
    """Bytes that are held at most while `function(params)` is differentiated; of `params` only the shapes are read.

    These are what the backward pass needs of the forward pass, and twice the largest value that depends on `params`:
    its gradient, and the one that this is computed from. What does not depend on them, as frames that two networks have
    prepared in the same way, XLA computes but once. A function that is called with `jax.checkpoint` counts as it is
    called: what it computes within is not seen.
    """
    jaxpr = jax.make_jaxpr(lambda params: jax.vjp(function, params)[1])(params).jaxpr
    dependent, largest = set(jaxpr.invars), 0
    for equation in jaxpr.eqns:
        if dependent.intersection(x for x in equation.invars if not isinstance(x, Literal)):
            dependent.update(equation.outvars)
            largest = max([largest, *(size_of(x.aval) for x in equation.outvars)])
    kept = [x for x in jaxpr.outvars if not isinstance(x, Literal)]
    kept = {x if x in dependent else (x.aval.shape, x.aval.dtype): size_of(x.aval) for x in kept}
    return sum(kept.values()) + 2 * largest
