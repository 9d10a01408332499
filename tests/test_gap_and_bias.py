"""gap_and_bias.py: hand-made tables, intervals, what is missing, and what is refused."""

import csv
import json
import re

import numpy as np
import pytest
from test_report import report

import gap_and_bias
from gap_and_bias import Args
from popgym_arcade.analysis.reference_returns import reference_returns
from popgym_arcade.baselines.errors import UserError

EVAL = ("global_step", "seed", "env_id", "partial_obs", "policy", "episodes", "return_mean")
EVALUATE = ("run", "script", "memory", "trained_env_id", "trained_partial_obs", *EVAL)


def write_run(folder, script, memory, env_id, twin, returns, seed=0, time="20260101-000000", **more):
    """A run of several seeds whose last greedy evaluation gave `returns`; what comes before it must not count."""
    args = {"env_id": env_id, "seed": seed} | ({} if memory == "none" else {"memory": memory}) | more
    run = folder / f"{env_id}__{twin}__{script}__{memory}__{seed}__{time}"
    run.mkdir(parents=True)
    (run / "args.json").write_text(json.dumps({"script": script, "args": args}))
    blocks = (0, "random", 5.0), (100, "greedy", 7.0), (200, "greedy", 0.0), (300, "random", 5.0)
    rows = [
        (step, seed + i, env_id, twin == "pomdp", policy, 32, value + other)
        for step, policy, other in blocks
        for i, value in enumerate(returns)
    ]
    write_rows(run / "eval.csv", EVAL, rows)
    return run


