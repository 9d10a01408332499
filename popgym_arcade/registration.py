"""All ids, and how to make an environment of one."""

import difflib
from functools import partial
from typing import Any

import gymnax
import jax
from gymnax.environments.environment import EnvParams
from gymnax.wrappers import LegacyStepAPIWrapper

from popgym_arcade.environments import (
    autoencode,
    battleship,
    breakout,
    cartpole,
    count_recall,
    minesweeper,
    navigator,
    noisy_cartpole,
    skittles,
    tetris,
)
from popgym_arcade.environments.arcade import ArcadeEnvironment, ArcadeState

_CLASSES = (
    *(autoencode.AutoEncodeEasy, autoencode.AutoEncodeMedium, autoencode.AutoEncodeHard),
    *(battleship.BattleShipEasy, battleship.BattleShipMedium, battleship.BattleShipHard),
    *(breakout.BreakoutEasy, breakout.BreakoutMedium, breakout.BreakoutHard),
    *(cartpole.CartPoleEasy, cartpole.CartPoleMedium, cartpole.CartPoleHard),
    *(count_recall.CountRecallEasy, count_recall.CountRecallMedium, count_recall.CountRecallHard),
    *(minesweeper.MineSweeperEasy, minesweeper.MineSweeperMedium, minesweeper.MineSweeperHard),
    *(navigator.NavigatorEasy, navigator.NavigatorMedium, navigator.NavigatorHard),
    *(noisy_cartpole.NoisyCartPoleEasy, noisy_cartpole.NoisyCartPoleMedium, noisy_cartpole.NoisyCartPoleHard),
    *(skittles.SkittlesEasy, skittles.SkittlesMedium, skittles.SkittlesHard),
    *(tetris.TetrisEasy, tetris.TetrisMedium, tetris.TetrisHard),
)
_CONSTRUCTORS = {environment.__name__: environment for environment in _CLASSES}

REGISTERED_ENVIRONMENTS = list(_CONSTRUCTORS)
"""Every id, e.g. "NavigatorEasy"."""


class FiveValueEnvironment(LegacyStepAPIWrapper):
    """An environment whose `step` returns `obs, state, reward, done, info`, as POPGym Arcade documents it.

    `info` holds `terminated`, `truncated` and `final_state`, the state before the auto-reset. It leaves out gymnax's
    `final_observation`, because what a jitted function returns has to be computed: a second drawing in every step.
    """

    @partial(jax.jit, static_argnames=("self",))
    def step(
        self, key: jax.Array, state: ArcadeState, action: jax.Array | int, params: EnvParams | None = None
    ) -> tuple[jax.Array, ArcadeState, jax.Array, jax.Array, dict[str, Any]]:
        """Take one step and start the next episode if this one has ended."""
        obs, state, reward, done, info = super().step(key, state, action, params)
        return obs, state, reward, done, {name: value for name, value in info.items() if name != "final_observation"}


def make(env_id: str, partial_obs: bool = False, obs_size: int = 128) -> tuple[FiveValueEnvironment, EnvParams]:
    """Make an environment with the five-value interface of POPGym Arcade, and its default parameters.

    `gymnax.make` takes the same arguments and returns the six-value environment that gymnax's wrappers expect.
    A ValueError for an unknown id (with the closest known ones), an `obs_size` other than 128 or 256, or a
    `partial_obs` that is not a bool.
    """
    if env_id not in _CONSTRUCTORS:
        raise ValueError(f"unknown environment {env_id!r}; the closest are {', '.join(_closest(str(env_id)))}")
    env: ArcadeEnvironment = _CONSTRUCTORS[env_id](partial_obs=partial_obs, obs_size=obs_size)
    return FiveValueEnvironment(env), env.default_params


def _closest(env_id: str) -> list[str]:
    """The three most similar ids, capitals and small letters being the same."""
    ids = {known.lower(): known for known in REGISTERED_ENVIRONMENTS}
    return [ids[match] for match in difflib.get_close_matches(env_id.lower(), ids, n=3, cutoff=0)]


def register(env_id: str, constructor: type[ArcadeEnvironment]) -> None:
    """Add a game of one's own to `make`, to gymnax and to `REGISTERED_ENVIRONMENTS`, which the scripts go by.

    `constructor` takes `partial_obs` and `obs_size` as every game does. A ValueError for an id that is taken, or
    anything but a subclass of `ArcadeEnvironment`.
    """
    if not (isinstance(constructor, type) and issubclass(constructor, ArcadeEnvironment)):
        raise ValueError(f"{constructor!r} is not a subclass of ArcadeEnvironment")
    if env_id in _CONSTRUCTORS or env_id in gymnax.registration.registered_envs:
        raise ValueError(f"the id {env_id!r} is taken")
    gymnax.registration.register(env_id, constructor)
    _CONSTRUCTORS[env_id] = constructor
    REGISTERED_ENVIRONMENTS.append(env_id)


def _register() -> None:
    """Add the ids to gymnax, which refuses an id that it has already (after a reload of this module)."""
    for env_id, constructor in _CONSTRUCTORS.items():
        if env_id not in gymnax.registration.registered_envs:
            gymnax.registration.register(env_id, constructor)


_register()
