"""Breakout: the lines of "Differences from popgym-arcade 0.0.7" that name it, MinAtar's rules, and its pictures."""

import jax
import numpy as np
import pytest
from families.base import FIRE, LEFT, RIGHT, UP
from families.breakout import (
    BALL,
    BOARD,
    BRICKS,
    CANVAS,
    COLUMNS,
    LIMIT,
    PADDLE,
    ROWS,
    SCORE,
    STRIKE,
    TRAIL,
    WIDTHS,
    played,
    possible,
)
from harness import (
    TWINS,
    expert_games,
    expert_play,
    frames,
    ids_of,
    join,
    only_usually,
    play_games,
    random_play,
    resets,
    same_pictures,
    size,
    split_id,
    states_met,
    step,
    take,
)

from popgym_arcade.environments.draw_utils import draw_number

IDS = ids_of("Breakout")
SIZES = (128, 256)
CORNER = {128: 14, 256: 28}
SCORE_BOX = {128: ((43, 1), (85, 15)), 256: ((86, 2), (171, 30))}
UP_LEFT, UP_RIGHT, DOWN_RIGHT, DOWN_LEFT = range(4)


def width_of(env_id):
    return WIDTHS[split_id(env_id)[1]]


def wall(*cells):
    """Only these bricks (row, column)."""
    bricks = np.zeros((ROWS, COLUMNS), bool)
    for cell in cells:
        bricks[cell] = True
    return bricks


def situation(env_id, ball, direction, paddle=0, bricks=None, strike=False, time=50, last=None):
    """A batch of one state. Without `bricks` there is one in a corner, out of the way."""
    bricks = wall((1, 9)) if bricks is None else bricks
    last = ball if last is None else last
    numbers = {
        "ball_y": ball[0],
        "ball_x": ball[1],
        "ball_dir": direction,
        "paddle_x": paddle,
        "last_y": last[0],
        "last_x": last[1],
        "time": time,
        "score": 60 - bricks.sum(),
    }
    return take(resets(env_id, 1), slice(0, 1)).replace(
        bricks=bricks[None],
        strike=np.array([strike]),
        **{name: np.array([value], np.int32) for name, value in numbers.items()},
    )


def ball_of(result):
    state = result.final_state
    return (state.ball_y[0], state.ball_x[0]), state.ball_dir[0]


# The rules


@pytest.mark.parametrize("env_id", IDS)
def test_a_brick_touched_right_after_another_stays(env_id):
    """The ball passes it, nothing is paid, and `strike` stays set. (There: it disappears without pay.)"""
    bricks = wall((6, 4), (5, 4), (4, 3))
    first = step(env_id, situation(env_id, (7, 5), UP_LEFT, bricks=bricks), UP)
    assert first.reward[0] == pytest.approx(0.0083333, abs=1e-6) and first.final_state.strike.all()
    assert not first.final_state.bricks[0, 6, 4] and ball_of(first) == ((7, 4), DOWN_LEFT)

    second = step(env_id, situation(env_id, (6, 5), UP_LEFT, bricks=bricks, strike=True), UP)
    assert second.reward == 0 and second.final_state.strike.all() and second.final_state.score == 57
    np.testing.assert_array_equal(second.final_state.bricks[0], bricks)
    assert ball_of(second) == ((5, 4), UP_LEFT)
    third = step(env_id, second.state, UP)  # still a contact in a row
    np.testing.assert_array_equal(third.final_state.bricks[0], bricks)
    assert third.reward == 0 and third.final_state.strike.all() and ball_of(third) == ((4, 3), UP_LEFT)
    assert not step(env_id, third.state, UP).final_state.strike.any()


