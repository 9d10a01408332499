"""AutoEncode: the lines of "Differences from popgym-arcade 0.0.7" that name it, and its pictures read back."""

import functools

import numpy as np
import pytest
from families.autoencode import BLACK, BORDER, CANVAS, CARDS, FACE, MARK, RED, SCORE, SUITS, games
from families.base import DOWN, FIRE, LEFT, RIGHT, UP
from harness import (
    TWINS,
    colors_of,
    expert_games,
    expert_play,
    facts,
    frames,
    ids_of,
    make,
    only_usually,
    play_games,
    resets,
    same_pictures,
    split_id,
    states_met,
    step,
    take,
)

from popgym_arcade.environments.draw_utils import draw_number

IDS = ids_of("AutoEncode")
SIZES = (128, 256)
SHOWN = {128: (1, 1, 13, 21), 256: (2, 2, 26, 42)}  # x0, y0, x1, y1
SELECTED = {128: (115, 1, 127, 21), 256: (230, 2, 254, 42)}
ARROWS = {128: (116, 23, 126, 32), 256: (232, 46, 252, 64)}
SCORE_BOX = {128: ((43, 1), (85, 15)), 256: ((86, 2), (171, 30))}
NAME_TOP = {128: 115, 256: 231}
FIRST = {128: 19, 256: 38}  # x and y of the history's first card
PITCH = {128: 10, 256: 20}


def cards_of(env_id):
    return CARDS[split_id(env_id)[1]]


def copies(env_id, count, **numbers):
    """One fresh state, `count` times, with some of its whole numbers replaced."""
    state = take(resets(env_id, 1), np.zeros(count, int))
    return state.replace(**{name: np.broadcast_to(np.int32(value), (count,)).copy() for name, value in numbers.items()})


# The rules


@pytest.mark.parametrize("env_id", IDS)
def test_the_episode_ends_with_the_last_answer(env_id):
    """(There: a step later, in which the last card could be paid again: best return 1 + 1/N.)"""
    n = cards_of(env_id)
    state = copies(env_id, 1, time=2 * n, answered=n - 1, score=n - 1)
    right = step(env_id, state.replace(selected=state.cards[:, 0].astype(np.int32)), FIRE)
    assert right.terminated.all() and right.reward[0] == pytest.approx(1 / n)
    assert right.final_state.answered == n and right.final_state.score == n and right.state.time == 0
    wrong = step(env_id, state.replace(selected=(state.cards[:, 0].astype(np.int32) + 1) % SUITS), FIRE)
    assert wrong.terminated.all() and wrong.reward == 0 and wrong.final_state.score == n - 1

    result = expert_play(env_id)
    knows = np.array([game.name == "knows all" for game in expert_games(env_id)])
    assert result.value[knows] == pytest.approx(1, abs=1e-5)
    turns = [np.flatnonzero(game.plan == FIRE)[n - 1] for game in expert_games(env_id) if game.name == "knows all"]
    assert (result.length[knows] == np.array(turns) + 1).all()


@pytest.mark.parametrize("env_id", IDS)
def test_an_answer_needs_fire(env_id):
    """(There: the answer at time N is given by force, whatever the action.)"""
    n = cards_of(env_id)
    for time in (n - 1, n, n + 1, 3 * n):
        state = copies(env_id, 1, time=time)
        state = state.replace(selected=state.cards[:, -1].astype(np.int32))
        for action in (UP, DOWN, LEFT, RIGHT):
            result = step(env_id, state, action)
            assert result.final_state.answered == 0 and result.final_state.score == 0 and result.reward == 0
        result = step(env_id, state, FIRE)
        assert result.final_state.answered == (time >= n) and result.reward[0] == pytest.approx((time >= n) / n)


@pytest.mark.parametrize("env_id", IDS)
def test_fire_is_among_the_actions(env_id):
    """(There: 4 actions are declared, fire is not one of them. Who draws from the space never answers.)"""
    n = cards_of(env_id)
    for twin in TWINS.values():
        env, params = make(env_id, twin)
        assert env.action_space(params).n == 5 and env.action_space(params).contains(FIRE)
        answered = step(env_id, copies(env_id, 5, time=n), np.arange(5), partial_obs=twin).final_state.answered
        np.testing.assert_array_equal(answered, [0, 0, 0, 0, 1])


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", IDS)
def test_the_place_in_the_playback_is_drawn(env_id, obs_size):
    """A picture for each place, in the full twin. (There: all the same.)"""
    n = cards_of(env_id)
    states = copies(env_id, n + 1, time=3 * n, answered=np.arange(n + 1))
    assert len({picture.tobytes() for picture in frames(env_id, states, False, obs_size)}) == n + 1
    assert len({picture.tobytes() for picture in frames(env_id, states, True, obs_size)}) == 1


