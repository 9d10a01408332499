"""All ids, and how to make an environment from one."""

import copy
import difflib
import sys
from functools import cache, partial
from typing import Any

import gymnasium
import gymnax
import jax
from gymnax.environments.environment import EnvParams
from gymnax.wrappers import LegacyStepAPIWrapper

from popgym_arcade import environments
from popgym_arcade.environments.arcade import ArcadeEnvironment, ArcadeState
from popgym_arcade.environments.contract import check_game
from popgym_arcade.own_classes import class_of
from popgym_arcade.wrappers import Wrapper

_CONSTRUCTORS = {env_id: getattr(environments, env_id) for env_id in environments.__all__}

REGISTERED_ENVIRONMENTS = list(_CONSTRUCTORS)
"""Every id, e.g. "NavigatorEasy"."""


class FiveValueEnvironment(Wrapper, LegacyStepAPIWrapper):
    """An environment whose `step` returns `obs, state, reward, done, info`, as POPGym Arcade documents it.

    By default, `info` holds only arrays of the batch's shape, because training code averages every leaf of it:
    `terminated` and `truncated`, both bool. `final_state=True` adds the state before the auto-reset. It lacks gymnax's
    `final_observation`: a jitted function computes everything it returns, so every step would draw a second frame.
    """

    def __init__(self, env: ArcadeEnvironment, final_state: bool = False):
        """Raises ValueError if `final_state` is not a bool."""
        if not isinstance(final_state, bool):
            raise ValueError(f"final_state must be True or False, not {final_state!r}")
        LegacyStepAPIWrapper.__init__(self, env)
        self._final_state = final_state

    @partial(jax.jit, static_argnames=("self",))
    def step(
        self, key: jax.Array, state: ArcadeState, action: jax.Array | int, params: EnvParams | None = None
    ) -> tuple[jax.Array, ArcadeState, jax.Array, jax.Array, dict[str, Any]]:
        """Take one step and start the next episode if this one has ended."""
        obs, state, reward, done, info = super().step(key, state, action, params)
        names = ("terminated", "truncated", "final_state")[: 3 if self._final_state else 2]
        return obs, state, reward, done, {name: info[name] for name in names}

    def __deepcopy__(self, memo: dict) -> "FiveValueEnvironment":
        """A copy. Raises TypeError in gymnax's Gym wrappers, which copy first and later fail to unpack six values."""
        caller = sys._getframe(1).f_back  # of copy.deepcopy
        if caller is not None and caller.f_globals.get("__name__") == "gymnax.wrappers.gym":
            raise TypeError(
                f"gymnax's Gym wrappers need six values per step: give them gymnax.make({self.name!r}, ...), "
                f"or use gymnasium.make('popgym_arcade/{self.name}-v0', ...)"
            )
        return type(self)(copy.deepcopy(self._env, memo), self._final_state)


def make(
    env_id: str, partial_obs: bool = False, obs_size: int = 128, final_state: bool = False
) -> tuple[FiveValueEnvironment, EnvParams]:
    """Make an environment with the five-value interface of POPGym Arcade, and its default parameters.

    With `final_state`, `info` also holds the state after the step and before the auto-reset, a dataclass.
    `gymnax.make` takes `partial_obs` and `obs_size` too and returns the six-value environment that gymnax's wrappers
    expect. `env_id` can also be `MODULE:CLASS`, a game of your own. Raises ValueError for an unknown id (naming the
    closest known ones), a game that violates its contract, an `obs_size` other than 128 or 256, or a `partial_obs`
    or `final_state` that is not a bool.
    """
    env = make_game(env_id, partial_obs, obs_size)
    return FiveValueEnvironment(env, final_state), env.default_params


def make_game(env_id: str, partial_obs: bool = False, obs_size: int = 128) -> ArcadeEnvironment:
    """Make the environment itself, whose step returns six values. Raises ValueError as `make` does."""
    if ":" in str(env_id):
        return _checked(class_of(env_id), obs_size)(partial_obs=partial_obs, obs_size=obs_size)
    if env_id not in _CONSTRUCTORS:
        raise ValueError(f"unknown environment {env_id!r}; the closest are {', '.join(_closest(str(env_id)))}")
    return _CONSTRUCTORS[env_id](partial_obs=partial_obs, obs_size=obs_size)


@cache
def _checked(own: type, obs_size: int) -> type[ArcadeEnvironment]:
    """A game of your own, if it satisfies its contract."""
    if not issubclass(own, ArcadeEnvironment):
        raise ValueError(f"{own.__name__} is not a subclass of ArcadeEnvironment")
    check_game(own, obs_size)
    return own


def _closest(env_id: str) -> list[str]:
    """The three most similar ids, ignoring case."""
    ids = {known.lower(): known for known in REGISTERED_ENVIRONMENTS}
    return [ids[match] for match in difflib.get_close_matches(env_id.lower(), ids, n=3, cutoff=0)]


def register(env_id: str, constructor: type[ArcadeEnvironment]) -> None:
    """Add a game of your own to `make`, gymnax, Gymnasium and `REGISTERED_ENVIRONMENTS`.

    Gymnasium calls "Lamps" "popgym_arcade/Lamps-v0". The id is known in this process only: train on a game of your own
    with `--env-id MODULE:CLASS`.

    `constructor` takes `partial_obs` and `obs_size` as every game does. Raises ValueError if the id is taken, if
    Gymnasium rejects its form, or if `constructor` is not a subclass of `ArcadeEnvironment` that satisfies its contract
    (`popgym_arcade.environments.contract.check_game`).
    """
    if not (isinstance(constructor, type) and issubclass(constructor, ArcadeEnvironment)):
        raise ValueError(f"{constructor!r} is not a subclass of ArcadeEnvironment")
    check_game(constructor)
    if env_id in _CONSTRUCTORS or env_id in gymnax.registration.registered_envs:
        raise ValueError(f"the id {env_id!r} is taken")
    try:
        _add_to_gymnasium(env_id)
    except gymnasium.error.Error as error:
        raise ValueError(f"Gymnasium rejects the id {env_id!r}: {error}") from None
    gymnax.registration.register(env_id, constructor)
    _CONSTRUCTORS[env_id] = constructor
    REGISTERED_ENVIRONMENTS.append(env_id)


def _add_to_gymnasium(env_id: str) -> None:
    """Register an id, unless Gymnasium has it already (after this module is reloaded)."""
    name = f"popgym_arcade/{env_id}-v0"
    if name not in gymnasium.registry:
        gymnasium.register(
            id=name,
            entry_point="popgym_arcade.gymnasium_envs:ArcadeEnv",
            vector_entry_point="popgym_arcade.gymnasium_envs:ArcadeVectorEnv",
            kwargs={"env_id": env_id},
        )


def _register() -> None:
    """Add the ids to Gymnasium, and to gymnax, which rejects ids it already has (after this module is reloaded)."""
    for env_id, constructor in _CONSTRUCTORS.items():
        _add_to_gymnasium(env_id)
        if env_id not in gymnax.registration.registered_envs:
            gymnax.registration.register(env_id, constructor)


_register()