@pytest.mark.parametrize("env_id", IDS)
def test_no_brick_goes_unpaid(env_id):
    """In random and in expert play; a cleared board is worth 1. (There: 3 to 6 bricks a game go unpaid.)"""

    def gone_and_paid(before, result):
        left = result.final_state.bricks.sum((-1, -2))
        return before.bricks.sum((-1, -2)) - left, result.reward + np.where(result.terminated, left / 60, 0) > 1e-3

    at_random = random_play(env_id)
    gone, paid = gone_and_paid(at_random.before, at_random)
    np.testing.assert_array_equal(gone, paid)
    assert gone.sum() > 1000
    met = expert_play(env_id).met
    met = take(met, met.strike)
    result = step(env_id, met, UP)
    gone, paid = gone_and_paid(met, result)
    np.testing.assert_array_equal(gone, paid)
    assert result.final_state.strike.sum() > 20, "hardly a second contact in a row"
    result = expert_play(env_id)
    cleared = [game.name == "clears the board" for game in expert_games(env_id)]
    assert result.value[cleared] == pytest.approx(1, abs=1e-5) and result.terminated[cleared].all()


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", IDS)
def test_the_paddle_starts_on_the_board(env_id, obs_size):
    """(There: on Easy its last column is beyond the wall.)"""
    width = width_of(env_id)
    fresh = resets(env_id, 64)
    assert (fresh.paddle_x == min(5, 10 - width)).all() and (fresh.paddle_x + width <= 10).all()
    scale, corner = obs_size // 128, CORNER[obs_size]
    picture = frames(env_id, take(fresh, slice(0, 1)), True, obs_size)[0]
    floor = picture[corner + 19 * 5 * scale : corner + 100 * scale]
    assert (floor == PADDLE).all(-1).sum() == width * 10 * 5 * scale**2
    assert (floor[:, : corner + fresh.paddle_x[0] * 10 * scale] != BALL).any(-1).all()


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", IDS)
def test_the_first_partial_frame_shows_all(env_id, obs_size):
    """Direction and a falling ball, too. (There: it is like all the others.)"""
    for direction in range(4):
        first = situation(env_id, (10, 4), direction, time=0)
        later = first.replace(time=first.time + 1)
        full = frames(env_id, first, False, obs_size)
        assert same_pictures(full, frames(env_id, first, True, obs_size)).all()
        assert not same_pictures(full, frames(env_id, later, True, obs_size)).any()


@pytest.mark.parametrize("env_id", IDS)
def test_a_time_out_is_no_termination(env_id):
    """Exclusive, and exact on the last permitted step. (There: `terminated` is true on a time-out, too.)"""
    bricks = wall((1, 0))
    flying = situation(env_id, (10, 4), UP_RIGHT, time=LIMIT - 1)
    result = step(env_id, flying, UP)
    assert result.truncated.all() and not result.terminated.any() and result.reward == 0
    for time, ends in ((LIMIT - 1, True), (LIMIT - 2, False)):
        assert (step(env_id, flying.replace(time=np.array([time], np.int32)), UP).truncated == ends).all()
        last_brick = step(env_id, situation(env_id, (2, 1), UP_LEFT, bricks=bricks, time=time), UP)
        assert last_brick.terminated.all() and not last_brick.truncated.any()
        assert last_brick.reward[0] == pytest.approx(0.025)
        paddle = 10 - width_of(env_id)
        lost = step(env_id, situation(env_id, (18, 1), DOWN_LEFT, paddle, bricks, time=time), UP)
        assert lost.terminated.all() and not lost.truncated.any()
        assert lost.reward[0] == pytest.approx(-1 / 60)


@pytest.mark.parametrize("env_id", IDS)
def test_experts_end_in_all_three_ways(env_id):
    """Cleared, lost, and out of time: the model's predictions of each are confirmed by test_bounds.py."""
    level = split_id(env_id)[1]
    result, names = expert_play(env_id), np.array([game.name for game in expert_games(env_id)])
    edges = names == "uses the edges"
    assert result.truncated[edges].any() and result.terminated[edges].any()
    assert (result.length[result.truncated] == LIMIT).all()
    assert (result.value[result.truncated] < 1).all() and (result.value[result.truncated] > 0.8).all()
    assert result.length[names == "lets the ball fall after a brick"].tolist() == [19, 19]
    # One step fewer, and the last brick would stand.
    plan, value, model = played(level, 0, "follows the ball")
    assert not model.bricks
    state = take(resets(env_id, 64), np.flatnonzero(resets(env_id, 64).ball_dir == 0)[:1])
    short = play_games(env_id, state, np.array(plan)[None], limit=len(plan) - 1)
    assert short.truncated.all() and not short.terminated.any() and short.value[0] < 1 - 0.008


