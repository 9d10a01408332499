"""Easier kinds of TetrisEasy: a narrow well, whose outer columns are always filled, and the same with only squares.

    python pqn_mlp.py --env-id benchmark.tetris_narrow:Squares

docs/pqn_mlp.md says which of them are learned.
"""

import jax
import jax.numpy as jnp
import numpy as np

from popgym_arcade.environments.tetris import COLUMNS, O, TetrisEasy, TetrisState


class Narrow(TetrisEasy):
    """A well four columns wide, just enough for a piece to spawn, in the middle of the board."""

    width = 4

    def reset_state(self, key: jax.Array, params) -> TetrisState:
        """An empty well."""
        return self._adapted(super().reset_state(key, params))

    def transition(self, key: jax.Array, state: TetrisState, action: jax.Array, params):
        """One step of TetrisEasy. Cleared rows leave gaps in the outer columns, which are filled again."""
        state, reward, terminated = super().transition(key, state, action, params)
        return self._adapted(state), reward, terminated

    def _adapted(self, state: TetrisState) -> TetrisState:
        left = (COLUMNS - self.width) // 2
        outside = (np.arange(COLUMNS) < left) | (np.arange(COLUMNS) >= left + self.width)
        return state.replace(board=jnp.where(outside[None], jnp.int8(1), state.board))


class Squares(Narrow):
    """The same well with only squares: two side by side clear two rows."""

    def _adapted(self, state: TetrisState) -> TetrisState:
        only_squares = {name: jnp.full_like(getattr(state, name), O) for name in ("piece", "next_pieces", "bag")}
        return super()._adapted(state).replace(**only_squares)
