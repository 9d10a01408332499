"""CartPole: balance a pole on a cart. Gym's CartPole, with coasting and with pictures."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments.environment import EnvParams

from popgym_arcade.environments.arcade import LEFT, RIGHT, ArcadeEnvironment, ArcadeState
from popgym_arcade.environments.draw_utils import (
    FULL_SPEED,
    draw_arc,
    draw_curved_arrow,
    draw_horizontal_arrow,
    draw_rectangle,
)
from popgym_arcade.environments.screen import SCORE_BOX, Screen, Sprites, blank, number, titled

CANVAS, CART, POLE = (51, 51, 51), (245, 74, 140), (140, 69, 18)
ARROW, SCALE = (204, 204, 204), (102, 102, 102)
SCORE, NAME = (0, 255, 128), (74, 214, 247)
HIDDEN = 0  # the empty picture of cart and pole

GRAVITY = 9.8  # m/s^2
CART_MASS, POLE_MASS = 1.0, 0.1  # kg
HALF_LENGTH = 0.5  # m, of the pole
FORCE = 10.0  # N
TIME_STEP = 0.02  # s
X_LIMIT, THETA_LIMIT = 2.4, 12 * np.pi / 180  # m and rad


@struct.dataclass
class CartPoleState(ArcadeState):
    """All float32, in metres, radians and seconds.

    x, x_dot: the cart's position and velocity.
    theta, theta_dot: the pole's angle from upright, clockwise, and its velocity.
    noise: [4], added to x, x_dot, theta, theta_dot in the picture.
    """

    x: jax.Array
    x_dot: jax.Array
    theta: jax.Array
    theta_dot: jax.Array
    noise: jax.Array


class CartPole(ArcadeEnvironment):
    """Push the cart left or right (10 N; every other action coasts) to keep the pole upright and the cart in sight.

    Each step pays 1 / (time limit). The episode ends when |x| exceeds 2.4 m or the angle 12 degrees. The
    partially observable twin shows only the two velocities.
    """

    title = "CartPole"
    sigma = 0.0  # of the noise in the picture

    def __init__(self, partial_obs: bool = False, obs_size: int = 128):
        super().__init__(partial_obs, obs_size)
        scale = obs_size // 128
        self.board = 96 * scale
        self.cart_width = self.pole_length = 32 * scale
        self.pole_width = 4 * scale
        self.arrow_length = 46 * scale
        left = top = (obs_size - self.board) // 2
        ground = top + 48 * scale  # the top of the cart, where the pole begins
        slices = [(left, ground - 1 - row) for row in range(self.pole_length)]
        canvas = titled(obs_size, CANVAS, self.title, NAME)
        self.screen = Screen(
            canvas,
            {
                "score": number(SCORE_BOX[obs_size], SCORE, canvas),
                "cart": Sprites(np.array([left, ground]), self._bars(self.cart_width, 16 * scale, CART)),
                "pole": Sprites(np.array(slices), self._bars(self.pole_width, 1, POLE)),
                "x_dot": Sprites(np.array([left, top + 72 * scale]), self._arrows(12 * scale)),
                "theta_dot": Sprites(np.array([left, top]), self._arcs(16 * scale)),
            },
        )

    def reset_state(self, key: jax.Array, params: EnvParams) -> CartPoleState:
        """All four numbers uniform in +-0.05."""
        key_state, key_noise = jax.random.split(key)
        x, x_dot, theta, theta_dot = jax.random.uniform(key_state, (4,), jnp.float32, -0.05, 0.05)
        noise = self._noise(key_noise)
        return CartPoleState(time=jnp.int32(0), x=x, x_dot=x_dot, theta=theta, theta_dot=theta_dot, noise=noise)

    def transition(
        self, key: jax.Array, state: CartPoleState, action: jax.Array, params: EnvParams
    ) -> tuple[CartPoleState, jax.Array, jax.Array]:
        """One explicit Euler step of the equations of Barto, Sutton and Anderson 1983, in Gym's form."""
        force = FORCE * jnp.where(action == RIGHT, 1.0, jnp.where(action == LEFT, -1.0, 0.0))
        sin, cos = jnp.sin(state.theta), jnp.cos(state.theta)
        mass = CART_MASS + POLE_MASS
        push = (force + POLE_MASS * HALF_LENGTH * state.theta_dot**2 * sin) / mass
        theta_acceleration = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4 / 3 - POLE_MASS * cos**2 / mass))
        x_acceleration = push - POLE_MASS * HALF_LENGTH * theta_acceleration * cos / mass
        state = state.replace(
            x=state.x + TIME_STEP * state.x_dot,
            x_dot=state.x_dot + TIME_STEP * x_acceleration,
            theta=state.theta + TIME_STEP * state.theta_dot,
            theta_dot=state.theta_dot + TIME_STEP * theta_acceleration,
            noise=self._noise(key),
        )
        reward = 1.0 / jnp.float32(params.max_steps_in_episode)
        return state, reward, (jnp.abs(state.x) > X_LIMIT) | (jnp.abs(state.theta) > THETA_LIMIT)

    def render(self, state: CartPoleState, params: EnvParams | None = None) -> jax.Array:
        """Cart, pole and both velocities, or only the velocities; all with the noise added."""
        x, x_dot, theta, theta_dot = jnp.stack([state.x, state.x_dot, state.theta, state.theta_dot]) + state.noise
        room = self.board - self.cart_width
        # Clip pixels, not x: at the limits of x, the last bit of a float would decide between two pixels.
        cart = jnp.clip(jnp.floor(x * (room / (2 * X_LIMIT)) + room / 2), 0, room)
        pole = self._pole(cart, jnp.clip(theta, -THETA_LIMIT, THETA_LIMIT))
        speeds = jnp.stack([x_dot, theta_dot]) / FULL_SPEED
        arrows = jnp.round(jnp.clip(speeds, -1, 1) * self.arrow_length).astype(jnp.int32) + self.arrow_length
        shows_all = self.shows_all(state)
        return self.screen.draw(
            {
                "score": state.time,
                "cart": jnp.where(shows_all, 1 + cart.astype(jnp.int32), HIDDEN),
                "pole": jnp.where(shows_all, pole, HIDDEN),
                "x_dot": arrows[0],
                "theta_dot": arrows[1],
            }
        )

    def _noise(self, key: jax.Array) -> jax.Array:
        return self.sigma * jax.random.normal(key, (4,), jnp.float32)

    def _pole(self, cart: jax.Array, theta: jax.Array) -> jax.Array:
        """Which picture each row of pixels shows, from the cart upwards, int32[pole_length].

        A row's slice of the pole is centred, to a pixel, where the middle of the row meets the pole's axis.
        """
        height = np.arange(self.pole_length) + 0.5
        middle = cart + self.cart_width / 2 + height * jnp.tan(theta)
        left = jnp.floor(middle - self.pole_width / 2 + 0.5).astype(jnp.int32)
        return jnp.where(height < self.pole_length * jnp.cos(theta), 1 + left, HIDDEN)

    def _bars(self, width: int, height: int, color: tuple[int, int, int]) -> np.ndarray:
        """Pictures as wide as the board: nothing, then a bar of `width` starting at column 0, 1, ..."""
        empty = blank((height, self.board), CANVAS)
        lefts = range(self.board - width + 1)
        return np.stack([empty] + [draw_rectangle((x, 0), (x + width, height), color, empty) for x in lefts])

    def _arrows(self, height: int) -> np.ndarray:
        """Pictures as wide as the board: arrows from its middle, ordered from the longest left to the longest right."""
        middle, longest, half_line = self.board // 2, self.arrow_length, self.board // 96
        empty = blank((height, self.board), CANVAS)
        empty = draw_rectangle((0, height // 2 - half_line), (self.board, height // 2 + half_line), SCALE, empty)
        empty = draw_rectangle((middle - half_line, 0), (middle + half_line, height), SCALE, empty)
        right = (middle + half_line, 0), (middle + half_line + longest, height)
        left = (middle - half_line - longest, 0), (middle - half_line, height)
        return np.stack(
            [
                draw_horizontal_arrow(*(right if length > 0 else left), ARROW, length / longest * FULL_SPEED, empty)
                for length in range(-longest, longest + 1)
            ]
        )

    def _arcs(self, height: int) -> np.ndarray:
        """The same for a rotation: bent arrows above the pole, in the direction in which it turns."""
        middle, longest, half_line = self.board // 2, self.arrow_length, self.board // 96
        box = (0, 0), (self.board, height)
        empty = draw_arc(*box, 2 * half_line, SCALE, blank((height, self.board), CANVAS))
        empty = draw_rectangle((middle - half_line, 0), (middle + half_line, height // 2), SCALE, empty)
        speeds = [length / longest * FULL_SPEED for length in range(-longest, longest + 1)]
        return np.stack([draw_curved_arrow(*box, ARROW, speed, empty) for speed in speeds])


class CartPoleEasy(CartPole):
    """200 steps."""

    max_steps = 200


class CartPoleMedium(CartPole):
    """400 steps."""

    max_steps = 400


class CartPoleHard(CartPole):
    """600 steps."""

    max_steps = 600
