"""--track mirrors every point of the run folder's curves to Weights & Biases, which is imported only then."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from runs import parsed, resumed
from scripts import ALL, script, small, usually

from popgym_arcade.analysis.runs import read_events
from popgym_arcade.baselines.errors import Diverged, UserError
from popgym_arcade.baselines.running import folder as run_folder
from popgym_arcade.baselines.running import run as running
from popgym_arcade.baselines.running.records import Records

ROOT = Path(__file__).parent.parent
FLAGS = "--env-id CartPole-v1 --num-envs 4 --num-steps 8 --num-minibatches 2 --hidden-size 16 --total-timesteps 64"
FLAGS += " --log-every 32 --eval-episodes 2"


class FakeRun:
    """What a script asks of a run of Weights & Biases; keeps what it is told."""

    def __init__(self, **about):
        self.about, self.points, self.exit_codes, self.saved = about, [], [], []

    def define_metric(self, name, step_metric):
        self.axis = name, step_metric

    def log(self, point):
        self.points.append(point)

    def finish(self, exit_code):
        self.exit_codes.append(exit_code)
        self.saved = saved_steps(self.about["dir"])


@pytest.fixture
def wandb(monkeypatch):
    """A module in the place of wandb, with the runs that were begun."""
    module = types.ModuleType("wandb")
    module.runs, module.logged_in = [], True
    module.init = lambda **about: module.runs.append(FakeRun(**about)) or module.runs[-1]
    module.login = lambda verify: module.logged_in
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return module


def refuse(*_, **__):
    raise ConnectionError("no such\nserver")


def saved_steps(folder: Path) -> list[int]:
    return sorted(int(path.parent.name) for path in folder.glob("checkpoints/*/sha256.json"))


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The points of every TensorBoard curve of a folder."""
    events = read_events(folder)
    return {tag: [(p.step, p.value) for p in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def mirrored(*runs: FakeRun) -> dict[str, list[tuple[int, float]]]:
    """The same of what was mirrored, in this order."""
    found: dict = {}
    for point in [point for run in runs for point in run.points]:
        (tag,) = point.keys() - {"global_step"}
        found.setdefault(tag, []).append((point["global_step"], pytest.approx(point[tag], rel=1e-6)))
    return found


def steps_of(points_of: dict) -> dict[str, list[int]]:
    return {tag: [step for step, _ in points] for tag, points in points_of.items() if points}


TWO_TASKS = {"env_ids": ("CartPole-v1",) * 2, "reward_scales": (1.0, 10.0)}


@pytest.mark.parametrize(("name", "more"), usually(("pqn_mlp", {}), of=[("pqn_mlp", {}), ("impala_popart", TWO_TASKS)]))
def test_every_point_is_mirrored(name, more, wandb, tmp_path):
    args = small(name, track=True, num_seeds=2, wandb_entity="team", run_dir=str(tmp_path), **more)
    folder = script(name).main(dataclasses.replace(args, total_timesteps=128))
    (run,) = wandb.runs
    expected = curves(folder)
    for seed in (0, 1):
        expected |= {f"seed_{seed}/{tag}": points for tag, points in curves(folder / f"seed_{seed}").items()}
    assert "seed_1/eval/episodic_return" in expected
    assert not more or "seed_1/CartPole-v1_x10/eval_return" in expected
    assert {tag: expected[tag] for tag in expected if expected[tag]} == mirrored(run)
    assert run.about["name"] == folder.name and run.axis == ("*", "global_step")
    where = {"project": "popgym_arcade", "entity": "team", "dir": folder, "resume": "allow"}
    assert where.items() <= run.about.items() and run.about["config"]["num_seeds"] == 2 and run.exit_codes == [0]
    saved = json.loads((folder / "args.json").read_text())["args"]
    assert saved["track"] and saved["wandb_entity"] == "team"


def test_a_resumed_run_is_the_same_one_and_has_no_point_twice(wandb, tmp_path, monkeypatch, capsys):
    save = running.save_checkpoint

    def save_the_first(folder, args, step, state):
        if step > 64:
            raise Diverged("here it ends")
        save(folder, args, step, state)

    with monkeypatch.context() as patch:
        patch.setattr(running, "save_checkpoint", save_the_first)
        with pytest.raises(Diverged):
            script("pqn_mlp").main(small("pqn_mlp", track=True, run_dir=str(tmp_path)))
    (folder,) = tmp_path.iterdir()
    (first,) = wandb.runs
    assert max(steps_of(mirrored(first))["losses/td_loss"]) == 128 and first.exit_codes == [1]
    with monkeypatch.context() as patch:
        patch.setattr(wandb, "init", refuse)
        with pytest.raises(UserError, match="^--track: ConnectionError: no such server$"):
            resumed(folder)
    assert saved_steps(folder) == [64]
    assert resumed(folder) == folder
    _, second = wandb.runs
    assert second.about["id"] == first.about["id"] and second.exit_codes == [0]
    expected = steps_of(curves(folder))
    assert steps_of(mirrored(first, second)) == expected and expected["losses/td_loss"] == [64, 128, 192, 256]
    assert expected["eval/episodic_return"] == [128, 256] and expected["charts/compile_seconds"] == [0, 64]
    assert "Weights & Biases" not in capsys.readouterr().err


@pytest.mark.parametrize("name", usually("pqn_mlp", of=("pqn_mlp", "ppo_continuous_action")))
def test_the_mirror_ends_after_the_last_checkpoint_and_an_error_there_ends_no_training(
    name, wandb, tmp_path, monkeypatch, capsys
):
    finish = FakeRun.finish
    monkeypatch.setattr(FakeRun, "finish", lambda run, exit_code: refuse(finish(run, exit_code)))
    args = small(name, track=True, total_timesteps=64, checkpoint_every=0, run_dir=str(tmp_path))
    folder = script(name).main(args)
    assert wandb.runs[0].saved == [64] and (folder / "curve.png").exists()
    told = "--track: continuing without Weights & Biases: ConnectionError: no such server\n"
    assert capsys.readouterr().err.count(told) == 1


def test_a_mirror_that_breaks_on_the_way_ends_no_training(wandb, tmp_path, monkeypatch, capsys):
    log = FakeRun.log
    monkeypatch.setattr(FakeRun, "log", lambda run, point: refuse() if len(run.points) == 3 else log(run, point))
    folder = script("pqn_mlp").main(small("pqn_mlp", track=True, total_timesteps=64, run_dir=str(tmp_path)))
    (run,) = wandb.runs
    assert len(run.points) == 3 and not run.exit_codes
    assert saved_steps(folder) == [64] and "eval/episodic_return" in curves(folder)
    told = "--track: continuing without Weights & Biases: ConnectionError: no such server\n"
    assert capsys.readouterr().err.count(told) == 1


def test_runs_that_begin_in_one_second_are_several(wandb, tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder.time, "strftime", lambda _: "20260101-000000")
    for run_dir in (tmp_path / "one", tmp_path / "other"):
        args = small("pqn_mlp", track=True, exp_name="lr:3e-4,#?;'", run_dir=str(run_dir))
        Records(run_folder.make_run_folder(args), args).close()
    one, other = (run.about for run in wandb.runs)
    assert one["name"] == other["name"] and one["id"] != other["id"]
    assert re.fullmatch("[0-9a-z]+", one["id"] + other["id"])


def test_a_run_that_cannot_begin_leaves_nothing(wandb, tmp_path, monkeypatch):
    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(UserError, match="^--track: ConnectionError: no such server$") as error:
        script("pqn_mlp").main(small("pqn_mlp", track=True, run_dir=str(tmp_path)))
    assert error.value.exit_code == 2 and not list(tmp_path.iterdir())


def test_without_the_flag_it_is_not_imported(tmp_path, monkeypatch):
    asked = []

    class Watcher:
        """Is asked for every module that is not imported yet, even where its absence is caught."""

        @staticmethod
        def find_spec(name, *_):
            asked.append(name)

    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Watcher, *sys.meta_path])
    script("pqn_mlp").main(parsed(*FLAGS.split(), "--run-dir", tmp_path))
    assert "wandb" not in asked and "wandb" not in sys.modules
    line = f"import sys, {', '.join(ALL)}; sys.exit('wandb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line], cwd=ROOT, timeout=300).returncode == 0


