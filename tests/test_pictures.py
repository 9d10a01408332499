"""What is where in a picture: the layout of the specification, read back from the pixels."""

import numpy as np
import pytest
from families import cartpole, count_recall, navigator
from harness import (
    IDS,
    TWINS,
    colors_of,
    facts,
    frames,
    ids_of,
    only_usually,
    resets,
    same_pictures,
    split_id,
    states_met,
    take,
)

SIZES = (128, 256)
SCORE_BOX = {128: (43, 1, 85, 15), 256: (86, 2, 171, 30)}  # x0, y0, x1, y1
NAME_TOP = {128: 115, 256: 231}
NAVIGATOR_BOARD = {128: ((90, 9), (92, 7), (98, 6)), 256: ((186, 21), (192, 17), (182, 13))}  # board, cell in px


def where(picture, color):
    """Rows and columns of all pixels of a colour."""
    return np.nonzero((picture == color).all(-1))


def extent(picture, color):
    rows, columns = where(picture, color)
    return columns.min(), rows.min(), columns.max(), rows.max()


@pytest.mark.parametrize("obs_size", only_usually([128], SIZES))
@pytest.mark.parametrize("env_id", IDS)
def test_score_and_name_are_in_their_places(env_id, obs_size):
    """The score in its box, centred; the name in its strip, centred, not cut off; the same in both twins."""
    family, _ = facts(env_id)
    states = states_met(env_id, 20)
    for twin in TWINS.values():
        for picture in frames(env_id, states, twin, obs_size):
            left, top, right, bottom = extent(picture, family.score_color)
            x0, y0, x1, y1 = SCORE_BOX[obs_size]
            assert x0 <= left and right <= x1 and y0 <= top and bottom <= y1
            strip = picture[NAME_TOP[obs_size] :]
            left, top, right, bottom = extent(strip, family.name_color)
            assert left >= 1 and right <= obs_size - 2, "the name touches the border"
            assert abs(left - (obs_size - 1 - right)) <= 0.05 * obs_size, "the name is not centred"
            assert bottom - top + 1 >= 5 * obs_size // 128, "letters too small to read"


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", ids_of("CartPole") + ids_of("NoisyCartPole"))
def test_every_score_has_its_own_picture(env_id, obs_size):
    """The score is the time: up to three digits, in the box, all different."""
    limit = facts(env_id)[0].limits[facts(env_id)[1]]
    state = take(resets(env_id, 1), np.zeros(limit + 1, int)).replace(time=np.arange(limit + 1, dtype=np.int32))
    pictures = frames(env_id, state, False, obs_size)
    x0, y0, x1, y1 = SCORE_BOX[obs_size]
    box = np.ascontiguousarray(pictures[:, y0 : y1 + 1, x0 : x1 + 1])
    assert len({picture.tobytes() for picture in box}) == limit + 1
    pictures[:, y0 : y1 + 1, x0 : x1 + 1] = 0
    assert same_pictures(pictures, pictures[:1]).all(), "the score is drawn outside its box"


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", ids_of("Navigator"))
def test_navigator_can_be_read_from_the_pixels(env_id, obs_size):
    """Cell by cell, by colour: TNT, treasure and cursor are where the state has them, nowhere else."""
    level = split_id(env_id)[1]
    n, (board, cell) = navigator.SIZES[level], NAVIGATOR_BOARD[obs_size][level]
    states = states_met(env_id, 60)
    first = (obs_size - board) // 2 + 2
    # Players also on treasures
    states = states.replace(
        x=np.where(np.arange(60) % 3 == 1, states.treasure_x, states.x).astype(np.int32),
        y=np.where(np.arange(60) % 3 == 1, states.treasure_y, states.y).astype(np.int32),
    )
    pictures = frames(env_id, states, False, obs_size)
    for i, picture in enumerate(pictures):
        corner = (obs_size - board) // 2
        assert (picture[corner, corner : corner + board] == navigator.LINES).all(), "the top line of the board"
        assert (picture[corner + board - 1, corner : corner + board] == navigator.LINES).all(), "the bottom line"
        assert (picture[corner - 1, corner : corner + board] == navigator.CANVAS).all(), "beyond the board"
        for y in range(n):
            for x in range(n):
                top, left = first + y * (cell + 2), first + x * (cell + 2)
                inside = picture[top : top + cell, left : left + cell]
                seen = colors_of(inside)
                assert (navigator.BOMB in seen) == states.tnt[i, y, x]
                assert (navigator.TREASURE in seen) == ((x, y) == (states.treasure_x[i], states.treasure_y[i]))
                if (x, y) == (states.x[i], states.y[i]):
                    assert len(where(inside, navigator.PLAYER)[0]) >= 8, "the player is hard to see"
                else:
                    assert navigator.PLAYER not in seen


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", ids_of("Navigator"))
def test_navigator_partial_grid_is_empty(env_id, obs_size):
    states = states_met(env_id, 40)
    states = states.replace(time=np.maximum(states.time, 1))
    pictures = frames(env_id, states, True, obs_size)
    for color in (navigator.BOMB, navigator.TREASURE):
        assert not (pictures == color).all(-1).any()


