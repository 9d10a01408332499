"""MineSweeper: reveal every safe cell."""

from functools import reduce
from operator import or_

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments.environment import EnvParams

from popgym_arcade.environments.arcade import DOWN, FIRE, LEFT, RIGHT, UP, ArcadeEnvironment, ArcadeState
from popgym_arcade.environments.draw_utils import draw_digit, draw_rectangle, draw_sub_canvas
from popgym_arcade.environments.screen import (
    GAUGE_BOX,
    SCORE_BOX,
    Screen,
    Sprites,
    blank,
    number,
    titled,
    with_lined_board,
)

CANVAS, OPEN, NUMBERS = (229, 234, 242), (0, 0, 0), (255, 255, 255)
COVER, LIGHT, SHADOW = (170, 176, 186), (224, 228, 236), (112, 116, 124)  # of a covered cell, a raised button
CURSOR, LINES = (255, 127, 0), (102, 102, 102)
SCORE, NAME = (153, 0, 204), (0, 51, 102)

# Pictures of a cell: covered, the numbers 0..9 (a revealed mine counts itself), and all of these under the cursor.
COVERED, NUMBER, UNDER_CURSOR = 0, 1, 11
# By the cell's size in pixels: the width of the cursor's frame and the side of a digit. They leave a pixel between the
# two all around. Dots have one size except in cells of 13 (2, 2, 1, 2 and 2 pixels), where 5 would be hard to read.
FRAME_AND_DIGIT = {9: (1, 5), 13: (1, 9), 21: (2, 15), 28: (3, 20), 44: (4, 30)}


@struct.dataclass
class MineSweeperState(ArcadeState):
    """An n x n field.

    score: int32 in 0..n^2 - m, safe cells revealed.
    x, y: int32, the cursor's column and row.
    mines: bool[n, n], by row and column.
    revealed: bool[n, n]. A mine is revealed by the step that ends the episode.
    repeats: int32 in 0..n^2 / 2, attempts to reveal a cell again.
    """

    score: jax.Array
    x: jax.Array
    y: jax.Array
    mines: jax.Array
    revealed: jax.Array
    repeats: jax.Array


