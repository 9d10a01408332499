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


def write_run(folder: Path, finals, memory="GRU", step=200, tasks=("CartPoleEasy",), seed=0, half=0.0) -> None:
    """A run whose seeds, from `seed` on, were evaluated three times: first with what does not count, then with `half`,
    then with `finals`; plus 1 for each further task.
    """
    folder.mkdir(parents=True)
    (folder / "args.json").write_text(json.dumps({"script": "pqn_rnn", "args": {"memory": memory}}))
    rows = []
    for at, final in enumerate(finals, seed):
        for more, task in enumerate(tasks):
            name = task if len(tasks) > 1 else ""
            points = (
                (0, "random", 0.1),
                (0, "greedy", 7.0),
                (100, "greedy", half + more),
                (step, "greedy", final + more),
            )
            rows += [(when, at, task, name, False, policy, value) for when, policy, value in points]
    with (folder / "eval.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])


def compare(tmp_path) -> tuple[str, int]:
    return regression.compare(*(regression.read_trainings((f"{tmp_path}/{name}/*",)) for name in ("before", "after")))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(
    ("after", "bad"), [([0.9, 1.0, 0.95, 1.0], 0), ([0.5, 0.4, 0.6, 0.5], 1), ([1.0, 0.2, 1.0, 1.0], 0)]
)
def test_only_what_is_worse_beyond_doubt_is_called_so(after, bad, tmp_path):
    write_run(tmp_path / "before/run", [1.0, 0.95, 1.0, 0.9])
    write_run(tmp_path / "after/run", after)
    table, found = compare(tmp_path)
    assert found == bad and ("worse" in table) == bool(bad) and "| pqn_rnn | GRU | CartPoleEasy | mdp |" in table


def test_to_learn_more_slowly_is_worse_though_the_end_is_the_same(tmp_path):
    write_run(tmp_path / "before/run", [1.0, 1.0, 1.0, 1.0], half=0.8)
    write_run(tmp_path / "after/run", [1.0, 1.0, 1.0, 1.0], half=0.2)
    table, bad = compare(tmp_path)
    seeds, *numbers = cells(table.splitlines()[2])[4:]
    assert (bad, seeds) == (1, "4")
    assert numbers == ["0.900", "0.600", "-0.300", "-0.300 to -0.300", "1.000", "1.000", "worse"]


def test_seeds_of_several_runs_are_put_together(tmp_path):
    for name in ("before", "after"):
        write_run(tmp_path / name / "first", [0.0, 0.0])
        write_run(tmp_path / name / "second", [0.0, 0.0], seed=2)
    assert "| mdp | 4 |" in compare(tmp_path)[0]
    write_run(tmp_path / "after/third", [0.0, 0.0], seed=3)
    with pytest.raises(regression.UserError, match="a seed of pqn_rnn GRU CartPoleEasy mdp is there twice"):
        compare(tmp_path)


def test_tasks_of_one_run_are_compared_apart_and_what_is_missing_counts(tmp_path):
    write_run(tmp_path / "before/run", [0.0, 0.0], tasks=("A", "B"))
    write_run(tmp_path / "before/other", [0.0, 0.0], memory="LRU")
    write_run(tmp_path / "after/run", [0.0, 0.5], tasks=("A", "B"))
    table, bad = compare(tmp_path)
    assert bad == 1 and table.count("missing") == 1
    assert "| A | mdp | 2 | 0.000 | 0.125 | +0.125 |" in table and "| B | mdp | 2 | 1.000 | 1.125 | +0.125 |" in table


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"finals": [1.0]}, "one seed says nothing about a difference"),
        ({"step": 300}, "until 200 steps before and 300 after, which cannot be compared"),
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