def write_rows(path, columns, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def evaluate_row(run, returned, script="pqn_rnn", memory="GRU", trained="True", on="True", policy="greedy", seed=0):
    return (run, script, memory, "NavigatorEasy", trained, 200, seed, "NavigatorEasy", on, policy, 32, returned)


def hand_made(folder):
    """Two ids; of four seeds the interquartile mean is that of the middle two, of eight that of the middle four."""
    write_run(folder, "pqn_rnn", "GRU", "NavigatorEasy", "pomdp", [0.2, 0.9, 0.4, 0.0])  # 0.3
    write_run(folder, "pqn_rnn", "GRU", "NavigatorEasy", "mdp", [0.1, 0.5, 0.7, 1.0])  # 0.6
    write_run(folder, "pqn_mlp", "none", "NavigatorEasy", "mdp", [0.6, 0.8, 0.9, 0.95])  # 0.85
    write_run(folder, "pqn_rnn", "GRU", "BreakoutEasy", "pomdp", [-0.5, 0.1, 0.3, 0.5])  # 0.2
    write_run(folder, "pqn_rnn", "GRU", "BreakoutEasy", "mdp", [0.2, 0.3, 0.4, 0.9])  # 0.35
    write_run(folder, "pqn_mlp", "none", "BreakoutEasy", "mdp", [0.0, 0.2, 0.4, 0.8])  # 0.3


def test_the_result_of_a_match_is_not_a_return(tmp_path):
    """evaluate.py --against writes it into the same column, and a table counts before the run itself."""
    path, row = tmp_path / "evaluate.csv", evaluate_row("mine", 0.7)
    write_rows(path, (*EVALUATE, "against"), [(*row, "rival")])
    assert not gap_and_bias.read_evaluations(path)
    write_rows(path, (*EVALUATE, "against"), [(*row, "")])
    assert [score.value for score in gap_and_bias.read_evaluations(path)] == [0.7]


HAND_MADE = {  # by memory, id and quantity
    ("GRU", "NavigatorEasy", "pomdp_return"): 0.3,
    ("GRU", "NavigatorEasy", "mdp_return"): 0.6,
    ("GRU", "NavigatorEasy", "gap"): 0.3,
    ("GRU", "NavigatorEasy", "bias"): -0.25,
    ("GRU", "BreakoutEasy", "pomdp_return"): 0.2,
    ("GRU", "BreakoutEasy", "mdp_return"): 0.35,
    ("GRU", "BreakoutEasy", "gap"): 0.15,
    ("GRU", "BreakoutEasy", "bias"): 0.05,
    ("GRU", "all", "pomdp_return"): (0.1 + 0.2 + 0.3 + 0.4) / 4,
    ("GRU", "all", "mdp_return"): (0.3 + 0.4 + 0.5 + 0.7) / 4,
    ("GRU", "all", "gap"): (0.3 + 0.4 + 0.5 + 0.7) / 4 - 0.25,
    ("GRU", "all", "bias"): (0.3 + 0.4 + 0.5 + 0.7) / 4 - (0.4 + 0.6 + 0.8 + 0.8) / 4,
    ("none", "NavigatorEasy", "mdp_return"): 0.85,
    ("none", "BreakoutEasy", "mdp_return"): 0.3,
    ("none", "all", "mdp_return"): (0.4 + 0.6 + 0.8 + 0.8) / 4,
}


def written(out, name):
    with (out / name).open(newline="") as file:
        return list(csv.DictReader(file))


def analyse(tmp_path, *runs, **changes):
    runs = runs or (f"{tmp_path}/runs/*",)
    return gap_and_bias.main(Args(**({"runs": runs, "out": str(tmp_path / "out"), "resamples": 100} | changes)))


def values_of(out):
    rows = written(out, "gap_and_bias.csv")
    return {(row["memory"], row["env_id"], row["quantity"]): float(row["value"]) for row in rows}


def test_gap_and_bias_of_a_hand_made_table(tmp_path):
    hand_made(tmp_path / "runs")
    out = analyse(tmp_path)
    assert values_of(out) == pytest.approx(HAND_MADE)  # and no others: the baseline has no bias
    rows = written(out, "gap_and_bias.csv")
    assert {row["algorithm"] for row in rows} == {"pqn"} and {row["seeds_min"] for row in rows} == {"4"}
    assert all(float(row["low"]) <= float(row["value"]) <= float(row["high"]) for row in rows)
    assert all(row["env_ids"] == "BreakoutEasy NavigatorEasy" for row in rows if row["env_id"] == "all")
    cells = {(cell["memory"], cell["env_id"], cell["twin"]): cell for cell in written(out, "cells.csv")}
    assert len(cells) == 6
    cell = cells["GRU", "NavigatorEasy", "pomdp"]
    numbers = [float(cell[name]) for name in ("return_iqm", "return_mean", "return_min", "return_max")]
    assert numbers == pytest.approx([0.3, 0.375, 0.0, 0.9])
    assert (cell["seeds"], cell["seed_numbers"], cell["step_min"], cell["step_max"]) == ("4", "0 1 2 3", "200", "200")
    assert cell["runs"] == "NavigatorEasy__pomdp__pqn_rnn__GRU__0__20260101-000000"


def test_the_baseline_can_be_named(tmp_path):
    hand_made(tmp_path / "runs")
    write_run(tmp_path / "runs", "pqn_rnn", "MLP", "NavigatorEasy", "mdp", [0.4, 0.4, 0.4, 0.4])
    found = values_of(analyse(tmp_path, baseline="MLP"))
    assert found["GRU", "NavigatorEasy", "bias"] == pytest.approx(0.6 - 0.4)
    assert found["none", "NavigatorEasy", "bias"] == pytest.approx(0.85 - 0.4)
    assert ("GRU", "BreakoutEasy", "bias") not in found and ("MLP", "all", "bias") not in found


def test_a_report_counts_as_its_runs(tmp_path):
    hand_made(tmp_path / "runs")
    report.main(report.Args(runs=(f"{tmp_path}/runs/*GRU*",), out=str(tmp_path / "report")))
    found = values_of(analyse(tmp_path, str(tmp_path / "report.csv"), f"{tmp_path}/runs/*none*"))
    assert found == pytest.approx(HAND_MADE)


def test_normalised_returns_give_every_game_the_same_range(tmp_path, capsys):
    hand_made(tmp_path / "runs")
    found = values_of(analyse(tmp_path, normalised=True))
    for env_id in ("NavigatorEasy", "BreakoutEasy"):
        low, best = reference_returns()[env_id]
        assert found["GRU", env_id, "mdp_return"] == pytest.approx(
            (HAND_MADE["GRU", env_id, "mdp_return"] - low) / (best - low)
        )
        assert found["GRU", env_id, "gap"] == pytest.approx(HAND_MADE["GRU", env_id, "gap"] / (best - low))
    write_run(tmp_path / "own", "pqn_rnn", "GRU", "my_game:MyGame", "pomdp", [0.5])
    with pytest.raises(UserError, match="--normalised: the random and the best return of my_game:MyGame"):
        analyse(tmp_path, f"{tmp_path}/runs/*", f"{tmp_path}/own/*", normalised=True, out=str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


# ---------------------------------------------------------------------------------------------------------- intervals


def test_one_seed_has_no_interval(tmp_path, capsys):
    write_run(tmp_path / "runs", "pqn_rnn", "GRU", "NavigatorEasy", "pomdp", [0.25])
    write_run(tmp_path / "runs", "pqn_rnn", "GRU", "NavigatorEasy", "mdp", [0.5, 0.75, 1.0])
    rows = {row["quantity"]: row for row in written(analyse(tmp_path), "gap_and_bias.csv") if row["env_id"] == "all"}
    assert (rows["gap"]["value"], rows["gap"]["low"], rows["gap"]["high"]) == ("0.5", "", "")
    assert (rows["gap"]["seeds_min"], rows["gap"]["seeds_max"]) == ("1", "3")
    assert rows["pomdp_return"]["low"] == "" and float(rows["mdp_return"]["low"]) >= 0.5
    assert "no interval for 4 values: a cell has a single seed" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------------ what is there


def test_missing_cells_are_named_and_not_made_up(tmp_path, capsys):
    hand_made(tmp_path / "runs")
    write_run(tmp_path / "runs", "pqn_rnn", "MinGRU", "NavigatorEasy", "pomdp", [0.5, 0.5])
    write_run(tmp_path / "runs", "pqn_rnn", "MinGRU", "BreakoutEasy", "mdp", [0.5, 0.5])
    write_run(tmp_path / "runs", "ppo_rnn", "GRU", "NavigatorEasy", "mdp", [0.5, 0.5])
    out = analyse(tmp_path)
    told = capsys.readouterr().out
    assert "pqn MinGRU NavigatorEasy mdp: no run, so no gap and no bias\n" in told
    assert "pqn MinGRU BreakoutEasy pomdp: no run, so no POMDP return and no gap\n" in told
    rows = written(out, "missing.csv")
    names = {tuple(row[name] for name in ("algorithm", "memory", "env_id", "twin")) for row in rows}
    assert names == {
        *(("pqn", "MinGRU", "NavigatorEasy", "mdp"), ("pqn", "MinGRU", "BreakoutEasy", "pomdp")),
        *(("pqn", "none", env_id, "pomdp") for env_id in ("NavigatorEasy", "BreakoutEasy")),
        *(("ppo", "none", env_id, "mdp") for env_id in ("NavigatorEasy", "BreakoutEasy")),
        *(("ppo", "GRU", "NavigatorEasy", "pomdp"), ("ppo", "GRU", "BreakoutEasy", "mdp")),
        ("ppo", "GRU", "BreakoutEasy", "pomdp"),
    }
    found = values_of(out)
    assert found["MinGRU", "all", "bias"] == pytest.approx(0.5 - 0.3)  # BreakoutEasy alone
    assert not [key for key in found if key[0] == "MinGRU" and key[2] == "gap"]
    (line,) = re.findall(r"^pqn +MinGRU  .*", told, re.MULTILINE)
    returned, gap, bias = re.split(r"  +", line)[2:]
    assert (returned, gap) == ("0.500 (0.500 to 0.500), 1/2 ids", "missing")
    assert bias.startswith("0.200 (") and bias.endswith("), 1/2 ids")


def test_ids_without_twins_and_runs_without_evaluation_are_left_out_in_one_line(tmp_path, capsys):
    hand_made(tmp_path / "runs")
    write_run(tmp_path / "runs", "pqn_rnn", "GRU", "CartPole-v1", "single", [500.0])
    write_run(tmp_path / "runs", "pqn_rnn", "GRU", "MemoryChain-bsuite", "single", [1.0])
    young = write_run(tmp_path / "runs", "pqn_rnn", "LRU", "NavigatorEasy", "mdp", [])
    out = analyse(tmp_path)
    told = capsys.readouterr().out.splitlines()
    assert "left out, no twins: CartPole-v1, MemoryChain-bsuite" in told
    assert f"left out, no greedy evaluation on its own twin: {young.resolve()}" in told
    assert values_of(out) == pytest.approx(HAND_MADE)


def test_trainings_of_different_lengths_are_reported(tmp_path, capsys):
    hand_made(tmp_path / "runs")
    run = next((tmp_path / "runs").glob("Nav*mdp*none*"))
    write_rows(run / "eval.csv", EVAL, [(50, 0, "NavigatorEasy", False, "greedy", 32, 0.5)])
    analyse(tmp_path)
    assert "last evaluations at different steps: pqn NavigatorEasy, 50 to 200" in capsys.readouterr().out.splitlines()


def test_tables_of_evaluate_count_before_the_runs_own(tmp_path):
    run = write_run(tmp_path / "runs", "pqn_rnn", "GRU", "NavigatorEasy", "pomdp", [0.2, 0.4])
    write_run(tmp_path / "runs", "pqn_rnn", "GRU", "NavigatorEasy", "mdp", [0.9, 0.9])
    table = tmp_path / "played" / "evaluate.csv"
    table.parent.mkdir()
    rows = [evaluate_row(run.name, 0.3), evaluate_row(run.name, 9.0, on="False")]  # the other twin: out
    rows += [evaluate_row(run.name, 9.0, policy="sample"), evaluate_row("another", 0.6, seed=7)]
    write_rows(table, EVALUATE, rows)
    for number, patterns in enumerate([("runs/*", "played"), ("played/*.csv", "runs/*", "runs/N*", "played")]):
        out = analyse(tmp_path, *(f"{tmp_path}/{pattern}" for pattern in patterns), out=str(tmp_path / str(number)))
        cells = {cell["twin"]: cell for cell in written(out, "cells.csv")}
        assert cells["pomdp"]["seed_numbers"] == "0 1 7" and cells["mdp"]["seed_numbers"] == "0 1"
        assert float(cells["pomdp"]["return_mean"]) == pytest.approx((0.3 + 0.4 + 0.6) / 3)


# ----------------------------------------------------------------------------------------------------------- refusals


def damaged(folder):
    """A folder of each kind of bad input, next to intact runs in `runs`."""
    hand_made(folder / "runs")
    twice = write_run(folder / "twice", "pqn_rnn", "GRU", "NavigatorEasy", "mdp", [0.5], time="20260102-000000")
    write_run(folder / "vectors", "pqn_rnn", "GRU", "CartPole-v1", "single", [1.0])
    write_run(folder / "half", "pqn_rnn", "GRU", "NavigatorEasy", "pomdp", [1.0])
    for name in ("no_table", "torn", "binary", "columns", "no_args"):
        write_run(folder / name, "pqn_rnn", "GRU", "NavigatorEasy", "pomdp", [1.0])
    at = {path.parent.name: path for path in folder.glob("*/Nav*")}
    (at["no_table"] / "eval.csv").unlink()
    text = (twice / "eval.csv").read_text()
    (at["torn"] / "eval.csv").write_text(text.rstrip()[: -len("random,32,5.5")])
    (at["binary"] / "eval.csv").write_bytes(b"\xff\xfe\x00\x01")
    (at["columns"] / "eval.csv").write_text(text.replace("return_mean", "mean"))
    (at["no_args"] / "args.json").write_text("{")
    write_rows(folder / "nan.csv", EVALUATE, [evaluate_row("run", "nan")])
    (folder / "empty").mkdir()
    (folder / "file").write_text("")


REFUSALS = {  # folder or pattern: words of the line
    "nothing*": r"--runs \S+nothing\*: no run folder there",
    "empty": r"--runs \S+empty: no run folder there",
    "file": r"--runs \S+file: no run folder there",
    "no_table/*": r"no_table/\S+eval.csv: No such file",
    "torn/*": r"torn/\S+eval.csv: line 5 is damaged",
    "binary/*": r"binary/\S+eval.csv: this is not a table",
    "columns/*": r"columns/\S+eval.csv: it lacks return_mean",
    "no_args/*": r"no_args/\S+ is not a run folder: it has no readable args.json",
    "nan.csv": r"nan.csv: line 2 is damaged",
    "vectors/*": r"nothing to compare: left out, no twins: CartPole-v1",
    "half/*": r"nothing to compare: no memory has runs on both twins",
    "twice/*": r"pqn GRU NavigatorEasy mdp seed 0 appears twice: in \S+/runs/Nav\S+ and in \S+/twice/Nav\S+",
}


@pytest.mark.parametrize("what", REFUSALS)
def test_bad_input_is_refused_in_one_line(tmp_path, what):
    damaged(tmp_path)
    runs = (f"{tmp_path}/runs/*", f"{tmp_path}/{what}")
    with pytest.raises(UserError, match=REFUSALS[what]) as refused:
        analyse(tmp_path, *(runs[1:] if what in ("vectors/*", "half/*") else runs))
    assert "\n" not in str(refused.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"runs": ()}, "--runs: name run folders"),
        ({"resamples": 99}, "--resamples 99: use 100 or more"),
        ({"baseline": "MLP"}, "--baseline MLP: no run has this memory; they have GRU, none"),
        ({"out": "{}/runs"}, "--out .*runs: File exists"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, changes, words):
    hand_made(tmp_path / "runs")
    changes = {name: value.format(tmp_path) if name == "out" else value for name, value in changes.items()}
    with pytest.raises(UserError, match=words):
        analyse(tmp_path, **changes)
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------------------ picture


def test_runs_with_other_parameters_are_other_environments(tmp_path):
    """They are not mixed with those that have the game's own, and cannot be normalised."""
    returns = [0.2, 0.4]
    for twin in ("mdp", "pomdp"):
        write_run(tmp_path / "runs", "pqn_rnn", "GRU", "NavigatorEasy", twin, returns)
        write_run(
            *(tmp_path / "runs", "pqn_rnn", "GRU", "NavigatorEasy", twin, [0.9], 2, "20260101-000001"),
            env_params=["max_steps_in_episode=5"],
            eval_env_params=["max_steps_in_episode=7"],
        )
    study, _ = gap_and_bias.read_study(Args(runs=(f"{tmp_path}/runs/*",)))
    assert study.env_ids == ["NavigatorEasy", "NavigatorEasy max_steps_in_episode=7"]
    assert [len(study.cells[cell]) for cell in study.cells] == [2, 2, 1, 1]
    with pytest.raises(UserError, match="best return of NavigatorEasy max_steps_in_episode=7 are not known"):
        gap_and_bias.read_study(Args(runs=(f"{tmp_path}/runs/*",), normalised=True))


def test_a_folder_with_brackets_in_its_name_is_found(tmp_path):
    run = write_run(tmp_path / "a[1]", "pqn_rnn", "GRU", "NavigatorEasy", "mdp", [0.2])
    assert gap_and_bias.find_sources((str(run),)) == [run.resolve()]


def study_of(tmp_path, **changes):
    study, _ = gap_and_bias.read_study(Args(runs=(f"{tmp_path}/runs/*",), **changes))
    return study, gap_and_bias.estimate_all(study, 100)


def points_of(axes):
    """Value of the point in every row that has one."""
    points = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata())]
    return {round(float(line.get_ydata()[0])): float(line.get_xdata()[0]) for line in points}


