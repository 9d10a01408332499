"""Command lines of the benchmarks that leave the device to the processes they start, and so import no popgym_arcade.

They are read as `popgym_arcade.baselines.running.flags` reads those of all other scripts.
"""

import dataclasses
import inspect
import os
import signal
import sys
from pathlib import Path

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

PATHS = ("out", "docs")

registry = ConstructorRegistry()


@registry.primitive_rule
def whole_numbers(about: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """How tyro reads an int: also as 1e6."""
    if about.type is not int:
        return None
    return PrimitiveConstructorSpec(
        1, "INT", lambda given: whole(given[0]), lambda value: isinstance(value, int), lambda value: [str(value)]
    )


def whole(text: str) -> int:
    """A whole number. Ends the program with one line for one that is not whole; a ValueError for what is no number."""
    if not float(text).is_integer():
        print(f"{Path(sys.argv[0]).name}: error: {text}: use a whole number", file=sys.stderr)
        sys.exit(2)
    return int(float(text))


def read_args(args_class: type, header: str):
    """The arguments of this process, with `~` in paths expanded; `header` is what `--help` begins with."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # for terminals that only know ASCII
    if {"-h", "--help"} & set(sys.argv):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # for | head
        print(inspect.cleandoc(header), end="\n\n")
    args = tyro.cli(args_class, description="", registry=registry)
    paths = {name: os.path.expanduser(getattr(args, name)) for name in PATHS if hasattr(args, name)}
    return dataclasses.replace(args, **paths)
