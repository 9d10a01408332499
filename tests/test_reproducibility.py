"""One command, one result: runs repeat bit for bit, and compiled programs are kept."""

import os
import subprocess
import sys
from contextlib import nullcontext

import pytest
from runs import ROOT, assert_end_alike, only, parsed, rows
from scripts import script, small, usually

from popgym_arcade.baselines.running import programs
from popgym_arcade.baselines.running.evaluation import make_evaluate, make_keys
from popgym_arcade.baselines.running.metrics import repeat


@pytest.mark.slow
@pytest.mark.parametrize("name", usually("pqn_mlp", of=("pqn_mlp", "ppo_continuous_action", "dqn_mlp")))
def test_a_run_is_repeated_bit_for_bit_from_its_folder(name, tmp_path):
    module = script(name)
    folder = module.main(small(name, run_dir=str(tmp_path / "runs"), seed=3, gamma=0.9))
    again = module.main(parsed("--from-run", folder, "--run-dir", tmp_path / "again", script=module))
    assert again != folder
    assert_end_alike(folder, again)


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
        results.append(rows(only(tmp_path / f"runs-{i}")))
    assert kept[0] and kept[0] == kept[1]  # the second compiled nothing that the first had not
    assert results[0] == results[1]


@pytest.mark.parametrize("deterministic", [True, False])
def test_deterministic_tells_the_compiler(monkeypatch, deterministic):
    """Every program of a run: the compiler complains about an option that it does not know."""
    monkeypatch.setattr(programs, "DETERMINISTIC", {"xla_no_such_option": True})
    args = small("pqn_mlp", env_id="CartPole-v1", deterministic=deterministic)
    (init, update), (_, begin, act) = (getattr(script("pqn_mlp"), f"make_{name}")(args) for name in ("train", "actor"))
    train_keys, eval_keys = make_keys(args)
    state = programs.abstract_state(args, init, train_keys)
    evaluate = make_evaluate(args, begin, act)
    for compile_it in (
        lambda: programs.jit_init(args, init, state)(train_keys),
        lambda: programs.compile_train_chunk(args, repeat(update), state),
        lambda: programs.compile_evaluate(args, evaluate, state.params, eval_keys, 0.0),
    ):
        with pytest.raises(Exception, match="xla_no_such_option") if deterministic else nullcontext():
            compile_it()
