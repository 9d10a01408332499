"""Drawing primitives: pure functions that take a canvas and return a new one.

Every primitive that fills a box is called as `draw_shape(top_left, bottom_right, color, canvas)`:

* `top_left` and `bottom_right` are corners (x, y) in pixels, x the column and y the row; the right and the bottom edge
  are exclusive, so a box from (0, 0) to (3, 2) holds 3 x 2 pixels. A box without area draws nothing.
* `color` is three numbers 0..255 (numbers outside are clipped), `canvas` an array [height, width, 3], uint8 as a rule.
  The result has the canvas's shape and dtype; the canvas itself is not changed.
* Drawing replaces what was there, and whatever lies outside the canvas is clipped.
* Corners, colours and all other numbers may be traced (`jit`, `vmap`, `scan`), and corners may be fractions of a pixel:
  a pixel is drawn when its centre lies inside the shape.

With a numpy canvas and no traced argument, a primitive works in numpy and returns numpy, so that drawing sprites while
an environment is constructed compiles nothing. In every other case it uses jax.

The parameters have the order of the published popgym-arcade, in which the few that say *what* to draw (a triangle's
direction, a digit, a word) follow the canvas. A canvas that is not of rank 3 raises a ValueError.
"""

from popgym_arcade.environments.draw_arrows import (
    FULL_SPEED,
    draw_arc,
    draw_crooked_arrow,
    draw_curved_arrow,
    draw_horizontal_arrow,
    draw_vertical_arrow,
)
from popgym_arcade.environments.draw_shapes import (
    draw_bomb,
    draw_circle,
    draw_club,
    draw_crooked_tail,
    draw_diamond,
    draw_gem,
    draw_grid,
    draw_heart,
    draw_hexagon,
    draw_horizontal_tail,
    draw_matchstick_man,
    draw_o,
    draw_pawn,
    draw_pin,
    draw_pole,
    draw_rectangle,
    draw_spade,
    draw_stick,
    draw_sub_canvas,
    draw_tnt_block,
    draw_triangle,
    draw_vertical_tail,
    draw_x,
    rotate,
)
from popgym_arcade.environments.draw_text import (
    draw_digit,
    draw_letter,
    draw_number,
    draw_single_digit,
    draw_str,
    draw_words_h,
    draw_words_v,
    return_digit_patterns,
    return_letter_patterns,
)

__all__ = [
    "FULL_SPEED",
    "draw_arc",
    "draw_bomb",
    "draw_circle",
    "draw_club",
    "draw_crooked_arrow",
    "draw_crooked_tail",
    "draw_curved_arrow",
    "draw_diamond",
    "draw_digit",
    "draw_gem",
    "draw_grid",
    "draw_heart",
    "draw_hexagon",
    "draw_horizontal_arrow",
    "draw_horizontal_tail",
    "draw_letter",
    "draw_matchstick_man",
    "draw_number",
    "draw_o",
    "draw_pawn",
    "draw_pin",
    "draw_pole",
    "draw_rectangle",
    "draw_single_digit",
    "draw_spade",
    "draw_stick",
    "draw_str",
    "draw_sub_canvas",
    "draw_tnt_block",
    "draw_triangle",
    "draw_vertical_arrow",
    "draw_vertical_tail",
    "draw_words_h",
    "draw_words_v",
    "draw_x",
    "return_digit_patterns",
    "return_letter_patterns",
    "rotate",
]
