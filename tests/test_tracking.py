"""--track mirrors every point of the run folder's curves to Weights & Biases, which is imported only then."""

import dataclasses
import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from scripts import ALL, script, small

from benchmark.report import read_events

ROOT = Path(__file__).parent.parent


class FakeRun:
    """What a script asks of a run of Weights & Biases; keeps what it is told."""

    def __init__(self, **about):
        self.about, self.points, self.finished = about, [], 0

    def define_metric(self, name, step_metric):
        self.axis = name, step_metric

    def log(self, point):
        self.points.append(point)

    def finish(self):
        self.finished += 1


@pytest.fixture
def wandb(monkeypatch):
    """A module in the place of wandb, with the runs that were begun."""
    module = types.ModuleType("wandb")
    module.runs, module.logged_in = [], True
    module.init = lambda **about: module.runs.append(FakeRun(**about)) or module.runs[-1]
    module.login = lambda prompt: module.logged_in
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return module


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The points of every TensorBoard curve of a folder."""
    events = read_events(folder)
    return {tag: [(p.step, p.value) for p in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def mirrored(run: FakeRun) -> dict[str, list[tuple[int, float]]]:
    """The same of what was mirrored."""
    found: dict = {}
    for point in run.points:
        (tag,) = point.keys() - {"global_step"}
        found.setdefault(tag, []).append((point["global_step"], pytest.approx(point[tag], rel=1e-6)))
    return found


def test_every_point_is_mirrored_and_a_resumed_run_is_the_same_one(wandb, tmp_path):
    args = small("pqn_mlp", track=True, num_seeds=2, wandb_entity="team", run_dir=str(tmp_path))
    folder = script("pqn_mlp").main(dataclasses.replace(args, total_timesteps=128))
    (run,) = wandb.runs
    expected = curves(folder)
    for seed in (0, 1):
        expected |= {f"seed_{seed}/{tag}": points for tag, points in curves(folder / f"seed_{seed}").items()}
    assert "seed_1/eval/episodic_return" in expected
    assert {tag: expected[tag] for tag in expected if expected[tag]} == mirrored(run)
    assert run.about["id"] == run.about["name"] == folder.name and run.axis == ("*", "global_step")
    where = {"project": "popgym_arcade", "entity": "team", "dir": folder, "resume": "allow"}
    assert where.items() <= run.about.items() and run.about["config"]["num_seeds"] == 2 and run.finished == 1
    saved = json.loads((folder / "args.json").read_text())["args"]
    assert saved["track"] and saved["wandb_entity"] == "team"


def test_without_the_flag_nothing_is_mirrored(wandb, tmp_path):
    script("pqn_mlp").main(small("pqn_mlp", total_timesteps=32, run_dir=str(tmp_path)))
    assert not wandb.runs
    line = f"import sys, {', '.join(ALL)}; sys.exit('wandb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line], cwd=ROOT, timeout=300).returncode == 0


@pytest.mark.parametrize("name", ALL)
def test_it_is_refused_without_the_package_or_a_login(name, wandb, monkeypatch):
    flags = ["--track"]
    script(name).parse_args(flags)
    wandb.logged_in = False
    with pytest.raises(script(name).UserError, match="nobody is logged in"):
        script(name).parse_args(flags)
    monkeypatch.setenv("WANDB_MODE", "offline")
    script(name).parse_args(flags)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(script(name).UserError, match="pip install wandb"):
        script(name).parse_args(flags)


def test_the_real_package_offline(tmp_path):
    line = "--env-id CartPole-v1 --num-envs 4 --num-steps 8 --num-minibatches 2 --hidden-size 16 --total-timesteps 64"
    line += f" --log-every 32 --eval-episodes 2 --track --run-dir {tmp_path}"
    env = os.environ | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    done = subprocess.run(
        [sys.executable, "pqn_mlp.py", *line.split()], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    (log,) = tmp_path.glob("*/wandb/offline-run-*/run-*.wandb")
    told = log.read_bytes()
    assert all(tag in told for tag in (b"eval/episodic_return", b"losses/td_loss", b"charts/compile_seconds"))
