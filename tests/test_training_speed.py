"""benchmark/training_speed.py and training_parts.py at tiny sizes: counts, tables, refusals, and the pages."""

import ast
import csv
import dataclasses
import re
import sys
from collections import Counter
from pathlib import Path
from statistics import median

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scripts
import tyro
from jax import ShapeDtypeStruct as Shape
from runs import called

from popgym_arcade.baselines.running.memory_use import PROCESS_BYTES

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmark"))

import training_parts  # noqa: E402
import training_speed  # noqa: E402

PARENTS = ("command_line", "training_speed", "replay", "multitask_speed")  # they measure in other processes
TINY = training_speed.Args(points=2, point_steps=16, repeats=1)
TRAINED = training_speed.Training(
    scalars={"charts/SPS": [1.0, 30.0, 10.0, 20.0], "charts/compile_seconds": [2.34]},
    evaluations=[{"policy": "random", "return_mean": "-0.5"}, {"policy": "greedy", "return_mean": "0.9"}],
    seconds=12.3,
    peak_memory_mb=700,
)
RATE = {"steps_per_second": 100, "slowest": 90, "fastest": 110, "compile_seconds": 1.5, "peak_memory_mb": 1000}


@pytest.fixture
def trainings(monkeypatch):
    """Trains nothing, but notes the flags of each run."""
    seen = []

    def train(script, flags):
        seen.append(f"{script} {flags}")
        return TRAINED

    monkeypatch.setattr(training_speed, "train", train)
    return seen


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def tiny(name, **changes):
    return scripts.arcade(name, **({"num_envs": 4, "num_steps": 2, "num_minibatches": 2} | changes))


@pytest.mark.parametrize("name", PARENTS)
def test_a_process_that_starts_others_takes_no_device(name):
    """Importing popgym_arcade imports gymnax, which makes an array and so takes most of a GPU's memory."""
    tree = ast.parse((ROOT / f"benchmark/{name}.py").read_text())
    modules = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    assert modules and not [module for module in modules if re.match("popgym_arcade|gymnax", module)]


# ---------------------------------------------------------------------------------------------------------- the counts


def test_a_product_has_two_operations_for_each_of_its_factors():
    flops = training_parts.matrix_flops(lambda x, y: jnp.sin(x) @ y, Shape((3, 5), "float32"), Shape((5, 7), "float32"))
    assert flops == {"float32": 2 * 3 * 5 * 7}


def test_a_loop_counts_as_often_as_it_runs_and_a_branch_by_its_more_expensive_side():
    def function(x, y):
        many = jax.lax.scan(lambda carry, _: (carry @ y, None), x, length=6)[0]
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ y, lambda x: x @ y @ y, many)

    square = Shape((4, 4), "bfloat16")
    assert training_parts.matrix_flops(function, square, square) == {"bfloat16": (6 + 2) * 2 * 4**3}


def test_a_complex_product_is_four_real_ones():
    square = Shape((4, 4), "complex64")
    assert training_parts.matrix_flops(jnp.matmul, square, square) == {"float32": 4 * 2 * 4**3}


def test_a_convolution_and_its_gradients_count_as_the_matrix_products_they_are():
    frames, kernel = Shape((2, 9, 9, 3), "float32"), Shape((3, 3, 3, 8), "float32")

    def convolve(kernel, frames):
        layout = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(frames, kernel, (2, 2), "VALID", dimension_numbers=layout)

    once = 2 * (2 * 4 * 4 * 8) * (3 * 3 * 3)
    assert training_parts.matrix_flops(convolve, kernel, frames) == {"float32": once}
    learn = jax.grad(lambda *inputs: jnp.square(convolve(*inputs)).sum())
    assert training_parts.matrix_flops(learn, kernel, frames) == {"float32": 2 * once}  # no gradient of the frames


@pytest.mark.parametrize("name", ["pqn_mlp", "pqn_rnn"])
def test_a_step_is_one_forward_pass_and_in_every_epoch_forward_and_backward(name):
    one, two = (tiny(name, update_epochs=epochs) for epochs in (1, 2))
    forward, once = training_parts.flops_of_step(scripts.script(name), one)
    _, twice = training_parts.flops_of_step(scripts.script(name), two)
    learning = twice.total() - once.total()
    assert once.total() - learning == pytest.approx(forward.total() * (1 + 1 / one.num_steps))
    assert 2 * forward.total() < learning < 3 * forward.total()  # the first layer asks for no gradient of the frames


