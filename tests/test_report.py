"""benchmark/report.py: cells, intervals, all ids together, repeated reports, the tables of the pages, refusals."""

import csv
import dataclasses
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tyro
from matplotlib.figure import Figure
from rliable import library, metrics
from runs import called
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.summary.writer.record_writer import RecordWriter

from popgym_arcade.analysis.interquartile import estimate
from popgym_arcade.analysis.reference_returns import reference_returns
from popgym_arcade.baselines.errors import UserError

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmark"))
import report  # noqa: E402
from reporting.cells import Cell, average, can_be_normalised, make_cells, normalised  # noqa: E402
from reporting.pictures import draw_curves, draw_over, draw_together, from_the_start, parameter  # noqa: E402
from reporting.rows import collect, minutes_at, read_earlier  # noqa: E402
from reporting.statistics import interval, interval_of, iqm  # noqa: E402
from reporting.tables import by_words, in_words, summary, table, table_half_way  # noqa: E402
from reporting.together import (  # noqa: E402
    THRESHOLDS,
    profile_rows,
    put_together,
    shares_above,
    table_against,
    table_together,
)

COLUMNS = ("global_step", "seed", "env_id", "partial_obs", "policy", "return_mean")


def write_run(folder: Path, name: str, group: str, rows: list[tuple], env_id="Task", partial=False, **args) -> Path:
    """A run folder; rows are (step, seed, policy, return)."""
    run = folder / name
    run.mkdir(parents=True)
    (run / "args.json").write_text(json.dumps({"script": "pqn_rnn", "args": {"memory": group, **args}}))
    with (run / "eval.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *((step, seed, env_id, partial, *rest) for step, seed, *rest in rows)])
    return run


def write_events(run: Path, points: list[tuple[int, float, dict]]) -> None:
    """TensorBoard events: (step, minutes since now, values by tag)."""
    writer, now = EventFileWriter(str(run)), time.time()
    for step, minutes, values in points:
        for tag, value in values.items():
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.add_event(Event(wall_time=now + 60 * minutes, step=step, summary=summary))
    writer.close()


def two_groups(folder: Path) -> None:
    for seed, (last, final) in enumerate([(200, 1.0), (300, 0.5)]):
        rows = [(0, seed, "random", 0.1), (100, seed, "greedy", 0.2 + seed), (last, seed, "greedy", final)]
        write_run(folder, f"a{seed}", "GRU", rows)
    write_run(folder, "b0", "MLP", [(0, 0, "random", 0.3), (100, 0, "greedy", 0.0)])


def cells_of(folder: Path, **args) -> list[Cell]:
    args = report.Args(runs=(f"{folder}/*",), out="out", **args)
    return make_cells(collect(args.runs, args.by, args.training), args.by)


def lines_of(markdown: str) -> list[dict]:
    """The lines of a table, by column."""
    head, _, *lines = [
        [cell.strip().replace("\N{NO-BREAK SPACE}", " ") for cell in line.strip("|").split("|")]
        for line in markdown.splitlines()
    ]
    return [dict(zip(head, line, strict=True)) for line in lines]


def test_the_table_takes_each_seeds_last_evaluation(tmp_path):
    two_groups(tmp_path)
    cells = cells_of(tmp_path)
    gru, mlp = lines_of(table(cells, "memory"))
    assert gru == {
        "memory": "GRU",
        "seeds": "2",
        "steps": "200 to 300",
        "greedy return": "0.750 ± 0.250",
        "95% interval": "0.500 to 1.000",
        "each seed": "1.00, 0.50",
        "random policy": "0.100",
    }
    assert (mlp["seeds"], mlp["95% interval"], mlp["random policy"]) == ("1", "one seed", "0.300")
    steps, returns = cells[0].curve()  # only where all seeds were evaluated
    assert steps.tolist() == [100]
    np.testing.assert_allclose(returns, [[0.2], [1.2]])


def test_an_interquartile_mean_is_called_so_only_where_it_leaves_something_out(tmp_path):
    for seed, final in enumerate((0.0, 0.2, 0.4, 3.0)):
        write_run(tmp_path, f"a{seed}", "GRU", [(0, seed, "random", 0.1), (100, seed, "greedy", final)])
    cells = cells_of(tmp_path)
    assert average(cells) == "interquartile mean"
    (line,) = lines_of(table(cells, "memory"))
    assert (line["interquartile mean"], line["greedy return"]) == ("0.300", "0.900 ± 1.221")
    rows = tuple(row for row in cells[0].rows if row["seed"] != "3")
    three = [dataclasses.replace(cells[0], rows=rows)]
    assert average(three) == "mean"
    (line,) = lines_of(table(three, "memory"))
    assert "interquartile mean" not in line and line["greedy return"] == "0.200 ± 0.163"


def test_a_legend_with_many_long_labels_fits_into_its_picture(tmp_path, monkeypatch):
    for n in range(9):
        rows = [(0, 0, "random", 0.0), (100, 0, "greedy", 0.1)]
        write_run(tmp_path, f"a{n}", f"memory number {n}, with a long name", rows)
    figures = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, path, **_: figures.append(figure))
    draw_curves(cells_of(tmp_path), tmp_path / "picture.png", "", "memory", over_minutes=False)
    figures[0].canvas.draw()
    inside = figures[0].legends[0].get_window_extent()
    assert 0 <= inside.x0 and inside.x1 <= figures[0].bbox.width


def test_groups_are_named_as_a_reader_would():
    named = {"pqn_mlp+none": "pqn_mlp", "pqn_rnn+MinGRU": "pqn_rnn MinGRU", "MLP": "MLP (no memory)", "none": "none"}
    assert {group: in_words(group) for group in named} == named
    assert by_words("script+learning_rate") == "script, learning rate"


