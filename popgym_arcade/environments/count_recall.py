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
    SUITS,
    card_pictures,
    shuffled,
    small_card_pictures,
)
from popgym_arcade.environments.draw_utils import draw_letter, draw_rectangle
from popgym_arcade.environments.screen import SCORE_BOX, Screen, Sprites, blank, grid, number, titled

CANVAS, BOARD = (245, 245, 245), (153, 179, 204)
SCORE, COUNTER, NAME, SIGN = (191, 26, 26), (143, 237, 143), (74, 191, 240), (64, 64, 64)

COUNTER_BOX = {128: ((68, 1), (123, 15)), 256: ((136, 2), (246, 30))}
COUNTER_PLATE = {128: ((82, 1), (109, 15)), 256: ((171, 2), (211, 30))}  # pale green needs a dark background
BARS = {128: (112, 40), 256: (224, 80)}  # top left of the bars, below the sign of the query card
BAR_PITCH = {128: (8, 36), 256: (16, 72)}  # to the next bar on the right, and on the next row


def bar_pictures(obs_size: int, num_types: int, longest: int) -> np.ndarray:
    """The bare ground, then for each type its suit above a bar of length 0..longest, uint8[K, height, width, 3].

    The picture of `count` cards of a type has the index 1 + type * (longest + 1) + count.
    """
    line = obs_size // 128
    width, unit = BAR_PITCH[obs_size][0], (2 if num_types == 2 else 1) * line  # pixels per card
    top = width + line
    empty = blank((top + longest * unit, width), CANVAS)
    pictures = [empty]
    for draw, color in SUITS[:num_types]:
        suit = draw((0, 0), (width - line, width - line), color, empty)
        pictures += [
            draw_rectangle((line, top), (width - 2 * line, top + count * unit), SIGN, suit)
            for count in range(longest + 1)
        ]
    return np.stack(pictures)


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
    ends with the last pair. The partially observable twin hides the value cards dealt before, and how many query cards
    of each type are left.
    """

    num_cards: int
    num_types: int

    @property
    def max_steps(self) -> int:
        """100 steps more than there are cards."""
        return 100 + self.num_cards

    @property
    def longest_bar(self) -> int:
        """The most cards of one type in a deck."""
        return -(-self.num_cards // self.num_types)

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
        bars = grid(BARS[obs_size], (self.num_types // 2, 2), BAR_PITCH[obs_size]).reshape(-1, 2)
        self.screen = Screen(
            canvas,
            {
                "value": Sprites(np.array(LEFT_CARD[obs_size]), cards),
                "query": Sprites(np.array(RIGHT_CARD[obs_size]), cards),
                "counter": number(COUNTER_BOX[obs_size], COUNTER, canvas, largest=self.num_cards),
                "score": number(SCORE_BOX[obs_size], SCORE, canvas, largest=self.num_cards),
                "history": Sprites(history, small_card_pictures(obs_size, self.num_types, BOARD)),
                "to_come": Sprites(bars, bar_pictures(obs_size, self.num_types, self.longest_bar)),
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
        """Both cards and the counter; in the full frame also the earlier value cards and the bars."""
        last = state.answered == self.num_cards
        position, types = np.arange(self.num_cards), np.arange(self.num_types, dtype=np.int8)
        before = (position < state.answered) & self.shows_all(state)
        still = jnp.where(position > state.answered, state.query_cards, -1)
        to_come = jnp.sum(still[None, :] == types[:, None], axis=1)
        bar = 1 + np.arange(self.num_types) * (self.longest_bar + 1) + to_come
        return self.screen.draw(
            {
                "value": jnp.where(last, NO_CARD, 1 + state.value_cards[state.answered]),
                "query": jnp.where(last, NO_CARD, 1 + state.query_cards[state.answered]),
                "counter": state.count,
                "score": state.score,
                "history": jnp.where(before, 1 + state.value_cards, NO_CARD),
                "to_come": jnp.where(self.shows_all(state), bar, NO_CARD),
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
