"""Injects faults into real runs, checks that they survive, and writes the table of docs/reliability.md.

    python benchmark/soak.py
    python benchmark/soak.py --script ppo_rnn --faults kill disk

Every run is a separate process in a temporary folder. "Survived" means that it ended as the page promises (exit
code, one line), and that the run, once resumed, ended bit for bit like an uninterrupted one: every array of the last
checkpoint, and eval.csv except wall_seconds. Needs Linux. As root, it mounts a small disk and fills it; for other
users, it limits the size of files.
"""

import contextlib
import functools
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import psutil
import tensorboard
from scipy.stats import theilslopes

from popgym_arcade.analysis.agents import load_agent
from popgym_arcade.analysis.command_line import launch
from popgym_arcade.analysis.tables import read_csv
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import PathName
from popgym_arcade.baselines.running.checkpoints import (
    file_digests,
    find_checkpoint,
    manager,
    named_arrays,
    restore,
)
from popgym_arcade.baselines.running.command_line import read_args
from popgym_arcade.baselines.running.evaluation import make_keys
from popgym_arcade.baselines.running.programs import abstract_state

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmark")]

from training_speed import write_table  # noqa: E402

SIZES = "--num-envs 8 --hidden-size 16 --eval-episodes 8 --total-timesteps 81920"
SIZES += " --log-every 1024 --eval-every 4096 --checkpoint-every 2048"
ROLLOUTS = "--num-steps 16 --num-minibatches 2"
REPLAY = "--learning-starts 1024 --batch-size 16 --train-frequency 128 --buffer-size 4096 --save-buffer"
REPLAY += " --target-network-frequency 1024"
SIZES_OF = {"dqn_mlp": REPLAY, "dqn_rnn": f"{REPLAY} --num-steps 8 --burn-in 8"}
ENV_OF = {"ppo_continuous_action": "--env-id Pendulum-v1", "impala_popart": "--env-ids CartPole-v1"}
OVERFLOW = (  # the cart accelerates until the square of a number overflows float32
    "--env-params polemass_length=0.0 x_threshold=1e38 theta_threshold_radians=1e38 max_steps_in_episode=20000"
    " force_mag={force}"
)
FORCE = {"ppo_mlp": 3e19, "ppo_rnn": 3e19, "impala_popart": 3e19}  # for scripts whose layers have no norm; all others:
FORCE_WITH_NORM = 5e16
OBEDIENT = (  # starts a command without root's right to ignore permissions: CAP_DAC_OVERRIDE, see prctl(2)
    *(sys.executable, "-Sc"),
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])",
)
MB = 2**20
SECONDS = 300  # time limit of a run
GRACE = 30  # seconds from SIGTERM to SIGKILL on most clusters
DISK = 16 * MB
GROWTH = 5.0  # MB by which a process may grow in a thousand chunks, after the first hundred
GROWTH_OF_CHECKPOINTS = 50.0  # the same for a thousand checkpoints: TensorStore 0.1.86 keeps about 20 KB of each


