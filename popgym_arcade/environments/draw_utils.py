"""Drawing primitives: pure functions that take a canvas and return a new one.

Every primitive that fills a box is called as `draw_shape(top_left, bottom_right, color, canvas)`:

* `top_left` and `bottom_right` are corners (x, y) in pixels, x the column and y the row; the right and the bottom edge
  are exclusive, so a box from (0, 0) to (3, 2) holds 3 x 2 pixels. A box without area draws nothing.
* `color` is three numbers 0..255 (numbers outside are clipped), `canvas` an array [height, width, 3], uint8 as a rule.
  The result has the canvas's shape and dtype; the canvas itself is left as it was.
* What is drawn replaces what was there, and whatever lies outside the canvas is cut off.
* Corners, colours and all other numbers may be traced (`jit`, `vmap`, `scan`), and corners may be fractions of a pixel:
  a pixel is drawn when its centre lies inside the shape.

With a numpy canvas and no traced argument the work is done, and the result returned, in numpy: a sprite drawn while an
environment is constructed compiles nothing. In every other case it is done in jax.

The parameters have the order of the published popgym-arcade, in which the few that say *what* to draw (a triangle's
direction, a digit, a word) follow the canvas. A canvas that is not of rank 3 raises a ValueError.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Number = Any  # an int, a float, or an array of rank 0, traced or not
Point = tuple[Number, Number]
Color = Any  # three numbers 0..255: tuple or array [3]
Canvas = Any  # np.ndarray or jax.Array [height, width, 3], uint8

FULL_SPEED = 3.0  # the velocity at which an arrow fills its box

# The font: 5 rows of 5 dots for each character. Digits have square corners and letters round ones, so that 5 and S, 8
# and B stay apart; 0 is slashed, unlike O and D.
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
_TNT = "###.##..### .#..#.#..#. .#..#.#..#. .#..#.#..#. .#..#.#..#."  # 11 x 5 dots, too wide for the font


def _bitmap(rows: str) -> np.ndarray:
    """Rows of `#` and `.` separated by spaces as bool[rows, columns]."""
    return np.array([[dot == "#" for dot in row] for row in rows.split()])


def _font() -> np.ndarray:
    """bool[128, 5, 5] by character code; small letters look like capitals, characters without a glyph are blank."""
    font = np.zeros((128, 5, 5), bool)
    for character, rows in _GLYPHS.items():
        font[ord(character)] = font[ord(character.lower())] = _bitmap(rows)
    return font


_FONT = _font()


class _Box(NamedTuple):
    """A box on a canvas, and where every pixel's centre lies in it. All numbers are float32."""

    xp: Any  # numpy or jax.numpy
    x: Any  # [1, width] pixels to the right of the box's centre
    y: Any  # [height, 1] pixels below the box's centre
    half_width: Any
    half_height: Any

    @property
    def u(self):
        """[1, width] from -1 at the left edge to 1 at the right edge."""
        return self.x / self.half_width

    @property
    def v(self):
        """[height, 1] from -1 at the top edge to 1 at the bottom edge."""
        return self.y / self.half_height

    @property
    def inside(self):
        """bool[height, width]. Not `abs(x) < half`: the left and top edges belong to the box, the others do not."""
        columns = (self.x >= -self.half_width) & (self.x < self.half_width)
        rows = (self.y >= -self.half_height) & (self.y < self.half_height)
        return columns & rows


def _namespace(canvas: Canvas, *arguments: Any) -> Any:
    """numpy if nothing here is a jax canvas or traced, jax.numpy otherwise."""
    if np.ndim(canvas) != 3:
        raise ValueError(f"a canvas has the shape [height, width, 3], not {list(np.shape(canvas))}")
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments))
    return np if isinstance(canvas, np.ndarray) and not traced else jnp


def _centres(xp: Any, canvas: Canvas) -> tuple[Any, Any]:
    """Columns [1, width] and rows [height, 1] of the pixels' centres, float32."""
    height, width = canvas.shape[:2]
    x = xp.arange(width, dtype=xp.float32) + 0.5
    y = xp.arange(height, dtype=xp.float32) + 0.5
    return x[None, :], y[:, None]


