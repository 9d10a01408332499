"""CountRecall: how often has this card come up?"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments.environment import EnvParams

from popgym_arcade.environments.arcade import DOWN, FIRE, UP, ArcadeEnvironment, ArcadeState
from popgym_arcade.environments.cards import (
    LEFT_CARD,
    LEFT_SIGN,
    NO_CARD,
    RIGHT_CARD,
    RIGHT_SIGN,
    card_pictures,
    shuffled,
    small_card_pictures,
)
from popgym_arcade.environments.draw_utils import draw_letter, draw_rectangle
from popgym_arcade.environments.screen import SCORE_BOX, Screen, Sprites, grid, number, titled

CANVAS, BOARD = (245, 245, 245), (153, 179, 204)
SCORE, COUNTER, NAME, SIGN = (191, 26, 26), (143, 237, 143), (74, 191, 240), (64, 64, 64)

COUNTER_BOX = {128: ((68, 1), (123, 15)), 256: ((136, 2), (246, 30))}
COUNTER_PLATE = {128: ((82, 1), (109, 15)), 256: ((171, 2), (211, 30))}  # pale green needs a dark background


@struct.dataclass
class CountRecallState(ArcadeState):
    """The state with N value cards and N query cards; types are 0 heart, 1 spade, 2 club, 3 diamond.

    score: int32, right answers.
    value_cards, query_cards: int8[N], types.
    answered: int32 in 0..N, answers given. The cards with this index are shown.
    count: int32 in 0..N, the number on the counter.
    """

    score: jax.Array
    value_cards: jax.Array
    query_cards: jax.Array
    answered: jax.Array
    count: jax.Array


class CountRecall(ArcadeEnvironment):
    """Two decks are dealt side by side. How many of the value cards before this one have the query card's type?

    Up and down change the counter, fire answers with it and deals the next pair. A right answer pays 1 / N. The episode
    ends with the last pair. The partially observable twin hides the value cards dealt before.
    """

    num_cards: int
    num_types: int

    @property
    def max_steps(self) -> int:
        """100 steps more than there are cards."""
        return 100 + self.num_cards

    def __init__(self, partial_obs: bool = False, obs_size: int = 128):
        super().__init__(partial_obs, obs_size)
        pitch = 10 * obs_size // 128
        board = ((obs_size - 9 * pitch) // 2, (obs_size + 9 * pitch) // 2)
        canvas = titled(obs_size, CANVAS, "CountRecall", NAME)
        canvas = draw_rectangle((board[0], board[0]), (board[1], board[1]), BOARD, canvas)
        history = grid((board[0], board[0]), (9, 9), pitch).reshape(-1, 2)[: self.num_cards]
        canvas = draw_rectangle(*COUNTER_PLATE[obs_size], (0, 0, 0), canvas)
        canvas = draw_letter(*LEFT_SIGN[obs_size], SIGN, canvas, "+")  # one more of these
        canvas = draw_letter(*RIGHT_SIGN[obs_size], SIGN, canvas, "?")  # how many of these?
        cards = card_pictures(obs_size, self.num_types, CANVAS)
        self.screen = Screen(
            canvas,
            {
                "value": Sprites(np.array(LEFT_CARD[obs_size]), cards),
                "query": Sprites(np.array(RIGHT_CARD[obs_size]), cards),
                "counter": number(COUNTER_BOX[obs_size], COUNTER, canvas, largest=self.num_cards),
                "score": number(SCORE_BOX[obs_size], SCORE, canvas, largest=self.num_cards),
                "history": Sprites(history, small_card_pictures(obs_size, self.num_types, BOARD)),
            },
        )

    def reset_state(self, key: jax.Array, params: EnvParams) -> CountRecallState:
        """Shuffle both decks."""
        key_value, key_query = jax.random.split(key)
        return CountRecallState(
            time=jnp.int32(0),
            score=jnp.int32(0),
            value_cards=shuffled(key_value, self.num_cards, self.num_types),
            query_cards=shuffled(key_query, self.num_cards, self.num_types),
            answered=jnp.int32(0),
            count=jnp.int32(0),
        )

    def transition(
        self, key: jax.Array, state: CountRecallState, action: jax.Array, params: EnvParams
    ) -> tuple[CountRecallState, jax.Array, jax.Array]:
        """Change the counter or answer with it."""
        query = state.query_cards[state.answered]
        dealt_before = np.arange(self.num_cards) < state.answered
        answers = action == FIRE
        right = answers & (state.count == jnp.sum(dealt_before & (state.value_cards == query)))
        state = state.replace(
            score=state.score + right,
            answered=state.answered + answers,
            count=jnp.clip(state.count + (action == UP) - (action == DOWN), 0, self.num_cards),
        )
        return state, right / self.num_cards, state.answered == self.num_cards

    def render(self, state: CountRecallState, params: EnvParams | None = None) -> jax.Array:
        """Both cards and the counter; in the full frame also the value cards dealt before."""
        last = state.answered == self.num_cards
        before = (np.arange(self.num_cards) < state.answered) & self.shows_all(state)
        return self.screen.draw(
            {
                "value": jnp.where(last, NO_CARD, 1 + state.value_cards[state.answered]),
                "query": jnp.where(last, NO_CARD, 1 + state.query_cards[state.answered]),
                "counter": state.count,
                "score": state.score,
                "history": jnp.where(before, 1 + state.value_cards, NO_CARD),
            }
        )


class CountRecallEasy(CountRecall):
    """26 cards of two types."""

    num_cards, num_types = 26, 2


class CountRecallMedium(CountRecall):
    """52 cards of two types."""

    num_cards, num_types = 52, 2


class CountRecallHard(CountRecall):
    """78 cards of four types."""

    num_cards, num_types = 78, 4
