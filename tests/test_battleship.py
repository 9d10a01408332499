"""BattleShip: what section 12 says of it, and its pictures read back from the pixels."""

import jax
import numpy as np
import pytest
from families import battleship
from families.battleship import CANVAS, CELLS, CURSOR, GROUND, LINES, SIZES, O, X, here, is_fleet
from harness import facts, frames, ids_of, make, only_usually, resets, same_pictures, split_id, states_met, step, take

IDS = ids_of("BattleShip")
BOARD = {128: ((90, 9), (92, 7), (98, 6)), 256: ((186, 21), (192, 17), (182, 13))}  # board, cell in px
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


# Section 12


@pytest.mark.parametrize("env_id", IDS)
def test_repeats_end_the_episode_at_half_the_cells(env_id):
    """(There: one repeat later, so the return goes down to -1.031/-1.020/-1.014.)"""
    n = SIZES[split_id(env_id)[1]]
    repeats = np.arange(n**2 // 2)
    state = fresh(env_id, len(repeats), fired=True, ships=False, repeats=repeats)
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
def test_a_shot_at_a_known_cell_on_the_last_permitted_step_is_a_truncation(env_id):
    """(There, in MineSweeper, no flag at all.) A last hit or the last repeat there is a termination."""
    n = SIZES[split_id(env_id)[1]]
    state = fresh(env_id, 4, time=2 * n**2 - 1, fired=False, score=[0, 11, 0, 0], repeats=[0, 0, 5, n**2 // 2 - 1])
    cursor = here(split_id(env_id)[1], state)
    fired = np.array([False, False, True, True])[:, None, None]
    result = step(env_id, state.replace(ships=cursor & ~fired, fired=cursor & fired), 4)
    np.testing.assert_array_equal(result.terminated, [False, True, False, True])
    np.testing.assert_array_equal(result.truncated, [True, False, True, False])
    np.testing.assert_allclose(result.reward, [1 / CELLS] * 2 + [-2 / n**2] * 2, rtol=1e-6)


@pytest.mark.parametrize("env_id", IDS)
def test_arrays_are_indexed_row_first(env_id):
    """A shot at column 5 of row 2 is at [2, 5]. (There: [5, 2].)"""
    state = fresh(env_id, 1, x=5, y=2, ships=False, fired=False)
    ships = state.ships.copy()
    ships[0, 2, 5] = True
    result = step(env_id, state.replace(ships=ships), 4)
    assert result.reward[0] == pytest.approx(1 / CELLS) and (result.final_state.fired == ships).all()
    assert step(env_id, state.replace(ships=ships.transpose(0, 2, 1)), 4).reward[0] == 0


# The fleet


@pytest.mark.parametrize("env_id", IDS)
def test_ships_lie_both_ways_may_touch_and_reach_the_border(env_id):
    states = resets(env_id, 2000)
    for length in (2, 3, 4):
        found = battleship.runs(states.ships, length)
        across, down = np.split(found.any(0), 2)
        assert across.all() and down.all(), f"no ship of {length} in some place"
    sides = battleship.neighbours(states.ships).sum(1)
    assert sides.min() == CELLS - 4 and sides.max() > CELLS - 4


@pytest.mark.parametrize("env_id", IDS)
def test_each_place_for_a_ship_belongs_to_as_many_random_numbers(env_id):
    """Each of the numbers 0..k-1 gives another one of the k places on free cells; k..2k-1 give the same again."""
    env, _ = make(env_id)
    n = SIZES[split_id(env_id)[1]]
    rng = np.random.default_rng(n)
    columns = 1 << np.arange(n, dtype=np.uint32)
    for length in (2, 3, 4):
        place = jax.jit(jax.vmap(lambda free, draw, length=length: env._ship(free, length, draw), in_axes=(None, 0)))
        cells = np.array(battleship.placements(n, length))
        for share in (0.0, 0.1, 0.4):
            taken = rng.random((n, n)) < share
            fitting = cells[~taken.reshape(-1)[cells].any(1)]
            free = (~taken @ columns).astype(np.uint32)
            rows = np.asarray(place(free, np.arange(2 * len(cells), dtype=np.uint32)))
            ships = (rows[:, :, None] & columns > 0).reshape(-1, n * n)
            found = [tuple(np.flatnonzero(ship)) for ship in ships]
            k = len(fitting)
            assert k > 1 and sorted(found[:k]) == sorted(map(tuple, fitting.tolist()))
            assert found[k : 2 * k] == found[:k]


def test_the_model_knows_a_fleet():
    """check_fresh refuses what is not four ships, and finds ships that touch."""

    def fleet(rows):
        return sum(1 << i for i, cell in enumerate("".join(rows)) if cell == "#")

    row = "." * 8
    assert is_fleet(8, fleet(["####.###", "##......", "###.....", *[row] * 5]))
    assert is_fleet(8, fleet(["####....", "####....", "####....", *[row] * 5]))
    assert not is_fleet(8, fleet(["####.###", "##......", "##.#....", *[row] * 5]))
    assert not is_fleet(8, fleet(["####.###", "##......", "##......", *[row] * 5]))
    assert not is_fleet(8, fleet(["##.##.##", "##.##.##", row, *[row] * 5]))


# Pictures


@pytest.mark.parametrize("obs_size", [128, 256])
@pytest.mark.parametrize("env_id", only_usually(IDS[:1], IDS))
def test_the_board_can_be_read_from_the_pixels(env_id, obs_size):
    """Cell by cell: X, O, nothing, and the cursor, in both twins; the lines are whole."""
    level = split_id(env_id)[1]
    board, _ = BOARD[obs_size][level]
    states = states_met(env_id, 40)
    states = states.replace(time=np.maximum(states.time, 1))
    # Cursors on all kinds of cells
    kinds = [states.ships & states.fired, ~states.ships & states.fired, ~states.fired]
    y, x = states.y.copy(), states.x.copy()
    for i in range(40):
        cells = np.argwhere(kinds[i % 3][i])
        if len(cells):
            y[i], x[i] = cells[i % len(cells)]
    states = states.replace(x=x, y=y)
    cursor = here(level, states)
    assert all((kind & cursor).any() for kind in kinds)
    corner = (obs_size - board) // 2
    for partial in (False, True):
        for i, picture in enumerate(frames(env_id, states, partial, obs_size)):
            for edge in (corner, corner + 1, corner + board - 2, corner + board - 1):
                assert (picture[edge, corner : corner + board] == LINES).all()
                assert (picture[corner : corner + board, edge] == LINES).all()
            assert (picture[corner - 1, corner : corner + board] == CANVAS).all()
            for y, x, rows, columns in cells_of(env_id, obs_size):
                inside = picture[rows, columns]
                known = states.fired[i, y, x] and (cursor[i, y, x] or not partial)
                hit = states.ships[i, y, x]
                assert (count(inside, X) >= 6) == (known and hit) and (count(inside, X) > 0) == (known and hit)
                assert (count(inside, O) >= 6) == (known and not hit) and (count(inside, O) > 0) == (known and not hit)
                assert (count(inside, CURSOR) >= 6) == cursor[i, y, x]
                assert (count(inside, GROUND) >= 6) == (not cursor[i, y, x])


@pytest.mark.parametrize("obs_size", [128, 256])
@pytest.mark.parametrize("env_id", IDS)
def test_all_cells_have_the_same_six_pictures(env_id, obs_size):
    """None is cut off: a cell's picture does not depend on its place. (There: the cursor hides its cell.)"""
    level = split_id(env_id)[1]
    n = SIZES[level]
    places = list(cells_of(env_id, obs_size))
    pieces = {}
    for name, ships, fired in (("nothing", False, False), ("X", True, True), ("O", False, True)):
        at = np.arange(n * n)
        states = fresh(env_id, n * n, x=at % n, y=at // n, ships=ships, fired=fired)
        pictures = frames(env_id, states, False, obs_size)
        found = [pictures[i][rows, columns].tobytes() for i, (_, _, rows, columns) in enumerate(places)]
        others = [pictures[i - 1][rows, columns].tobytes() for i, (_, _, rows, columns) in enumerate(places)]
        assert len(set(found)) == 1 and len(set(others)) == 1
        pieces[name] = found[0]
        pieces[name + " without the cursor"] = others[0]
    assert len(set(pieces.values())) == 6


@pytest.mark.parametrize("obs_size", [128, 256])
@pytest.mark.parametrize("env_id", IDS)
def test_every_number_of_repeats_and_hits_has_its_own_picture(env_id, obs_size):
    """In both twins, right of the score's box and in it; nothing else of the frame moves. (There: no gauge.)"""
    n = SIZES[split_id(env_id)[1]]
    width = SCORE_RIGHT[obs_size]
    for partial in (False, True):
        total = n**2 // 2 + 1
        pictures = frames(env_id, fresh(env_id, total, repeats=np.arange(total)), partial, obs_size)
        gauge = np.ascontiguousarray(pictures[:, : 15 * obs_size // 128, width:])
        assert len({picture.tobytes() for picture in gauge}) == total
        assert (gauge[:, :, -3:] == CANVAS).all() and all(count(picture, X) > 0 for picture in gauge)
        pictures[:, : 15 * obs_size // 128, width:] = 0
        assert same_pictures(pictures, pictures[:1]).all()
        pictures = frames(env_id, fresh(env_id, CELLS + 1, score=np.arange(CELLS + 1)), partial, obs_size)
        assert len({picture[:, :width].tobytes() for picture in pictures}) == CELLS + 1
