"""Skittles: what is special to it, and its lines of section 12 of the specification."""

import jax
import numpy as np
import pytest
from families import chances
from families.base import DOWN, FIRE, LEFT, RIGHT, UP
from families.skittles import BLACK, COLLAR, COLORS, LANE, LANES, NAME, SCORE, WHITE, fair_coins
from harness import TWINS, colors_of, facts, frames, ids_of, make, random_play, resets, split_id, states_met, step, take

IDS = ids_of("Skittles")
SIZES = (128, 256)
BOARD = {128: (92, 7), 256: (192, 17)}  # pixels of the board and of a cell
SCORE_BOX = {128: (43, 1, 85, 15), 256: (86, 2, 171, 30)}  # x0, y0, x1, y1
NAME_TOP = {128: 115, 256: 231}
LEAST = 1e-5  # p-value


def lane(env_id):
    return LANES[split_id(env_id)[1]]


def field(env_id, x, balls, time=20):
    """States with the agent in these columns and balls at these (row, column), one list per state."""
    count = len(x)
    enemies = np.zeros((count, 10, 10), bool)
    for i, cells in enumerate(balls):
        for cell in cells:
            enemies[i][cell] = True
    return take(resets(env_id, 1), np.zeros(count, int)).replace(
        x=np.array(x, np.int32), enemies=enemies, time=np.full(count, time, np.int32)
    )


# Rules


@pytest.mark.parametrize("env_id", IDS)
def test_all_rows_fall_and_one_ball_enters(env_id):
    """The part of a step that the slow model leaves out, because the new row is drawn."""
    first, width = lane(env_id)
    played = random_play(env_id)
    before, after = played.before.enemies, played.final_state.enemies
    np.testing.assert_array_equal(after[:, :, 1:], before[:, :, :-1])
    assert (after[:, :, 0].sum(-1) == 1).all()
    columns = after[:, :, 0].argmax(-1)
    assert columns.min() == first and columns.max() == first + width - 1
    assert chances.choice(np.random.default_rng(0).permutation(columns.ravel())[:10_000] - first, width) > LEAST


@pytest.mark.parametrize("env_id", IDS)
def test_new_columns_are_uniform_and_depend_on_the_key_alone(env_id):
    first, width = lane(env_id)
    count = 10_000
    drawn = []
    for start in (states_met(env_id, 2), resets(env_id, 2)):
        for i in range(2):
            states = take(start, np.full(count, i))
            drawn.append(step(env_id, states, FIRE, seeds=np.arange(count)).final_state)
    columns = [after.enemies[:, 0].argmax(1) for after in drawn]
    for other, after in zip(columns[1:], drawn[1:], strict=True):
        np.testing.assert_array_equal(other, columns[0])
        np.testing.assert_array_equal(after.mask, drawn[0].mask)
    column, mask = columns[0] - first, drawn[0].mask.reshape(count, 100).astype(int)
    assert chances.choice(column, width) > LEAST
    for cell in (0, 17, 50, 99):
        assert chances.table(column, mask[:, cell], (width, 2)) > LEAST


@pytest.mark.parametrize("env_id", IDS)
def test_the_mask_is_drawn_at_every_step(env_id):
    """Masks of different steps, episodes and copies have nothing in common.

    (There: seeded by the clock, the same 100 masks in every episode and every copy.)
    """
    played = random_play(env_id)
    masks = played.final_state.mask
    flat = masks.reshape(-1, 100)
    assert len({row.tobytes() for row in flat}) == len(flat), "a mask occurs twice"
    # masks of 10,000 steps, which are those of copies at equal times, and how each differs from the one before
    assert fair_coins(flat[:10_000]) > LEAST
    assert fair_coins((masks[1:] ^ masks[:-1]).reshape(-1, 100)[:10_000]) > LEAST
    assert fair_coins((masks[:, 1:] ^ masks[:, :-1]).reshape(-1, 100)[:10_000]) > LEAST


