"""Trains a little on 1, 2 and 8 of 8 simulated devices, in a process of its own, and prints what came out as JSON.

`test_devices.on_devices` starts it: python on_devices.py SCRIPT '{"num_envs": 16, ...}', arguments of `scripts.small`.
"""

import json
import re
import sys
from math import prod

import jax
import numpy as np
import scripts

from popgym_arcade.baselines.devices.mesh import everywhere
from popgym_arcade.baselines.running import programs
from popgym_arcade.baselines.running.evaluation import make_evaluate, make_keys
from popgym_arcade.baselines.running.metrics import repeat

KINDS = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
SIZES = {"pred": 1, "u8": 1, "s8": 1, "bf16": 2, "s32": 4, "u32": 4, "f32": 4}  # bytes


def collectives(program: str) -> list[tuple[str, int, bool]]:
    """Kind and bytes of each exchange between devices in a compiled program, and whether it is of a gradient step."""
    found = []
    for line in program.splitlines():
        match = re.search(
            r"= (.*?) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(-start)?\(", line
        )
        if match:
            shapes = re.findall(r"(\w+)\[([\d,]*)\]", match[1])
            size = sum(SIZES[dtype] * prod(map(int, filter(None, dims.split(",")))) for dtype, dims in shapes)
            found.append((match[2], size, "jvp" in line))
    return found


def train(name: str, args, updates: int, played: bool) -> dict:
    """Parameters and sums after so many updates, the exchanges in one of them; greedy returns if `played`."""
    module = scripts.script(name)
    init, update = module.make_train(args)
    train_keys, eval_keys = (everywhere(args, keys) for keys in make_keys(args))
    state = programs.jit_init(args, init, programs.abstract_state(args, init, train_keys))(train_keys)
    train_chunk = programs.compile_train_chunk(args, repeat(update), state)
    returns = ()
    state, metrics = train_chunk(state, np.int32(updates))
    envs = {str(leaf.sharding.spec) for leaf in jax.tree.leaves(state.actor.env_state)}
    if played:
        evaluate, greedy = make_evaluate(args, *module.make_actor(args)[1:]), module.POLICIES["greedy"]
        evaluate = programs.compile_evaluate(args, evaluate, state.params, eval_keys, greedy)
        returns = evaluate(state.params, eval_keys, greedy).returns
    params, metrics = jax.device_get((state.params, metrics))
    return {
        "params": np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)]).astype(float).tolist(),
        "metrics": {key: np.ravel(value).astype(float).tolist() for key, value in metrics.items()},
        "returns": np.ravel(returns).astype(float).tolist(),
        "exchanges": collectives(train_chunk.as_text()),
        "envs": sorted(envs),
    }


if __name__ == "__main__":
    jax.config.update("jax_disable_most_optimizations", True)
    name, changes = sys.argv[1], json.loads(sys.argv[2])
    counts = changes.pop("counts", [1, 2, 8])
    updates = changes.pop("updates", 3)
    played = changes.pop("played", False)
    print(json.dumps([train(name, scripts.small(name, **changes, num_devices=n), updates, played) for n in counts]))
