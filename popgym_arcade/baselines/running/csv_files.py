"""CSV files."""

import csv
from collections.abc import Iterable
from pathlib import Path


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[dict]) -> None:
    """A header, then a line per row, with empty cells for missing columns. The file is never half written."""
    draft = path.with_name(f"{path.name}.tmp")
    with draft.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(rows)
    draft.replace(path)
