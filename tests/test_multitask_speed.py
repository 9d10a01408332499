"""benchmark/multitask_speed.py: the row for training on one game after the other, and a refusal."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmark"))

from multitask_speed import one_after_the_other  # noqa: E402


def test_one_game_after_the_other_takes_the_sum_of_their_times():
    rows = [
        {"steps_per_second": 500, "slowest": 400, "fastest": 1000, "compile_seconds": 10.0, "peak_memory_mb": 900},
        {"steps_per_second": 2000, "slowest": 400, "fastest": 1000, "compile_seconds": 5.5, "peak_memory_mb": 1200},
    ]
    row = one_after_the_other(rows)
    seconds = 1000 / 500 + 1000 / 2000  # of a thousand steps of each
    assert row["steps_per_second"] == pytest.approx(2000 / seconds)
    assert (row["slowest"], row["fastest"], row["compile_seconds"], row["peak_memory_mb"]) == (400, 1000, 15.5, 1200)


def test_a_training_that_fails_ends_in_one_line(tmp_path):
    line = [
        sys.executable,
        str(ROOT / "benchmark/multitask_speed.py"),
        "--env-ids",
        "NoGame",
        "--out",
        str(tmp_path / "a"),
    ]
    ended = subprocess.run(line, capture_output=True, text=True)
    assert ended.returncode == 1 and "NoGame" in ended.stderr and ended.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
