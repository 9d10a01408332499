"""Stopping and resuming: signals, kill -9, damaged checkpoints. A resumed run ends like one that was never interrupted.

pqn_mlp.py stands for all scripts; test_contract.py stops and resumes each of them once.
"""

import dataclasses
import json
import os
import re
import shutil
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import (
    FLAGS,
    assert_end_alike,
    assert_equal,
    command,
    loaded_params,
    only,
    parsed,
    restored,
    resumed,
    rows,
    saved_steps,
    scalars,
)
from scripts import script, small, usually

import pqn_mlp
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.running import run as running
from popgym_arcade.baselines.running.checkpoints import find_checkpoint, save_checkpoint
from popgym_arcade.baselines.running.folder import make_run_folder


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The folder of a run that nothing happens to."""
    return pqn_mlp.main(small("pqn_mlp", run_dir=str(tmp_path_factory.mktemp("unbroken"))))


# ---------------------------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize("number", usually(signal.SIGTERM, of=(signal.SIGINT, signal.SIGTERM)))
def test_a_signal_saves_a_checkpoint_and_says_where(tmp_path, number):
    endless = "--total-timesteps 10000000 --checkpoint-every 0 --eval-every 0 --run-dir"
    process = command(*FLAGS.split(), *endless.split(), tmp_path)
    for line in process.stdout:
        if "SPS" in line:
            break
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, err
    folder = only(tmp_path)
    (step,) = saved_steps(folder)
    assert step > 0 and f"stopped at step {step}" in out and "Traceback" not in err
    assert re.search(rf"to resume: \S+python\S* \S*pqn_mlp.py --resume {folder}", out)


def test_a_second_signal_ends_the_process_also_while_it_compiles(tmp_path):
    process = command(*FLAGS.split(), "--run-dir", tmp_path)
    assert "compiling" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert "a second signal stops at once" in process.stderr.readline() + process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and not out and "Traceback" not in err
    folder = only(tmp_path)
    assert (folder / "args.json").exists() and not (folder / "checkpoints").exists()


def interrupted(function):
    """`function`, at whose start Ctrl-C is pressed."""

    def inner(*args):
        os.kill(os.getpid(), signal.SIGINT)
        return function(*args)

    return inner


WHEN = ("compiling", "between two points", "evaluating")


@pytest.mark.usefixtures("checks_keys")
@pytest.mark.parametrize("when", usually("between two points", of=WHEN))
def test_stopped_by_ctrl_c_and_resumed_equals_unbroken(tmp_path, monkeypatch, when):
    """With an early stop, which must come at the same step: a stop does not shift what is due later."""
    cadences = {"log_every": 128, "eval_every": 128, "checkpoint_every": 0, "target_return": -1.0}
    args = small("pqn_mlp", run_dir=str(tmp_path / "whole"), **cadences)
    whole = pqn_mlp.main(args)
    with monkeypatch.context() as patch:
        if when == "compiling":
            patch.setattr(running, "compile_evaluate", interrupted(running.compile_evaluate))
        elif when == "evaluating":
            patch.setattr(running.Records, "evaluation", interrupted(running.Records.evaluation))
        else:
            patch.setattr(running, "CHUNK_SECONDS", 0)  # an update at a time
            patch.setattr(running.Run, "train", interrupted(running.Run.train))
        with pytest.raises(SystemExit) as stopped:
            pqn_mlp.main(dataclasses.replace(args, run_dir=str(tmp_path / "broken")))
    assert stopped.value.code == 130
    broken = only(tmp_path / "broken")
    assert saved_steps(broken) == [32 if when == "between two points" else 0]
    resumed(broken)
    assert_end_alike(whole, broken)


@pytest.mark.slow
def test_killed_and_resumed_equals_unbroken(unbroken, tmp_path):
    """kill -9 at a random moment, twice; parameters, optimiser, environments and curves end as if nothing happened."""
    chance = np.random.default_rng(time.time_ns())
    process = command(*FLAGS.split(), "--run-dir", tmp_path)
    folder = None
    for _ in range(2):
        deadline = time.time() + 300
        while time.time() < deadline and process.poll() is None:
            folder = next(tmp_path.iterdir(), None)
            if folder and next(folder.glob("checkpoints/*/sha256.json"), None):
                break
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 1.0))
        process.kill()
        process.communicate()
        process = command("--resume", folder)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert_end_alike(unbroken, folder)
    for tag in ("losses/td_loss", "eval/episodic_return", "charts/epsilon"):
        points = [[(point.step, point.value) for point in scalars(run)[tag]] for run in (unbroken, folder)]
        assert points[0] == points[1]


def test_the_random_policy_is_played_once(unbroken, tmp_path):
    """Also if the run is resumed at step 0."""
    run = shutil.copytree(unbroken, tmp_path / "run")
    state = pqn_mlp.make_train(small("pqn_mlp"))[0](jax.random.split(jax.random.key(0))[0])
    shutil.rmtree(run / "checkpoints")
    save_checkpoint(run, small("pqn_mlp"), 0, state)
    resumed(run)
    assert rows(run) == rows(unbroken)


# ------------------------------------------------------------------------------------------------------ checkpoints


@pytest.fixture
def two_checkpoints(tmp_path):
    """A run folder with checkpoints of steps 32 and 64, and the state of the former."""
    args = small("pqn_mlp", run_dir=str(tmp_path))
    state = jax.jit(pqn_mlp.make_train(args)[0])(jax.random.key(0))
    folder = make_run_folder(args)
    for step in (32, 64):
        save_checkpoint(folder, args, step, state.replace(update=jnp.int32(step // 32)))
    return folder


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    else:
        content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("how", ["truncated", "altered", "incomplete"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(two_checkpoints, capsys, how):
    folder, last = two_checkpoints, two_checkpoints / "checkpoints" / "64"
    if how == "incomplete":
        (last / "sha256.json").unlink()
    else:
        damage(max((path for path in last.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size), how)
    step, state = restored(folder)
    assert step == 32 and int(state.update) == 1
    assert "64 is incomplete or damaged" in capsys.readouterr().err
    resumed(folder)  # neither loses the damaged one nor trips over it
    names = sorted(path.name.split("-")[0] for path in (folder / "checkpoints").iterdir())
    assert names == ["128", "192", "256", "damaged"]


def test_without_a_sound_checkpoint_nothing_is_resumed(two_checkpoints):
    for metadata in two_checkpoints.rglob("default/_METADATA"):
        damage(metadata, "altered")
    with pytest.raises(UserError, match="no intact checkpoint"):
        resumed(two_checkpoints)
    with pytest.raises(UserError, match="no intact checkpoint of step 3"):
        find_checkpoint(two_checkpoints, 3)


def test_a_folder_without_a_checkpoint_is_left_as_it_was(tmp_path):
    folder = make_run_folder(small("pqn_mlp", run_dir=str(tmp_path)))
    process = command("--resume", folder)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2 and "no intact checkpoint" in err and err.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == ["args.json", "pqn_mlp.py"]


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["MLP", "LRU", "Attention"])  # empty, complex and integer carries
def test_every_leaf_survives_a_checkpoint(memory, tmp_path):
    args, rng = small("pqn_rnn", run_dir=str(tmp_path), memory=memory), np.random.default_rng(0)
    shapes = jax.eval_shape(script("pqn_rnn").make_train(args)[0], jax.random.key(0))
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    some = lambda x: jnp.asarray(rng.normal(size=x.shape, scale=10).astype(x.dtype))
    state = jax.tree.map(lambda x: jax.random.key(3) if is_key(x) else some(x), shapes)
    folder = make_run_folder(args)
    save_checkpoint(folder, args, 64, state)
    _, again = restored(folder)
    assert jax.tree.structure(state) == jax.tree.structure(again)
    assert [leaf.dtype for leaf in jax.tree.leaves(state)] == [leaf.dtype for leaf in jax.tree.leaves(again)]
    assert_equal(state, again)


def test_unfinished_checkpoints_are_cleared_away_by_the_next_save(two_checkpoints):
    unfinished = two_checkpoints / "checkpoints" / "96.orbax-checkpoint-tmp"
    shutil.copytree(two_checkpoints / "checkpoints" / "32", unfinished)
    step, state = restored(two_checkpoints)
    assert step == 64 and unfinished.exists()
    save_checkpoint(two_checkpoints, small("pqn_mlp"), 128, state)
    assert not unfinished.exists()


# ------------------------------------------------------------------------------------------------------------ misfits


def test_resuming_with_other_arguments_says_which(unbroken):
    started = rf"--learning-rate {pqn_mlp.Args.learning_rate}.*--gamma {pqn_mlp.Args.gamma}"
    with pytest.raises(UserError, match=started):
        parsed("--resume", unbroken, "--learning-rate", "0.1", "--gamma", "0.5")
    again = parsed("--resume", unbroken, "--log-every", "32", "--eval-every", "0")
    assert again.hidden_size == 16 and again.log_every == 32


def test_neither_a_new_run_nor_a_resumed_one_looks_for_the_hosts_of_the_old_one(tmp_path):
    where = {"distributed": True, "coordinator_address": "far:1", "num_processes": 2, "process_id": 1}
    folder = make_run_folder(dataclasses.replace(small("pqn_mlp", run_dir=str(tmp_path)), **where))
    nowhere = {"distributed": False, "coordinator_address": "", "num_processes": None, "process_id": None}
    for flag in ("--from-run", "--resume"):
        args = parsed(flag, folder)
        assert {name: getattr(args, name) for name in where} == nowhere


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"script": "pqn_mlp", "args": {"wings": 2}}', '{"script": 1, "args": 2}']
)
def test_an_args_json_of_another_shape(tmp_path, text):
    (tmp_path / "args.json").write_text(text)
    with pytest.raises(UserError, match="no readable args.json|--wings, which pqn_mlp.py does not have"):
        parsed("--resume", tmp_path)


def test_a_checkpoint_of_another_network_is_refused_by_name(unbroken, tmp_path):
    run = shutil.copytree(unbroken, tmp_path / "run")
    about = json.loads((run / "args.json").read_text())
    about["args"]["hidden_size"] = 8
    (run / "args.json").write_text(json.dumps(about))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="does not fit its script") as error:
        resumed(run)
    assert re.search(r"Dense\S* is float32\[.*\] in the checkpoint, float32\[.*\] in the script", str(error.value))
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_what_is_missing_or_left_over_in_a_checkpoint_is_named(unbroken, tmp_path):
    args = small("pqn_mlp", run_dir=str(tmp_path))
    folder, (_, state) = make_run_folder(args), restored(unbroken)
    save_checkpoint(folder, args, 1, state.replace(opt_state=None))
    with pytest.raises(UserError, match=r"does not fit its script: opt_state\S* is missing in the checkpoint"):
        restored(folder)
    save_checkpoint(folder, args, 2, state.replace(params=state.params | {"wing": jnp.zeros(1)}))
    with pytest.raises(UserError, match=r"params\.wing of the checkpoint is not in the script"):
        restored(folder)
    assert_equal(loaded_params(unbroken), state.params)
