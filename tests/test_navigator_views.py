"""The two maps of benchmark/navigator_views.py: the same game, and the same information."""

import jax
import numpy as np

from benchmark.navigator_views import Centred, Fixed

SIDE = 8


def played():
    """Both maps along one episode after another: [T, 3, 8, 8] and [T, 3, 15, 15]."""
    fixed, centred = Fixed(), Centred()
    params = fixed.default_params
    obs, state = fixed.reset(jax.random.key(0), params)
    seen = []
    for step in jax.random.split(jax.random.key(1), 60):
        step_key, action_key = jax.random.split(step)
        seen.append((obs.reshape(3, SIDE, SIDE), centred.get_obs(state).reshape(3, 15, 15)))
        obs, state, *_ = fixed.step(step_key, state, jax.random.randint(action_key, (), 0, 5), params)
    return (np.array(maps) for maps in zip(*seen, strict=True))


def test_the_centred_map_is_the_fixed_one_shifted_to_the_player():
    for fixed, centred in zip(*played(), strict=True):
        tnt, treasure, player = fixed
        assert (tnt.sum(), treasure.sum(), player.sum()) == (7, 1, 1)
        ((y, x),) = np.argwhere(player)
        field = slice(7 - y, 15 - y), slice(7 - x, 15 - x)
        np.testing.assert_array_equal(centred[:, *field], [tnt, treasure, np.ones((SIDE, SIDE))])
        assert centred.sum() == 7 + 1 + SIDE**2


def test_their_observations_are_of_the_spaces():
    for env in (Fixed(), Centred()):
        obs, _ = env.reset(jax.random.key(1))
        space = env.observation_space()
        assert obs.shape == space.shape and obs.dtype == space.dtype and bool(space.contains(obs))
