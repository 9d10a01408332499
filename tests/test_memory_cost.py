"""benchmark/memory_cost.py at tiny sizes: its table, what it measures, and what it refuses."""

import csv
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmark"))

from memory_cost import Args, UserError, main, milliseconds, size  # noqa: E402

from popgym_arcade.baselines.networks.memory import MEMORIES  # noqa: E402


def test_every_memory_asked_for_is_a_row_with_positive_figures(tmp_path):
    out = tmp_path / "new" / "cost.csv"
    main(Args(memories=("MLP", "GRU"), hidden_size=64, num_envs=8, num_steps=16, repeats=1, out=str(out)))
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["memory"] for row in rows] == ["MLP", "GRU"]
    assert all(float(row[name]) > 0 for row in rows for name in ("rollout_ms", "rollout_mb"))
    assert float(rows[1]["rollout_mb"]) > float(rows[0]["rollout_mb"])  # a GRU keeps its gates for the backward pass


def test_the_sizes_of_the_page_are_those_of_the_memories():
    with (ROOT / "benchmark/results/memory_cost/memory_cost.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    sizes = [{name: str(value) for name, value in size(name, Args()).items()} for name in MEMORIES]
    assert [{name: row[name] for name in sizes[0]} for row in rows] == sizes


def test_the_state_of_a_memory_is_counted_in_bytes():
    gru, mlp = (size(name, Args(hidden_size=8)) for name in ("GRU", "MLP"))
    assert gru["scan"] == "step by step" and mlp["scan"] == "parallel"
    assert gru["bytes_of_state"] == 2 * (8 * 4 + 1) and mlp["bytes_of_state"] == 2  # a start flag in each layer


def test_a_calls_time_is_a_median_without_the_first_call(monkeypatch):
    clock, calls = [0.0], []

    def program(x):
        calls.append(x)
        clock[0] += 5.0 if len(calls) == 1 else 0.02
        return x

    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    assert milliseconds(program, (1,), repeats=3) == pytest.approx(20)
    assert len(calls) == 2 + 3 * 10  # 0.2 seconds in each of three


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memories": ("Elephant",)}, "--memories 'Elephant' is unknown: use MinGRU"),
        ({"memories": ()}, "--memories: name at least one"),
        ({"num_envs": 0}, "--num-envs 0"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(changes, words, tmp_path):
    with pytest.raises(UserError, match=words):
        main(Args(**({"out": str(tmp_path / "cost.csv")} | changes)))
    assert not list(tmp_path.iterdir())
