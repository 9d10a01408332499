"""Steps per second, compile seconds and peak memory of pqn_rnn.py, one process per memory and hidden size.

    python benchmark/training_speed.py --memories LRU MinGRU GRU --hidden-sizes 512 128

Each process trains CartPoleEasy (partially observable, 128 px) for a few log points; the rate is the median over the
points after the first, as TensorBoard's charts/SPS has it. Peak memory is the process's largest resident set.
"""

import csv
import itertools
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import tyro
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Args:
    memories: tuple[str, ...] = ("MinGRU", "LRU", "GRU")
    """values of --memory"""
    hidden_sizes: tuple[int, ...] = (512, 128)
    """values of --hidden-size"""
    encoders: tuple[str, ...] = ("patch",)
    """values of --encoder"""
    points: int = 6
    """log points a process; the first is left out"""
    point_steps: int = 4096
    """environment steps between log points"""
    out: str = "benchmark/results/training_speed.csv"
    """table to write"""


def measure(script: str, flags: str, points: int, point_steps: int) -> dict:
    """Rate, compile seconds and peak memory of one training, in a process of its own.

    Raises:
        RuntimeError: with its last line when the training fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        flags += f" --total-timesteps {points * point_steps} --log-every {point_steps}"
        flags += f" --eval-every 0 --eval-episodes 1 --checkpoint-every 0 --run-dir {folder}"
        with open(Path(folder) / "output", "w+") as output:
            line = [sys.executable, str(ROOT / script), *flags.split()]
            process = subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(process.pid, 0)  # this process's own peak, not that of all children so far
            output.seek(0)
            if status:
                raise RuntimeError(f"{script} {flags}: {(output.read().splitlines() or ['no output'])[-1]}")
        run = next(path for path in Path(folder).iterdir() if path.is_dir())
        curves = EventAccumulator(str(run)).Reload()
        rates = [point.value for point in curves.Scalars("charts/SPS")][1:]
        return {
            "steps_per_second": round(float(np.median(rates))),
            "slowest": round(min(rates)),
            "fastest": round(max(rates)),
            "compile_seconds": round(curves.Scalars("charts/compile_seconds")[0].value, 1),
            "peak_memory_mb": usage.ru_maxrss // 1024,
        }


def main(args: Args) -> None:
    rows = []
    for encoder, hidden_size, memory in itertools.product(args.encoders, args.hidden_sizes, args.memories):
        flags = f"--env-id CartPoleEasy --partial-obs --memory {memory} --hidden-size {hidden_size} --encoder {encoder}"
        about = {"memory": memory, "hidden_size": hidden_size, "encoder": encoder}
        rows.append(about | measure("pqn_rnn.py", flags, args.points, args.point_steps))
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    write_table(Path(args.out), rows)


def write_table(out: Path, rows: list[dict]) -> None:
    """The rows as CSV, with what they were measured on in every one."""
    machine = {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    machine |= {"jax": jax.__version__, "device": jax.devices()[0].device_kind}
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        table = csv.DictWriter(file, [*rows[0], *machine])
        table.writeheader()
        table.writerows([row | machine for row in rows])


if __name__ == "__main__":
    try:
        main(tyro.cli(Args, description=__doc__))
    except RuntimeError as error:
        sys.exit(f"training_speed.py: error: {error}")
