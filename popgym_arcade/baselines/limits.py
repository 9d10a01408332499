"""The values a flag accepts, as part of its type: `gamma: UnitInterval = 0.99`."""

import dataclasses
import math
import os
import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from tyro.constructors import PrimitiveConstructorSpec

from popgym_arcade.baselines.env_params import MAX_INT
from popgym_arcade.baselines.errors import UserError, WrongType


@dataclass(frozen=True)
class Range:
    """The numbers a flag accepts, both ends included."""

    low: float
    high: float = MAX_INT


class OneOf(PrimitiveConstructorSpec):
    """The words a flag accepts. `--help` lists them; `check_limits` rejects any other, in one line."""

    def __init__(self, words: tuple[str, ...]):
        super().__init__(
            nargs=1,
            metavar="{" + ",".join(words) + "}",
            instance_from_str=lambda given: given[0],
            is_instance=lambda value: isinstance(value, str),
            str_from_instance=lambda word: [word],
        )
        object.__setattr__(self, "words", words)


@dataclass(frozen=True)
class IsPath:
    """Marks the path of a file or folder: a leading `~` is the home folder."""


Count = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]
UnitInterval = Annotated[float, Range(0, 1)]
PositiveUnitInterval = Annotated[float, Range(1e-6, 1)]
Positive = Annotated[float, Range(1e-6)]
NonNegative = Annotated[float, Range(0)]
Precision = Annotated[str, OneOf(("float32", "bfloat16"))]
PathName = Annotated[str, IsPath()]
KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "a string"}


def flag(name: str) -> str:
    """The command-line spelling of a field of `Args`."""
    return "--" + name.replace("_", "-")


def plain(args: Any) -> Any:
    """The same arguments with values of their declared types, as if they came from the command line.

    NumPy's scalars, whole numbers written as 1e6, a `Path` and a list are converted; `~` in paths is expanded.

    Raises:
        WrongType: for a value of another type
        UserError: for a string or path that is not valid UTF-8
    """
    hints, found = get_type_hints(type(args), include_extras=True), {}
    for name in (field.name for field in dataclasses.fields(args)):
        value = getattr(args, name)
        try:
            found[name] = plain_value(hints[name], value)
        except UnicodeEncodeError as error:
            raise UserError(f"{flag(name)} {not_utf8(error.object)}") from None
        except (TypeError, ValueError):
            raise WrongType(f"{flag(name)} {value}: use {kind_of(hints[name])}") from None
    return dataclasses.replace(args, **found)


def plain_value(hint: Any, value: Any) -> Any:
    """A value converted to a flag's declared type. Raises TypeError or ValueError if that is impossible."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        value = plain_value(parts[0], value)
        return expanded(value) if IsPath() in parts else value
    if origin in (Union, types.UnionType):
        return None if value is None else plain_value(parts[0], value)
    if origin is tuple and not isinstance(value, str):
        return tuple(plain_value(parts[0], each) for each in value)
    if origin is tuple or (origin is Literal and value not in parts):
        raise ValueError
    if hint is str:
        return plain_text(value)
    return plain_number(hint, value) if hint in (bool, int, float) else value


def expanded(path: str) -> str:
    """A path with `~` expanded. Raises UnicodeEncodeError if libraries in C++ cannot read it, see `not_utf8`."""
    path = os.path.expanduser(path)
    os.path.abspath(path if path else "/").encode()
    return path


def not_utf8(path: str) -> str:
    """The message for a string or path with invalid bytes, which Python reads as surrogates."""
    return f"{ascii(path)} is not valid UTF-8, which JAX, orbax and TensorBoard need: use another"


def plain_text(value: Any) -> str:
    """A string, or a path as a string."""
    text = os.fspath(value)
    if not isinstance(text, str):  # a path as bytes
        raise TypeError
    text.encode()  # may raise UnicodeEncodeError, see `not_utf8`
    return str(text)


def plain_number(kind: type, value: Any) -> bool | int | float:
    """A Python number of that type. Raises TypeError if the conversion is not exact."""
    number = value.item() if hasattr(value, "item") else value  # NumPy's and JAX's scalars
    if kind is int and isinstance(number, float) and number.is_integer():
        return int(number)
    if isinstance(number, bool) != (kind is bool) or not isinstance(number, (int, kind)):
        raise TypeError
    return kind(number)


def whole_number(text: str) -> int | float:
    """A text such as 1e6 as a number. One that is not whole stays a float, which `plain` rejects, naming its flag.

    Raises:
        ValueError: if the text is not a number
    """
    try:
        return int(text)
    except ValueError as error:
        number = float_or_none(text)
        if number is None:
            raise error from None
    return int(number) if number.is_integer() else number


def float_or_none(text: str) -> float | None:
    """A text as a number, None if it is not one."""
    try:
        return float(text)
    except ValueError:
        return None


def kind_of(hint: Any) -> str:
    """What a value of a type looks like, in words."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, parts))}"
    if origin is tuple:
        return f"several, each {kind_of(parts[0])}"
    return kind_of(parts[0]) if parts else KINDS.get(hint, f"a {hint}")


def check_limits(args: Any) -> None:
    """Raises UserError for a value its type does not accept."""
    for name, hint in get_type_hints(type(args), include_extras=True).items():
        value = getattr(args, name, None)
        for limit in limits_of(hint) if value is not None else ():
            if isinstance(limit, OneOf) and value not in limit.words:
                raise UserError(f"{flag(name)} {value!r} is unknown: use one of {', '.join(limit.words)}")
            if isinstance(limit, Range) and not limit.low <= value <= limit.high:
                only_low = value < limit.low and limit.high == MAX_INT
                allowed = f"{limit.low} or more" if only_low else f"a number from {limit.low} to {limit.high}"
                raise UserError(f"{flag(name)} {value}: use {allowed}")


def limits_of(hint: Any) -> tuple:
    """The `Range` or `OneOf` that a type carries, also one inside `X | None`."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(limit for part in get_args(hint) for limit in limits_of(part))
    return getattr(hint, "__metadata__", ())


def nearest_divisors(number: int, wanted: int) -> str:
    """The divisors of `number` just below and above `wanted`, which does not divide it, as "4 or 8"."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    divisors = {*small, *(number // n for n in small)}
    nearest = [max(n for n in divisors if n < wanted), *sorted(n for n in divisors if n > wanted)[:1]]
    return " or ".join(map(str, nearest))


def nearest_multiples(number: int, unit: int) -> str:
    """The multiples of `unit` just below and above `number`, which is none, as "8 or 12"; 0 is left out."""
    below = number // unit * unit
    return " or ".join(str(multiple) for multiple in (below, below + unit) if multiple)
