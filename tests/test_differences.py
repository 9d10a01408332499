"""Every line of "Differences from popgym-arcade 0.0.7" (section 12): the published behaviour would fail each test.

Lines of families that are not registered are skipped by their absence. Uniform draws are tested in full in
test_resets.py, flags in test_invariants.py, bounds in test_bounds.py; here stands what each line says, briefly.
"""

import dataclasses

import jax
import numpy as np
import pytest
from harness import (
    EASY_USUALLY,
    FEW_USUALLY,
    IDS,
    TWINS,
    colors_of,
    expert_games,
    expert_play,
    facts,
    field_names,
    frames,
    ids_of,
    make,
    only_usually,
    play_games,
    random_play,
    resets,
    same_pictures,
    split_id,
    states_met,
    step,
    take,
)

NAVIGATOR, COUNT_RECALL = ids_of("Navigator"), ids_of("CountRecall")
CARTPOLE, NOISY_CARTPOLE = ids_of("CartPole"), ids_of("NoisyCartPole")


def repeat(env_id, count):
    """One fresh state, `count` times."""
    return take(resets(env_id, 1), np.zeros(count, int))


def whole(values, like):
    return np.broadcast_to(np.int32(values), like.shape).copy()


# Navigator


@pytest.mark.parametrize("env_id", NAVIGATOR)
def test_the_treasure_can_be_in_every_cell(env_id):
    """(There: in 8 to 11 cells.)"""
    fresh = resets(env_id, 10_000)
    n = fresh.tnt.shape[1]
    assert len(set(zip(fresh.treasure_x.tolist(), fresh.treasure_y.tolist(), strict=True))) == n * n


@pytest.mark.parametrize("env_id", NAVIGATOR)
def test_tnt_treasure_and_start_are_apart(env_id):
    """(There: start on TNT in up to 8%, on the treasure in 2%, the treasure in place of a TNT in 10% of resets.)"""
    facts(env_id)[0].check_fresh(facts(env_id)[1], resets(env_id, 10_000))


@pytest.mark.parametrize("env_id", NAVIGATOR)
def test_the_last_permitted_step_pays_for_the_treasure(env_id):
    """(There: 0.)"""
    state = resets(env_id, 64)
    limit = facts(env_id)[0].limits[facts(env_id)[1]]
    state = state.replace(x=state.treasure_x, y=state.treasure_y, time=whole(limit - 1, state.x))
    claimed, waited = step(env_id, state, 4), step(env_id, state.replace(treasure_x=(state.x + 1) % 8), 4)
    assert (claimed.reward == 1).all() and claimed.terminated.all() and not claimed.truncated.any()
    assert (claimed.final_state.score == 100).all()
    assert (waited.reward < 0).all() and waited.truncated.all() and not waited.terminated.any()


@pytest.mark.parametrize("env_id", NAVIGATOR)
def test_the_cursor_does_not_hide_its_cell(env_id):
    """Cursor on the treasure, on TNT, on nothing: three pictures, in each of which the cursor is to be seen."""
    state = repeat(env_id, 3)
    tnt = np.zeros_like(state.tnt)
    tnt[1, 4, 4] = True
    n = state.tnt.shape[1]
    treasure = np.array([4, n - 1, n - 1], np.int32)
    at = whole(4, state.x)
    state = state.replace(x=at, y=at, tnt=tnt, treasure_x=treasure, treasure_y=treasure)
    elsewhere = state.replace(x=at - 1)
    on, off = frames(env_id, state), frames(env_id, elsewhere)
    cell = slice(46, 78)  # holds cell (4, 4) of every level
    pieces = {on[i, cell, cell].tobytes() for i in range(3)}
    assert len(pieces) == 3
    assert not same_pictures(on, off).any()


# CartPole


@pytest.mark.parametrize("env_id", CARTPOLE)
def test_the_end_is_tested_on_the_new_state(env_id):
    """The step that leaves the track is the last one, and is paid. (There: one more step, 201 at most.)"""
    state = repeat(env_id, 4)
    fast = np.array([3, -3, 0, 0], np.float32)
    edge = np.array([2.39, -2.39, 0, 0], np.float32)
    angle = np.array([0, 0, 0.2, -0.2], np.float32)
    state = state.replace(x=edge, x_dot=fast, theta=angle, theta_dot=np.roll(fast, 2))
    result = step(env_id, state, 0)
    limit = facts(env_id)[0].limits[facts(env_id)[1]]
    assert result.terminated.all() and (result.state.time == 0).all()
    np.testing.assert_allclose(result.reward, 1 / limit, rtol=1e-6)
    inside = step(env_id, state.replace(x_dot=-fast, theta_dot=-np.roll(fast, 2)), 0)
    assert not inside.terminated.any()


