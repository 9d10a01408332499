"""What a run survives: a full disk, a loss that becomes NaN, kill -9 while saving. benchmark/soak.py tries more.

pqn_mlp.py stands for all scripts. Signals and damaged checkpoints are in test_resume.py.
"""

import contextlib
import json
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import psutil
import pytest
from runs import FLAGS, ROOT, assert_end_alike, command, loaded_params, only, restored, resumed, saved_steps
from scripts import small
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import pqn_mlp
from popgym_arcade.baselines.errors import CannotWrite, Diverged, UserError
from popgym_arcade.baselines.running import checkpoints
from popgym_arcade.baselines.running import run as running
from popgym_arcade.baselines.running.folder import one_line_for_disk_errors
from popgym_arcade.baselines.running.metrics import check_finite
from popgym_arcade.baselines.running.records import Records
from popgym_arcade.baselines.running.run import Run

LINE = "fix that, then resume from the last checkpoint"
MB = 2**20


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The folder of a run that nothing happens to."""
    return pqn_mlp.main(small("pqn_mlp", run_dir=str(tmp_path_factory.mktemp("unbroken"))))


@pytest.fixture
def begin(tmp_path):
    """Starts the script on the command line; kills what is left of it at the end."""
    processes = []

    def start(*flags, by=()):
        processes.append(command(*flags, by=by))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def assert_one_line(process, code, words):
    err = process.communicate(timeout=300)[1]
    assert process.returncode == code, err
    assert err.startswith("pqn_mlp.py: error: ") and err.count("\n") == 1 and words in err


@contextlib.contextmanager
def files_up_to(size):
    """Inside it no file of this process grows above this many bytes: the kernel's own error, also for root."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def from_call(number, function, instead):
    """`function`, replaced by `instead` from the call of that number on (the first is 1)."""
    calls = []

    def wrapped(*args):
        calls.append(args)
        return function(*args) if len(calls) < number else instead(*args)

    return wrapped


# ---------------------------------------------------------------------------------------------------------- the loss


def test_a_nan_ends_the_run_and_earlier_checkpoints_can_be_resumed(unbroken, tmp_path, monkeypatch):
    train = Run.train

    def poisoned(run, train_chunk, state):
        params = jax.tree.map(lambda x: x * np.float32(np.nan), state.params)
        return train(run, train_chunk, state.replace(params=params))

    with monkeypatch.context() as patch:
        patch.setattr(Run, "train", from_call(3, train, poisoned))
        with pytest.raises(Diverged, match=r"^\w+ became nan before step 192: .*kept") as error:
            pqn_mlp.main(small("pqn_mlp", run_dir=str(tmp_path)))
    assert error.value.exit_code == 3 and "\n" not in str(error.value)
    run = only(tmp_path)
    assert saved_steps(run) == [64, 128]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(loaded_params(run)))
    assert_end_alike(resumed(run), unbroken)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_every_number_that_is_not_finite_is_noticed(bad):
    args = small("pqn_mlp", num_seeds=3)
    check_finite(args, {"td_loss": np.ones(3), "episodes": np.arange(3)}, 64)
    with pytest.raises(Diverged, match=f"grad_norm became {bad} in 1 of the seeds before step 64"):
        check_finite(args, {"td_loss": np.ones(3), "grad_norm": np.array([1, bad, 1])}, 64)


@pytest.mark.slow
def test_an_overflow_on_the_command_line_is_one_line_and_exit_code_3(begin, tmp_path):
    """A cart that runs away: soon the square of its place is more than float32 holds."""
    world = "polemass_length=0.0 x_threshold=1e38 theta_threshold_radians=1e38 force_mag=5e18"
    line = f"{FLAGS} --total-timesteps 50000 --log-every 320 --checkpoint-every 320 --eval-every 0 --env-params"
    process = begin(*line.split(), *world.split(), "max_steps_in_episode=2000", "--run-dir", tmp_path)
    assert_one_line(process, 3, "before step ")
    run = only(tmp_path)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(loaded_params(run)))


