"""The drawing primitives: clipping, exclusive edges, overwriting, any canvas size, and jax against numpy."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from popgym_arcade.environments import draw_utils as du

RED = (200, 10, 20)

# Every primitive that draws into a box, called as shape(top_left, bottom_right, canvas).
BOXED = {
    "rectangle": lambda a, b, canvas: du.draw_rectangle(a, b, RED, canvas),
    "triangle_up": lambda a, b, canvas: du.draw_triangle(a, b, RED, canvas),
    "triangle_down": lambda a, b, canvas: du.draw_triangle(a, b, RED, canvas, 2),
    "triangle_left": lambda a, b, canvas: du.draw_triangle(a, b, RED, canvas, 3),
    "triangle_right": lambda a, b, canvas: du.draw_triangle(a, b, RED, canvas, direction=4),
    "o": lambda a, b, canvas: du.draw_o(a, b, 2, RED, canvas),
    "x": lambda a, b, canvas: du.draw_x(a, b, 2, RED, canvas),
    "heart": lambda a, b, canvas: du.draw_heart(a, b, RED, canvas),
    "spade": lambda a, b, canvas: du.draw_spade(a, b, RED, canvas),
    "club": lambda a, b, canvas: du.draw_club(a, b, RED, canvas),
    "diamond": lambda a, b, canvas: du.draw_diamond(a, b, RED, canvas),
    "hexagon": lambda a, b, canvas: du.draw_hexagon(a, b, RED, canvas),
    "gem": lambda a, b, canvas: du.draw_gem(a, b, RED, canvas),
    "bomb": lambda a, b, canvas: du.draw_bomb(a, b, RED, canvas),
    "pawn": lambda a, b, canvas: du.draw_pawn(a, b, RED, canvas),
    "pin": lambda a, b, canvas: du.draw_pin(a, b, RED, canvas),
    "matchstick_man": lambda a, b, canvas: du.draw_matchstick_man(a, b, RED, canvas),
    "stick": lambda a, b, canvas: du.draw_stick(a, b, 0.13, 3, RED, canvas),
    "horizontal_tail": lambda a, b, canvas: du.draw_horizontal_tail(a, b, 3, RED, canvas),
    "vertical_tail": lambda a, b, canvas: du.draw_vertical_tail(a, b, 3, RED, canvas),
    "crooked_tail": lambda a, b, canvas: du.draw_crooked_tail(a, b, RED, 2, canvas),
    "arc": lambda a, b, canvas: du.draw_arc(a, b, 2, RED, canvas),
    "tnt": lambda a, b, canvas: du.draw_tnt_block(a, b, canvas),
    "digit": lambda a, b, canvas: du.draw_digit(a, b, RED, canvas, 8),
    "letter": lambda a, b, canvas: du.draw_letter(a, b, RED, canvas, "E"),
    "right_arrow": lambda a, b, canvas: du.draw_horizontal_arrow(a, b, RED, 3.0, canvas),
    "left_arrow": lambda a, b, canvas: du.draw_horizontal_arrow(a, b, RED, -2.0, canvas),
    "down_arrow": lambda a, b, canvas: du.draw_vertical_arrow(a, b, RED, 3.0, canvas),
    "up_arrow": lambda a, b, canvas: du.draw_vertical_arrow(a, b, RED, -1.3, canvas),
    "clockwise_arrow": lambda a, b, canvas: du.draw_crooked_arrow(a, b, RED, 2.2, canvas),
    "anticlockwise_arrow": lambda a, b, canvas: du.draw_crooked_arrow(a, b, RED, -3.0, canvas),
    "arrow_bent_right": lambda a, b, canvas: du.draw_curved_arrow(a, b, RED, 2.2, canvas),
    "arrow_bent_left": lambda a, b, canvas: du.draw_curved_arrow(a, b, RED, -3.0, canvas),
}
# These may leave their box: a text too long for it, a circle with a larger radius, a pole that is turned.
FREE = {
    "circle": lambda a, b, canvas: du.draw_circle(a, b, 5.3, RED, canvas),
    "number": lambda a, b, canvas: du.draw_number(a, b, RED, canvas, 407),
    "word": lambda a, b, canvas: du.draw_str(a, b, RED, canvas, "Go-1"),
    "word_down": lambda a, b, canvas: du.draw_str(a, b, RED, canvas, "Go-1", False),
    "single_digit": lambda a, b, canvas: du.draw_single_digit(a, b, RED, canvas, 6, digit_width=10),
    "words_h": lambda a, b, canvas: du.draw_words_h(a, b, RED, canvas, np.array([71, 79])),
    "words_v": lambda a, b, canvas: du.draw_words_v(a, b, RED, canvas, np.array([71, 79])),
    "pole": lambda a, b, canvas: du.draw_pole(a, b, RED, 0.7, 3, canvas),
}
ALL = BOXED | FREE
SUITS = [du.draw_heart, du.draw_spade, du.draw_club, du.draw_diamond]


def blank(height=40, width=40, value=7):
    return np.full((height, width, 3), value, np.uint8)


def stencil(draw, size):
    """bool[size, size]: the pixels that draw((0, 0), (size, size), color, canvas) sets."""
    return draw((0, 0), (size, size), (255, 255, 255), blank(size, size, 0))[..., 0] > 0


@functools.cache
def vmapped(name):
    return jax.jit(jax.vmap(lambda corners: ALL[name](corners[:2], corners[2:], jnp.asarray(blank()))))


@pytest.mark.parametrize("name", ALL)
def test_traced_corners_give_the_picture_that_numpy_gives(name):
    corners = [
        (x, y, x + w, y + h) for (x, y), (w, h) in itertools.product([(3, 4), (-3, 30)], [(9, 9), (6, 17), (20, 13)])
    ]
    corners += [(5, 5, 5, 9), (9, 9, 4, 4)]
    drawn = np.asarray(vmapped(name)(jnp.asarray(corners)))
    assert drawn.dtype == np.uint8
    for (x0, y0, x1, y1), picture in zip(corners, drawn, strict=True):
        np.testing.assert_array_equal(picture, ALL[name]((x0, y0), (x1, y1), blank()))


@pytest.mark.parametrize("name", ALL)
def test_concrete_drawing_stays_in_numpy_and_leaves_the_canvas_alone(name):
    canvas = blank()
    drawn = ALL[name]((2, 2), (20, 20), canvas)
    assert isinstance(drawn, np.ndarray) and drawn.dtype == np.uint8 and drawn.shape == canvas.shape
    assert (canvas == 7).all() and (drawn != 7).any()
    assert isinstance(ALL[name]((2, 2), (20, 20), jnp.asarray(canvas)), jax.Array)
    assert isinstance(ALL[name]((jnp.int32(2), 2), (20, np.int64(20)), canvas), np.ndarray)


@pytest.mark.parametrize("name", BOXED)
def test_nothing_is_drawn_outside_the_box(name):
    for (x, y), (w, h) in itertools.product([(5, 9), (12, 3)], [(6, 6), (7, 10), (21, 13)]):
        drawn = BOXED[name]((x, y), (x + w, y + h), blank())
        drawn[y : y + h, x : x + w] = 7
        assert (drawn == 7).all()


@pytest.mark.parametrize("name", ALL)
def test_the_canvas_cuts_off_what_does_not_fit(name):
    """A picture near a border is the same as that part of the picture on a large canvas."""
    offset = 40
    for x, y in [(-7, 3), (3, -7), (-5, -5), (25, 20), (60, 60), (-60, 5)]:
        small = ALL[name]((x, y), (x + 16, y + 16), blank(30, 33))
        large = ALL[name]((x + offset, y + offset), (x + 16 + offset, y + 16 + offset), blank(120, 120))
        np.testing.assert_array_equal(small, large[offset : offset + 30, offset : offset + 33])


@pytest.mark.parametrize("name", ALL)
def test_drawing_overwrites(name):
    """The drawn pixels and their colours do not depend on what was there before."""
    on_dark, on_light = (ALL[name]((4, 4), (24, 24), blank(value=value)).astype(int) for value in (0, 250))
    changed = (on_dark != 0).any(-1) | (on_light != 250).any(-1)
    np.testing.assert_array_equal(on_dark[changed], on_light[changed])
    np.testing.assert_array_equal(ALL[name]((4, 4), (24, 24), on_dark.astype(np.uint8)), on_dark)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("height, width", [(1, 1), (5, 3), (31, 64), (256, 256)])
def test_any_canvas_size(name, height, width):
    drawn = ALL[name]((0, 0), (width, height), blank(height, width))
    assert drawn.shape == (height, width, 3)


def test_a_rectangle_holds_its_left_and_top_edge_and_not_its_right_and_bottom():
    drawn = du.draw_rectangle((2, 3), (5, 4), RED, blank(6, 8))
    expected = blank(6, 8)
    expected[3:4, 2:5] = RED
    np.testing.assert_array_equal(drawn, expected)


def test_full_shapes_reach_all_four_edges_of_their_box():
    for draw in (du.draw_triangle, du.draw_diamond, du.draw_hexagon, du.draw_heart, du.draw_spade, du.draw_club):
        for size in (6, 7, 9, 13, 17, 21, 28, 44):
            mask = stencil(draw, size)
            assert mask[0].any() and mask[-1].any() and mask[:, 0].any() and mask[:, -1].any(), (draw, size)
            np.testing.assert_array_equal(mask, mask[:, ::-1])


@pytest.mark.parametrize("size", [6, 7, 8, 9, 10, 13, 17, 20, 21, 28, 44])
def test_suits_marks_and_treasure_differ_at_every_size(size):
    line = max(1, size // 7)
    ring, cross = (
        functools.partial(lambda d, a, b, c, canvas: d(a, b, line, c, canvas), d) for d in (du.draw_o, du.draw_x)
    )
    masks = [stencil(draw, size) for draw in (*SUITS, du.draw_hexagon, ring, cross)]
    for one, other in itertools.combinations(masks, 2):
        assert (one != other).mean() > 0.04


@pytest.mark.parametrize("draw", SUITS)
def test_suits_keep_their_proportions_in_a_card(draw):
    card = draw((0, 0), (10, 20), RED, blank(20, 10))
    np.testing.assert_array_equal(card[5:15], draw((0, 0), (10, 10), RED, blank(10, 10)))
    assert (card[:5] == 7).all() and (card[15:] == 7).all()


def test_circle_and_ring():
    y, x = np.mgrid[:21, :21] - 10.0
    disc = du.draw_circle((0, 0), (21, 21), 7, RED, blank(21, 21))[..., 0] == RED[0]
    np.testing.assert_array_equal(disc, x**2 + y**2 <= 49)
    ring = du.draw_o((3, 3), (18, 18), 3, RED, blank(21, 21))[..., 0] == RED[0]
    assert not ring[10, 10] and ring[10, 3:6].all() and not ring[10, 6] and ring[15:18, 10].all()


def test_cross_holds_both_diagonals():
    cross = du.draw_x((0, 0), (9, 9), 1, RED, blank(9, 9))[..., 0] == RED[0]
    np.testing.assert_array_equal(cross, np.eye(9, dtype=bool) | np.eye(9, dtype=bool)[::-1])


def test_grid_lines():
    drawn = du.draw_grid(9, 2, RED, blank(24, 35))
    lines = (np.arange(24) % 11 < 2)[:, None] | (np.arange(35) % 11 < 2)
    np.testing.assert_array_equal(drawn[..., 1] == RED[1], lines)
    traced = jax.jit(lambda size: du.draw_grid(size, 2, RED, blank(24, 35)))(9)
    np.testing.assert_array_equal(traced, drawn)


def test_sub_canvas_is_centred_and_cut_off():
    sub = np.arange(4 * 3 * 3, dtype=np.uint8).reshape(4, 3, 3)
    drawn = du.draw_sub_canvas(sub, blank(9, 8))
    np.testing.assert_array_equal(drawn[2:6, 2:5], sub)
    assert (drawn == 7).sum() >= (9 * 8 - 4 * 3) * 3
    np.testing.assert_array_equal(jax.jit(du.draw_sub_canvas)(sub, blank(9, 8)), drawn)
    np.testing.assert_array_equal(du.draw_sub_canvas(sub, blank(2, 1)), sub[1:3, 1:2])


def test_tnt_block_is_red_with_a_white_band_and_reads_tnt_when_large_enough():
    for size in (6, 7, 9, 13, 21, 44):
        block = du.draw_tnt_block((0, 0), (size, size), blank(size, size))
        colors = {tuple(color) for color in block.reshape(-1, 3).tolist()}
        assert colors == {(255, 0, 0), (255, 255, 255)} | ({(0, 0, 0)} if size >= 12 else set())
        assert (block[0] == (255, 0, 0)).all() and (block[-1] == (255, 0, 0)).all()


def test_all_characters_differ_at_ten_pixels():
    characters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-+.? "
    boxes = {c: du.draw_letter((0, 0), (10, 10), RED, blank(10, 10), c) for c in characters}
    for one, other in itertools.combinations(characters, 2):
        assert (boxes[one] != boxes[other]).any(-1).sum() >= 4, (one, other)  # one dot
    for character, box in boxes.items():
        np.testing.assert_array_equal(box, box[::2, ::2].repeat(2, 0).repeat(2, 1))
        np.testing.assert_array_equal(box, du.draw_letter((0, 0), (10, 10), RED, blank(10, 10), character.lower()))
        np.testing.assert_array_equal(box, du.draw_letter((0, 0), (10, 10), RED, blank(10, 10), ord(character)))


def test_digits_are_the_letters_with_their_codes_and_are_clipped_into_range():
    for digit in range(10):
        drawn = du.draw_digit((1, 2), (16, 27), RED, blank(), digit)
        np.testing.assert_array_equal(drawn, du.draw_letter((1, 2), (16, 27), RED, blank(), str(digit)))
    np.testing.assert_array_equal(*(du.draw_digit((0, 0), (5, 5), RED, blank(), digit) for digit in (-1, 0)))
    np.testing.assert_array_equal(*(du.draw_digit((0, 0), (5, 5), RED, blank(), digit) for digit in (12, 9)))


def test_number_is_centred_and_has_no_leading_zeros():
    canvas = blank(30, 128)
    numbers = [0, 7, 10, 99, 100, 305, 1000, 99999, 123456789, 2147483647, -1, -40]
    traced = jax.jit(jax.vmap(lambda n: du.draw_number((0, 1), (128, 15), RED, jnp.asarray(canvas), n)))
    for number, picture in zip(numbers, np.asarray(traced(jnp.asarray(numbers))), strict=True):
        expected, text = canvas, str(number)
        left = (128 - (12 * len(text) - 2)) // 2
        for index, character in enumerate(text):
            corner = left + 12 * index, 3
            expected = du.draw_letter(corner, (corner[0] + 10, 13), RED, expected, character)
        np.testing.assert_array_equal(picture, expected)
        np.testing.assert_array_equal(du.draw_number((0, 1), (128, 15), RED, canvas, number), expected)


def test_number_in_the_score_box_of_a_large_frame_has_digits_of_15_by_25():
    drawn = du.draw_number((86, 2), (171, 30), RED, blank(256, 256), 88)
    rows, columns = np.nonzero((drawn != 7).any(-1))
    assert (rows.min(), rows.max() + 1) == (3, 28)
    assert columns.max() + 1 - columns.min() == 15 + 2 + 15


@pytest.mark.parametrize(
    "size, top, word, height, width, gap",
    [
        (128, 115, "HE", 10, 10, 1),
        (256, 231, "HE", 20, 20, 3),
        (128, 115, 6 * "HE", 10, 9, 1),  # does not fit in full width, so the letters get narrower
        (256, 231, 6 * "HE", 20, 18, 3),
        (128, 115, "HAVE" + 5 * "HE", 10, 8, 1),
        (128, 115, 10 * "HE", 5, 5, 1),  # nor in four fifths of it, so they get lower
    ],
)
def test_words_in_the_name_strip(size, top, word, height, width, gap):
    drawn = du.draw_str((0, top), (size, size), RED, blank(size, size), word)
    ink = (drawn != 7).any(-1)
    rows, columns = np.nonzero(ink)
    assert rows.max() + 1 - rows.min() == height
    assert columns.max() + 1 - columns.min() == len(word) * (width + gap) - gap
    assert abs((columns.max() + 1 + columns.min()) - size) <= 1
    first = ink[rows.min() :, columns.min() : columns.min() + width]
    np.testing.assert_array_equal(first, first[:, ::-1])  # an H, its strokes of one width


def test_a_word_written_down_has_upright_letters_below_each_other():
    drawn = du.draw_str((0, 0), (13, 40), RED, blank(40, 13), "FLY", horizontal=False)
    expected = blank(40, 13)
    for index, character in enumerate("FLY"):
        expected = du.draw_letter((1, 4 + 11 * index), (11, 14 + 11 * index), RED, expected, character)
    np.testing.assert_array_equal(drawn, expected)


def test_words_of_traced_codes_are_those_of_the_string():
    codes = jnp.asarray([ord(character) for character in "Go 1"])
    for draw, horizontal in ((du.draw_words_h, True), (du.draw_words_v, False)):
        traced = jax.jit(lambda codes, draw=draw: draw((0, 0), (60, 60), RED, jnp.asarray(blank(60, 60)), codes))(codes)
        np.testing.assert_array_equal(traced, du.draw_str((0, 0), (60, 60), RED, blank(60, 60), "Go 1", horizontal))
    for code in range(ord("0"), ord("9") + 1):
        dots = du.draw_letter((0, 0), (5, 5), RED, blank(5, 5), code)[..., 0] == RED[0]
        np.testing.assert_array_equal(du.return_letter_patterns(code), dots)
        np.testing.assert_array_equal(jax.jit(du.return_digit_patterns)(code - ord("0")), dots)


def test_a_single_digit_has_its_width_and_lies_in_the_middle():
    drawn = du.draw_single_digit((2, 3), (32, 30), RED, blank(), 8) != 7
    expected = du.draw_digit((9, 4), (24, 29), RED, blank(), 8) != 7
    np.testing.assert_array_equal(drawn, expected)


def test_tails_cross_their_box_and_bend_in_its_upper_right():
    across = (du.draw_horizontal_tail((3, 5), (20, 15), 4, RED, blank()) != 7).any(-1)
    assert across[8:12, 3:20].all() and across.sum() == 4 * 17
    np.testing.assert_array_equal((du.draw_vertical_tail((5, 3), (15, 20), 4, RED, blank()) != 7).any(-1), across.T)
    ring = (du.draw_o((2, 2), (22, 22), 3, RED, blank()) != 7).any(-1)
    ring[12:] = ring[:, :12] = False
    np.testing.assert_array_equal((du.draw_crooked_tail((2, 2), (22, 22), RED, 3, blank()) != 7).any(-1), ring)


def test_a_stick_stands_on_the_middle_of_the_bottom_and_turns_clockwise():
    upright = (du.draw_stick((5, 5), (25, 25), 0, 4, RED, blank()) != 7).any(-1)
    assert upright[7:25, 13:17].all() and not upright[:, :13].any() and not upright[:, 17:].any()
    right = (du.draw_stick((5, 5), (25, 25), 0.25, 2, RED, blank()) != 7).any(-1)
    rows, columns = np.nonzero(right)
    assert rows[columns.argmax()] < 20 and columns.min() >= 13


@pytest.mark.parametrize("order", [0, 1])
def test_rotation_turns_clockwise_about_its_centre(order):
    image = np.zeros((21, 21, 3), np.uint8)
    image[4, 10] = RED  # above the centre
    quarter = np.asarray(jax.jit(lambda angle: du.rotate(image, angle, (10, 10), order))(np.pi / 2))
    assert quarter.dtype == np.uint8 and quarter[10, 16].tolist() == list(RED) and (quarter.any(-1)).sum() == 1
    np.testing.assert_array_equal(du.rotate(image, 0.0, (3, 7), order), image)
    moved = np.asarray(du.rotate(image + 9, np.pi, (10, 4), order, mode="constant", cval=5))
    assert moved[4, 10].tolist() == [c + 9 for c in RED] and (moved[9:] == 5).all()


def test_an_empty_word_draws_nothing():
    assert (du.draw_str((0, 0), (20, 12), RED, blank(), "") == 7).all()


def test_arrow_length_is_linear_in_the_velocity_and_its_direction_the_sign():
    velocities = np.linspace(-4, 4, 49, dtype=np.float32)
    draw = jax.jit(jax.vmap(lambda v: du.draw_horizontal_arrow((4, 4), (34, 16), RED, v, jnp.asarray(blank()))))
    for velocity, picture in zip(velocities, np.asarray(draw(velocities)) != 7, strict=True):
        length = min(abs(velocity) / 3, 1) * 30
        columns = np.nonzero(picture.any((0, 2)))[0]
        assert abs(columns.size - length) <= 1
        if columns.size:
            assert columns[0] == 4 if velocity > 0 else columns[-1] == 33
        vertical = du.draw_vertical_arrow((4, 4), (16, 34), RED, velocity, blank()) != 7
        np.testing.assert_array_equal(vertical, picture.swapaxes(0, 1))


def test_opposite_turns_mirror_each_other_and_grow_with_the_velocity():
    areas = []
    for velocity in (0.0, 0.5, 1.5, 2.5, 3.0, 9.0):
        right, left = (du.draw_crooked_arrow((5, 5), (35, 35), RED, v, blank()) for v in (velocity, -velocity))
        np.testing.assert_array_equal(right, left[:, ::-1])
        areas.append((right != 7).any(-1).sum())
    assert areas[0] == 0 and areas[-2] == areas[-1] and areas[:-1] == sorted(set(areas))


def test_bent_arrows_mirror_each_other_lie_on_the_arc_and_reach_its_end():
    box = (2, 3), (98, 19)
    arc = (du.draw_arc(*box, 2, RED, blank(24, 100)) != 7).any(-1)
    assert arc[:, 2].any() and arc[:, 97].any()
    heights = [np.nonzero(column)[0].mean() for column in arc.T[2:98]]
    assert np.diff(heights[:48]).max() <= 0 and heights[0] - heights[47] == pytest.approx(8, abs=1)
    tips = []
    for speed in (0.0, 0.5, 1.5, 2.5, 3.0, 9.0):
        right, left = (du.draw_curved_arrow(*box, RED, sign * speed, blank(24, 100)) for sign in (1, -1))
        np.testing.assert_array_equal(right, left[:, ::-1])
        ink = (right != 7).any(-1)
        assert not ink[:, :50].any()
        tips.append(ink.any(0).nonzero()[0].max() - 49 if ink.any() else 0)
        assert not speed or (ink & arc).sum() > 0.4 * ink.sum()
    np.testing.assert_allclose(tips, [0, 8, 24, 40, 48, 48], atol=1)


def test_pole_turns_clockwise_about_its_start():
    upright = du.draw_pole((20, 30), (20, 10), RED, 0.0, 4, blank())[..., 0] == RED[0]
    assert upright[10:30, 18:22].all() and not upright[:, :18].any() and not upright[:, 22:].any()
    fallen = du.draw_pole((20, 30), (20, 10), RED, np.pi / 2, 4, blank())[..., 0] == RED[0]
    assert fallen[28:32, 20:40].all() and not fallen[:28].any()


def test_traced_colors_digits_and_directions():
    canvas = jnp.asarray(blank())
    colors = jnp.asarray([[1, 2, 3], [255, 0, 128]], jnp.uint8)
    drawn = jax.jit(jax.vmap(lambda color: du.draw_heart((2, 2), (20, 20), color, canvas)))(colors)
    for color, picture in zip(colors, drawn, strict=True):
        np.testing.assert_array_equal(picture, du.draw_heart((2, 2), (20, 20), color, blank()))
    drawn = jax.jit(jax.vmap(lambda digit: du.draw_digit((2, 2), (20, 20), RED, canvas, digit)))(jnp.arange(10))
    for digit, picture in enumerate(drawn):
        np.testing.assert_array_equal(picture, du.draw_digit((2, 2), (20, 20), RED, blank(), digit))
    drawn = jax.jit(jax.vmap(lambda way: du.draw_triangle((2, 2), (20, 20), RED, canvas, way)))(jnp.arange(1, 5))
    for direction, picture in enumerate(drawn, 1):
        np.testing.assert_array_equal(picture, du.draw_triangle((2, 2), (20, 20), RED, blank(), direction))


def test_colors_are_clipped_and_never_wrap():
    drawn = du.draw_rectangle((0, 0), (1, 1), (300, -5, 256), blank())
    assert drawn[0, 0].tolist() == [255, 0, 255]


def test_scan_carries_a_canvas_without_changing_its_type():
    def step(canvas, x):
        return du.draw_rectangle((x, x), (x + 1, x + 1), RED, canvas), ()

    canvas, _ = jax.lax.scan(step, jnp.asarray(blank()), jnp.arange(40))
    np.testing.assert_array_equal((np.asarray(canvas) != 7).any(-1), np.eye(40, dtype=bool))


def test_errors():
    with pytest.raises(ValueError, match="height, width, 3"):
        du.draw_rectangle((0, 0), (1, 1), RED, np.zeros((4, 4), np.uint8))
    with pytest.raises(ValueError, match="height, width, 3"):
        du.draw_sub_canvas(np.zeros((4, 4), np.uint8), blank())
    with pytest.raises(ValueError, match="no '!'"):
        du.draw_str((0, 0), (20, 12), RED, blank(), "GO!")
    with pytest.raises(ValueError, match="one character"):
        du.draw_letter((0, 0), (20, 12), RED, blank(), "GO")
