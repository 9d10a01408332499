"""benchmark/memory_demo.py: what it trains, prints and leaves. The runs are stand-ins."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmark import memory_demo

ROOT = Path(__file__).parents[1]
RETURNS = {"GRU": 0.5, "MLP": 0.1}


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Run folders with two evaluations instead of training; returns the flags they were asked for with."""
    asked = []

    def train_both(flags, folder):
        asked.append(tuple(flags))
        return {label: train(flags, memory, folder) for label, memory in memory_demo.MEMORIES.items()}

    def train(flags, memory, folder):
        run = folder / memory / "run"
        run.mkdir(parents=True)
        env_id = flags[1] if flags else "MineSweeperEasy"
        (run / "args.json").write_text(
            json.dumps({"script": "ppo_rnn", "args": {"env_id": env_id, "partial_obs": True}})
        )
        with (run / "eval.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["global_step", "policy", "return_mean"])
            rows.writerows([[0, "random", -0.02], [1000, "greedy", 0.05], [2000, "greedy", RETURNS[memory]]])
        (run / "episode.gif").write_bytes(memory.encode())
        return run

    monkeypatch.setattr(memory_demo, "train_both", train_both)
    monkeypatch.setattr(memory_demo, "ROOT", tmp_path)
    return asked


def test_both_agents_are_trained_and_compared(trained, capsys):
    folder = memory_demo.main([])
    assert trained == [()]
    head, *lines, where = capsys.readouterr().out.strip().splitlines()
    assert head == "MineSweeperEasy, partially observable, greedy return after 2,000 steps"
    assert [line.rsplit(maxsplit=1) for line in map(str.strip, lines)] == [
        *(["best possible", "1.000"], ["with memory (GRU)", "0.500"]),
        *(["without memory (MLP)", "0.100"], ["random policy", "-0.020"]),
    ]
    assert where.endswith(str(folder))
    assert (folder / "episode.gif").read_bytes() == b"GRU"  # the video of the agent with memory
    assert (folder / "with_and_without_memory.png").stat().st_size > 10_000


def test_an_id_without_a_known_best_return(trained, capsys):
    memory_demo.main(["--env-id", "CartPole-v1"])
    assert "best possible" not in capsys.readouterr().out


def test_two_demos_have_folders_of_their_own(trained, monkeypatch):
    monkeypatch.setattr(memory_demo.time, "strftime", lambda form: "memory_demo-now")
    assert memory_demo.main([]) != memory_demo.main([])


def test_a_flag_that_is_refused_ends_the_demo_with_the_code_of_the_training(tmp_path, monkeypatch, capfd):
    folder = tmp_path / "demo"
    folder.mkdir()
    monkeypatch.setattr(memory_demo, "new_folder", lambda: folder)
    with pytest.raises(SystemExit) as end:
        memory_demo.main(["--num-minibatches", "7"])
    assert end.value.code == 2 and "--num-minibatches 7" in capfd.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize("flags", [["--memory", "LRU"], ["--run-dir=elsewhere"], ["--run_dir", "elsewhere"]])
def test_flags_that_both_trainings_have_are_refused(trained, flags, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        memory_demo.main(flags)
    assert end.value.code == 2 and capsys.readouterr().err.count("\n") == 1
    assert not trained and not (tmp_path / "runs").exists()


# -------------------------------------------------------------------------------------------------- while they train

STAND_IN = """
import pathlib, signal, sys, time
flags = dict(zip(sys.argv[1::1], sys.argv[2::1]))
memory, run = flags["--memory"], pathlib.Path(flags["--run-dir"], "run")

def save(number, frame):
    time.sleep(0.3)
    (run / "saved").write_text("")
    sys.exit(128 + number)

signal.signal(signal.SIGINT, save)
signal.signal(signal.SIGTERM, save)
run.mkdir(parents=True)
print(f"{memory} trains", flush=True)
if memory in flags["--exp-name"]:
    while len([*run.parents[1].glob("*/run")]) < 2:  # until the other one can save
        time.sleep(0.01)
    sys.exit(4)
time.sleep({"with": 0, "wait": 60}[flags["--exp-name"][:4]])
"""


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """A script in place of ppo_rnn.py, and a folder for what it leaves."""
    (tmp_path / "ppo_rnn.py").write_text(STAND_IN)
    (tmp_path / "demo").mkdir()
    monkeypatch.setattr(memory_demo, "ROOT", tmp_path)
    monkeypatch.setattr(memory_demo, "DEFAULTS", "--num-devices 1")
    return tmp_path / "demo"


def test_both_train_and_the_one_without_memory_writes_to_a_file(stand_ins, capfd):
    runs = memory_demo.train_both(["--exp-name", "with"], stand_ins)
    assert runs == {"with memory": stand_ins / "GRU/run", "without memory": stand_ins / "MLP/run"}
    assert capfd.readouterr().out.splitlines()[-1] == "GRU trains"
    assert (stand_ins / "without_memory.log").read_text() == "MLP trains\n"


@pytest.mark.parametrize(("failing", "told"), [("GRU", ""), ("MLP", "MLP trains\n")])
def test_one_that_fails_ends_the_demo_and_the_other_training(stand_ins, failing, told, capfd):
    with pytest.raises(SystemExit) as end:
        memory_demo.train_both(["--exp-name", f"wait_{failing}"], stand_ins)
    assert end.value.code == 4 and capfd.readouterr().err == told
    other = "MLP" if failing == "GRU" else "GRU"
    assert (stand_ins / other / "run/saved").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_save_when_the_demo_is_stopped(stand_ins, number, tmp_path):
    program = f"""
import pathlib, signal, sys
from benchmark import memory_demo
memory_demo.ROOT, memory_demo.DEFAULTS = pathlib.Path({str(tmp_path)!r}), "--num-devices 1"
signal.signal(signal.SIGTERM, memory_demo.ended)
memory_demo.train_both(["--exp-name", "wait"], pathlib.Path({str(stand_ins)!r}))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    demo = subprocess.Popen([sys.executable, "-c", program], env=environment, start_new_session=True)
    runs = [stand_ins / memory / "run" for memory in memory_demo.MEMORIES.values()]
    while not all(run.exists() for run in runs):
        assert demo.poll() is None
        time.sleep(0.05)
    if number == signal.SIGINT:
        os.killpg(demo.pid, number)  # as a terminal does
    else:
        demo.send_signal(number)
    assert demo.wait(timeout=60) == 128 + number
    assert all((run / "saved").exists() for run in runs)