@pytest.mark.parametrize("env_id", IDS)
def test_terminated_is_set_with_the_last_answer_and_not_before(env_id):
    """(There: a flag is set one step before `done`, and on a time-out too.)"""
    n, limit = cards_of(env_id), 10 * cards_of(env_id)
    states = copies(env_id, n, time=5 * n, answered=np.arange(n))
    result = step(env_id, states, FIRE)
    np.testing.assert_array_equal(result.terminated, np.arange(n) == n - 1)
    assert not result.truncated.any()
    late = step(env_id, states.replace(time=np.full(n, limit - 1, np.int32)), FIRE)
    np.testing.assert_array_equal(late.terminated, np.arange(n) == n - 1)
    np.testing.assert_array_equal(late.truncated, np.arange(n) < n - 1)


@pytest.mark.parametrize("env_id", IDS)
def test_the_watch_phase_shows_every_card_once_and_ignores_fire(env_id):
    """Steps 0..N-1 pay and answer nothing; the selection turns already, and is kept."""
    n = cards_of(env_id)
    state = take(resets(env_id, 1), slice(0, 1))
    env_cards = state.cards[0]
    seen = []
    for time in range(n):
        assert state.time == time
        seen.append(read(frames(env_id, state, True)[0], 128)["shown"])
        result = step(env_id, state, FIRE if time % 2 else LEFT)
        assert result.reward == 0 and result.state.answered == 0 and result.state.score == 0
        assert not result.terminated.any() and not result.truncated.any()
        state = result.state
    assert seen == env_cards.tolist()
    assert state.selected == (n + 1) // 2 % SUITS
    assert read(frames(env_id, state, True)[0], 128)["shown"] is None


@pytest.mark.parametrize("env_id", IDS)
def test_left_and_right_turn_the_selected_suit(env_id):
    for time in (0, 5, cards_of(env_id) + 5):
        states = copies(env_id, SUITS, time=time, selected=np.arange(SUITS))
        for action, turned in ((LEFT, [1, 2, 3, 0]), (RIGHT, [3, 0, 1, 2]), (UP, [0, 1, 2, 3]), (FIRE, [0, 1, 2, 3])):
            np.testing.assert_array_equal(step(env_id, states, action).state.selected, turned)


@pytest.mark.parametrize("env_id", IDS)
def test_the_playback_is_in_reverse(env_id):
    """The first answer is for the last card. Forwards, with cards that are not a palindrome, it would not pay all."""
    level, n = split_id(env_id)[1], cards_of(env_id)
    fresh = resets(env_id, 64, seed=3)
    game = next(game for game in games(level, fresh) if game.name == "knows all")
    state = take(fresh, slice(0, 1))
    assert (state.cards[0] != state.cards[0, ::-1]).any()
    result = play_games(env_id, state, game.plan[None])
    assert result.value[0] == pytest.approx(1, abs=1e-5)
    backwards = play_games(env_id, state.replace(cards=state.cards[:, ::-1].copy()), game.plan[None])
    same = (state.cards[0] == state.cards[0, ::-1]).mean()
    assert backwards.value[0] == pytest.approx(same, abs=1e-5)
    assert result.length[0] >= 2 * n


# The pictures


def crop(picture, box):
    x0, y0, x1, y1 = box
    return picture[y0:y1, x0:x1]