def _box(canvas: Canvas, top_left: Point, bottom_right: Point, *arguments: Any) -> _Box:
    """The box between two corners; `arguments` are the primitive's others, which decide numpy or jax as well."""
    xp = _namespace(canvas, top_left, bottom_right, *arguments)
    left, top = (xp.asarray(corner, xp.float32) for corner in top_left)
    right, bottom = (xp.asarray(corner, xp.float32) for corner in bottom_right)
    x, y = _centres(xp, canvas)
    # A box without area is moved off the canvas, and its sides stay safe to divide by.
    half_width = xp.maximum((right - left) / 2, 1e-6)
    half_height = xp.maximum((bottom - top) / 2, 1e-6)
    empty = (right <= left) | (bottom <= top)
    outside = xp.where(empty, xp.float32(1e6), xp.float32(0))
    return _Box(xp, x - (left + right) / 2 + outside, y - (top + bottom) / 2 + outside, half_width, half_height)


# The outlines below have odd constants (1.003, 0.7203) so that no pixel's centre lies exactly on one. The last bit of a
# float32 would decide there, and that is not the same in numpy and in a compiled program.


def _square(box: _Box) -> _Box:
    """The largest square in the middle of a box, on whole pixels of the box."""
    xp = box.xp
    half = xp.minimum(box.half_width, box.half_height)
    # half a pixel up or left where the square cannot lie in the middle
    shift_x = box.half_width - half - xp.floor(box.half_width - half)
    shift_y = box.half_height - half - xp.floor(box.half_height - half)
    return box._replace(x=box.x + shift_x, y=box.y + shift_y, half_width=half, half_height=half)


def _paint(xp: Any, mask: Any, color: Color, canvas: Canvas) -> Canvas:
    """The canvas with `color` where `mask` (bool[height, width]) is set."""
    color = xp.clip(xp.asarray(color), 0, 255).astype(canvas.dtype)
    return xp.where(mask[..., None], color, canvas)


