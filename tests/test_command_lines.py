"""Command lines of every kind of script: how numbers and paths are read, --help, and what is printed to be copied."""

import contextlib
import dataclasses
import importlib
import inspect
import json
import os
import pty
import shlex
import shutil
import subprocess
import sys
import termios
import typing
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from runs import FLAGS, ROOT, called, command, only, parsed, resumed, rows, saved_steps
from scripts import ALL, script, small
from test_resume import interrupted

import pqn_mlp
import pqn_rnn
from popgym_arcade import play
from popgym_arcade.analysis.runs import find_runs
from popgym_arcade.baselines.devices import hosts
from popgym_arcade.baselines.errors import Diverged, UserError
from popgym_arcade.baselines.limits import OneOf, flag, limits_of, plain
from popgym_arcade.baselines.networks.memory import MEMORIES, MinGRU, check_size, size_error
from popgym_arcade.baselines.running import run as running
from popgym_arcade.baselines.running.checkpoints import save_checkpoint
from popgym_arcade.baselines.running.flags import read_flags
from popgym_arcade.baselines.running.folder import make_folder, make_run_folder
from popgym_arcade.baselines.running.pictures import draw_curve
from popgym_arcade.baselines.running.records import Records

ANALYSIS = "evaluate saliency recall_density last_frames contamination gap_and_bias filter_comparison".split()
BAD = "bad\udcff"  # a name with a byte that is not UTF-8


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run that has ended."""
    return pqn_mlp.main(small("pqn_mlp", run_dir=str(tmp_path_factory.mktemp("finished"))))


@pytest.fixture
def unfinished(tmp_path):
    """A run folder with a checkpoint of step 64."""
    args = small("pqn_mlp", run_dir=str(tmp_path / "runs"))
    folder = make_run_folder(args)
    save_checkpoint(folder, args, 64, jax.jit(pqn_mlp.make_train(args)[0])(jax.random.key(0)))
    return folder


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---------------------------------------------------------------------------------------------------------- numbers


def whole_flags(args_class):
    """The flags of one whole number, and those of several."""
    hints = typing.get_type_hints(args_class)
    return [name for name, hint in hints.items() if hint in (int, int | None, tuple[int, ...])]


@pytest.mark.parametrize("name", [*ALL, *ANALYSIS])
def test_every_whole_number_may_be_written_with_an_exponent(name):
    args_class = script(name).Args
    names = whole_flags(args_class)
    runs = ["--runs", "a"] if name in ANALYSIS else []
    args = read_flags(args_class, [*runs, *(word for each in names for word in (flag(each), "2e3"))])
    for each in names:
        value = getattr(args, each)
        assert value in (2000, (2000,)) and "." not in repr(value)
        with pytest.raises(UserError) as error:
            read_flags(args_class, [*runs, flag(each), "1.5"])
        assert str(error.value).startswith(f"{flag(each)} ") and "a whole number" in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "number"), [("1e6", 1_000_000), ("2.5e5", 250_000), ("1_000", 1000), ("2147483647", 2**31 - 1)]
)
def test_total_timesteps_in_other_spellings(text, number):
    assert read_flags(pqn_mlp.Args, ["--total-timesteps", text]).total_timesteps == number


@pytest.mark.parametrize("text", ["1.5", "inf", "1e999", "nan"])
def test_a_number_that_is_not_whole_is_refused(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = called(ROOT / "pqn_mlp.py", "--total-timesteps", text)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not done.stdout
    assert "use a whole number" in done.stderr and not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------------ from Python


@pytest.mark.parametrize("name", ALL)
def test_main_checks_the_arguments_it_is_given(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for changes, words in (({"num_envs": 0}, "--num-envs 0: use 1 or more"), ({"seed": "x"}, "--seed x: use a whole")):
        with pytest.raises(UserError, match=words):
            script(name).main(script(name).Args(**changes))
    assert not list(tmp_path.iterdir())


def test_main_takes_numpys_numbers_and_paths(tmp_path):
    sizes = {"num_envs": np.int64(4), "num_steps": np.int32(8), "num_minibatches": 2, "hidden_size": jax.numpy.int32(8)}
    flags = {"gamma": np.float32(0.5), "anneal_lr": np.bool_(False), "run_dir": tmp_path / "runs"}
    limit = {"env_params": ["max_steps_in_episode=20"], "total_timesteps": 1e2, "eval_episodes": np.uint8(2)}
    folder = pqn_mlp.main(pqn_mlp.Args(env_id=np.str_("CartPole-v1"), **sizes, **flags, **limit))
    saved = json.loads((folder / "args.json").read_text())["args"]
    assert {name: saved[name] for name in (*sizes, *flags)} == {
        **{"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "hidden_size": 8},
        **{"gamma": 0.5, "anneal_lr": False, "run_dir": str(tmp_path / "runs")},
    }
    assert saved["total_timesteps"] == 128 and saved["env_params"] == ["max_steps_in_episode=20"]
    assert parsed("--resume", folder, script=pqn_mlp).total_timesteps == 128


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_envs": 4.5}, "--num-envs 4.5: use a whole number"),
        ({"num_envs": True}, "--num-envs True: use a whole number"),
        ({"num_envs": np.array([4, 4])}, "use a whole number"),
        ({"num_envs": None}, "--num-envs None: use a whole number"),
        ({"gamma": "0.5"}, "--gamma 0.5: use a number"),
        ({"anneal_lr": 1}, "--anneal-lr 1: use True or False"),
        ({"run_dir": 3}, "--run-dir 3: use a string"),
        ({"run_dir": b"runs"}, "use a string"),
        ({"env_params": "max_steps_in_episode=3"}, "use several, each a string"),
        ({"num_processes": "2"}, "--num-processes 2: use a whole number"),
    ],
)
def test_a_value_of_another_type_is_refused(changes, words):
    with pytest.raises(UserError) as error:
        pqn_mlp.Args(**changes).checked()
    assert words in str(error.value) and "\n" not in str(error.value)


def test_plain_arguments_of_an_analysis():
    args = plain(script("saliency").Args(runs=[Path("a"), "b"], kind=["gradient"], lag=np.arange(2), mask_sigma=2))
    assert args.runs == ("a", "b") and args.kind == ("gradient",) and args.lag == (0, 1)
    assert [type(x) for x in (*args.lag, args.mask_sigma)] == [int, int, float]
    with pytest.raises(UserError, match="--twin all: use one of own, mdp, pomdp, both"):
        script("saliency").Args(twin="all").checked()


def test_main_refuses_to_resume_with_other_arguments(finished):
    with pytest.raises(UserError, match="was started with .*--num-envs 4"):
        pqn_mlp.main(pqn_mlp.Args(env_id="CartPole-v1", resume=str(finished)))


# ------------------------------------------------------------------------------------------------------------ paths


def test_a_tilde_is_the_home_folder_in_every_path(unfinished, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parsed("--run-dir=~/x", "--compile-cache", "~/c").run_dir == f"{tmp_path}/x"
    assert jax.config.jax_compilation_cache_dir == f"{tmp_path}/c"
    run = f"~/{unfinished.relative_to(tmp_path)}"
    assert parsed("--resume", run).resume == str(unfinished)
    assert parsed("--from-run", run).from_run == str(unfinished)
    args = script("evaluate").Args(runs=(run, "~/*"), out="~/out").checked()
    assert args.runs == (str(unfinished), f"{tmp_path}/*") and args.out == f"{tmp_path}/out"
    assert play.parse_args(["NavigatorEasy", "--record", "~/video.gif"]).record == tmp_path / "video.gif"


@pytest.fixture(autouse=True)
def compile_cache():
    """--compile-cache changes JAX's own."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.parametrize("name", ["--run-dir", "--compile-cache", "--wandb-project-name"])
