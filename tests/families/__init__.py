"""Facts about each family of games, written from the specification alone: one module, and one line here, per family."""

from families import cartpole, count_recall, navigator, skittles, tetris
from families.base import LEVELS, Family, Game

FAMILIES: dict[str, Family] = {
    "CartPole": cartpole.CARTPOLE,
    "NoisyCartPole": cartpole.NOISY_CARTPOLE,
    "CountRecall": count_recall.FAMILY,
    "Navigator": navigator.FAMILY,
    "Skittles": skittles.FAMILY,
    "Tetris": tetris.FAMILY,
}

__all__ = ["FAMILIES", "LEVELS", "Family", "Game"]
