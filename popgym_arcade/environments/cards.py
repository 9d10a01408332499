"""Cards of four suits: pictures and shuffling, for AutoEncode and CountRecall (and for Tetris's bag)."""

import jax
import jax.numpy as jnp
import numpy as np

from popgym_arcade.environments.draw_utils import (
    draw_club,
    draw_diamond,
    draw_heart,
    draw_letter,
    draw_rectangle,
    draw_spade,
)
from popgym_arcade.environments.screen import Color, blank

# By type: 0 heart, 1 spade, 2 club, 3 diamond
SUITS = ((draw_heart, (255, 0, 0)), (draw_spade, (0, 0, 0)), (draw_club, (0, 0, 0)), (draw_diamond, (255, 0, 0)))
NO_CARD = 0  # the picture without a card; a card's picture is its type + 1
ANY_SUIT = 1 + len(SUITS)  # with all four suits, the picture of a card with a question mark
FACE, BORDER = (255, 255, 255), (64, 64, 64)

# Places by frame size: the two large cards in the left and right corners, and the signs below them.
CARD_SIZE = {128: (20, 12), 256: (40, 24)}  # height and width
LEFT_CARD = {128: (1, 1), 256: (2, 2)}
RIGHT_CARD = {128: (115, 1), 256: (230, 2)}
LEFT_SIGN = {128: ((2, 23), (12, 33)), 256: ((4, 46), (24, 66))}
RIGHT_SIGN = {128: ((116, 23), (126, 33)), 256: ((232, 46), (252, 66))}


def shuffled(key: jax.Array, num_cards: int, num_types: int) -> jax.Array:
    """A uniform permutation of the types i mod num_types, i = 0, 1, ..., int8[num_cards]; at most 127 cards.

    The ranks of random numbers are a uniform permutation of 0, 1, ... On a CPU, counting how many numbers are smaller
    takes a fifth of the time of a sort, and less with int8 sums along the first axis.
    """
    draw = jax.random.bits(key, (num_cards,))
    position = np.arange(num_cards)
    smaller = (draw[:, None] < draw[None, :]) | ((draw[:, None] == draw[None, :]) & (position[:, None] < position))
    return jnp.sum(smaller, axis=0, dtype=jnp.int8) % num_types


def card_pictures(obs_size: int, num_types: int, ground: Color) -> np.ndarray:
    """The bare ground, a card of each type, and one with a question mark, uint8[2 + num_types, height, width, 3]."""
    (height, width), line = CARD_SIZE[obs_size], obs_size // 128
    empty = blank((height, width), ground)
    # a border without its corners, so that they look round
    card = draw_rectangle((line, 0), (width - line, height), BORDER, empty)
    card = draw_rectangle((0, line), (width, height - line), BORDER, card)
    card = draw_rectangle((line, line), (width - line, height - line), FACE, card)
    side = width - 4 * line
    top = (height - side) // 2
    box = (2 * line, top), (2 * line + side, top + side)
    sign = (line, (height - 10 * line) // 2), (width - line, (height + 10 * line) // 2)
    suits = [draw(*box, color, card) for draw, color in SUITS[:num_types]]
    return np.stack([empty, *suits, draw_letter(*sign, BORDER, card, "?")])


def small_card_pictures(obs_size: int, num_types: int, ground: Color, face: Color = FACE) -> np.ndarray:
    """The bare ground, then a card of each type with a gap to its right and below, uint8[1 + num_types, s, s, 3].

    Made for places 10 pixels apart, 20 at 256 px.
    """
    size, gap = 10 * obs_size // 128, obs_size // 128
    empty = blank(size, ground)
    card = draw_rectangle((0, 0), (size - gap, size - gap), face, empty)
    box = (gap, gap), (size - 2 * gap, size - 2 * gap)
    return np.stack([empty] + [draw(*box, color, card) for draw, color in SUITS[:num_types]])