def test_a_panel_goes_from_the_random_policy_at_step_0_to_the_best_possible(tmp_path, monkeypatch):
    rows = [(0, 0, "random", 0.1), (100, 0, "greedy", 0.12), (200, 0, "greedy", 0.15)]
    write_run(tmp_path, "a", "MLP", rows, "SkittlesEasy")
    figures = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, path, **_: figures.append(figure))
    assert draw_curves(cells_of(tmp_path), tmp_path / "picture.png", "", "memory", over_minutes=False)
    (axes,) = figures[0].axes
    curve, random, best = axes.lines
    np.testing.assert_allclose(curve.get_xydata(), [[0, 0.1], [100, 0.12], [200, 0.15]])
    assert set(random.get_ydata()) == {0.1} and set(best.get_ydata()) == {1.0}
    low, high = axes.get_ylim()
    assert low < 0.1 and high > 1
    assert [text.get_text() for text in figures[0].legends[0].texts] == [
        "MLP (no memory)",
        "best possible",
        "random policy",
    ]
    x = np.array([0, 5])
    assert from_the_start(x, x, 0.0)[0] is x


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (5, 3), (7, 10)])
def test_means_and_profiles_are_those_of_rliable(shape):
    scores = np.random.default_rng(0).normal(size=(*shape, 4))
    scores[0, 0, 3] = np.nan
    np.testing.assert_allclose(iqm(scores), [metrics.aggregate_iqm(scores[..., n]) for n in range(4)])
    taus, last = np.append(THRESHOLDS, scores[0, 0, 0]), scores[..., 0]
    np.testing.assert_allclose(shares_above(last, taus), library.score_distributions(last, taus))


def test_the_interval_is_that_of_the_interquartile_mean():
    values = np.random.default_rng(1).normal(size=(400, 1, 2)) * [1, 2]
    (low, high), middle = interval(values), iqm(values)
    np.testing.assert_allclose(middle, [metrics.aggregate_iqm(values[..., n]) for n in range(2)])
    error = 1.06 * np.array([1, 2]) / 20  # of a normal's mean with a quarter trimmed off both ends, about
    np.testing.assert_allclose(low, middle - 1.96 * error, atol=0.03)
    np.testing.assert_allclose(high, middle + 1.96 * error, atol=0.03)
    state = np.random.get_state()[1].tolist()
    interval_of.cache_clear()
    np.testing.assert_array_equal(interval(values), (low, high))  # whatever numpy's own generator is at
    assert np.random.get_state()[1].tolist() == state


def test_time_speed_and_training_come_from_the_events(tmp_path):
    rows = [(0, 0, "random", 0.1), (100, 0, "greedy", 0.2), (200, 0, "greedy", 0.4)]
    run = write_run(tmp_path, "a", "GRU", rows)
    write_events(
        run,
        [
            (50, 1, {"charts/SPS": 1.0, "charts/episodes": 500, "charts/episodic_return": 9.0}),
            (100, 2, {"charts/SPS": 300.0, "eval/episodic_return": 0.2}),
            (150, 3, {"charts/SPS": 500.0, "charts/episodes": 60, "charts/episodic_return": 1.0}),
            (200, 5, {"charts/SPS": 400.0, "eval/episodic_return": 0.4, "charts/episodes": 50}),
            (200, 5, {"charts/episodic_return": 3.0}),
        ],
    )
    (cell,) = cells_of(tmp_path, training=True)
    (line,) = lines_of(table([cell], "memory"))
    assert line["steps/s"] == "400"  # the median without the first point, in which it compiled
    assert line["last 100 training episodes"] == f"{(60 * 1 + 50 * 3) / 110:.3f} ± 0.000"
    assert float(line["minutes"]) == pytest.approx(5, abs=0.2)  # the writer's first event is of now
    np.testing.assert_allclose(cell.minutes(cell.curve()[0]), [2, 5], atol=0.2)
    two_groups(tmp_path / "silent")  # nothing is known of training there
    assert "last 100 training episodes" not in table(cells_of(tmp_path / "silent", training=True), "memory")


def test_the_minutes_until_it_was_half_way_to_the_best_return(tmp_path):
    """MineSweeperEasy has 0 for random play, nearly, and 1 for the best."""
    for name, group, last in (("a", "GRU", 0.9), ("b", "MLP", 0.4)):
        rows = [
            (0, 0, "random", 0.0),
            (100, 0, "greedy", 0.2),
            (200, 0, "greedy", 0.6 * last),
            (300, 0, "greedy", last),
        ]
        run = write_run(tmp_path, name, group, rows, env_id="MineSweeperEasy")
        write_events(run, [(100, 2, {"eval/episodic_return": 0.2}), (200, 5, {"eval/episodic_return": 0.5})])
        write_events(run, [(300, 9, {"eval/episodic_return": last})])
    gru, mlp = lines_of(table(cells_of(tmp_path), "memory"))
    assert float(gru["halfway, minutes"]) == pytest.approx(5, abs=0.3) and mlp["halfway, minutes"] == "not reached"
    (row,) = lines_of(table_half_way(cells_of(tmp_path)))
    assert row == {
        "id": "MineSweeperEasy",
        "GRU": gru["halfway, minutes"],
        "MLP (no memory)": "not reached",
    }


def test_each_twin_has_its_own_table_of_minutes_without_empty_columns(tmp_path):
    rows = [(0, 0, "random", 0.0), (100, 0, "greedy", 0.1), (200, 0, "greedy", 0.9)]
    for name, group, partial in (("a", "GRU", True), ("b", "MLP", True), ("c", "GRU", False)):
        run = write_run(tmp_path, name, group, rows, env_id="MineSweeperEasy", partial=partial)
        write_events(run, [(100, 2, {"eval/episodic_return": 0.1}), (200, 4, {"eval/episodic_return": 0.9})])
    full, partial = table_half_way(cells_of(tmp_path)).split("Partially observable:\n\n")
    assert full.startswith("Fully observable:\n\n| id | GRU |\n")
    assert partial.startswith("| id | GRU | MLP (no memory) |\n")


