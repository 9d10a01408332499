"""Returns of players that know the whole state, for every id: the best that can be got from fresh resets.

    python benchmark/oracle.py

Writes OUT.csv and OUT.md (the table) and prints the table. The players are the experts of tests/families, which the
tests hold to the exact bounds of the return; here their episodes from fresh resets are played once more and averaged.
"""

import csv
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness import IDS, expert_games, expert_play, split_id  # noqa: E402  (the tests are not a package)

PLAYERS = {
    "AutoEncode": ("knows all",),
    "BattleShip": ("hits all",),
    "Breakout": ("clears the board",),
    "CartPole": ("balances",),
    "CountRecall": ("clairvoyant",),
    "MineSweeper": ("reveals all",),
    "Navigator": ("shortest way", "waits for the end"),  # the latter where no way leads to the treasure
    "NoisyCartPole": ("balances",),
    "Skittles": ("dodges to the end",),
    "Tetris": ("greedy",),
}
COLUMNS = ("env_id", "player", "episodes", "return_mean", "return_standard_error", "return_min", "length_mean")


@dataclass(frozen=True)
class Args:
    out: str = "benchmark/results/oracle"
    """path of the files to write, without their endings"""


def row(env_id: str) -> dict:
    """The figures of one id. The standard error is 0 for a single episode."""
    players = PLAYERS[split_id(env_id)[0]]
    chosen = [game.name in players for game in expert_games(env_id)]
    values, lengths = expert_play(env_id).value[chosen], expert_play(env_id).length[chosen]
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    figures = (round(float(figure), 5) for figure in (values.mean(), error, values.min(), lengths.mean()))
    return dict(zip(COLUMNS, (env_id, " or ".join(players), len(values), *figures), strict=True))


def table(rows: list[dict]) -> str:
    """Markdown of all rows."""
    lines = ["| id | player | episodes | return, mean ± standard error | least | episode length |", "|-|-|-|-|-|-|"]
    for r in rows:
        mean = f"{r['return_mean']:.4f} ± {r['return_standard_error']:.4f}"
        rest = f"{mean} | {r['return_min']:.3f} | {r['length_mean']:.1f}"
        lines.append(f"| {r['env_id']} | {r['player']} | {r['episodes']} | {rest} |")
    return "\n".join(lines) + "\n"


def main(args: Args) -> None:
    rows = [row(env_id) for env_id in IDS]
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    with open(f"{args.out}.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    Path(f"{args.out}.md").write_text(table(rows))
    print(table(rows), end="")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
