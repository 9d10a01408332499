"""Cards of four suits: their pictures, and how a pack is shuffled. For AutoEncode and CountRecall (and Tetris' bag)."""

import jax
import jax.numpy as jnp
import numpy as np

from popgym_arcade.environments.draw_utils import draw_club, draw_diamond, draw_heart, draw_spade
from popgym_arcade.environments.screen import Color, blank

# By type: 0 heart, 1 spade, 2 club, 3 diamond
SUITS = ((draw_heart, (255, 0, 0)), (draw_spade, (0, 0, 0)), (draw_club, (0, 0, 0)), (draw_diamond, (255, 0, 0)))
NO_CARD = 0  # the picture without a card; a card's picture is its type + 1


def shuffled(key: jax.Array, num_cards: int, num_types: int) -> jax.Array:
    """A uniform permutation of the types i mod num_types, i = 0, 1, ..., int8[num_cards]; at most 127 cards.

    The ranks of random numbers are a uniform permutation of 0, 1, ...; counting how many are smaller takes a fifth
    of the time of a sort on a CPU, and less in small numbers along the first axis.
    """
    draw = jax.random.bits(key, (num_cards,))
    position = np.arange(num_cards)
    smaller = (draw[:, None] < draw[None, :]) | ((draw[:, None] == draw[None, :]) & (position[:, None] < position))
    return jnp.sum(smaller, axis=0, dtype=jnp.int8) % num_types


def card_pictures(size: tuple[int, int], num_types: int, ground: Color) -> np.ndarray:
    """The ground without a card, then with a card of each type, uint8[1 + num_types, height, width, 3].

    `size` is (height, width). The suit fills a square in the middle but for a tenth of the width on either side.
    """
    height, width = size
    margin = width // 10
    top = (height - width) // 2 + margin
    corners = (margin, top), (width - margin, top + width - 2 * margin)
    empty = blank(size, ground)
    return np.stack([empty] + [draw(*corners, color, empty) for draw, color in SUITS[:num_types]])
