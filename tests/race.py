"""A two-player game that takes milliseconds: `--env-id race:Race`, with tests/ on Python's path.

In each of eight rounds, both seats see a number of their own and should choose it. Whoever does, alone, gets a point
from the other. The last action is illegal, and ends the game at a loss of 100.
"""

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import EnvParams

from popgym_arcade.environments.two_player import TwoPlayerEnvironment

ROUNDS, NUMBERS = 8, 4


@struct.dataclass
class RaceState:
    numbers: jax.Array  # int32 [2]
    time: jax.Array


class Race(TwoPlayerEnvironment):
    def reset(self, key, params=None):
        state = RaceState(numbers=jax.random.randint(key, (2,), 0, NUMBERS), time=jnp.int32(0))
        return self.views(state), state

    def step(self, key, state, actions, params=None):
        hits = (actions == state.numbers).astype(jnp.float32)
        illegal = actions == NUMBERS
        reward = hits - hits[::-1] - 100.0 * illegal + 100.0 * illegal[::-1]
        numbers = jax.random.randint(key, (2,), 0, NUMBERS)
        final = RaceState(numbers=numbers, time=state.time + 1)
        over = (final.time >= ROUNDS) | illegal.any()
        state = final.replace(time=jnp.where(over, 0, final.time))
        info = {"final_observation": self.views(final), "final_state": final}
        return self.views(state), state, reward, over, jnp.bool_(False), info

    def views(self, state):
        return jax.nn.one_hot(state.numbers, NUMBERS)

    def legal(self, state):
        return jnp.tile(jnp.arange(NUMBERS + 1) < NUMBERS, (2, 1))

    def observation_space(self, params):
        return spaces.Box(0, 1, (NUMBERS,), jnp.float32)

    def action_space(self, params):
        return spaces.Discrete(NUMBERS + 1)


@struct.dataclass
class GuessParams(EnvParams):
    width: int = struct.field(default=NUMBERS, pytree_node=False)


class Guess(Race):
    """The same without `views`, and with zeros after the numbers."""

    views, legal = TwoPlayerEnvironment.views, TwoPlayerEnvironment.legal

    @property
    def default_params(self):
        return GuessParams()

    def reset(self, key, params):
        state = RaceState(numbers=jax.random.randint(key, (2,), 0, NUMBERS), time=jnp.int32(0))
        return jax.nn.one_hot(state.numbers, params.width), state

    def step(self, key, state, actions, params):
        hits = (actions == state.numbers).astype(jnp.float32)
        numbers, time = jax.random.randint(key, (2,), 0, NUMBERS), state.time + 1
        obs, over = jax.nn.one_hot(numbers, params.width), time >= ROUNDS
        state = RaceState(numbers=numbers, time=jnp.where(over, 0, time))
        return obs, state, hits - hits[::-1], over, jnp.bool_(False), {"final_observation": obs}

    def observation_space(self, params):
        return spaces.Box(0, 1, (params.width,), jnp.float32)
