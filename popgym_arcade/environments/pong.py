"""Pong: two paddles and a ball, for one player against a script or for two. Not one of the ids.

python pqn_mlp.py --env-id popgym_arcade.environments.pong:PongEasy
python ppo_selfplay.py --env-id popgym_arcade.environments.pong:PongEasy
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments.environment import EnvParams

from popgym_arcade.environments.arcade import DOWN, UP, ArcadeEnvironment, ArcadeState
from popgym_arcade.environments.draw_utils import draw_sub_canvas
from popgym_arcade.environments.screen import Screen, Sprites, blank, grid, number, titled

CANVAS, GROUND = (60, 42, 20), (20, 20, 24)
PADDLES = (213, 130, 74), (92, 186, 92)  # left, right
NAME = (236, 236, 236)
BALLS = (70, 120, 255), (130, 210, 255), (255, 255, 255), (255, 200, 90), (255, 110, 60)  # by dy from -2 to 2
NOTCH = (0, 0, 0)

ROWS, COLUMNS = 16, 20  # the paddles are in the first and the last column
CELL = 6  # pixels at 128 px
SPEED = 2  # columns per step
BAND = range(5, 15)  # columns in which the partially observable twin hides the ball
POINTS = 5  # end the game
SCORE_BOXES = {128: (((10, 1), (52, 15)), ((76, 1), (118, 15))), 256: (((20, 2), (104, 30)), ((152, 2), (236, 30)))}
SPINS = {4: (-2, -1, 1, 2), 3: (-2, 0, 2), 2: (-1, 1)}  # dy by the part of the paddle that is hit, by its height

LEFT_SEAT, RIGHT_SEAT = 0, 1
NO_BALL, FIRST_BALL = 0, 1  # pictures of a cell: none, then the ball to the left and to the right with each dy


@struct.dataclass
class PongState(ArcadeState):
    """Row 0 is at the top. Arrays [2] are for the left and the right seat.

    points: int32[2] in 0..5.
    paddles: int32[2], the paddles' top rows.
    ball_y, ball_x: int32, the ball's row and column, 1..18.
    to_right: bool, whether the ball flies to the right.
    dy: int32 in -2..2, rows per step until the ball bounces off a wall.
    """

    points: jax.Array
    paddles: jax.Array
    ball_y: jax.Array
    ball_x: jax.Array
    to_right: jax.Array
    dy: jax.Array

    @property
    def score(self) -> jax.Array:
        """The right seat's points."""
        return self.points[RIGHT_SEAT]


