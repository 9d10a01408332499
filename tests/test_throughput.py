"""benchmark/throughput.py at tiny sizes: its files, its checks, and that every frame it counts is really drawn."""

import csv
import dataclasses
import itertools
import re
from pathlib import Path
from statistics import geometric_mean, median

import gymnax
import jax
import numpy as np
import pytest
from runs import called

from benchmark import throughput

SCRIPT = Path(throughput.__file__)
OURS = throughput.ours()[0]
TINY = throughput.Args(env_ids=(OURS, "Catch-bsuite"), num_envs=(2, 3), steps=2, repeats=1)


def test_one_run_writes_a_table_and_a_picture(tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    rows = throughput.main(dataclasses.replace(TINY, out=str(out)))
    with (out / "throughput.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == [field.name for field in dataclasses.fields(throughput.Row)]
    cases = [(line["env_id"], line["twin"], line["num_envs"]) for line in lines]
    twins = [(OURS, "mdp"), (OURS, "pomdp"), ("Catch-bsuite", "mdp")]
    assert cases == [(*twin, size) for size in ("2", "3") for twin in twins]
    assert [int(line["obs_bytes"]) for line in lines] == 2 * [128 * 128 * 3, 128 * 128 * 3, 10 * 5 * 4]
    for line in lines:
        for name in ("frames_per_second", "fill_per_second", "fill_fraction", "compile_seconds", "bytes_per_frame"):
            assert float(line[name]) > 0
        assert line["cpu"] and line["device"] and line["jax"] == jax.__version__ and int(line["cores"]) > 0
    assert (out / "throughput.png").read_bytes().startswith(b"\x89PNG")
    assert throughput.read_rows(out / "throughput.csv") == [
        dataclasses.replace(row, **{k: float(f"{v:.6g}") for k, v in vars(row).items() if isinstance(v, float)})
        for row in rows
    ]
    assert (out / "throughput.md").read_text() == throughput.table(rows)
    assert capsys.readouterr().out.count("Catch-bsuite") == 2 and len(rows) == 6


def test_three_numbers_of_environments_are_drawn_as_lines(tmp_path):
    about = {"obs_bytes": 3, "fill_fraction": 0.5, "compile_seconds": 1.0, "bytes_per_frame": 3.0, "steps": 1}
    about |= {"repeats": 1, **throughput.machine()}
    cases = [(OURS, "mdp"), (OURS, "pomdp"), ("Catch-bsuite", "mdp")]
    rows = [
        throughput.Row(env_id, twin, size, frames_per_second=size * 10.0, fill_per_second=size * 20.0, **about)
        for size in (1, 16, 256)
        for env_id, twin in cases
    ]
    lines = {
        line.get_label(): list(line.get_ydata()) for line in throughput.draw_lines(rows, [1, 16, 256]).axes[0].lines
    }
    assert lines == {
        "fully observable": pytest.approx([10, 160, 2560]),
        "partially observable": pytest.approx([10, 160, 2560]),
        "gymnax": pytest.approx([10, 160, 2560]),
        "plain fill of the same bytes": [20, 320, 5120],
    }
    throughput.draw(rows, tmp_path / "lines.png")
    assert (tmp_path / "lines.png").read_bytes().startswith(b"\x89PNG")


def test_the_dots_are_at_the_speeds_of_their_family():
    speeds = {
        ("TetrisEasy", "mdp"): 10,
        ("TetrisHard", "mdp"): 20,
        ("TetrisHard", "pomdp"): 30,
        ("Catch-bsuite", "mdp"): 40,
    }
    panel = throughput.draw_dots(rows_of(speeds), [4]).axes[0]
    dots = [(line.get_marker(), line.get_xdata()[0], round(line.get_ydata()[0])) for line in panel.lines]
    assert dots == [("o", 10, 0), ("^", 20, 0), ("^", 30, 0), ("o", 40, 1), ("|", 9, 0), ("|", 9, 1)]
    assert [text.get_text() for text in panel.get_yticklabels()] == ["Tetris  3 B", "Catch-bsuite  3 B"]


def rows_of(speeds: dict, **more) -> list[throughput.Row]:
    about = {"num_envs": 4, "obs_bytes": 3, "fill_fraction": 0.5, "compile_seconds": 1.0, "bytes_per_frame": 3.0}
    about |= {"steps": 1, "repeats": 1, "fill_per_second": 9.0, **throughput.machine(), **more}
    return [
        throughput.Row(env_id=env_id, twin=twin, frames_per_second=speed, **about)
        for (env_id, twin), speed in speeds.items()
    ]


def test_the_table_has_families_by_difficulty_and_twin():
    speeds = {("TetrisEasy", "mdp"): 1000.0, ("TetrisHard", "pomdp"): 5.0, ("SkittlesEasy", "mdp"): 4000.0}
    assert throughput.table(rows_of(speeds | {("Catch-bsuite", "mdp"): 7.0})).splitlines() == [
        "| game | Easy | Hard, partially observable |",
        "|-|-|-|",
        "| Tetris | 1,000 | 5 |",
        "| Skittles | 4,000 |  |",
        "| geometric mean | 2,000 | 5 |",
    ]
    assert "| Catch-bsuite | 7 |" in throughput.table(rows_of({("Catch-bsuite", "mdp"): 7.0}))


def test_the_table_of_several_numbers_of_environments_has_a_line_for_each():
    speeds = {("TetrisEasy", "mdp"): 1000.0, ("TetrisHard", "mdp"): 4000.0}
    rows = rows_of(speeds) + rows_of(speeds, num_envs=1024, fill_per_second=8000.0, fill_fraction=0.25)
    assert throughput.table(rows).splitlines()[2:] == [
        "| 4 | 1,000 | 4,000 | 2,000 | 9 | 50.0% |",
        "| 1,024 | 1,000 | 4,000 | 2,000 | 8,000 | 25.0% |",
    ]


MEASURED = sorted((SCRIPT.parents[1] / "docs/figures").glob("throughput*/throughput.csv"))


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.parent.name)
def test_the_tables_of_the_page_come_from_the_measurements(path):
    table = throughput.table(throughput.read_rows(path))
    assert path.with_suffix(".md").read_text() == table
    page = (SCRIPT.parents[1] / "docs/throughput.md").read_text()
    assert f"<!-- report: figures/{path.parent.name}/throughput.md -->\n\n{table}\n<!-- end -->" in page


def test_what_the_page_sums_up_is_in_the_measurements():
    page = (SCRIPT.parents[1] / "docs/throughput.md").read_text()
    for name in ("throughput", "throughput_256"):
        rows = throughput.read_rows(SCRIPT.parents[1] / f"docs/figures/{name}/throughput.csv")
        speeds = [row.frames_per_second for row in rows if row.env_id in throughput.ours()]
        told = f"{min(speeds):,.0f} to {max(speeds):,.0f} frames/s, geometric mean {geometric_mean(speeds):,.0f}"
        assert len(speeds) == 60 and told in page


def test_the_page_has_the_median_and_the_range_of_the_speeds_with_new_pictures():
    with (SCRIPT.parents[1] / "benchmark/results/redrawn_speed.csv").open() as file:
        rows = list(csv.DictReader(file))
    cases = {(row["env_id"], row["twin"], row["obs_size"]) for row in rows}
    assert cases == set(itertools.product(throughput.ours(), throughput.TWINS, ("128", "256")))
    ratios = [float(row["speed_after_over_before"]) for row in rows]
    page = " ".join((SCRIPT.parents[1] / "docs/throughput.md").read_text().split())
    assert f"has a median of {median(ratios):.2f} over all" in page and f"has all {len(ratios)} ratios" in page
    for ratio in (min(ratios), max(ratios)):
        ids = {row["env_id"] for row in rows if float(row["speed_after_over_before"]) == ratio}
        told = re.search(rf"(?:from|to) {ratio:.2f} \((.*?)\)", page)[1]
        assert {name for name in throughput.ours() if name in told} == ids


def test_the_rollout_ends_with_the_frames_of_its_states():
    env, params = throughput.make(OURS, "pomdp", 128)
    keys = jax.random.split(jax.random.key(0), 3)
    obs, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(keys[0], 2), params)
    first = np.asarray(obs)
    _, state, obs = throughput.make_rollout(env, params, 2, 3)(keys[1], state, obs)
    np.testing.assert_array_equal(state.time, [3, 3])
    np.testing.assert_array_equal(obs, jax.vmap(env.get_obs)(state))
    assert (np.asarray(obs) != first).any()


