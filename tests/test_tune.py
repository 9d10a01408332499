"""tune.py: what it searches, how it scores, prunes, is interrupted and goes on; a small program plays the trainings."""

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest

import tune

ROOT = Path(__file__).parent.parent
# In the place of a training script: five evaluations of two seeds, that rise to 1 - (log10(rate) + 3)**2, or worse.
PLAYER = """
import csv, json, math, os, sys, time
from pathlib import Path
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
rate, folder = float(flags["--learning-rate"]), Path(flags["--run-dir"]) / "run__0"
folder.mkdir()
columns = "global_step", "seed", "policy", "return_mean"
rows = [(0, seed, "random", 0.2) for seed in (0, 1)]
for step in range(1, 6):
    value = 1 - (math.log10(rate) + 3) ** 2 + 0.1 * (step - 5)
    rows += [(step, seed, "greedy", value + 0.1 * (-1) ** seed) for seed in (0, 1)]
    with (folder / "draft").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    (folder / "draft").rename(folder / "eval.csv")
    time.sleep(float(os.environ.get("PACE", 0)))
if rate > 0.05:
    sys.exit(3)
if rate > 0.02:
    sys.exit("something broke")
"""


@pytest.fixture
def played(tmp_path, monkeypatch):
    """Trainings are those of PLAYER; its path is returned."""
    player = tmp_path / "player.py"
    player.write_text(PLAYER)
    line = lambda args, env_id, values, run_dir: [  # noqa: E731
        *(sys.executable, str(player), "--env-id", env_id, "--run-dir", str(run_dir)),
        *tune.as_flags(values),
    ]
    monkeypatch.setattr(tune, "command", line)
    monkeypatch.setattr(tune, "refusal", lambda args, flags: "")
    return player


def study_args(folder, **changes):
    values = {"study": str(folder), "search": ("learning_rate=1e-5..1e-2:log",), "env_ids": ("CartPole-v1",)}
    return tune.Args(**(values | {"trials": 8, "pruner": "none", "startup_trials": 3} | changes)).checked()


def trials_of(folder):
    with (Path(folder) / "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_search_finds_what_is_best(played, tmp_path):
    best = tune.main(study_args(tmp_path / "study", trials=25))
    assert 3e-4 < best["learning_rate"] < 3e-3  # the best is 1e-3, and the range three decades
    rows = trials_of(tmp_path / "study")
    assert len(rows) == 25 and {row["state"] for row in rows} == {"complete"}
    top = max(rows, key=lambda row: float(row["score"]))
    assert float(top["learning_rate"]) == best["learning_rate"] and top["evaluations"] == "5"


def test_scores_are_normalised_and_averaged_over_ids(played, tmp_path):
    args = study_args(
        tmp_path / "study",
        search=("learning_rate=1e-3,1e-4",),
        sampler="random",
        env_ids=("CartPole-v1", "Catch-bsuite"),
        best_returns=("CartPole-v1=2.2", "Catch-bsuite=1.2"),
        trials=6,
    )
    tune.main(args)
    rows = trials_of(tmp_path / "study")
    assert {row["learning_rate"] for row in rows} == {"0.001", "0.0001"}
    for row in rows:
        value = {"0.001": 1.0, "0.0001": 0.0}[row["learning_rate"]]
        expected = ((value - 0.2) / (2.2 - 0.2) + (value - 0.2) / (1.2 - 0.2)) / 2
        assert float(row["score"]) == pytest.approx(expected) and row["evaluations"] == "10"


def test_bad_trials_are_pruned_and_their_trainings_stopped(played, tmp_path, monkeypatch):
    monkeypatch.setenv("PACE", "1")
    args = study_args(tmp_path / "study", search=("learning_rate=1e-3,1e-5",), pruner="median", startup_trials=1)
    study = tmp_path / "study"
    study.mkdir()
    opened = tune.open_study(args, study)
    for rate in (1e-3, 1e-5):
        opened.enqueue_trial({"learning_rate": rate})
    (study / "args.json").write_text("{}")
    tune.main(dataclasses.replace(args, trials=2))
    good, bad = trials_of(study)
    assert (good["state"], bad["state"]) == ("complete", "pruned")
    assert bad["evaluations"] == "1" and bad["score"] == ""
    written = list(csv.DictReader((study / "runs/trial_1/CartPole-v1/run__0/eval.csv").open()))
    assert max(int(row["global_step"]) for row in written) < 5


@pytest.mark.parametrize(("best", "score"), [((), 0.2), (("CartPole-v1=2.2",), 0.0)])
def test_what_diverges_scores_as_the_random_policy_and_what_breaks_has_no_score(best, score, played, tmp_path):
    search = ("learning_rate=0.1,0.03,0.001",)
    tune.main(study_args(tmp_path / "study", search=search, sampler="random", trials=12, best_returns=best))
    rows = {row["learning_rate"]: row for row in trials_of(tmp_path / "study")}
    assert rows["0.1"]["state"] == "complete" and float(rows["0.1"]["score"]) == score
    assert rows["0.03"]["state"] == "fail" and rows["0.03"]["why"] == "exit 1: something broke"
    assert rows["0.001"]["state"] == "complete"


def test_an_interrupted_search_goes_on(played, tmp_path):
    study = tmp_path / "study"
    program = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}]
