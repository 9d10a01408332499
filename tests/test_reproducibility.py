"""One command, one result: runs repeat bit for bit, `args.json` is enough to repeat one, compiled programs are kept."""

import csv
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from scripts import ALL, script, small
from small import assert_equal

ROOT = Path(__file__).parents[1]


def played(folder):
    """The rows of eval.csv, but for the time they took."""
    rows = csv.DictReader((folder / "eval.csv").open())
    return [{name: value for name, value in row.items() if name != "wall_seconds"} for row in rows]


@pytest.fixture
def first_run(tmp_path):
    """first_run(name): a finished run of the script, its arguments in args.json alone."""
    return lambda name: script(name).main(small(name, run_dir=str(tmp_path / "runs"), seed=3, gamma=0.9))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pqn_mlp", "ppo_continuous_action", "dqn_mlp"])
def test_a_run_is_repeated_bit_for_bit_from_its_folder(name, first_run, tmp_path):
    module, folder = script(name), first_run(name)
    args = module.parse_args(["--from-run", str(folder), "--run-dir", str(tmp_path / "again")])
    again = module.main(args)
    assert again != folder and played(again) == played(folder)
    (step, state), (other_step, other) = (module.restore_checkpoint(run, args) for run in (folder, again))
    assert step == other_step
    assert_equal(state, other)


@pytest.mark.parametrize("name", ALL)
def test_the_arguments_of_a_run_are_the_new_defaults(name, tmp_path):
    module = script(name)
    args = small(name, run_dir=str(tmp_path), seed=3, gamma=0.9)
    folder = module.make_run_folder(args)
    same = module.parse_args(["--from-run", str(folder)])
    assert dataclasses.replace(same, from_run="") == args and same.from_run == str(folder)
    other = module.parse_args(["--from-run", str(folder), "--gamma", "0.5", "--seed", "4"])
    assert dataclasses.replace(other, from_run="") == dataclasses.replace(args, gamma=0.5, seed=4)
    with pytest.raises(module.UserError, match="--resume goes on with a run, --from-run begins a new one"):
        module.parse_args(["--from-run", str(folder), "--resume", str(folder)])
    with pytest.raises(module.UserError, match="is not a run folder"):
        module.parse_args(["--from-run", str(tmp_path)])


def test_where_a_run_ran_is_not_repeated(tmp_path):
    """Neither a new run nor one that goes on looks for the hosts of the old one."""
    module = script("pqn_mlp")
    where = {"distributed": True, "coordinator_address": "far:1", "num_processes": 2, "process_id": 1}
    folder = module.make_run_folder(dataclasses.replace(small("pqn_mlp", run_dir=str(tmp_path)), **where))
    for flag in ("--from-run", "--resume"):
        args = module.parse_args([flag, str(folder)])
        assert {name: getattr(args, name) for name in where} == {"distributed": False} | module.NOWHERE


@pytest.mark.slow
def test_compiled_programs_are_kept_and_determinism_can_be_asked_for(tmp_path):
    flags = "--env-id CartPole-v1 --num-envs 4 --num-steps 8 --num-minibatches 2 --hidden-size 16"
    flags += " --total-timesteps 64 --eval-episodes 2 --compile-cache cache --deterministic"
    line = [sys.executable, str(ROOT / "pqn_mlp.py"), *flags.split()]
    env = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    kept, results = [], []
    for i in range(2):
        subprocess.run([*line, "--run-dir", f"runs-{i}"], cwd=tmp_path, env=env, check=True, timeout=300)
        kept.append({path.name for path in (tmp_path / "cache").iterdir() if path.name.endswith("-cache")})
        results.append(played(next((tmp_path / f"runs-{i}").iterdir())))
    assert kept[0] and kept[0] == kept[1]  # the second compiled nothing that the first had not
    assert results[0] == results[1]


@pytest.mark.parametrize("name", ALL)
def test_deterministic_tells_the_compiler(name, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_mine=1")
    module = script(name)
    module.set_up(module.Args())
    assert os.environ["XLA_FLAGS"] == "--xla_mine=1"
    module.set_up(module.Args(deterministic=True))
    assert os.environ["XLA_FLAGS"].split()[:2] == ["--xla_mine=1", "--xla_gpu_deterministic_ops=true"]


@pytest.mark.parametrize("name", ALL)
def test_what_is_no_number_any_more_ends_a_run(name):
    module = script(name)
    args = small(name)
    fine = {"loss": np.array([0.5, 0.25]), "updates": np.array([1, 1])}
    module.check_finite(args, fine, 64)
    with pytest.raises(module.Diverged, match="loss became nan before step 64: lower --learning-rate"):
        module.check_finite(args, fine | {"loss": np.array(np.nan)}, 64)
    args = dataclasses.replace(args, num_seeds=2)
    with pytest.raises(module.Diverged, match="loss became inf in 1 of the seeds before step 64"):
        module.check_finite(args, fine | {"loss": np.array([0.5, np.inf])}, 64)
    assert module.Diverged.exit_code == 3 and module.CannotWrite.exit_code == 4


def test_keys_are_the_same_on_every_device():
    module, args = script("pqn_mlp"), small("pqn_mlp", num_seeds=2)
    keys, _ = module.make_keys(args)
    spread = module.everywhere(args, keys)
    assert spread.sharding.is_fully_replicated
    np.testing.assert_array_equal(jax.random.key_data(spread), jax.random.key_data(keys))
