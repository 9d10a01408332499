"""MineSweeper: what section 12 says of it, and its pictures read back from the pixels."""

import numpy as np
import pytest
from families.minesweeper import (
    CANVAS,
    CURSOR,
    LIGHT,
    LINES,
    MINES,
    NUMBERS,
    OPEN,
    SHADOW,
    SIZES,
    around,
    numbers,
)
from harness import colors_of, facts, frames, ids_of, resets, same_pictures, split_id, states_met, step, take

from popgym_arcade.environments.draw_utils import draw_digit

IDS = ids_of("MineSweeper")
BOARD = {128: ((94, 21), (92, 13), (90, 9)), 256: ((186, 44), (182, 28), (186, 21))}  # board, cell in px
DIGIT = {9: 5, 13: 9, 21: 15, 28: 20, 44: 30}  # side of a digit by that of the cell
SCORE_RIGHT = {128: 86, 256: 172}


def fresh(env_id, count, **values):
    """Copies of one fresh state, in the middle of an episode, with some fields changed."""
    state = take(resets(env_id, 1), np.zeros(count, int)).replace(time=np.full(count, 3, np.int32))
    types = {name: kind for name, (_, kind) in facts(env_id)[0].fields(0).items()}
    shapes = {name: getattr(state, name).shape for name in values}
    return state.replace(
        **{name: np.broadcast_to(np.asarray(value, types[name]), shapes[name]) for name, value in values.items()}
    )


def cells_of(env_id, obs_size):
    """(y, x, rows, columns) of each cell on the screen."""
    level = split_id(env_id)[1]
    board, cell = BOARD[obs_size][level]
    first = (obs_size - board) // 2 + 2
    for y, x in np.ndindex(SIZES[level], SIZES[level]):
        top, left = first + y * (cell + 2), first + x * (cell + 2)
        yield y, x, slice(top, top + cell), slice(left, left + cell)


def count(picture, color):
    return int((picture == color).all(-1).sum())


def digit_dots(side):
    """bool[10, side, side]"""
    black = np.zeros((side, side, 3), np.uint8)
    return np.stack([draw_digit((0, 0), (side, side), (1, 1, 1), black, digit)[..., 0] == 1 for digit in range(10)])


def read(inside, dots):
    """The digit that a cell shows, or None; anything else that is white fails."""
    white = (inside == NUMBERS).all(-1)
    if not white.any():
        return None
    side = dots.shape[1]
    left = (len(white) - side) // 2
    middle = white[left : left + side, left : left + side]
    assert middle.sum() == white.sum(), "a digit sticks out of its place"
    (found,) = np.flatnonzero((middle == dots).all((1, 2)))
    return int(found)


# Section 12


