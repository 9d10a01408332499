"""Sums over updates, and the curves made of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from popgym_arcade.baselines.episode import Episode
from popgym_arcade.baselines.running.metrics import episode_curves, episode_sums, explained_variance, repeat


@struct.dataclass
class Rollout:
    episode: Episode


def test_sums_are_added_up_over_any_number_of_updates():
    chunk = jax.jit(repeat(lambda state: (state + 1, {"seen": state.astype(jnp.float32)})))
    for updates in (0, 1, 5):
        state, sums = chunk(jnp.int32(2), updates)
        assert state == 2 + updates and sums["updates"] == updates
        assert sums["seen"] == sum(range(2, 2 + updates))
    assert chunk._cache_size() == 1


def test_a_metric_that_is_true_or_false_is_refused():
    with pytest.raises(TypeError, match="'solved' as a bool, which cannot be added up"):
        jax.eval_shape(repeat(lambda state: (state, {"solved": state > 0})), jnp.int32(0), 1)


def test_episode_means_are_over_the_episodes_that_ended():
    ends = np.array([[True, False], [False, True]])
    rollout = Rollout(Episode(np.array([[3.0, 8.0], [9.0, 5.0]]), np.array([[2, 8], [9, 4]]), over=ends))
    sums = jax.device_get(episode_sums(jax.tree.map(jnp.asarray, rollout)))
    curves = episode_curves(sums)
    assert curves["charts/episodes"] == 2
    assert curves["charts/episodic_return"] == 4 and curves["charts/episodic_length"] == 3
    none = episode_curves({name: 0 * x for name, x in sums.items()})
    assert all(np.isnan(x) for x in none.values())


def test_explained_variance():
    target = jnp.array([[1.0, 2.0], [3.0, 6.0]])
    assert explained_variance(target, target) == 1
    assert explained_variance(jnp.full((2, 2), 7.0), target) == 0
    assert explained_variance(2 * target, target) == 0  # the error target - 2 target varies as much as the target
    for constant in (0.1, 1 / 12, 1e-3, 1.0):  # rounding gives most of them a variance
        assert jnp.isnan(explained_variance(0.01 * jnp.arange(1024.0), jnp.full(1024, constant)))


def test_an_episode_counts_in_the_game_s_own_units_until_it_is_over():
    """The learner may see clipped rewards, and a termination with every life."""
    info = {"raw_reward": jnp.array([3.0, -5.0]), "over": jnp.array([False, True])}
    one = Episode.begin(2).after(info)
    np.testing.assert_array_equal((one.total_reward, one.length, one.over), ([3, -5], [1, 1], [False, True]))
    two = one.after(info | {"over": jnp.zeros(2, bool)})
    np.testing.assert_array_equal((two.total_reward, two.length, two.over), ([6, -5], [2, 1], [False, False]))
