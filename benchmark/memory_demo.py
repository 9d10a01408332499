"""Shows what memory is worth: trains the same agent with and without memory on a game that hides part of its state.

    make train
    python benchmark/memory_demo.py --env-id SkittlesEasy --seed 1      # takes the flags of ppo_rnn.py

Runs ppo_rnn.py with `--memory GRU` and, at the same time, with `--memory MLP`, the same network without memory.
Prints both returns next to those of the random policy and of the best player. A new folder in runs/ receives both run
folders, `with_and_without_memory.png`, and `episode.gif`, an episode of the agent with memory. Flags override DEFAULTS.
"""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # this process and both runs share a GPU's memory

from popgym_arcade.analysis.reference_returns import reference_returns  # noqa: E402
from popgym_arcade.analysis.tables import read_csv  # noqa: E402
from popgym_arcade.baselines.scripts import read_about  # noqa: E402

SCRIPT = "ppo_rnn.py"
DEFAULTS = "--env-id CountRecallEasy --partial-obs --total-timesteps 300000 --eval-every 30000 --eval-episodes 64"
DEFAULTS += " --num-devices 1 --checkpoint-every 0 --capture-video"
COLORS = {"with memory": "#1864ab", "without memory": "#d9480f"}
MEMORIES = {"with memory": "GRU", "without memory": "MLP"}
SHOWN = "with memory"  # in the terminal
INTERRUPTED = 130  # exit code of a run after Ctrl-C
OURS = {"--memory", "--run-dir", "--resume", "--from-run"}  # flags that this script sets, or that rule out a comparison


def new_folder() -> Path:
    """A new folder in runs/, named after the time."""
    name = time.strftime("memory_demo-%Y%m%d-%H%M%S")
    for n in itertools.count(1):
        folder = ROOT / "runs" / (name if n == 1 else f"{name}-{n}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder


def train_both(flags: list[str], folder: Path) -> dict[str, Path]:
    """Trains with memory and without at the same time, and returns both run folders.

    The terminal shows the run with memory; the other writes to a file. If one fails, the program ends with its
    exit code. A rejected flag leaves no folder behind.
    """
    command = [sys.executable, SCRIPT, *DEFAULTS.split(), *flags]
    log = folder / "without_memory.log"
    trainings = {}
    with log.open("w") as file, contextlib.ExitStack() as stack:
        print(f"the same agent trains without memory at the same time, see {log}", flush=True)
        for label, memory in MEMORIES.items():
            output = {} if label == SHOWN else {"stdout": file, "stderr": subprocess.STDOUT}
            own = ["--memory", memory, "--run-dir", str(folder / memory)]
            trainings[label] = subprocess.Popen([*command, *own], cwd=ROOT, **output)
            stack.callback(stop, trainings[label])
        failed = first_failure(trainings)
    if failed and failed != SHOWN:
        print(log.read_text(), end="", file=sys.stderr)
    if failed:
        if not any((folder / memory).exists() for memory in MEMORIES.values()):
            shutil.rmtree(folder)
        code = trainings[failed].returncode
        sys.exit(code if code > 0 else 128 - code)
    return {label: next((folder / memory).iterdir()) for label, memory in MEMORIES.items()}


def first_failure(trainings: dict[str, subprocess.Popen]) -> str | None:
    """The label of the first run that fails; None if both succeed. After Ctrl-C, waits until both have saved."""
    running = dict(trainings)
    while running:
        label = next((label for label, training in running.items() if training.poll() is not None), None)
        if label is None:
            with contextlib.suppress(KeyboardInterrupt):  # the runs receive it too
                time.sleep(0.2)
        elif code := running.pop(label).returncode:
            if code == INTERRUPTED:
                for other in running.values():
                    wait(other)
            return label
    return None


def wait(training: subprocess.Popen) -> int:
    """Its exit code. Ignores Ctrl-C, because the run receives it too."""
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            return training.wait()


def stop(training: subprocess.Popen) -> None:
    """Stops a run unless it has ended. It saves a checkpoint before it exits."""
    if training.poll() is None:
        training.terminate()
        wait(training)


def ended(number: int, frame) -> None:
    """A signal handler that exits, so that `stop` is called."""
    sys.exit(128 + number)


def curve(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and mean returns over seeds: of the random policy at step 0, and then of the greedy policy."""
    rows = read_csv(run / "eval.csv")
    steps = sorted({int(row["global_step"]) for row in rows})
    means = [np.mean([float(row["return_mean"]) for row in rows if int(row["global_step"]) == step]) for step in steps]
    return np.array(steps), np.array(means)


def picture(curves: dict, levels: dict, title: str, path: Path) -> None:
    """Both learning curves, between the random policy's return and the best."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for label, (steps, means) in curves.items():
        axes.plot(steps, means, color=COLORS[label], marker="o", markersize=4, label=f"{label} ({MEMORIES[label]})")
    for label, level in levels.items():
        axes.axhline(level, color="grey", linewidth=1, linestyle=":")
        axes.annotate(label, (1.01, level), xycoords=("axes fraction", "data"), va="center", color="grey")
    axes.margins(y=0.12)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set(title=title, xlabel="environment steps", ylabel="return of the greedy policy", xlim=(0, None))
    axes.legend(frameon=False, loc="center left" if len(levels) > 1 else "best")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(flags: list[str]) -> Path:
    """Trains both agents, prints the table, and returns the folder with the picture and the video."""
    refused = OURS & {flag.partition("=")[0].replace("_", "-") for flag in flags}
    if refused:
        print(f"memory_demo.py: error: {min(refused)}: leave it out, each run has its own", file=sys.stderr)
        sys.exit(2)
    folder = new_folder()
    runs = train_both(flags, folder)
    args = read_about(runs["with memory"])["args"]
    curves = {label: curve(run) for label, run in runs.items()}
    levels = {"random policy": float(np.mean([means[0] for _, means in curves.values()]))}
    reference = reference_returns().get(args["env_id"])  # None for other libraries' ids
    if reference:
        levels = {"best possible": reference.best} | levels
    title = f"{args['env_id']}, {'partially' if args['partial_obs'] else 'fully'} observable"
    picture(curves, levels, title, folder / "with_and_without_memory.png")
    video = runs["with memory"] / "episode.gif"
    if video.exists():
        shutil.copyfile(video, folder / "episode.gif")
    reached = {f"{label} ({MEMORIES[label]})": means[-1] for label, (_, means) in curves.items()}
    print(f"\n{title}, greedy return after {curves['with memory'][0][-1]:,} steps")
    for label, value in sorted({**levels, **reached}.items(), key=lambda item: -item[1]):
        print(f"  {label:<26}{value:6.3f}")
    print(f"picture and video in {folder}")
    return folder


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # for | head
        print(__doc__)
        sys.exit(subprocess.run([sys.executable, SCRIPT, "--help"], cwd=ROOT).returncode)
    signal.signal(signal.SIGTERM, ended)
    main(sys.argv[1:])
