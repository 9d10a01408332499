"""The contract that a game of your own must keep, checked by tracing its functions: nothing is compiled or computed."""

import dataclasses
import inspect
import re
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments.environment import Environment

from popgym_arcade.environments.arcade import ArcadeEnvironment, ArcadeParams, ArcadeState


def check_game(game: type[ArcadeEnvironment], obs_size: int = 128) -> None:
    """Checks both twins of a game against the contract of `ArcadeEnvironment`.

    Raises ValueError, in one line, for the first thing that is wrong: the constructor, `max_steps`, a missing method,
    the fields of the state, the reward, the end, or the frame. It cannot see what a frame looks like, nor whether the
    twins differ.
    """
    for partial_obs in (False, True):
        _check_twin(game, partial_obs, obs_size)


def check_interface(name: str, env: Environment, params: Any) -> None:
    """Checks that `reset` and `step` of a gymnax environment agree with each other and with `observation_space`.

    Raises ValueError, in one line that begins with `name`.
    """
    space, action_space = env.observation_space(params), env.action_space(params)
    key = jax.random.key(0)
    reset = _traced(env, name, "reset", env.reset, key, params)
    _check_length(name, "reset", reset, ("observation", "state"))
    obs, state = reset
    action = jax.eval_shape(action_space.sample, key)
    step = _traced(env, name, "step", env.step, key, state, action, params)
    _check_length(name, "step", step, ("observation", "state", "reward", "terminated", "truncated", "info"))
    if "final_observation" not in step[5]:
        raise ValueError(f"{name}: step returns an info without final_observation, the last one before a reset")
    _check_observation(name, "reset", obs, space)
    _check_observation(name, "step", step[0], space)
    _check_same(name, "step", state, step[1])
    _check_scalars(name, "step", {"reward": step[2], "terminated": step[3], "truncated": step[4]})


def _check_twin(game: type[ArcadeEnvironment], partial_obs: bool, obs_size: int) -> None:
    name = game.__name__
    try:
        env = game(partial_obs=partial_obs, obs_size=obs_size)
    except Exception as error:
        what = f"{name}(partial_obs={partial_obs}, obs_size={obs_size}) fails"
        raise ValueError(f"{what}: {_one_line(error, game)}") from None
    if (getattr(env, "partial_obs", None), getattr(env, "obs_size", None)) != (partial_obs, obs_size):
        raise ValueError(f"{name}: __init__ must call super().__init__(partial_obs, obs_size)")
    params = env.default_params
    if not isinstance(params, ArcadeParams):
        raise ValueError(f"{name}: default_params is a {type(params).__name__}, not an ArcadeParams")
    limit = params.max_steps_in_episode
    if not isinstance(limit, int) or limit < 1:
        raise ValueError(f"{name}: max_steps is {limit}, use a whole number of 1 or more")

    key, action = jax.random.key(0), jax.ShapeDtypeStruct((), jnp.int32)
    for method, count in (("reset_state", 2), ("transition", 4), ("render", 1)):
        _check_parameters(env, name, method, count)
    state = _traced(env, name, "reset_state", env.reset_state, key, params)
    if not isinstance(state, ArcadeState):
        what = f"a {type(state).__name__}, not a flax.struct dataclass that extends ArcadeState"
        raise ValueError(f"{name}: reset_state returns {what}")
    if getattr(state.time, "shape", None) != () or not jnp.issubdtype(state.time.dtype, jnp.integer):
        raise ValueError(f"{name}: reset_state returns a time that is {kind(state.time)}, use jnp.int32(0)")
    result = _traced(env, name, "transition", env.transition, key, state, action, params)
    _check_length(name, "transition", result, ("state", "reward", "terminated"))
    _check_same(name, "transition", state, result[0])
    _check_scalars(name, "transition", {"reward": result[1], "terminated": result[2]})
    _check_observation(name, "render", _traced(env, name, "render", env.render, state), env.observation_space(params))


def _check_parameters(env: ArcadeEnvironment, name: str, method: str, count: int) -> None:
    """Raises ValueError unless a method takes `count` arguments, as in the base class."""
    try:
        inspect.signature(getattr(env, method)).bind(*range(count))
    except TypeError:
        expected = inspect.signature(getattr(ArcadeEnvironment, method)).parameters
        raise ValueError(f"{name}: {method} must take ({', '.join(expected)})") from None


