"""benchmark/regression.py: what it compares, when it says that a run became worse, and what it refuses."""

import csv
import json
from pathlib import Path

import pytest
from runs import called

from benchmark import regression
from popgym_arcade.baselines.errors import UserError

ROOT = Path(__file__).parents[1]
COLUMNS = ("global_step", "seed", "env_id", "task", "partial_obs", "policy", "return_mean")


def write_run(folder: Path, finals, memory="GRU", step=200, tasks=("CartPoleEasy",), half=0.0) -> None:
    """A run whose seeds were evaluated with `half`, then with `finals`; plus 1 for each further task."""
    folder.mkdir(parents=True)
    (folder / "args.json").write_text(json.dumps({"script": "pqn_rnn", "args": {"memory": memory}}))
    rows = []
    for seed, final in enumerate(finals):
        for more, task in enumerate(tasks):
            name = task if len(tasks) > 1 else ""
            points = ((0, "random", 9.0), (100, "greedy", half + more), (step, "greedy", final + more))
            rows += [(at, seed, task, name, False, policy, value) for at, policy, value in points]
    with (folder / "eval.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])


def compare(tmp_path) -> tuple[str, int]:
    """The table, and how many are worse or missing."""
    sides = (regression.read_trainings((f"{tmp_path}/{name}/*",)) for name in ("before", "after"))
    table, bad = regression.compare(*sides)
    return table, len(bad)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize(
    ("after", "bad"), [([0.9, 1.0, 0.95, 1.0], 0), ([0.5, 0.4, 0.6, 0.5], 1), ([1.0, 0.2, 1.0, 1.0], 0)]
)
def test_only_a_clear_loss_is_called_worse(after, bad, tmp_path):
    write_run(tmp_path / "before/run", [1.0, 0.95, 1.0, 0.9])
    write_run(tmp_path / "after/run", after)
    table, found = compare(tmp_path)
    assert found == bad and ("worse" in table) == bool(bad) and "| pqn_rnn | GRU | CartPoleEasy | mdp |" in table


def test_learning_more_slowly_is_worse_even_with_the_same_end(tmp_path):
    write_run(tmp_path / "before/run", [1.0, 1.0, 1.0, 1.0], half=0.8)
    write_run(tmp_path / "after/run", [1.0, 1.0, 1.0, 1.0], half=0.2)
    table, bad = compare(tmp_path)
    assert bad == 1
    assert cells(table.splitlines()[2])[4:] == [
        "0.900",
        "0.600",
        "-0.300",
        "-0.300 to -0.300",
        "1.000",
        "1.000",
        "worse",
    ]


def test_a_training_is_worse_only_if_other_seeds_agree(tmp_path, capsys):
    good, bad = [1.0, 0.95, 1.0, 0.9], [0.5, 0.4, 0.6, 0.5]
    for name, by_memory in {"a": (good, good), "b": (bad, good), "c": (good, bad), "d": (bad, bad)}.items():
        for memory, finals in zip(("GRU", "LRU"), by_memory, strict=True):
            write_run(tmp_path / name / memory, finals, memory)

    def worse(after, again):
        sides = {"before": "a", "after": after, "again_before": "a", "again_after": again}
        fine = regression.main(regression.Args(**{side: (f"{tmp_path}/{name}/*",) for side, name in sides.items()}))
        *_, told = capsys.readouterr().out.splitlines()
        assert fine == (told == "no run is worse")
        return told

    assert worse("b", "a") == worse("b", "c") == "no run is worse"
    assert worse("b", "d") == worse("d", "b") == "worse or missing: pqn_rnn GRU CartPoleEasy mdp"
    with pytest.raises(UserError, match="together"):
        regression.Args(("a",), ("b",), again_after=("c",)).checked()


def test_a_return_of_nan_is_worse(tmp_path):
    write_run(tmp_path / "before/run", [1.0, 0.95, 1.0, 1.0])
    write_run(tmp_path / "after/run", [float("nan"), 0.95, 1.0, 1.0])
    assert compare(tmp_path)[1] == 1


def test_tasks_of_one_run_are_compared_separately_and_missing_ones_count(tmp_path):
    write_run(tmp_path / "before/run", [0.0, 0.0], tasks=("A", "B"))
    write_run(tmp_path / "before/other", [0.0, 0.0], memory="LRU")
    write_run(tmp_path / "after/run", [0.0, 0.5], tasks=("A", "B"))
    table, bad = compare(tmp_path)
    assert bad == 1 and table.count("missing") == 1
    assert "| A | mdp | 0.000 | 0.125 | +0.125 |" in table and "| B | mdp | 1.000 | 1.125 | +0.125 |" in table


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"finals": [1.0]}, "one seed says nothing about a difference"),
        ({"step": 300}, "evaluated at different steps, up to 200 before and 300 after the change"),
        ({"finals": []}, "no evaluation of the greedy policy"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes, words, tmp_path):
    write_run(tmp_path / "before/run", [1.0, 0.9])
    write_run(tmp_path / "after/run", **({"finals": [1.0, 0.9]} | changes))
    with pytest.raises(UserError, match=words):
        compare(tmp_path)


def test_the_exit_code_says_whether_anything_is_worse(tmp_path):
    write_run(tmp_path / "before/run", [1.0, 0.95, 0.9])
    write_run(tmp_path / "after/run", [0.1, 0.2, 0.1])
    flags = "--before", f"{tmp_path}/before/*", "--after"
    codes = [
        called(regression.__file__, *flags, f"{tmp_path}/{name}/*").returncode
        for name in ("before", "after", "nowhere")
    ]
    assert codes == [0, 3, 2]


def test_seeds_of_a_run_that_were_evaluated_at_different_steps_are_refused(tmp_path):
    write_run(tmp_path / "run", [1.0, 0.9])
    lines = (tmp_path / "run/eval.csv").read_text().splitlines()
    (tmp_path / "run/eval.csv").write_text("\n".join(lines[:-1]))
    with pytest.raises(UserError, match="evaluated at different steps"):
        regression.read_trainings((str(tmp_path / "run"),))
