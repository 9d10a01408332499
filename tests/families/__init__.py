"""Facts about each family of games, written from the specification alone: one module, and one line here, per family."""

from families import battleship, cartpole, count_recall, minesweeper, navigator
from families.base import LEVELS, Family, Game

FAMILIES: dict[str, Family] = {
    "BattleShip": battleship.FAMILY,
    "CartPole": cartpole.CARTPOLE,
    "NoisyCartPole": cartpole.NOISY_CARTPOLE,
    "CountRecall": count_recall.FAMILY,
    "MineSweeper": minesweeper.FAMILY,
    "Navigator": navigator.FAMILY,
}

__all__ = ["FAMILIES", "LEVELS", "Family", "Game"]
