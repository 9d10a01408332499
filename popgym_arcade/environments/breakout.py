"""Breakout: MinAtar's game on 20 rows by 10 columns."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments.environment import EnvParams

from popgym_arcade.environments.arcade import LEFT, RIGHT, ArcadeEnvironment, ArcadeState
from popgym_arcade.environments.draw_utils import draw_sub_canvas
from popgym_arcade.environments.screen import SCORE_BOX, Color, Screen, Sprites, blank, grid, number, titled

CANVAS, GROUND = (119, 122, 127), (0, 0, 0)
BRICKS = ((200, 72, 72), (198, 108, 58), (255, 122, 48), (162, 162, 42), (72, 255, 72), (66, 72, 200))  # rows 1 to 6
PADDLE_COLOR, BALL, TRAIL, STRIKE = (200, 72, 72), (255, 255, 255), (150, 150, 150), (0, 160, 255)
SCORE, NAME = (255, 48, 71), (255, 255, 0)

ROWS, COLUMNS = 20, 10
FLOOR = ROWS - 1  # the paddle's row
WALL = range(1, 1 + len(BRICKS))  # the rows of bricks
NUM_BRICKS = len(WALL) * COLUMNS
CELL = (5, 10)  # height and width of a cell at 128 px

# Pictures of a cell: nothing, the trail, the ball by direction, the same after touching a brick, the ball as the
# partially observable twin shows it; then all of these on a brick. In the paddle's row, which has no trail, the paddle
# uses the trail's number.
NOTHING, DOT, FLYING, STRUCK, PLAIN, ON_BRICK = 0, 1, 2, 6, 10, 11
PADDLE = DOT


@struct.dataclass
class BreakoutState(ArcadeState):
    """Row 0 is at the top, the paddle in row 19.

    score: int32 in 0..60, bricks broken.
    ball_y, ball_x: int32, the ball's row and column.
    ball_dir: int32, 0 up-left, 1 up-right, 2 down-right, 3 down-left.
    paddle_x: int32, the paddle's left column.
    bricks: bool[20, 10], by row and column; in rows 1..6 only.
    strike: bool, whether the last step touched a brick. If so, the next one breaks none.
    last_y, last_x: int32, the ball's cell before the last step.
    """

    score: jax.Array
    ball_y: jax.Array
    ball_x: jax.Array
    ball_dir: jax.Array
    paddle_x: jax.Array
    bricks: jax.Array
    strike: jax.Array
    last_y: jax.Array
    last_x: jax.Array


class Breakout(ArcadeEnvironment):
    """Move the paddle (left, right) to keep the ball in play until it has broken all 60 bricks.

    Bricks pay from 0.025 in the top row to 0.0083 in the lowest, 1 in all. Losing the ball costs 1/60 for every brick
    left and ends the episode, as does the last brick. The time limit is 2000. The partially observable twin shows the
    ball only while it rises, and hides its trail, its direction and whether it touched a brick.
    """

    max_steps = 2000
    paddle_width: int

    def __init__(self, partial_obs: bool = False, obs_size: int = 128):
        super().__init__(partial_obs, obs_size)
        scale = obs_size // 128
        height, width = CELL[0] * scale, CELL[1] * scale
        canvas = titled(obs_size, CANVAS, "Breakout", NAME)
        canvas = draw_sub_canvas(blank((ROWS * height, COLUMNS * width), GROUND), canvas)
        first = (obs_size - COLUMNS * width) // 2
        cells = grid((first, first), (ROWS, COLUMNS), (width, height))
        ground = _pictures(scale)
        groups = {
            "ceiling": Sprites(cells[: WALL.start], ground),
            "open": Sprites(cells[WALL.stop : FLOOR], ground),
            "floor": Sprites(cells[FLOOR], _pictures(scale, dot=PADDLE_COLOR)),
        }
        for row, color in zip(WALL, BRICKS, strict=True):
            groups[f"row {row}"] = Sprites(cells[row], _pictures(scale, brick=color))
        self.screen = Screen(
            canvas, {**groups, "score": number(SCORE_BOX[obs_size], SCORE, canvas, largest=NUM_BRICKS)}
        )

    def reset_state(self, key: jax.Array, params: EnvParams) -> BreakoutState:
        """All bricks; the ball rises from the left or the right wall."""
        from_right = jax.random.bernoulli(key).astype(jnp.int32)
        ball_y, ball_x = jnp.int32(13), from_right * (COLUMNS - 1)
        return BreakoutState(
            time=jnp.int32(0),
            score=jnp.int32(0),
            ball_y=ball_y,
            ball_x=ball_x,
            ball_dir=from_right,
            paddle_x=jnp.int32(min(5, COLUMNS - self.paddle_width)),
            bricks=jnp.asarray(np.isin(np.arange(ROWS), WALL)[:, None] & np.ones((1, COLUMNS), bool)),
            strike=jnp.bool_(False),
            last_y=ball_y,
            last_x=ball_x,
        )

    def transition(
        self, key: jax.Array, state: BreakoutState, action: jax.Array, params: EnvParams
    ) -> tuple[BreakoutState, jax.Array, jax.Array]:
        """Move the paddle, then the ball by one cell along its diagonal."""
        move = (action == RIGHT).astype(jnp.int32) - (action == LEFT)
        paddle_x = jnp.clip(state.paddle_x + move, 0, COLUMNS - self.paddle_width)
        down, right = state.ball_dir >= 2, (state.ball_dir == 1) | (state.ball_dir == 2)

        aim_x = state.ball_x + jnp.where(right, 1, -1)
        x = jnp.clip(aim_x, 0, COLUMNS - 1)
        right = right ^ (aim_x != x)
        aim_y = state.ball_y + jnp.where(down, 1, -1)
        y = jnp.maximum(aim_y, 0)
        ceiling = aim_y < 0

        cell = (np.arange(ROWS)[:, None] == y) & (np.arange(COLUMNS)[None] == x)
        touched = jnp.any(state.bricks & cell)
        broken = touched & ~state.strike
        bricks = state.bricks & ~(cell & broken)

        under_ball = self._over(paddle_x, state.ball_x)
        edge = ~under_ball & self._over(paddle_x, x)  # the paddle's edge sends the ball back where it came from
        at_floor = y == FLOOR
        caught = at_floor & (under_ball | edge)
        lost = at_floor & ~caught

        down = down ^ (ceiling | broken | caught)
        right = right ^ (at_floor & edge)
        remaining = jnp.sum(bricks)
        # Rows 1 to 6 pay 15, 13, 11, 9, 7 and 5 six-hundredths: 1 for all 60 bricks.
        reward = jnp.where(broken, (17 - 2 * y) / 600, jnp.where(lost, remaining / -NUM_BRICKS, 0.0))
        state = state.replace(
            score=state.score + broken,
            ball_y=jnp.where(broken | caught, state.ball_y, y),
            ball_x=x,
            ball_dir=2 * down.astype(jnp.int32) + (right ^ down),
            paddle_x=paddle_x,
            bricks=bricks,
            strike=touched,
            last_y=state.ball_y,
            last_x=state.ball_x,
        )
        return state, reward, lost | (remaining == 0)

    def render(self, state: BreakoutState, params: EnvParams | None = None) -> jax.Array:
        """Bricks, paddle, ball and trail; or bricks, paddle, and the ball while it rises."""
        shows_all = self.shows_all(state)
        row, column = np.arange(ROWS)[:, None], np.arange(COLUMNS)[None]
        ball = (row == state.ball_y) & (column == state.ball_x) & (shows_all | (state.ball_dir < 2))
        dot = (row == state.last_y) & (column == state.last_x) & shows_all
        kind = jnp.where(shows_all, state.ball_dir + jnp.where(state.strike, STRUCK, FLYING), PLAIN)
        cells = jnp.where(ball, kind, DOT * dot)
        paddle = PADDLE * self._over(state.paddle_x, column)
        walls = cells + ON_BRICK * state.bricks
        return self.screen.draw(
            {
                "ceiling": cells[: WALL.start],
                "open": cells[WALL.stop : FLOOR],
                "floor": jnp.maximum(cells[FLOOR], paddle[0]),
                **{f"row {row}": walls[row] for row in WALL},
                "score": state.score,
            }
        )

    def _over(self, paddle_x: jax.Array, column: jax.Array | np.ndarray) -> jax.Array:
        """Whether a column is over the paddle, bool of the column's shape."""
        return (column >= paddle_x) & (column < paddle_x + self.paddle_width)