def _traced(env: Environment, name: str, method: str, function: Callable, *args: Any) -> Any:
    """Shapes and dtypes of what a method returns.

    Raises ValueError if it cannot be traced, if it sets an attribute, or if tracing it again gives another program.
    """
    attributes = dict(vars(env))

    def trace() -> tuple[Any, Any]:
        # a partial of its own, because JAX would look up the trace of a function that it has traced before
        return jax.make_jaxpr(partial(function), return_shape=True)(*args)

    try:
        (program, shapes), (again, _) = trace(), trace()
    except NotImplementedError:
        raise ValueError(f"{name} has no method {method}") from None
    except Exception as error:
        if "is not a valid JAX type" in str(error):
            why = "returns a value that is not an array; a state is a flax.struct dataclass that extends ArcadeState"
            raise ValueError(f"{name}: {method} {why}") from None
        raise ValueError(f"{name}: {method} fails: {_one_line(error, type(env))}") from None
    for attribute, value in vars(env).items():
        if value is not attributes.get(attribute, attributes):
            raise ValueError(f"{name}: {method} sets self.{attribute}; the state must hold everything that changes")
    if not _same_program(program, again):
        raise ValueError(f"{name}: {method} differs from call to call; draw random numbers with jax.random and the key")
    return shapes


def _same_program(one: Any, other: Any) -> bool:
    """Whether two jaxprs have the same operations and constants; addresses in memory do not count."""
    texts = [re.sub(r"0x[0-9a-f]+", "", str(program)) for program in (one, other)]
    constants = zip(one.consts, other.consts, strict=False)
    return texts[0] == texts[1] and all(a is b or _values(a) == _values(b) for a, b in constants)


def _values(x: Any) -> bytes:
    """The bytes of an array, or of random keys."""
    return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x).tobytes()


def _check_length(name: str, method: str, result: Any, parts: tuple[str, ...]) -> None:
    if not isinstance(result, tuple) or len(result) != len(parts):
        count = f"{len(result)} values" if isinstance(result, tuple) else "one value"
        raise ValueError(f"{name}: {method} returns {count}, not {len(parts)}: {', '.join(parts)}")


def _check_observation(name: str, method: str, found: Any, space: Any) -> None:
    """Raises ValueError for a shape other than the space's. The dtype matters only for uint8, which networks scale."""
    dtype, shape = jnp.dtype(space.dtype), tuple(space.shape)
    same = getattr(found, "dtype", None) == dtype or jnp.uint8 not in (getattr(found, "dtype", None), dtype)
    if getattr(found, "shape", None) != shape or not same:
        raise ValueError(f"{name}: {method} returns {kind(found)}, but observation_space is {dtype}{list(shape)}")


def _check_same(name: str, method: str, before: Any, after: Any) -> None:
    """Raises ValueError unless the state keeps its class, and its fields keep their shapes and dtypes."""
    if type(before) is not type(after):
        raise ValueError(f"{name}: {method} returns a state of {type(after).__name__}, not {type(before).__name__}")
    if not dataclasses.is_dataclass(before):
        return
    for field in dataclasses.fields(before):
        old, new = (jax.tree.map(kind, getattr(state, field.name)) for state in (before, after))
        if old != new:
            raise ValueError(f"{name}: {method} changes the state's {field.name} from {old} to {new}")


def _check_scalars(name: str, method: str, values: dict[str, Any]) -> None:
    for what, value in values.items():
        if getattr(value, "shape", ()) != ():
            raise ValueError(f"{name}: {method} returns a {what} of shape {value.shape}, not a scalar")


def kind(value: Any) -> str:
    """An array as dtype[shape], anything else by its type."""
    if hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__


def _one_line(error: Exception, game: type) -> str:
    """The first line of an error, and the last line of the game's own file that led to it."""
    first = str(error).strip().splitlines() or [""]
    text = f"{type(error).__name__}: {first[0]}".removesuffix(": ")
    file = inspect.getsourcefile(game)
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return text + (f" ({file}, line {places[-1].lineno})" if places else "")
