"""Shapes: rectangles, circles, card suits and all other objects. See `draw_utils`."""

from typing import Any

import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np

from popgym_arcade.environments.draw_canvas import (
    Box,
    Canvas,
    Color,
    Number,
    Point,
    bitmap,
    centres,
    dots,
    make_box,
    namespace,
    paint,
    square,
)

# The outlines below have odd constants (1.003, 0.7203) so that no pixel's centre lies exactly on one. The last bit of a
# float32 would decide there, and it differs between numpy and a compiled program.

_TNT = "###.##..### .#..#.#..#. .#..#.#..#. .#..#.#..#. .#..#.#..#."  # 11 x 5 dots, too wide for the font


def draw_rectangle(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill the box."""
    box = make_box(canvas, top_left, bottom_right, color)
    return paint(box.xp, box.inside, color, canvas)


def draw_circle(top_left: Point, bottom_right: Point, radius: Number, color: Color, canvas: Canvas) -> Canvas:
    """Fill the circle of `radius` pixels around the box's centre; it may be larger than the box."""
    box = make_box(canvas, top_left, bottom_right, radius, color)
    radius = box.xp.asarray(radius, box.xp.float32)
    return paint(box.xp, box.x**2 + box.y**2 <= radius**2, color, canvas)


def draw_triangle(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas, direction: Number = 1) -> Canvas:
    """Fill an isosceles triangle whose tip is the middle of one side of the box and whose base is the opposite side.

    `direction` says where the tip points: 1 up, 2 down, 3 left, 4 right (numbers outside are clipped).
    """
    box = make_box(canvas, top_left, bottom_right, color, direction)
    return paint(box.xp, _triangle(box, direction) & box.inside, color, canvas)


def _triangle(box: Box, direction: Number) -> Any:
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
    """Draw the ellipse that touches the four sides of the box from inside, with a line `thickness` pixels wide."""
    box = make_box(canvas, top_left, bottom_right, thickness, color)
    xp = box.xp
    thickness = xp.asarray(thickness, xp.float32)
    hole_width = xp.maximum(box.half_width - thickness, 1e-6)
    hole_height = xp.maximum(box.half_height - thickness, 1e-6)
    outer = box.u**2 + box.v**2 <= 1.002
    hole = (box.x / hole_width) ** 2 + (box.y / hole_height) ** 2 <= 1.002
    return paint(xp, outer & ~hole & box.inside, color, canvas)


def draw_x(top_left: Point, bottom_right: Point, thickness: Number, color: Color, canvas: Canvas) -> Canvas:
    """Draw both diagonals of the box, `thickness` pixels wide (measured across the line)."""
    box = make_box(canvas, top_left, bottom_right, thickness, color)
    xp = box.xp
    thickness = xp.maximum(xp.asarray(thickness, xp.float32), 0)
    # distance to a diagonal times its length: mirroring both axes puts the two diagonals on one
    distance = xp.abs(xp.abs(box.x) * box.half_height - xp.abs(box.y) * box.half_width)
    reach = (thickness / 2) ** 2 * (box.half_width**2 + box.half_height**2) * 1.002
    return paint(xp, (distance**2 <= reach) & box.inside, color, canvas)


def draw_grid(square_size: Number, thickness: Number, color: Color, canvas: Canvas) -> Canvas:
    """Draw grid lines over the whole canvas: from (0, 0) on, `thickness` pixels of line, then `square_size` of cell.

    Both are whole numbers of pixels, their sum positive.
    """
    xp = namespace(canvas, square_size, thickness, color)
    height, width = canvas.shape[:2]
    period = xp.asarray(square_size) + thickness
    columns = xp.arange(width)[None, :] % period < thickness
    rows = xp.arange(height)[:, None] % period < thickness
    return paint(xp, columns | rows, color, canvas)


def draw_sub_canvas(sub_canvas: Canvas, canvas: Canvas) -> Canvas:
    """Put `sub_canvas` [h, w, 3] in the middle of the canvas, or half a pixel to the left and above it if the sizes
    differ by an odd number. A sub-canvas that is too large is cropped equally on both sides."""
    xp = namespace(canvas, sub_canvas)
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
    """The part of `size` that a centred length covers, and the part of that length that is visible."""
    start = (size - sub_size) // 2
    target = slice(max(start, 0), min(start + sub_size, size))
    return target, slice(target.start - start, target.stop - start)


def draw_heart(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill a heart in the largest square in the middle of the box."""
    box = square(make_box(canvas, top_left, bottom_right, color))
    u, v = box.xp.abs(box.u), box.v
    lobes = ((u - 0.5) / 0.51) ** 2 + ((v + 0.4) / 0.61) ** 2 <= 1.003
    point = (v >= -0.4003) & (u <= (1.0703 - v) * 0.7403)
    notch = u < -0.7503 * (v + 0.6003)  # keeps the lobes apart at small sizes
    return paint(box.xp, (lobes | point) & ~notch & box.inside, color, canvas)


def draw_spade(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill a spade in the largest square in the middle of the box."""
    box = square(make_box(canvas, top_left, bottom_right, color))
    u, v = box.xp.abs(box.u), box.v
    lobes = ((u - 0.5) / 0.51) ** 2 + ((v - 0.13) / 0.36) ** 2 <= 1.003
    point = (v <= 0.1303) & (u <= (v + 1.1303) * 0.8003)
    return paint(box.xp, (lobes | point | _stem(box)) & box.inside, color, canvas)


def draw_club(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill a club in the largest square in the middle of the box."""
    box = square(make_box(canvas, top_left, bottom_right, color))
    u, v = box.xp.abs(box.u), box.v
    # Three circles joined by a bar. They stay apart at small sizes, where a club would look like a spade.
    top = u**2 + (v + 0.55) ** 2 <= 0.2003
    sides = (u - 0.66) ** 2 + (v - 0.24) ** 2 <= 0.1953
    bar = (u <= 0.6603) & (box.xp.abs(v - 0.24) <= 0.1303)
    return paint(box.xp, (top | sides | bar | _stem(box)) & box.inside, color, canvas)


def _stem(box: Box) -> Any:
    """The stem of a spade or a club: a narrow neck that starts between the lobes and ends in a broad foot."""
    u, v = box.xp.abs(box.u), box.v
    return ((u <= 0.1803) & (v > -0.4003)) | ((u <= 0.5203) & (v > 0.7203))


def draw_diamond(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill a square that stands on a corner, in the largest square in the middle of the box."""
    box = square(make_box(canvas, top_left, bottom_right, color))
    mask = box.xp.abs(box.u) + box.xp.abs(box.v) <= 1.01
    return paint(box.xp, mask & box.inside, color, canvas)


def draw_hexagon(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill a hexagon that stands on a corner, in the largest square in the middle of the box."""
    box = square(make_box(canvas, top_left, bottom_right, color))
    mask = box.xp.abs(box.u) / 2 + box.xp.abs(box.v) <= 1.01
    return paint(box.xp, mask & box.inside, color, canvas)


def draw_gem(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill a cut gem in the largest square in the middle of the box, light at the top and shaded on the right."""
    box = square(make_box(canvas, top_left, bottom_right, color))
    xp, u, v = box.xp, box.xp.abs(box.u), box.v
    crown = (v > -0.8503) & (v <= -0.1303) & (u <= 0.9503 + 0.6 * (v + 0.1303))
    pavilion = (v > -0.1303) & (u <= (1.0703 - v) * 0.8303)
    color = xp.asarray(color, xp.float32)
    canvas = paint(xp, pavilion & box.inside, color, canvas)
    canvas = paint(xp, pavilion & (box.u > 0.2003) & box.inside, 0.55 * color, canvas)
    return paint(xp, crown & box.inside, 0.4 * color + 0.6 * 255, canvas)


def draw_bomb(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill a round bomb whose fuse burns orange, in the largest square in the middle of the box."""
    box = square(make_box(canvas, top_left, bottom_right, color))
    xp, u, v = box.xp, box.u, box.v
    body = (u + 0.18) ** 2 + (v - 0.2) ** 2 <= 0.5703
    fuse = (u > 0.1003) & (v < -0.1003) & (xp.abs(u + v) <= 0.2103)
    spark = (u > 0.5503) & (v < -0.5503)
    glint = (u + 0.48) ** 2 + (v + 0.1) ** 2 <= 0.0353
    canvas = paint(xp, (body | fuse) & box.inside, color, canvas)
    canvas = paint(xp, glint & box.inside, (255, 255, 255), canvas)
    return paint(xp, spark & box.inside, (255, 160, 0), canvas)


def draw_pawn(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill a chess pawn in the largest square in the middle of the box."""
    box = square(make_box(canvas, top_left, bottom_right, color))
    u, v = box.xp.abs(box.u), box.v
    head = u**2 + (v + 0.52) ** 2 <= 0.2203
    body = (v > -0.4003) & (u <= 0.2003 + 0.35 * (v + 0.2003))
    foot = (v > 0.5503) & (u <= 0.8303)
    return paint(box.xp, (head | body | foot) & box.inside, color, canvas)


def draw_pin(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Fill a bowling pin with a crimson collar, in the largest square in the middle of the box."""
    box = square(make_box(canvas, top_left, bottom_right, color))
    u, v = box.xp.abs(box.u), box.v
    head = u**2 + (v + 0.68) ** 2 <= 0.1403
    neck = (u <= 0.2203) & (v > -0.7003) & (v < 0.3003)
    belly = (u / 0.66) ** 2 + ((v - 0.42) / 0.62) ** 2 <= 1.003
    canvas = paint(box.xp, (head | neck | belly) & box.inside, color, canvas)
    return paint(box.xp, neck & (v > -0.4003) & (v < -0.1003) & box.inside, (220, 20, 60), canvas)


def draw_matchstick_man(top_left: Point, bottom_right: Point, color: Color, canvas: Canvas) -> Canvas:
    """Draw a stick figure in the largest square in the middle of the box."""
    box = square(make_box(canvas, top_left, bottom_right, color))
    u, v = box.xp.abs(box.u), box.v
    thick = box.xp.maximum(1.01 / box.half_width / 2, 0.1)  # half the width of a stick, at least half a pixel
    head = u**2 + (v + 0.6403) ** 2 <= 0.1003
    body = (u <= thick) & (v > -0.6403) & (v <= 0.3003)
    arms = (u <= 0.6003) & (box.xp.abs(v + 0.1503) <= thick)
    legs = (v > 0.2503) & (box.xp.abs(u - 0.8 * (v - 0.2503)) <= 1.4 * thick)
    return paint(box.xp, (head | body | arms | legs) & box.inside, color, canvas)


def draw_stick(
    top_left: Point, bottom_right: Point, angle: Number, thickness: Number, color: Color, canvas: Canvas
) -> Canvas:
    """Draw a stick as long as the box is wide, from the middle of the box's bottom, clipped to the box.

    It stands upright at an `angle` of 0 and is turned clockwise by `angle` times pi. Its ends are round.
    """
    box = make_box(canvas, top_left, bottom_right, angle, thickness, color)
    xp = box.xp
    turn = xp.asarray(angle, xp.float32) * xp.float32(np.pi)
    x, y = box.x, box.y - box.half_height  # from the foot
    along = xp.clip(x * xp.sin(turn) - y * xp.cos(turn), 0, 2 * box.half_width)
    distance = (x - along * xp.sin(turn)) ** 2 + (y + along * xp.cos(turn)) ** 2
    return paint(xp, (distance <= (xp.asarray(thickness) / 2) ** 2) & box.inside, color, canvas)


def draw_horizontal_tail(
    top_left: Point, bottom_right: Point, thickness: Number, color: Color, canvas: Canvas
) -> Canvas:
    """Draw a line from the left to the right edge of the box, in its middle, `thickness` pixels wide."""
    box = make_box(canvas, top_left, bottom_right, thickness, color)
    return paint(box.xp, _band(box.xp, box.y, thickness) & box.inside, color, canvas)


def draw_vertical_tail(top_left: Point, bottom_right: Point, thickness: Number, color: Color, canvas: Canvas) -> Canvas:
    """Draw a line from the top to the bottom edge of the box, in its middle, `thickness` pixels wide."""
    box = make_box(canvas, top_left, bottom_right, thickness, color)
    return paint(box.xp, _band(box.xp, box.x, thickness) & box.inside, color, canvas)


def _band(xp: Any, distance: Any, thickness: Number) -> Any:
    """bool of the distance's shape: within half of `thickness`."""
    half = xp.asarray(thickness) / 2
    return (distance >= -half) & (distance < half)


def draw_crooked_tail(top_left: Point, bottom_right: Point, color: Color, thickness: Number, canvas: Canvas) -> Canvas:
    """Draw the upper right quarter of what `draw_o` draws, a line `thickness` pixels wide."""
    ring = draw_o(top_left, bottom_right, thickness, color, canvas)
    box = make_box(canvas, top_left, bottom_right, thickness, color)
    quarter = (box.x >= 0) & (box.y <= 0)
    return box.xp.where(quarter[..., None], ring, canvas)


def rotate(
    image: Canvas, angle: Number, center: Point, order: int = 1, mode: str = "nearest", cval: Number = 0.0
) -> Canvas:
    """Turn an image [height, width, 3] clockwise by `angle` radians about `center`, the point (x, y) in pixels.

    The centre of the first pixel is (0, 0).
    `order` 0 takes the nearest pixel, 1 interpolates linearly. `mode` says what lies beyond the image, as in
    `jax.scipy.ndimage.map_coordinates`: "nearest", "constant" (`cval`), "wrap", "mirror" or "reflect".
    """
    image = jnp.asarray(image)
    namespace(image)  # rejects any other rank
    x, y = (jnp.arange(size, dtype=jnp.float32) for size in (image.shape[1], image.shape[0]))
    x, y = x[None, :] - center[0], y[:, None] - center[1]
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    places = center[1] + cos * y - sin * x, center[0] + cos * x + sin * y  # where each pixel comes from: row, column
    planes = [jsp.ndimage.map_coordinates(plane, places, order, mode, cval) for plane in jnp.moveaxis(image, -1, 0)]
    return jnp.stack(planes, axis=-1)


def draw_tnt_block(top_left: Point, bottom_right: Point, canvas: Canvas) -> Canvas:
    """Fill the box red with a white band across it; in boxes of 12 pixels or more, the band reads TNT in black."""
    box = make_box(canvas, top_left, bottom_right)
    xp = box.xp
    dot = xp.floor(xp.minimum(box.half_width, box.half_height) / 6)
    # whole pixels, so that the band and the letters keep crisp edges wherever the box's centre is
    left = xp.floor(-5.5 * dot + xp.asarray(box.half_width)) - box.half_width
    top = xp.floor(-2.5 * dot + box.half_height) - box.half_height
    band_top = xp.minimum(top - dot, xp.floor(box.half_height * 2 / 3) - box.half_height)
    band = (box.y >= band_top) & (box.y < -band_top)
    size = xp.maximum(dot, 1)
    column, row = xp.floor((box.x - left) / size).astype(int), xp.floor((box.y - top) / size).astype(int)
    text = (dot > 0) & dots(xp, bitmap(_TNT), row, column)
    canvas = paint(xp, box.inside, (255, 0, 0), canvas)
    canvas = paint(xp, box.inside & band, (255, 255, 255), canvas)
    return paint(xp, box.inside & text, (0, 0, 0), canvas)


def draw_pole(start: Point, end: Point, color: Color, angle: Number, thickness: Number, canvas: Canvas) -> Canvas:
    """Draw a line with round ends, `thickness` pixels wide, from `start` to `end` rotated about `start`.

    `angle` is the rotation in radians, clockwise. `start` and `end` are points (x, y), not corners of a box.
    """
    xp = namespace(canvas, start, end, color, angle, thickness)
    x, y = centres(xp, canvas)
    angle, thickness = xp.asarray(angle, xp.float32), xp.asarray(thickness, xp.float32)
    (start_x, start_y), (end_x, end_y) = ([xp.asarray(c, xp.float32) for c in point] for point in (start, end))
    x, y = x - start_x, y - start_y
    dx, dy = end_x - start_x, end_y - start_y
    dx, dy = dx * xp.cos(angle) - dy * xp.sin(angle), dx * xp.sin(angle) + dy * xp.cos(angle)
    along = xp.clip((x * dx + y * dy) / xp.maximum(dx**2 + dy**2, 1e-6), 0, 1)
    distance = (x - along * dx) ** 2 + (y - along * dy) ** 2
    return paint(xp, distance <= (thickness / 2) ** 2, color, canvas)