def test_a_path_that_is_not_utf8_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = called(ROOT / "pqn_mlp.py", name, BAD)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and r"bad\udcff" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_not_at_a_utf8_path_is_refused(unfinished, tmp_path, monkeypatch):
    elsewhere = shutil.copytree(unfinished, tmp_path / BAD / "run")
    for refused in (lambda: parsed("--resume", elsewhere), lambda: find_runs((str(tmp_path / "*/run"),))):
        with pytest.raises(UserError, match="valid UTF-8"):
            refused()
    monkeypatch.chdir(tmp_path / BAD)
    with pytest.raises(UserError, match=r"^--run-dir '.*bad\\udcff/runs' is not"):
        parsed()


def test_processes_pass_on_paths_that_are_not_utf8():
    assert hosts.from_first(BAD) == BAD


@pytest.mark.parametrize("name", ["x" * 300, "é" * 120, "a\nb", "\udcff", "a/b"])
def test_an_unusable_name_of_the_experiment_is_reported_and_leaves_nothing_behind(name, tmp_path):
    with pytest.raises(UserError, match="^--exp-name ") as error:
        pqn_mlp.main(pqn_mlp.Args(env_id="CartPole-v1", exp_name=name, run_dir=tmp_path / "runs"))
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_the_longest_name_of_an_experiment_fits(tmp_path):
    with pytest.raises(UserError) as error:
        small("pqn_mlp", exp_name="x" * 300)
    excess = int(str(error.value).split()[-2])
    folder = make_run_folder(small("pqn_mlp", exp_name="x" * (300 - excess), run_dir=str(tmp_path)))
    assert len(folder.name) + len("-999") == 255


