"""How training scales: measures the times of an update and of an all-reduce, and estimates up to 256 devices from them.

    python benchmark/scaling.py --flags="--env-id CartPoleEasy --partial-obs --hidden-size 128"

Every device has its own NUM_ENVS environments, so an update takes as long as on one device, plus an all-reduce of all
gradients for each gradient step. The all-reduce is timed between two processes on this machine (gloo over loopback),
for several sizes, and a line is fitted: latency + bytes / bandwidth. For n devices, a ring takes 2 (n - 1) messages of
1 / n of the gradients, and a tree takes 2 log2(n) messages of all gradients (Thakur et al. 2005, "Optimization of
Collective Communication Operations in MPICH"). The faster one counts. To check the estimate for two devices, it also
trains with one process and with two, each on one core.
"""

import dataclasses
import importlib
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
from jax.extend.backend import clear_backends
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from popgym_arcade.analysis.agents import params_like
from popgym_arcade.analysis.command_line import launch
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import Count, PathName, Range, check_limits
from popgym_arcade.baselines.running.command_line import parse_args
from popgym_arcade.baselines.running.files import write_csv
from popgym_arcade.baselines.running.memory_use import byte_size

ROOT = Path(__file__).parent.parent
DEVICES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SIZES = tuple(4**i for i in range(5, 13))  # bytes, 1 KB to 16 MB
REPEATS = 15


@dataclass(frozen=True)
class Args:
    script: str = "pqn_rnn"
    """training script"""
    flags: str = "--env-id CartPoleEasy --partial-obs --hidden-size 128 --num-minibatches 8"
    """flags of the run on one device; NUM_ENVS is multiplied by the number of devices"""
    num_envs: Count = 32
    """environments of each device"""
    updates: Annotated[int, Range(2, 1_000)] = 6
    """updates of each run; the first does not count"""
    out: PathName = "runs/scaling"
    """tables and picture to write: OUT.csv, OUT_allreduce.csv, OUT.png"""
    worker: str = ""
    """for internal use"""


# ---------------------------------------------------------------------------------------------------------- all-reduce


def free_address() -> str:
    """HOST:PORT of this machine, with a free port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def time_all_reduces(address: str, process_id: int) -> None:
    """One of two processes: prints a line for each size, with its bytes and the median seconds of an all-reduce."""
    clear_backends()  # importing popgym_arcade has initialised them
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, 2, process_id)
    mesh = jax.make_mesh((2,), ("devices",))
    apart, same = NamedSharding(mesh, P("devices")), NamedSharding(mesh, P())
    add_up = jax.jit(lambda x: x.sum(axis=0), out_shardings=same)
    for size in SIZES:
        x = jax.make_array_from_process_local_data(apart, np.ones((1, size // 4), np.float32))
        seconds = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            add_up(x).block_until_ready()
            seconds.append(time.perf_counter() - began)
        print(size, float(np.median(seconds)), flush=True)
    jax.distributed.shutdown()


def measure_all_reduces() -> tuple[np.ndarray, np.ndarray]:
    """Sizes in bytes, and the seconds of an all-reduce of each size between two processes, each on its own core."""
    address = free_address()
    line = [sys.executable, str(Path(__file__)), "--worker"]
    workers = [
        subprocess.Popen([*on_core(i), *line, f"{address},{i}"], stdout=subprocess.PIPE, text=True) for i in range(2)
    ]
    said = [worker.communicate()[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        raise RuntimeError("the all-reduce between two processes failed")
    table = np.array([line.split() for line in said[0].splitlines() if line[:1].isdigit()], float)
    return table[:, 0], table[:, 1]


def fitted(sizes: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Latency of a message in seconds and bandwidth in bytes per second, from all-reduces between two processes.

    Each all-reduce is two messages of half the bytes. Errors are relative, so that small sizes determine the latency.
    """
    design = np.stack([np.full_like(sizes, 2.0), sizes], axis=1) / seconds[:, None]
    latency, per_byte = np.linalg.lstsq(design, np.ones_like(seconds), rcond=None)[0]
    return max(latency, 1e-7), 1 / per_byte


def all_reduce_seconds(devices: int, size: float, latency: float, bandwidth: float) -> float:
    """Seconds of an all-reduce of `size` bytes over `devices`: the faster of a ring and a tree."""
    ring = 2 * (devices - 1) * (latency + size / devices / bandwidth)
    tree = 2 * math.log2(devices) * (latency + size / bandwidth) if devices > 1 else 0.0
    return min(ring, tree)


# ------------------------------------------------------------------------------------------------------------ training


ON_CORE = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); os.execv(sys.argv[2], sys.argv[2:])"