def test_it_is_refused_without_the_package_or_a_login(wandb, monkeypatch):
    parsed("--track")
    wandb.logged_in = False
    with pytest.raises(UserError, match="nobody is logged in"):
        parsed("--track")
    monkeypatch.setattr(wandb, "login", refuse)
    with pytest.raises(UserError, match="^--track: ConnectionError: no such server; WANDB_MODE=offline"):
        parsed("--track")
    monkeypatch.setenv("WANDB_MODE", "offline")
    parsed("--track")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="pip install wandb"):
        parsed("--track")


# ---------------------------------------------------------------------------------------------------- the real package


def run_tracked(folder: Path, *flags: str, **env: str) -> subprocess.CompletedProcess:
    """A short run with --track, of somebody whom Weights & Biases does not know."""
    strange = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    env = strange | {"WANDB_SILENT": "true", "HOME": str(folder)} | env
    line = [sys.executable, "pqn_mlp.py", *FLAGS.split(), "--track", "--run-dir", str(folder / "runs"), *flags]
    return subprocess.run(
        line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL
    )


def test_the_real_package_offline(tmp_path):
    done = run_tracked(tmp_path, "--exp-name", "lr:3e-4", WANDB_MODE="offline")
    assert done.returncode == 0, done.stderr
    (log,) = tmp_path.glob("runs/*/wandb/offline-run-*/run-*.wandb")
    told = log.read_bytes()
    assert all(tag in told for tag in (b"eval/episodic_return", b"losses/td_loss", b"charts/compile_seconds"))


@pytest.mark.parametrize(
    "env, flags",
    [
        ({}, ()),
        pytest.param({"WANDB_API_KEY": "short"}, (), marks=pytest.mark.thorough),
        pytest.param(
            {"WANDB_API_KEY": 40 * "0", "WANDB_BASE_URL": "http://127.0.0.1:9"}, (), marks=pytest.mark.thorough
        ),
        pytest.param({"WANDB_MODE": "offline"}, ("--wandb-project-name", "a/b"), marks=pytest.mark.thorough),
    ],
    ids=["nobody", "wrong key", "no server", "wrong project"],
)
def test_the_real_package_that_refuses(env, flags, tmp_path):
    refused = run_tracked(tmp_path, *flags, **env)
    assert refused.returncode == 2 and re.fullmatch(r"pqn_mlp\.py: error: --track: .*\n", refused.stderr)
    assert not list(tmp_path.glob("runs/*"))