# ---------------------------------------------------------------------------------------------------------- the disk


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of orbax's threads
def test_a_disk_that_is_full_while_saving(unbroken, tmp_path, monkeypatch):
    save = running.save_checkpoint

    def save_on_full_disk(*args):
        with files_up_to(1000):
            save(*args)

    with monkeypatch.context() as patch:
        patch.setattr(running, "save_checkpoint", from_call(2, save, save_on_full_disk))
        with pytest.raises(CannotWrite, match=f"^{re.escape(str(tmp_path))}: File too large; {LINE}$") as error:
            pqn_mlp.main(small("pqn_mlp", run_dir=str(tmp_path)))
    assert error.value.exit_code == 4
    run = only(tmp_path)
    assert saved_steps(run) == [64] and len(list((run / "checkpoints").iterdir())) == 2  # one is unfinished
    assert_end_alike(resumed(run), unbroken)
    assert saved_steps(run) == sorted(int(path.name) for path in (run / "checkpoints").iterdir()) == [128, 192, 256]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's thread
def test_a_disk_that_is_full_while_logging(unbroken, tmp_path, monkeypatch):
    log, full = Run.log, contextlib.ExitStack()

    def log_on_full_disk(run, curves):  # TensorBoard's thread writes when it likes: the disk stays full
        full.enter_context(files_up_to(max(path.stat().st_size for path in run.folder.glob("events*"))))
        log(run, curves)

    with monkeypatch.context() as patch, full:
        patch.setattr(Run, "log", from_call(3, log, log_on_full_disk))
        with pytest.raises(CannotWrite, match=f"^{re.escape(str(tmp_path))}: File too large; {LINE}$"):
            pqn_mlp.main(small("pqn_mlp", run_dir=str(tmp_path)))
    run = only(tmp_path)
    assert saved_steps(run) == [64, 128]
    assert_end_alike(resumed(run), unbroken)


def test_a_disk_that_is_full_while_writing_the_table(unbroken, tmp_path, monkeypatch):
    write = Records.write_evaluations

    def write_on_full_disk(records):
        with files_up_to((records.folder / "eval.csv").stat().st_size):
            write(records)

    with monkeypatch.context() as patch:  # the third time is that of step 128
        patch.setattr(Records, "write_evaluations", from_call(3, write, write_on_full_disk))
        with pytest.raises(CannotWrite, match=f"^{re.escape(str(tmp_path))}: File too large; {LINE}$"):
            pqn_mlp.main(small("pqn_mlp", run_dir=str(tmp_path)))
    run = only(tmp_path)
    assert saved_steps(run) == [64]
    assert_end_alike(resumed(run), unbroken)


@pytest.mark.slow
def test_a_full_disk_on_the_command_line_is_one_line_and_exit_code_4(begin, tmp_path):
    """Threads of orbax and TensorBoard print no stack traces beside it."""
    process = begin(*FLAGS.split(), "--run-dir", tmp_path, by=["sh", "-c", 'ulimit -f 1; exec "$@"', "sh"])
    assert_one_line(process, 4, f"{tmp_path}: File too large; {LINE}")


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process can be set on Linux only")
@pytest.mark.slow
def test_a_full_disk_while_saving_on_the_command_line_is_one_line(begin, tmp_path):
    process = begin(*FLAGS.split(), "--total-timesteps", "1000000", "--eval-every", "0", "--run-dir", tmp_path)
    while not list(tmp_path.glob("*/checkpoints/*/sha256.json")) and process.poll() is None:
        time.sleep(0.01)
    saved = max(path.stat().st_size for path in tmp_path.glob("*/checkpoints/**/_METADATA"))
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (saved - 1, resource.RLIM_INFINITY))
    assert_one_line(process, 4, f"{tmp_path}: File too large; {LINE}")
    assert saved_steps(only(tmp_path))


OBEDIENT = [  # starts what follows without root's right to write where nobody may: CAP_DAC_OVERRIDE, see prctl(2)
    *(sys.executable, "-Sc"),
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])",
]


@pytest.mark.skipif(sys.platform != "linux", reason="root keeps its rights elsewhere")
def test_a_folder_that_may_not_be_written_to(begin, tmp_path):
    tmp_path.chmod(0o555)
    try:
        process = begin(*FLAGS.split(), "--run-dir", tmp_path, by=OBEDIENT)
        assert_one_line(process, 4, f"--run-dir {tmp_path}: Permission denied")
    finally:
        tmp_path.chmod(0o755)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [OSError(12, "Cannot allocate memory"), ValueError("a shape"), RuntimeError("XLA")])
