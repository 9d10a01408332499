"""Every draw of a reset is what the specification says, over 10,000 resets from a fixed key."""

import numpy as np
import pytest
from families import chances
from families.cartpole import SIGMAS, VARIABLES
from harness import EASY_USUALLY, IDS, facts, ids_of, random_play, resets, split_id, states_met, step, take

COUNT = 10_000
LEAST = 1e-5  # of several hundred p-values from fixed keys; a wrong draw gives 1e-50


@pytest.mark.parametrize("env_id", IDS)
def test_resets_are_uniform(env_id):
    family, level = facts(env_id)
    fresh = resets(env_id, COUNT)
    family.check_fresh(level, fresh)
    chance = family.draws(level, fresh)
    assert {name: p for name, p in chance.items() if not p > LEAST} == {}


@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_auto_resets_are_uniform(env_id):
    """The state that follows an end is drawn like any other reset, from the step's key."""
    family, level = facts(env_id)
    last = resets(env_id, COUNT, seed=1)
    last = last.replace(time=np.full(COUNT, family.limits[level] - 1, np.int32))
    fresh = step(env_id, last, 0, seeds=np.arange(COUNT)).state
    family.check_fresh(level, fresh)
    chance = family.draws(level, fresh)
    assert {name: p for name, p in chance.items() if not p > LEAST} == {}


@pytest.mark.parametrize("env_id", ids_of("NoisyCartPole"))
def test_noise_is_normal_and_fresh_at_each_step(env_id):
    sigma = SIGMAS[split_id(env_id)[1]]
    played = random_play(env_id)
    noise, before = played.final_state.noise, played.before.noise
    for i in range(4):
        sample = np.random.default_rng(i).permutation(noise[..., i].ravel())[:COUNT]
        assert chances.normal(sample, sigma) > LEAST
        assert chances.unrelated(noise[..., i].ravel()[:COUNT], before[..., i].ravel()[:COUNT]) > LEAST
        for j in range(i):
            assert chances.unrelated(noise[..., i].ravel()[:COUNT], noise[..., j].ravel()[:COUNT]) > LEAST
    assert (noise != before).all()


@pytest.mark.parametrize("env_id", ids_of("NoisyCartPole"))
def test_the_dynamics_do_not_see_the_noise(env_id):
    states = states_met(env_id, 500)
    loud = states.replace(noise=np.full_like(states.noise, 5.0))
    for action in range(5):
        plain, noisy = (step(env_id, batch, action, seeds=np.arange(500)) for batch in (states, loud))
        for name in (*VARIABLES, "noise", "time"):
            np.testing.assert_array_equal(getattr(plain.final_state, name), getattr(noisy.final_state, name))
        for name in ("reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(plain, name), getattr(noisy, name))


@pytest.mark.parametrize("env_id", ids_of("NoisyCartPole"))
def test_noise_depends_on_the_key_alone(env_id):
    """Two keys, two noises; one key, one noise, wherever the pole is."""
    states = take(states_met(env_id, 1), np.zeros(50, int))
    other = step(env_id, states, 2, seeds=np.arange(50)).final_state.noise
    assert len({tuple(row) for row in other}) == 50
    np.testing.assert_array_equal(step(env_id, states, 3, seeds=np.arange(50)).final_state.noise, other)


@pytest.mark.parametrize("env_id", ids_of("CartPole"))
def test_cartpole_has_no_noise(env_id):
    assert (random_play(env_id).after.noise == 0).all()
