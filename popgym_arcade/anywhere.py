"""A condition that stays one branch under `vmap`."""

import jax
from jax.custom_batching import custom_vmap


@custom_vmap
def anywhere(flags: jax.Array) -> jax.Array:
    """Whether any of the flags is True, in any environment of any seed: a bool [] without a seed axis.

    So a `jax.lax.cond` on it stays a branch with several seeds, where `vmap` would otherwise compute both sides.
    """
    return flags.any()


@anywhere.def_vmap
def _anywhere_over_seeds(axis_size, in_batched, flags):
    return anywhere(flags), False