def test_the_twins_of_a_game_are_next_to_each_other_and_in_order(tmp_path, monkeypatch):
    """Even if some of them were not trained: their places stay empty. Tables begin with the fully observable twin."""
    rows = [(0, 0, "random", 0.0), (100, 0, "greedy", 0.9)]
    for number, game in enumerate(("BattleShipEasy", "CountRecallEasy", "MineSweeperEasy", "SkittlesEasy")):
        for partial in (False, True)[number % 2 :]:
            write_run(tmp_path, f"{game}{partial}", "GRU", rows, env_id=game, partial=partial)
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    draw_curves(cells_of(tmp_path), tmp_path / "curves.png", "", "memory", over_minutes=False)
    panels = figures[0].axes
    titles = [axes.get_title() if axes.get_visible() else "" for axes in panels]
    partly = "partially observable"
    assert titles == [
        *("BattleShipEasy, fully observable", f"BattleShipEasy, {partly}", "", f"CountRecallEasy, {partly}"),
        *("MineSweeperEasy, fully observable", f"MineSweeperEasy, {partly}", "", f"SkittlesEasy, {partly}"),
    ]
    labelled = [axes.get_visible() and bool(axes.get_xlabel()) for axes in panels]
    assert labelled == [*[False] * 4, True, True, False, True]
    partly_first = [cell for cell in cells_of(tmp_path) if cell.task != "BattleShipEasy"]
    assert partly_first[0].twin == "pomdp" and summary(partly_first).startswith("Fully observable:")


def test_a_pause_before_a_run_is_resumed_takes_no_time(tmp_path):
    rows = [(0, 0, "random", 0.1), (100, 0, "greedy", 0.2), (200, 0, "greedy", 0.4)]
    run = write_run(tmp_path, "a", "GRU", rows)
    for name, points in {"0": [(0, 0), (100, 2)], "1": [(100, 1502), (200, 1505)]}.items():  # minutes: a day between
        events = [Event(wall_time=1e9 + 60 * minutes, step=step) for step, minutes in points]
        for event in events:
            event.summary.CopyFrom(Summary(value=[Summary.Value(tag="eval/episodic_return", simple_value=0.3)]))
        if name == "1":  # what the scripts' writer begins with, at no time
            events.insert(0, Event(step=101, session_log=SessionLog(status=SessionLog.START)))
        with open(run / f"events.out.tfevents.{name}", "wb") as file:
            for event in events:
                RecordWriter(file).write(event.SerializeToString())
    assert minutes_at(run) == pytest.approx({0: 0, 100: 2, 200: 5})


