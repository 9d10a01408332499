"""Changes of an environment's parameters, each given as NAME=VALUE."""

import ast
import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from popgym_arcade.baselines.errors import UserError

MAX_INT = 2**31 - 1
# smallest and largest values of parameters
LEAST = {
    "max_steps_in_episode": 1,
    "num_levels": 0,
    "start_level": 0,
    "frame_skip": 1,
    "frame_stack": 1,
    "stack_num": 1,
    "memory_length": 1,
    "repeat_action_probability": 0,
}
MOST = {"frame_stack": 64, "stack_num": 64, "frame_skip": 1000, "repeat_action_probability": 1}
BELOW = {"memory_length": "max_steps_in_episode"}  # an episode must last until the question


def name_of(change: str) -> str:
    """The NAME in NAME=VALUE."""
    return change.partition("=")[0]


def with_changes(env_id: str, env_params: Any, changes: tuple[str, ...]) -> Any:
    """`env_params` after `changes`, each NAME=VALUE. Raises UserError for one that does not fit them."""
    fields = {field.name: getattr(env_params, field.name) for field in dataclasses.fields(env_params)}
    names = [name_of(change) for change in changes]
    for change in changes:
        name, _, text = change.partition("=")
        if name not in fields:
            raise UserError(f"--env-params {change!r}: {env_id} has no such parameter; it has {', '.join(fields)}")
        if names.count(name) > 1:
            raise UserError(f"--env-params has {name} {names.count(name)} times: give it once")
        try:
            env_params = env_params.replace(**{name: read_like(fields[name], text)})
        except (ValueError, SyntaxError, TypeError):
            kind = type(fields[name]).__name__
            raise UserError(f"--env-params {change!r}: write {name} as {kind}, like {fields[name]}") from None
    for name in names:
        value = getattr(env_params, name)
        if np.min(value) < LEAST.get(name, -np.inf):
            raise UserError(f"--env-params {name}={value}: use {LEAST[name]} or more")
        if np.max(value) > MOST.get(name, np.inf):
            raise UserError(f"--env-params {name}={value}: use {MOST[name]} or less")
    for name, bound in BELOW.items():
        if name in fields and not {name, bound}.isdisjoint(names):
            value, limit = getattr(env_params, name), getattr(env_params, bound)
            if value >= limit:
                raise UserError(f"--env-params {name}={value}: use less than {bound}, which is {limit}")
    return env_params


def read_like(old: Any, text: str) -> Any:
    """The Python literal `text`. Raises ValueError unless it has the type and shape of `old`."""
    new, like = np.asarray(ast.literal_eval(text)), np.asarray(old)
    fits = new.shape == like.shape and np.can_cast(new.dtype, like.dtype, "same_kind") and np.isfinite(new).all()
    if not fits or (like.dtype.kind in "iu" and np.abs(new).max() > MAX_INT):
        raise ValueError
    return jnp.asarray(new, old.dtype) if hasattr(old, "dtype") else type(old)(new.tolist())
