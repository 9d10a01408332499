"""A trained agent as the opponent of a person, in one two-player game."""

from typing import Any

import jax
import jax.numpy as jnp

from popgym_arcade.analysis.agents import Agent, load_agent, one_seed
from popgym_arcade.analysis.matches import Player
from popgym_arcade.baselines.environment import make_env
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.environments.arcade import ArcadeEnvironment
from popgym_arcade.environments.pong import LEFT_SEAT
from popgym_arcade.environments.two_player import SEATS, has_two_seats


def load_opponent(folder: str) -> Agent:
    """The agent of a run's first seed. Raises UserError unless it plays a two-player arcade game."""
    agent = one_seed(load_agent(folder, two_player=True), 0)
    env = make_env(agent.args)[0]
    if not (isinstance(env, ArcadeEnvironment) and has_two_seats(env)):
        raise UserError(f"{folder}: {agent.args.env_id} is not a two-player arcade game")
    return agent


class Opponent:
    """The first seat of a game, played greedily."""

    def __init__(self, agent: Agent):
        self._player, self._params = Player(agent.args), agent.params
        self._read = jax.jit(self._player.read)
        self._look = jax.jit(self._player.games.look)

    def begin(self, state: Any) -> None:
        """Forget what was; `state` is the first of a game."""
        self._side = self._player.begin(self._look(of_one(state)))
        self._prev_action, self._start = jnp.zeros(SEATS, jnp.int32), jnp.ones(SEATS, bool)

    def act(self, state: Any) -> int:
        """The action in a game's next state. Call it once for every step."""
        side = self._side.replace(obs=self._look(of_one(state)))
        carry, best, _ = self._read(self._params, side, self._prev_action, self._start)
        self._side = side.replace(carry=carry)
        self._prev_action, self._start = best.astype(jnp.int32), jnp.zeros(SEATS, bool)
        return int(best[LEFT_SEAT])


def of_one(state: Any) -> Any:
    """A game's state as a batch of one."""
    return jax.tree.map(lambda x: x[None], state)
