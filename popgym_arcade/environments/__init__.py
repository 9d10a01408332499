"""The games, one per file; `arcade.py` and `screen.py` hold what they share. All thirty classes are imported here."""

from popgym_arcade.environments.autoencode import AutoEncodeEasy, AutoEncodeHard, AutoEncodeMedium
from popgym_arcade.environments.battleship import BattleShipEasy, BattleShipHard, BattleShipMedium
from popgym_arcade.environments.breakout import BreakoutEasy, BreakoutHard, BreakoutMedium
from popgym_arcade.environments.cartpole import CartPoleEasy, CartPoleHard, CartPoleMedium
from popgym_arcade.environments.count_recall import CountRecallEasy, CountRecallHard, CountRecallMedium
from popgym_arcade.environments.minesweeper import MineSweeperEasy, MineSweeperHard, MineSweeperMedium
from popgym_arcade.environments.navigator import NavigatorEasy, NavigatorHard, NavigatorMedium
from popgym_arcade.environments.noisy_cartpole import NoisyCartPoleEasy, NoisyCartPoleHard, NoisyCartPoleMedium
from popgym_arcade.environments.skittles import SkittlesEasy, SkittlesHard, SkittlesMedium
from popgym_arcade.environments.tetris import TetrisEasy, TetrisHard, TetrisMedium

__all__ = [
    "AutoEncodeEasy",
    "AutoEncodeMedium",
    "AutoEncodeHard",
    "BattleShipEasy",
    "BattleShipMedium",
    "BattleShipHard",
    "BreakoutEasy",
    "BreakoutMedium",
    "BreakoutHard",
    "CartPoleEasy",
    "CartPoleMedium",
    "CartPoleHard",
    "CountRecallEasy",
    "CountRecallMedium",
    "CountRecallHard",
    "MineSweeperEasy",
    "MineSweeperMedium",
    "MineSweeperHard",
    "NavigatorEasy",
    "NavigatorMedium",
    "NavigatorHard",
    "NoisyCartPoleEasy",
    "NoisyCartPoleMedium",
    "NoisyCartPoleHard",
    "SkittlesEasy",
    "SkittlesMedium",
    "SkittlesHard",
    "TetrisEasy",
    "TetrisMedium",
    "TetrisHard",
]
