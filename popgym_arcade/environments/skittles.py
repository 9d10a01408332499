"""Skittles: dodge the falling balls."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments.environment import EnvParams

from popgym_arcade.environments.arcade import LEFT, RIGHT, ArcadeEnvironment, ArcadeState
from popgym_arcade.environments.draw_utils import draw_circle, draw_pin, draw_rectangle
from popgym_arcade.environments.screen import (
    GRID_LINE,
    SCORE_BOX,
    Screen,
    Sprites,
    blank,
    number,
    titled,
    with_lined_board,
)

SIZE = 10
CANVAS, LANE, AGENT = (0, 0, 0), (40, 40, 56), (255, 255, 255)
BALLS = ((255, 0, 0), (255, 127, 0), (255, 255, 0), (0, 255, 0), (0, 0, 255), (74, 214, 247), (125, 0, 237))
SCORE, NAME = (0, 255, 128), (255, 245, 0)

EMPTY, WITH_AGENT = 0, 1 + len(BALLS)  # pictures of a cell; balls are 1..7, WITH_AGENT is added in the agent's cell


@struct.dataclass
class SkittlesState(ArcadeState):
    """A field of 10 x 10 cells.

    x: int32, the agent's column; it stands in the last row.
    enemies: bool[10, 10], the balls by row and column.
    mask: bool[10, 10], where the partially observable twin shows balls.
    """

    x: jax.Array
    enemies: jax.Array
    mask: jax.Array


class Skittles(ArcadeEnvironment):
    """Step left and right within a lane of `width` columns, from column `first` on, to dodge the balls that fall.

    Balls fall one row per step, and every step a new one enters at the top. Every step pays 1/100; a hit ends the
    episode. The time limit is 100. The partially observable twin shows each cell's ball with probability 1/2, drawn
    again every step.
    """

    max_steps = 100
    first: int
    width: int

    def __init__(self, partial_obs: bool = False, obs_size: int = 128):
        super().__init__(partial_obs, obs_size)
        canvas = titled(obs_size, CANVAS, "Skittles", NAME)
        canvas, cells, cell = with_lined_board(SIZE, CANVAS, CANVAS, canvas)
        self.lane = slice(self.first, self.first + self.width)
        lane = cells[:, self.lane]
        canvas = draw_rectangle(lane[0, 0] - GRID_LINE, lane[-1, -1] + cell + GRID_LINE, LANE, canvas)
        self.screen = Screen(
            canvas,
            {"lane": Sprites(lane, _pictures(cell)), "score": number(SCORE_BOX[obs_size], SCORE, canvas)},
        )

    def reset_state(self, key: jax.Array, params: EnvParams) -> SkittlesState:
        """No balls, the agent anywhere in the lane."""
        x, mask = self._draw(key)
        return SkittlesState(time=jnp.int32(0), x=x, enemies=jnp.zeros((SIZE, SIZE), jnp.bool_), mask=mask)

    def transition(
        self, key: jax.Array, state: SkittlesState, action: jax.Array, params: EnvParams
    ) -> tuple[SkittlesState, jax.Array, jax.Array]:
        """Move, then let the balls fall; a ball hits both where it was and where it lands."""
        step = (action == RIGHT).astype(jnp.int32) - (action == LEFT)
        x = jnp.clip(state.x + step, self.first, self.first + self.width - 1)
        hit = jnp.any(state.enemies[-2:] & (np.arange(SIZE)[None] == x))  # the last row before the fall, and after it
        column, mask = self._draw(key)
        enemies = jnp.concatenate([np.arange(SIZE)[None] == column, state.enemies[:-1]])
        return state.replace(x=x, enemies=enemies, mask=mask), jnp.float32(1 / 100), hit

    def render(self, state: SkittlesState, params: EnvParams | None = None) -> jax.Array:
        """The agent, and all balls or those that the mask shows."""
        y, x = np.indices((SIZE, SIZE))
        seen = state.enemies & (state.mask | self.shows_all(state))
        color = (state.time - 1 - y) % len(BALLS)  # of the step in which this row of balls entered
        agent = (y == SIZE - 1) & (x == state.x)
        board = jnp.where(seen, 1 + color, EMPTY) + WITH_AGENT * agent
        return self.screen.draw({"lane": board[:, self.lane], "score": state.time})

    def _draw(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A uniform column of the lane, int32, and a mask whose cells are each True with probability 1/2.

        One call for both: 32 bits for the column (the remainder is biased by less than 1e-8), one for each cell.
        """
        words = 1 + -(-SIZE * SIZE // 32)
        bits = jax.random.bits(key, (words,))
        column = self.first + (bits[0] % np.uint32(self.width)).astype(jnp.int32)
        mask = (bits[1:, None] >> np.arange(32, dtype=np.uint32)[None]) & np.uint32(1)
        return column, mask.reshape(-1)[: SIZE * SIZE].reshape(SIZE, SIZE) == 1


class SkittlesEasy(Skittles):
    """A lane of 8 columns."""

    first, width = 1, 8


class SkittlesMedium(Skittles):
    """A lane of 7 columns."""

    first, width = 2, 7


class SkittlesHard(Skittles):
    """A lane of 6 columns."""

    first, width = 2, 6


def _pictures(cell: int) -> np.ndarray:
    """Empty and a ball of each colour; then the same behind the agent, a pin: uint8[16, cell, cell, 3]."""
    box = (0, 0), (cell, cell)
    empty = blank(cell, LANE)
    balls = [draw_circle(*box, cell / 2, color, empty) for color in BALLS]
    return np.stack([empty, *balls, *(draw_pin(*box, AGENT, ground) for ground in (empty, *balls))])
