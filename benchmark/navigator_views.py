"""NavigatorEasy with a map instead of a frame: the whole field as it is, or centred on the player.

    python pqn_mlp.py --env-id benchmark.navigator_views:Centred

Both maps hold the same information. `benchmark/navigator.sh` trains on each; docs/pqn_mlp.md has the results.
"""

import jax
import jax.numpy as jnp
from gymnax.environments import spaces

from popgym_arcade.environments.navigator import NavigatorEasy, NavigatorState


class Fixed(NavigatorEasy):
    """float32[3 * n * n]: where TNT, the treasure and the player are, cell by cell."""

    def render(self, state: NavigatorState, params=None) -> jax.Array:
        """The three maps, flattened."""
        player = jnp.zeros_like(state.tnt).at[state.y, state.x].set(True)
        return jnp.stack([*self._things(state), player]).ravel().astype(jnp.float32)

    def observation_space(self, params=None) -> spaces.Box:
        """Zeros and ones."""
        return spaces.Box(0, 1, (3 * self.size**2,), jnp.float32)

    def _things(self, state: NavigatorState) -> tuple[jax.Array, jax.Array]:
        """Maps bool[n, n] of TNT and of the treasure."""
        return state.tnt, jnp.zeros_like(state.tnt).at[state.treasure_y, state.treasure_x].set(True)


class Centred(Fixed):
    """float32[3 * (2n - 1)^2]: where TNT, the treasure and the field are, as seen from the player's cell."""

    def render(self, state: NavigatorState, params=None) -> jax.Array:
        """The three maps, flattened."""
        maps = jnp.stack([*self._things(state), jnp.ones_like(state.tnt)])
        margin = self.size - 1
        maps = jnp.pad(maps, ((0, 0), (margin, margin), (margin, margin)))
        side = 2 * self.size - 1
        return jax.lax.dynamic_slice(maps, (0, state.y, state.x), (3, side, side)).ravel().astype(jnp.float32)

    def observation_space(self, params=None) -> spaces.Box:
        """Zeros and ones."""
        return spaces.Box(0, 1, (3 * (2 * self.size - 1) ** 2,), jnp.float32)
