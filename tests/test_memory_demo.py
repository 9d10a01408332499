"""benchmark/memory_demo.py: what it trains, prints and leaves. The trainings are stand-ins."""

import csv
import json

import pytest

from benchmark import memory_demo

RETURNS = {"MinGRU": 0.5, "MLP": 0.1}


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Run folders with two evaluations instead of trainings; returns the memories in the order they were asked for."""
    asked = []

    def train(flags, memory, folder):
        asked.append((memory, tuple(flags)))
        run = folder / memory / "run"
        run.mkdir(parents=True)
        env_id = flags[1] if flags else "MineSweeperEasy"
        (run / "args.json").write_text(
            json.dumps({"script": "pqn_rnn", "args": {"env_id": env_id, "partial_obs": True}})
        )
        with (run / "eval.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["global_step", "policy", "return_mean"])
            rows.writerows([[0, "random", -0.02], [1000, "greedy", 0.05], [2000, "greedy", RETURNS[memory]]])
        (run / "episode.gif").write_bytes(memory.encode())
        return run

    monkeypatch.setattr(memory_demo, "train", train)
    monkeypatch.setattr(memory_demo, "ROOT", tmp_path)
    results = tmp_path / "benchmark/results"
    results.mkdir(parents=True)
    (results / "oracle.csv").write_text("env_id,return_mean\nMineSweeperEasy,1.0\n")
    return asked


def test_both_agents_are_trained_and_compared(trained, capsys):
    folder = memory_demo.main([])
    assert trained == [("MinGRU", ()), ("MLP", ())]
    head, *lines, where = capsys.readouterr().out.strip().splitlines()
    assert head == "MineSweeperEasy, partially observable, greedy return after 2,000 steps"
    assert [line.rsplit(maxsplit=1) for line in map(str.strip, lines)] == [
        *(["best possible", "1.000"], ["with memory (MinGRU)", "0.500"]),
        *(["without memory (MLP)", "0.100"], ["random policy", "-0.020"]),
    ]
    assert where.endswith(str(folder))
    assert (folder / "episode.gif").read_bytes() == b"MinGRU"  # the film of the agent with memory
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
