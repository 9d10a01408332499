"""The command line of an analysis script: shared flags, and errors as one line with an exit code."""

import glob
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import PathName, check_limits, flag, plain
from popgym_arcade.baselines.running.flags import read_flags, readable_output

Twin = Literal["own", "mdp", "pomdp", "both"]


@dataclass(frozen=True)
class AnalysisArgs:
    """The flags of every analysis script. A script adds those of its question."""

    runs: tuple[PathName, ...]
    """run folders, or patterns that match some"""
    out: PathName = ""
    """new folder for the results; empty: analysis/SCRIPT-TIME"""

    def check(self) -> None:
        """A script's own checks. Raises UserError."""

    def checked(self) -> Self:
        """These arguments. Raises UserError for a bad value that can be found before anything is loaded."""
        args = plain(self)
        check_limits(args)
        args.check()
        return args

    def check_distinct(self, *names: str) -> None:
        """Raises UserError for a flag that has the same value twice."""
        for name in names:
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise UserError(f"{flag(name)} {' '.join(map(str, values))}: name each once")


@dataclass(frozen=True)
class PlayArgs(AnalysisArgs):
    """The flags of a script that lets agents play."""

    twin: Twin = "own"
    """twin to play: own (as in training), mdp (fully observable), pomdp (partially observable), or both"""
    env_id: str = ""
    """environment to play, with the same observations and actions; empty: that of the run"""
    step: int | None = None
    """checkpoint to load; None: the last"""


def shipped_agents(script: str, name: str = "*") -> tuple[str, ...]:
    """A default for --runs: agents that come with the repository, in the folder `agents` next to a script's file."""
    return (glob.escape(str(Path(script).parent / "agents")) + f"/{name}",)


def showcase(script: str) -> tuple[str, ...]:
    """A default for --runs: the one of these agents that best shows what a memory holds."""
    return shipped_agents(script, "MineSweeperEasy")


def launch(main: Callable, args_class: type) -> Any:
    """What `main` returns for the arguments on the command line.

    A UserError becomes one line and ends the program, and so does a file that cannot be read or written.
    """
    script = sys.modules[main.__module__]
    with readable_output():
        try:
            return main(read_flags(args_class, header=script.__doc__))
        except UserError as error:
            told, exit_code = str(error), error.exit_code
        except OSError as error:
            if error.filename is None:
                raise
            told, exit_code = f"{error.filename}: {error.strerror}", UserError.exit_code
        print(f"{Path(script.__file__).name}: error: {told}", file=sys.stderr)
        sys.exit(exit_code)
