"""Experts who know the hidden state get exactly what the specification says can be got, at best and at worst."""

import numpy as np
import pytest
from harness import EASY_USUALLY, expert_games, expert_play, facts, ids_of, resets

from benchmark import random_policy

# Share of episodes in which a clairvoyant player of CountRecall gets everything, and its mean return (section 8)
CLAIRVOYANT = {"CountRecallEasy": (1.00, 1.00), "CountRecallMedium": (0.84, 0.99), "CountRecallHard": (0.24, 0.96)}


@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_experts_get_what_they_should(env_id):
    games, result = expert_games(env_id), expert_play(env_id)
    wrong = [
        f"{game.name}: {value} instead of {game.value}"
        for game, value in zip(games, result.value, strict=True)
        if abs(value - game.value) > 1e-5
    ]
    assert not wrong


@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_both_bounds_are_reached(env_id):
    family, level = facts(env_id)
    low, high = family.bounds(level)
    value = expert_play(env_id).value
    assert value.min() == pytest.approx(low, abs=1e-5)
    assert value.max() == pytest.approx(high, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_random_play_stays_within_the_bounds(env_id):
    family, level = facts(env_id)
    low, high = family.bounds(level)
    values, lengths = random_policy.play(env_id, 1000, seed=1)
    assert values.shape == lengths.shape == (1000,)
    assert values.std() + lengths.std() > 0  # (either alone may be constant: random Tetris loses, always)
    assert low - 1e-5 <= values.min() and values.max() <= high + 1e-5
    assert 1 <= lengths.min() and lengths.max() <= family.limits[level]


@pytest.mark.parametrize("env_id", ids_of("Navigator"))
def test_navigator_can_nearly_always_be_won(env_id):
    games, result = expert_games(env_id), expert_play(env_id)
    won = result.value[[game.name == "shortest way" for game in games]]
    assert len(won) >= 60 and won.min() > 0.7


@pytest.mark.parametrize("env_id", ids_of("CountRecall"))
def test_shares_of_the_clairvoyant(env_id):
    """The plan's value is confirmed by playing it in the other tests; here it is counted over many resets."""
    from families.count_recall import CARDS, clairvoyant
    from harness import take

    family, level = facts(env_id)
    fresh = resets(env_id, 400, seed=9)
    best = np.array([clairvoyant(level, take(fresh, i), family.limits[level])[0] for i in range(400)]) / CARDS[level]
    share, mean = CLAIRVOYANT[env_id]
    deviation = 4 * np.sqrt(share * (1 - share) / 400) + 0.005  # four standard errors and the rounding of the page
    assert abs((best == 1).mean() - share) <= deviation
    assert abs(best.mean() - mean) <= 0.01


@pytest.mark.parametrize("env_id", ids_of("CartPole") + ids_of("NoisyCartPole"))
def test_no_constant_push_ends_before_the_eighth_step(env_id):
    result, games = expert_play(env_id), expert_games(env_id)
    lengths = result.length[[game.name == "pushes one way" for game in games]]
    assert lengths.min() == 8 and len(set(lengths)) > 1
