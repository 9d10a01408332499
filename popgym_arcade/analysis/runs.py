"""Run folders as training leaves them: arguments, evaluations and curves."""

import csv
import functools
import glob
import os
from pathlib import Path
from typing import Any

from popgym_arcade.analysis.tables import read_csv
from popgym_arcade.baselines.env_params import name_of
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import expanded, not_utf8
from popgym_arcade.baselines.scripts import read_about


def find_runs(patterns: tuple[str, ...], holding: str = "args.json") -> list[Path]:
    """The run folders that match the patterns and have this file, each once.

    Raises:
        UserError: for a pattern that matches none, and without a pattern
    """
    folders: dict[Path, None] = {}
    for pattern in map(os.path.expanduser, patterns):
        paths = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern))
        found = [path for path in map(Path, paths) if (path / holding).is_file()]
        if not found:
            raise UserError(f"--runs {pattern}: no run folder there; name folders that contain {holding}")
        folders |= dict.fromkeys(path.resolve() for path in found)
    for folder in folders:
        try:
            expanded(str(folder))
        except UnicodeEncodeError as error:
            raise UserError(f"--runs {not_utf8(error.object)}") from None
    if not folders:
        raise UserError("--runs: name a run folder, or a pattern that matches some")
    return list(folders)


def read_run(folder: Path) -> tuple[dict, list[dict]]:
    """The contents of a run's `args.json`, and the rows of its `eval.csv`. Raises UserError if this is not a run."""
    try:
        rows = read_csv(folder / "eval.csv")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{folder} is not a run folder: {error}") from None
    return read_about(folder), rows


def evaluated_with(args: dict[str, Any]) -> str:
    """The parameters that a run's evaluations change in the environment, sorted, from the arguments of the run."""
    changes = (*args.get("env_params", ()), *args.get("eval_env_params", ()))
    return " ".join(sorted({name_of(change): change for change in changes}.values()))


@functools.cache
def read_events(folder: Path) -> Any:
    """All TensorBoard events of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # takes seconds to import

    return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()


def scalars(folder: Path, tag: str) -> list:
    """The points of a curve, each with `step`, `value` and `wall_time`; empty if there is no such curve."""
    events = read_events(folder)
    return events.Scalars(tag) if tag in events.Tags()["scalars"] else []