@dataclass(frozen=True)
class Args:
    script: str = "pqn_mlp"
    """training script to inject faults into"""
    faults: tuple[str, ...] = ()
    """faults to try, such as kill; none: all"""
    kills: int = 20
    """number of times to kill -9, at least half of them while a checkpoint is being written"""
    chunks: int = 2_000
    """log points of the run whose memory is watched"""
    saves: int = 1_000
    """checkpoints of the second run whose memory is watched"""
    seed: int = 0
    """seed for the moments at which faults happen"""
    out: PathName = "runs/reliability.csv"
    """table to write"""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one fault."""

    fault: str
    survived: bool
    seen: str
    steps_lost: int | None = None  # environment steps to train again; None if there is nothing to lose


# ---------------------------------------------------------------------------------------------------------- the runs


class Training:
    """A process of the script, whose output is in two files that outlive it."""

    def __init__(self, bench: "Bench", *flags, by: tuple[str, ...] = (), **options):
        place = bench.folder / f"process-{time.time_ns()}"
        self.script, self.outputs = bench.args.script, (Path(f"{place}.out"), Path(f"{place}.err"))
        line = [*by, sys.executable, str(ROOT / f"{self.script}.py"), *map(str, flags)]
        line += ["--compile-cache", str(bench.folder / "cache")]
        options = {"cwd": bench.folder} | options
        with self.outputs[0].open("w") as out, self.outputs[1].open("w") as err:
            self.process = subprocess.Popen(line, stdout=out, stderr=err, **options)
        bench.processes.append(self.process)

    @property
    def out(self) -> str:
        return self.outputs[0].read_text()

    @property
    def err(self) -> str:
        return self.outputs[1].read_text()

    def numbers_after(self, *beginnings: str) -> list[int]:
        """The numbers that follow one of these words at the start of a line of standard output."""
        words = [line.split() for line in self.out.splitlines()]
        return [int(word[1]) for word in words if len(word) > 2 and word[0] in beginnings and word[1].isdigit()]

    @property
    def reached(self) -> int:
        """The step of the last log point; the first step if there was none."""
        return max(self.numbers_after("step"), default=self.began_at or 0)

    @property
    def began_at(self) -> int | None:
        """The first step, as printed; None if it did not get that far."""
        for line in self.out.splitlines():
            if line.endswith("compiling ..."):
                return int(line.rpartition(": step ")[2].split()[0])
        return None

    def wait_for(self, happened) -> bool:
        """Waits until `happened()` or the process ends, and returns whether the former came first."""
        until = time.monotonic() + SECONDS
        while not happened():
            if self.process.poll() is not None:
                return False
            if time.monotonic() > until:
                raise RuntimeError(f"{self.script}.py: nothing happened for {SECONDS} s: {self.out[-300:]}")
            time.sleep(0.0005)
        return True

    def wait_for_step(self, step: int) -> bool:
        return self.wait_for(lambda: self.reached >= step)

    def end(self, seconds: float = SECONDS) -> int:
        """Its exit code; killed if it takes longer."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Pauses the process inside the block."""
        self.process.send_signal(signal.SIGSTOP)
        yield
        self.process.send_signal(signal.SIGCONT)

    def seen(self) -> str:
        """Exit code, and the last line it printed, without the names of folders."""
        code = self.process.returncode
        lines = (self.err if code else self.out).strip().splitlines()
        error = [line for line in lines if "error:" in line]
        words = [word.rpartition("/")[2] or word for word in (error or lines or ["no output"])[-1].split()]
        last = " ".join("RUN" if "__" in word else word for word in words)
        return f"exit {code}" + (f": {last}" if code and code != 143 else "")

    def refused_with(self, code: int) -> bool:
        """Whether it ended with this exit code and a single error line on standard error."""
        lines = self.err.splitlines()
        return self.process.returncode == code and len(lines) == 1 and f"{self.script}.py: error: " in lines[0]


