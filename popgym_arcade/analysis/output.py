"""The folder that receives a script's results."""

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

from popgym_arcade.analysis.command_line import AnalysisArgs
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.running import folder
from popgym_arcade.baselines.scripts import script_name


@contextlib.contextmanager
def new_folder(args: AnalysisArgs) -> Iterator[Path]:
    """The new folder `args.out`, by default analysis/SCRIPT-TIME. It is removed if nothing is written to it.

    Raises:
        UserError: if it exists, or cannot be made
    """
    path = make_folder(args.out, f"analysis/{script_name(args)}-{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        yield path
    finally:
        if not any(path.iterdir()):
            path.rmdir()


def make_folder(out: str, default: str) -> Path:
    """Makes the folder `out`, or else `default`, with a number at the end if that one exists."""
    for attempt in itertools.count(1):
        path = Path(out or (default if attempt == 1 else f"{default}-{attempt}"))
        try:
            folder.make_folder(path)
            return path
        except OSError as error:
            if out or not isinstance(error, FileExistsError):
                raise UserError(f"--out {path}: {error.strerror}") from None