def test_an_error_that_is_none_of_the_disk_is_shown_as_it_is(kind):
    with pytest.raises(type(kind)) as error, one_line_for_disk_errors("runs"):
        raise kind
    assert error.value is kind


def test_the_events_are_removed_while_it_runs(unbroken, tmp_path, monkeypatch):
    log = Run.log

    def remove_and_log(run, curves):
        for path in run.folder.glob("events.*") if run.step == 128 else ():
            path.unlink()
        log(run, curves)

    monkeypatch.setattr(Run, "log", remove_and_log)
    run = pqn_mlp.main(small("pqn_mlp", run_dir=str(tmp_path)))
    events = EventAccumulator(str(run)).Reload()
    assert [point.step for point in events.Scalars("losses/td_loss")] == [128, 192, 256]  # that of 64 is gone
    assert_end_alike(run, unbroken)


# ------------------------------------------------------------------------------------------------- kill -9, versions


KILLED = """
import os, sys
import orbax.checkpoint as ocp
import pqn_mlp
from popgym_arcade.baselines.running import checkpoints
from popgym_arcade.baselines.running.command_line import parse_args

def killed_in_second_call(function, calls=[]):
    def wrapped(*args, **options):
        calls.append(args)
        return function(*args, **options) if len(calls) < 2 else os.kill(os.getpid(), 9)
    return wrapped

PLACE.NAME = killed_in_second_call(PLACE.NAME)
pqn_mlp.main(parse_args(pqn_mlp.Args, sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "name", "left"),
    [
        ("ocp.PyTreeCheckpointHandler", "finalize", r"128\.orbax-checkpoint-tmp"),  # written, not yet renamed
        pytest.param("checkpoints", "file_digests", "128", marks=pytest.mark.thorough),  # renamed, without digests
    ],
)
def test_killed_while_it_saves_and_resumed_equals_unbroken(unbroken, tmp_path, place, name, left):
    code = KILLED.replace("PLACE", place).replace("NAME", name)
    line = [sys.executable, "-c", code, *FLAGS.split(), "--run-dir", str(tmp_path)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    run = only(tmp_path)
    assert saved_steps(run) == [64]
    assert any(re.match(left, path.name) for path in (run / "checkpoints").iterdir())
    assert_end_alike(resumed(run), unbroken)


def test_a_checkpoint_whose_files_another_version_would_have_written_is_refused(unbroken, tmp_path):
    """Its digests are right, but there is nothing that orbax can read it by."""
    run = shutil.copytree(unbroken, tmp_path / "run")
    checkpoint = run / "checkpoints" / "256"
    (checkpoint / "default" / "_METADATA").unlink()
    (checkpoint / "sha256.json").write_text(json.dumps(checkpoints.file_digests(checkpoint)))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="256") as error:
        restored(run)
    assert "\n" not in str(error.value) and error.value.exit_code == 2
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


# ------------------------------------------------------------------------------------------------------------ memory


def test_memory_does_not_grow_with_the_chunks(tmp_path, monkeypatch):
    """Of this process, without the files that it has mapped; the first 200 chunks are left out.

    A leak grows in every hundred chunks. The allocator, which keeps what other tests have freed, now and then takes
    some MB at once: the median of the growths ignores a single such step. Arrays are counted exactly.
    """
    process, used, arrays, log = psutil.Process(), [], [], Run.log

    def log_and_look(*args):
        log(*args)
        now = process.memory_info()
        used.append((now.rss - now.shared) / MB)
        arrays.append(len(jax.live_arrays()))

    monkeypatch.setattr(Run, "log", log_and_look)
    cadences = {"log_every": 32, "eval_every": 0, "checkpoint_every": 0}
    pqn_mlp.main(small("pqn_mlp", total_timesteps=32 * 600, run_dir=str(tmp_path), **cadences))
    assert len(used) == 600
    growths = np.diff([np.median(used[start : start + 100]) for start in range(200, 600, 100)])
    assert np.median(growths) < 1, used[::50]
    assert max(arrays[200:]) <= max(arrays[:200]), arrays[::50]