class Bench:
    """The temporary folder, the script as a module, and the end of an uninterrupted run."""

    def __init__(self, args: Args, folder: Path):
        self.args, self.folder, self.processes = args, folder, []
        self.chance = np.random.default_rng(args.seed)
        self.module = importlib.import_module(args.script)

    def flags(self) -> list[str]:
        sizes = f"{SIZES} {SIZES_OF.get(self.args.script, ROLLOUTS)}"
        return f"{ENV_OF.get(self.args.script, '--env-id CartPole-v1')} {sizes}".split()

    def begin(self, runs: Path, *flags, **options) -> Training:
        """A new run in that folder."""
        return Training(self, *self.flags(), "--run-dir", runs, *flags, **options)

    def resume(self, run: Path, *flags, **options) -> Training:
        return Training(self, "--resume", run, *flags, **options)

    def new_folder(self) -> Path:
        folder = Path(tempfile.mkdtemp(dir=self.folder)) / "runs"
        folder.mkdir()
        return folder

    def last_checkpoint(self, run: Path | None) -> int | None:
        """The step from which a run would resume; None if it has to start again."""
        with contextlib.redirect_stderr(None), contextlib.suppress(UserError):
            return find_checkpoint(run) if run else None

    @functools.cached_property
    def unbroken(self) -> dict:
        """The end of a run without a fault. It also fills the compilation cache for the others."""
        self.begin(self.new_folder()).end()
        runs, began = self.new_folder(), time.monotonic()
        training = self.begin(runs)
        training.wait_for_step(1)
        if training.end():
            raise RuntimeError(training.seen())
        self.duration = time.monotonic() - began
        return self.ending(only(runs))

    def ending(self, run: Path) -> dict:
        """Every array of the last checkpoint, and the rows of eval.csv except the time they took."""
        step, arrays = self.last_arrays(run)
        rows = [{k: v for k, v in row.items() if k != "wall_seconds"} for row in read_csv(run / "eval.csv")]
        return {"step": step, "rows": rows, "arrays": arrays}

    def last_arrays(self, run: Path) -> tuple[int, dict]:
        """The step of a run's last intact checkpoint, and its arrays by name."""
        args, step = read_args(run, self.module.Args), find_checkpoint(run)
        init, _ = self.module.make_train(args)
        return step, named_arrays(restore(run, step, abstract_state(args, init, make_keys(args)[0])))

    def ends_like_unbroken(self, run: Path) -> bool:
        whole, other = self.unbroken, self.ending(run)
        same = whole["arrays"].keys() == other["arrays"].keys()
        same = same and all(np.array_equal(x, other["arrays"][name]) for name, x in whole["arrays"].items())
        return same and (whole["step"], whole["rows"]) == (other["step"], other["rows"])

    def resumes(self, run: Path, *flags, **options) -> tuple[bool, int | None]:
        """Whether a run, once resumed, ends like an uninterrupted one; and the step from which it resumed."""
        training = self.resume(run, *flags, **options)
        return training.end() == 0 and self.ends_like_unbroken(run), training.began_at

    @functools.cached_property
    def stopped_run(self) -> Path:
        """A run that SIGTERM stopped after its fifth checkpoint, to be copied."""
        runs = self.new_folder()
        training = self.begin(runs)
        training.wait_for_step(5 * 2048 + 1024)
        training.process.terminate()
        if training.end() != 128 + signal.SIGTERM:
            raise RuntimeError(training.seen())
        return only(runs)

    def copied_run(self) -> Path:
        return Path(shutil.copytree(self.stopped_run, self.new_folder() / "run"))


def only(folder: Path) -> Path | None:
    """The run folder in a folder of runs; None if there is none yet that can be resumed."""
    return next((path.parent for path in folder.glob("*/args.json")), None)


def is_saving(run: Path | None) -> bool:
    """Whether there is an incomplete checkpoint: a temporary folder, or one without digests."""
    checkpoints = run.glob("checkpoints/*") if run else ()
    return any(not (path / "sha256.json").exists() for path in checkpoints if "damaged" not in path.name)