def test_the_panels_show_the_aggregated_values_in_one_order(tmp_path):
    hand_made(tmp_path / "runs")
    for memory, level in (("LRU", 0.5), ("FFM", -0.5)):
        for twin in ("pomdp", "mdp"):
            write_run(tmp_path / "runs", "pqn_rnn", memory, "NavigatorEasy", twin, [level] * 2)
    figure = gap_and_bias.draw(*study_of(tmp_path))
    panels = figure.axes
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["LRU", "GRU", "FFM", "none"]
    assert points_of(panels[0]) == pytest.approx({0: 0.5, 1: 0.25, 2: -0.5})
    assert points_of(panels[1]) == pytest.approx({0: 0.0, 1: 0.225, 2: 0.0})
    assert points_of(panels[2]) == pytest.approx({0: -0.35, 1: -0.175, 2: -1.35})
    said = [[text.get_text() for text in axes.texts if text.get_text()] for axes in panels]
    assert [sorted(texts) for texts in said] == [
        *(["1/2 ids", "1/2 ids", "missing"], ["1/2 ids", "1/2 ids", "missing"]),
        ["1/2 ids", "1/2 ids", "baseline"],
    ]


@pytest.mark.parametrize("algorithms", [("pqn",), ("dqn", "ppo", "pqn")])
def test_25_memories_have_rows_that_do_not_touch(tmp_path, algorithms):
    for algorithm in algorithms:
        for i in range(25):
            for twin in ("mdp", "pomdp"):
                write_run(tmp_path / "runs", f"{algorithm}_rnn", f"Memory-{i}", "NavigatorEasy", twin, [i / 25])
    figure = gap_and_bias.draw(*study_of(tmp_path, baseline="Memory-3"))
    figure.savefig(tmp_path / "picture.png")
    labels = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
    assert all(above.y0 > below.y1 for above, below in zip(labels, labels[1:], strict=False))
    remarks = sorted(text.get_window_extent().y0 for text in figure.axes[0].texts)
    assert min(np.diff(remarks)) >= figure.axes[0].texts[0].get_window_extent().height - 1
    texts = [text for axes in figure.axes for text in (*axes.texts, *axes.get_yticklabels()) if text.get_text()]
    extents = [text.get_window_extent() for text in texts]
    assert min(extent.x0 for extent in extents) >= 0 and max(extent.x1 for extent in extents) <= figure.bbox.width
    names = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert names == (list(algorithms) if len(algorithms) > 1 else [])  # a single one needs no legend
