"""What holds for every id in long random play."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces
from harness import (
    EASY_USUALLY,
    IDS,
    TWINS,
    episodes,
    expert_play,
    facts,
    field_names,
    flat,
    make,
    params_of,
    random_play,
    resets,
    size,
    states_met,
    step,
    take,
)

SHORT = 5  # shorter than any natural end of CartPole: every episode of such play is cut off
LIMITS = {"the limit": None, "a limit of five": SHORT}


@pytest.mark.parametrize("env_id", IDS)
def test_spaces(env_id):
    for twin in TWINS.values():
        for obs_size in (128, 256):
            env, params = make(env_id, twin, obs_size)
            frame = env.observation_space(params)
            assert isinstance(frame, spaces.Box)
            assert frame.shape == (obs_size, obs_size, 3) and frame.dtype == jnp.uint8
            assert np.all(np.asarray(frame.low) == 0) and np.all(np.asarray(frame.high) == 255)
            action = env.action_space(params)
            assert isinstance(action, spaces.Discrete) and action.n == 5
            assert env.num_actions == 5


@pytest.mark.parametrize("env_id", IDS)
def test_the_limit_is_a_parameter(env_id):
    family, level = facts(env_id)
    assert params_of(env_id).max_steps_in_episode == family.limits[level]


@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_types_are_fixed_and_strong(env_id):
    """The same shapes and dtypes from reset and step, none of them weak, whatever kind of number the action is."""
    family, level = facts(env_id)
    for twin in TWINS.values():
        for obs_size in (128, 256):
            env, params = make(env_id, twin, obs_size)
            obs, state = jax.eval_shape(env.reset, jax.random.key(0), params)
            assert {name: (leaf.shape, leaf.dtype.type) for name, leaf in vars(state).items()} == family.fields(level)
            assert obs.shape == (obs_size, obs_size, 3) and obs.dtype == np.uint8
            for action in (3, np.int64(3), jnp.int32(3), jnp.uint8(3)):
                after = jax.eval_shape(env.step, jax.random.key(0), state, action, params)
                obs_after, state_after, reward, terminated, truncated, info = after
                assert not [leaf for leaf in jax.tree.leaves((obs, state, after)) if leaf.weak_type]
                assert state_after == state and info["final_state"] == state
                assert obs_after == obs and info["final_observation"] == obs
                assert reward.shape == () and reward.dtype == np.float32
                for flag in (terminated, truncated, info["terminated"], info["truncated"]):
                    assert flag.shape == () and flag.dtype == np.bool_


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_time_flags_and_auto_reset(env_id, limit):
    family, level = facts(env_id)
    played = random_play(env_id, LIMITS[limit])
    limit = LIMITS[limit] or family.limits[level]
    done = played.terminated | played.truncated

    assert not (played.terminated & played.truncated).any()
    np.testing.assert_array_equal(played.terminated, played.info_terminated)
    np.testing.assert_array_equal(played.truncated, played.info_truncated)
    np.testing.assert_array_equal(played.final_state.time, played.before.time + 1)
    np.testing.assert_array_equal(played.truncated, (played.final_state.time >= limit) & ~played.terminated)
    assert played.final_state.time.max() <= limit
    assert done.any(), "no episode ended: this test has seen nothing"

    # After an end comes a fresh state; otherwise the stepped state, untouched.
    family.check_fresh(level, take(played.after, done))
    jax.tree.map(
        lambda after, final: np.testing.assert_array_equal(after[~done], final[~done]), played.after, played.final_state
    )
    # The time that the state counts is the number of steps since the last end.
    lengths = episodes(played)[:, 1]
    assert sorted(lengths) == sorted(played.final_state.time[done]) and lengths.max() <= limit


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_rewards_are_finite_and_returns_stay_in_their_bounds(env_id, limit):
    family, level = facts(env_id)
    played = random_play(env_id, LIMITS[limit])
    assert played.reward.dtype == np.float32 and np.isfinite(played.reward).all()
    if LIMITS[limit] is None:  # the bounds belong to the standard limit
        low, high = family.bounds(level)
        returns = episodes(played)[:, 0]
        assert len(returns) > 50
        assert returns.min() >= low - 1e-5 and returns.max() <= high + 1e-5


@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_fresh_states_differ(env_id):
    """Copies of the game do not start alike, neither at the first reset nor at later ones."""
    family, level = facts(env_id)
    done = random_play(env_id).terminated | random_play(env_id).truncated
    # 200 of either: MineSweeperEasy has 1,920 first states and Tetris 5,040, of which so many draws repeat a few
    for fresh in (resets(env_id, 200), take(take(random_play(env_id).after, done), slice(0, 200))):
        rows = {
            tuple(np.concatenate([np.ravel(leaf[i]) for leaf in jax.tree.leaves(fresh)])) for i in range(size(fresh))
        }
        if family.starts:
            assert len(rows) == family.starts(level)
        else:
            assert len(rows) > 0.9 * size(fresh)


@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_the_last_permitted_step(env_id):
    """Cut off if and only if the game does not end there by itself, and with the reward it would have at any time."""
    family, level = facts(env_id)
    limit = family.limits[level]
    states = states_met(env_id, 512)
    # Some states with the game's end next door, so that ending by itself on the last step is met.
    before_end = flat(random_play(env_id))
    before_end = take(before_end.before, before_end.terminated)
    states = jax.tree.map(lambda met, last: np.concatenate([met, last[:500]]), states, before_end)
    states = states.replace(time=np.full(size(states), limit - 1, np.int32))
    early = states.replace(time=np.full(size(states), limit - 2, np.int32))
    ended = []
    for action in range(5):
        last, same = step(env_id, states, action, seeds=action), step(env_id, early, action, seeds=action)
        np.testing.assert_array_equal(last.reward, same.reward)
        np.testing.assert_array_equal(last.terminated, same.terminated)
        np.testing.assert_array_equal(last.truncated, ~last.terminated)
        assert not same.truncated.any()
        assert (last.final_state.time == limit).all() and (last.state.time == 0).all()
        ended += [last.terminated]
    ended = np.stack(ended)
    assert ended.any() and not ended.all()


@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_a_longer_limit_is_kept_too(env_id):
    family, level = facts(env_id)
    states = states_met(env_id, 64)
    for limit in (3, family.limits[level] + 50):
        at_time = states.replace(time=np.full(size(states), limit - 2, np.int32))
        result = step(env_id, at_time, 0, limit=limit)
        assert not result.truncated.any()
        assert not result.terminated.all()
        ends = step(env_id, take(result.state, ~result.terminated), 0, limit=limit)
        np.testing.assert_array_equal(ends.truncated, ~ends.terminated)


@pytest.mark.parametrize("env_id", IDS)
def test_is_truncated_keeps_gymnax_meaning(env_id):
    """The limit is reached, whether or not the game ended by itself on that step."""
    family, level = facts(env_id)
    env, params = make(env_id)
    state = take(resets(env_id, 1), 0)
    for time, reached in ((family.limits[level] - 1, False), (family.limits[level], True)):
        assert bool(env.is_truncated(state.replace(time=np.int32(time)), params)) == reached


@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_an_action_outside_the_range_is_clipped(env_id):
    states = states_met(env_id, 256)
    for outside, inside in ((-1, 0), (-(2**31), 0), (5, 4), (2**31 - 1, 4)):
        got, expected = step(env_id, states, outside, seeds=1), step(env_id, states, inside, seeds=1)
        jax.tree.map(np.testing.assert_array_equal, got, expected)


@pytest.mark.parametrize("env_id", IDS)
def test_step_env_and_reset_env_do_not_reset_by_themselves(env_id):
    """gymnax's inner functions: five values, and a state that has ended is returned as it is."""
    env, params = make(env_id)
    limit = facts(env_id)[0].limits[facts(env_id)[1]]
    state = take(resets(env_id, 1), 0).replace(time=np.int32(limit - 1))

    def stepped(state):
        return env.step_env(jax.random.key(0), state, 1, params)[1:4]

    after, reward, terminated = jax.jit(stepped)(state)
    assert after.time == limit and np.isfinite(reward) and terminated.dtype == np.bool_
    _, shapes = jax.eval_shape(env.reset_env, jax.random.key(0), params)
    assert {name: leaf.dtype for name, leaf in vars(shapes).items()} == {
        name: getattr(state, name).dtype for name in field_names(state)
    }


@pytest.mark.parametrize("env_id", IDS)
def test_experts_end_within_the_limit(env_id):
    family, level = facts(env_id)
    result = expert_play(env_id)
    assert result.length.max() <= family.limits[level]
    assert (result.terminated ^ result.truncated).all()
    np.testing.assert_array_equal(result.truncated, (result.length == family.limits[level]) & ~result.terminated)