@pytest.mark.parametrize("env_id", IDS)
def test_repeats_end_the_episode_at_half_the_cells(env_id):
    """(There: one repeat later, so the return goes down to -1.054/-1.022/-1.013.)"""
    n = SIZES[split_id(env_id)[1]]
    repeats = np.arange(n**2 // 2)
    state = fresh(env_id, len(repeats), revealed=True, mines=False, repeats=repeats)
    result = step(env_id, state, 4)
    np.testing.assert_array_equal(result.final_state.repeats, repeats + 1)
    np.testing.assert_array_equal(result.terminated, repeats == n**2 // 2 - 1)
    np.testing.assert_allclose(result.reward, -2 / n**2, rtol=1e-6)
    assert result.reward.astype(np.float64).sum() == pytest.approx(-1, abs=1e-5)


@pytest.mark.parametrize("env_id", IDS)
def test_the_cursor_starts_in_every_row_and_column(env_id):
    """(There: never in the last of either.)"""
    n = SIZES[split_id(env_id)[1]]
    states = resets(env_id, 10_000)
    assert len(set(zip(states.x.tolist(), states.y.tolist(), strict=True))) == n * n


@pytest.mark.parametrize("env_id", IDS)
def test_fire_on_the_last_permitted_step_is_truncated(env_id):
    """A new cell, and one revealed before. (There: no flag.) The last cell, a mine and the last repeat terminate."""
    level = split_id(env_id)[1]
    n, safe = SIZES[level], SIZES[level] ** 2 - MINES[level]
    state = fresh(env_id, 5, time=2 * n**2 - 1, score=[0, 1, safe - 1, 0, 1], repeats=[0, 0, 0, 0, n**2 // 2 - 1])
    cursor = around(level, state, 0)
    mined = np.array([False, False, False, True, False])[:, None, None]
    known = np.array([False, True, False, False, True])[:, None, None]
    result = step(env_id, state.replace(mines=cursor & mined, revealed=cursor & known), 4)
    np.testing.assert_array_equal(result.truncated, [True, True, False, False, False])
    np.testing.assert_array_equal(result.terminated, [False, False, True, True, True])
    np.testing.assert_allclose(result.reward, [1 / safe, -2 / n**2, 1 / safe, 0, -2 / n**2], rtol=1e-6)
    assert (result.final_state.time == 2 * n**2).all() and (result.state.time == 0).all()


@pytest.mark.parametrize("env_id", IDS)
def test_arrays_are_indexed_row_first(env_id):
    """A mine in column 3 of row 1 is at [1, 3]. (There: [3, 1].)"""
    state = fresh(env_id, 1, x=3, y=1, mines=False, revealed=False)
    mines = state.mines.copy()
    mines[0, 1, 3] = True
    result = step(env_id, state.replace(mines=mines), 4)
    assert result.terminated[0] and result.reward[0] == 0 and (result.final_state.revealed == mines).all()
    assert result.final_state.score[0] == state.score[0], "a mine is no safe cell"
    assert step(env_id, state.replace(mines=mines.transpose(0, 2, 1)), 4).reward[0] > 0


# Pictures


@pytest.mark.parametrize("obs_size", [128, 256])
@pytest.mark.parametrize("env_id", IDS)
def test_the_board_can_be_read_from_the_pixels(env_id, obs_size):
    """Cell by cell: each number, and the cursor around its cell, in both twins; the lines are whole."""
    level = split_id(env_id)[1]
    n = SIZES[level]
    board, cell = BOARD[obs_size][level]
    rng = np.random.default_rng(level)
    states = states_met(env_id, 40)
    # Half of them with more mines and more cells revealed, so that all numbers occur
    wild = (np.arange(40) % 2 == 1)[:, None, None]
    mines = rng.random(states.mines.shape) < np.linspace(0, 1, 40)[:, None, None]
    states = states.replace(
        time=np.maximum(states.time, 1),
        mines=np.where(wild, mines, states.mines),
        revealed=np.where(wild, rng.random(mines.shape) < 0.6, states.revealed),
        # some in the last column
        x=np.where(np.arange(40) % 5 == 0, n - 1, states.x).astype(np.int32),
    )
    dots, corner = digit_dots(DIGIT[cell]), (obs_size - board) // 2
    seen = {False: set(), True: set()}
    for partial in (False, True):
        for i, picture in enumerate(frames(env_id, states, partial, obs_size)):
            expected = numbers(states.mines[i])
            for edge in (corner, corner + 1, corner + board - 2, corner + board - 1):
                assert (picture[edge, corner : corner + board] == LINES).all()
                assert (picture[corner : corner + board, edge] == LINES).all()
            assert (picture[corner - 1, corner : corner + board] == CANVAS).all()
            for y, x, rows, columns in cells_of(env_id, obs_size):
                inside = picture[rows, columns]
                cursor = (y, x) == (states.y[i], states.x[i])
                number = expected[y, x] if states.revealed[i, y, x] and (cursor or not partial) else None
                assert read(inside, dots) == number
                seen[cursor].add(number)
                edges = np.concatenate([inside[0], inside[-1], inside[:, 0], inside[:, -1]])
                rim = {CURSOR} if cursor else {OPEN} if number is not None else {LIGHT, SHADOW}
                assert colors_of(edges[None]) == rim, "the frame of the cursor"
    assert seen[False] == {None, *range(10)} and {None, 0} <= seen[True] and len(seen[True]) >= 6


@pytest.mark.parametrize("obs_size", [128, 256])
@pytest.mark.parametrize("env_id", IDS)
def test_a_digit_has_one_picture_everywhere(env_id, obs_size):
    """In every cell, with and without the cursor, in both twins, within the cell. (There: two sizes, one too large.)"""
    level = split_id(env_id)[1]
    n = SIZES[level]
    _, cell = BOARD[obs_size][level]
    at = np.arange(n * n)
    for mined in (False, True):
        states = fresh(env_id, n * n, x=at % n, y=at // n, mines=mined, revealed=True)
        pieces = {}
        full, partial = (frames(env_id, states, twin, obs_size) for twin in (False, True))
        for i, (y, x, rows, columns) in enumerate(cells_of(env_id, obs_size)):
            number = numbers(states.mines[0])[y, x]
            for picture in (full[i], full[i - 1], partial[i]):
                white = (picture[rows, columns] == NUMBERS).all(-1)
                pieces.setdefault(number, set()).add(white.tobytes())
                assert not white[[0, -1]].any() and not white[:, [0, -1]].any()
        assert all(len(piece) == 1 for piece in pieces.values())
        assert len(set.union(*pieces.values())) == len(pieces) == (3 if mined else 1)
    assert DIGIT[cell] < cell


@pytest.mark.parametrize("env_id", IDS)
def test_a_covered_cell_looks_unlike_one_with_no_mine_around(env_id):
    states = fresh(env_id, 2, mines=False, revealed=[[[False]], [[True]]])
    for twin in (False, True):
        covered, revealed = frames(env_id, states, twin)
        assert count(revealed, NUMBERS) > 0 == count(covered, NUMBERS)


@pytest.mark.parametrize("obs_size", [128, 256])
@pytest.mark.parametrize("env_id", IDS)
def test_every_number_of_repeats_and_safe_cells_has_its_own_picture(env_id, obs_size):
    """In both twins, right of the score's box and in it; nothing else of the frame moves. (There: no gauge.)"""
    level = split_id(env_id)[1]
    n, safe = SIZES[level], SIZES[level] ** 2 - MINES[level]
    width = SCORE_RIGHT[obs_size]
    for partial in (False, True):
        total = n**2 // 2 + 1
        pictures = frames(env_id, fresh(env_id, total, repeats=np.arange(total)), partial, obs_size)
        gauge = np.ascontiguousarray(pictures[:, : 15 * obs_size // 128, width:])
        assert len({picture.tobytes() for picture in gauge}) == total
        assert (gauge[:, :, -3:] == CANVAS).all() and all(count(picture, CURSOR) > 0 for picture in gauge)
        pictures[:, : 15 * obs_size // 128, width:] = 0
        assert same_pictures(pictures, pictures[:1]).all()
        pictures = frames(env_id, fresh(env_id, safe + 1, score=np.arange(safe + 1)), partial, obs_size)
        assert len({picture[:, :width].tobytes() for picture in pictures}) == safe + 1
