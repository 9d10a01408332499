"""TetrisEasy in a narrower well: the outer columns are filled for good, so that few pieces make a row.

    python pqn_mlp.py --env-id benchmark.tetris_narrow:Four

docs/pqn_mlp.md says what is learned in each.
"""

import jax
import jax.numpy as jnp
import numpy as np

from popgym_arcade.environments.tetris import COLUMNS, TetrisEasy, TetrisState


class Narrow(TetrisEasy):
    """A well `width` columns wide, in the middle of the board."""

    width: int

    def reset_state(self, key: jax.Array, params) -> TetrisState:
        """An empty well."""
        return self._filled(super().reset_state(key, params))

    def transition(self, key: jax.Array, state: TetrisState, action: jax.Array, params):
        """One step of TetrisEasy; what cleared rows take from the outer columns is filled again."""
        state, reward, terminated = super().transition(key, state, action, params)
        return self._filled(state), reward, terminated

    def _filled(self, state: TetrisState) -> TetrisState:
        left = (COLUMNS - self.width) // 2
        outside = (np.arange(COLUMNS) < left) | (np.arange(COLUMNS) >= left + self.width)
        return state.replace(board=jnp.where(outside[None], jnp.int8(1), state.board))


class Four(Narrow):
    """Just wide enough for a piece to spawn."""

    width = 4


class Six(Narrow):
    """One column more on either side."""

    width = 6
