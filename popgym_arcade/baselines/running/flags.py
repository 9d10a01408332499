"""Command lines of every kind of script: flags become plain arguments, and output never ends in a stack trace.

tyro reads the flags. A whole number may be written as 1e6, and `--help` begins with the script's docstring, line by
line as in the file.
"""

import contextlib
import inspect
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from popgym_arcade.baselines.limits import plain, whole_number

BROKEN_PIPE = 141  # 128 + SIGPIPE: the exit code of a program whose output is no longer read

registry = ConstructorRegistry()


@registry.primitive_rule
def whole_numbers(about: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
    """Lets tyro read an int that is written as 1e6."""
    if about.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda given: whole_number(given[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


def read_flags(args_class: type, argv: Sequence[str] | None = None, header: str | None = None, default: Any = None):
    """The arguments on a command line, by default this process's; `header` is what `--help` begins with.

    Raises:
        UserError: for a number that is not whole where only whole ones make sense
        SystemExit: after `--help`, and for a flag that does not exist or cannot be read, which tyro explains
    """
    argv = sys.argv[1:] if argv is None else argv
    if header and {"-h", "--help"} & set(argv):  # tyro would join its lines
        print(inspect.cleandoc(header), end="\n\n")
    return plain(tyro.cli(args_class, args=argv, default=default, description="", registry=registry))


def python_command(script: str, *words: str | Path) -> str:
    """A command line of this Python to copy into a shell, from the working directory; `script` may be -m."""
    python, script = (os.path.relpath(x) if os.path.isabs(x) else x for x in (sys.executable, script))
    return shlex.join([python, script, *map(str, words)])


@contextlib.contextmanager
def readable_output() -> Iterator[None]:
    """Within the context, characters the terminal lacks are written as escapes, and `| head` ends the program."""
    if hasattr(sys.stdout, "reconfigure"):  # standard error does so by itself
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes what is left when it ends
        sys.exit(BROKEN_PIPE)