def test_the_compile_time_is_not_that_of_a_cached_program(tmp_path):
    settings = {"jax_compilation_cache_dir": str(tmp_path), "jax_persistent_cache_min_compile_time_secs": 0}
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        with throughput.no_compilation_cache():
            jax.jit(lambda x: x * 3 + 1).lower(1.0).compile()
        assert not list(tmp_path.iterdir())
        jax.jit(lambda x: x * 5 + 1).lower(1.0).compile()
        assert list(tmp_path.iterdir())
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        with throughput.no_compilation_cache():
            pass  # leaving it makes jax look for its cache anew, in the folder from before


def test_the_fill_writes_every_byte():
    count, obs = throughput.make_fill(5)(jax.numpy.int32(0), jax.numpy.zeros((2, 4, 4, 3), jax.numpy.uint8))
    assert count == 5 and (np.asarray(obs) == 4).all()


def test_others_are_gymnax_ids_that_need_no_download():
    ids = dataclasses.replace(TINY, others=True).checked().env_ids
    assert ids[:2] == TINY.env_ids and len(set(ids)) == len(ids)
    assert set(gymnax.registered_envs) - set(throughput.ours()) - set(ids) == {"MNISTBandit-bsuite"}
    assert throughput.Args().checked().env_ids == throughput.ours()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"env_ids": ("Catch-bsuit",)}, "Catch-bsuite"),
        ({"env_ids": ("???",)}, OURS),
        ({"twins": ("half",)}, "mdp or pomdp"),
        ({"twins": ()}, "--twins"),
        ({"obs_size": 127}, "128 or 256"),
        ({"num_envs": ()}, "--num-envs"),
        ({"num_envs": (4, 0)}, "--num-envs 0: use 1 or more"),
        ({"steps": 0}, "--steps 0: use 1 or more"),
        ({"repeats": -1}, "--repeats -1: use 1 or more"),
        ({"out": str(SCRIPT)}, "is a file"),
        ({"out": str(SCRIPT / "deeper")}, "is a file"),
    ],
)
def test_wrong_arguments_are_refused_with_what_to_change(change, message):
    with pytest.raises(throughput.UserError, match=message):
        throughput.main(dataclasses.replace(TINY, **change))


def test_a_wrong_argument_on_the_command_line_is_one_line_and_exit_code_2(tmp_path):
    done = called(SCRIPT, "--env-ids", "Nowhere", "--out", tmp_path / "out")
    assert done.returncode == 2 and done.stdout == "" and not (tmp_path / "out").exists()
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("throughput.py: error: --env-ids 'Nowhere'")