@pytest.mark.parametrize("env_id", IDS)
def test_bricks_pay_by_their_row(env_id):
    pays = (0.025, 0.0216667, 0.0183333, 0.015, 0.0116667, 0.0083333)
    assert sum(pays) * 10 == pytest.approx(1, abs=1e-5)
    for row, pay in enumerate(pays, start=1):
        from_below = step(env_id, situation(env_id, (row + 1, 3), UP_RIGHT, bricks=wall((row, 4), (6, 9))), UP)
        assert from_below.reward[0] == pytest.approx(pay, abs=1e-6)
        assert ball_of(from_below) == ((row + 1, 4), DOWN_RIGHT) and from_below.final_state.score == 59
        from_above = step(env_id, situation(env_id, (row - 1, 3), DOWN_RIGHT, bricks=wall((row, 4), (6, 9))), UP)
        assert from_above.reward[0] == pytest.approx(pay, abs=1e-6)
        assert ball_of(from_above) == ((row - 1, 4), UP_RIGHT)


@pytest.mark.parametrize("env_id", IDS)
def test_walls_and_ceiling(env_id):
    """At a side wall the ball stays in its column; at the ceiling it stays in row 0; in a corner it does both."""
    for ball, direction, expected in (
        ((13, 0), UP_LEFT, ((12, 0), UP_RIGHT)),
        ((13, 9), UP_RIGHT, ((12, 9), UP_LEFT)),
        ((10, 9), DOWN_RIGHT, ((11, 9), DOWN_LEFT)),
        ((10, 0), DOWN_LEFT, ((11, 0), DOWN_RIGHT)),
        ((0, 4), UP_LEFT, ((0, 3), DOWN_LEFT)),
        ((0, 4), UP_RIGHT, ((0, 5), DOWN_RIGHT)),
        ((0, 0), UP_LEFT, ((0, 0), DOWN_RIGHT)),
        ((0, 9), UP_RIGHT, ((0, 9), DOWN_LEFT)),
        ((10, 4), DOWN_RIGHT, ((11, 5), DOWN_RIGHT)),
    ):
        result = step(env_id, situation(env_id, ball, direction, bricks=wall((4, 4))), UP)
        assert ball_of(result) == expected and result.reward == 0
        assert (result.final_state.last_y[0], result.final_state.last_x[0]) == ball


@pytest.mark.parametrize("env_id", IDS)
def test_the_paddle_catches(env_id):
    """Under the old column: up. Under the new one only: back where it came from. Under neither: lost."""
    width = width_of(env_id)
    room = 10 - width
    for ball, direction, paddle, expected in (
        ((18, 3), DOWN_RIGHT, 1, ((18, 4), UP_RIGHT)),
        ((18, 3), DOWN_LEFT, 3, ((18, 2), UP_LEFT)),  # the old column, on the paddle's left edge
        ((18, 3), DOWN_RIGHT, 4, ((18, 4), UP_LEFT)),  # the new column only
        ((18, width), DOWN_LEFT, 0, ((18, width - 1), UP_RIGHT)),
        ((18, 0), DOWN_LEFT, 0, ((18, 0), UP_RIGHT)),  # in the corner
        ((18, 9), DOWN_RIGHT, room, ((18, 9), UP_LEFT)),
        ((18, width + 1), DOWN_LEFT, 0, None),
        ((18, room - 2), DOWN_RIGHT, room, None),
        ((18, width), DOWN_RIGHT, 0, None),
    ):
        if paddle > room:
            continue
        result = step(env_id, situation(env_id, ball, direction, paddle, wall((1, 1), (2, 2), (3, 3))), FIRE)
        if expected:
            assert ball_of(result) == expected and result.reward == 0 and not result.terminated.any()
        else:
            assert result.terminated.all() and result.reward[0] == pytest.approx(-3 / 60)
            assert result.final_state.ball_y == 19


@pytest.mark.parametrize("env_id", IDS)
def test_the_paddle_moves_before_the_ball_and_stays_on_the_board(env_id):
    width = width_of(env_id)
    room = 10 - width
    for paddle, action, moved in ((0, LEFT, 0), (0, RIGHT, 1), (room, RIGHT, room), (room, LEFT, room - 1), (1, UP, 1)):
        result = step(env_id, situation(env_id, (10, 5), UP_LEFT, paddle), action)
        assert result.final_state.paddle_x == moved
    # Over column `width`, moving right: caught by a paddle that has just arrived, lost without its move.
    at = situation(env_id, (18, width), DOWN_RIGHT, 0)
    assert step(env_id, at, UP).terminated.all() and not step(env_id, at, RIGHT).terminated.any()


