"""The devices of a run, and which array lies where.

Several devices share either the seeds, if these divide evenly, or the environments. The state says which of its leaves
have an environment axis (`OF_ENVS`); XLA's partitioner derives everything else. `args` are a script's arguments; only
`num_devices` and `num_seeds` are read.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def device_mesh(args: Any) -> Mesh:
    """The run's devices in a row. The name of the axis says what they share: "seeds" or "envs"."""
    count = args.num_devices or jax.device_count()
    shared = "seeds" if args.num_seeds > 1 and args.num_seeds % count == 0 else "envs"
    return jax.make_mesh((count,), (shared,), (AxisType.Auto,), devices=jax.devices()[:count])


def replicated(args: Any) -> NamedSharding:
    """A copy on every device."""
    return NamedSharding(device_mesh(args), P())


def shardings(args: Any, state: Any) -> Any:
    """The sharding of every leaf of a train state: split by seed or by environment, or a copy on every device.

    `state.OF_ENVS` lists the leaves that start with an environment axis, by prefixes of their names.
    """
    mesh = device_mesh(args)
    leading = () if args.num_seeds == 1 else (None,)  # the seed axis, which the devices do not share

    def sharding(path, x) -> NamedSharding:
        if mesh.axis_names == ("seeds",):
            return NamedSharding(mesh, P("seeds"))
        of_envs = leaf_name(path).startswith(state.OF_ENVS) and x.ndim > len(leading)
        return NamedSharding(mesh, P(*leading, "envs") if of_envs else P())

    return jax.tree_util.tree_map_with_path(sharding, state)


def leaf_name(path) -> str:
    """A leaf's place in its tree, e.g. "layers.0.gate.weight"."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def spread(args: Any, tree: Any) -> Any:
    """`tree` with the first axis of its leaves split over the devices, wherever it divides evenly."""
    mesh = device_mesh(args)
    if mesh.size == 1 or mesh.axis_names == ("seeds",):
        return tree
    sharding = NamedSharding(mesh, P("envs"))
    divides = lambda x: x.ndim and x.shape[0] % mesh.size == 0
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, sharding) if divides(x) else x, tree)


def everywhere(args: Any, key: jax.Array) -> jax.Array:
    """A random key, or one per seed, copied to every device of the run."""
    data = np.asarray(jax.random.key_data(key))
    return jax.random.wrap_key_data(jax.device_put(data, replicated(args)))


def on_host(tree: Any) -> Any:
    """`tree`, whose parts may lie on several hosts, as numpy arrays on every host."""
    return multihost_utils.process_allgather(tree, tiled=True) if jax.process_count() > 1 else jax.device_get(tree)


def over_seeds(function: Callable, args: Any, in_axes=0) -> Callable:
    """`function` mapped over a leading seed axis; a single seed has no such axis, and its program is the plain one.

    Devices that share the seeds work only on their own, without any communication.
    """
    if args.num_seeds == 1:
        return function
    mapped, mesh = jax.vmap(function, in_axes=in_axes), device_mesh(args)
    if mesh.size == 1 or mesh.axis_names == ("envs",):
        return mapped
    specs = jax.tree.map(lambda axis: P() if axis is None else P("seeds"), in_axes, is_leaf=lambda axis: axis is None)
    return jax.shard_map(mapped, mesh=mesh, in_specs=specs, out_specs=P("seeds"), check_vma=False)


def seed_by_seed(init: Callable, args: Any) -> Callable:
    """`init(key)` for one key or, one after the other, for several.

    Orthogonal initialisers need QR decompositions, and XLA's CPU backend (jax 0.10.2) can deadlock when it computes
    them for several seeds at once.
    """
    return functools.partial(jax.lax.map, init) if args.num_seeds > 1 else init
