"""The values a flag accepts, as part of its type: `gamma: UnitInterval = 0.99`."""

import math
import types
from dataclasses import dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from popgym_arcade.baselines.environment import MAX_INT
from popgym_arcade.baselines.errors import UserError


@dataclass(frozen=True)
class Range:
    """The numbers a flag accepts, both ends included."""

    low: float
    high: float = MAX_INT


@dataclass(frozen=True)
class OneOf:
    """The words a flag accepts."""

    choices: tuple[str, ...]


Count = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]
UnitInterval = Annotated[float, Range(0, 1)]
PositiveUnitInterval = Annotated[float, Range(1e-6, 1)]
Positive = Annotated[float, Range(1e-6)]
NonNegative = Annotated[float, Range(0)]
Precision = Annotated[str, OneOf(("float32", "bfloat16"))]


def flag(name: str) -> str:
    """The command-line spelling of a field of `Args`."""
    return "--" + name.replace("_", "-")


def check_limits(args: Any) -> None:
    """Raises UserError for a value its type does not accept."""
    for name, hint in get_type_hints(type(args), include_extras=True).items():
        value = getattr(args, name, None)
        for limit in limits_of(hint) if value is not None else ():
            if isinstance(limit, OneOf) and value not in limit.choices:
                raise UserError(f"{flag(name)} {value!r} is unknown: use one of {', '.join(limit.choices)}")
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
    """The divisors of `number` just below and above `wanted`, which is not one, as "4 or 8"."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    divisors = {*small, *(number // n for n in small)}
    nearest = [max(n for n in divisors if n < wanted), *sorted(n for n in divisors if n > wanted)[:1]]
    return " or ".join(map(str, nearest))