def test_products_are_counted_by_precision():
    args = tiny("pqn_rnn", precision="bfloat16")
    forward, _ = training_parts.flops_of_step(scripts.script("pqn_rnn"), args)
    assert forward["bfloat16"] > 10 * forward["float32"] > 0  # the memory stays in float32


def test_minibatches_have_the_shape_of_the_scripts_own():
    x = jnp.arange(8).reshape(2, 4)  # two steps of four environments
    with_memory, without = (training_parts.in_minibatches(tiny(name), x, 2) for name in ("pqn_rnn", "pqn_mlp"))
    np.testing.assert_array_equal(with_memory, [[[0, 1], [4, 5]], [[2, 3], [6, 7]]])
    np.testing.assert_array_equal(without, [[[0, 1, 2, 3]], [[4, 5, 6, 7]]])


def test_the_matrix_rate_is_positive():
    assert training_parts.matrix_rate("float32", (16, 32), 1) > 0


@pytest.mark.slow
def test_the_frames_drawn_are_those_played():
    module, args = scripts.script("pqn_rnn"), tiny("pqn_rnn")
    state = jax.jit(module.make_train(args)[0])(jax.random.key(0))
    played = training_parts.play(module, args, state)
    obs, _, start = played.inputs
    drawn = training_parts.draw_all(module, args, played.states)
    np.testing.assert_array_equal(drawn[0], obs[1])
    assert start[0].all() and obs.shape == drawn.shape


# --------------------------------------------------------------------------------------------------------- the studies


def test_a_rate_is_the_median_of_the_points_after_the_first(trainings):
    row = training_speed.measure("pqn_rnn.py", "--seed 1", 4, 100)
    assert row == {
        "steps_per_second": 20,
        "slowest": 10,
        "fastest": 30,
        "compile_seconds": 2.3,
        "peak_memory_mb": 700,
    }
    assert trainings == ["pqn_rnn.py --seed 1 --total-timesteps 400 --log-every 100 --eval-episodes 1"]


def test_every_study_uses_flags_that_its_scripts_accept(trainings, monkeypatch, tmp_path):
    answers = {
        "parts": {"drawing": 1.0, "update": 4.0},
        "arithmetic": {
            "rates": {"float32": 5e10},
            "forward_flop": 1e6,
            "step_flop": 1e7,
            "update_size": 1,
            "limit": 40.0,
        },
        "memory": {"bytes": 350 * 2**20},
    }
    asked = []

    def ask(what, script, flags, args):
        asked.append(f"{script}.py {flags} {args.flags}")
        return answers[what]

    monkeypatch.setattr(training_speed, "ask", ask)
    args = dataclasses.replace(
        TINY,
        point_steps=4096,
        studies=tuple(training_speed.STUDIES),
        settings=(*training_speed.SETTINGS, training_speed.FASTEST),
        compile_memories=("GRU",),
        num_envs=(16, 4096),
        num_steps=(32,),
        precisions=("float32", "bfloat16"),
        published_sps=2.0,
        peak_tflops=1.0,
        out=str(tmp_path),
    )
    assert training_speed.main(args)
    for line in {*trainings, *asked}:
        script, *flags = line.split()
        module = scripts.script(script.removesuffix(".py"))
        tyro.cli(module.Args, args=flags).checked()
    lines = {name: rows_of(tmp_path / f"{name}.csv") for name in training_speed.STUDIES}
    assert [row["script"] for row in lines["scripts"]] == list(scripts.ALL)
    assert len(lines["compile"]) == len(scripts.ALL) and "--compile-cache" in " ".join(trainings)
    assert {(row["part"], row["share"]) for row in lines["parts"]} == {("drawing", "0.25"), ("update", "1.0")}
    assert {(row["share"], row["float32_gflops"]) for row in lines["arithmetic"]} == {("0.5", "50")}
    assert {row["expected_over_measured"] for row in lines["memory"]} == {"0.5"}
    assert [row["num_minibatches"] for row in lines["num_envs"]] == 2 * ["16", "64"]
    assert {row["times_published"] for row in lines["num_envs"]} == {"10.0"}
    assert lines["target"][0]["greedy_return"] == "0.9" and lines["target"][0]["random_return"] == "-0.5"
    for row in sum(lines.values(), []):
        assert row["jax"] == jax.__version__ and row["device"] and int(row["cores"]) > 0
    tables = (tmp_path / "tables.md").read_text()
    assert all(f"## {name}\n" in tables for name in training_speed.STUDIES)


