"""benchmark/soak.py: its table, and what it refuses. test_survival.py tests some of its faults themselves."""

import csv
import sys
from pathlib import Path

from runs import called

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmark"))

import soak  # noqa: E402


def test_a_row_of_the_table():
    Outcome = soak.Outcome
    outcomes = [
        Outcome("kill", True, "exit 0", 3),
        Outcome("nan", False, "exit 1"),
        Outcome("kill", False, "exit 2", 1),
    ]
    assert soak.summary([*outcomes, Outcome("kill", True, "exit 0", 100)]) == [
        {
            **{"fault": "kill", "tried": 3, "survived": 2, "steps_lost_median": 3, "steps_lost_largest": 100},
            "seen": "2 x exit 0 (and 1 other lines)",
        },
        {
            **{"fault": "nan", "tried": 1, "survived": 0, "steps_lost_median": "", "steps_lost_largest": ""},
            "seen": "exit 1",
        },
    ]


def test_an_unknown_fault_is_refused(tmp_path):
    done = called(ROOT / "benchmark/soak.py", "--faults", "meteor", "--out", tmp_path / "x.csv")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("soak.py: error: --faults meteor: use some of kill, ")
    assert not list(tmp_path.iterdir())


def test_the_table_on_the_page_has_all_faults():
    with (ROOT / "benchmark/results/reliability.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= len(soak.FAULTS) and all(int(row["tried"]) > 0 for row in rows)
    assert sum(int(row["tried"]) for row in rows if row["fault"].startswith("kill")) >= 20
