"""Text: a font of 5 x 5 dots, letters, numbers and words. See `draw_utils`."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from popgym_arcade.environments.draw_canvas import (
    Canvas,
    Color,
    Number,
    Point,
    bitmap,
    make_box,
    namespace,
    paint,
    transposed,
)

# The font: 5 rows of 5 dots for each character. Digits have square corners and letters round ones, so that 5 differs
# from S and 8 from B; 0 is slashed, unlike O and D.
_GLYPHS = {
    "0": ".###. #..## #.#.# ##..# .###.",
    "1": "..#.. .##.. ..#.. ..#.. #####",
    "2": "##### ....# ##### #.... #####",
    "3": "##### ....# .#### ....# #####",
    "4": "#..#. #..#. ##### ...#. ...#.",
    "5": "##### #.... ##### ....# #####",
    "6": "##### #.... ##### #...# #####",
    "7": "##### ....# ...#. ..#.. ..#..",
    "8": "##### #...# ##### #...# #####",
    "9": "##### #...# ##### ....# #####",
    "A": ".###. #...# ##### #...# #...#",
    "B": "####. #...# ####. #...# ####.",
    "C": ".#### #.... #.... #.... .####",
    "D": "####. #...# #...# #...# ####.",
    "E": "##### #.... ####. #.... #####",
    "F": "##### #.... ####. #.... #....",
    "G": ".#### #.... #..## #...# .####",
    "H": "#...# #...# ##### #...# #...#",
    "I": "##### ..#.. ..#.. ..#.. #####",
    "J": "..### ...#. ...#. #..#. .##..",
    "K": "#...# #..#. ###.. #..#. #...#",
    "L": "#.... #.... #.... #.... #####",
    "M": "#...# ##.## #.#.# #...# #...#",
    "N": "#...# ##..# #.#.# #..## #...#",
    "O": ".###. #...# #...# #...# .###.",
    "P": "####. #...# ####. #.... #....",
    "Q": ".###. #...# #.#.# #..#. .##.#",
    "R": "####. #...# ####. #..#. #...#",
    "S": ".#### #.... .###. ....# ####.",
    "T": "##### ..#.. ..#.. ..#.. ..#..",
    "U": "#...# #...# #...# #...# .###.",
    "V": "#...# #...# #...# .#.#. ..#..",
    "W": "#...# #...# #.#.# ##.## #...#",
    "X": "#...# .#.#. ..#.. .#.#. #...#",
    "Y": "#...# .#.#. ..#.. ..#.. ..#..",
    "Z": "##### ...#. ..#.. .#... #####",
    " ": "..... ..... ..... ..... .....",
    "-": "..... ..... .###. ..... .....",
    "+": "..#.. ..#.. ##### ..#.. ..#..",
    ".": "..... ..... ..... ..... ..#..",
    "?": ".###. #...# ..##. ..... ..#..",
}


def _font() -> np.ndarray:
    """bool[128, 5, 5] by character code; lower case looks like upper case, characters without a glyph are blank."""
    font = np.zeros((128, 5, 5), bool)
    for character, rows in _GLYPHS.items():
        font[ord(character)] = font[ord(character.lower())] = bitmap(rows)
    return font


_FONT = _font()


def draw_digit(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas, digit: Number) -> Canvas:
    """Draw one digit 0..9 (an int; numbers outside are clipped), stretched to the box by nearest neighbour.

    Dots have equal sizes if the sides of the box are multiples of 5 pixels.
    """
    xp = namespace(canvas, top_left, bottom_right, color, digit)
    return draw_letter(top_left, bottom_right, color, canvas, ord("0") + xp.clip(xp.asarray(digit), 0, 9))


def draw_single_digit(
    top_left: Point,
    bottom_right: Point,
    color: Color,
    canvas: Canvas,
    digit: Number,
    digit_width: Number = 15,
    margin: Number = 1,
) -> Canvas:
    """Draw one digit 0..9, `digit_width` pixels wide, in the middle of the box, `margin` pixels below its top and above
    its bottom."""
    (left, top), (right, bottom) = top_left, bottom_right
    left = left + (right - left - digit_width) // 2
    return draw_digit((left, top + margin), (left + digit_width, bottom - margin), color, canvas, digit)


def draw_letter(
    top_left: Point, bottom_right: Point, color: Color, canvas: Canvas, letter_code: str | Number
) -> Canvas:
    """Draw one character of the font (A-Z, 0-9, space, - + . ?), stretched to the box by nearest neighbour.

    `letter_code` is a string of one character or a character code (int, may be traced); lower case becomes upper case.
    A string outside the font raises ValueError, a code without a glyph draws nothing.
    """
    if isinstance(letter_code, str):
        letter_code = _codes(letter_code, length=1)[0]
    box = make_box(canvas, top_left, bottom_right, color, letter_code)
    xp = box.xp
    dot = box.half_width * 2 / 5, box.half_height * 2 / 5
    glyph = xp.asarray(_FONT)[xp.clip(xp.asarray(letter_code), 0, 127)]
    mask = _text(xp, glyph[None], 1, box.x + box.half_width, box.y + box.half_height, dot, 0)
    return paint(xp, mask & box.inside, color, canvas)


def draw_number(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas, number: Number) -> Canvas:
    """Write a whole number in the middle of the box, without leading zeros, with a minus sign if it is negative.

    Dots are whole pixels: as high as fits in the box less two pixels, and 1 pixel wider than half their height (rounded
    down). Digits are 2 pixels apart: 10 x 10 pixels in a box 14 pixels high, 15 x 25 in one of 28.
    A number too long for the box extends beyond it on both sides. `number` is an int within int32
    (-2147483647..2147483647) and may be traced.
    """
    box = make_box(canvas, top_left, bottom_right, color, number)
    xp = box.xp
    number = xp.asarray(number).astype(xp.int32)
    size = xp.abs(number)
    digits = 1 + sum((size >= 10**power).astype(xp.int32) for power in range(1, 10))
    length = digits + (number < 0)
    place = length - 1 - xp.arange(11, dtype=xp.int32)  # the power of ten of each character, left to right
    codes = ord("0") + size // 10 ** xp.clip(place, 0, 9) % 10
    codes = xp.where(place >= digits, ord("-"), codes)
    dot_height = xp.maximum(xp.floor((box.half_height * 2 - 2) / 5), 1)
    dot_width = xp.floor(dot_height / 2) + 1
    left = _start(xp, box.half_width, length * (5 * dot_width + 2) - 2)
    top = _start(xp, box.half_height, 5 * dot_height)
    mask = _text(xp, xp.asarray(_FONT)[codes], length, box.x - left, box.y - top, (dot_width, dot_height), 2)
    return paint(xp, mask, color, canvas)


def draw_str(
    top_left: Point, bottom_right: Point, color: Color, canvas: Canvas, word: str, horizontal: bool = True
) -> Canvas:
    """Write `word` in the middle of the box, from left to right or, with `horizontal=False`, from top to bottom.

    The letters are the largest that leave a pixel free above and below (left and right) and fit the box lengthwise, at
    least 5 x 5 pixels: 10 x 10 pixels and 1 apart in a box 13 pixels high, 20 x 20 and 3 apart in one of 25. In a long
    word, letters first become up to a fifth narrower than they are high, and only then lower. `word` is a Python string
    of the font's characters (A-Z, 0-9, space, - + . ?); lower case becomes upper case, any other character raises
    ValueError.
    """
    return _words(top_left, bottom_right, color, canvas, _codes(word or " "), horizontal)


def draw_words_h(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas, letters: Any) -> Canvas:
    """`draw_str` for an array of character codes, int[n], which may be traced; codes without a glyph are blank."""
    return _words(top_left, bottom_right, color, canvas, letters, horizontal=True)


def draw_words_v(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas, letters: Any) -> Canvas:
    """Like `draw_words_h`, from top to bottom."""
    return _words(top_left, bottom_right, color, canvas, letters, horizontal=False)


def return_digit_patterns(index: Number) -> Any:
    """The dots of the digit `index`, bool[5, 5]."""
    return return_letter_patterns(ord("0") + index)


def return_letter_patterns(letter: Number) -> Any:
    """The dots of the character with the code `letter`, bool[5, 5]; numpy for an int, jax for an array."""
    return _FONT[letter] if isinstance(letter, int | np.integer) else jnp.asarray(_FONT)[letter]


def _words(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas, codes: Any, horizontal: bool) -> Canvas:
    """See `draw_str`; `codes` int[n], n at least 1."""
    box = make_box(canvas, top_left, bottom_right, color, codes)
    xp = box.xp
    codes = xp.asarray(codes)
    if not horizontal:
        box = transposed(box)
    room = xp.floor((2 * box.half_width + len(codes) - 1) / (5 * len(codes) - 1))  # for letters 4 dots wide
    dot = xp.maximum(xp.minimum(xp.floor((box.half_height * 2 - 2) / 5), room), 1)
    gap = xp.maximum(dot - 1, 1)
    width = xp.clip(xp.floor((2 * box.half_width + gap) / len(codes)) - gap, 5, 5 * dot)  # of a letter
    left = _start(xp, box.half_width, len(codes) * (width + gap) - gap)
    top = _start(xp, box.half_height, 5 * dot)
    # when writing downwards, x and y are swapped, and so are the rows and columns of a letter
    glyphs = xp.asarray(_FONT)[codes]
    glyphs = glyphs if horizontal else glyphs.swapaxes(1, 2)
    mask = _text(xp, glyphs, len(codes), box.x - left, box.y - top, (width / 5, dot), gap)
    return paint(xp, mask, color, canvas)


def _codes(word: str, length: int | None = None) -> np.ndarray:
    """Character codes int[len(word)]. Raises ValueError for a character without a glyph, or for another length."""
    if length is not None and len(word) != length:
        raise ValueError(f"{word!r} is not one character")
    unknown = [character for character in word if character.upper() not in _GLYPHS]
    if unknown:
        raise ValueError(f"the font has no {unknown[0]!r}; it has {''.join(_GLYPHS)!r}")
    return np.array([ord(character) for character in word], np.int32)


def _start(xp: Any, half_size: Any, length: Any) -> Any:
    """Where something `length` long starts, relative to the box's centre, to be centred on whole pixels."""
    return xp.floor(half_size - length / 2) - half_size


def _text(xp: Any, glyphs: Any, count: Any, x: Any, y: Any, dot: tuple[Any, Any], gap: Any) -> Any:
    """bool mask of the first `count` of `glyphs` (bool[n, 5, 5]) in a row.

    `x` and `y` are the pixels' distances from the text's top left corner (they broadcast to the mask), `dot` the width
    and height of a dot and `gap` the pixels between two characters.
    """
    pitch = 5 * dot[0] + gap
    slot = xp.floor(x / pitch)
    column = xp.floor((x - slot * pitch) / dot[0]).astype(int)
    row = xp.floor(y / dot[1]).astype(int)
    slot = slot.astype(int)
    valid = (slot >= 0) & (slot < count) & (column < 5) & (row >= 0) & (row < 5)
    dots = glyphs[xp.clip(slot, 0, len(glyphs) - 1), xp.clip(row, 0, 4), xp.clip(column, 0, 4)]
    return dots & valid
