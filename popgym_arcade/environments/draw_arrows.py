"""Arrows whose length shows a velocity. See `draw_utils`."""

from typing import Any

import numpy as np

from popgym_arcade.environments.draw_canvas import Box, Canvas, Color, Number, Point, make_box, paint, transposed

FULL_SPEED = 3.0  # the velocity at which an arrow fills its box


def draw_horizontal_arrow(
    top_left: Point, bottom_right: Point, color: Color, velocity: Number, canvas: Canvas
) -> Canvas:
    """Draw an arrow to the right for a positive `velocity` and to the left for a negative one; none for 0.

    It starts at the edge it points away from; its length is linear in the velocity and fills the box at 3
    (`FULL_SPEED`) and beyond.
    """
    box = make_box(canvas, top_left, bottom_right, color, velocity)
    return paint(box.xp, _straight_arrow(box, velocity) & box.inside, color, canvas)


def draw_vertical_arrow(top_left: Point, bottom_right: Point, color: Color, velocity: Number, canvas: Canvas) -> Canvas:
    """Draw an arrow down for a positive `velocity`, up for a negative one; otherwise like `draw_horizontal_arrow`."""
    box = make_box(canvas, top_left, bottom_right, color, velocity)
    return paint(box.xp, _straight_arrow(transposed(box), velocity) & box.inside, color, canvas)


def _straight_arrow(box: Box, velocity: Number) -> Any:
    """An arrow along x from one edge of the box towards the other."""
    velocity = box.xp.asarray(velocity, box.xp.float32)
    length = box.xp.minimum(box.xp.abs(velocity) / FULL_SPEED, 1) * box.half_width * 2
    start = box.half_width + box.xp.where(velocity < 0, -box.x, box.x)  # pixels from the edge where the arrow starts
    return _arrow(box.xp, start, box.y, length, box.half_height)


def _arrow(xp: Any, along: Any, across: Any, length: Any, half_breadth: Any) -> Any:
    """An arrow from `along` = 0 to `length`. Its shaft is a fifth of 2 `half_breadth` wide, its head three fifths."""
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
    box = make_box(canvas, top_left, bottom_right, color, angular_velocity)
    xp = box.xp
    velocity = xp.asarray(angular_velocity, xp.float32)
    along, across, reach = _arc(box)
    along = xp.where(velocity < 0, -along, along)  # mirrored, an anticlockwise arrow is a clockwise one
    length = xp.minimum(xp.abs(velocity) / FULL_SPEED, 1) * reach
    return paint(xp, _arrow(xp, along, across, length, 0.6 * box.half_height) & box.inside, color, canvas)


def draw_arc(top_left: Point, bottom_right: Point, thickness: Number, color: Color, canvas: Canvas) -> Canvas:
    """Draw a flat arc from the left to the right edge of the box, highest in its middle, `thickness` pixels wide.

    It drops by half the box's height. The box must be wider than it is high.
    """
    box = make_box(canvas, top_left, bottom_right, thickness, color)
    _, across, _ = _arc(box)
    return paint(box.xp, (box.xp.abs(across) <= box.xp.asarray(thickness) / 2) & box.inside, color, canvas)


def _arc(box: Box) -> tuple[Any, Any, Any]:
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
    box = make_box(canvas, top_left, bottom_right, color, angular_velocity)
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
    return paint(xp, (line | head) & (velocity != 0) & box.inside, color, canvas)
