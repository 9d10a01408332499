"""benchmark/report.py: groups, intervals, and what it refuses."""

import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from benchmark import report

COLUMNS = ("global_step", "seed", "policy", "return_mean")


def write_run(folder: Path, name: str, memory: str, rows: list[tuple]) -> None:
    run = folder / name
    run.mkdir()
    (run / "args.json").write_text(json.dumps({"args": {"memory": memory}}))
    with (run / "eval.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])


def two_groups(folder: Path) -> None:
    for seed, (last, final) in enumerate([(200, 1.0), (300, 0.5)]):
        rows = [(0, seed, "random", 0.1), (100, seed, "greedy", 0.2 + seed), (last, seed, "greedy", final)]
        write_run(folder, f"a{seed}", "GRU", rows)
    write_run(folder, "b0", "MLP", [(0, 0, "random", 0.3), (100, 0, "greedy", 0.0)])


def test_the_table_takes_each_seeds_last_evaluation(tmp_path):
    two_groups(tmp_path)
    groups = report.collect((f"{tmp_path}/*",), "memory")
    lines = report.table(groups, "memory").splitlines()
    assert lines[2].startswith("| GRU | 2 | 200 to 300 | 0.750 ± 0.250 |") and lines[2].endswith(
        "| 1.00, 0.50 | 0.100 |"
    )
    assert lines[3].startswith("| MLP | 1 | 100 | 0.000 ± 0.000 |") and lines[3].endswith("| 0.300 |")
    steps, means = report.curve(groups["GRU"])  # only where all seeds were evaluated
    assert steps.tolist() == [100]
    np.testing.assert_allclose(means, [[0.2], [1.2]])


def test_the_interval_is_that_of_the_mean_over_seeds():
    low, high = report.interval(np.arange(5.0))
    assert 0 <= low < 2 < high <= 4
    values = np.random.default_rng(1).normal(size=400)
    low, high = report.interval(values)  # of many seeds: mean +- 1.96 standard errors
    np.testing.assert_allclose([low, high], values.mean() + np.array([-1.96, 1.96]) * values.std() / 20, atol=0.02)


def test_files_are_written_beside_each_other_also_with_a_dot_in_the_name(tmp_path):
    two_groups(tmp_path)
    report.main(report.Args(runs=(f"{tmp_path}/a*", f"{tmp_path}/b*"), out=f"{tmp_path}/out/lambda0.5"))
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["lambda0.5.csv", "lambda0.5.md", "lambda0.5.png"]


@pytest.mark.parametrize(
    ("runs", "by", "words"),
    [
        ("nothing*", "memory", "no run folder"),
        ("a*", "wings", "runs have memory"),
        ("twice*", "memory", "a seed twice, in twice0, twice1"),
        ("young", "memory", "no evaluation of the greedy policy"),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path, runs, by, words):
    two_groups(tmp_path)
    write_run(tmp_path, "twice0", "GRU", [(100, 0, "greedy", 0.2)])
    write_run(tmp_path, "twice1", "GRU", [(100, 0, "greedy", 0.2)])
    write_run(tmp_path, "young", "GRU", [(0, 0, "random", 0.2)])
    line = [sys.executable, report.__file__, "--runs", f"{tmp_path}/{runs}", "--by", by, "--out", f"{tmp_path}/out"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and words in done.stderr
    assert not list(tmp_path.glob("out*"))


def test_tasks_have_lines_and_panels_of_their_own(tmp_path):
    """A run on two tasks beside runs on each alone: steps are those of the task, a seed may come in each."""
    columns = ("global_step", "seed", "env_id", "task", "policy", "return_mean")

    def write(name, group, tasks, rows):
        write_run(tmp_path, name, group, [])
        about = {"args": {"memory": group, "env_ids": tasks}}
        (tmp_path / name / "args.json").write_text(json.dumps(about))
        found = [(step, 0, task.partition("_")[0], task, policy, value) for step, task, policy, value in rows]
        with (tmp_path / name / "eval.csv").open("w", newline="") as file:
            csv.writer(file).writerows([columns, *found])

    a, b = "A", "B_x1000"
    both = [(0, a, "random", 0.0), (0, b, "random", -1.0), (200, a, "greedy", 0.5), (200, b, "greedy", 0.25)]
    write("both", "multi", [a, b], both)
    for name, task, value in (("one", a, 0.75), ("other", b, 1.0)):
        write(name, "single", [task], [(0, task, "random", -0.5), (100, task, "greedy", value)])
    groups = report.collect((f"{tmp_path}/*",), "memory")
    lines = [line.split(" | ") for line in report.table(groups, "memory").splitlines()]
    assert lines[0][:2] == ["| task", "memory"]
    assert [(line[0], line[1], line[3], line[4][:5]) for line in lines[2:]] == [
        ("| A", "multi", "100", "0.500"),
        ("| A", "single", "100", "0.750"),
        ("| B_x1000", "multi", "100", "0.250"),
        ("| B_x1000", "single", "100", "1.000"),
    ]
    report.main(report.Args(runs=(f"{tmp_path}/*",), out=str(tmp_path / "out" / "tasks")))
    assert (tmp_path / "out" / "tasks.png").stat().st_size > 5000
    write("third", "multi", [a, b], both)
    with pytest.raises(ValueError, match="a seed twice"):
        report.collect((f"{tmp_path}/*",), "memory")


def test_the_last_training_episodes_are_weighted_by_their_number(tmp_path):
    two_groups(tmp_path)
    for number, run in enumerate(sorted(tmp_path.iterdir())):
        writer = EventFileWriter(str(run))
        for step, (episodes, value) in enumerate([(500, 9.0), (60, 1.0 + number), (50, 3.0 + number)]):
            points = {"charts/episodes": episodes, "charts/episodic_return": value, "eval/episodic_return": value}
            for tag, point in points.items():
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=point)])
                writer.add_event(Event(wall_time=time.time() + 900 * step * (1 + number), step=step, summary=summary))
        writer.close()
        assert report.last_episodes(run) == pytest.approx((60 * 1 + 50 * 3) / 110 + number)
        assert report.minutes(run) == pytest.approx(30 * (1 + number), abs=1)  # the writer's first event is of now
    report.main(report.Args(runs=(f"{tmp_path}/*",), out=str(tmp_path / "out" / "table"), training=True))
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert lines[0].endswith("| last 100 training episodes | minutes |")
    assert "| 2.409 ± 0.500 |" in lines[2]
    with pytest.raises(ValueError, match="no finished training episode"):
        report.last_episodes(tmp_path / "out")