import tune
tune.refusal = lambda args, flags: ""
tune.command = lambda args, env_id, values, run_dir: [
    sys.executable, {str(played)!r}, "--env-id", env_id, "--run-dir", str(run_dir), *tune.as_flags(values)
]
tune.main(tune.read_settings(sys.argv[1:]))
"""
    line = f"--study {study} --trials 4 --search learning_rate=1e-4..2e-3:log --env-ids CartPole-v1 --pruner none"
    command = [sys.executable, "-c", program, *line.split()]
    first = subprocess.Popen(command, env=os.environ | {"PACE": "1"}, stdout=subprocess.PIPE, text=True)
    while not list(study.glob("runs/trial_1/*/run__0/eval.csv")):
        assert first.poll() is None
        time.sleep(0.2)
    first.send_signal(signal.SIGKILL)
    first.wait()
    (before,) = trials_of(study)
    done = subprocess.run([*command[:3], "--study", str(study), "--trials", "5"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = trials_of(study)
    assert len(rows) == 5 and rows[0] == before
    left = optuna.load_study(study_name="tune", storage=f"sqlite:///{study / 'study.db'}").trials[1]
    assert left.state.name == "FAIL" and rows[1]["learning_rate"] == str(left.params["learning_rate"])
    assert json.loads((study / "args.json").read_text())["trials"] == 5
    other = subprocess.run([*command[:3], "--study", str(study), "--num-seeds", "3"], capture_output=True, text=True)
    assert other.returncode == 1 and "was begun with --num-seeds 2, which cannot change" in other.stderr


@pytest.mark.parametrize(
    ("item", "kind", "text"),
    [
        ("learning_rate=1e-5..1e-2:log", "FloatDistribution", "high=0.01, log=True, low=1e-05"),
        ("q-lambda=0.5..0.9", "FloatDistribution", "high=0.9, log=False, low=0.5"),
        ("num_steps=8..64:log", "IntDistribution", "high=64, log=True, low=8"),
        ("memory=MinGRU,GRU", "CategoricalDistribution", "('MinGRU', 'GRU')"),
        ("num_envs=16,32", "CategoricalDistribution", "(16, 32)"),
        ("prev_action=true,false", "CategoricalDistribution", "(True, False)"),
    ],
)
def test_ranges_are_read_as_the_scripts_arguments_are(item, kind, text):
    ((_, spread),) = tune.distributions(tune.Args(search=(item,))).items()
    assert type(spread).__name__ == kind and text in str(spread)


def test_values_are_flags_of_the_script():
    values = {"learning_rate": 1e-3, "prev_action": False, "anneal_lr": True, "memory": "GRU"}
    assert tune.as_flags(values) == "--learning-rate 0.001 --no-prev-action --anneal-lr --memory GRU".split()
    args = tune.Args(script="impala_popart", search=("gamma=0.9..1",), flags=("--total-timesteps", "64"), num_seeds=3)
    line = tune.command(args, "CartPoleEasy", {"gamma": 0.95}, Path("there"))
    assert Path(line[1]).name == "impala_popart.py"
    expected = "--total-timesteps 64 --env-ids CartPoleEasy --gamma 0.95 --seed 0 --num-seeds 3 --run-dir there"
    assert line[2:] == expected.split()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("", "--search: name flags and their ranges"),
        ("--search wings=1..2", "pqn_rnn.py has no wings to search"),
        ("--search learnin_rate=1..2", "did you mean learning_rate"),
        ("--search seed=1..2", "has no seed to search"),
        ("--search learning_rate=1e-2..1e-3", "write NAME=LOW..HIGH"),
        ("--search learning_rate=0..1:log", "write NAME=LOW..HIGH"),
        ("--search memory=A..B", "write NAME=LOW..HIGH"),
        ("--search num_steps=8.5..9", "write NAME=LOW..HIGH"),
        ("--search prev_action=perhaps", "write NAME=LOW..HIGH"),
        ("--search gamma=0.9..1 --trials 0", "--trials 0: use 1 or more"),
        ("--search gamma=0.9..1 --sampler best", "--sampler 'best' is unknown: use one of tpe, random"),
        ("--search gamma=0.9..1 --script evaluate", "--script 'evaluate' is unknown"),
        ("--search gamma=0.9..1 --env-ids CartPole-v1 Catch-bsuite", "what is the best return of CartPole-v1"),
        ("--search gamma=0.9..1 --best-returns CartPole-v1", "write ID=NUMBER"),
        ("--search num_minibatches=3,4", "pqn_rnn.py refuses the lowest values: --num-minibatches 3 does not divide"),
        (
            "--search gamma=0.9..1 --env-ids Nothing",
            "pqn_rnn.py refuses the lowest values: --env-id 'Nothing' is unknown",
        ),
        ("--search gamma=0.9..1 --study tests", "--study tests is there and no study"),
    ],
)
def test_bad_input_is_refused_in_one_line(flags, words, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["tune.py", *flags.split()])
    with pytest.raises(SystemExit) as stopped:
        tune.run()
    told = capsys.readouterr().err
    assert stopped.value.code == 2 and told.count("\n") == 1 and words in told


@pytest.mark.slow
def test_a_study_of_a_real_script(tmp_path):
    line = "--script pqn_mlp --env-ids CartPole-v1 --search learning_rate=1e-4,1e-3 --trials 1 --num-seeds 2"
    flags = "--num-envs 4 --num-steps 8 --num-minibatches 2 --hidden-size 16 --total-timesteps 64 --eval-episodes 2"
    command = [sys.executable, "tune.py", *line.split(), "--study", str(tmp_path / "study"), "--", *flags.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (row,) = trials_of(tmp_path / "study")
    assert row["state"] == "complete" and float(row["score"]) > 1
    assert f"python pqn_mlp.py --env-id CartPole-v1 {flags} --learning-rate {row['learning_rate']}" in done.stdout
