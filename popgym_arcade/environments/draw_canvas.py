"""The parts of every drawing primitive: a box on a canvas, seen from its centre, and paint where a mask is set.

They use numpy if the canvas is a numpy array and no argument is traced, else jax: see `draw_utils`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Number = Any  # an int, a float, or an array of rank 0, traced or not
Point = tuple[Number, Number]
Color = Any  # three numbers 0..255: tuple or array [3]
Canvas = Any  # np.ndarray or jax.Array [height, width, 3], uint8


class Box(NamedTuple):
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


def namespace(canvas: Canvas, *arguments: Any) -> Any:
    """numpy if nothing here is a jax canvas or traced, jax.numpy otherwise."""
    if np.ndim(canvas) != 3:
        raise ValueError(f"a canvas has the shape [height, width, 3], not {list(np.shape(canvas))}")
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments))
    return np if isinstance(canvas, np.ndarray) and not traced else jnp


def centres(xp: Any, canvas: Canvas) -> tuple[Any, Any]:
    """Columns [1, width] and rows [height, 1] of the pixels' centres, float32."""
    height, width = canvas.shape[:2]
    x = xp.arange(width, dtype=xp.float32) + 0.5
    y = xp.arange(height, dtype=xp.float32) + 0.5
    return x[None, :], y[:, None]


def make_box(canvas: Canvas, top_left: Point, bottom_right: Point, *arguments: Any) -> Box:
    """The box between two corners; `arguments` are the primitive's others, which also decide between numpy and jax."""
    xp = namespace(canvas, top_left, bottom_right, *arguments)
    left, top = (xp.asarray(corner, xp.float32) for corner in top_left)
    right, bottom = (xp.asarray(corner, xp.float32) for corner in bottom_right)
    x, y = centres(xp, canvas)
    # Move a box without area off the canvas, and keep its sides safe to divide by.
    half_width = xp.maximum((right - left) / 2, 1e-6)
    half_height = xp.maximum((bottom - top) / 2, 1e-6)
    empty = (right <= left) | (bottom <= top)
    outside = xp.where(empty, xp.float32(1e6), xp.float32(0))
    return Box(xp, x - (left + right) / 2 + outside, y - (top + bottom) / 2 + outside, half_width, half_height)


def square(box: Box) -> Box:
    """The largest square in the middle of a box, on whole pixels of the box."""
    xp = box.xp
    half = xp.minimum(box.half_width, box.half_height)
    # half a pixel up or left if the square cannot lie in the middle
    shift_x = box.half_width - half - xp.floor(box.half_width - half)
    shift_y = box.half_height - half - xp.floor(box.half_height - half)
    return box._replace(x=box.x + shift_x, y=box.y + shift_y, half_width=half, half_height=half)


def transposed(box: Box) -> Box:
    """The box with its two axes exchanged, to draw along y what is written for x."""
    return box._replace(x=box.y, y=box.x, half_width=box.half_height, half_height=box.half_width)


def paint(xp: Any, mask: Any, color: Color, canvas: Canvas) -> Canvas:
    """The canvas with `color` where `mask` (bool[height, width]) is set."""
    color = xp.clip(xp.asarray(color), 0, 255).astype(canvas.dtype)
    return xp.where(mask[..., None], color, canvas)


def bitmap(rows: str) -> np.ndarray:
    """Rows of `#` and `.` separated by spaces as bool[rows, columns]."""
    return np.array([[dot == "#" for dot in row] for row in rows.split()])


def dots(xp: Any, bitmap: Any, row: Any, column: Any) -> Any:
    """`bitmap` (bool[rows, columns]) at `row` and `column` (int, broadcast together); False outside it."""
    rows, columns = bitmap.shape
    valid = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    found = xp.asarray(bitmap)[xp.clip(row, 0, rows - 1), xp.clip(column, 0, columns - 1)]
    return found & valid
