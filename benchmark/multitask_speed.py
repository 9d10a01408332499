"""How much faster impala_popart.py trains on several games in one program than on one after the other.

    python benchmark/multitask_speed.py --env-ids BreakoutEasy CartPoleEasy NoisyCartPoleEasy MineSweeperEasy

Trains on each game alone and then on all together, each in its own process and with the same flags. Rates are medians
over the log points after the first. The last row is for training on one game after the other, with equally many steps
each: the harmonic mean of the single rates, and the sum of the compile seconds.
"""

import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from command_line import read_args
from training_speed import measure, write_table


@dataclass(frozen=True)
class Args:
    env_ids: tuple[str, ...] = ("BreakoutEasy", "CartPoleEasy", "NoisyCartPoleEasy", "MineSweeperEasy")
    """ids of the games"""
    flags: str = ""
    """more flags for every run, for example --flags="--memory MinGRU" """
    points: int = 6
    """log points of each process; the first does not count"""
    point_steps: int = 8192
    """environment steps between log points"""
    out: str = "runs/multitask_speed.csv"
    """table to write"""


def main(args: Args) -> None:
    """Measures each game alone and all together, and writes the table. Raises RuntimeError if a run fails."""
    rows = []
    for ids in [*((env_id,) for env_id in args.env_ids), args.env_ids]:
        flags = f"--env-ids {' '.join(ids)} {args.flags}"
        rate = measure("impala_popart.py", flags, args.points, args.point_steps)
        rows.append({"games": " ".join(ids)} | rate)
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
        write_table(Path(args.out), rows)
    rows.append({"games": "one after the other"} | one_after_the_other(rows[:-1]))
    print("  ".join(f"{name} {value}" for name, value in rows[-1].items()))
    write_table(Path(args.out), rows)


def one_after_the_other(rows: list[dict]) -> dict:
    """The row for training on one game after the other for equally many steps, from the rows of the single games."""
    rates = {
        name: round(statistics.harmonic_mean([row[name] for row in rows]))
        for name in ("steps_per_second", "slowest", "fastest")
    }
    return rates | {
        "compile_seconds": round(sum(row["compile_seconds"] for row in rows), 1),
        "peak_memory_mb": max(row["peak_memory_mb"] for row in rows),
    }


if __name__ == "__main__":
    try:
        main(read_args(Args, __doc__))
    except RuntimeError as error:
        sys.exit(f"multitask_speed.py: error: {error}")