def draw_rectangle(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill the box."""
    box = _box(canvas, top_left, bottom_right, color)
    return _paint(box.xp, box.inside, color, canvas)


def draw_circle(top_left: Point, bottom_right: Point, radius: Number, color: Color, canvas: Canvas) -> Canvas:
    """Fill the circle of `radius` pixels around the box's centre; it may be larger than the box."""
    box = _box(canvas, top_left, bottom_right, radius, color)
    radius = box.xp.asarray(radius, box.xp.float32)
    return _paint(box.xp, box.x**2 + box.y**2 <= radius**2, color, canvas)


def draw_triangle(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas, direction: Number = 1) -> Canvas:
    """Fill an isosceles triangle whose tip is the middle of one side of the box and whose base is the opposite side.

    `direction` says where the tip points: 1 up, 2 down, 3 left, 4 right (numbers outside are clipped).
    """
    box = _box(canvas, top_left, bottom_right, color, direction)
    return _paint(box.xp, _triangle(box, direction) & box.inside, color, canvas)


def _triangle(box: _Box, direction: Number) -> Any:
    """bool[height, width]; each row (or column) is as wide as the triangle at its far edge: the tip is never empty."""
    xp = box.xp
    direction = xp.clip(xp.asarray(direction), 1, 4)
    u, v = xp.abs(box.u), xp.abs(box.v)
    vertical = direction <= 2
    along = xp.where(vertical, box.v, box.u)
    along = xp.where(direction % 2 == 1, along, -along)  # -1 at the tip, 1 at the base
    pixel = 1.01 / xp.where(vertical, box.half_height, box.half_width) / 2
    return xp.where(vertical, u, v) <= (along + 1) / 2 + pixel


def draw_o(top_left: Point, bottom_right: Point, thickness: Number, color: Color, canvas: Canvas) -> Canvas:
    """Draw the ellipse that touches the four sides of the box from within, its line `thickness` pixels wide."""
    box = _box(canvas, top_left, bottom_right, thickness, color)
    xp = box.xp
    thickness = xp.asarray(thickness, xp.float32)
    hole_width = xp.maximum(box.half_width - thickness, 1e-6)
    hole_height = xp.maximum(box.half_height - thickness, 1e-6)
    outer = box.u**2 + box.v**2 <= 1.002
    hole = (box.x / hole_width) ** 2 + (box.y / hole_height) ** 2 <= 1.002
    return _paint(xp, outer & ~hole & box.inside, color, canvas)


def draw_x(top_left: Point, bottom_right: Point, thickness: Number, color: Color, canvas: Canvas) -> Canvas:
    """Draw both diagonals of the box, `thickness` pixels wide (measured across the line)."""
    box = _box(canvas, top_left, bottom_right, thickness, color)
    xp = box.xp
    thickness = xp.maximum(xp.asarray(thickness, xp.float32), 0)
    # distance to a diagonal times its length: mirroring both axes puts the two diagonals on one
    distance = xp.abs(xp.abs(box.x) * box.half_height - xp.abs(box.y) * box.half_width)
    reach = (thickness / 2) ** 2 * (box.half_width**2 + box.half_height**2) * 1.002
    return _paint(xp, (distance**2 <= reach) & box.inside, color, canvas)


def draw_grid(square_size: Number, thickness: Number, color: Color, canvas: Canvas) -> Canvas:
    """Draw grid lines over the whole canvas: from (0, 0) on, `thickness` pixels of line, then `square_size` of cell.

    Both are whole numbers of pixels, their sum positive.
    """
    xp = _namespace(canvas, square_size, thickness, color)
    height, width = canvas.shape[:2]
    period = xp.asarray(square_size) + thickness
    columns = xp.arange(width)[None, :] % period < thickness
    rows = xp.arange(height)[:, None] % period < thickness
    return _paint(xp, columns | rows, color, canvas)


def draw_sub_canvas(sub_canvas: Canvas, canvas: Canvas) -> Canvas:
    """Put `sub_canvas` [h, w, 3] in the middle of the canvas (half a pixel to the left and top of it where sizes differ
    by an odd number). What is larger than the canvas is cut off on both sides."""
    xp = _namespace(canvas, sub_canvas)
    if np.ndim(sub_canvas) != 3:
        raise ValueError(f"a sub-canvas has the shape [height, width, 3], not {list(np.shape(sub_canvas))}")
    target, source = zip(*map(_overlap, canvas.shape[:2], np.shape(sub_canvas)[:2]), strict=True)
    patch = xp.asarray(sub_canvas)[source].astype(canvas.dtype)
    if xp is jnp:
        return jnp.asarray(canvas).at[target].set(patch)
    result = canvas.copy()
    result[target] = patch
    return result


def _overlap(size: int, sub_size: int) -> tuple[slice, slice]:
    """Where a centred length lies in `size`, and which part of it that is."""
    start = (size - sub_size) // 2
    target = slice(max(start, 0), min(start + sub_size, size))
    return target, slice(target.start - start, target.stop - start)


def draw_heart(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill a heart, as large as a square in the middle of the box allows."""
    box = _square(_box(canvas, top_left, bottom_right, color))
    u, v = box.xp.abs(box.u), box.v
    lobes = ((u - 0.5) / 0.51) ** 2 + ((v + 0.4) / 0.61) ** 2 <= 1.003
    point = (v >= -0.4003) & (u <= (1.0703 - v) * 0.7403)
    notch = u < -0.7503 * (v + 0.6003)  # keeps the lobes apart at few pixels
    return _paint(box.xp, (lobes | point) & ~notch & box.inside, color, canvas)


def draw_spade(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill a spade, as large as a square in the middle of the box allows."""
    box = _square(_box(canvas, top_left, bottom_right, color))
    u, v = box.xp.abs(box.u), box.v
    lobes = ((u - 0.5) / 0.51) ** 2 + ((v - 0.13) / 0.36) ** 2 <= 1.003
    point = (v <= 0.1303) & (u <= (v + 1.1303) * 0.8003)
    return _paint(box.xp, (lobes | point | _stem(box)) & box.inside, color, canvas)


def draw_club(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill a club, as large as a square in the middle of the box allows."""
    box = _square(_box(canvas, top_left, bottom_right, color))
    u, v = box.xp.abs(box.u), box.v
    # Three circles that stay apart at few pixels, where a club would look like a spade, and a bar that joins them
    top = u**2 + (v + 0.55) ** 2 <= 0.2003
    sides = (u - 0.66) ** 2 + (v - 0.24) ** 2 <= 0.1953
    bar = (u <= 0.6603) & (box.xp.abs(v - 0.24) <= 0.1303)
    return _paint(box.xp, (top | sides | bar | _stem(box)) & box.inside, color, canvas)


def _stem(box: _Box) -> Any:
    """The stem of a spade or a club: a narrow neck that starts between the lobes and ends in a broad foot."""
    u, v = box.xp.abs(box.u), box.v
    return ((u <= 0.1803) & (v > -0.4003)) | ((u <= 0.5203) & (v > 0.7203))


def draw_diamond(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill a square that stands on a corner, as large as a square in the middle of the box allows."""
    box = _square(_box(canvas, top_left, bottom_right, color))
    mask = box.xp.abs(box.u) + box.xp.abs(box.v) <= 1.01
    return _paint(box.xp, mask & box.inside, color, canvas)


def draw_hexagon(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill a hexagon that stands on a corner, as large as a square in the middle of the box allows."""
    box = _square(_box(canvas, top_left, bottom_right, color))
    mask = box.xp.abs(box.u) / 2 + box.xp.abs(box.v) <= 1.01
    return _paint(box.xp, mask & box.inside, color, canvas)


def draw_gem(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill a cut gem, as large as a square in the middle of the box allows: light above, in shadow on the right."""
    box = _square(_box(canvas, top_left, bottom_right, color))
    xp, u, v = box.xp, box.xp.abs(box.u), box.v
    crown = (v > -0.8503) & (v <= -0.1303) & (u <= 0.9503 + 0.6 * (v + 0.1303))
    pavilion = (v > -0.1303) & (u <= (1.0703 - v) * 0.8303)
    color = xp.asarray(color, xp.float32)
    canvas = _paint(xp, pavilion & box.inside, color, canvas)
    canvas = _paint(xp, pavilion & (box.u > 0.2003) & box.inside, 0.55 * color, canvas)
    return _paint(xp, crown & box.inside, 0.4 * color + 0.6 * 255, canvas)


def draw_bomb(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill a round bomb whose fuse burns orange, as large as a square in the middle of the box allows."""
    box = _square(_box(canvas, top_left, bottom_right, color))
    xp, u, v = box.xp, box.u, box.v
    body = (u + 0.18) ** 2 + (v - 0.2) ** 2 <= 0.5703
    fuse = (u > 0.1003) & (v < -0.1003) & (xp.abs(u + v) <= 0.2103)
    spark = (u > 0.5503) & (v < -0.5503)
    glint = (u + 0.48) ** 2 + (v + 0.1) ** 2 <= 0.0353
    canvas = _paint(xp, (body | fuse) & box.inside, color, canvas)
    canvas = _paint(xp, glint & box.inside, (255, 255, 255), canvas)
    return _paint(xp, spark & box.inside, (255, 160, 0), canvas)


def draw_pawn(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill a chess pawn, as large as a square in the middle of the box allows."""
    box = _square(_box(canvas, top_left, bottom_right, color))
    u, v = box.xp.abs(box.u), box.v
    head = u**2 + (v + 0.52) ** 2 <= 0.2203
    body = (v > -0.4003) & (u <= 0.2003 + 0.35 * (v + 0.2003))
    foot = (v > 0.5503) & (u <= 0.8303)
    return _paint(box.xp, (head | body | foot) & box.inside, color, canvas)


def draw_pin(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill a bowling pin with a crimson collar, as large as a square in the middle of the box allows."""
    box = _square(_box(canvas, top_left, bottom_right, color))
    u, v = box.xp.abs(box.u), box.v
    head = u**2 + (v + 0.68) ** 2 <= 0.1403
    neck = (u <= 0.2203) & (v > -0.7003) & (v < 0.3003)
    belly = (u / 0.66) ** 2 + ((v - 0.42) / 0.62) ** 2 <= 1.003
    canvas = _paint(box.xp, (head | neck | belly) & box.inside, color, canvas)
    return _paint(box.xp, neck & (v > -0.4003) & (v < -0.1003) & box.inside, (220, 20, 60), canvas)


def draw_tnt_block(top_left: Point, bottom_right: Point, canvas: Canvas) -> Canvas:
    """Fill the box red with a white band across it; from 12 pixels up the band reads TNT in black."""
    box = _box(canvas, top_left, bottom_right)
    xp = box.xp
    dot = xp.floor(xp.minimum(box.half_width, box.half_height) / 6)
    # whole pixels, so that the band and the letters keep crisp edges wherever the box's centre is
    left = xp.floor(-5.5 * dot + xp.asarray(box.half_width)) - box.half_width
    top = xp.floor(-2.5 * dot + box.half_height) - box.half_height
    band_top = xp.minimum(top - dot, xp.floor(box.half_height * 2 / 3) - box.half_height)
    band = (box.y >= band_top) & (box.y < -band_top)
    size = xp.maximum(dot, 1)
    column, row = xp.floor((box.x - left) / size).astype(int), xp.floor((box.y - top) / size).astype(int)
    text = (dot > 0) & _dots(xp, _bitmap(_TNT), row, column)
    canvas = _paint(xp, box.inside, (255, 0, 0), canvas)
    canvas = _paint(xp, box.inside & band, (255, 255, 255), canvas)
    return _paint(xp, box.inside & text, (0, 0, 0), canvas)


def _dots(xp: Any, bitmap: Any, row: Any, column: Any) -> Any:
    """`bitmap` (bool[rows, columns]) at `row` and `column` (int, broadcast together); False outside it."""
    rows, columns = bitmap.shape
    valid = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    dots = xp.asarray(bitmap)[xp.clip(row, 0, rows - 1), xp.clip(column, 0, columns - 1)]
    return dots & valid


def draw_digit(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas, digit: Number) -> Canvas:
    """Draw one digit 0..9 (an int; numbers outside are clipped), stretched to the box by nearest neighbour.

    A box whose sides are multiples of 5 pixels gives dots of one size.
    """
    xp = _namespace(canvas, top_left, bottom_right, color, digit)
    return draw_letter(top_left, bottom_right, color, canvas, ord("0") + xp.clip(xp.asarray(digit), 0, 9))


def draw_letter(
    top_left: Point, bottom_right: Point, color: Color, canvas: Canvas, letter_code: str | Number
) -> Canvas:
    """Draw one character of the font (A-Z, 0-9, space, - + . ?), stretched to the box by nearest neighbour.

    `letter_code` is a string of one character or a character code (int, may be traced); small letters become capitals.
    A string outside the font raises a ValueError, a code without a glyph draws nothing.
    """
    if isinstance(letter_code, str):
        letter_code = _codes(letter_code, length=1)[0]
    box = _box(canvas, top_left, bottom_right, color, letter_code)
    xp = box.xp
    dot = box.half_width * 2 / 5, box.half_height * 2 / 5
    glyph = xp.asarray(_FONT)[xp.clip(xp.asarray(letter_code), 0, 127)]
    mask = _text(xp, glyph[None], 1, box.x + box.half_width, box.y + box.half_height, dot, 0)
    return _paint(xp, mask & box.inside, color, canvas)


def draw_number(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas, number: Number) -> Canvas:
    """Write a whole number in the middle of the box, without leading zeros, with a minus sign if it is negative.

    The digits are as high as the box less two pixels allows in whole dots; a dot is half its height, rounded down,
    and 1 pixel wide, and digits stand 2 pixels apart: 10 x 10 pixels in a box 14 pixels high, 15 x 25 in one of 28.
    A number too long for the box sticks out of it on both sides. `number` is an int within int32
    (-2147483647..2147483647), may be traced.
    """
    box = _box(canvas, top_left, bottom_right, color, number)
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
    return _paint(xp, mask, color, canvas)


def draw_str(
    top_left: Point, bottom_right: Point, color: Color, canvas: Canvas, word: str, horizontal: bool = True
) -> Canvas:
    """Write `word` in the middle of the box, from left to right or, with `horizontal=False`, from top to bottom.

    The letters are the largest that leave a pixel free above and below (left and right) and fit the box lengthwise,
    5 x 5 pixels at the least: 10 x 10 pixels and 1 apart in a box 13 pixels high, 20 x 20 and 3 apart in one of 25.
    A long word gets letters that are up to a fifth narrower than they are high before it gets lower ones. `word` is a
    Python string of the font's characters (A-Z, 0-9, space, - + . ?), small letters become capitals; any other
    character raises a ValueError.
    """
    codes = _codes(word or " ")
    box = _box(canvas, top_left, bottom_right, color)
    xp = box.xp
    if not horizontal:
        box = box._replace(x=box.y, y=box.x, half_width=box.half_height, half_height=box.half_width)
    room = xp.floor((2 * box.half_width + len(codes) - 1) / (5 * len(codes) - 1))  # for letters 4 dots wide
    dot = xp.maximum(xp.minimum(xp.floor((box.half_height * 2 - 2) / 5), room), 1)
    gap = xp.maximum(dot - 1, 1)
    width = xp.clip(xp.floor((2 * box.half_width + gap) / len(codes)) - gap, 5, 5 * dot)  # of a letter
    left = _start(xp, box.half_width, len(codes) * (width + gap) - gap)
    top = _start(xp, box.half_height, 5 * dot)
    # written downwards, x and y have changed places and so do a letter's rows and columns
    glyphs = _FONT[codes] if horizontal else _FONT[codes].swapaxes(1, 2)
    mask = _text(xp, xp.asarray(glyphs), len(codes), box.x - left, box.y - top, (width / 5, dot), gap)
    return _paint(xp, mask, color, canvas)


def _codes(word: str, length: int | None = None) -> np.ndarray:
    """Character codes int[len(word)]; a ValueError for a character without a glyph, or another length than `length`."""
    if length is not None and len(word) != length:
        raise ValueError(f"{word!r} is not one character")
    unknown = [character for character in word if character.upper() not in _GLYPHS]
    if unknown:
        raise ValueError(f"the font has no {unknown[0]!r}; it has {''.join(_GLYPHS)!r}")
    return np.array([ord(character) for character in word], np.int32)


def _start(xp: Any, half_size: Any, length: Any) -> Any:
    """Where something `length` long starts, relative to the box's centre, to lie in the middle on whole pixels."""
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


def draw_horizontal_arrow(
    top_left: Point, bottom_right: Point, color: Color, velocity: Number, canvas: Canvas
) -> Canvas:
    """Draw an arrow to the right for a positive `velocity` and to the left for a negative one; none for 0.

    It starts at the edge it points away from; its length is linear in the velocity and fills the box at 3
    (`FULL_SPEED`) and beyond.
    """
    box = _box(canvas, top_left, bottom_right, color, velocity)
    return _paint(box.xp, _straight_arrow(box, velocity) & box.inside, color, canvas)


def draw_vertical_arrow(top_left: Point, bottom_right: Point, color: Color, velocity: Number, canvas: Canvas) -> Canvas:
    """Draw an arrow down for a positive `velocity` and up for a negative one; as `draw_horizontal_arrow` otherwise."""
    box = _box(canvas, top_left, bottom_right, color, velocity)
    turned = box._replace(x=box.y, y=box.x, half_width=box.half_height, half_height=box.half_width)
    return _paint(box.xp, _straight_arrow(turned, velocity) & box.inside, color, canvas)


def _straight_arrow(box: _Box, velocity: Number) -> Any:
    """An arrow along x from one edge of the box towards the other."""
    velocity = box.xp.asarray(velocity, box.xp.float32)
    length = box.xp.minimum(box.xp.abs(velocity) / FULL_SPEED, 1) * box.half_width * 2
    start = box.half_width + box.xp.where(velocity < 0, -box.x, box.x)  # pixels from the edge where the arrow starts
    return _arrow(box.xp, start, box.y, length, box.half_height)


def _arrow(xp: Any, along: Any, across: Any, length: Any, half_breadth: Any) -> Any:
    """An arrow from `along` = 0 to `length`: a shaft a fifth, a head three fifths of 2 `half_breadth` broad."""
    head = xp.minimum(length, 0.8 * half_breadth)
    shaft = (along >= 0) & (along < length - head) & (xp.abs(across) <= xp.maximum(0.2 * half_breadth, 0.5))
    tip = (along >= length - head) & (along < length) & (xp.abs(across) <= 0.75 * (length - along) + 0.5)
    return shaft | tip


def draw_curved_arrow(
    top_left: Point, bottom_right: Point, color: Color, angular_velocity: Number, canvas: Canvas
) -> Canvas:
    """Draw an arrow along a flat arc, clockwise for a positive `angular_velocity`, anticlockwise for a negative one.

    It starts at the arc's top, in the middle of the box; its length is linear in the velocity and reaches the right or
    the left edge at 3 (`FULL_SPEED`) and beyond. `draw_arc` draws the arc itself.
    """
    box = _box(canvas, top_left, bottom_right, color, angular_velocity)
    xp = box.xp
    velocity = xp.asarray(angular_velocity, xp.float32)
    along, across, reach = _arc(box)
    along = xp.where(velocity < 0, -along, along)  # mirrored, an anticlockwise arrow is a clockwise one
    length = xp.minimum(xp.abs(velocity) / FULL_SPEED, 1) * reach
    return _paint(xp, _arrow(xp, along, across, length, 0.6 * box.half_height) & box.inside, color, canvas)


def draw_arc(top_left: Point, bottom_right: Point, thickness: Number, color: Color, canvas: Canvas) -> Canvas:
    """Draw a flat arc from the left to the right edge of the box, highest in its middle, `thickness` pixels wide.

    It falls by half the box's height. The box is wider than high.
    """
    box = _box(canvas, top_left, bottom_right, thickness, color)
    _, across, _ = _arc(box)
    return _paint(box.xp, (box.xp.abs(across) <= box.xp.asarray(thickness) / 2) & box.inside, color, canvas)


def _arc(box: _Box) -> tuple[Any, Any, Any]:
    """Pixels along the arc to the right of its top, pixels outside of it, and its length from the top to an edge."""
    xp = box.xp
    radius = (box.half_width**2 + box.half_height**2) / (2 * box.half_height)
    y = radius - box.half_height / 2 - box.y  # upwards from the circle's centre
    reach = radius * xp.arcsin(box.half_width / radius)
    return radius * xp.arctan2(box.x, y), xp.sqrt(box.x**2 + y**2) - radius, reach


def draw_crooked_arrow(
    top_left: Point, bottom_right: Point, color: Color, angular_velocity: Number, canvas: Canvas
) -> Canvas:
    """Draw a round arrow, clockwise for a positive `angular_velocity`, anticlockwise for a negative one; none for 0.

    It starts at the top of the largest circle in the box; the angle it turns through is linear in the velocity, three
    quarters of the circle at 3 (`FULL_SPEED`) and beyond.
    """
    box = _box(canvas, top_left, bottom_right, color, angular_velocity)
    xp = box.xp
    velocity = xp.asarray(angular_velocity, xp.float32)
    turn = xp.minimum(xp.abs(velocity) / FULL_SPEED, 1) * xp.float32(1.5 * np.pi)
    radius = 0.7 * xp.minimum(box.half_width, box.half_height)  # of the middle of the line
    x = xp.where(velocity < 0, -box.x, box.x)  # mirrored, an anticlockwise arrow is a clockwise one
    distance = xp.sqrt(x**2 + box.y**2)
    angle = xp.arctan2(x, -box.y) % xp.float32(2 * np.pi)  # clockwise from the top
    line = (angle < turn) & (xp.abs(distance - radius) <= xp.maximum(0.12 * radius, 0.6))
    # the head starts where the line ends and points along the circle there
    end_x, end_y = radius * xp.sin(turn), -radius * xp.cos(turn)
    ahead = (x - end_x) * xp.cos(turn) + (box.y - end_y) * xp.sin(turn)
    aside = (x - end_x) * xp.sin(turn) - (box.y - end_y) * xp.cos(turn)
    head = (ahead >= 0) & (xp.abs(aside) <= 0.43 * radius - 0.75 * ahead)
    return _paint(xp, (line | head) & (velocity != 0) & box.inside, color, canvas)


def draw_pole(start: Point, end: Point, color: Color, angle: Number, thickness: Number, canvas: Canvas) -> Canvas:
    """Draw a line with round ends, `thickness` pixels wide, from `start` to where `end` is after a turn about `start`.

    `angle` is the turn in radians, clockwise on the screen. `start` and `end` are points (x, y), not corners of a box.
    """
    xp = _namespace(canvas, start, end, color, angle, thickness)
    x, y = _centres(xp, canvas)
    angle, thickness = xp.asarray(angle, xp.float32), xp.asarray(thickness, xp.float32)
    (start_x, start_y), (end_x, end_y) = ([xp.asarray(c, xp.float32) for c in point] for point in (start, end))
    x, y = x - start_x, y - start_y
    dx, dy = end_x - start_x, end_y - start_y
    dx, dy = dx * xp.cos(angle) - dy * xp.sin(angle), dx * xp.sin(angle) + dy * xp.cos(angle)
    along = xp.clip((x * dx + y * dy) / xp.maximum(dx**2 + dy**2, 1e-6), 0, 1)
    distance = (x - along * dx) ** 2 + (y - along * dy) ** 2
    return _paint(xp, distance <= (thickness / 2) ** 2, color, canvas)