def test_the_fastest_setting_is_the_quickest_row(tmp_path):
    about = {"num_envs": 16, "num_minibatches": 16, "precision": "float32"}
    best = {"num_envs": 64, "num_minibatches": 8, "precision": "bfloat16", "steps_per_second": 1000}
    rows = [about | {"steps_per_second": 999}, best, about | {"failed": "too large"}]
    training_speed.write_table(tmp_path / "num_envs.csv", rows)
    script, flags = training_speed.fastest_setting(tmp_path)
    assert script == "pqn_rnn" and flags.endswith("--num-envs 64 --num-minibatches 8 --precision bfloat16")


def test_a_failed_measurement_is_a_row_that_says_why(monkeypatch, tmp_path):
    def measure(script, flags, points, point_steps):
        if "LRU" in flags:
            raise RuntimeError("pqn_rnn.py --memory LRU: pqn_rnn.py: error: it is too large")
        return RATE

    monkeypatch.setattr(training_speed, "measure", measure)
    args = dataclasses.replace(TINY, memories=("GRU", "LRU"), hidden_sizes=(16,), out=str(tmp_path))
    assert not training_speed.main(args)
    one, other = rows_of(tmp_path / "memories.csv")
    assert one["steps_per_second"] == "100" and one["failed"] == ""
    assert other["steps_per_second"] == "" and other["failed"] == "it is too large"


@pytest.mark.slow
def test_a_training_and_a_question_in_processes_of_their_own():
    flags = "--env-id CartPole-v1 --num-envs 4 --num-steps 8 --num-minibatches 2"
    row = training_speed.measure("pqn_mlp.py", flags, 2, 32)
    assert 0 < row["slowest"] <= row["steps_per_second"] <= row["fastest"]
    assert row["compile_seconds"] > 0 and row["peak_memory_mb"] > 100
    found = training_speed.ask("arithmetic", "pqn_mlp", flags, dataclasses.replace(TINY, matrix_sizes=(32,)))
    assert found["limit"] > 0 and Counter(found["rates"]).keys() == {"float32"}


@pytest.mark.slow
def test_the_parts_of_an_update_are_timed():
    args = tiny("pqn_rnn", hidden_size=16)
    found = training_parts.time_parts(scripts.script("pqn_rnn"), args, 1)
    parts = ["environment step", "drawing", "forward, playing", "forward, learning", "backward", "rest"]
    assert sum(found[name] for name in parts) == pytest.approx(found["update"])
    assert all(found[name] > 0 for name in ("environment step", "drawing", "forward, playing", "memory", "update"))


@pytest.mark.parametrize("name", scripts.usually("pqn_mlp"))  # test_memory_use.py has all scripts
def test_the_memory_every_script_needs_is_estimated(name):
    module = scripts.script(name)
    small, large = (scripts.small(name, num_envs=envs, total_timesteps=4096) for envs in (8, 64))
    least, more = (training_parts.expected_memory(module, args) for args in (small, large))
    assert PROCESS_BYTES < least < more


# ------------------------------------------------------------------------------------------------- tables and refusals


FOLDERS = {"performance": "training_speed", "memories": "memory_cost"}  # of the other pages: benchmark/results itself
PAGES = [path for path in sorted((ROOT / "docs").glob("*.md")) if "<!-- table: " in path.read_text()]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_pages_have_the_tables_of_the_files(path):
    page, folder = path.read_text(), ROOT / "benchmark/results" / FOLDERS.get(path.stem, "")
    assert training_speed.filled(page, folder) == page
    missing = [name for name in re.findall(r"<!-- table: (\S+) -->", page) if not (folder / f"{name}.csv").exists()]
    assert all(name.startswith("gpu/") for name in missing)


