"""Several processes that train together: they learn as one does, and all end when one is lost."""

import csv
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import parsed

from popgym_arcade.baselines.devices import hosts
from popgym_arcade.baselines.errors import UserError

ROOT = Path(__file__).parents[1]
FLAGS = "--env-id CartPole-v1 --num-envs 8 --num-steps 16 --num-minibatches 2 --hidden-size 16 --eval-episodes 8"
FLAGS += " --log-every 1024 --eval-every 2048 --checkpoint-every 2048"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Training:
    """Processes of a script that train together, their output in files."""

    def __init__(self, folder, count, *flags, name="pqn_mlp"):
        together = f"--distributed --coordinator-address 127.0.0.1:{free_port()} --num-processes {count}".split()
        self.outputs, self.processes = [], []
        for i in range(count):
            self.outputs.append(folder / f"output-{time.time_ns()}-{i}")
            line = [sys.executable, str(ROOT / f"{name}.py"), *flags]
            line += [*together, "--process-id", str(i)] if count > 1 else []
            with self.outputs[-1].open("w") as output:
                process = subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT, cwd=folder)
            self.processes.append(process)

    def said(self, i):
        return self.outputs[i].read_text()

    def wait_for(self, text, seconds=240):
        until = time.monotonic() + seconds
        while text not in self.said(0):
            assert time.monotonic() < until and self.processes[0].poll() is None, self.said(0)
            time.sleep(0.05)

    def last_line(self, i, seconds=20):
        """The last line of a process that was ended because of another; its watchdog says it after a second."""
        until = time.monotonic() + seconds
        while "was lost" not in self.said(i).splitlines()[-1] and time.monotonic() < until:
            time.sleep(0.05)
        return self.said(i).splitlines()[-1]

    def end(self, seconds=400):
        return [process.wait(seconds) for process in self.processes]


@pytest.fixture
def training(tmp_path):
    started = []

    def start(count, *flags, **more):
        started.append(Training(tmp_path, count, *flags, **more))
        return started[-1]

    yield start
    for process in (process for one in started for process in one.processes):
        process.kill()


def rows(folder):
    """What eval.csv says, but for the time it took."""
    (path,) = folder.glob("*/eval.csv")
    return [{k: v for k, v in row.items() if k != "wall_seconds"} for row in csv.DictReader(path.open())]


@pytest.mark.slow
def test_two_processes_train_as_one_does(training, tmp_path):
    flags = [*FLAGS.split(), "--total-timesteps", "4096"]
    together = training(2, *flags, "--run-dir", "two")
    assert together.end() == [0, 0], together.said(0) + together.said(1)
    assert training(1, *flags, "--run-dir", "one").end() == [0]
    assert len(list((tmp_path / "two").iterdir())) == 1
    two, one = rows(tmp_path / "two"), rows(tmp_path / "one")
    assert two == one and [row["global_step"] for row in one] == ["0", "2048", "4096"]
    assert "step 2048" in together.said(0) and "step" not in together.said(1)
    (folder,) = (tmp_path / "two").iterdir()
    assert len(list(folder.glob("events.*"))) == 1 and (folder / "curve.png").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("victim", (1, 0))
def test_when_a_process_is_lost_the_other_ends_and_the_training_can_go_on(training, tmp_path, victim):
    flags = [*FLAGS.split(), "--total-timesteps", "1000000", "--target-return", "1", "--run-dir", "runs"]
    together = training(2, *flags[:-4], "--run-dir", "runs")
    together.wait_for("step 4096")
    killed = time.monotonic()
    together.processes[victim].kill()
    code = together.processes[1 - victim].wait(60)
    assert time.monotonic() - killed < 60 and code != 0
    last = together.last_line(1 - victim)
    assert last.startswith(f"process {victim} of 2 was lost") and "--resume" in last
    (folder,) = (tmp_path / "runs").iterdir()
    steps = [int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdigit()]
    assert max(steps) >= 2048
    count = 1 + victim  # by two processes, and by one
    again = training(count, "--resume", f"runs/{folder.name}")
    again.wait_for(f"step {max(steps) // 2048 * 2048 + 4096} ")
    for process in again.processes[:1]:  # one is told to stop, and both do
        process.send_signal(signal.SIGTERM)
    assert again.end(60) == [128 + signal.SIGTERM] * count, again.said(0) + again.said(count - 1)
    assert "to resume: " in again.said(0)


