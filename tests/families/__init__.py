"""Facts about each family of games, written from the specification alone: one module, and one line here, per family."""

from families import autoencode, battleship, breakout, cartpole, count_recall, minesweeper, navigator, skittles, tetris
from families.base import LEVELS, Family, Game

FAMILIES: dict[str, Family] = {
    "AutoEncode": autoencode.FAMILY,
    "BattleShip": battleship.FAMILY,
    "Breakout": breakout.FAMILY,
    "CartPole": cartpole.CARTPOLE,
    "CountRecall": count_recall.FAMILY,
    "MineSweeper": minesweeper.FAMILY,
    "Navigator": navigator.FAMILY,
    "NoisyCartPole": cartpole.NOISY_CARTPOLE,
    "Skittles": skittles.FAMILY,
    "Tetris": tetris.FAMILY,
}

__all__ = ["FAMILIES", "LEVELS", "Family", "Game"]