def test_a_task_gets_its_part_of_the_minutes_of_several():
    rows = [{"policy": "greedy", "global_step": n, "task_steps": n // 4, "minutes": n / 100} for n in (400, 800)]
    cell = Cell("Task", "mdp", "GRU", tuple(row | {"seed": "0"} for row in rows))
    assert list(cell.minutes(np.array([100, 200]))) == [1, 2]


def test_a_run_without_an_evaluation_is_left_out_with_a_line(tmp_path, capsys):
    two_groups(tmp_path)
    expected = table(cells_of(tmp_path), "memory")
    write_run(tmp_path, "young", "GRU", [(0, 0, "random", 0.2)])
    assert table(cells_of(tmp_path), "memory") == expected
    assert capsys.readouterr().err == f"left out: {tmp_path}/young has no evaluation of the greedy policy\n"


def test_groups_are_told_apart_by_several_arguments(tmp_path):
    rows = [(0, 0, "random", 0.1), (100, 0, "greedy", 0.5)]
    write_run(tmp_path, "a", "GRU", rows, num_steps=32, learning_rate=0.001410690937355148)
    write_run(tmp_path, "b", "GRU", rows, num_steps=16, learning_rate=5e-4)
    groups = [cell.group for cell in cells_of(tmp_path, by="learning_rate+num_steps")]
    assert groups == ["0.0005+16", "0.00141+32"]
    write_run(tmp_path, "c", "GRU", rows, num_steps=8, learning_rate=None)  # as --target-kl can be
    assert [cell.group for cell in cells_of(tmp_path, by="learning_rate")] == ["0.0005", "0.00141", "None"]
    message = "--by gamma: no run has this argument; there are .*learning_rate, memory, num_steps"
    with pytest.raises(UserError, match=message):
        cells_of(tmp_path, by="num_steps+gamma")


def test_a_run_of_a_script_without_the_argument_is_a_group_of_its_own(tmp_path):
    """As a script of your own with a new flag, next to the one it was copied from."""
    rows = [(0, 0, "random", 0.1), (100, 0, "greedy", 0.5)]
    write_run(tmp_path, "a", "GRU", rows)
    write_run(tmp_path, "b", "GRU", rows, munchausen=0.9)
    assert {cell.group for cell in cells_of(tmp_path, by="munchausen")} == {"none", "0.9"}


def test_a_line_names_runs_of_a_cell_that_were_not_trained_alike(tmp_path, capsys):
    for seed, rate in enumerate((5e-4, 5e-4, 1e-3)):
        rows = [(0, seed, "random", 0.1), (100, seed, "greedy", 0.5)]
        write_run(tmp_path, f"a{seed}", "GRU", rows, seed=seed, run_dir=f"runs/{seed}", learning_rate=rate)
        write_run(tmp_path, f"b{seed}", "LRU", rows, seed=seed, env_ids=[f"Task{seed}"], learning_rate=rate)
    assert [len(cell.final) for cell in cells_of(tmp_path) if cell.group == "GRU"] == [3]
    said = "--by memory: runs of GRU share a cell but differ in learning_rate (0.0005, 0.001)\n"
    assert capsys.readouterr().err == said
    cells_of(tmp_path, by="memory+learning_rate")
    assert capsys.readouterr().err == ""


def test_runs_with_one_name_in_two_folders_are_two(tmp_path):
    for folder, value in (("one", 0.9), ("two", 0.1)):
        write_run(tmp_path / folder, "run", "GRU", [(0, 0, "random", 0.0), (100, 0, "greedy", value)])
    with pytest.raises(UserError, match=f"a seed appears twice, in {tmp_path}/one/run, {tmp_path}/two/run"):
        cells_of(tmp_path / "*")


def both_twins(folder: Path, ids=("CartPoleEasy", "SkittlesEasy")) -> None:
    """Three seeds of two memories on both twins of ids of popgym_arcade, two evaluations each."""
    rng = np.random.default_rng(0)
    for env_id in ids:
        for partial in (True, False):
            for memory in ("GRU", "none"):
                rows = [(0, seed, "random", 0.1) for seed in range(3)]
                rows += [(step, seed, "greedy", rng.uniform()) for step in (100, 200) for seed in range(3)]
                write_run(folder, f"{env_id}_{partial}_{memory}", memory, rows, env_id, partial)


def test_ids_are_put_together_between_the_random_and_the_best_policy(tmp_path):
    both_twins(tmp_path)
    cells = cells_of(tmp_path)
    together, left_out = put_together(cells)
    assert not left_out and [(each.twin, each.group) for each in together] == [
        (twin, group) for twin in ("mdp", "pomdp") for group in ("GRU", "none")
    ]
    (low, high), first = reference_returns()["CartPoleEasy"], cells[0]
    assert (first.task, first.twin, first.group) == ("CartPoleEasy", "mdp", "GRU") and high == 1.0
    np.testing.assert_allclose(together[0].scores[:, 0, -1], (first.final - low) / (1 - low))
    np.testing.assert_allclose(together[0].final[:, 0], (first.final - low) / (1 - low))
    assert together[0].scores.shape == (3, 2, 2) and together[0].steps.tolist() == [100, 200]
    lines = lines_of(table_together(together, "memory"))
    expected = metrics.aggregate_iqm(together[0].scores[..., -1])
    assert lines[0]["interquartile mean"] == f"{expected:.3f}" and lines[0]["ids"] == "2"
    full, partial = summary(cells).split("\nPartially observable:\n\n")
    assert full.startswith("Fully observable:\n\n") and lines_of(partial)[0]["id"] == "CartPoleEasy"
    wide = lines_of(full.split("\n\n")[1])
    assert wide[0]["GRU"].startswith(f"{first.final.mean():.3f} (") and wide[0]["best possible"] == "1.000"


def test_a_file_in_the_place_of_the_folder_is_one_line(tmp_path):
    write_run(tmp_path / "runs", "a", "GRU", [(0, 0, "random", 0.1), (100, 0, "greedy", 0.5)])
    (tmp_path / "file").touch()
    flags = ("--runs", f"{tmp_path}/runs/*", "--out", f"{tmp_path}/file/report")
    done = called(ROOT / "benchmark/report.py", *flags)
    assert done.returncode == 2 and done.stderr == f"report.py: error: {tmp_path}/file: File exists\n"


def test_groups_are_compared_over_all_ids_together(tmp_path, capsys):
    for env_id in ("CartPoleEasy", "SkittlesEasy"):
        for memory, more in (("GRU", 0.3), ("LRU", 0.25), ("MLP", 0.0)):
            low, high = reference_returns()[env_id]
            for seed, share in enumerate((0.2, 0.3, 0.4, 0.5)):
                rows = [(0, seed, "random", low), (100, seed, "greedy", low + (share + more) * (high - low))]
                write_run(tmp_path / "runs", f"{env_id}{memory}{seed}", memory, rows, env_id, True)
    out = tmp_path / "out" / "compared"
    report.main(report.Args(runs=(f"{tmp_path}/runs/*",), out=str(out), against=("MLP", "GRU")))
    gru, lru, mlp = lines_of(Path(f"{out}_against.md").read_text().replace("\N{NO-BREAK SPACE}", " "))
    assert [line["partially observable"][:7] for line in (gru, lru, mlp)] == ["0.650 (", "0.600 (", "0.350 ("]
    assert gru["above MLP (no memory)"].startswith("0.300 (") and gru["above GRU"] == ""
    assert lru["above MLP (no memory)"].startswith("0.250 (") and lru["above GRU"].startswith("-0.050 (")
    assert mlp["above MLP (no memory)"] == "" and mlp["above GRU"].startswith("-0.300 (")
    low, high = (float(x) for x in re.findall(r"\((.*) to (.*)\)", lru["above GRU"])[0])
    assert low < -0.05 < high
    again = report.Args(runs=(f"{tmp_path}/runs/*",), out=str(tmp_path / "new" / "x"), against=("Elephant",))
    with pytest.raises(UserError, match="--against Elephant: no group of that name has every id"):
        report.main(again)
    with pytest.raises(UserError, match="--against compares groups over all ids together"):
        report.main(dataclasses.replace(again, runs=(f"{tmp_path}/runs/Cart*",), against=("MLP",)))
    assert not (tmp_path / "new").exists()


def test_groups_on_both_twins_are_compared_on_each_and_have_a_gap(tmp_path):
    both_twins(tmp_path)
    together, _ = put_together(cells_of(tmp_path))
    iqm_of = {(each.twin, each.group): metrics.aggregate_iqm(each.final) for each in together}
    text = table_against(together, "memory", ["none"]).replace("\N{NO-BREAK SPACE}", " ")
    head, _, *lines = ([cell.strip() for cell in row.strip("|").split("|")] for row in text.splitlines())
    names = [name for twin in ("fully", "partially") for name in (f"{twin} observable", "above none")]
    assert head == ["memory", *names, "observability gap"]  # without speeds, which these runs lack
    assert {line[0] for line in lines} == {"GRU", "none"}
    best_first = sorted(("GRU", "none"), key=lambda group: -iqm_of["pomdp", group])
    for group, line in zip(best_first, lines, strict=True):
        full, partial = (iqm_of[twin, group] for twin in ("mdp", "pomdp"))
        above = [] if group == "none" else [full - iqm_of["mdp", "none"], partial - iqm_of["pomdp", "none"]]
        figures = [full, *above[:1], partial, *above[1:], full - partial]
        assert [cell.partition(" (")[0] for cell in line[1:] if cell] == [f"{value:.3f}" for value in figures]
        assert all(re.fullmatch(r"-?\d\.\d{3} \(-?\d\.\d{3} to -?\d\.\d{3}\)", cell) for cell in line[1:] if cell)


def test_a_summary_with_more_groups_than_ids_has_a_line_for_each_group(tmp_path):
    for number, memory in enumerate(("GRU", "LRU", "MinGRU")):
        returns = [(0, 0, "random", 0.1), (100, 0, "greedy", 0.25 * number)]
        write_run(tmp_path, memory, memory, returns, "CartPoleEasy", True)
    lines = lines_of(summary(cells_of(tmp_path)))
    assert [line["variant"] for line in lines] == ["GRU", "LRU", "MinGRU", "random policy", "best possible"]
    assert [line["CartPoleEasy"][:5] for line in lines] == ["0.000", "0.250", "0.500", "0.136", "1.000"]


def test_a_group_without_one_of_the_ids_is_not_put_together(tmp_path):
    both_twins(tmp_path)
    write_run(tmp_path, "more", "LRU", [(0, 0, "random", 0.1), (100, 0, "greedy", 0.5)], "CartPoleEasy", True)
    together, left_out = put_together(cells_of(tmp_path))
    assert len(together) == 4 and "LRU" not in {each.group for each in together}
    assert left_out == ["LRU, partially observable: no SkittlesEasy"]


def test_ids_that_were_trained_for_longer_count_with_their_last_evaluation(tmp_path):
    write_run(
        tmp_path, "a", "GRU", [(0, 0, "random", 0.1), (100, 0, "greedy", 0.0), (900, 0, "greedy", 1.0)], "CartPoleEasy"
    )
    write_run(
        tmp_path, "b", "GRU", [(0, 0, "random", 0.1), (50, 0, "greedy", 0.5), (110, 0, "greedy", 1.0)], "SkittlesEasy"
    )
    (together,), _ = put_together(cells_of(tmp_path))
    best = reference_returns()["SkittlesEasy"].best
    assert together.steps.tolist() == [100, 110, 900] and together.final_steps == (110, 900)
    skittles = [normalised(cells_of(tmp_path)[1], value) for value in (0.5, 1.0, 1.0)]
    np.testing.assert_allclose(together.scores[0, 1], skittles)  # the last one until then
    np.testing.assert_allclose(together.final, [[1.0, skittles[-1]]])
    (line,) = lines_of(table_together([together], "memory"))
    assert (line["steps"], line["95% interval"]) == ("110 to 900", "one seed") and best <= 1
    report.main(report.Args(runs=(f"{tmp_path}/*",), out=str(tmp_path / "out" / "one_seed")))
    assert (tmp_path / "out/one_seed_aggregate.png").stat().st_size > 10_000
    with (tmp_path / "out/one_seed_profile.csv").open(newline="") as file:
        assert {(row["low"], row["high"]) for row in csv.DictReader(file)} == {("", "")}


def test_a_profile_is_the_share_of_runs_above_each_return(tmp_path):
    both_twins(tmp_path)
    together, _ = put_together(cells_of(tmp_path))
    rows = profile_rows(together, "memory")
    assert len(rows) == 4 * 61
    for each in together:
        of_group = [row for row in rows if (row["twin"], row["memory"]) == (each.twin, each.group)]
        shares = [np.mean(each.final > float(row["normalised_return"])) for row in of_group]
        np.testing.assert_allclose([float(row["share"]) for row in of_group], shares, atol=1e-4)
        assert all(float(row["low"]) <= float(row["share"]) <= float(row["high"]) for row in of_group)


def test_time_and_speed_of_all_ids_together(tmp_path, monkeypatch):
    """Two ids trained apart, and by one agent for both, whose time counts once, and half of it for each."""
    columns = ("global_step", "seed", "env_id", "task", "partial_obs", "policy", "return_mean")
    for name, ids, length in (("a", ["CartPoleEasy"], 1), ("b", ["SkittlesEasy"], 3), ("both", 2 * [0], 6)):
        ids = ["CartPoleEasy", "SkittlesEasy"] if name == "both" else ids
        run = write_run(tmp_path, name, "multi" if name == "both" else "single", [])
        about = {"script": "impala_popart", "args": {"memory": "multi" if name == "both" else "single", "env_ids": ids}}
        (run / "args.json").write_text(json.dumps(about))
        steps = [at * len(ids) for at in (0, 100, 200)]
        rows = [(0, 0, env_id, env_id, False, "random", 0.1) for env_id in ids]
        rows += [(step, 0, env_id, env_id, False, "greedy", 0.5) for env_id in ids for step in steps]
        with (run / "eval.csv").open("w", newline="") as file:
            csv.writer(file).writerows([columns, *rows])
        points = [(step, at * length, {"eval/episodic_return": 0.5}) for at, step in enumerate(steps)]
        write_events(run, [(0, 0.0, {"charts/SPS": 100.0 * length}), *points])
    single, multi = sorted(put_together(cells_of(tmp_path))[0], key=lambda each: each.group, reverse=True)
    np.testing.assert_allclose(single.minutes, [0, 2, 4], atol=0.02)
    np.testing.assert_allclose(multi.minutes, [0, 3, 6], atol=0.02)
    lines = lines_of(table_together([single, multi], "memory"))
    assert [line["minutes, all runs"] for line in lines] == ["8", "12"]  # 2 and 6 minutes; 12 of one run
    assert [line["steps/s"] for line in lines] == ["200", "600"]
    figures = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, path, **_: figures.append(figure))
    draw_together([single, multi], tmp_path / "picture.png", "", "memory")
    steps, minutes, profiles = figures[0].axes
    assert [axes.get_xlabel().split()[0] for axes in (steps, minutes, profiles)] == [
        "environment",
        "minutes",
        "normalised",
    ]
    np.testing.assert_allclose([line.get_xdata() for line in steps.lines], [[0, 100, 200]] * 2)
    np.testing.assert_allclose([line.get_xdata() for line in minutes.lines], [[0, 2, 4], [0, 3, 6]], atol=0.02)
    assert profiles.lines[0].get_xdata().tolist() == THRESHOLDS.tolist()


@pytest.mark.parametrize("flag", ["env_params", "eval_env_params"])
def test_ids_with_parameters_of_their_own_are_not_normalised(tmp_path, flag):
    for name, env_id in (("a", "CartPoleEasy"), ("b", "SkittlesEasy")):
        rows = [(0, 0, "random", 0.1), (100, 0, "greedy", 0.5)]
        write_run(tmp_path / "runs", name, "GRU", rows, env_id, **{flag: ["max_steps_in_episode=7"]})
    out = tmp_path / "out"
    (tmp_path / "out_summary.md").write_text("of an earlier report")
    report.main(report.Args(runs=(f"{tmp_path}/runs/*",), out=str(out)))
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.csv", "out.md", "out.png"]


def test_the_same_table_gives_the_same_files(tmp_path):
    both_twins(tmp_path / "runs")
    out = tmp_path / "out" / "lambda0.5"  # a dot in the name is no ending
    report.main(report.Args(runs=(f"{tmp_path}/runs/*",), out=str(out), title="a title"))
    names = sorted(path.name.removeprefix("lambda0.5") for path in out.parent.iterdir())
    assert names == [
        *(".csv", ".md", ".png", "_aggregate.md", "_aggregate.png"),
        *("_normalised.png", "_profile.csv", "_summary.md"),
    ]
    interval_of.cache_clear()
    report.main(report.Args(csv=(f"{out}.csv",), out=str(tmp_path / "again"), title="a title"))
    for name in names:
        assert Path(f"{out}{name}").read_bytes() == (tmp_path / f"again{name}").read_bytes(), name
    assert Path(f"{out}.png").stat().st_size > 10_000


def test_a_table_can_be_extended_by_more_runs(tmp_path):
    def of(value):
        return [(0, 0, "random", 0.1), (100, 0, "greedy", value)]

    write_run(tmp_path / "runs", "gru", "GRU", of(0.5))
    write_run(tmp_path / "runs", "lru", "LRU", of(0.25))
    table = tmp_path / "out.csv"
    report.main(report.Args(runs=(f"{tmp_path}/runs/*",), out=str(table.with_suffix(""))))
    write_run(tmp_path / "later", "lru", "LRU", [*of(0.25), (200, 0, "greedy", 0.75)])  # the same run, resumed
    write_run(tmp_path / "later", "mlp", "MLP", of(0.125))
    report.main(report.Args(runs=(f"{tmp_path}/later/*",), csv=(str(table),), out=str(table.with_suffix(""))))
    with table.open(newline="") as file:
        found = [(row["run"], row["return_mean"]) for row in csv.DictReader(file) if row["policy"] == "greedy"]
    assert found == [("gru", "0.5"), ("lru", "0.25"), ("lru", "0.75"), ("mlp", "0.125")]
    by = "script+memory"  # of a table that was made with another --by
    cells = make_cells(read_earlier(str(table), by), by)
    assert [cell.group for cell in cells] == ["pqn_rnn+GRU", "pqn_rnn+LRU", "pqn_rnn+MLP"]
    assert not list(tmp_path.glob("*.partial"))


def test_the_order_of_runs_changes_nothing_and_a_column_needs_all_seeds(tmp_path):
    for seed, value in ((10, 0.5), (2, 0.25)):
        write_run(tmp_path, f"a{seed}", "GRU", [(0, seed, "random", 0.0), (100, seed, "greedy", value)])
    rows = collect((f"{tmp_path}/*",), "memory")
    tables = [table(make_cells(order, "memory"), "memory") for order in (rows, rows[::-1])]
    assert tables[0] == tables[1] and lines_of(tables[0])[0]["each seed"] == "0.25, 0.50"
    known = [row | ({"minutes": "3", "training_return": "0.1"} if row["seed"] == "2" else {}) for row in rows]
    (line,) = lines_of(table(make_cells(known, "memory"), "memory"))
    assert not line.get("minutes") and not line.get("last 100 training episodes")


def test_returns_over_a_parameter_of_the_environment(tmp_path, monkeypatch):
    for length in (20, 3):
        for memory, value in (("GRU", 1.0), ("MLP", 1 / length)):
            rows = [(0, seed, "random", 0.0) for seed in (0, 1)] + [(9, seed, "greedy", value) for seed in (0, 1)]
            write_run(tmp_path / "runs", f"{memory}{length}", memory, rows, env_params=[f"memory_length={length}"])
    cells = cells_of(tmp_path / "runs")
    assert [cell.task for cell in cells[::2]] == ["Task memory_length=3", "Task memory_length=20"]  # by size
    assert [parameter(cell, "memory_length") for cell in cells] == [3, 3, 20, 20]
    out = tmp_path / "out"
    report.main(report.Args(runs=(f"{tmp_path}/runs/*",), out=str(out), over="memory_length"))
    assert Path(f"{out}_over.png").stat().st_size > 5_000
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    draw_over(cells[::-1], out, "", "memory_length", None)
    axes = drawn[0].axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["GRU", "MLP (no memory)"]  # the best one on top
    assert [text.get_text() for text in axes.texts] == ["1.00", "1.00", "0.33", "0.05"]
    with pytest.raises(UserError, match="no such number among its --env-params"):
        report.main(report.Args(runs=(f"{tmp_path}/runs/*",), out=str(tmp_path / "no"), over="wings"))
    assert not list(tmp_path.glob("no*"))


def test_a_map_shows_how_many_seeds_reach_a_return_and_when(tmp_path, monkeypatch):
    returns = {0: (0.1, 0.95, 1.0), 1: (0.2, 0.3, 0.9), 2: (0.95, 0.2, 0.1)}  # of each seed, at steps 1000, 2000, 3000
    for env_id, solves in (("Chain", True), ("MODULE:Cards", False)):
        rows = [(0, seed, "random", 0.0) for seed in returns]
        rows += [
            (1000 * k, seed, "greedy", value * solves) for seed in returns for k, value in enumerate(returns[seed], 1)
        ]
        write_run(tmp_path / "runs", env_id[0], "GRU", rows, env_id=env_id, env_params=["memory_length=3"])
    cells = cells_of(tmp_path / "runs")
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    draw_over(cells, tmp_path, "", "memory_length", 0.9)
    panels = {axes.get_title(): [text.get_text() for text in axes.texts] for axes in drawn[0].axes[:2]}
    assert panels == {"Chain": ["2/3\n2k"], "Cards": ["0/3"]}  # after 2,000 and 3,000 steps: 2,500, rounded to even


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--runs FOLDER/nothing* --out OUT", "no run folder"),
        ("--runs FOLDER/a* --by wings --out OUT", "--by wings: no run has this argument; there are memory, script"),
        ("--runs FOLDER/twice* --out OUT", "a seed appears twice, in twice0, twice1"),
        ("--runs FOLDER/broken --out OUT", "broken is not a run folder: it has no readable args.json"),
        ("--csv FOLDER/young.csv --out OUT", "GRU, Task: no evaluation of the greedy policy"),
        ("--csv FOLDER/unlike.csv --out OUT", "GRU, Task: no evaluation of the random policy"),
        ("--csv FOLDER/picture.csv --out OUT", "picture.csv: this is not a table"),
        ("--docs FOLDER/page.md --csv FOLDER/young.csv", "give --runs or --csv, and --out; or --docs alone"),
        ("--csv FOLDER/words.csv --out OUT", "line 2 has no valid return_mean"),
        ("--docs FOLDER/nowhere.md", "nowhere.md: no such page"),
        ("--runs FOLDER/a*", "give --runs or --csv, and --out; or --docs alone"),
        (
            "--runs FOLDER/a* --out FOLDER/out --solved 0.9",
            "--solved shows returns over a parameter: name it with --over",
        ),
        ("--csv FOLDER/none.csv --out OUT", "none.csv: No such file"),
        ("--csv FOLDER/a0/eval.csv --out OUT", "eval.csv: it lacks run"),
        ("--csv FOLDER/young.csv --by script+memory --out OUT", "young.csv: it lacks script"),
        ("--docs FOLDER/page.md", "asks for nothing.md, which does not exist"),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path, flags, words):
    two_groups(tmp_path)
    for name in ("twice0", "twice1"):
        write_run(tmp_path, name, "GRU", [(0, 0, "random", 0.2), (100, 0, "greedy", 0.2)])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/eval.csv").write_text("global_step")
    (tmp_path / "picture.csv").write_bytes(b"\x89PNG\r\n\x1a\n\x00")
    for name, policy, value in (("young", "random", "0.2"), ("unlike", "greedy", "0.2"), ("words", "random", "much")):
        lines = "run,memory", ",".join(COLUMNS), f"a,GRU,0,0,Task,False,{policy},{value}"
        (tmp_path / f"{name}.csv").write_text(f"{lines[0]},{lines[1]}\n{lines[2]}\n")
    (tmp_path / "page.md").write_text("<!-- report: nothing.md -->\n<!-- end -->\n")
    line = flags.replace("FOLDER", str(tmp_path)).replace("OUT", str(tmp_path / "out")).split()
    with pytest.raises(UserError) as error:
        report.main(tyro.cli(report.Args, args=line))
    assert words in str(error.value) and "\n" not in str(error.value)
    assert not list(tmp_path.glob("out*"))