@pytest.mark.parametrize("env_id", CARTPOLE + NOISY_CARTPOLE)
def test_a_balanced_pole_lasts_exactly_the_limit(env_id):
    """No step more, and no flag before the last. (There: 201/401/601 steps, a flag set one step early.)"""
    limit = facts(env_id)[0].limits[facts(env_id)[1]]
    result = expert_play(env_id)
    balanced = [game.name == "balances" for game in expert_games(env_id)]
    assert (result.length[balanced] == limit).all()
    assert result.truncated[balanced].all() and not result.terminated[balanced].any()


@pytest.mark.parametrize("env_id", CARTPOLE + NOISY_CARTPOLE)
def test_speeds_have_many_pictures(env_id):
    """(There: 3 for speeds in (0, 3].)"""
    state = repeat(env_id, 300)
    speeds = np.linspace(0.01, 3, 300, dtype=np.float32)
    state = state.replace(time=whole(5, state.time), noise=np.zeros_like(state.noise))
    for name in ("x_dot", "theta_dot"):
        for twin in TWINS.values():
            pictures = frames(env_id, state.replace(**{name: speeds}), twin)
            assert len({picture.tobytes() for picture in pictures}) >= 11


@pytest.mark.parametrize("env_id", NOISY_CARTPOLE)
def test_noise_is_in_the_state_not_in_the_drawing(env_id):
    """One state has one picture, whatever key is passed; the noise of the state moves it."""
    state = take(states_met(env_id, 1), 0)
    for twin in TWINS.values():
        env, params = make(env_id, twin)
        draw = jax.jit(lambda state, key, env=env, params=params: env.get_obs(state, params, key))
        pictures = [np.asarray(draw(state, jax.random.key(seed))) for seed in range(3)]
        assert all((picture == pictures[0]).all() for picture in pictures)
    states = take(states_met(env_id, 1), np.zeros(5, int)).replace(noise=np.zeros((5, 4), np.float32))
    changed = states.noise.copy()
    changed[np.arange(4), np.arange(4)] = 0.5
    pictures = frames(env_id, states.replace(noise=changed))
    assert len({picture.tobytes() for picture in pictures}) == 5, "some noise is not seen, or two look the same"


@pytest.mark.parametrize("env_id", NOISY_CARTPOLE)
def test_the_noisy_frame_shows_state_plus_noise(env_id):
    """As CartPole's frame of the sum, with x and theta clipped, apart from the name."""
    level = split_id(env_id)[1]
    quiet_id = CARTPOLE[0]
    states = take(states_met(env_id, 200), slice(0, 200))
    wild = np.random.default_rng(level).normal(0, 1, (200, 4)).astype(np.float32)
    states = states.replace(noise=np.where(np.arange(200)[:, None] % 2, states.noise, wild))
    quiet = take(resets(quiet_id, 1), np.zeros(200, int))
    angle = np.float32(12 * np.pi / 180)
    sums = {
        "x": np.clip(states.x + states.noise[:, 0], -2.4, 2.4),
        "x_dot": states.x_dot + states.noise[:, 1],
        "theta": np.clip(states.theta + states.noise[:, 2], -angle, angle),
        "theta_dot": states.theta_dot + states.noise[:, 3],
    }
    quiet = dataclasses.replace(
        quiet, time=states.time, **{name: value.astype(np.float32) for name, value in sums.items()}
    )
    for twin in TWINS.values():
        noisy, plain = frames(env_id, states, twin)[:, :115], frames(quiet_id, quiet, twin)[:, :115]
        # A sum at the very edge of a pixel may be rounded to either side.
        assert same_pictures(noisy, plain).mean() >= 0.99


@pytest.mark.parametrize("env_id", NOISY_CARTPOLE)
def test_the_noisy_twin_shows_its_own_name(env_id):
    noisy, plain = (frames(other, repeat(other, 1)) for other in (env_id, CARTPOLE[0]))
    assert (noisy[:, 115:] != plain[:, 115:]).any()


# CountRecall


@pytest.mark.parametrize("env_id", COUNT_RECALL)
def test_the_counter_is_clamped(env_id):
    """(There: -1, drawn as 9.)"""
    state = repeat(env_id, 1)
    n = state.value_cards.shape[1]
    assert step(env_id, state, 1).state.count == 0
    assert step(env_id, state.replace(count=whole(n, state.count)), 0).state.count == n
    assert step(env_id, state.replace(count=whole(n - 1, state.count)), 0).state.count == n
    assert step(env_id, state.replace(count=whole(1, state.count)), 1).state.count == 0