def test_the_page_has_the_compile_seconds_of_every_script():
    """Its table has the medians and the extremes over memories; the file has all of them."""
    page = (ROOT / "docs/performance.md").read_text()
    rows = rows_of(ROOT / "benchmark/results/training_speed/compile.csv")
    memories = {name: training_speed.COMPILED for name in training_speed.RECURRENT}
    cases = [(name, memory) for name in scripts.ALL for memory in memories.get(name, ["none"])]
    assert sorted((row["script"], row["memory"]) for row in rows) == sorted(cases)
    lines = []
    for name in training_speed.ALL_SCRIPTS:
        cells = [name]
        for column in ("compile_seconds", "with_cache", "process_seconds", "process_with_cache"):
            seconds = [float(row[column]) for row in rows if row["script"] == name]
            extremes = f" ({min(seconds)} to {max(seconds)})" if len(seconds) > 1 else ""
            cells.append(f"{median(seconds):.1f}{extremes}")
        lines.append(f"| {' | '.join(cells)} |\n")
    assert f"\n|-|-|-|-|-|\n{''.join(lines)}\n" in page


def test_the_page_has_the_parts_of_an_update():
    rows = {(row["setting"], row["part"]): row for row in rows_of(ROOT / "benchmark/results/training_speed/parts.csv")}
    page, settings = (ROOT / "docs/performance.md").read_text(), ("mlp", "patch", "paper")
    for part in {part for _, part in rows} - {"update"}:
        of_part = [rows.get((setting, part)) for setting in settings]
        cells = [f"{round(100 * float(row['share']))}%" if row else "" for row in of_part]
        assert f"| {part} | {' | '.join(cells)} |\n" in page
    updates = [f"{float(rows[setting, 'update']['milliseconds']):,.0f}" for setting in settings]
    assert f"| update, milliseconds | {' | '.join(updates)} |\n" in page


def test_a_table_is_filled_in_repeatedly(tmp_path):
    training_speed.write_table(
        tmp_path / "gpu/target.csv",
        [{"wall_seconds": 70.5, "peak_memory_mb": 170.5, "steps": 10000000, "bfloat16_gflops": ""}],
    )
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- table: gpu/target -->\n<!-- end -->\nb\n<!-- table: parts -->\nold\n<!-- end -->\nc\n")
    args = dataclasses.replace(TINY, docs=str(page), out=str(tmp_path))
    assert training_speed.main(args)
    once = page.read_text()
    assert "| wall seconds | peak memory MB | steps |\n|-|-|-|\n| 70.5 | 170 | 10,000,000 |\n\nMeasured on " in once
    assert "Not measured yet." in once and "old" not in once and once.startswith("a\n") and once.endswith("\nc\n")
    assert training_speed.main(args) and page.read_text() == once


@pytest.mark.parametrize(
    "change, message",
    [
        ({"studies": ("speed",)}, "--studies 'speed' is unknown: use scripts, "),
        ({"scripts": ("ppo",)}, "--scripts 'ppo'"),
        ({"settings": ("slow",)}, "--settings 'slow'"),
        ({"settings": ("fastest",), "studies": ("parts",), "out": "nowhere"}, "--studies num_envs first"),
        ({"device": "tpu"}, "cpu or gpu"),
        ({"points": 1}, "--points 1: use 2 or more"),
        ({"num_envs": (0,)}, "1 or more"),
        ({"docs": "nowhere.md"}, "no such page"),
        ({"docs": str(PAGES[0]), "out": "nowhere"}, "nothing to fill in"),
    ],
)
def test_wrong_arguments_are_refused_with_what_to_change(change, message):
    with pytest.raises(training_speed.UserError, match=message):
        training_speed.main(dataclasses.replace(TINY, **change))


def test_an_unknown_study_on_the_command_line_is_one_line_and_exit_code_2(tmp_path):
    done = called(training_speed.__file__, "--studies", "speed", "--out", tmp_path / "out")
    assert done.returncode == 2 and done.stdout == "" and not (tmp_path / "out").exists()
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("training_speed.py: error: --studies 'speed'")
