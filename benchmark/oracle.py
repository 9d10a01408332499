"""Returns of players that know the whole state, for every id: the best possible from fresh resets.

    python benchmark/oracle.py

Writes OUT.csv, and OUT.md with the ids whose best return is below 1, and prints the latter. The players are the experts
of tests/families, whose returns the tests compare with exact bounds. This script averages over their episodes from
fresh resets.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from popgym_arcade.analysis.command_line import launch
from popgym_arcade.analysis.tables import markdown, write_table
from popgym_arcade.baselines.limits import PathName

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from harness import IDS, expert_games, expert_play, split_id  # noqa: E402  (the tests are not a package)

PLAYERS = {
    "AutoEncode": ("knows all",),
    "BattleShip": ("hits all",),
    "Breakout": ("clears the board",),
    "CartPole": ("balances",),
    "CountRecall": ("clairvoyant",),
    "MineSweeper": ("reveals all",),
    "Navigator": ("shortest way", "waits for the end"),  # the latter if no path leads to the treasure
    "NoisyCartPole": ("balances",),
    "Skittles": ("dodges to the end",),
    "Tetris": ("greedy",),
}
COLUMNS = ("env_id", "player", "episodes", "return_mean", "return_standard_error", "return_min", "length_mean")


@dataclass(frozen=True)
class Args:
    out: PathName = "runs/oracle"
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
    """Markdown of the ids whose players do not always reach a return of 1."""
    lines = []
    for r in rows:
        if r["return_mean"] == 1:
            continue
        mean = f"{r['return_mean']:.4f} ± {r['return_standard_error']:.4f}"
        about = r["env_id"], r["player"], str(r["episodes"])
        lines.append([*about, mean, f"{r['return_min']:.3f}", f"{r['length_mean']:.1f}"])
    return markdown(["id", "player", "episodes", "return, mean ± standard error", "lowest", "episode length"], lines)


def main(args: Args) -> None:
    """Plays every id, writes the files and prints the table."""
    rows = [row(env_id) for env_id in IDS]
    write_table(args.out, COLUMNS, rows, table(rows))


if __name__ == "__main__":
    launch(main, Args)