@pytest.mark.parametrize("env_id", COUNT_RECALL)
def test_every_count_has_its_own_picture(env_id):
    state = repeat(env_id, 1)
    n = state.value_cards.shape[1]
    state = repeat(env_id, n + 1).replace(count=np.arange(n + 1, dtype=np.int32))
    assert len({picture.tobytes() for picture in frames(env_id, state)}) == n + 1


# Flags


@pytest.mark.parametrize("env_id", CARTPOLE + NOISY_CARTPOLE + COUNT_RECALL + NAVIGATOR)
def test_a_time_out_is_no_termination(env_id):
    """(There: `terminated` too.)"""
    fresh = resets(env_id, 64)
    limit = facts(env_id)[0].limits[facts(env_id)[1]]
    last = fresh.replace(time=whole(limit - 1, fresh.time))
    action = 4 if env_id in NAVIGATOR else 3  # claims the wrong cell; else pushes or does nothing
    result = step(env_id, last, action)
    assert result.truncated.all() and not result.terminated.any()
    before = step(env_id, fresh.replace(time=whole(limit - 2, fresh.time)), action)
    assert not before.truncated.any() and not before.terminated.any()


@pytest.mark.parametrize("env_id", COUNT_RECALL)
def test_the_last_answer_on_the_last_permitted_step_is_a_termination(env_id):
    state = repeat(env_id, 1)
    limit, n = facts(env_id)[0].limits[facts(env_id)[1]], state.value_cards.shape[1]
    state = state.replace(time=whole(limit - 1, state.time), answered=whole(n - 1, state.time))
    right = (state.value_cards[0, : n - 1] == state.query_cards[0, n - 1]).sum()
    result = step(env_id, state.replace(count=whole(right, state.count)), 4)
    assert result.terminated.all() and not result.truncated.any()
    assert result.reward[0] == pytest.approx(1 / n)


# All


@pytest.mark.parametrize("env_id", IDS)
def test_there_are_five_actions(env_id):
    """(There: 200/400/600 in CartPole, none in others.)"""
    for twin in TWINS.values():
        env, params = make(env_id, twin)
        assert env.num_actions == 5 and env.action_space(params).n == 5


@pytest.mark.parametrize("obs_size", only_usually([128], [128, 256]))
@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_sprites_are_composed_of_their_own_colours(env_id, obs_size):
    """No colour that the specification does not name. (There: sprites are merged by pixelwise minimum or maximum.)"""
    family, level = facts(env_id)
    states = states_met(env_id, 60)
    full, partial = (colors_of(frames(env_id, states, twin, obs_size)) for twin in (False, True))
    assert not (full | partial) - family.palette - family.extra_colors
    assert full >= family.palette, "a colour of the specification is never seen"


@pytest.mark.parametrize("env_id", IDS)
def test_fields_have_the_names_of_the_specification(env_id):
    family, level = facts(env_id)
    assert set(field_names(resets(env_id, 1))) == set(family.fields(level))


@pytest.mark.parametrize("env_id", NAVIGATOR)
def test_arrays_are_indexed_row_first(env_id):
    """A move to the right that meets TNT meets it at tnt[y, x + 1]. (There: [x, y].)"""
    state = repeat(env_id, 1)
    tnt = np.zeros_like(state.tnt)
    tnt[0, 2, 6] = True
    far = whole(0, state.x)
    state = state.replace(tnt=tnt, treasure_x=far, treasure_y=far, x=whole(5, far), y=whole(2, far))
    assert step(env_id, state, 3).reward == -0.5
    assert step(env_id, state.replace(x=whole(2, far), y=whole(5, far)), 1).reward > -0.1


@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_info_carries_the_final_state(env_id):
    """The stepped state survives the auto-reset: with it, what happened on the last step can be known."""
    played = random_play(env_id)
    ends = played.terminated | played.truncated
    assert (take(played.final_state, ends).time > 0).all() and (take(played.after, ends).time == 0).all()


@pytest.mark.parametrize("env_id", FEW_USUALLY)
def test_a_user_may_change_the_limit(env_id):
    """Experts, cut off after ten steps. (There: a constant of the class.)"""
    games = expert_games(env_id)[:8]
    states = jax.tree.map(lambda *leaves: np.stack(leaves), *(game.state for game in games))
    result = play_games(env_id, states, np.stack([game.plan for game in games]), limit=10)
    assert result.length.max() == 10 and result.truncated.any()