def test_a_folder_that_cannot_be_made_leaves_nothing_behind(tmp_path):
    (tmp_path / "there").mkdir()
    for path in (tmp_path / "new/one" / ("x" * 300), tmp_path / "there" / ("x" * 300)):
        with pytest.raises(OSError):
            make_folder(path)
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


# ------------------------------------------------------------------------------------------------ sizes of memories


@pytest.mark.parametrize("name", ["pqn_rnn", "ppo_rnn", "dqn_rnn", "impala_popart"])
def test_a_size_the_memory_cannot_have_is_refused_with_sizes_it_can(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for memory, size, use in (("Attention-RoPE", 15, "use 14 or 16"), ("FFM", 3, "use 4"), ("Spherical", 1, "use 2")):
        with pytest.raises(UserError) as error:
            parsed("--memory", memory, "--hidden-size", size, script=script(name))
        message = str(error.value)
        assert message.startswith(f"--memory {memory} cannot have --hidden-size {size} (") and message.endswith(use)
    assert "\n" not in message and not list(tmp_path.iterdir())


def test_every_other_memory_can_have_an_odd_size():
    assert [name for name, cell in MEMORIES.items() if size_error(cell, 15)] == ["Attention-RoPE"]


def test_a_memory_that_works_at_no_size_raises_its_own_error():
    class Broken(MinGRU):
        def forward_map(self, x, key=None):
            raise KeyError("mistake of its author")

    with pytest.raises(KeyError, match="mistake of its author"):
        check_size("Broken", lambda hidden_size, window, key: Broken(hidden_size, key), 16)


# --------------------------------------------------------------------------------------------------------- resuming


def test_a_finished_run_says_so_and_compiles_nothing(finished, monkeypatch):
    before = contents(finished)
    monkeypatch.setattr(running, "run_in_worker", lambda *_: pytest.fail("something is compiled"))
    done = called(ROOT / "pqn_mlp.py", "--resume", finished)
    assert done.returncode == 0 and not done.stderr
    assert done.stdout == f"{finished}: the run ended at step 256, there is nothing left to do\n"
    assert contents(finished) == before


def test_a_run_that_reached_its_target_is_finished(tmp_path, capsys):
    cadences = {"log_every": 32, "eval_every": 32, "target_return": -1.0}
    folder = pqn_mlp.main(small("pqn_mlp", run_dir=str(tmp_path), **cadences))
    assert resumed(folder) == folder
    assert "the run ended at step 64" in capsys.readouterr().out


def test_what_a_finished_run_lacks_is_made(finished, tmp_path, capsys):
    run = shutil.copytree(finished, tmp_path / "run")
    (run / "curve.png").unlink()
    resumed(run)
    assert (run / "curve.png").is_file() and "nothing left" not in capsys.readouterr().out
    (run / "checkpoints/256/sha256.json").unlink()
    resumed(run)
    assert saved_steps(run)[-1] == 256 and rows(run) == rows(finished)


@pytest.mark.parametrize("is_noted", [True, False])
def test_another_random_generator_is_named(unfinished, is_noted):
    path, before = unfinished / "args.json", contents(unfinished)
    if not is_noted:  # by versions that did not
        about = json.loads(path.read_text())
        assert about.pop("random_generator") == "threefry2x32"
        path.write_text(json.dumps(about))
    with jax.default_prng_impl("rbg"), pytest.raises(UserError) as error:
        resumed(unfinished)
    message = str(error.value)
    assert "threefry2x32" in message and "JAX_DEFAULT_PRNG_IMPL" in message and "\n" not in message
    assert contents(unfinished).keys() == before.keys()


# ----------------------------------------------------------------------------------------------------- what is printed


def test_commands_to_copy_are_quoted(tmp_path, monkeypatch, capsys):
    noted, run_dir = [], tmp_path / "my runs; $HOME"
    with monkeypatch.context() as patch:
        patch.setattr(hosts, "note", noted.append)
        patch.setattr(running, "compile_evaluate", interrupted(running.compile_evaluate))
        with pytest.raises(SystemExit):
            pqn_mlp.main(small("pqn_mlp", run_dir=str(run_dir)))
    folder = only(run_dir)
    assert shlex.split(noted[0])[-2:] == ["--resume", str(folder)]
    line = shlex.split(capsys.readouterr().out.partition("to resume: ")[2])
    assert line[2:] == ["--resume", str(folder)] and Path(line[1]).name == "pqn_mlp.py"
    resumed(folder)
    line = shlex.split(capsys.readouterr().out.partition("TensorBoard    ")[2])
    assert line[1:] == ["-m", "tensorboard.main", "--logdir", str(folder)]


def test_a_run_without_the_random_policy_draws_and_tells_only_the_greedy_one(tmp_path):
    args = small("pqn_mlp", run_dir=str(tmp_path))
    records = Records(make_run_folder(args), args)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        records.evaluation(64, "greedy", np.ones((1, 1, 3)), np.ones((1, 1, 3)), 1.0)
        draw_curve(records)
        assert records.summary() == "1.000, 3 episodes"
    records.close()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_return_that_is_not_finite_ends_the_run_with_exit_code_3(bad, tmp_path):
    args = small("pqn_mlp", run_dir=str(tmp_path))
    records = Records(make_run_folder(args), args)
    with pytest.raises(Diverged, match="a return of the greedy policy is not finite") as error:
        records.evaluation(64, "greedy", np.array([[[1, bad, 1]]]), np.ones((1, 1, 3)), 1.0)
    assert error.value.exit_code == 3 and records.evaluations == []
    records.close()


@pytest.mark.parametrize("name", ALL)
def test_help_keeps_the_lines_of_its_header_and_lists_choices(name, capsys):
    with pytest.raises(SystemExit) as ended:
        parsed("--help", script=script(name))
    out = capsys.readouterr().out
    header = "\n\n".join(script(name).__doc__.split("\n\n")[:2])
    assert ended.value.code == 0 and out.startswith(f"{header}\n") and "\nRun:" in header
    told = "".join(word.strip("│ ") for word in out.splitlines())
    for hint in typing.get_type_hints(script(name).Args, include_extras=True).values():
        for limit in limits_of(hint):
            assert not isinstance(limit, OneOf) or "{" + ",".join(limit.words) + "}" in told.replace(", ", ",")
    assert "{float32,bfloat16}" in told


@pytest.mark.parametrize("name", [*ANALYSIS, "benchmark/report", "benchmark/scaling"])
def test_help_of_the_other_scripts_keeps_the_lines_of_its_header(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmark")
    done = called(ROOT / f"{name}.py", "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(inspect.getdoc(importlib.import_module(Path(name).name)) + "\n")


@pytest.mark.parametrize("name", ["replay", "multitask_speed", "training_speed"])
def test_benchmarks_without_popgym_arcade_read_their_flags_alike(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmark")
    monkeypatch.setenv("HOME", "/home/me")
    module, command_line = importlib.import_module(name), importlib.import_module("command_line")
    counts = whole_flags(module.Args)
    line = [f"{name}.py", "--out", "~/x", *(word for each in counts for word in (flag(each), "2e3"))]
    monkeypatch.setattr(sys, "argv", line)
    args = command_line.read_args(module.Args, "")
    assert args.out == "/home/me/x" and counts and {getattr(args, each) for each in counts} <= {2000, (2000,)}
    done = called(ROOT / f"benchmark/{name}.py", flag(counts[0]), "1.5")
    assert done.returncode == 2 and done.stderr == f"{name}.py: error: 1.5: use a whole number\n"


@pytest.mark.parametrize("name", ["pqn_rnn", "evaluate", "tune", "benchmark/replay"])
def test_help_that_nobody_reads_ends_without_a_stack_trace(name):
    process = command("--help", script=ROOT / f"{name}.py")
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait(120) != 0


def test_a_terminal_that_only_knows_ascii_shows_a_training_and_its_progress(tmp_path):
    run_dir, (ours, theirs) = tmp_path / "é", pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    line = [sys.executable, ROOT / "pqn_mlp.py", *FLAGS.split(), "--run-dir", run_dir]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    out, _ = process.communicate(timeout=300)
    shown = ""
    with contextlib.suppress(OSError):  # the end of a terminal
        while piece := os.read(ours, 4096):
            shown += piece.decode("ascii")
    os.close(ours)
    assert process.returncode == 0 and "Traceback" not in shown and "of 256 steps" in shown
    assert "\\xe9" in out.decode("ascii") and saved_steps(only(run_dir))[-1] == 256


def test_arguments_are_the_same_from_python_and_the_command_line():
    assert pqn_rnn.Args(total_timesteps=1e6).checked() == parsed("--total-timesteps", "1e6", script=pqn_rnn)
    assert dataclasses.astuple(plain(pqn_rnn.Args())) == dataclasses.astuple(pqn_rnn.Args())