def cell(picture, obs_size, i):
    pitch = PITCH[obs_size]
    left, top = FIRST[obs_size] + pitch * (i % 9), FIRST[obs_size] + pitch * (i // 9)
    return picture[top : top + pitch, left : left + pitch]


def shape(piece):
    """Where the suit's colour is, without the rows above and below it."""
    suit = (piece == RED).all(-1) | (piece == BLACK).all(-1)
    return suit[suit.any(1)]


@functools.cache
def templates(obs_size, small=False):
    """The four suits as they are shown, large or in the history: heart, spade, club, diamond."""
    env_id = IDS[0]
    states = copies(env_id, SUITS, time=1).replace(
        cards=np.repeat(np.arange(SUITS, dtype=np.int8)[:, None], cards_of(env_id), 1)
    )
    pictures = frames(env_id, states, False, obs_size)
    return [cell(picture, obs_size, 0) if small else crop(picture, SHOWN[obs_size]) for picture in pictures]


def suit_of(piece, obs_size, small=False):
    """Which suit a piece of the picture shows; None without one."""
    if not len(shape(piece)):
        return None
    matches = [
        suit
        for suit, template in enumerate(templates(obs_size, small))
        if np.array_equal(shape(piece), shape(template))
        and (piece == RED).all(-1).any() == (template == RED).all(-1).any()
    ]
    assert len(matches) == 1
    return matches[0]


def read(picture, obs_size, n=0):
    """What a picture says: the card shown, the selected suit, the history, and the marked places."""
    places = [cell(picture, obs_size, i) for i in range(n)]
    return {
        "shown": suit_of(crop(picture, SHOWN[obs_size]), obs_size),
        "selected": suit_of(crop(picture, SELECTED[obs_size]), obs_size),
        "history": [suit_of(place, obs_size, small=True) for place in places],
        "marked": [i for i, place in enumerate(places) if (place == MARK).all(-1).any()],
    }


@pytest.mark.parametrize("obs_size", SIZES)
def test_suits_can_be_told_apart(obs_size):
    """Two red, two black; those of one colour differ in many pixels; none touches the edge of its card."""
    for small in (False, True):
        cards = templates(obs_size, small)
        for suit, color in enumerate((RED, BLACK, BLACK, RED)):
            assert colors_of(cards[suit]) == {CANVAS, FACE, color} | (set() if small else {BORDER})
            ink = (cards[suit] == color).all(-1)
            assert not (ink[0] | ink[-1]).any() and not (ink[:, 0] | ink[:, -1]).any(), "cut off"
            assert shape(cards[suit]).shape[0] >= 0.6 * PITCH[obs_size]
        for one, other in ((0, 3), (1, 2)):
            assert (cards[one] != cards[other]).any(-1).sum() >= 10 * (obs_size // 128)


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", only_usually(IDS[:1], IDS))
def test_everything_can_be_read_from_the_pixels(env_id, obs_size):
    """The card shown, the selection, all cards before and the mark are where the layout says, and nothing else is."""
    n = cards_of(env_id)
    states = states_met(env_id, 40)
    states = take(states, states.time > 0)
    watching = np.arange(len(states.time)) % 2 == 0  # play seldom is in this phase
    times = np.where(watching, 1 + np.arange(len(states.time)) % (n - 1), np.maximum(states.time, n)).astype(np.int32)
    states = states.replace(
        time=times, answered=np.where(watching, 0, states.answered), score=np.where(watching, 0, states.score)
    )
    full, partial = frames(env_id, states, False, obs_size), frames(env_id, states, True, obs_size)
    for i in range(len(times)):
        before = min(times[i], n)
        expected = {
            "shown": states.cards[i, times[i]] if times[i] < n else None,
            "selected": states.selected[i],
            "history": states.cards[i, :before].tolist() + [None] * (n - before),
            "marked": [n - 1 - states.answered[i]] if times[i] >= n else [],
        }
        assert read(full[i], obs_size, n) == expected
        assert read(partial[i], obs_size, n) == {**expected, "history": [None] * n, "marked": []}
    # Nothing outside the places: without their pieces all pictures are the same empty canvas.
    for pictures in (full, partial):
        rest = pictures[:, : NAME_TOP[obs_size]].copy()
        for x0, y0, x1, y1 in (SHOWN[obs_size], SELECTED[obs_size], ARROWS[obs_size]):
            rest[:, y0:y1, x0:x1] = CANVAS
        (x0, y0), (x1, y1) = SCORE_BOX[obs_size]
        rest[:, y0:y1, x0:x1] = CANVAS
        for picture in rest:
            for i in range(n):
                cell(picture, obs_size, i)[:] = CANVAS
        assert (rest == CANVAS).all()


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", IDS)
def test_the_score_is_written_as_a_number(env_id, obs_size):
    n = cards_of(env_id)
    states = copies(env_id, n + 1, time=4 * n, score=np.arange(n + 1))
    (x0, y0), (x1, y1) = SCORE_BOX[obs_size]
    canvas = np.full((obs_size, obs_size, 3), CANVAS, np.uint8)
    for twin in TWINS.values():
        pictures = frames(env_id, states, twin, obs_size)
        for score, picture in enumerate(pictures):
            expected = draw_number(*SCORE_BOX[obs_size], SCORE, canvas, score)
            np.testing.assert_array_equal(picture[y0:y1, x0:x1], expected[y0:y1, x0:x1])
        pictures[:, y0:y1, x0:x1] = 0
        assert same_pictures(pictures, pictures[:1]).all(), "the score is drawn outside its box"


@pytest.mark.parametrize("obs_size", SIZES)
@pytest.mark.parametrize("env_id", IDS)
def test_after_the_last_answer_nothing_is_marked(env_id, obs_size):
    n = cards_of(env_id)
    over = copies(env_id, 1, time=5 * n, answered=n, score=n)
    seen = read(frames(env_id, over, False, obs_size)[0], obs_size, n)
    assert seen["marked"] == [] and seen["shown"] is None and seen["history"] == over.cards[0].tolist()


@pytest.mark.parametrize("env_id", IDS)
def test_the_limit_is_ten_steps_a_card(env_id):
    family, level = facts(env_id)
    assert family.limits[level] == (260, 520, 780)[level]
    result = expert_play(env_id)
    names = [game.name for game in expert_games(env_id)]
    late = np.array([name == "the last answer on the last permitted step" for name in names])
    assert (result.length[late] == family.limits[level]).all() and result.terminated[late].all()
    missed = np.array([name == "one step too late" for name in names])
    assert result.truncated[missed].all() and (result.value[missed] < 1 - 0.9 / CARDS[level]).all()