class BreakoutEasy(Breakout):
    """A paddle of 6 columns."""

    paddle_width = 6


class BreakoutMedium(Breakout):
    """A paddle of 5 columns."""

    paddle_width = 5


class BreakoutHard(Breakout):
    """A paddle of 4 columns."""

    paddle_width = 4


def _pictures(scale: int, dot: Color | None = None, brick: Color | None = None) -> np.ndarray:
    """All pictures of a cell, uint8[K, 5 * scale, 10 * scale, 3]: K = 11, or 22 with those on a brick.

    `dot` paints the whole cell instead of the trail's dot.
    """
    pictures = _things(blank(CELL, GROUND))
    if dot is not None:
        pictures[DOT] = blank(CELL, dot)
    if brick is not None:
        bare = blank(CELL, GROUND)
        bare[:-1, :-1] = brick  # a dark line tells bricks apart
        on_brick = _things(blank(CELL, brick))  # so that the notch shows enough of the brick
        on_brick[NOTHING] = bare
        on_brick[PLAIN] = bare.copy()
        on_brick[PLAIN][:, 2:-2] = BALL  # leaves some of the brick visible
        pictures += on_brick
    return np.stack(pictures).repeat(scale, 1).repeat(scale, 2)


def _things(ground: np.ndarray) -> list[np.ndarray]:
    """Nothing, the trail, the ball in all its forms, each on the same ground."""
    dotted = ground.copy()
    dotted[1:-1, 3:-3] = TRAIL
    balls = [_ball(ground, direction, struck) for struck in (False, True) for direction in range(4)]
    return [ground, dotted, *balls, blank(CELL, BALL)]


def _ball(ground: np.ndarray, direction: int, struck: bool) -> np.ndarray:
    """The ball fills the cell except for a notch in the corner it flies towards; `struck` gives it an outline."""
    body = np.ones(CELL, bool)
    rows = slice(0, 2) if direction < 2 else slice(-2, None)
    columns = slice(0, 4) if direction in (0, 3) else slice(-4, None)
    body[rows, columns] = False
    # A pixel is inside if all eight around it belong to the body.
    around = np.pad(body, 1)
    near = [around[y : y + CELL[0], x : x + CELL[1]] for y in range(3) for x in range(3)]
    inside = np.logical_and.reduce(near)
    picture = ground.copy()
    picture[body] = STRIKE if struck else BALL
    picture[inside] = BALL
    return picture