class Pong(ArcadeEnvironment):
    """Up and down move the right paddle; the left one follows the ball in three of four steps.

    The ball crosses two columns per step and bounces off the upper and lower wall. A paddle returns a ball that it
    meets, more steeply the further from its middle it is hit. A missed ball is a point for the other side: it pays 1/5
    to that side and costs the other 1/5. Five points end the game. The time limit is 500. The partially observable twin
    hides the ball in the ten middle columns.
    """

    max_steps = 500
    paddle_height: int

    def __init__(self, partial_obs: bool = False, obs_size: int = 128):
        super().__init__(partial_obs, obs_size)
        side = CELL * obs_size // 128
        canvas = titled(obs_size, CANVAS, "Pong", NAME)
        canvas = draw_sub_canvas(blank((ROWS * side, COLUMNS * side), GROUND), canvas)
        first = (obs_size - COLUMNS * side) // 2, (obs_size - ROWS * side) // 2
        cells = grid(first, (ROWS, COLUMNS), side)
        groups = {"court": Sprites(cells[:, 1:-1], _balls(side))}
        for seat, column in ((LEFT_SEAT, 0), (RIGHT_SEAT, -1)):
            pictures = np.stack([blank(side, GROUND), blank(side, PADDLES[seat])])
            groups[f"paddle {seat}"] = Sprites(cells[:, column], pictures)
            box = SCORE_BOXES[obs_size][seat]
            groups[f"points {seat}"] = number(box, PADDLES[seat], canvas, largest=POINTS)
        self.screen = Screen(canvas, groups)

    def reset_state(self, key: jax.Array, params: EnvParams) -> PongState:
        """No points, paddles in the middle, and a random serve."""
        state = PongState(
            time=jnp.int32(0),
            points=jnp.zeros(2, jnp.int32),
            paddles=jnp.full(2, (ROWS - self.paddle_height) // 2, jnp.int32),
            ball_y=jnp.int32(0),
            ball_x=jnp.int32(0),
            to_right=jnp.bool_(False),
            dy=jnp.int32(0),
        )
        return serve(key, state)

    def transition(
        self, key: jax.Array, state: PongState, action: jax.Array, params: EnvParams
    ) -> tuple[PongState, jax.Array, jax.Array]:
        """A step against the script; the reward is that of the right seat."""
        key, script_key = jax.random.split(key)
        state, reward, terminated = self.play(key, state, jnp.stack([self.script(script_key, state), action]))
        return state, reward[RIGHT_SEAT], terminated

    def script(self, key: jax.Array, state: PongState) -> jax.Array:
        """The left seat's action: towards the ball, with probability 3/4."""
        middle = 2 * state.paddles[LEFT_SEAT] + self.paddle_height - 1  # in half rows
        follow = jnp.where(2 * state.ball_y < middle, UP, DOWN)
        idle = (jnp.abs(2 * state.ball_y - middle) <= 1) | jax.random.bernoulli(key, 0.25)
        return jnp.where(idle, -1, follow)

    def play(self, key: jax.Array, state: PongState, actions: jax.Array) -> tuple[PongState, jax.Array, jax.Array]:
        """A step of both seats, actions int32[2]: the next state, rewards float32[2], whether the game is over."""
        move = (actions == DOWN).astype(jnp.int32) - (actions == UP)
        paddles = jnp.clip(state.paddles + move, 0, ROWS - self.paddle_height)
        aim = state.ball_y + state.dy
        y = jnp.where(aim < 0, -aim, jnp.where(aim >= ROWS, 2 * (ROWS - 1) - aim, aim))
        dy = jnp.where(aim == y, state.dy, -state.dy)
        x = state.ball_x + jnp.where(state.to_right, SPEED, -SPEED)

        arrives = (x <= 0) | (x >= COLUMNS - 1)
        defender = state.to_right.astype(jnp.int32)
        part = y - paddles[defender]
        hit = arrives & (part >= 0) & (part < self.paddle_height)
        spin = jnp.asarray(SPINS[self.paddle_height])[jnp.clip(part, 0, self.paddle_height - 1)]
        lost = arrives & ~hit

        scored = (lost & (np.arange(2) != defender)).astype(jnp.int32)
        state = state.replace(
            points=state.points + scored,
            paddles=paddles,
            ball_y=y,
            ball_x=jnp.where(hit, jnp.where(state.to_right, COLUMNS - 2, 1), x),
            to_right=state.to_right ^ hit,
            dy=jnp.where(hit, spin, dy),
        )
        served = serve(key, state)
        state = jax.tree.map(lambda new, old: jnp.where(lost, new, old), served, state)
        return state, (scored - scored[::-1]) / POINTS, jnp.any(state.points == POINTS)

    def mirrored(self, state: PongState) -> PongState:
        """The state in which left and right have changed places."""
        return state.replace(
            points=state.points[::-1],
            paddles=state.paddles[::-1],
            ball_x=COLUMNS - 1 - state.ball_x,
            to_right=~state.to_right,
        )

    def render(self, state: PongState, params: EnvParams | None = None) -> jax.Array:
        """Both paddles and points; the ball, coloured by its dy, with a notch in front, where this twin shows it."""
        hidden = (state.ball_x >= BAND.start) & (state.ball_x < BAND.stop) & ~self.shows_all(state)
        ball = FIRST_BALL + len(BALLS) * state.to_right + state.dy + 2
        rows = np.arange(ROWS)
        here = (rows[:, None] == state.ball_y) & (np.arange(1, COLUMNS - 1) == state.ball_x) & ~hidden
        indices = {"court": jnp.where(here, ball, NO_BALL)}
        for seat in (LEFT_SEAT, RIGHT_SEAT):
            top = state.paddles[seat]
            indices[f"paddle {seat}"] = (rows >= top) & (rows < top + self.paddle_height)
            indices[f"points {seat}"] = state.points[seat]
        return self.screen.draw(indices)


def serve(key: jax.Array, state: PongState) -> PongState:
    """The state with the ball in the middle, in a random row, flying to a random side, slightly up or down."""
    row_key, side_key, dy_key = jax.random.split(key, 3)
    return state.replace(
        ball_y=jax.random.randint(row_key, (), 4, ROWS - 4),
        ball_x=jnp.int32(COLUMNS // 2),
        to_right=jax.random.bernoulli(side_key),
        dy=2 * jax.random.bernoulli(dy_key).astype(jnp.int32) - 1,
    )


def _balls(side: int) -> np.ndarray:
    """A court's cell: the bare ground, then the ball by direction and dy, uint8[11, side, side, 3]."""
    notch = side // 3
    pictures = [blank(side, GROUND)]
    for to_right in (False, True):
        for color in BALLS:
            ball = blank(side, color)
            front = slice(side - notch, None) if to_right else slice(notch)
            ball[notch:-notch, front] = NOTCH
            pictures.append(ball)
    return np.stack(pictures)


class PongEasy(Pong):
    """Paddles of four rows."""

    paddle_height = 4


class PongMedium(Pong):
    """Paddles of three rows."""

    paddle_height = 3


class PongHard(Pong):
    """Paddles of two rows."""

    paddle_height = 2