def test_a_refusal_on_the_command_line(tmp_path):
    done = called(report.__file__, "--docs", f"{tmp_path}/nowhere.md")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "nowhere.md: no such page" in done.stderr


def test_no_page_is_written_if_another_cannot_be(tmp_path):
    (tmp_path / "table.md").write_text("| a |\n")
    text = "<!-- report: table.md -->\n<!-- end -->\n"
    (tmp_path / "first.md").write_text(text)
    (tmp_path / "second.md").write_text(text.replace("table", "nothing"))
    with pytest.raises(UserError, match="asks for nothing.md"):
        report.main(report.Args(docs=(f"{tmp_path}/first.md", f"{tmp_path}/second.md")))
    assert (tmp_path / "first.md").read_text() == text
    report.main(report.Args(docs=(f"{tmp_path}/first.md",)))
    assert "| a |" in (tmp_path / "first.md").read_text()


def test_tasks_have_lines_and_panels_of_their_own(tmp_path):
    """A run on two tasks next to runs on each alone: steps are those of the task, and each may have the same seed."""
    columns = ("global_step", "seed", "env_id", "task", "partial_obs", "policy", "return_mean")

    def write(name, group, tasks, rows):
        write_run(tmp_path, name, group, [])
        about = {"script": "impala_popart", "args": {"memory": group, "env_ids": tasks}}
        (tmp_path / name / "args.json").write_text(json.dumps(about))
        found = [(step, 0, task.partition("_")[0], task, False, policy, value) for step, task, policy, value in rows]
        with (tmp_path / name / "eval.csv").open("w", newline="") as file:
            csv.writer(file).writerows([columns, *found])

    a, b = "Z", "B_x1000"  # in the order of the run that has both
    both = [(0, a, "random", 0.0), (0, b, "random", -1.0), (200, a, "greedy", 0.5), (200, b, "greedy", 0.25)]
    write("both", "multi", [a, b], both)
    for name, task, value in (("one", a, 0.75), ("other", b, 1.0)):
        write(name, "single", [task], [(0, task, "random", -0.5), (100, task, "greedy", value)])
    lines = lines_of(table(cells_of(tmp_path), "memory"))
    assert [(line["id"], line["memory"], line["steps"], line["greedy return"][:5]) for line in lines] == [
        ("Z", "multi", "100", "0.500"),
        ("Z", "single", "100", "0.750"),
        ("B_x1000", "multi", "100", "0.250"),
        ("B_x1000", "single", "100", "1.000"),
    ]
    report.main(report.Args(runs=(f"{tmp_path}/*",), out=str(tmp_path / "out" / "tasks")))
    assert (tmp_path / "out" / "tasks.png").stat().st_size > 5000
    write("third", "multi", [a, b], both)
    with pytest.raises(UserError, match="a seed appears twice"):
        cells_of(tmp_path)


