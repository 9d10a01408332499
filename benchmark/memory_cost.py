"""What each memory costs: parameters, bytes of state, milliseconds to play and to learn, and megabytes to learn.

    python benchmark/memory_cost.py                                    # all memories, a few minutes on two cores
    python benchmark/memory_cost.py --memories LRU GRU --hidden-size 512 --out runs/wide.csv
    python benchmark/training_speed.py --docs docs/memories.md --out benchmark/results/memory_cost   # fills in the page

It times the module `Memory` of popgym_arcade.baselines (two layers and what is between them) on random features.
Encoder, environment and targets cost the same with every memory; docs/performance.md has whole runs. Run nothing
else on the machine.
"""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
from memax.equinox.scans import semigroup_scan
from training_speed import write_table

from popgym_arcade.analysis.command_line import launch
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import Count, PathName, check_limits
from popgym_arcade.baselines.networks.memory import MEMORIES, Memory

FEATURES = 256 + 5  # the encoder's features and the previous action, one of five
LONG = 0.2  # seconds; a timed call repeats the program until it takes about this long


@dataclass(frozen=True)
class Args:
    memories: tuple[str, ...] = tuple(MEMORIES)
    """values of --memory"""
    hidden_size: Count = 128
    """H, width of the two layers"""
    num_envs: Count = 32
    """E, sequences at once"""
    num_steps: Count = 32
    """T, steps of a rollout"""
    repeats: Count = 5
    """timed calls; the median counts"""
    out: PathName = "runs/memory_cost.csv"
    """table to write"""

    def checked(self) -> "Args":
        """These arguments. Raises UserError for a wrong value, before anything is measured or written."""
        unknown = [name for name in self.memories if name not in MEMORIES]
        if unknown:
            raise UserError(f"--memories {unknown[0]!r} is unknown: use {', '.join(MEMORIES)}")
        check_limits(self)
        if not self.memories:
            raise UserError("--memories: name at least one")
        return self


def milliseconds(program, inputs: tuple, repeats: int) -> float:
    """Median milliseconds of a call over `repeats`, after a first call that is not timed."""

    def seconds(calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            result = program(*inputs)
        jax.block_until_ready(result)
        return time.perf_counter() - began

    seconds(1)
    calls = max(1, round(LONG / seconds(1)))
    return 1e3 * statistics.median(seconds(calls) / calls for _ in range(repeats))


def build(name: str, args: Args) -> Memory:
    """The memory of the scripts, for one of popgym_arcade's games."""
    return Memory(
        MEMORIES[name],
        input_size=FEATURES,
        hidden_size=args.hidden_size,
        output_size=256,
        num_layers=2,
        window=args.num_steps,
    )


def size(name: str, args: Args) -> dict:
    """How it scans, its number of parameters, and the bytes of state of one environment, all from shapes alone."""
    memory = build(name, args)
    layer_key = jax.random.key_data(jax.random.key(0))  # raw: memax splits a key more than once
    layer = eqx.filter_eval_shape(MEMORIES[name], args.hidden_size, args.num_steps, layer_key)
    carry = jax.eval_shape(lambda: memory.initial_carry(1))
    x, start = jax.ShapeDtypeStruct((1, 1, FEATURES), jnp.float32), jax.ShapeDtypeStruct((1, 1), bool)
    params = jax.eval_shape(memory.init, jax.random.key(0), carry, x, start)
    return {
        "memory": name,
        "scan": "parallel" if layer.scan is semigroup_scan else "step by step",
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "bytes_of_state": sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(carry)),
    }


def speed(name: str, args: Args) -> dict:
    """Milliseconds to play a step and to learn from a rollout, and the megabytes that learning takes."""
    memory = build(name, args)
    init_key, x_key = jax.random.split(jax.random.key(0))
    carry = memory.initial_carry(args.num_envs)
    x = jax.random.normal(x_key, (args.num_steps, args.num_envs, FEATURES))  # [T, E, F]
    start = jnp.zeros((args.num_steps, args.num_envs), bool).at[0].set(True)  # [T, E]
    params = jax.jit(memory.init)(init_key, carry, x, start)

    def loss(params, carry, x, start):
        return jnp.square(memory.apply(params, carry, x, start)[1]).mean()

    step = carry, x[:1], start[:1]
    rollout = carry, x, start
    play = jax.jit(memory.apply).lower(params, *step).compile()
    learn = jax.jit(jax.grad(loss)).lower(params, *rollout).compile()
    return {
        "step_ms": round(milliseconds(play, (params, *step), args.repeats), 2),
        "rollout_ms": round(milliseconds(learn, (params, *rollout), args.repeats), 1),
        "rollout_mb": round(learn.memory_analysis().temp_size_in_bytes / 1e6, 1),
    }


def main(args: Args) -> list[dict]:
    """Measures, writes the table after every row, and returns the rows."""
    args, rows = args.checked(), []
    for name in args.memories:
        rows.append(size(name, args) | speed(name, args))
        print("  ".join(f"{column} {value}" for column, value in rows[-1].items()), flush=True)
        write_table(Path(args.out), rows)
    return rows


if __name__ == "__main__":
    launch(main, Args)