# The pictures


def cells_of(picture, obs_size):
    """The board cell by cell at the scale of the small frame, [20, 10, 5, 10, 3]; the large one shows no more."""
    scale, corner = obs_size // 128, CORNER[obs_size]
    board = picture[corner : corner + 100 * scale, corner : corner + 100 * scale]
    small = board[::scale, ::scale]
    np.testing.assert_array_equal(board, small.repeat(scale, 0).repeat(scale, 1))
    return small.reshape(20, 5, 10, 10, 3).swapaxes(1, 2)


def has(cell, color):
    return bool((cell == color).all(-1).any())


def read(picture, obs_size):
    """What a picture says, by colours alone."""
    cells = cells_of(picture, obs_size)
    seen = {"bricks": wall(), "ball": None, "direction": None, "strike": False, "trail": None}
    paddle = [x for x in range(COLUMNS) if (cells[19, x] == PADDLE).all()]
    assert paddle == list(range(paddle[0], paddle[-1] + 1))
    seen["paddle"] = (paddle[0], len(paddle))
    for y in range(19):
        for x in range(COLUMNS):
            cell = cells[y, x]
            color = BRICKS[y - 1] if 1 <= y <= 6 else None
            struck, corners = has(cell, STRIKE), [cell[1, 1], cell[1, -3], cell[-2, -3], cell[-2, 1]]
            ground = cell[0, 0]
            if struck or (cell[2] == BALL).all():  # the ball fills its cell but for the notch
                assert seen["ball"] is None
                seen["ball"], seen["strike"] = (y, x), struck
                notches = [way for way in range(4) if tuple(corners[way]) not in (BALL, STRIKE)]
                if notches:
                    (seen["direction"],) = notches
                    ground = corners[notches[0]]
                else:
                    ground = np.array(BOARD)
            elif color and (cell[0, 2] == BALL).all():  # between the ends of a brick
                assert seen["ball"] is None
                seen["ball"] = (y, x)
            elif has(cell, TRAIL):
                assert seen["trail"] is None
                seen["trail"] = (y, x)
            assert color is not None or tuple(ground) == BOARD
            seen["bricks"][y, x] = color is not None and tuple(ground) == color
    return seen


