"""The fully and the partially observable twin of an id: one process, two pictures."""

import jax
import numpy as np
import pytest
from harness import (
    EASY_USUALLY,
    IDS,
    TWINS,
    VIDEO_LIMIT,
    facts,
    flat,
    frames,
    join,
    make,
    only_usually,
    random_play,
    record_video,
    resets,
    same_pictures,
    size,
    states_met,
    step,
    take,
)


@pytest.mark.parametrize("env_id", IDS)
def test_the_twins_have_the_same_rules(env_id):
    """First states and transitions are the same program."""

    def rules(twin):
        env, params = make(env_id, twin)
        state = jax.eval_shape(env.reset_state, jax.random.key(0), params)
        reset = jax.make_jaxpr(env.reset_state)(jax.random.key(0), params)
        return str(reset), str(jax.make_jaxpr(env.transition)(jax.random.key(0), state, np.int32(0), params))

    assert rules(False) == rules(True)


@pytest.mark.parametrize("env_id", only_usually(["NavigatorEasy", "CartPoleEasy"], IDS))  # their rules are one program
def test_equal_states_rewards_and_flags_along_long_random_play(env_id):
    jax.tree.map(
        np.testing.assert_array_equal, random_play(env_id, partial_obs=False), random_play(env_id, partial_obs=True)
    )


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_frames_are_those_of_the_states(env_id, twin):
    """What reset and step return as pictures is what get_obs draws of the states beside them, resets in between too."""
    env, params = make(env_id, TWINS[twin])
    shot = record_video(env_id, TWINS[twin])
    assert shot.done.sum() >= 2 * shot.done.shape[1] and (shot.state.time[1:][shot.done] == 0).all()
    assert shot.final_state.time.max() == VIDEO_LIMIT
    for frame, state in ((shot.frame, shot.state), (shot.final_frame, shot.final_state)):
        assert frame.dtype == np.uint8
        assert bool(env.observation_space(params).contains(frame[0, 0]))
        np.testing.assert_array_equal(flat(frame), frames(env_id, flat(state), TWINS[twin]))


@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_videos_differ_in_their_pictures_only(env_id):
    full, partial = record_video(env_id, False), record_video(env_id, True)
    for name in ("state", "final_state", "done"):
        jax.tree.map(np.testing.assert_array_equal, getattr(full, name), getattr(partial, name))
    first = full.state.time == 0
    assert first[0].all() and first[1:].any()
    np.testing.assert_array_equal(full.frame[first], partial.frame[first])
    assert not same_pictures(full.frame[~first], partial.frame[~first]).all()


@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_switching_twins_in_mid_episode_changes_only_the_picture(env_id):
    """The twins take turns at stepping, and each draws what the other has reached."""
    fresh = resets(env_id, 32)
    alone, shared = fresh, fresh
    rng = np.random.default_rng(0)
    for turn in range(12):
        actions = rng.integers(0, 5, 32)
        one = step(env_id, alone, actions, seeds=turn)
        other = step(env_id, shared, actions, seeds=turn, partial_obs=bool(turn % 2))
        jax.tree.map(np.testing.assert_array_equal, one, other)
        alone, shared = one.state, other.state
        for twin in (False, True):
            np.testing.assert_array_equal(frames(env_id, alone, twin), frames(env_id, shared, twin))


@pytest.mark.parametrize("obs_size", only_usually([128], [128, 256]))
@pytest.mark.parametrize("env_id", IDS)
def test_the_first_frame_is_the_full_frame(env_id, obs_size):
    """At time 0, whatever the state is otherwise; and only then."""
    states = join(resets(env_id, 16), states_met(env_id, 16))
    first = states.replace(time=np.zeros_like(states.time))
    np.testing.assert_array_equal(frames(env_id, first, True, obs_size), frames(env_id, first, False, obs_size))
    later = states.replace(time=np.maximum(states.time, 1))
    assert not same_pictures(frames(env_id, later, True, obs_size), frames(env_id, later, False, obs_size)).all()


def later_states(env_id):
    states = states_met(env_id, 400)
    return take(states, (states.time > 0))


@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_what_the_partial_frame_hides_is_hidden(env_id):
    family, level = facts(env_id)
    states = later_states(env_id)
    plain, full = frames(env_id, states, True), frames(env_id, states, False)
    for name, altered in family.hidden(level, states, np.random.default_rng(0)).items():
        assert same_pictures(plain, frames(env_id, altered, True)).all(), f"the partial frame betrays: {name}"
        # At time 0 it is not hidden, or else the full frame does not show it either.
        first, altered = (s.replace(time=np.zeros_like(s.time)) for s in (states, altered))
        np.testing.assert_array_equal(
            same_pictures(frames(env_id, first, True), frames(env_id, altered, True)),
            same_pictures(frames(env_id, first, False), frames(env_id, altered, False)),
        )
    assert full.shape == plain.shape and size(states) > 100


@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_what_the_partial_frame_shows_is_shown(env_id):
    family, level = facts(env_id)
    states = later_states(env_id)
    for twin in (True, False):
        plain = frames(env_id, states, twin)
        for name, altered in family.shown(level, states, np.random.default_rng(0)).items():
            unseen = same_pictures(plain, frames(env_id, altered, twin)).sum()
            assert not unseen, f"{name} cannot be seen in {unseen} of {size(states)} states"
