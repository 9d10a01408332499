"""gymnax's wrappers work on the environments that gymnax.make returns."""

import gymnax
import jax
import numpy as np
import pytest
from gymnax import wrappers
from harness import EASY_IDS, facts, make, only_usually

# gymnax's wrappers know nothing of a game: some of them stand for all
SOME = only_usually(["CartPoleEasy", "CountRecallEasy", "NavigatorEasy"], EASY_IDS)


def play(env, params, steps, seed=0):
    """A few random steps through jit and scan; all outputs."""
    reset_key, action_key, play_key = jax.random.split(jax.random.key(seed), 3)
    actions = jax.random.randint(action_key, (steps,), 0, 5)

    def body(state, inputs):
        key, action = inputs
        obs, state, *rest = env.step(key, state, action, params)
        return state, (obs, *rest)

    obs, state = env.reset(reset_key, params)
    state, outputs = jax.lax.scan(body, state, (jax.random.split(play_key, steps), actions))
    return obs, state, jax.tree.map(np.asarray, outputs)


@pytest.mark.parametrize("env_id", SOME)
def test_log_wrapper(env_id):
    env, params = make(env_id)
    params = params.replace(max_steps_in_episode=4)
    logged = wrappers.LogWrapper(env)
    *_, outputs = play(logged, params, 9)
    _, reward, terminated, truncated, info = outputs
    done = terminated | truncated
    np.testing.assert_array_equal(info["returned_episode"], done)
    last = np.flatnonzero(done)[-1]
    start = np.flatnonzero(done)[-2] + 1
    assert info["returned_episode_lengths"][last] == last + 1 - start
    assert info["returned_episode_returns"][last] == pytest.approx(reward[start : last + 1].sum(), abs=1e-6)


@pytest.mark.parametrize("env_id", SOME)
def test_flatten_observation_wrapper(env_id):
    env, params = make(env_id)
    flat = wrappers.FlattenObservationWrapper(env)
    assert flat.observation_space(params).shape == (128 * 128 * 3,)
    first, _, outputs = play(flat, params, 3)
    plain_first, _, plain = play(env, params, 3)
    np.testing.assert_array_equal(first, np.ravel(plain_first))
    np.testing.assert_array_equal(outputs[0], plain[0].reshape(3, -1))
    np.testing.assert_array_equal(outputs[-1]["final_observation"], plain[-1]["final_observation"].reshape(3, -1))


@pytest.mark.parametrize("env_id", SOME)
def test_sticky_action_wrapper(env_id):
    """With probability 1 the first action is repeated for ever: as if it had been chosen."""
    env, params = make(env_id)
    sticky = wrappers.StickyActionWrapper(env, sticky_action_prob=1.0)

    @jax.jit
    def run(key):
        reset_key, step_key = jax.random.split(key)
        _, state = sticky.reset(reset_key, params)
        start = state.env_state
        state = sticky.step(step_key, state, 3, params)[1]
        return start, state

    start, state = run(jax.random.key(0))
    assert state.last_action == 0
    expected = env.step(jax.random.split(jax.random.key(5))[0], start, 0, params)[1]
    for name in set(vars(start)) - set(facts(env_id)[0].drawn):
        np.testing.assert_allclose(getattr(state.env_state, name), getattr(expected, name), rtol=1e-6)


@pytest.mark.parametrize("env_id", SOME)
def test_legacy_step_wrapper(env_id):
    env, params = make(env_id)
    legacy = wrappers.LegacyStepAPIWrapper(wrappers.LogWrapper(env))
    *_, outputs = play(legacy, params.replace(max_steps_in_episode=2), 5)
    obs, reward, done, info = outputs
    np.testing.assert_array_equal(done, info["terminated"] | info["truncated"])
    assert done.any() and obs.shape == (5, 128, 128, 3)


@pytest.mark.parametrize("env_id", SOME)
def test_gym_wrapper(env_id):
    gym = pytest.importorskip("gymnasium")
    env, params = make(env_id, partial_obs=True)
    with jax.debug_key_reuse(False):  # gymnax's own wrapper draws its first state with a key it goes on using
        wrapped = wrappers.GymnaxToGymWrapper(env, params, seed=3)
        assert wrapped.action_space == gym.spaces.Discrete(5)
        assert wrapped.observation_space.shape == (128, 128, 3) and wrapped.observation_space.dtype == np.uint8
        obs, _ = wrapped.reset(seed=1)
        assert wrapped.observation_space.contains(np.asarray(obs))
        for action in range(5):
            obs, reward, terminated, truncated, info = wrapped.step(action)
        assert wrapped.observation_space.contains(np.asarray(obs))
        assert np.isfinite(reward) and not (terminated and truncated) and "final_state" in info


@pytest.mark.parametrize("env_id", SOME)
def test_vector_gym_wrapper(env_id):
    pytest.importorskip("gymnasium")
    env, params = make(env_id, partial_obs=True)
    with jax.debug_key_reuse(False):  # as above
        wrapped = wrappers.GymnaxToVectorGymWrapper(env, num_envs=3, params=params, seed=3)
        assert wrapped.observation_space.shape == (3, 128, 128, 3)
        obs, _ = wrapped.reset(seed=1)
        obs, reward, terminated, truncated, info = wrapped.step(np.array([0, 1, 4]))
        assert wrapped.observation_space.contains(np.asarray(obs))
        assert reward.shape == terminated.shape == truncated.shape == (3,)


def test_all_wrappers_of_gymnax_are_covered():
    """A wrapper that gymnax adds wants a test here (dm_env is not a dependency, and needs a package of its own)."""
    covered = {"Log", "FlattenObservation", "StickyAction", "LegacyStepAPI", "GymnaxToGym", "GymnaxToVectorGym"}
    assert {name.removesuffix("Wrapper") for name in gymnax.wrappers.__all__} - {"GymnaxToDmEnv"} == covered
