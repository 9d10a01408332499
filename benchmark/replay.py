"""What a replay buffer costs: bytes per step, peak memory, steps per second. Each id and storage has its own process.

    python benchmark/replay.py                                                  # a million steps of all ten families
    python benchmark/replay.py --storages states frames --buffer-size 50000 --env-ids NavigatorEasy --out ...

Peak memory is the largest resident set of the process on a CPU, including compilation, and the device's own peak on a
GPU. `batch_mb` is what the compiled program takes in addition to its state. The rate is the median of three timed runs
after learning has started.
"""

import importlib
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from command_line import read_args
from training_speed import write_table

ROOT = Path(__file__).parent.parent
SCRIPTS = ("dqn_mlp", "dqn_rnn")
FAMILIES = "AutoEncode BattleShip Breakout CartPole CountRecall MineSweeper Navigator NoisyCartPole Skittles Tetris"


@dataclass(frozen=True)
class Args:
    script: str = "dqn_mlp"
    """dqn_mlp or dqn_rnn"""
    env_ids: tuple[str, ...] = tuple(f"{family}Hard" for family in FAMILIES.split())
    """popgym_arcade ids; the partially observable twin is played"""
    storages: tuple[str, ...] = ("states",)
    """values of --storage"""
    buffer_size: int = 1_000_000
    """steps in the buffer"""
    steps: int = 8_192
    """steps of a timed run"""
    flags: str = ""
    """more flags of the script"""
    out: str = "runs/replay.csv"
    """table to write"""


def measure(script: str, steps: int, flags: list[str]) -> dict:
    """Trains for a few updates in this process, and returns the measurements."""
    sys.path.insert(0, str(ROOT))
    module = importlib.import_module(script)
    import jax
    import jax.numpy as jnp

    from popgym_arcade.baselines.running.command_line import parse_args
    from popgym_arcade.baselines.running.memory_use import memory_needed
    from popgym_arcade.baselines.running.metrics import repeat

    args = parse_args(module.Args, flags)
    init, update = module.make_train(args)
    state = jax.jit(init)(jax.random.key(0))
    program = jax.jit(repeat(update), donate_argnums=0).lower(state, jnp.int32(1)).compile()
    updates = max(1, steps // args.update_size)
    rates = []
    for _ in range(5):  # the first fills the buffer, the second warms up
        began = time.perf_counter()
        state, sums = jax.block_until_ready(program(state, jnp.int32(updates)))
        rates.append(updates * args.update_size / (time.perf_counter() - began))
    assert int(sums["gradient_steps"]) == updates * args.gradient_steps, "raise --steps: learning has not started"
    held = args.buffer_length * args.num_envs * (args.segment if script == "dqn_rnn" else 1)
    buffer_bytes = memory_needed(args, module)["replay buffer"]
    stats = jax.devices()[0].memory_stats()
    peak = stats["peak_bytes_in_use"] if stats else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "steps_held": held,
        "bytes_a_step": round(buffer_bytes / held, 1),
        "buffer_mb": round(buffer_bytes / 1e6),
        "batch_mb": round(program.memory_analysis().temp_size_in_bytes / 1e6, 1),
        "peak_memory_mb": round(peak / 1e6),
        "steps_per_second": round(sorted(rates[2:])[1]),
    }


def main(args: Args) -> None:
    """Measures every id and storage in a process of its own, and writes the table after each of them."""
    if args.script not in SCRIPTS:
        sys.exit(f"replay.py: error: --script {args.script} has no replay buffer: use {' or '.join(SCRIPTS)}")
    rows = []
    for env_id in args.env_ids:
        for storage in args.storages:
            flags = f"--env-id {env_id} --partial-obs --storage {storage} --buffer-size {args.buffer_size}"
            flags += f" --total-timesteps {max(args.buffer_size, 10 * args.steps)} --learning-starts {args.steps // 2}"
            flags += f" {args.flags}"
            line = [sys.executable, __file__, "--measure", args.script, str(args.steps), *flags.split()]
            measured = subprocess.run(line, stdout=subprocess.PIPE, text=True)
            if measured.returncode:
                sys.exit(f"replay.py: error: {env_id} with {storage} could not be measured, see above")
            found = json.loads(measured.stdout.splitlines()[-1])
            rows.append({"script": args.script, "env_id": env_id, "storage": storage} | found)
            print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
            write_table(Path(args.out), rows)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]), sys.argv[4:])))
    else:
        main(read_args(Args, __doc__))