# CountRecall: places of the cards and of the counter

PLACES = {
    128: {"value card": (1, 1, 12, 20), "query card": (115, 1, 126, 20), "counter": (68, 1, 123, 15)},
    256: {"value card": (2, 2, 25, 41), "query card": (230, 2, 253, 41), "counter": (136, 2, 246, 30)},
}


def changed_box(one, other):
    """Smallest (left, top, right, bottom) that holds all pixels in which two pictures differ."""
    rows, columns = np.nonzero((one != other).any(-1))
    return columns.min(), rows.min(), columns.max(), rows.max()


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", ids_of("CountRecall"))
def test_cards_and_counter_are_in_their_places(env_id, obs_size):
    level = split_id(env_id)[1]
    states = states_met(env_id, 40)
    states = take(states, states.time > 0)
    altered = facts(env_id)[0].shown(level, states, np.random.default_rng(0))
    for twin in TWINS.values():
        plain = frames(env_id, states, twin, obs_size)
        for name, (x0, y0, x1, y1) in {**PLACES[obs_size], "score": SCORE_BOX[obs_size]}.items():
            for before, after in zip(plain, frames(env_id, altered[name], twin, obs_size), strict=True):
                left, top, right, bottom = changed_box(before, after)
                assert x0 <= left and right <= x1 and y0 <= top and bottom <= y1, name


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", ids_of("CountRecall"))
def test_the_history_has_a_place_for_every_card(env_id, obs_size):
    """Nine a row, one pitch apart, four different sprites; none cut off, none over another."""
    level = split_id(env_id)[1]
    n, types = count_recall.CARDS[level], count_recall.TYPES[level]
    pitch = 10 * obs_size // 128
    state = take(resets(env_id, 1), 0).replace(answered=np.int32(n - 1), time=np.int32(n))
    same = np.zeros((n, n), np.int8)
    other = same.copy()
    other[np.arange(n), np.arange(n)] = 1  # in state i, card i is another
    base = take(resets(env_id, 1), np.zeros(n, int)).replace(
        answered=np.full(n, n - 1, np.int32), time=np.full(n, n, np.int32)
    )
    plain = frames(env_id, base.replace(value_cards=same), False, obs_size)
    altered = frames(env_id, base.replace(value_cards=other), False, obs_size)
    boxes = [changed_box(before, after) for before, after in zip(plain[:-1], altered[:-1], strict=True)]
    left, top = boxes[0][:2]
    for i, box in enumerate(boxes):
        x, y = pitch * (i % 9), pitch * (i // 9)
        assert box == tuple(boxes[0] + np.array([x, y, x, y])), f"card {i}"
    assert boxes[0][2] - left < pitch and boxes[0][3] - top < pitch
    assert max(box[3] for box in boxes) < NAME_TOP[obs_size]
    # Each type has its own sprite.
    kinds = np.zeros((types, n), np.int8)
    kinds[:, 0] = np.arange(types)
    pictures = frames(env_id, take(base, slice(0, types)).replace(value_cards=kinds), False, obs_size)
    assert len({picture.tobytes() for picture in pictures}) == types
    # A history of a cards shows a sprites: card i appears when the answer i has been given.
    assert state.answered == n - 1
    grown = base.replace(answered=np.arange(n, dtype=np.int32), value_cards=same)
    pictures = frames(env_id, grown, False, obs_size)[:, :, : left + 9 * pitch]
    for i in range(n - 1):
        box = np.array(changed_box(pictures[i][top:], pictures[i + 1][top:]))
        x, y = left + pitch * (i % 9), top + pitch * (i // 9)
        assert x - 2 <= box[0] and box[2] < x + pitch and y - 2 <= box[1] + top and box[3] + top < y + pitch


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", ids_of("CountRecall"))
def test_a_bar_for_each_type_shortens_with_every_query_card(env_id, obs_size):
    """Answering a query shortens the bar of the next card's type, always by equally many pixels, down to none."""
    level = split_id(env_id)[1]
    n, types = count_recall.CARDS[level], count_recall.TYPES[level]
    base = take(resets(env_id, 1), np.zeros(n, int))
    states = base.replace(answered=np.arange(n, dtype=np.int32), time=np.full(n, n, np.int32))
    left, below_the_sign = (110, 38) if obs_size == 128 else (220, 76)
    strip = frames(env_id, states, False, obs_size)[:, below_the_sign : NAME_TOP[obs_size], left:]
    longest = -(-n // types)
    shrunk = {}
    for i in range(n - 1):
        x0, y0, x1, y1 = changed_box(strip[i], strip[i + 1])
        shrunk.setdefault(int(states.query_cards[i, i + 1]), []).append((x0, x1, y0, y1))
    assert len({boxes[0][:2] + (boxes[-1][2],) for boxes in shrunk.values()}) == types, "two types share a bar"
    for boxes in shrunk.values():
        assert len(boxes) >= longest - 2
        assert len({box[:2] for box in boxes}) == 1, "the bar moves sideways"
        heights = {y1 - y0 + 1 for _, _, y0, y1 in boxes}
        assert len(heights) == 1
        assert all(later[3] + 1 == box[2] for box, later in zip(boxes[:-1], boxes[1:], strict=True)), "not a bar"
    assert not (strip[-1] == count_recall.BORDER).all(-1).any(), "a bar is left when no card is to come"


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", ids_of("CountRecall"))
def test_after_the_last_answer_there_are_no_cards(env_id, obs_size):
    n = count_recall.CARDS[split_id(env_id)[1]]
    over = take(resets(env_id, 1), np.zeros(1, int)).replace(
        answered=np.full(1, n, np.int32), time=np.full(1, n, np.int32)
    )
    picture = frames(env_id, over, False, obs_size)[0]
    for name in ("value card", "query card"):
        x0, y0, x1, y1 = PLACES[obs_size][name]
        assert (picture[y0 : y1 + 1, x0 : x1 + 1] == count_recall.CANVAS).all(), name


# CartPole: shapes


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", ids_of("CartPole")[:1])
def test_cart_and_pole_are_drawn_to_scale(env_id, obs_size):
    scale = obs_size // 128
    board, width, height, top = 96 * scale, 32 * scale, 16 * scale, 48 * scale
    corner = (obs_size - board) // 2
    rng = np.random.default_rng(0)
    count = 200
    state = take(resets(env_id, 1), np.zeros(count, int))
    x = rng.uniform(-2.4, 2.4, count).astype(np.float32)
    theta = rng.uniform(-cartpole.ANGLE_LIMIT, cartpole.ANGLE_LIMIT, count).astype(np.float32)
    x[:2], theta[:2] = [-2.4, 2.4], [-cartpole.ANGLE_LIMIT, cartpole.ANGLE_LIMIT]
    pictures = frames(env_id, state.replace(x=x, theta=theta), False, obs_size)
    for i, picture in enumerate(pictures):
        left = x[i] * (board - width) / 4.8 + (board - width) / 2
        cart_left, cart_top, cart_right, cart_bottom = extent(picture, cartpole.CART_COLOR)
        if abs(left - round(left)) > 1e-3:  # else either side of the pixel's edge will do
            assert cart_left == corner + int(left)
        assert cart_right - cart_left == width - 1
        assert (cart_top, cart_bottom) == (corner + top, corner + top + height - 1)
        rows, columns = where(picture, cartpole.POLE_COLOR)
        # The tip is as far from the foot as the cart is wide, in the direction of theta (positive: to the right).
        foot = cart_left + (width - 1) / 2
        tip = columns[rows == rows.min()].mean() - foot
        assert tip == pytest.approx(width * np.sin(theta[i]), abs=2 * scale)
        assert cart_top - rows.min() == pytest.approx(width * np.cos(theta[i]), abs=height)


@pytest.mark.parametrize("env_id", ids_of("CartPole")[:1] + ids_of("NoisyCartPole")[:1])
def test_cart_and_pole_are_always_seen(env_id):
    """At the very ends of the permitted range, and where the noise carries the picture beyond them, too."""
    ends = np.array([(x, theta) for x in (-2.4, 2.4) for theta in (-cartpole.ANGLE_LIMIT, cartpole.ANGLE_LIMIT)])
    state = take(resets(env_id, 1), np.zeros(4, int))
    x, theta = ends.T.astype(np.float32)
    noise = np.sign(ends[:, [0, 0, 1, 1]]).astype(np.float32)
    for obs_size in SIZES:
        for noisy in (noise, np.zeros_like(noise)):
            for picture in frames(env_id, state.replace(x=x, theta=theta, noise=noisy), False, obs_size):
                for color in (cartpole.CART_COLOR, cartpole.POLE_COLOR):
                    assert len(where(picture, color)[0]) > 20


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", ids_of("CartPole")[:1])
def test_speeds_have_separate_places_inside_the_board(env_id, obs_size):
    """The picture of one speed covers no pixel of the other's, nor of cart and pole: all can always be read."""
    scale = obs_size // 128
    count = 60
    state = take(resets(env_id, 1), np.zeros(count, int)).replace(time=np.full(count, 3, np.int32))
    speeds = np.linspace(-4, 4, count, dtype=np.float32)
    ranges = {
        "x": np.linspace(-2.4, 2.4, count, dtype=np.float32),
        "theta": np.linspace(-0.209, 0.209, count, dtype=np.float32),
        "x_dot": speeds,
        "theta_dot": speeds,
    }
    touched = {}
    for name, values in ranges.items():
        pictures = frames(env_id, state.replace(**{name: values}), False, obs_size)
        touched[name] = (pictures != pictures[:1]).any(-1).any(0)
    shapes = touched["x"] | touched["theta"]
    assert not (touched["x_dot"] & touched["theta_dot"]).any()
    assert not (shapes & (touched["x_dot"] | touched["theta_dot"])).any()
    corner = 16 * scale
    for place in touched.values():
        rows, columns = np.nonzero(place)
        assert min(rows.min(), columns.min()) >= corner and max(rows.max(), columns.max()) < obs_size - corner