class MineSweeper(ArcadeEnvironment):
    """Move (up, down, left, right) over `size` x `size` cells and reveal (fire) all those without a mine.

    A safe cell pays 1 / (number of safe cells) and shows how many mines are in the 3 x 3 cells around it; revealing a
    cell again costs 2 / size^2. The episode ends with the last safe cell, on a mine, or after size^2 / 2 repeats; the
    time limit is 2 size^2. The partially observable twin shows only the number under the cursor.
    """

    size: int
    num_mines: int

    @property
    def max_steps(self) -> int:
        """Two steps per cell."""
        return 2 * self.size**2

    @property
    def max_repeats(self) -> int:
        """The number of repeats that ends an episode."""
        return self.size**2 // 2

    @property
    def num_safe(self) -> int:
        """Cells without a mine."""
        return self.size**2 - self.num_mines

    def __init__(self, partial_obs: bool = False, obs_size: int = 128):
        super().__init__(partial_obs, obs_size)
        canvas = titled(obs_size, CANVAS, "MineSweeper", NAME)
        canvas, cells, cell = with_lined_board(self.size, OPEN, LINES, canvas)
        self.screen = Screen(
            canvas,
            {
                "board": Sprites(cells, _pictures(cell)),
                "score": number(SCORE_BOX[obs_size], SCORE, canvas, largest=self.num_safe),
                "repeats": number(GAUGE_BOX[obs_size], CURSOR, canvas, largest=self.max_repeats),
            },
        )

    def reset_state(self, key: jax.Array, params: EnvParams) -> MineSweeperState:
        """The mines on distinct cells and the cursor anywhere, uniformly."""
        cells = self.size**2
        # Floyd's method: draw each number below a growing bound. If it is already taken, take the largest one below the
        # bound, which is always free. A remainder is uniform to 1 part in 60 million.
        bounds = np.append(np.arange(cells - self.num_mines, cells) + 1, cells).astype(np.uint32)
        *draws, start = jax.random.bits(key, bounds.shape) % bounds
        mines: list[jax.Array] = []
        for draw, bound in zip(draws, bounds[:-1], strict=True):
            taken = reduce(or_, [draw == mine for mine in mines], False)
            mines.append(jnp.where(taken, bound - 1, draw))
        mined = jnp.any(jnp.stack(mines)[:, None] == np.arange(cells, dtype=np.uint32)[None], axis=0)
        start = start.astype(jnp.int32)
        return MineSweeperState(
            time=jnp.int32(0),
            score=jnp.int32(0),
            x=start % self.size,
            y=start // self.size,
            mines=mined.reshape(self.size, self.size),
            revealed=jnp.zeros((self.size, self.size), jnp.bool_),
            repeats=jnp.int32(0),
        )

    def transition(
        self, key: jax.Array, state: MineSweeperState, action: jax.Array, params: EnvParams
    ) -> tuple[MineSweeperState, jax.Array, jax.Array]:
        """Move within the field, or reveal the cell under the cursor."""
        fires = action == FIRE
        repeated = fires & state.revealed[state.y, state.x]
        exploded = fires & state.mines[state.y, state.x]
        found = fires & ~repeated & ~exploded
        state = state.replace(
            score=state.score + found,
            x=jnp.clip(state.x + (action == RIGHT) - (action == LEFT), 0, self.size - 1),
            y=jnp.clip(state.y + (action == DOWN) - (action == UP), 0, self.size - 1),
            revealed=state.revealed | (fires & self._under_cursor(state)),
            repeats=state.repeats + repeated,
        )
        reward = jnp.where(found, 1 / self.num_safe, jnp.where(repeated, -2 / self.size**2, 0.0))
        return state, reward, exploded | (state.score == self.num_safe) | (state.repeats == self.max_repeats)

    def render(self, state: MineSweeperState, params: EnvParams | None = None) -> jax.Array:
        """All numbers or only the one under the cursor, the cursor, and the repeats."""
        cursor = self._under_cursor(state)
        padded = jnp.pad(state.mines.astype(jnp.int32), 1)
        across = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
        around = across[:-2] + across[1:-1] + across[2:]
        numbers = jnp.where(state.revealed & (cursor | self.shows_all(state)), NUMBER + around, COVERED)
        return self.screen.draw(
            {"board": numbers + UNDER_CURSOR * cursor, "score": state.score, "repeats": state.repeats}
        )

    def _under_cursor(self, state: MineSweeperState) -> jax.Array:
        """bool[n, n], true in the cursor's cell."""
        y, x = np.indices((self.size, self.size))
        return (y == state.y) & (x == state.x)


class MineSweeperEasy(MineSweeper):
    """4 x 4 cells, 2 mines, 32 steps."""

    size, num_mines = 4, 2


class MineSweeperMedium(MineSweeper):
    """6 x 6 cells, 6 mines, 72 steps."""

    size, num_mines = 6, 6


class MineSweeperHard(MineSweeper):
    """8 x 8 cells, 10 mines, 128 steps."""

    size, num_mines = 8, 10


def _pictures(cell: int) -> np.ndarray:
    """Covered, the numbers 0..9, and the same in the cursor's frame, uint8[22, cell, cell, 3]."""
    frame, side = FRAME_AND_DIGIT[cell]
    left = (cell - side) // 2
    box = (left, left), (left + side, left + side)
    framed = blank(cell, CURSOR)
    covered = [_button(cell), draw_sub_canvas(_button(cell - 2 * frame), framed)]
    opened = [blank(cell, OPEN), draw_sub_canvas(blank(cell - 2 * frame, OPEN), framed)]
    return np.stack(
        [
            picture
            for cover, ground in zip(covered, opened, strict=True)
            for picture in (cover, *(draw_digit(*box, NUMBERS, ground, digit) for digit in range(10)))
        ]
    )


def _button(size: int) -> np.ndarray:
    """A raised button, lit from the top left, uint8[size, size, 3]."""
    edge = max(1, size // 10)
    button = draw_rectangle((edge, edge), (size, size), SHADOW, blank(size, LIGHT))
    return draw_rectangle((edge, edge), (size - edge, size - edge), COVER, button)