@pytest.mark.parametrize("env_id", IDS)
def test_a_ball_hits_where_it_was_and_where_it_comes_to_be(env_id):
    """Both hits, both near misses, for every move; the fatal step pays as well."""
    first, _ = lane(env_id)
    x = first + 2
    cases = [  # action, ball, hit
        *[(action, (9, x), False) for action in (LEFT, RIGHT)],  # (the agent was on it, and is gone in time)
        *[(action, (9, x), True) for action in (UP, DOWN, FIRE)],
        (LEFT, (9, x - 1), True),
        (RIGHT, (9, x + 1), True),
        (RIGHT, (9, x - 1), False),
        (FIRE, (9, x - 1), False),
        *[(action, (8, x), action in (UP, DOWN, FIRE)) for action in range(5)],
        (LEFT, (8, x - 1), True),
        (RIGHT, (8, x + 1), True),
        (LEFT, (8, x + 1), False),
        *[(action, (7, x), False) for action in range(5)],
        (RIGHT, (7, x + 1), False),
    ]
    actions, balls, hits = zip(*cases, strict=True)
    result = step(env_id, field(env_id, [x] * len(cases), [[ball] for ball in balls]), actions, seeds=3)
    np.testing.assert_array_equal(result.terminated, hits)
    np.testing.assert_allclose(result.reward, 0.01)
    np.testing.assert_array_equal(result.final_state.x, x + np.array([(a == RIGHT) - (a == LEFT) for a in actions]))


@pytest.mark.parametrize("env_id", IDS)
def test_the_lane_has_walls(env_id):
    first, width = lane(env_id)
    last = first + width - 1
    states = field(env_id, [first, last, first, last], [[]] * 4)
    result = step(env_id, states, [LEFT, RIGHT, RIGHT, LEFT])
    np.testing.assert_array_equal(result.final_state.x, [first, last, first + 1, last - 1])
    blocked = step(env_id, field(env_id, [first, last], [[(9, first)], [(8, last)]]), [LEFT, RIGHT])
    assert blocked.terminated.all(), "pressed against the wall, the agent stays where it is"


@pytest.mark.parametrize("env_id", IDS)
def test_no_ball_is_down_before_the_tenth_step(env_id):
    played = random_play(env_id)
    assert played.final_state.time[played.terminated].min() == 10


@pytest.mark.parametrize("env_id", IDS)
def test_a_survivor_is_cut_off_and_a_hit_on_the_last_step_is_not(env_id):
    first, _ = lane(env_id)
    states = field(env_id, [first + 2] * 2, [[(8, first)], [(8, first + 2)]], time=99)
    result = step(env_id, states, FIRE)
    np.testing.assert_array_equal(result.terminated, [False, True])
    np.testing.assert_array_equal(result.truncated, [True, False])
    np.testing.assert_allclose(result.reward, 0.01)


@pytest.mark.parametrize("env_id", IDS)
def test_terminated_is_a_bool(env_id):
    """(There: a number.)"""
    env, params = make(env_id)
    _, state = jax.eval_shape(env.reset, jax.random.key(0), params)
    terminated = jax.eval_shape(env.step, jax.random.key(0), state, 0, params)[3]
    assert terminated.dtype == np.bool_ and terminated.shape == ()


@pytest.mark.parametrize("env_id", IDS)
def test_arrays_are_indexed_row_first(env_id):
    """A ball in the row above the agent's, enemies[8, x], comes down on it. (There: [x, y].)"""
    x = 5
    result = step(env_id, field(env_id, [x, x], [[(8, x)], [(x, 8)]]), FIRE)
    np.testing.assert_array_equal(result.terminated, [True, False])


@pytest.mark.parametrize("env_id", IDS)
def test_fields_of_the_published_version_have_new_names(env_id):
    """(There: `timestep` and the like.)"""
    assert set(vars(take(resets(env_id, 1), 0))) == {"time", "x", "enemies", "mask"}


# Pictures


