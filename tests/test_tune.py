"""tune.py: what it searches, how it scores, prunes, and continues after an interruption.

A small program takes the place of the training scripts.
"""

import csv
import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import typing
from pathlib import Path

import optuna
import pytest
from scripts import ALL

import tune

ROOT = Path(__file__).parent.parent
# Takes the place of a training script: --num-steps evaluations (five) of two seeds that rise linearly to
# 1 - (log10(rate) + 3)**2, for the id Easy to 1. Like the scripts it saves at the first signal and ends at once at a
# second. With $EXIT it ends with that code, or signal, before any of this.
PLAYER = """
import csv, json, math, os, signal, sys, time
from pathlib import Path
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
heard = []
def note(number, frame):
    if heard:
        os._exit(128 + number)
    heard.append(number)
signal.signal(signal.SIGINT, note)
signal.signal(signal.SIGTERM, note)
end = int(os.environ.get("EXIT", 0))
print("player.py: error: the disk is full", flush=True)
if end < 0:
    os.kill(os.getpid(), -end)
if end:
    sys.exit(end)
rate, count = float(flags["--learning-rate"]), int(flags.get("--num-steps", 5))
folder = Path(flags["--run-dir"]) / "run__0"
folder.mkdir()
(folder / "args.json").write_text(json.dumps({"args": {"total_timesteps": 60}}))
columns = "global_step", "seed", "policy", "return_mean"
rows = [(0, seed, "random", 0.2) for seed in (0, 1)]
for n in range(1, count + 1):
    final = 1 if flags["--env-id"] == "Easy" else 1 - (math.log10(rate) + 3) ** 2
    value = final + 0.5 * (n / count - 1)
    rows += [(60 * n // count, seed, "greedy", value + 0.1 * (-1) ** seed) for seed in (0, 1)]
    with (folder / "draft").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    (folder / "draft").rename(folder / "eval.csv")
    if rate > 0.05 and n == 3:
        sys.exit(3)
    until = time.monotonic() + float(os.environ.get("PACE", 0))
    while time.monotonic() < until and not heard:
        time.sleep(0.05)
    if heard:
        time.sleep(1)
        (folder / "checkpoint").touch()
        sys.exit(128 + heard[0])
if rate > 0.02:
    sys.exit("something broke")
"""
# The command line of tune.py with PLAYER, whose path is filled in, in place of the training script
PROGRAM = f"""
import signal, sys
sys.path[:0] = [{str(ROOT)!r}]
import tune
tune.POLL_SECONDS = 0.05
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
tune.ask = lambda script, lines: ({{"learning_rate": "float", "num_steps": "int", "env_id": "str"}}, "")
tune.command = lambda args, env_id, values, run_dir: [
    sys.executable, PLAYER, "--env-id", env_id, "--run-dir", str(run_dir), *tune.as_flags(values)
]
tune.run()
"""


@pytest.fixture
def played(tmp_path, monkeypatch):
    """PLAYER takes the place of the training script; returns its path."""
    player = tmp_path / "player.py"
    player.write_text(PLAYER)
    line = lambda args, env_id, values, run_dir: [
        *(sys.executable, str(player), "--env-id", env_id, "--run-dir", str(run_dir)),
        *tune.as_flags(values),
    ]
    monkeypatch.setattr(tune, "command", line)
    monkeypatch.setattr(tune, "POLL_SECONDS", 0.05)
    kinds = {"learning_rate": float, "num_steps": int, "env_id": str}
    monkeypatch.setattr(tune, "kinds_of", lambda script: kinds)
    monkeypatch.setattr(tune, "ask", lambda script, lines: (kinds, ""))
    return player


def study_args(folder, **changes):
    values = {"study": str(folder), "search": ("learning_rate=1e-5..1e-2:log",), "env_ids": ("CartPole-v1",)}
    return tune.Args(**(values | {"trials": 8, "pruner": "none", "startup_trials": 3} | changes)).checked()


