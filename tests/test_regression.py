"""benchmark/regression.py: what it compares, when it says that a training became worse, and what it refuses."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmark import regression

ROOT = Path(__file__).parents[1]
COLUMNS = ("global_step", "seed", "env_id", "task", "partial_obs", "policy", "return_mean")


def write_run(folder: Path, finals, memory="GRU", step=200, tasks=("CartPoleEasy",)) -> None:
    """A run whose seeds were evaluated twice, the last time with `finals`, plus 1 for each further task."""
    folder.mkdir(parents=True)
    (folder / "args.json").write_text(json.dumps({"script": "pqn_rnn", "args": {"memory": memory}}))
    rows = []
    for seed, final in enumerate(finals):
        for more, task in enumerate(tasks):
            name = task if len(tasks) > 1 else ""
            for at, policy, value in ((0, "random", 0.1), (100, "greedy", 7.0), (step, "greedy", final + more)):
                rows.append((at, seed, task, name, False, policy, value))
    with (folder / "eval.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])


def compare(tmp_path) -> tuple[str, int]:
    sides = [regression.last_evaluations((f"{tmp_path}/{name}/*",)) for name in ("before", "after")]
    return regression.compare(*sides)


@pytest.mark.parametrize(
    ("after", "bad"), [([0.9, 1.0, 0.95, 1.0], 0), ([0.5, 0.4, 0.6, 0.5], 1), ([1.0, 0.2, 1.0, 1.0], 0)]
)
def test_only_what_is_worse_beyond_doubt_is_called_so(after, bad, tmp_path):
    write_run(tmp_path / "before/run", [1.0, 0.95, 1.0, 0.9])
    write_run(tmp_path / "after/run", after)
    table, found = compare(tmp_path)
    assert found == bad and ("worse" in table) == bool(bad) and "| pqn_rnn | GRU | CartPoleEasy | mdp |" in table


def test_tasks_of_one_run_are_compared_apart_and_what_is_missing_counts(tmp_path):
    write_run(tmp_path / "before/run", [0.0, 0.0], tasks=("A", "B"))
    write_run(tmp_path / "before/other", [0.0, 0.0], memory="LRU")
    write_run(tmp_path / "after/run", [0.0, 0.5], tasks=("A", "B"))
    table, bad = compare(tmp_path)
    assert bad == 1 and table.count("missing") == 1
    assert "| A | mdp | 0.000 | 0.250 | +0.250 |" in table and "| B | mdp | 1.000 | 1.250 | +0.250 |" in table


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"finals": [1.0]}, "one seed says nothing about a difference"),
        ({"step": 300}, "200 steps before and 300 after, which cannot be compared"),
        ({"finals": []}, "no evaluation of the greedy policy"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes, words, tmp_path):
    write_run(tmp_path / "before/run", [1.0, 0.9])
    write_run(tmp_path / "after/run", **({"finals": [1.0, 0.9]} | changes))
    with pytest.raises(regression.UserError, match=words):
        compare(tmp_path)


def test_the_exit_code_says_whether_anything_is_worse(tmp_path):
    write_run(tmp_path / "before/run", [1.0, 0.95, 0.9])
    write_run(tmp_path / "after/run", [0.1, 0.2, 0.1])
    line = [sys.executable, regression.__file__, "--before", f"{tmp_path}/before/*", "--after"]
    codes = [
        subprocess.run([*line, f"{tmp_path}/{name}/*"], capture_output=True, timeout=120).returncode
        for name in ("before", "after", "nowhere")
    ]
    assert codes == [0, 1, 2]
