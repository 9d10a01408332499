"""JAX's defaults for libraries that rely on them, whatever the user has set for the rest of the program."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax


@contextlib.contextmanager
def jax_defaults() -> Iterator[None]:
    """Within the context, types have 32 bits, and arrays of different ranks may be combined."""
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
        yield


def any_rank(functions: Any) -> Any:
    """A dataclass of functions, such as flashbax's buffers, that may combine arrays of different ranks."""

    def wrapped(function: Callable) -> Callable:
        @functools.wraps(function)
        def call(*args, **kwargs):
            with jax.numpy_rank_promotion("allow"):
                return function(*args, **kwargs)

        return call

    names = [field.name for field in dataclasses.fields(functions) if callable(getattr(functions, field.name))]
    return dataclasses.replace(functions, **{name: wrapped(getattr(functions, name)) for name in names})
