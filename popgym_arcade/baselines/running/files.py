"""Files that are never half written: tables, and pictures and videos while they are drawn."""

import contextlib
import csv
from collections.abc import Iterable, Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A draft to write to within the context. At its end, the draft replaces `path`; on an error, it is removed."""
    draft = path.with_name(f"{path.stem}.tmp{path.suffix}")  # libraries choose the format by the suffix
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[dict]) -> None:
    """A header, then a line per row, with empty cells for missing columns."""
    with whole_file(path) as draft, draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(rows)
