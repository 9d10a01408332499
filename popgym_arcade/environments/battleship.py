"""BattleShip: find and hit four ships."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments.environment import EnvParams

from popgym_arcade.environments.arcade import DOWN, FIRE, LEFT, RIGHT, UP, ArcadeEnvironment, ArcadeState
from popgym_arcade.environments.draw_utils import draw_o, draw_x
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

CANVAS, GROUND, LINES = (255, 255, 255), (191, 191, 191), (102, 102, 102)
CURSOR, HIT_COLOR, MISS_COLOR = (217, 166, 33), (255, 0, 0), (0, 0, 0)
SCORE, NAME = (255, 128, 0), (74, 214, 247)

SHIPS = (2, 3, 3, 4)  # lengths, in the order of placement
TO_HIT = sum(SHIPS)
UNKNOWN, HIT, MISS, UNDER_CURSOR = 0, 1, 2, 3  # pictures of a cell; UNDER_CURSOR is added to the others


@struct.dataclass
class BattleShipState(ArcadeState):
    """An n x n sea.

    score: int32 in 0..12, hits.
    x, y: int32, the cursor's column and row.
    ships: bool[n, n], by row and column.
    fired: bool[n, n], the cells fired at.
    repeats: int32 in 0..n^2 / 2, shots at cells already fired at.
    """

    score: jax.Array
    x: jax.Array
    y: jax.Array
    ships: jax.Array
    fired: jax.Array
    repeats: jax.Array


class BattleShip(ArcadeEnvironment):
    """Move (up, down, left, right) over a sea of `size` x `size` cells and fire at the ships in it.

    There are four ships, 12 cells in all. A hit pays 1 / 12, a shot at a cell already fired at costs 2 / size^2. The
    episode ends with the last hit or after size^2 / 2 such shots; the time limit is 2 size^2. The partially observable
    twin shows only the mark under the cursor.
    """

    size: int

    @property
    def max_steps(self) -> int:
        """Two steps per cell."""
        return 2 * self.size**2

    @property
    def max_repeats(self) -> int:
        """The number of repeats that ends an episode."""
        return self.size**2 // 2

    def __init__(self, partial_obs: bool = False, obs_size: int = 128):
        super().__init__(partial_obs, obs_size)
        canvas = titled(obs_size, CANVAS, "BattleShip", NAME)
        canvas, cells, cell = with_lined_board(self.size, GROUND, LINES, canvas)
        self.screen = Screen(
            canvas,
            {
                "board": Sprites(cells, _pictures(cell)),
                "score": number(SCORE_BOX[obs_size], SCORE, canvas, largest=TO_HIT),
                "repeats": number(GAUGE_BOX[obs_size], HIT_COLOR, canvas, largest=self.max_repeats),
            },
        )

    def reset_state(self, key: jax.Array, params: EnvParams) -> BattleShipState:
        """Place the ships one after the other, each uniformly where it fits, and the cursor anywhere."""
        start, *draws = jax.random.bits(key, (1 + len(SHIPS),))
        free = jnp.full(self.size, 2**self.size - 1, jnp.uint32)  # by row; bit x is column x
        for length, draw in zip(SHIPS, draws, strict=True):
            free &= ~self._ship(free, length, draw)
        start = (start % self.size**2).astype(jnp.int32)
        return BattleShipState(
            time=jnp.int32(0),
            score=jnp.int32(0),
            x=start % self.size,
            y=start // self.size,
            ships=(free[:, None] >> np.arange(self.size, dtype=np.uint32)[None]) & 1 == 0,
            fired=jnp.zeros((self.size, self.size), jnp.bool_),
            repeats=jnp.int32(0),
        )

    def transition(
        self, key: jax.Array, state: BattleShipState, action: jax.Array, params: EnvParams
    ) -> tuple[BattleShipState, jax.Array, jax.Array]:
        """Move within the sea, or fire at the cell under the cursor."""
        fires = action == FIRE
        repeated = fires & state.fired[state.y, state.x]
        hit = fires & ~repeated & state.ships[state.y, state.x]
        state = state.replace(
            score=state.score + hit,
            x=jnp.clip(state.x + (action == RIGHT) - (action == LEFT), 0, self.size - 1),
            y=jnp.clip(state.y + (action == DOWN) - (action == UP), 0, self.size - 1),
            fired=state.fired | (fires & self._under_cursor(state)),
            repeats=state.repeats + repeated,
        )
        reward = jnp.where(hit, 1 / TO_HIT, jnp.where(repeated, -2 / self.size**2, 0.0))
        return state, reward, (state.score == TO_HIT) | (state.repeats == self.max_repeats)

    def render(self, state: BattleShipState, params: EnvParams | None = None) -> jax.Array:
        """All marks or only the one under the cursor, the cursor, and the repeats."""
        cursor = self._under_cursor(state)
        marks = jnp.where(state.ships, HIT, MISS)
        marks = jnp.where(state.fired & (cursor | self.shows_all(state)), marks, UNKNOWN)
        return self.screen.draw(
            {"board": marks + UNDER_CURSOR * cursor, "score": state.score, "repeats": state.repeats}
        )

    def _under_cursor(self, state: BattleShipState) -> jax.Array:
        """bool[n, n], true in the cursor's cell."""
        y, x = np.indices((self.size, self.size))
        return (y == state.y) & (x == state.x)

    def _ship(self, free: jax.Array, length: int, draw: jax.Array) -> jax.Array:
        """Choose uniformly among the places for a ship of `length` on free cells; `draw` is a random uint32.

        Cells are bits of uint32[n], one number per row, so that a whole row is tested at once. The result has the
        ship's bits set. There are at most 264 places, so a remainder is uniform to 1 part in 16 million.
        """
        rows = np.arange(self.size)
        right = down = free
        for shift in range(1, length):
            right &= free >> shift
            down &= jnp.concatenate([free[shift:], np.zeros(shift, np.uint32)])
        # A line is a row and a direction: first all rows for ships that go right, then all for ships that go down.
        fits = jnp.concatenate([right, down])  # bit x: a ship may begin at column x
        counts = jax.lax.population_count(fits)
        # places in each line and the lines before it
        upto = jnp.sum(jnp.where(np.tri(2 * self.size, dtype=bool), counts, 0), axis=1, dtype=jnp.uint32)
        rank = draw % upto[-1]
        line = jnp.sum(upto <= rank)
        rank -= upto[line] - counts[line]  # of the place within its line
        masks = ((2 << rows) - 1).astype(np.uint32)  # the columns up to each
        column = jnp.sum(jax.lax.population_count(fits[line] & masks) <= rank).astype(jnp.uint32)
        row = line % self.size
        across = line < self.size
        bits = jnp.where(across, np.uint32(2**length - 1), np.uint32(1)) << column
        return jnp.where((rows >= row) & (rows < row + jnp.where(across, 1, length)), bits, 0).astype(jnp.uint32)


class BattleShipEasy(BattleShip):
    """8 x 8 cells, 128 steps."""

    size = 8


class BattleShipMedium(BattleShip):
    """10 x 10 cells, 200 steps."""

    size = 10


class BattleShipHard(BattleShip):
    """12 x 12 cells, 288 steps."""

    size = 12


def _pictures(cell: int) -> np.ndarray:
    """Unknown, hit and missed, and the same under the cursor, uint8[6, cell, cell, 3].

    The cursor tints the cell: a frame would leave too little room for a mark in the smallest cells, 6 pixels wide.
    """
    box = (0, 0), (cell, cell)
    thickness = 1 + cell // 7
    return np.stack(
        [
            picture
            for ground in (blank(cell, GROUND), blank(cell, CURSOR))
            for picture in (
                ground,
                draw_x(*box, thickness, HIT_COLOR, ground),
                draw_o(*box, thickness, MISS_COLOR, ground),
            )
        ]
    )
