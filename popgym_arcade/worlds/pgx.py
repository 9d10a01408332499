"""Pgx's turn-based two-player games (Apache-2.0), `pgx/connect_four`.

Koyamada et al. 2023, https://arxiv.org/abs/2303.17503. For `ppo_selfplay.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pgx
from gymnax.environments import spaces
from gymnax.environments.environment import EnvParams

from popgym_arcade.environments.two_player import SEATS, TwoPlayerEnvironment
from popgym_arcade.worlds.device import DeviceEnvironment, WorldState

NAMES = (
    "animal_shogi",
    "backgammon",
    "chess",
    "connect_four",
    "gardner_chess",
    "go_9x9",
    "go_19x19",
    "hex",
    "kuhn_poker",
    "leduc_holdem",
    "othello",
    "shogi",
    "tic_tac_toe",
)


class BoardGame(DeviceEnvironment, TwoPlayerEnvironment):
    """A game. Each seat sees the board from its own side, float32. Who begins is random."""

    max_steps = 1000

    def __init__(self, name: str):
        self.env = pgx.make(name)

    def first(self, key: jax.Array):
        return self.env.init(key)

    def advance(self, key: jax.Array, inner, actions: jax.Array):
        state = self.env.step(inner, actions[inner.current_player], key)
        return state, state.rewards, state.terminated, state.truncated

    def observe(self, inner) -> jax.Array:
        return jnp.stack([self.env.observe(inner, seat) for seat in range(SEATS)]).astype(jnp.float32)

    def views(self, state: WorldState) -> jax.Array:
        return self.observe(state.inner)

    def legal(self, state: WorldState) -> jax.Array:
        turn = jnp.arange(SEATS) == state.inner.current_player
        nothing = np.arange(self.env.num_actions) == 0  # the only action of the other seat, which is not played
        return jnp.where(turn[:, None], state.inner.legal_action_mask, nothing)

    def observation_space(self, params: EnvParams) -> spaces.Box:
        return spaces.Box(-np.inf, np.inf, self.observation.shape[1:], jnp.float32)

    def action_space(self, params: EnvParams) -> spaces.Discrete:
        return spaces.Discrete(self.env.num_actions)


def ids() -> list[str]:
    return list(NAMES)


def make(name: str) -> BoardGame:
    return BoardGame(name)
