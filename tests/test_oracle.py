"""benchmark/oracle.py: the table of the experts' returns in docs/returns.md."""

import csv
from pathlib import Path

import pytest
from harness import IDS

from benchmark import oracle

ROOT = Path(__file__).parents[1]


def saved_rows():
    with (ROOT / "benchmark/results/oracle.csv").open() as file:
        return {row["env_id"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("env_id", ["NavigatorEasy", "CountRecallHard", "BreakoutMedium"])
def test_the_saved_figures_come_out_again(env_id):
    assert {name: str(value) for name, value in oracle.row(env_id).items()} == saved_rows()[env_id]


def test_the_page_has_the_table_of_the_ids_below_one():
    rows = [{name: read(row[name]) for name in row} for row in saved_rows().values()]
    assert [row["env_id"] for row in rows] == IDS
    table = oracle.table(rows)
    assert table in (ROOT / "docs/returns.md").read_text()
    for row in rows:
        assert (f"| {row['env_id']} |" in table) == (row["return_min"] < 1), row


def read(text):
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text
