"""Facts about each family of games, written from the specification alone: one module, and one line here, per family."""

from families import autoencode, breakout, cartpole, count_recall, navigator
from families.base import LEVELS, Family, Game

FAMILIES: dict[str, Family] = {
    "AutoEncode": autoencode.FAMILY,
    "Breakout": breakout.FAMILY,
    "CartPole": cartpole.CARTPOLE,
    "NoisyCartPole": cartpole.NOISY_CARTPOLE,
    "CountRecall": count_recall.FAMILY,
    "Navigator": navigator.FAMILY,
}

__all__ = ["FAMILIES", "LEVELS", "Family", "Game"]
