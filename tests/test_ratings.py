"""Elo ratings of checkpoints, from games of known chances."""

import numpy as np

from popgym_arcade.baselines.running.ratings import elo, with_intervals


def games_of(ratings, count, random):
    """Outcomes [N, N, 3] of games between players of these ratings, without draws."""
    outcomes = np.zeros((len(ratings), len(ratings), 3), int)
    for a in range(len(ratings)):
        for b in range(a):
            wins = random.binomial(count, 1 / (1 + 10 ** ((ratings[b] - ratings[a]) / 400)))
            outcomes[a, b] = wins, 0, count - wins
            outcomes[b, a] = outcomes[a, b, ::-1]
    return outcomes


def test_ratings_are_those_the_games_were_drawn_with():
    ratings = np.array([-300.0, -50.0, 0.0, 120.0, 230.0])
    outcomes = games_of(ratings, 20_000, np.random.default_rng(0))
    np.testing.assert_allclose(elo(outcomes), ratings - ratings.mean(), atol=6)


def test_three_wins_in_four_games_are_191_points():
    outcomes = np.zeros((2, 2, 3), int)
    outcomes[0, 1], outcomes[1, 0] = (7500, 0, 2500), (2500, 0, 7500)
    np.testing.assert_allclose(np.diff(elo(outcomes)), -400 * np.log10(3), atol=0.1)


def test_a_draw_is_half_a_win():
    outcomes = np.zeros((2, 2, 3), int)
    outcomes[0, 1], outcomes[1, 0] = (5000, 5000, 0), (0, 5000, 5000)
    np.testing.assert_allclose(np.diff(elo(outcomes)), -400 * np.log10(3), atol=0.1)


def test_a_player_that_wins_every_game_has_a_finite_rating():
    outcomes = np.zeros((2, 2, 3), int)
    outcomes[0, 1], outcomes[1, 0] = (128, 0, 0), (0, 0, 128)
    assert 800 < elo(outcomes)[0] - elo(outcomes)[1] < 1200


def test_intervals_contain_the_ratings_about_as_often_as_they_say():
    ratings, random = np.array([-100.0, 0.0, 100.0]), np.random.default_rng(1)
    inside = []
    for _ in range(30):
        _, low, high = with_intervals(games_of(ratings, 100, random), random)
        inside += ((low <= ratings) & (ratings <= high)).tolist()
    assert 0.85 < np.mean(inside) <= 1
