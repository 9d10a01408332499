"""Reads the flags of benchmarks that measure in other processes. They do not import popgym_arcade, which would take the
device from those processes.

Flags work as in all other scripts (`popgym_arcade.baselines.running.flags`).
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
    """Lets tyro read an int that is written as 1e6."""
    if about.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda given: whole(given[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    )


def whole(text: str) -> int:
    """A whole number. For a number like 1.5, prints one line and ends the program; other text raises ValueError."""
    if not float(text).is_integer():
        print(f"{Path(sys.argv[0]).name}: error: {text}: use a whole number", file=sys.stderr)
        sys.exit(2)
    return int(float(text))


def read_args(args_class: type, header: str):
    """The arguments of this process, with `~` in paths expanded; `--help` begins with `header`."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # for terminals that only know ASCII
    if {"-h", "--help"} & set(sys.argv):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # for | head
        print(inspect.cleandoc(header), end="\n\n")
    args = tyro.cli(args_class, description="", registry=registry)
    paths = {name: os.path.expanduser(getattr(args, name)) for name in PATHS if hasattr(args, name)}
    return dataclasses.replace(args, **paths)
