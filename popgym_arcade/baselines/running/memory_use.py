"""Memory of a device: how much there is, and how much a run will take, known before anything is compiled."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from popgym_arcade.baselines.devices.mesh import device_mesh, leaf_name
from popgym_arcade.baselines.environment import is_arcade
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import flag
from popgym_arcade.baselines.networks.encoding import PIECES

PROCESS_BYTES = 1.0e9  # of a CPU process apart from its arrays: Python, JAX, and what compiling leaves behind
MAX_PARAMS = 50_000_000  # memax's Spherical grows with the cube of the hidden size
REMEDIES = {  # what takes memory: flags to lower, flags to raise
    "state": (("num_envs", "num_seeds", "hidden_size"), ()),
    "rollout": (("num_envs", "num_steps"), ()),
    "replay buffer": (("buffer_size",), ()),
    "minibatch": (("batch_size", "num_envs", "num_steps"), ("num_minibatches",)),
    "episodes of an evaluation": (("eval_episodes", "elo_games"), ()),
}


def available() -> float:
    """Bytes a process has for its arrays on each of its devices; infinity if the device does not say.

    For CPUs, their share of the memory that the machine or the container allows the process, less Python's own.
    """
    if jax.default_backend() != "cpu":
        return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", math.inf)
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError):  # a container's limit, or "max"
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return (min(limits) - PROCESS_BYTES) / jax.local_device_count()


def size_of(x: Any) -> int:
    """Bytes of an array, or of anything with its `shape` and `dtype`; a random key counts as its two numbers."""
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return math.prod(x.shape) * (8 if is_key else x.dtype.itemsize)


def byte_size(tree: Any) -> int:
    """Bytes of the arrays of a tree, or of the shapes that `jax.eval_shape` puts in their places."""
    return sum(map(size_of, jax.tree.leaves(tree)))


def backward_bytes(function: Callable, params: Any) -> int:
    """The most bytes held while `function(params)` is differentiated; only the shapes of `params` are read.

    That is what the backward pass needs of the forward pass, and twice the largest value that depends on `params`: its
    gradient, and the gradient it is computed from. Values that do not depend on `params`, such as frames that two
    networks prepare in the same way, are counted once, because XLA computes them once. Values inside a function under
    `jax.checkpoint` are not counted.
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


def minibatch_bytes(args: Any, script: ModuleType, state: Any, transition: Any) -> int:
    """Bytes of a minibatch's inputs, and of what is held while the network is differentiated on them."""
    network, _, _ = script.make_actor(args)
    steps, batch = args.minibatch_shape

    def inputs():
        blank = lambda x: jnp.zeros((steps, batch, *x.shape[1:]), x.dtype)
        obs, prev_action = jax.tree.map(blank, (state.actor.obs, transition.action))
        return script.initial_carry(network, batch), obs, prev_action, jnp.ones((steps, batch), bool)

    def output(learned):
        constants = {name: x for name, x in state.params.items() if name != "params"}  # they have no gradient
        params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), constants) | {"params": learned}
        return script.forward(network, params, *inputs())[1]

    backward = backward_bytes(output, state.params["params"])
    return byte_size(jax.eval_shape(inputs)) + backward


def check_network(args: Any, params: Any) -> None:
    """Raises UserError for a network with more than MAX_PARAMS parameters."""
    count = byte_size(params) // 4
    if count > MAX_PARAMS:
        memory = f"--memory {args.memory} at " if hasattr(args, "memory") else ""
        network = f"{memory}--hidden-size {args.hidden_size} makes {count / 1e6:.0f}M parameters"
        raise UserError(f"{network}, more than {MAX_PARAMS / 1e6:.0f}M: lower --hidden-size")


def memory_needed(args: Any, script: ModuleType) -> dict[str, float]:
    """Bytes a run takes on each device, by what takes them: the keys of REMEDIES.

    What XLA has to hold at once: parameters, optimiser and environments; a rollout; the steps in a replay buffer; a
    minibatch's inputs and what the backward pass needs of the forward pass; a step of the episodes of an evaluation.

    Raises:
        UserError: if the network has more than MAX_PARAMS parameters
    """
    mesh, seeds = device_mesh(args), args.num_seeds
    alone = dataclasses.replace(args, num_seeds=1, num_devices=1)
    _, _, act = script.make_actor(alone)
    state = jax.eval_shape(script.make_train(alone)[0], jax.random.key(0))
    check_network(args, state.params)
    greedy = script.POLICIES["greedy"]
    _, transition, _ = jax.eval_shape(lambda state: act(state.params, state.actor, greedy), state)
    minibatch = minibatch_bytes(alone, script, state, transition)
    if getattr(args, "remat", False):  # only one of the pieces is held as a whole
        whole = minibatch_bytes(dataclasses.replace(alone, remat=False), script, state, transition)
        minibatch += (whole - minibatch) / PIECES
    named = [(leaf_name(path), x) for path, x in jax.tree_util.tree_flatten_with_path(state)[0]]
    of_envs = [(name, size_of(x)) for name, x in named if x.ndim and name.startswith(state.OF_ENVS)]
    replay = sum(size for name, size in of_envs if name.startswith("replay"))
    actor = sum(size for name, size in of_envs) - replay
    own = seeds / mesh.size if mesh.axis_names == ("seeds",) else seeds  # parameters on each device
    steps = args.update_size // args.num_envs
    episodes = max(len(args.tasks) * args.eval_episodes, getattr(args, "elo_games", 0))
    each = (actor + byte_size(transition)) // args.num_envs
    return {
        "state": own * (byte_size(state) - actor - replay) + seeds * actor / mesh.size,
        "rollout": seeds * (steps * byte_size(transition) + actor) / mesh.size,
        "replay buffer": seeds * replay / mesh.size,
        "minibatch": seeds * minibatch / mesh.size,
        "episodes of an evaluation": seeds * episodes * each / mesh.size,
    }


def check_memory(args: Any, script: ModuleType) -> None:
    """Raises UserError, with the flags to change, for a run that does not fit into the memory of a device."""
    needed, there = memory_needed(args, script), available()
    total, largest = sum(needed.values()), max(needed, key=needed.get)
    if total > there:
        raise UserError(
            f"training takes about {total / 1e9:.1f} GB, {needed[largest] / 1e9:.1f} GB of it for the {largest}, "
            f"but only {there / 1e9:.1f} GB are available: {remedy(args, largest)}"
        )


def remedy(args: Any, part: str) -> str:
    """Which flags of these arguments to lower or raise so that a part takes less memory."""
    known = {field.name for field in dataclasses.fields(args)}
    if part == "minibatch" and "batch_size" in known:  # it is sampled from a replay buffer
        known.remove("num_envs")
    lower, higher = ([flag(name) for name in names if name in known] for names in REMEDIES[part])
    verbs = (("raise", higher), ("lower", lower))
    words = [f"{verb} {' or '.join(names)}" for verb, names in verbs if names]
    if part in ("rollout", "replay buffer") and is_arcade(args) and getattr(args, "storage", "states") == "frames":
        words.append("use --storage states")
    elif part == "replay buffer" and "memory" in known:
        words.append(f"lower --hidden-size, or use a --memory other than {args.memory}, which is stored with the steps")
    return ", or ".join(words)
