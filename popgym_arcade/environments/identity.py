"""A short digest of what an object consists of: environments with the same parts are equal."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)


def fingerprint(value: Any) -> bytes:
    """A digest of a value, 16 bytes: equal for a copy, and for anything else built from the same parts.

    Numbers, strings and arrays count by value, containers and plain objects by their parts. A function, and anything
    else that hides its parts, counts by identity: two of them differ even if they do the same.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in _parts(value, frozenset()):
        digest.update(part)
    return digest.digest()


def _parts(value: Any, around: frozenset[int]) -> Iterator[bytes]:
    """The bytes that distinguish a value. `around` holds the ids of the containers it lies in, to stop at cycles."""
    yield f"<{type(value).__module__}.{type(value).__qualname__}>".encode()
    inner = _inside(value)
    if isinstance(value, _PLAIN):
        yield repr(value).encode()
    elif _is_array(value):
        array = np.ascontiguousarray(value)
        yield f"{array.dtype}{array.shape}".encode()
        yield array.tobytes()
    elif inner is None or id(value) in around:
        yield str(id(value) if inner is None else len(around)).encode()
    else:
        yield str(len(inner)).encode()
        for part in inner:
            yield from _parts(part, around | {id(value)})


def _is_array(value: Any) -> bool:
    """Whether a value is an array of numbers that can be read now (no tracer, no random key)."""
    if isinstance(value, jax.core.Tracer):
        return False
    return isinstance(value, np.ndarray | jax.Array) and isinstance(value.dtype, np.dtype)


def _inside(value: Any) -> list | None:
    """The parts of a container or a plain object; None for anything that hides them."""
    if isinstance(value, Mapping):
        return [part for item in value.items() for part in item]
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, slice | range):
        return [value.start, value.stop, value.step]
    if isinstance(value, set | frozenset):
        return sorted(map(fingerprint, value))
    if hasattr(value, "__dict__") and not callable(value) and not isinstance(value, jax.Array | type):
        return [part for item in vars(value).items() for part in item]
    return None