def fingerprint(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --------------------------------------------------------------------------------------------------------- the faults


def kill(bench: Bench) -> list[Outcome]:
    """Repeated kill -9, while a checkpoint is being written and at random moments."""
    outcomes = []
    bench.unbroken  # noqa: B018  (trains it, which sets `duration`)
    while len(outcomes) < bench.args.kills:
        outcomes += broken_run(bench, outcomes)
    return outcomes


def broken_run(bench: Bench, before: list[Outcome]) -> list[Outcome]:
    """One run, killed until there are enough kills or it ends by itself, then resumed to its end."""
    runs, kills = bench.new_folder(), []
    training, expected, told_truth = bench.begin(runs), None, True
    while len(before) + len(kills) < bench.args.kills:
        saving = 2 * sum("saving" in one.fault for one in before + kills) < bench.args.kills
        if not (kill_while_saving if saving else kill_at_random)(bench, training, runs):
            break
        told_truth &= training.began_at in (None, expected or 0)
        run = only(runs)
        expected = bench.last_checkpoint(run)
        fault = "kill -9 while saving" if is_saving(run) else "kill -9 at another moment"
        kills.append(Outcome(fault, True, f"exit {training.process.returncode}", training.reached - (expected or 0)))
        if expected is None:  # nothing to resume from
            shutil.rmtree(runs, ignore_errors=True)
        training = bench.begin(runs) if expected is None else bench.resume(run)
    survived = training.end() == 0 and told_truth and bench.ends_like_unbroken(only(runs))
    end = f"{training.seen()}, {'' if survived else 'NOT '}bit-equal"
    return [Outcome(one.fault, survived, end, one.steps_lost) for one in kills]


def kill_while_saving(bench: Bench, training: Training, runs: Path) -> bool:
    """Kills the run while it saves one of its next five checkpoints; False if it ended before."""
    has_begun = training.wait_for(lambda: training.began_at is not None)
    began = training.reached if has_begun else 0
    wanted = began + 2048 * int(bench.chance.integers(1, 6))
    if not training.wait_for_step(wanted) or not training.wait_for(lambda: is_saving(only(runs))):
        return False
    time.sleep(bench.chance.uniform(0, 0.04))
    return killed(training)


def kill_at_random(bench: Bench, training: Training, _runs: Path) -> bool:
    time.sleep(bench.chance.uniform(0, bench.duration))
    return killed(training)


def killed(training: Training) -> bool:
    training.process.kill()
    return training.end() == -signal.SIGKILL


def sigterm(bench: Bench) -> list[Outcome]:
    """SIGTERM as a cluster sends it, and SIGKILL after the grace period."""
    outcomes = []
    moments = ["compiling", "saving", *[1024 * int(x) for x in bench.chance.integers(2, 40, 3)]]
    for moment in moments:
        runs = bench.new_folder()
        training = bench.begin(runs)
        if moment == "saving":
            training.wait_for(lambda runs=runs: is_saving(only(runs)))
        elif moment == "compiling":
            training.wait_for(lambda training=training: training.began_at is not None)
        else:
            training.wait_for_step(moment)
        training.process.terminate()
        code, said = training.end(GRACE), training.out
        like_unbroken, began = bench.resumes(only(runs))
        survived = code == 128 + signal.SIGTERM and f"stopped at step {began}, saved" in said and like_unbroken
        outcomes.append(Outcome("SIGTERM", survived, training.seen(), max(0, training.reached - (began or 0))))
    return outcomes


def disk(bench: Bench) -> list[Outcome]:
    """A disk on which a checkpoint no longer fits, and one on which not even a log line does."""
    return [full_disk(bench, what) for what in ("saving", "logging", "saving", "logging")]


def full_disk(bench: Bench, what: str) -> Outcome:
    bench.unbroken  # noqa: B018
    with small_disk(bench.new_folder()) as place:
        cadence = () if what == "saving" else ("--checkpoint-every", 16384)
        training = bench.begin(place / "runs", *cadence)
        there = training.wait_for(lambda: next((place / "runs").glob("*/checkpoints/*/sha256.json"), None))
        if not there:
            return Outcome(f"full disk while {what}", False, training.seen())
        with training.stopped():
            filled = fill(place, 24 * 1024 if what == "saving" else 0) if place.is_mount() else None
            if filled is None:
                limit_files(training, only(place / "runs"), what)
        training.end()
        met = "saving" if is_saving(only(place / "runs")) else "logging"
        reached, said = training.reached, training.err.splitlines()
        if filled:
            filled.unlink()
        like_unbroken, began = bench.resumes(only(place / "runs"), "--checkpoint-every", 2048)
    survived = training.refused_with(4) and like_unbroken and met == what
    seen = training.seen() + f" ({len(said)} lines, met while {met})" * (not survived)
    return Outcome(f"full disk while {what}", survived, seen, reached - (began or 0))


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A folder on a disk of its own, if this process may mount one."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    try:
        yield folder
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Fills a disk except for `leave` bytes, and returns the file that fills it."""
    filler, zeros = disk / "filler", bytes(64 * 1024)
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(zeros):
            pass
    os.truncate(filler, filler.stat().st_size - leave)
    return filler


def limit_files(training: Training, run: Path, what: str) -> None:
    """Limits the size of a process's files: to the current size of its events, or to less than a checkpoint's files."""
    events = max(path.stat().st_size for path in run.glob("events.*"))
    saved = max(path.stat().st_size for path in run.glob("checkpoints/**/*"))
    size = (events + saved) // 2 if what == "saving" else events
    _, hard = resource.prlimit(training.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(training.process.pid, resource.RLIMIT_FSIZE, (size, hard))


def stdout_full(bench: Bench) -> list[Outcome]:
    """Standard output to a file on a full disk."""
    runs = bench.new_folder()
    line = [sys.executable, str(ROOT / f"{bench.args.script}.py"), *bench.flags(), "--run-dir", str(runs)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, cwd=bench.folder, timeout=SECONDS)
    lines = done.stderr.splitlines()
    survived = done.returncode == 4 and len(lines) == 1
    return [Outcome("full disk while printing", survived, f"exit {done.returncode}, {len(lines)} lines", 0)]


def damage(bench: Bench) -> list[Outcome]:
    """The last checkpoint with a flipped byte, or without one of its files; then all checkpoints of a run."""
    return [
        *(damaged(bench, "a checkpoint with flipped bytes", flip) for _ in range(3)),
        *(damaged(bench, "a checkpoint without one of its files", Path.unlink) for _ in range(3)),
        all_damaged(bench),
    ]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def files_of(run: Path, step: int) -> list[Path]:
    return sorted(path for path in (run / "checkpoints" / str(step)).rglob("*") if path.is_file())


def damaged(bench: Bench, fault: str, how) -> Outcome:
    run = bench.copied_run()
    step = bench.last_checkpoint(run)
    how(files_of(run, step)[bench.chance.integers(len(files_of(run, step)))])
    like_unbroken, began = bench.resumes(run)
    kept = any(path.name.startswith(f"damaged-{step}-") for path in (run / "checkpoints").iterdir())
    seen = "resumes from the one before; the damaged one is kept aside"
    return Outcome(fault, like_unbroken and kept and began < step, seen, step - began)


def all_damaged(bench: Bench) -> Outcome:
    run = bench.copied_run()
    for checkpoint in (run / "checkpoints").iterdir():
        flip(max(files_of(run, checkpoint.name), key=lambda path: path.stat().st_size))
    before, training = fingerprint(run), bench.resume(run)
    code, last = training.end(), training.err.splitlines()[-1]
    survived = code == 2 and "no intact checkpoint" in last and fingerprint(run) == before
    return Outcome("all checkpoints damaged", survived, training.seen())


def layout(bench: Bench) -> list[Outcome]:
    """A checkpoint in another version's layout, with correct digests: it is rejected, and nothing changes."""
    return [other_layout(bench, how) for how in ("renamed", "missing", "added", "reshaped", "dtype", "metadata")]


def other_layout(bench: Bench, how: str) -> Outcome:
    run = bench.copied_run()
    rewrite_checkpoint(bench, run, how)
    before, training = fingerprint(run), bench.resume(run)
    training.end()
    survived = training.refused_with(2) and fingerprint(run) == before
    seen = training.seen() if survived else f"{how}: {training.seen()}"
    return Outcome("a checkpoint of another version's layout", survived, seen)


def rewrite_checkpoint(bench: Bench, run: Path, how: str) -> None:
    """Changes a leaf of the optimizer or the files of a run's last checkpoint, and updates the digests."""
    step, arrays = bench.last_arrays(run)
    folder = run / "checkpoints" / str(step)
    name = max((name for name in arrays if name.startswith("opt_state")), key=lambda name: arrays[name].size)
    leaf = arrays.pop(name) if how in ("renamed", "missing") else arrays[name]
    changes = {
        "renamed": {f"{name}_of_old": leaf},
        "added": {f"{name}_too": leaf},
        "reshaped": {name: leaf[..., None]},
        "dtype": {name: leaf.astype(np.float16)},
    }
    if how == "metadata":
        (folder / "default" / "_METADATA").unlink()
    else:
        shutil.rmtree(folder)
        with manager(run, read_args(run, bench.module.Args)) as checkpoints:
            checkpoints.save(step, args=ocp.args.PyTreeSave(arrays | changes.get(how, {})), force=True)
    (folder / "sha256.json").write_text(json.dumps(file_digests(folder)))


def nan(bench: Bench) -> list[Outcome]:
    """Parameters of the environment that make its numbers overflow during the run, and again after it resumes."""
    if "CartPole-v1" not in bench.flags():
        return []
    runs, force = bench.new_folder(), FORCE.get(bench.args.script, FORCE_WITH_NORM)
    overflow = OVERFLOW.format(force=force).split()
    first = bench.begin(runs, *overflow)
    first.end()
    run = only(runs)
    saved, files = bench.last_checkpoint(run), fingerprint(run / "checkpoints")
    again = bench.resume(run)
    again.end()
    finite = all(np.isfinite(leaf).all() for leaf in map(np.asarray, jax.tree.leaves(load_agent(run).params)))
    kept = files == fingerprint(run / "checkpoints") and again.began_at == saved
    fault = "loss not finite in mid-run"
    lost = first.reached - (saved or 0)
    return [
        Outcome(fault, first.refused_with(3) and bool(saved) and finite, first.seen(), lost),
        Outcome(fault, again.refused_with(3) and kept and again.err == first.err, again.seen(), lost),
    ]


def same_second(bench: Bench) -> list[Outcome]:
    """Two runs with the same arguments and stopped clocks that start together in one folder."""
    hook = bench.new_folder() / "sitecustomize.py"
    hook.write_text("import time\ntime.strftime = lambda *_: '20260101-000000'\n")
    runs, env = bench.new_folder(), os.environ | {"PYTHONPATH": str(hook.parent)}
    trainings = [bench.begin(runs, env=env) for _ in range(2)]
    codes, found = [training.end() for training in trainings], sorted(runs.iterdir())
    survived = codes == [0, 0] and len(found) == 2 and all(map(bench.ends_like_unbroken, found))
    return [Outcome("two runs in the same second", survived, f"exit {codes[0]} and {codes[1]}, {len(found)} folders")]


def read_only(bench: Bench) -> list[Outcome]:
    """Folders without write permission: for a new run, during a run, and for a run that resumes."""
    bench.unbroken  # noqa: B018
    runs = bench.new_folder()
    runs.chmod(0o555)
    new = bench.begin(runs, by=OBEDIENT)
    new.end()
    outcomes = [Outcome("a read-only folder for the run", new.refused_with(4), new.seen())]

    runs = bench.new_folder()
    training = bench.begin(runs, by=OBEDIENT)
    training.wait_for(lambda: next(runs.glob("*/checkpoints/*/sha256.json"), None))
    run = only(runs)
    with training.stopped():
        for folder in (run, run / "checkpoints"):
            folder.chmod(0o555)
    training.end()
    lost = training.reached - (bench.last_checkpoint(run) or 0)
    outcomes.append(Outcome("a run folder that becomes read-only", training.refused_with(4), training.seen(), lost))

    resumed = bench.resume(run, by=OBEDIENT)
    resumed.end()
    refused = resumed.refused_with(4)
    for folder in (run, run / "checkpoints"):
        folder.chmod(0o755)
    like_unbroken, _ = bench.resumes(run, by=OBEDIENT)
    outcomes.append(Outcome("a read-only run to resume", refused and like_unbroken, resumed.seen()))
    return outcomes


def tensorboard_gone(bench: Bench) -> list[Outcome]:
    """TensorBoard's events, and the package that writes them, removed during the run."""
    return [events_removed(bench), package_removed(bench)]


def events_removed(bench: Bench) -> Outcome:
    runs = bench.new_folder()
    training = bench.begin(runs)
    training.wait_for_step(8192)
    for path in runs.glob("*/events.*"):
        path.unlink()
    survived = training.end() == 0 and bench.ends_like_unbroken(only(runs))
    return Outcome("TensorBoard's file removed while running", survived, training.seen(), 0)


def package_removed(bench: Bench) -> Outcome:
    """Uses a copy of the package, which takes precedence over the installed one."""
    packages, runs = bench.new_folder(), bench.new_folder()
    copied = shutil.copytree(Path(tensorboard.__file__).parent, packages / "tensorboard")
    training = bench.begin(runs, env=os.environ | {"PYTHONPATH": str(packages)})
    training.wait_for_step(4096)
    shutil.rmtree(copied)
    survived = training.end() == 0 and bench.ends_like_unbroken(only(runs))
    return Outcome("the package tensorboard removed while running", survived, training.seen(), 0)


def folder_removed(bench: Bench) -> list[Outcome]:
    """The whole run folder removed during the run: there is nothing to resume, but one clear line."""
    runs = bench.new_folder()
    training = bench.begin(runs)
    training.wait_for_step(8192)
    with training.stopped():
        only(runs).rename(bench.new_folder() / "elsewhere")
    training.end()
    return [Outcome("the run folder removed while running", training.refused_with(4), training.seen())]


def memory(bench: Bench) -> list[Outcome]:
    """Resident memory of a process over many chunks, and over many checkpoints."""
    size = read_args(bench.stopped_run, bench.module.Args).update_size
    return [
        watched(bench, "memory over chunks", GROWTH, size, bench.args.chunks, ("--checkpoint-every", 0)),
        watched(
            bench,
            "memory over checkpoints",
            GROWTH_OF_CHECKPOINTS,
            size,
            bench.args.saves,
            ("--checkpoint-every", size),
        ),
    ]


def watched(bench: Bench, what: str, allowed: float, size: int, chunks: int, flags: tuple) -> Outcome:
    """Trains with a log point at every update of `size` steps, and measures the memory of the process."""
    flags += ("--log-every", size, "--eval-every", 0, "--total-timesteps", size * chunks)
    training = bench.begin(bench.new_folder(), *flags)
    process, points = psutil.Process(training.process.pid), []
    while training.process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            used = process.memory_info()
            points.append((training.reached // size, (used.rss - used.shared) / MB))  # without mapped files
        time.sleep(0.1)
    chunk, megabytes = np.array([point for point in points if 100 <= point[0] < chunks]).T
    slope = 1000 * theilslopes(megabytes, chunk).slope  # MB per thousand
    survived = training.end() == 0 and slope < allowed
    seen = f"exit {training.process.returncode}; {chunks} of them, from the 100th on {slope:+.2f} MB per 1,000"
    seen += f" ({megabytes[0]:.0f} MB then, at most {megabytes.max():.0f} MB, {megabytes[-1]:.0f} MB at the end)"
    return Outcome(what, survived, seen)


FAULTS = {
    "kill": kill,
    "sigterm": sigterm,
    "disk": disk,
    "stdout": stdout_full,
    "damage": damage,
    "layout": layout,
    "nan": nan,
    "same-second": same_second,
    "read-only": read_only,
    "tensorboard": tensorboard_gone,
    "folder": folder_removed,
    "memory": memory,
}


# -------------------------------------------------------------------------------------------------------------- main


def summary(outcomes: list[Outcome]) -> list[dict]:
    """A row of the table for every fault."""
    rows = []
    for fault in dict.fromkeys(outcome.fault for outcome in outcomes):
        of_it = [outcome for outcome in outcomes if outcome.fault == fault]
        lost = [outcome.steps_lost for outcome in of_it if outcome.steps_lost is not None]
        seen = Counter(outcome.seen for outcome in of_it)
        rows.append(
            {
                "fault": fault,
                "tried": len(of_it),
                "survived": sum(outcome.survived for outcome in of_it),
                "steps_lost_median": round(float(np.median(lost))) if lost else "",
                "steps_lost_largest": max(lost) if lost else "",
                "seen": most_common(seen),
            }
        )
    return rows


def most_common(seen: Counter) -> str:
    """The most common line, and the number of other lines."""
    (text, count), *others = seen.most_common()
    often = f"{count} x {text}" if count > 1 else text
    return often + f" (and {len(others)} other lines)" * bool(others)


def main(args: Args) -> bool:
    """Tries the faults, writes the table, and returns whether all were survived."""
    names = args.faults or tuple(FAULTS)
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        raise UserError(f"--faults {unknown[0]}: use some of {', '.join(FAULTS)}")
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(args, Path(folder))
        try:
            for name in names:
                began, some = time.monotonic(), FAULTS[name](bench)
                outcomes += some
                for row in summary(some):
                    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
                print(f"# {name} took {time.monotonic() - began:.0f} s", flush=True)
        finally:
            for process in bench.processes:
                process.kill()
    rows = [{"script": args.script} | row for row in summary(outcomes)]
    write_table(Path(args.out), rows)
    return all(outcome.survived for outcome in outcomes)


if __name__ == "__main__":
    try:
        sys.exit(0 if launch(main, Args) else 1)
    except RuntimeError as error:
        sys.exit(f"soak.py: error: {error}")