def cell_of(picture, row, column):
    size = len(picture)
    board, cell = BOARD[size]
    first = (size - board) // 2 + 2
    top, left = first + row * (cell + 2), first + column * (cell + 2)
    return picture[top : top + cell, left : left + cell]


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", IDS)
def test_the_field_can_be_read_from_the_pixels(env_id, obs_size, twin):
    """Cell by cell: a ball in its row's colour, and the agent, a white shape that leaves the ground to be seen; nothing
    is between the cells or outside the lane. The partial frame shows the balls of the mask alone."""
    first, width = lane(env_id)
    states = states_met(env_id, 50)
    states = states.replace(time=np.maximum(states.time, 1))
    # some agents on a ball
    enemies = states.enemies.copy()
    enemies[::5, 9, :] = np.arange(10) == states.x[::5, None]
    states = states.replace(enemies=enemies)
    seen = enemies & states.mask if TWINS[twin] else enemies
    assert (seen[::5, 9].any(1)).any()
    for i, picture in enumerate(frames(env_id, states, TWINS[twin], obs_size)):
        rest = picture.copy()
        for row in range(10):
            for column in range(10):
                cell = cell_of(picture, row, column)
                agent = row == 9 and column == states.x[i]
                # the row that entered with the first step is red
                ball = {COLORS[(states.time[i] - row - 1) % 7]} if seen[i, row, column] else set()
                ground = LANE if first <= column < first + width else BLACK
                assert colors_of(cell) == {ground} | ball | ({WHITE, COLLAR} if agent else set()), (row, column)
                if agent:
                    share = (cell == WHITE).all(-1).mean()
                    assert 0.25 < share < 0.75, "the agent or what it stands on is hard to see"
                cell_of(rest, row, column)[:] = ground
        x0, y0, x1, y1 = SCORE_BOX[obs_size]
        rest[y0:y1, x0:x1] = 0
        on_lane = np.zeros(rest.shape[:2], bool)
        board, size = BOARD[obs_size]
        top = (obs_size - board) // 2
        left, right = (top + column * (size + 2) for column in (first, first + width))
        on_lane[top : top + board, left : right + 2] = True
        assert colors_of(rest[on_lane][None]) == {LANE}
        on_lane[NAME_TOP[obs_size] :] = True
        assert colors_of(rest[~on_lane][None]) == {BLACK}
        assert colors_of(rest[NAME_TOP[obs_size] :]) == {BLACK, NAME}


@pytest.mark.parametrize("env_id", IDS)
def test_a_row_of_balls_keeps_its_colour_and_the_next_has_another(env_id):
    """Followed down the field in a played episode: seven colours in turn."""
    state = take(resets(env_id, 1, seed=4), [0])
    shown = {}
    for turn in range(1, 25):
        result = step(env_id, state, FIRE, seeds=turn)
        state = result.final_state
        picture = frames(env_id, state)[0]
        for row in range(min(turn, 9)):  # (the agent is in row 9)
            colors = set.union(*[colors_of(cell_of(picture, row, column)) for column in range(10)]) - {BLACK, LANE}
            assert len(colors) == 1
            shown.setdefault(turn - row, set()).update(colors)
    assert all(len(colors) == 1 for colors in shown.values()), "a row changed its colour"
    sequence = [shown[turn].pop() for turn in range(1, 25)]
    assert sequence == [COLORS[turn % 7] for turn in range(24)]


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", IDS)
def test_every_score_has_its_own_picture(env_id, obs_size):
    """The time, 0..100, in the box and not cut off; it does not move anything else."""
    limit = facts(env_id)[0].limits[0]
    states = field(env_id, [5] * (limit + 1), [[]] * (limit + 1)).replace(time=np.arange(limit + 1, dtype=np.int32))
    x0, y0, x1, y1 = SCORE_BOX[obs_size]
    for twin in TWINS.values():
        pictures = frames(env_id, states, twin, obs_size)
        box = pictures[:, y0:y1, x0:x1]
        assert len({picture.tobytes() for picture in box}) == limit + 1
        ink = (box == SCORE).all(-1)
        assert not (ink[:, 0].any() or ink[:, -1].any() or ink[:, :, 0].any() or ink[:, :, -1].any()), "cut off"
        rest = pictures.copy()
        rest[:, y0:y1, x0:x1] = 0
        assert (rest == rest[:1]).all()
