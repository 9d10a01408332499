"""Tables: CSV for programs, Markdown for the pages."""

import csv
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

TWINS_IN_WORDS = {"mdp": "fully observable", "pomdp": "partially observable", "single": "", "": ""}
MEMORIES_IN_WORDS = {"none": "no memory", "MLP": "MLP (no memory)"}


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a file, every value as text. Raises OSError, UnicodeDecodeError or csv.Error if it cannot be read."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_table(path: Path, columns: Collection[str] = (), flag: str = "") -> list[dict[str, str]]:
    """The rows of a file that a user named, with `flag` if not empty.

    Raises UserError if the file cannot be read or lacks some of the columns.
    """
    from popgym_arcade.baselines.errors import UserError  # some read this file without the package

    where = f"{flag} {path}".strip()
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            rows, found = list(reader), reader.fieldnames or ()
    except OSError as error:
        raise UserError(f"{where}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise UserError(f"{where}: this is not a table") from None
    if lacking := sorted({*columns} - {*found}):
        raise UserError(f"{where}: it lacks {', '.join(lacking)}")
    return rows


def write_table(out: str, columns: Iterable[str], rows: Iterable[dict], text: str) -> None:
    """Writes the rows to `out`.csv and the table `text` to `out`.md, creates their folder, and prints the table."""
    from popgym_arcade.baselines.running.files import write_csv  # some read this file without the package

    Path(out).parent.mkdir(parents=True, exist_ok=True)
    write_csv(Path(f"{out}.csv"), columns, rows)
    Path(f"{out}.md").write_text(text, encoding="utf-8")
    print(text, end="")


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table, without the columns that are empty in every line."""
    kept = [i for i in range(len(head)) if any(line[i] for line in lines)]
    rows = ["| " + " | ".join(row[i] for i in kept) + " |" for row in (head, *lines)]
    return "\n".join([rows[0], "|-" * len(kept) + "|", *rows[1:]]) + "\n"
