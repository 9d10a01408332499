"""The compiled programs of a run: its first state, a chunk of updates, an evaluation; for all seeds and devices."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from popgym_arcade.baselines.devices.mesh import over_seeds, replicated, seed_by_seed, shardings

DETERMINISTIC = {"xla_gpu_deterministic_ops": True, "xla_gpu_autotune_level": 0}


def compiler_options(args: Any) -> dict[str, Any] | None:
    """What jax.jit passes to the compiler. XLA_FLAGS would be too late: importing gymnax starts the devices."""
    return DETERMINISTIC if args.deterministic else None


def abstract_state(args: Any, init: Callable, keys: jax.Array) -> Any:
    """The state init(key) makes, as shapes with shardings; with a leading seed axis if there are several seeds."""
    shapes = jax.eval_shape(seed_by_seed(init, args), keys)
    place = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    return jax.tree.map(place, shapes, shardings(args, shapes))


def jit_init(args: Any, init: Callable, template: Any) -> Callable:
    """init(keys), its state laid out like `template`."""
    layout = jax.tree.map(lambda x: x.sharding, template)
    return jax.jit(seed_by_seed(init, args), out_shardings=layout, compiler_options=compiler_options(args))


def compile_train_chunk(args: Any, train_chunk: Callable, state: Any) -> Callable:
    """train_chunk(state, num_updates) -> (state, sums). It takes over the memory of the state it is given."""
    layout = jax.tree.map(lambda x: x.sharding, state)
    program = jax.jit(
        over_seeds(train_chunk, args, (0, None)),
        donate_argnums=0,
        out_shardings=(layout, replicated(args)),
        compiler_options=compiler_options(args),
    )
    return program.lower(state, np.int32(1)).compile()


def compile_evaluate(args: Any, evaluate: Callable, params: Any, keys: jax.Array, policy: Any) -> Callable:
    """evaluate(params, keys, policy) -> Evaluation, without its actor."""
    mapped = over_seeds(evaluate, args, (0, 0, None))
    program = jax.jit(
        lambda *inputs: mapped(*inputs).replace(actor=None),
        out_shardings=replicated(args),
        compiler_options=compiler_options(args),
    )
    return program.lower(params, keys, policy).compile()
