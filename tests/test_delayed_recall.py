"""DelayedRecall: the rules, what each twin shows, and that the scripts play it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripts import small, trained

from popgym_arcade.environments.arcade import DOWN, FIRE, LEFT, RIGHT, UP
from popgym_arcade.environments.contract import check_game
from popgym_arcade.environments.delayed_recall import LONGEST, DelayedRecall, DelayedRecallState

ANSWERS = [UP, DOWN, LEFT, RIGHT]  # heart, spade, club, diamond


def state_of(suit, wait, time):
    return DelayedRecallState(time=jnp.int32(time), suit=jnp.int32(suit), wait=jnp.int32(wait))


def params_of(env, length):
    return env.default_params.replace(memory_length=length)


@pytest.mark.parametrize("obs_size", [128, 256])
def test_it_keeps_the_contract_of_games(obs_size):
    check_game(DelayedRecall, obs_size)


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("partial_obs", [False, True])
def test_only_the_answer_to_the_question_counts(length, partial_obs):
    env = DelayedRecall(partial_obs)
    params = params_of(env, length)
    for suit in range(4):
        for answer in (UP, DOWN, LEFT, RIGHT, FIRE):
            state = state_of(suit, length, 0)
            for step in range(length):  # the answer does nothing before the question
                _, state, reward, terminated, _ = env.step_env(jax.random.key(step), state, answer, params)
                assert (reward, terminated, state.suit, state.wait) == (0, False, suit, length - 1 - step)
            _, state, reward, terminated, truncated, info = env.step(jax.random.key(9), state, answer, params)
            assert (reward, terminated, truncated) == (ANSWERS[suit] == answer, True, False)
            assert info["final_state"].time == length + 1 and (state.time, state.wait) == (
                0,
                length,
            )  # the next episode


def test_first_states_have_any_suit_and_the_length_asked_for():
    env = DelayedRecall()
    states = jax.vmap(lambda key: env.reset(key, params_of(env, 7))[1])(jax.random.split(jax.random.key(0), 4_000))
    np.testing.assert_allclose(np.bincount(states.suit) / 4_000, 0.25, atol=0.03)
    assert (states.wait == 7).all()
    lengths = {given: env.reset(jax.random.key(0), params_of(env, given))[1].wait for given in (0, 1, 5_000)}
    assert lengths == {0: 1, 1: 1, 5_000: LONGEST}


def test_the_longest_episode_is_within_the_time_limit():
    env = DelayedRecall()
    params = params_of(env, LONGEST)
    asked = state_of(2, 0, LONGEST)
    _, _, reward, terminated, truncated, _ = env.step(jax.random.key(0), asked, LEFT, params)
    assert (reward, terminated, truncated) == (1, True, False)


@pytest.mark.parametrize("obs_size", [128, 256])
def test_the_full_frame_shows_the_state_and_the_partial_frame_forgets_the_card(obs_size):
    suits, waits = (grid.ravel() for grid in np.meshgrid(np.arange(4), [0, 1, 9, 10, 99, 100, 998, 999]))
    states = DelayedRecallState(time=jnp.full(suits.shape, 3), suit=jnp.asarray(suits), wait=jnp.asarray(waits))

    def distinct(partial_obs, states):
        frames = jax.vmap(DelayedRecall(partial_obs, obs_size).render)(states)
        return len(np.unique(np.asarray(frames).reshape(len(suits), -1), axis=0))

    assert distinct(False, states) == distinct(True, states.replace(time=0 * states.time)) == len(suits)
    assert distinct(True, states) == len(set(waits.tolist()))


def test_the_scripts_play_it():
    args = small(
        "pqn_rnn",
        env_id="popgym_arcade.environments.delayed_recall:DelayedRecall",
        partial_obs=True,
        env_params=("memory_length=3",),
    )
    _, sums = trained("pqn_rnn", args, updates=2)
    assert sums["episodes"] == 2 * 32 // 4  # four steps each
    assert 0 <= sums["episodic_return"] <= sums["episodes"]