def states_to_read(env_id):
    """From play, among them some in which the ball or its trail is on a brick, and some at the first step."""
    pool = join(states_met(env_id, 40), expert_play(env_id).met)
    rows = np.arange(size(pool))
    ball_on = pool.bricks[rows, pool.ball_y, pool.ball_x]
    trail_on = pool.bricks[rows, pool.last_y, pool.last_x]
    assert ball_on.any() and trail_on.any(), "no ball has passed a brick"
    some = np.concatenate([np.flatnonzero(group)[:: max(1, group.sum() // 12)][:12] for group in (ball_on, trail_on)])
    spread = rows[40 :: size(pool) // 40]
    states = take(pool, np.concatenate([rows[:40], some, spread]))
    return states.replace(time=np.maximum(states.time, 1))


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", only_usually(IDS[:1], IDS))
def test_everything_can_be_read_from_the_pixels(env_id, obs_size):
    """Cell by cell: bricks (under ball and trail, too), ball, direction, strike, trail and paddle, nothing else."""
    states = states_to_read(env_id)
    width = width_of(env_id)
    full, partial = frames(env_id, states, False, obs_size), frames(env_id, states, True, obs_size)
    for i in range(size(states)):
        state = take(states, i)
        ball, last = (state.ball_y, state.ball_x), (state.last_y, state.last_x)
        seen = read(full[i], obs_size)
        np.testing.assert_array_equal(seen.pop("bricks"), state.bricks)
        assert seen == {
            "ball": ball,
            "direction": state.ball_dir,
            "strike": state.strike,
            "trail": None if last == ball else last,
            "paddle": (state.paddle_x, width),
        }
        seen = read(partial[i], obs_size)
        np.testing.assert_array_equal(seen.pop("bricks"), state.bricks)
        assert seen == {
            "ball": ball if state.ball_dir < 2 else None,
            "direction": None,
            "strike": False,
            "trail": None,
            "paddle": (state.paddle_x, width),
        }


@pytest.mark.parametrize("obs_size", SIZES)
def test_all_forms_of_the_ball_differ(obs_size):
    """In a cell of each row of bricks: four directions, after a brick or not, on a brick or not, trail, paddle row."""
    env_id = IDS[0]
    for row in range(1, 7):
        batch = []
        for under in (False, True):
            bricks = wall((1, 9), *([(row, 4)] if under else []))
            for direction in range(4):
                for strike in (False, True):
                    batch.append(situation(env_id, (row, 4), direction, bricks=bricks, strike=strike))
            batch.append(situation(env_id, (15, 4), 0, bricks=bricks, last=(row, 4)))
            batch.append(situation(env_id, (15, 4), 0, bricks=bricks))
        states = jax.tree.map(lambda *leaves: np.concatenate(leaves), *batch)
        states = take(states, possible(0, states))
        assert size(states) == 16  # a ball on a brick has touched it
        pieces = [cells_of(picture, obs_size)[row, 4] for picture in frames(env_id, states, False, obs_size)]
        distances = [(one != other).any(-1).sum() for i, one in enumerate(pieces) for other in pieces[:i]]
        assert min(distances) >= 6  # of the 50 pixels in a cell of the small frame


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", IDS)
def test_the_board_is_where_the_layout_says(env_id, obs_size):
    """Black, in a frame of canvas; bricks in rows 1 to 6 with a dark line between any two."""
    scale, corner = obs_size // 128, CORNER[obs_size]
    picture = frames(env_id, take(resets(env_id, 1), slice(0, 1)), False, obs_size)[0]
    side = 100 * scale
    for y, x in ((corner, corner), (corner, corner + side - 1), (corner + side - 1, corner)):
        assert (picture[y, x] == BOARD).all()
    assert (picture[corner : corner + side, corner - 1] == CANVAS).all()
    assert (picture[corner : corner + side, corner + side] == CANVAS).all()
    assert (picture[corner + side, corner : corner + side] == CANVAS).all()
    cells = cells_of(picture, obs_size)
    for row in range(ROWS):
        for column in range(COLUMNS):
            bare = np.full((5, 10, 3), BOARD, np.uint8)
            if 1 <= row <= 6:
                bare[:4, :9] = BRICKS[row - 1]
            if row not in (13, 19):  # ball, paddle
                np.testing.assert_array_equal(cells[row, column], bare)


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", IDS)
def test_the_score_is_written_as_a_number(env_id, obs_size):
    states = take(resets(env_id, 1), np.zeros(61, int))
    states = states.replace(score=np.arange(61, dtype=np.int32), time=np.full(61, 9, np.int32))
    (x0, y0), (x1, y1) = SCORE_BOX[obs_size]
    y1 = min(y1, CORNER[obs_size])  # the board begins within the box, below the digits
    canvas = np.full((obs_size, obs_size, 3), CANVAS, np.uint8)
    for twin in TWINS.values():
        pictures = frames(env_id, states, twin, obs_size)
        for score, picture in enumerate(pictures):
            expected = draw_number(*SCORE_BOX[obs_size], SCORE, canvas, score)
            np.testing.assert_array_equal(picture[y0:y1, x0:x1], expected[y0:y1, x0:x1])
            assert not (expected[y1:] == SCORE).all(-1).any(), "the board cuts the digits off"
        pictures[:, y0:y1, x0:x1] = 0
        assert same_pictures(pictures, pictures[:1]).all(), "the score is drawn outside its box"


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", IDS)
def test_a_lost_ball_is_seen_beside_the_paddle(env_id, obs_size):
    """In final_observation, on the floor, of its own form."""
    width = width_of(env_id)
    result = step(env_id, situation(env_id, (18, width + 1), DOWN_RIGHT, 0), UP)
    assert result.terminated.all()
    full, partial = (frames(env_id, result.final_state, twin, obs_size)[0] for twin in (False, True))
    cells = cells_of(full, obs_size)
    assert has(cells[19, width + 2], BALL) and has(cells[19, width + 2], BOARD)
    assert read(full, obs_size)["paddle"] == read(partial, obs_size)["paddle"] == (0, width)
    assert not has(cells_of(partial, obs_size)[19, width + 2], BALL)