# --------------------------------------------------------------------------------------------------------------- pages

TABLES = sorted(path for path in (ROOT / "docs/figures").glob("*.csv") if path.with_suffix(".md").exists())
COMPARED_WITH = {  # --against of these reports
    "benchmark_memories": ["MLP", "MinGRU"],
    "memory_study": ["MLP"],
    "memory_study_ppo": ["ppo_rnn+MLP", "pqn_rnn+GRU"],
    "ppo_rnn": ["MLP"],
}


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_the_tables_of_the_pages_come_from_their_files(path):
    with path.open(newline="") as file:
        by = next(csv.reader(file))[1]
    cells = make_cells(read_earlier(str(path), by), by)
    assert table(cells, by) == path.with_suffix(".md").read_text()
    arcade = [cell for cell in cells if can_be_normalised(cell)]
    wide = path.with_name(f"{path.stem}_summary.md")
    assert wide.exists() == (len({cell.task for cell in arcade}) > 1)
    if wide.exists():
        together, _ = put_together(arcade)
        assert summary(arcade) == wide.read_text()
        half_way = path.with_name(f"{path.stem}_half_way.md")
        assert table_half_way(arcade) == (half_way.read_text() if half_way.exists() else "")
        assert table_together(together, by) == path.with_name(f"{path.stem}_aggregate.md").read_text()
        with path.with_name(f"{path.stem}_profile.csv").open(newline="") as file:
            assert profile_rows(together, by) == list(csv.DictReader(file))
        against = path.with_name(f"{path.stem}_against.md")
        if against.exists():
            assert table_against(together, by, COMPARED_WITH[path.stem]) == against.read_text()


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.stem)
def test_the_pages_have_these_tables(path):
    assert report.filled(path) == path.read_text()


