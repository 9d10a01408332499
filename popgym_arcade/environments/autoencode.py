"""AutoEncode: watch a sequence of cards, play it back in reverse."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments.environment import EnvParams

from popgym_arcade.environments.arcade import FIRE, LEFT, RIGHT, ArcadeEnvironment, ArcadeState
from popgym_arcade.environments.cards import (
    ANY_SUIT,
    LEFT_CARD,
    NO_CARD,
    RIGHT_CARD,
    RIGHT_SIGN,
    card_pictures,
    shuffled,
    small_card_pictures,
)
from popgym_arcade.environments.draw_utils import draw_triangle
from popgym_arcade.environments.screen import SCORE_BOX, Screen, Sprites, grid, number, titled

CANVAS, SCORE, NAME = (173, 217, 230), (255, 48, 71), (255, 105, 186)
ARROWS = (64, 64, 64)
MARK = NAME  # the colour of the card to name next

NUM_SUITS = 4
MARKED = NUM_SUITS  # added to a card's picture in the history


@struct.dataclass
class AutoEncodeState(ArcadeState):
    """The state with N cards; suits are 0 heart, 1 spade, 2 club, 3 diamond.

    score: int32, right answers.
    cards: int8[N], suits in the order shown: card number `time`, while `time` is below N.
    answered: int32 in 0..N, answers given. The next one is for card N - 1 - answered.
    selected: int32 in 0..3, the suit that fire would answer with.
    """

    score: jax.Array
    cards: jax.Array
    answered: jax.Array
    selected: jax.Array


class AutoEncode(ArcadeEnvironment):
    """N cards are shown, one per step; then the player names their suits in reverse order.

    Left and right change the selected suit, at any time. Once all cards have been shown, fire answers with it. A right
    answer pays 1 / N, and the episode ends with the last answer. The time limit is 10 N. The partially observable twin
    hides the cards shown before, and which one to name next.
    """

    num_cards: int

    @property
    def max_steps(self) -> int:
        """Ten steps per card."""
        return 10 * self.num_cards

    def __init__(self, partial_obs: bool = False, obs_size: int = 128):
        super().__init__(partial_obs, obs_size)
        pitch = 10 * obs_size // 128
        first = (obs_size - 9 * pitch) // 2
        canvas = titled(obs_size, CANVAS, "AutoEncode", NAME)
        (left, top), (right, _) = RIGHT_SIGN[obs_size]
        width, bottom = 4 * obs_size // 128, top + 9 * obs_size // 128
        canvas = draw_triangle((left, top), (left + width, bottom), ARROWS, canvas, direction=3)
        canvas = draw_triangle((right - width, top), (right, bottom), ARROWS, canvas, direction=4)
        cards = card_pictures(obs_size, NUM_SUITS, CANVAS)
        history = [
            small_card_pictures(obs_size, NUM_SUITS, CANVAS),
            small_card_pictures(obs_size, NUM_SUITS, CANVAS, face=MARK)[1:],
        ]
        places = grid((first, first), (9, 9), pitch).reshape(-1, 2)[: self.num_cards]
        self.screen = Screen(
            canvas,
            {
                "shown": Sprites(np.array(LEFT_CARD[obs_size]), cards),
                "selected": Sprites(np.array(RIGHT_CARD[obs_size]), cards),
                "score": number(SCORE_BOX[obs_size], SCORE, canvas, largest=self.num_cards),
                "history": Sprites(places, np.concatenate(history)),
            },
        )

    def reset_state(self, key: jax.Array, params: EnvParams) -> AutoEncodeState:
        """Shuffle the cards."""
        return AutoEncodeState(
            time=jnp.int32(0),
            score=jnp.int32(0),
            cards=shuffled(key, self.num_cards, NUM_SUITS),
            answered=jnp.int32(0),
            selected=jnp.int32(0),
        )

    def transition(
        self, key: jax.Array, state: AutoEncodeState, action: jax.Array, params: EnvParams
    ) -> tuple[AutoEncodeState, jax.Array, jax.Array]:
        """Change the selected suit, or answer with it."""
        answers = (action == FIRE) & (state.time >= self.num_cards)
        right = answers & jnp.any(self._asked(state) & (state.cards == state.selected))
        state = state.replace(
            score=state.score + right,
            answered=state.answered + answers,
            selected=(state.selected + (action == LEFT) - (action == RIGHT)) % NUM_SUITS,
        )
        return state, right / self.num_cards, state.answered == self.num_cards

    def render(self, state: AutoEncodeState, params: EnvParams | None = None) -> jax.Array:
        """The current card or a question mark, the selected suit; in the full frame also earlier cards and the mark."""
        position = np.arange(self.num_cards)
        all_shown = state.time >= self.num_cards
        cards = 1 + state.cards
        history = cards + MARKED * (self._asked(state) & all_shown)
        return self.screen.draw(
            {
                # while cards are shown, one term of the sum is not zero
                "shown": jnp.where(all_shown, ANY_SUIT, jnp.sum(jnp.where(position == state.time, cards, 0))),
                "selected": 1 + state.selected,
                "score": state.score,
                "history": jnp.where((position < state.time) & self.shows_all(state), history, NO_CARD),
            }
        )

    def _asked(self, state: AutoEncodeState) -> jax.Array:
        """Which card the next answer is for, bool[num_cards]; none after the last answer."""
        return np.arange(self.num_cards) == self.num_cards - 1 - state.answered


class AutoEncodeEasy(AutoEncode):
    """26 cards."""

    num_cards = 26


class AutoEncodeMedium(AutoEncode):
    """52 cards."""

    num_cards = 52


class AutoEncodeHard(AutoEncode):
    """78 cards."""

    num_cards = 78
