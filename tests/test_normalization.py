"""popgym_arcade/baselines/normalization.py: moments, discounted sums, and learning in units of the reward scale."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments.classic_control.cartpole import CartPole
from scripts import small, trained, usually

from popgym_arcade.baselines.normalization import Moments, RewardScale, discounted_sums

SCALED = ("pqn_mlp", "pqn_rnn", "ppo_mlp", "ppo_rnn", "dqn_mlp", "dqn_rnn")


def random_rollout(seed, steps=20, num_envs=3):
    rng = np.random.default_rng(seed)
    ends = rng.random((2, steps, num_envs)) < 0.1
    reward = jnp.asarray(rng.normal(size=(steps, num_envs)), jnp.float32)
    return SimpleNamespace(reward=reward, terminated=ends[0], truncated=ends[1] & ~ends[0])


def sums_by_a_loop(rollout, before, gamma):
    sums, last = np.zeros(rollout.reward.shape), np.array(before, float)
    done = rollout.terminated | rollout.truncated
    for t, e in np.ndindex(*sums.shape):
        sums[t, e] = last[e] = float(rollout.reward[t, e]) + gamma * last[e]
        last[e] *= not done[t, e]
    return sums, last


def test_moments_are_those_of_all_samples():
    rng = np.random.default_rng(0)
    batches = [rng.normal(3, 2, (size, 4)) for size in (1, 50, 7, 300)]
    moments = Moments.fresh((4,))
    for batch in batches:
        moments = moments.updated(jnp.asarray(batch, jnp.float32))
    together = np.concatenate(batches)
    np.testing.assert_allclose(moments.mean, together.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(moments.var, together.var(axis=0), rtol=1e-4)
    assert float(moments.count) == pytest.approx(len(together), rel=1e-5)


def test_discounted_sums_equal_a_loop():
    rollout, before = random_rollout(1), np.array([0.5, -1.0, 2.0])
    last, sums = discounted_sums(rollout, jnp.asarray(before, jnp.float32), 0.9)
    want_sums, want_last = sums_by_a_loop(rollout, before, 0.9)
    np.testing.assert_allclose(sums, want_sums, atol=1e-5)
    np.testing.assert_allclose(last, want_last, atol=1e-5)


def test_the_reward_scale_is_the_deviation_of_all_discounted_sums():
    scale, last, every = RewardScale.fresh(3), np.zeros(3), []
    assert float(scale.std) == 1
    for seed in range(4):
        rollout = random_rollout(seed)
        scale = scale.updated(rollout, 0.9)
        sums, last = sums_by_a_loop(rollout, last, 0.9)
        every.append(sums)
    assert float(scale.std) == pytest.approx(np.std(every), rel=1e-4)
    np.testing.assert_allclose(scale.sums, last, atol=1e-5)


def test_rollouts_before_the_first_reward_do_not_shrink_the_unit():
    """After a hundred of them, the first reward would be learned as 321."""
    rollout, nothing = random_rollout(0), random_rollout(0)
    nothing.reward = jnp.zeros_like(rollout.reward)
    late = early = RewardScale.fresh(3)
    for _ in range(100):
        late = late.updated(nothing, 0.9)
    assert float(late.std) == 1
    late, early = late.updated(rollout, 0.9), early.updated(rollout, 0.9)
    assert float(late.std) == float(early.std) != 1
    after = late.updated(nothing, 0.9)
    assert float(after.moments.count) == pytest.approx(2 * float(late.moments.count))  # from then on, they count


class LargeRewards(CartPole):
    """CartPole-v1, but a step pays 1,024."""

    def step_env(self, *inputs):
        obs, state, reward, *rest = super().step_env(*inputs)
        return obs, state, 1024 * reward, *rest


@pytest.mark.parametrize("name", usually("pqn_mlp", "dqn_mlp", of=SCALED))
def test_what_is_learned_does_not_depend_on_the_size_of_rewards(name):
    """And TensorBoard has values in the game's unit."""
    explore = {"start_e": 1.0, "end_e": 1.0} if "qn" in name else {}  # so that rounding does not choose actions
    state, sums = trained(name, small(name, **explore), 4)
    larger_state, larger_sums = trained(name, small(name, env_id="test_normalization:LargeRewards", **explore), 4)
    assert float(larger_state.reward_scale.std) == pytest.approx(1024 * float(state.reward_scale.std), rel=1e-3)
    for x, y in zip(jax.tree.leaves(state.params), jax.tree.leaves(larger_state.params), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-3)
    for loss in {"td_loss", "value_loss"} & sums.keys():
        assert float(sums[loss]) == pytest.approx(float(larger_sums[loss]), rel=1e-2)
    if "q_values" in sums:
        assert float(sums["q_values"]) != 0
        assert float(larger_sums["q_values"]) == pytest.approx(1024 * float(sums["q_values"]), rel=1e-2)


@pytest.mark.parametrize("name", usually("pqn_mlp", of=SCALED))
def test_norm_reward_can_be_switched_off(name):
    state, _ = trained(name, small(name, norm_reward=False), 2)
    assert float(state.reward_scale.std) == 1
