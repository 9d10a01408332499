"""DelayedRecall: one card to remember, for a number of steps that is a parameter.

A test of memories, and not one of the ids:

    python pqn_rnn.py --env-id popgym_arcade.environments.delayed_recall:DelayedRecall --partial-obs
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from popgym_arcade.environments.arcade import DOWN, LEFT, RIGHT, UP, ArcadeEnvironment, ArcadeParams, ArcadeState
from popgym_arcade.environments.cards import ANY_SUIT, LEFT_CARD, NO_CARD, RIGHT_CARD, card_pictures
from popgym_arcade.environments.screen import SCORE_BOX, Screen, Sprites, number, titled

CANVAS, COUNTDOWN, NAME = (224, 214, 240), (120, 60, 160), (90, 40, 130)
NUM_SUITS = 4
LONGEST = 999
ANSWERS = np.array([UP, DOWN, LEFT, RIGHT])  # by suit


@struct.dataclass
class DelayedRecallParams(ArcadeParams):
    """The parameters of all games, and:

    memory_length: int in 1..999, steps between the first frame, which shows the card, and the question.
    """

    memory_length: int = 20  # named as in gymnax's MemoryChain


@struct.dataclass
class DelayedRecallState(ArcadeState):
    """The state; suits are 0 heart, 1 spade, 2 club, 3 diamond.

    suit: int32 in 0..3, the suit to remember.
    wait: int32 in 0..999, steps until the question.
    """

    suit: jax.Array
    wait: jax.Array


class DelayedRecall(ArcadeEnvironment):
    """A card is shown, and `memory_length` steps later its suit is asked for.

    Up answers heart, down spade, left club, and right diamond. The answer ends the episode; the right one pays 1.
    Before the question, actions do nothing. The partially observable twin hides the card after the first frame. Random
    actions return 0.2, because one of the five actions is right.
    """

    max_steps = 1 + LONGEST

    def __init__(self, partial_obs: bool = False, obs_size: int = 128):
        super().__init__(partial_obs, obs_size)
        canvas = titled(obs_size, CANVAS, "Recall", NAME)
        cards = card_pictures(obs_size, NUM_SUITS, CANVAS)
        self.screen = Screen(
            canvas,
            {
                "card": Sprites(np.array(LEFT_CARD[obs_size]), cards),
                "question": Sprites(np.array(RIGHT_CARD[obs_size]), cards),
                "wait": number(SCORE_BOX[obs_size], COUNTDOWN, canvas, largest=LONGEST),
            },
        )

    @property
    def default_params(self) -> DelayedRecallParams:
        """20 steps to remember."""
        return DelayedRecallParams(max_steps_in_episode=self.max_steps)

    def reset_state(self, key: jax.Array, params: DelayedRecallParams) -> DelayedRecallState:
        """Draw a card."""
        return DelayedRecallState(
            time=jnp.int32(0),
            suit=jax.random.randint(key, (), 0, NUM_SUITS),
            wait=jnp.clip(params.memory_length, 1, LONGEST),
        )

    def transition(
        self, key: jax.Array, state: DelayedRecallState, action: jax.Array, params: DelayedRecallParams
    ) -> tuple[DelayedRecallState, jax.Array, jax.Array]:
        """Wait, or answer the question."""
        asked = state.wait == 0
        right = action == jnp.asarray(ANSWERS)[state.suit]
        return state.replace(wait=jnp.maximum(state.wait - 1, 0)), asked & right, asked

    def render(self, state: DelayedRecallState, params: DelayedRecallParams | None = None) -> jax.Array:
        """The steps until the question, or the question; and the card, if this twin shows it."""
        return self.screen.draw(
            {
                "card": jnp.where(self.shows_all(state), 1 + state.suit, NO_CARD),
                "question": jnp.where(state.wait == 0, ANY_SUIT, NO_CARD),
                "wait": state.wait,
            }
        )