@pytest.mark.slow
def test_a_process_that_cannot_write_says_so_and_ends_the_other(training, tmp_path):
    (tmp_path / "runs").touch()  # no folder
    together = training(2, *FLAGS.split(), "--total-timesteps", "4096", "--run-dir", "runs")
    codes = together.end(120)
    assert codes[0] == 4 and codes[1] != 0
    assert together.said(0).splitlines()[-1].startswith("pqn_mlp.py: error: --run-dir runs: ")
    assert together.last_line(1).startswith("process 0 of 2 was lost")


TWO = "--distributed --coordinator-address 127.0.0.1:1 --num-processes 2"


@pytest.mark.parametrize("flags, message", [
    ("--num-processes 2", "--num-processes: give --distributed and --coordinator-address, --num-processes, --proc"),
    ("--distributed --process-id 1", "--process-id: give --distributed"),
    (f"{TWO} --process-id 2", "--process-id 2: use a number from 0 to 1"),
    (f"{TWO} --process-id 1 --coordinator-address nonsense", "--coordinator-address nonsense: write HOST:PORT"),
])  # fmt: skip
def test_wrong_flags_are_refused(flags, message):
    with pytest.raises(UserError) as error:
        parsed(*flags.split())
    assert message in str(error.value) and "\n" not in str(error.value)


def test_without_a_cluster_it_is_refused(tmp_path):
    line = [sys.executable, str(ROOT / "pqn_mlp.py"), "--distributed"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "OMPI"))}
    refused = subprocess.run(line, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=env)
    message = "pqn_mlp.py: error: --distributed: coordinator_address should be defined"
    assert refused.returncode == 2 and message in refused.stderr and refused.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------------------------------------------- the watchdogs


WORKER = """
import os, subprocess, sys
line = [sys.executable, "-I", {path!r}, *sys.argv[1:]]
watchdog = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
for line in iter(watchdog.stdout.readline, b""):
    print(line.decode().strip(), flush=True)
    if line == b"ready\\n":
        break
for line in sys.stdin:
    watchdog.stdin.write(line.encode())
    watchdog.stdin.flush()
    print("told", flush=True)
    if line == "done\\n":
        watchdog.wait()
        break
"""


class Worker:
    """A process with a watchdog, which passes on what it is told."""

    def __init__(self, *args):
        line = [sys.executable, "-c", WORKER.format(path=hosts.__file__), *map(str, args)]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.process = subprocess.Popen(line, text=True, **pipes)

    def heard(self):
        return self.process.stdout.readline().strip()

    def tell(self, text):
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        assert self.heard() == "told"

    def last_words(self):
        """All of its standard error and its watchdog's, when both have ended."""
        text = self.process.stderr.read()
        self.process.wait(30)
        return text


@pytest.fixture
def workers():
    first = Worker(0, 3)
    port = first.heard()
    found = [first, *(Worker(i, 3, "127.0.0.1", port) for i in (1, 2))]
    assert [worker.heard() for worker in found] == ["ready"] * 3
    yield found
    for worker in found:
        worker.process.kill()


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_watchdogs_end_the_others_and_say_who_was_lost(workers, lost):
    for worker in workers:
        worker.tell("note resume with x")
    workers[lost].process.kill()
    for i, worker in enumerate(workers):
        this = " (this one)" if i == lost else ""
        assert worker.last_words() == f"process {lost} of 3{this} was lost, which ended the run; resume with x\n"
        assert worker.process.returncode == -signal.SIGKILL


def test_watchdogs_of_processes_that_leave_say_nothing(workers):
    for worker in (workers[1], workers[0], workers[2]):
        worker.tell("done")
    assert [worker.last_words() for worker in workers] == [""] * 3
    assert [worker.process.returncode for worker in workers] == [0] * 3


def test_a_process_that_leaves_is_not_lost(workers):
    workers[1].tell("done")
    assert workers[1].last_words() == ""
    workers[2].process.kill()
    assert workers[0].last_words().startswith("process 2 of 3 was lost")


def test_a_process_that_has_told_why_it_fails_is_not_told_of_again(workers):
    workers[1].tell("fail")
    assert workers[0].last_words() == workers[2].last_words() == "process 1 of 3 was lost, which ended the run\n"
    workers[1].process.kill()
    assert workers[1].last_words() == ""


def test_without_join_nothing_happens():
    hosts.note("x")
    hosts.leave()
    hosts.abandon(5)
    hosts.wait_for_all("x")
    assert hosts.largest(3) == 3 and hosts.from_first("ä") == "ä"
