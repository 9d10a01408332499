"""Run folders as a training leaves them: arguments, evaluations and curves."""

import csv
import functools
import glob
from pathlib import Path
from typing import Any

from popgym_arcade.analysis.tables import read_csv
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.scripts import read_about


def find_runs(patterns: tuple[str, ...]) -> list[Path]:
    """The run folders that match the patterns, in order, each once. Raises UserError for one that matches none."""
    folders: dict[Path, None] = {}
    for pattern in patterns:
        matches = sorted(Path(match) for match in glob.glob(pattern) if (Path(match) / "eval.csv").exists())
        if not matches:
            raise UserError(f"--runs {pattern}: no run folder matches")
        folders |= dict.fromkeys(match.resolve() for match in matches)
    return list(folders)


def read_run(folder: Path) -> tuple[dict, list[dict]]:
    """The contents of a run's `args.json`, and the rows of its `eval.csv`. Raises UserError if this is not a run."""
    try:
        rows = read_csv(folder / "eval.csv")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{folder} is not a run folder: {error}") from None
    return read_about(folder), rows


@functools.cache
def read_events(folder: Path) -> Any:
    """All TensorBoard events of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # takes seconds to import

    return EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()


def scalars(folder: Path, tag: str) -> list:
    """The points of a curve, each with `step`, `value` and `wall_time`; empty if there is no such curve."""
    events = read_events(folder)
    return events.Scalars(tag) if tag in events.Tags()["scalars"] else []
