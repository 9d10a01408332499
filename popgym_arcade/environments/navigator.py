"""Navigator: find the treasure, mind the TNT."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments.environment import EnvParams

from popgym_arcade.environments.arcade import DOWN, FIRE, LEFT, RIGHT, UP, ArcadeEnvironment, ArcadeState
from popgym_arcade.environments.draw_utils import draw_bomb, draw_gem, draw_pawn
from popgym_arcade.environments.screen import SCORE_BOX, Screen, Sprites, blank, number, titled, with_lined_board

CANVAS, GROUND, LINES = (119, 122, 127), (119, 112, 127), (255, 255, 255)
PLAYER, TREASURE, BOMB = (255, 255, 0), (73, 214, 247), (0, 0, 0)
SCORE, NAME = (0, 0, 64), (64, 0, 64)

NUM_TNT = 7
EMPTY, TNT, GOLD, WITH_PLAYER = 0, 1, 2, 3  # pictures of a cell; WITH_PLAYER is added to the others


@struct.dataclass
class NavigatorState(ArcadeState):
    """An n x n field.

    score: int32, 100 once the treasure is claimed, else 0.
    x, y: int32, the player's column and row.
    tnt: bool[n, n], by row and column.
    treasure_x, treasure_y: int32.
    """

    score: jax.Array
    x: jax.Array
    y: jax.Array
    tnt: jax.Array
    treasure_x: jax.Array
    treasure_y: jax.Array


class Navigator(ArcadeEnvironment):
    """Move (up, down, left, right) over a field of `size` x `size` cells and claim (fire) the treasure.

    Claiming it pays 1 and ends the episode, stepping on one of seven blocks of TNT pays -0.5 and ends it; any other
    step costs 0.5 / size^2. The time limit is size^2. The partially observable twin shows treasure and TNT only in the
    first frame.
    """

    size: int

    @property
    def max_steps(self) -> int:
        """One step per cell."""
        return self.size**2

    def __init__(self, partial_obs: bool = False, obs_size: int = 128):
        super().__init__(partial_obs, obs_size)
        canvas = titled(obs_size, CANVAS, "Navigator", NAME)
        canvas, cells, cell = with_lined_board(self.size, GROUND, LINES, canvas)
        self.screen = Screen(
            canvas,
            {
                "board": Sprites(cells, _pictures(cell)),
                "score": number(SCORE_BOX[obs_size], SCORE, canvas, largest=100),
            },
        )

    def reset_state(self, key: jax.Array, params: EnvParams) -> NavigatorState:
        """TNT, treasure and start: nine distinct cells, uniformly."""
        cells = self.size**2
        # The two single cells first, then seven of the others by Floyd's method: draw each number up to a growing
        # bound. If it is already taken, take the bound, which is always free.
        bounds = np.concatenate([[cells, cells - 1], cells - 1 - np.arange(NUM_TNT, 0, -1)])
        draws = jax.random.randint(key, bounds.shape, 0, bounds, jnp.int32)
        treasure = draws[0]
        start = draws[1] + (draws[1] >= treasure)
        low, high = jnp.minimum(treasure, start), jnp.maximum(treasure, start)
        tnt = jnp.zeros(cells, jnp.bool_)
        for draw, bound in zip(draws[2:], bounds[2:] - 1, strict=True):
            cell = _skip(draw, low, high)
            cell = jnp.where(tnt[cell], _skip(bound, low, high), cell)
            tnt = tnt | (jnp.arange(cells) == cell)
        return NavigatorState(
            time=jnp.int32(0),
            score=jnp.int32(0),
            x=start % self.size,
            y=start // self.size,
            tnt=tnt.reshape(self.size, self.size),
            treasure_x=treasure % self.size,
            treasure_y=treasure // self.size,
        )

    def transition(
        self, key: jax.Array, state: NavigatorState, action: jax.Array, params: EnvParams
    ) -> tuple[NavigatorState, jax.Array, jax.Array]:
        """Move within the field, or claim the cell."""
        x = jnp.clip(state.x + (action == RIGHT) - (action == LEFT), 0, self.size - 1)
        y = jnp.clip(state.y + (action == DOWN) - (action == UP), 0, self.size - 1)
        found = (action == FIRE) & (x == state.treasure_x) & (y == state.treasure_y)
        exploded = state.tnt[y, x]
        reward = jnp.where(found, 1.0, jnp.where(exploded, -0.5, -0.5 / self.size**2))
        state = state.replace(x=x, y=y, score=jnp.where(found, 100, state.score))
        return state, reward, found | exploded

    def render(self, state: NavigatorState, params: EnvParams | None = None) -> jax.Array:
        """The field with TNT, treasure and player, or with the player alone."""
        y, x = jnp.indices((self.size, self.size))
        treasure = (x == state.treasure_x) & (y == state.treasure_y)
        things = jnp.where(treasure, GOLD, jnp.where(state.tnt, TNT, EMPTY))
        things = jnp.where(self.shows_all(state), things, EMPTY)
        player = (x == state.x) & (y == state.y)
        return self.screen.draw({"board": things + WITH_PLAYER * player, "score": state.score})


class NavigatorEasy(Navigator):
    """8 x 8 cells, 64 steps."""

    size = 8


class NavigatorMedium(Navigator):
    """10 x 10 cells, 100 steps."""

    size = 10


class NavigatorHard(Navigator):
    """12 x 12 cells, 144 steps."""

    size = 12


def _skip(index: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """The cell number `index` among those that are neither `low` nor `high`."""
    index = index + (index >= low)
    return index + (index >= high)


def _pictures(cell: int) -> np.ndarray:
    """Empty, TNT, treasure, the player, then TNT and treasure on the player's colour: uint8[6, cell, cell, 3].

    An episode ends when the player meets TNT, but the player may pass the treasure without claiming it.
    """
    box = (0, 0), (cell, cell)
    empty, yellow = blank(cell, GROUND), blank(cell, PLAYER)
    things = [[draw_bomb(*box, BOMB, ground), draw_gem(*box, TREASURE, ground)] for ground in (empty, yellow)]
    return np.stack([empty, *things[0], draw_pawn(*box, PLAYER, empty), *things[1]])