def trials_in(folder):
    with (Path(folder) / "trials.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def search_these(args, rates, **others):
    """The trials of a search, the first of which have these learning rates, and others' values."""
    folder = Path(args.study)
    folder.mkdir(exist_ok=True)
    study = tune.open_study(args, folder)
    for n, rate in enumerate(rates):
        study.enqueue_trial({"learning_rate": rate} | {name: values[n] for name, values in others.items()})
    tune.main(dataclasses.replace(args, trials=len(study.trials)))
    return trials_in(folder)


def command_of(player):
    """The command line of a search without its flags."""
    return [sys.executable, "-c", PROGRAM.replace("PLAYER", repr(str(player)))]


def started(player, *flags, **environment):
    """A running search, in its own session as in a terminal, and its command line without flags."""
    command = command_of(player)
    process = subprocess.Popen([*command, *flags], env=os.environ | environment, start_new_session=True)
    return process, command


def wait_for(folder, pattern, process):
    while not list(folder.glob(pattern)):
        assert process.poll() is None
        time.sleep(0.1)


def test_a_search_finds_what_is_best(played, tmp_path):
    best = tune.main(study_args(tmp_path / "study", trials=25))
    assert 3e-4 < best["learning_rate"] < 3e-3  # the best is 1e-3, and the range three decades
    rows = trials_in(tmp_path / "study")
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
    rows = trials_in(tmp_path / "study")
    assert {row["learning_rate"] for row in rows} == {"0.001", "0.0001"}
    for row in rows:
        value = {"0.001": 1.0, "0.0001": 0.0}[row["learning_rate"]]
        expected = ((value - 0.2) / (2.2 - 0.2) + (value - 0.2) / (1.2 - 0.2)) / 2
        assert float(row["score"]) == pytest.approx(expected) and row["evaluations"] == "10"


def test_bad_trials_are_pruned_and_their_trainings_stopped(played, tmp_path, monkeypatch):
    monkeypatch.setenv("PACE", "1")
    args = study_args(tmp_path / "study", search=("learning_rate=1e-3,1e-5",), pruner="median", startup_trials=1)
    good, bad = search_these(args, [1e-3, 1e-5])
    assert (good["state"], bad["state"]) == ("complete", "pruned")
    assert bad["evaluations"] == "1" and bad["score"] == ""
    written = list(csv.DictReader((tmp_path / "study/runs/trial_1/CartPole-v1/run__0/eval.csv").open()))
    assert max(int(row["global_step"]) for row in written) < 60


@pytest.mark.parametrize(("pruner", "evaluations"), [("median", "6"), ("halving", "8"), ("none", "10")])
def test_a_trial_that_is_bad_on_the_second_id_alone_is_pruned_there(pruner, evaluations, played, tmp_path):
    args = study_args(
        tmp_path / "study",
        search=("learning_rate=1e-3,1e-5",),
        env_ids=("Easy", "Hard"),
        best_returns=("Easy=1.2", "Hard=1.2"),
        pruner=pruner,
        startup_trials=1,
    )
    good, bad = search_these(args, [1e-3, 1e-5])
    assert good["state"] == "complete" and good["evaluations"] == "10"
    assert bad["evaluations"] == evaluations and bad["state"] == ("complete" if pruner == "none" else "pruned")


def test_evaluations_are_compared_at_the_same_part_of_the_training(played, tmp_path):
    search = "learning_rate=1e-3,1e-5", "num_steps=5,10"
    args = study_args(tmp_path / "study", search=search, pruner="median", startup_trials=2)
    rates = [1e-3, 1e-3, 1e-3, 1e-5]
    *_, equal, bad = search_these(args, rates, num_steps=[5, 5, 10, 10])
    assert equal["state"] == "complete" and equal["evaluations"] == "10"  # its second is as good as the others' first
    assert bad["state"] == "pruned" and bad["evaluations"] == "2"
    trials = optuna.load_study(study_name="tune", storage=f"sqlite:///{tmp_path / 'study/study.db'}").trials
    assert list(trials[0].intermediate_values) == [200, 400, 600, 800, 1000]
    assert list(trials[3].intermediate_values) == [100, 200]


@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_the_first_trials_are_never_pruned(pruner, played, tmp_path):
    args = study_args(tmp_path / "study", search=("learning_rate=1e-3,1e-4,1e-5",), pruner=pruner, startup_trials=3)
    rows = search_these(args, [1e-3, 1e-4, 1e-4, 1e-5])
    assert [row["state"] for row in rows] == ["complete"] * 3 + ["pruned"] and rows[3]["evaluations"] == "1"


def test_a_study_of_a_version_that_counted_evaluations_continues(played, tmp_path):
    args = study_args(tmp_path / "study", search=("learning_rate=1e-3,1e-5",), pruner="median", startup_trials=1)
    (tmp_path / "study").mkdir()
    study = tune.open_study(args, tmp_path / "study")
    old = study.ask(tune.distributions(args))
    for count in range(5):
        old.report(5.0, count)
    old.set_user_attr("minutes", 1.0)
    study.tell(old, 5.0)
    (tmp_path / "study/args.json").write_text(json.dumps(dataclasses.asdict(args)))
    continued = tune.read_settings(["--study", str(tmp_path / "study")])
    assert continued == args
    before, new, bad = search_these(continued, [1e-3, 1e-5])
    assert float(before["score"]) == 5 and new["state"] == "complete" and bad["state"] == "pruned"


@pytest.mark.parametrize(("best", "score"), [((), 0.2), (("CartPole-v1=2.2",), 0.0)])
def test_diverged_trainings_score_like_the_random_policy_and_broken_ones_have_no_score(best, score, played, tmp_path):
    search = ("learning_rate=0.1,0.03,0.001",)
    tune.main(study_args(tmp_path / "study", search=search, sampler="random", trials=12, best_returns=best))
    rows = {row["learning_rate"]: row for row in trials_in(tmp_path / "study")}
    assert rows["0.1"]["state"] == "complete" and float(rows["0.1"]["score"]) == score
    assert rows["0.03"]["state"] == "fail" and rows["0.03"]["why"] == "exit 1: something broke"
    assert rows["0.001"]["state"] == "complete"


@pytest.mark.parametrize("code", [1, -9])
def test_several_trials_that_fail_alike_end_the_search(code, played, tmp_path, monkeypatch):
    monkeypatch.setenv("EXIT", str(code))
    told = "exit 1" if code == 1 else r"killed by SIGKILL \(out of memory\?\)"
    with pytest.raises(tune.UserError, match=rf"^3 trials in a row failed alike \({told}\)"):
        tune.main(study_args(tmp_path / "study"))
    rows = trials_in(tmp_path / "study")
    assert [row["state"] for row in rows] == ["fail"] * 3 and rows[0]["why"].endswith(": the disk is full")
    monkeypatch.delenv("EXIT")
    tune.main(study_args(tmp_path / "study"))
    assert [row["state"] for row in trials_in(tmp_path / "study")] == ["fail"] * 3 + ["complete"] * 5


def test_refused_values_do_not_end_the_search(played, tmp_path, monkeypatch):
    monkeypatch.setenv("EXIT", "2")
    with pytest.raises(tune.UserError, match="^no trial was completed"):
        tune.main(study_args(tmp_path / "study", trials=4))
    assert [row["why"] for row in trials_in(tmp_path / "study")] == ["exit 2: the disk is full"] * 4


def test_a_full_disk_ends_the_search_and_its_trial_is_run_again(played, tmp_path):
    study = tmp_path / "study"
    flags = f"--study {study} --trials 2 --search learning_rate=1e-4..2e-3:log --env-ids CartPole-v1".split()
    command = command_of(played)
    full = subprocess.run([*command, *flags], env=os.environ | {"EXIT": "4"}, capture_output=True, text=True)
    assert full.returncode == 4
    assert full.stderr.startswith("tune.py: error: a run cannot write: the disk is full; fix that")
    assert full.stderr.count("\n") == 1
    assert not (study / "trials.csv").exists()
    tune.main(study_args(study, trials=2, search=("learning_rate=1e-4..2e-3:log",)))
    left, *_ = optuna.load_study(study_name="tune", storage=f"sqlite:///{study / 'study.db'}").trials
    rows = trials_in(study)
    assert len(rows) == 2 and rows[0]["learning_rate"] == str(left.params["learning_rate"])


def test_an_unwritable_file_ends_the_search_in_one_line(played, tmp_path):
    (tmp_path / "study/trials.tmp").mkdir(parents=True)
    with pytest.raises(tune.CannotWrite, match="Is a directory: .*; fix that, then continue with --study$"):
        tune.main(study_args(tmp_path / "study"))


def test_a_best_return_that_is_not_above_the_random_policys_ends_the_search(played, tmp_path):
    with pytest.raises(tune.UserError, match="--best-returns CartPole-v1=0.2: the random policy has 0.2"):
        tune.main(study_args(tmp_path / "study", best_returns=("CartPole-v1=0.2",)))


def test_an_interrupted_search_continues(played, tmp_path):
    study = tmp_path / "study"
    line = f"--study {study} --trials 4 --search learning_rate=1e-4..2e-3:log --env-ids CartPole-v1 --pruner none"
    first, command = started(played, *line.split(), PACE="1")
    wait_for(study, "runs/trial_1/*/run__0/eval.csv", first)
    first.send_signal(signal.SIGKILL)
    first.wait()
    (before,) = trials_in(study)
    done = subprocess.run([*command, "--study", str(study), "--trials", "5"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = trials_in(study)
    assert len(rows) == 5 and rows[0] == before
    left = optuna.load_study(study_name="tune", storage=f"sqlite:///{study / 'study.db'}").trials[1]
    assert left.state.name == "FAIL" and rows[1]["learning_rate"] == str(left.params["learning_rate"])
    assert json.loads((study / "args.json").read_text())["trials"] == 5
    other = subprocess.run([*command, "--study", str(study), "--num-seeds", "3"], capture_output=True, text=True)
    assert other.returncode == 2 and "was started with --num-seeds 2, which cannot change" in other.stderr


def test_the_terminals_interrupt_lets_the_training_save(played, tmp_path):
    study = tmp_path / "study"
    line = f"--study {study} --trials 1 --search learning_rate=1e-4..2e-3:log --env-ids CartPole-v1"
    first, command = started(played, *line.split(), PACE="60")
    wait_for(study, "runs/trial_0/*/run__0/eval.csv", first)
    os.killpg(first.pid, signal.SIGINT)  # a terminal's Ctrl-C goes to all processes of the group
    assert first.wait(60) == 130
    assert list(study.glob("runs/trial_0/*/run__0/checkpoint"))
    done = subprocess.run([*command, "--study", str(study)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    left = optuna.load_study(study_name="tune", storage=f"sqlite:///{study / 'study.db'}").trials[0]
    (row,) = trials_in(study)
    assert row["trial"] == "1" and row["learning_rate"] == str(left.params["learning_rate"])


def test_one_search_at_a_time_in_a_study(played, tmp_path):
    study = tmp_path / "study"
    line = f"--study {study} --trials 1 --search learning_rate=1e-4..2e-3:log --env-ids CartPole-v1"
    first, command = started(played, *line.split(), PACE="1")
    wait_for(study, "runs/trial_0/*/run__0/eval.csv", first)
    second = subprocess.run([*command, "--study", str(study), "--trials", "9"], capture_output=True, text=True)
    assert first.poll() is None
    assert second.returncode == 2 and second.stderr.count("\n") == 1
    assert second.stderr.endswith("another process is searching there\n")
    assert json.loads((study / "args.json").read_text())["trials"] == 1
    assert first.wait(60) == 0
    assert [row["trial"] for row in trials_in(study)] == ["0"]


def test_searches_started_in_the_same_second_have_different_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda _: "now")
    folders = [str(tune.make_folder(tune.Args())) for _ in range(3)]
    assert folders == [f"runs/tune/pqn_rnn-now{end}" for end in ("", "-2", "-3")]


@pytest.mark.parametrize("script", ALL)
def test_the_types_of_a_scripts_arguments_are_known(script, asked_here):
    args_class = importlib.import_module(script).Args
    hints = typing.get_type_hints(args_class)
    kinds = {field.name: hints[field.name] for field in dataclasses.fields(args_class)}
    single = (bool, int, float)
    tune.kinds_of.cache_clear()
    assert tune.kinds_of(script) == {name: kind if kind in single else str for name, kind in kinds.items()}
    assert {"learning_rate": float, "num_envs": int, "track": bool, "env_params": str}.items() <= tune.kinds_of(
        script
    ).items()


def test_every_training_script_can_be_searched():
    assert sorted(tune.SCRIPTS) == sorted(ALL)


@pytest.fixture
def own_script(tmp_path, monkeypatch):
    """A training script in the working directory, under a name that is not an identifier and with a flag of its own."""
    monkeypatch.chdir(tmp_path)
    source = (ROOT / "pqn_mlp.py").read_text()
    source = source.replace("hidden_size: Count", "wide: Count").replace("args.hidden_size", "args.wide")
    (tmp_path / "my-idea.py").write_text(source)
    yield tmp_path / "my-idea.py"
    sys.modules.pop("my-idea", None)


def test_a_script_of_your_own_is_named_by_its_path(own_script, asked_here, capsys):
    line = "--script my-idea.py --env-ids CartPole-v1 --search wide=8,16"
    args = tune.read_settings(line.split())
    assert args.script == str(own_script)  # so that --study continues it from any folder
    assert tune.distributions(args)["wide"].choices == (8, 16)
    assert tune.command(args, "CartPole-v1", {"wide": 8}, Path("runs"))[1] == str(own_script)
    assert tune.make_folder(args).name.startswith("my-idea-")
    for flags, words in (
        ("--search hidden_size=8,16", "my-idea.py has no hidden_size to search"),
        ("--search wide=0..9", "my-idea.py rejects the lowest values: --wide 0: use 1 or more"),
    ):
        with pytest.raises(tune.UserError, match=words):
            tune.read_settings(["--script", "my-idea.py", "--env-ids", "CartPole-v1", *flags.split()])
    unknown = "nowhere.py' is unknown: use one of pqn_mlp, .*, or a path that ends in .py"
    with pytest.raises(tune.UserError, match=unknown):
        tune.read_settings(["--script", "nowhere.py", *line.split()[2:]])


def test_the_search_does_not_import_jax_and_the_script_sees_the_devices():
    program = """
import sys, tune
try:
    tune.read_settings("--search gamma=0.9..1 -- --num-devices 3".split())
except tune.UserError as error:
    print(error, sorted({"jax", "jaxlib"} & set(sys.modules)))
"""
    two = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=two, capture_output=True, text=True)
    assert "lowest values: --num-devices 3: use a number from 1 to 2, " in done.stdout, done.stderr
    assert done.stdout.endswith(" []\n")


@pytest.mark.parametrize(("flags", "code"), [("--help", 0), ("--search gamma=0.9..1", 2)])
def test_without_optuna_there_is_help_and_one_line(flags, code, tmp_path):
    program = f"import sys; sys.modules['optuna'] = None; sys.path[:0] = [{str(ROOT)!r}]; import tune; tune.run()"
    line = [sys.executable, "-c", program, *flags.split()]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code and not list(tmp_path.iterdir())
    if code:
        assert (
            done.stderr.startswith("tune.py: error: Optuna is missing: pip install ") and done.stderr.count("\n") == 1
        )
    else:
        assert done.stdout.startswith(tune.__doc__) and not done.stderr
        assert "{tpe,random}" in done.stdout and "{median,halving,none}" in done.stdout


def test_whole_numbers_and_home_folders_in_other_spellings(asked_here, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    flags = "--study=~/study --trials 1e2 --seed 2e3 --num-seeds 3e0 --startup-trials 1e1 --search num_steps=8,1.6e1"
    args = tune.read_settings(flags.split())
    assert (args.trials, args.seed, args.num_seeds, args.startup_trials) == (100, 2000, 3, 10)
    assert args.study == f"{tmp_path}/study" and tune.distributions(args)["num_steps"].choices == (8, 16)
    assert tune.script_path("~/mine.py") == tmp_path / "mine.py"
    for flags, words in (
        ("--trials 1.5", "^1.5: use a whole number$"),
        ("--search num_steps=8..9.5", "write NAME=LOW"),
    ):
        with pytest.raises(tune.UserError, match=words):
            tune.read_settings([*flags.split(), "--search", "gamma=0..1"] if "trials" in flags else flags.split())


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
def test_ranges_are_read_as_the_scripts_arguments_are(item, kind, text, asked_here):
    ((_, spread),) = tune.distributions(tune.Args(search=(item,))).items()
    assert type(spread).__name__ == kind and text in str(spread)


def test_values_become_flags_of_the_script(asked_here):
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
        ("--search zzzzzz=1..2", "pqn_rnn.py has no zzzzzz to search\n"),
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
        ("--search gamma=0.9..1 --best-returns CartPoleEasy", "write ID=NUMBER"),
        ("--search gamma=0.9..1 --best-returns CartPoleEasy=nan", "use a finite number"),
        ("--search gamma=0.9..1 --best-returns CartPoleEasy=inf", "use a finite number"),
        ("--search gamma=0.9..1 --best-returns CartPolEasy=1", "CartPolEasy is not among --env-ids CartPoleEasy"),
        ("--search gamma=0.9..1 -- --seed 5", "--seed after --: give it before --"),
        ("--search gamma=0.9..1 -- --partial-obs --num_seeds=7", "--num_seeds after --: give it before --"),
        ("--search gamma=0.9..1 -- --env-id=CartPole-v1", "--env-id after --: leave it out"),
        ("--search gamma=0.9..1 -- --run_dir x", "--run_dir after --: leave it out"),
        ("--search gamma=0.9..1 -- --resume y", "--resume after --: leave it out"),
        ("--search gamma=0.9..1 -- --from-run=y", "--from-run after --: leave it out"),
        ("--search gamma=0.9..1 -- --target-return -1", "--target-return after --: leave it out"),
        ("--search gamma=0.9..1 -- --wings 3", "--wings after --: pqn_rnn.py has no such flag"),
        ("--search gamma=0.9..1 -- --num-env 3", "pqn_rnn.py has no such flag; did you mean --num-envs"),
        ("--search gamma=0.9..1 -- --help", "--help after --: pqn_rnn.py has no such flag"),
        ("--search gamma=0.9..1 -- --num-envs many", "lowest values: Error parsing --num-envs: invalid literal"),
        ("--search num_minibatches=3,4", "pqn_rnn.py rejects the lowest values: --num-minibatches 3 does not divide"),
        (
            "--search gamma=0.9..1 --env-ids Nothing",
            "pqn_rnn.py rejects the lowest values: --env-id 'Nothing' is unknown",
        ),
        (
            "--search gamma=0.9..1 --env-ids CartPoleEasy Catch-bsuite --best-returns Catch-bsuite=1 -- --partial-obs",
            "lowest values: --env-id Catch-bsuite has no partially observable twin",
        ),
        ("--search gamma=0.9..1 --study other", "--study other exists and is not a study: name a new folder"),
        ("--search gamma=0.9..1 --study file", "--study file exists and is not a study"),
        ("--search gamma=0.9..1 --study file/new", "--study file/new: Not a directory"),
        ("--study empty", "empty/args.json is broken: Expecting value"),
        ("--study list", "list/args.json is broken: "),
        ("--study wings", "wings/args.json is broken: Args.__init__() got an unexpected keyword argument 'wings'"),
        ("--study typed", "typed/args.json is broken: trials is 'many'"),
    ],
)
def test_bad_input_is_refused_in_one_line_and_nothing_is_written(
    flags, words, tmp_path, monkeypatch, capsys, asked_here
):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("other").mkdir()
    for name, text in {"empty": "", "list": "[]", "wings": '{"wings": 1}', "typed": '{"trials": "many"}'}.items():
        Path(name).mkdir()
        Path(name, "args.json").write_text(text)
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    monkeypatch.setattr(sys, "argv", ["tune.py", *flags.split()])
    with pytest.raises(SystemExit) as stopped:
        tune.run()
    told = capsys.readouterr().err
    assert stopped.value.code == 2 and told.count("\n") == 1 and words in told
    assert told.startswith("tune.py: error: ")
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before


@pytest.mark.slow
def test_a_study_of_a_real_script(tmp_path):
    line = "--script pqn_mlp --env-ids CartPole-v1 --search learning_rate=1e-4,1e-3 --trials 1 --num-seeds 2"
    flags = "--num-envs 4 --num-steps 8 --num-minibatches 2 --hidden-size 16 --total-timesteps 64 --eval-episodes 2"
    command = [sys.executable, "tune.py", *line.split(), "--study", str(tmp_path / "study"), "--", *flags.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (row,) = trials_in(tmp_path / "study")
    assert row["state"] == "complete" and float(row["score"]) > 1
    assert f"python pqn_mlp.py --env-id CartPole-v1 {flags} --learning-rate {row['learning_rate']}" in done.stdout