def on_core(core: int) -> list[str]:
    """The start of a command line that pins a command to one core; empty if the system cannot do that."""
    return [sys.executable, "-c", ON_CORE, str(core)] if hasattr(os, "sched_setaffinity") else []


@dataclass(frozen=True)
class Training:
    """Measurements of one run: seconds of an update, its gradient steps, bytes of the gradients."""

    update_seconds: float
    gradient_steps: int
    gradient_bytes: int


def train(args: Args, processes: int) -> Training:
    """Trains for a few updates in one or more processes, each on its own core with NUM_ENVS environments."""
    script = importlib.import_module(args.script)
    flags = [*args.flags.split(), "--num-envs", str(processes * args.num_envs)]
    parsed = parse_args(script.Args, flags)
    size = parsed.update_size
    flags += ["--total-timesteps", str(args.updates * size), "--log-every", str(size), "--eval-every", "0"]
    flags += ["--eval-episodes", str(processes), "--checkpoint-every", "0"]
    address = free_address()
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, str(ROOT / f"{args.script}.py"), *flags, "--run-dir", folder]
        together = ["--distributed", "--coordinator-address", address, "--num-processes", str(processes)]
        lines = [
            [*on_core(i), *line, *(together + ["--process-id", str(i)]) * (processes > 1)] for i in range(processes)
        ]
        started = [subprocess.Popen(one, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for one in lines]
        codes = [process.wait() for process in started]
        if any(codes):
            raise RuntimeError(f"training {args.script}.py in {processes} processes failed")
        (run,) = (path for path in Path(folder).iterdir() if path.is_dir())
        rates = [point.value for point in EventAccumulator(str(run)).Reload().Scalars("charts/SPS")][1:]
    return Training(
        update_seconds=size / float(np.median(rates)),
        gradient_steps=parsed.update_epochs * parsed.num_minibatches,
        gradient_bytes=byte_size(params_like(parsed)),
    )


# -------------------------------------------------------------------------------------------------------------- report


def expected(one: Training, latency: float, bandwidth: float) -> list[dict]:
    """A row for each number of devices: seconds of an update and of its all-reduces, efficiency, speed-up."""
    rows = []
    for devices in DEVICES:
        waiting = one.gradient_steps * all_reduce_seconds(devices, one.gradient_bytes, latency, bandwidth)
        efficiency = one.update_seconds / (one.update_seconds + waiting)
        rows.append({
            "devices": devices,
            "update_seconds": round(one.update_seconds + waiting, 4),
            "all_reduce_seconds": round(waiting, 4),
            "efficiency": round(efficiency, 3),
            "speed_up": round(devices * efficiency, 2),
        })  # fmt: skip
    return rows


def draw(rows: list[dict], measured: float, path: Path) -> None:
    """Speed-up over devices: expected, measured with two, and the ideal."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    devices = [row["devices"] for row in rows]
    axes.loglog(devices, devices, color="gray", linestyle="--", label="ideal")
    axes.loglog(devices, [row["speed_up"] for row in rows], marker="o", label="expected from measured times")
    axes.loglog(
        [2], [measured], marker="x", markersize=10, linestyle="", color="black", label="measured, two processes"
    )
    axes.set(xlabel="devices, each with as many environments", ylabel="steps per second, relative to one device")
    axes.set_xticks(devices, devices)
    axes.set_yticks(devices, devices)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def main(args: Args) -> None:
    """Measures, prints the estimates, and writes the tables and the picture."""
    if args.worker:
        address, process_id = args.worker.split(",")
        return time_all_reduces(address, int(process_id))
    check_limits(args)
    if not (ROOT / f"{args.script}.py").is_file():
        raise UserError(f"--script {args.script}: there is no such script")
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    sizes, seconds = measure_all_reduces()
    times = [{"bytes": int(size), "seconds": f"{t:.6f}"} for size, t in zip(sizes, seconds, strict=True)]
    write_csv(Path(f"{out}_allreduce.csv"), times[0], times)
    latency, bandwidth = fitted(sizes, seconds)
    print(f"a message between two processes: {latency * 1e6:.0f} us, {bandwidth / 1e9:.2f} GB/s")
    one, two = train(args, 1), train(args, 2)
    rows = expected(one, latency, bandwidth)
    measured = 2 * one.update_seconds / two.update_seconds
    print(f"one process: {dataclasses.asdict(one)}\ntwo processes: {measured:.2f} times as fast")
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    rows[1]["measured_speed_up"] = round(measured, 2)
    write_csv(Path(f"{out}.csv"), ("measured_speed_up", *rows[0]), rows)
    draw(rows, measured, Path(f"{out}.png"))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    try:
        launch(main, Args)
    except RuntimeError as error:
        sys.exit(f"scaling.py: error: {error}")