def test_every_table_is_on_a_page():
    """Or, of a long one, the numbers that a page takes from it and the link to all of them."""
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    places = ("<!-- report: figures/{0.stem}", "](figures/{0.name})")
    assert [path.stem for path in TABLES if not any(place.format(path) in pages for place in places)] == []


def test_the_page_of_the_memories_says_how_long_each_keeps_a_bit():
    page = (ROOT / "docs/memories.md").read_text()
    cells = make_cells(read_earlier(str(ROOT / "docs/figures/memory_length.csv"), "memory"), "memory")
    found: dict[str, dict[float, Cell]] = {}
    for cell in cells:
        found.setdefault(cell.group, {})[parameter(cell, "memory_length")] = cell
    with (ROOT / "benchmark/results/memory_cost/memory_cost.csv").open(newline="") as file:
        cost = {row["memory"]: (row["rollout_ms"], f"{int(row['bytes_of_state']):,}") for row in csv.DictReader(file)}
    for name, at in found.items():
        kept = [str(np.sum(at[length].final == 1)) for length in (40, 80, 160)]
        assert f"| `{name}` | {' | '.join([*kept, *cost[name]])} |\n" in page


def test_the_study_says_how_far_lru_is_ahead_of_mingru_with_breakout_and_without():
    cells = make_cells(read_earlier(str(ROOT / "docs/figures/memory_study.csv"), "memory"), "memory")
    page = (ROOT / "docs/study.md").read_text()
    for tasks in ({cell.task for cell in cells}, {cell.task for cell in cells} - {"BreakoutEasy"}):
        together, _ = put_together([cell for cell in cells if cell.task in tasks and cell.twin == "pomdp"])
        scores = {each.group: list(each.final.T) for each in together}
        found = estimate(scores["LRU"], scores["MinGRU"])
        words = f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"
        assert words.replace("-", "\N{MINUS SIGN}") in page


def test_every_picture_is_on_a_page():
    pages = "".join(path.read_text() for path in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
    pictures = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs/figures").rglob("*.png")]
    committed = ["git", "-C", ROOT / "docs", "ls-files", "figures"]  # a list writes more than its page shows
    if (ROOT / ".git").exists():
        listed = subprocess.run(committed, capture_output=True, text=True, check=True).stdout.splitlines()
        pictures = sorted(set(pictures) & set(listed))
    missing = [name for name in pictures if f"]({name})" not in pages and f"](docs/{name})" not in pages]
    assert pictures and not missing
