"""Steps per second of the Gymnasium environments: the compiled vector in each mode, and gymnasium's SyncVectorEnv.

    python benchmark/gymnasium_speed.py --env-id NavigatorEasy --num-envs 64

Actions are random and drawn in advance. Each row is the median of several rounds. The rows take turns, so that other
load on the machine affects all of them. Every step copies the frames to NumPy.
"""

import statistics
import time
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

import popgym_arcade
from popgym_arcade.analysis.command_line import launch
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import Count, Positive, check_limits


@dataclass(frozen=True)
class Args:
    env_id: str = "NavigatorEasy"
    """popgym_arcade id"""
    num_envs: Count = 64
    """environments stepped together"""
    partial_obs: bool = True
    """play the partially observable twin"""
    rounds: Count = 5
    """rounds of measurements; the median counts"""
    seconds: Positive = 2.0
    """seconds of one measurement"""


def steps_per_second(envs: Any, seconds: float) -> float:
    """The rate of random play over some seconds. In mode DISABLED, it resets ended environments itself."""
    by_hand = envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    actions = np.random.default_rng(0).integers(0, 5, (100, envs.num_envs))
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        _, _, terminated, truncated, _ = envs.step(actions[count % len(actions)])
        ended = terminated | truncated
        if by_hand and ended.any():
            envs.reset(options={"reset_mask": ended})
        count += 1
    return count * envs.num_envs / (time.perf_counter() - start)


def main(args: Args) -> None:
    """Measures and prints the rates. Raises UserError for an unknown id."""
    if args.env_id not in popgym_arcade.REGISTERED_ENVIRONMENTS:
        raise UserError(f"--env-id {args.env_id}: use an id of popgym_arcade")
    check_limits(args)
    name, twin = f"popgym_arcade/{args.env_id}-v0", {"partial_obs": args.partial_obs}
    rows = {
        f"vector, {mode.name}": gymnasium.make_vec(name, num_envs=args.num_envs, autoreset_mode=mode, **twin)
        for mode in AutoresetMode
    }
    rows["SyncVectorEnv"] = gymnasium.make_vec(name, num_envs=args.num_envs, vectorization_mode="sync", **twin)
    rates: dict[str, list[float]] = {row: [] for row in rows}
    for envs in rows.values():
        envs.reset(seed=0)
        steps_per_second(envs, 0.5)  # compiles
    for _ in range(args.rounds):
        for row, envs in rows.items():
            rates[row].append(steps_per_second(envs, args.seconds))
    for row, found in rates.items():
        print(f"{row:20} {statistics.median(found):8.0f} steps/s  ({min(found):.0f} to {max(found):.0f})")


if __name__ == "__main__":
    launch(main, Args)
