"""ppo_continuous_action.py: normalisation, the policy's distribution, bounds, and that both survive a checkpoint."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces
from runs import assert_equal, restored
from scripts import fresh_params, learned_return, small, trained

import ppo_continuous_action as script
from popgym_arcade.baselines.environment import check_env, make_env
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.normalization import Moments
from popgym_arcade.baselines.running.checkpoints import save_checkpoint
from popgym_arcade.baselines.running.folder import make_run_folder
from ppo_continuous_action import Output

NAME = "ppo_continuous_action"


def test_the_distribution_is_of_independent_normals():
    rng = np.random.default_rng(2)
    mean, log_std, action = rng.normal(size=(5, 3)), np.array([-1.0, 0.0, 0.5]), rng.normal(size=(5, 3))
    output = Output(mean=jnp.asarray(mean, jnp.float32), log_std=jnp.asarray(log_std, jnp.float32), value=jnp.zeros(5))
    policy = script.policy_of(output)
    std = np.exp(log_std)
    density = -0.5 * ((action - mean) / std) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(policy.log_prob(jnp.asarray(action, jnp.float32)), density.sum(axis=1), atol=1e-4)
    np.testing.assert_allclose(policy.entropy(), (0.5 * np.log(2 * np.pi * np.e) + log_std).sum(), atol=1e-4)


def test_policies():
    output = Output(mean=jnp.tile(jnp.array([5.0, -1.0]), (20_000, 1)), log_std=jnp.log(jnp.array([2.0, 0.5])), value=0)
    low, high = jnp.array([-2.0, 0.0]), jnp.array([2.0, 1.0])
    sample, greedy, uniform = (script.choose(jax.random.key(p), output, p, low, high) for p in range(3))
    np.testing.assert_allclose(sample.mean(axis=0), [5, -1], atol=0.05)
    np.testing.assert_allclose(sample.std(axis=0), [2, 0.5], atol=0.05)
    assert (greedy == output.mean).all()
    assert (uniform >= low).all() and (uniform <= high).all()
    np.testing.assert_allclose(uniform.mean(axis=0), [0, 0.5], atol=0.03)


def test_actions_are_clipped_when_played_and_kept_as_they_were():
    """Pendulum takes -2 to 2: a mean of 9 moves it as 2 does, and the log-probability is that of 9."""
    args = small(NAME)
    env, env_params = make_env(args)
    _, begin, act = script.make_actor(args)
    _, params = fresh_params(NAME, args)
    head = params["params"]["actor"]["Dense_2"]
    params["params"]["actor"]["Dense_2"] = head | {"bias": head["bias"] + 9}
    actor = jax.jit(begin, static_argnums=1)(jax.random.key(0), args.num_envs)
    after, transition, _ = jax.jit(act)(params, actor, script.GREEDY)
    assert (transition.action > 8).all()
    bound = jnp.full((args.num_envs, 1), 2.0)
    keys = jax.random.split(jax.random.key(9), args.num_envs)
    stepped = jax.vmap(env.step_env, in_axes=(0, 0, 0, None))(keys, actor.env_state, bound, env_params)
    np.testing.assert_allclose(after.obs, stepped[0], atol=1e-5)
    np.testing.assert_allclose(transition.log_prob, -0.5 * np.log(2 * np.pi), atol=1e-4)  # at the mean


def test_observations_are_normalised_by_their_moments():
    args = small(NAME)
    network, params = fresh_params(NAME, args)
    obs = jax.random.normal(jax.random.key(1), (1, 7, 3)) * 5 + 2
    moments = Moments.fresh((3,)).updated(obs[0])
    shifted = params | {"moments": {"obs": moments}}
    plain = (obs - moments.mean) / jnp.sqrt(moments.var + 1e-8)
    _, got = script.forward(network, shifted, (), obs)
    _, want = script.forward(network, params, (), plain)  # fresh moments: mean 0, variance 1
    np.testing.assert_allclose(got.mean, want.mean, atol=1e-5)
    np.testing.assert_allclose(got.value, want.value, atol=1e-5)
    raw_network, _ = fresh_params(NAME, small(NAME, norm_obs=False))
    _, raw = script.forward(raw_network, shifted, (), plain)
    np.testing.assert_allclose(raw.value, want.value, atol=1e-5)


def test_what_is_learned_does_not_depend_on_the_scale_of_rewards():
    """MountainCarContinuous pays through its parameters nothing that could be scaled: scale by hand instead."""
    rng = np.random.default_rng(3)
    sums = jnp.asarray(rng.normal(size=500), jnp.float32)
    for factor in (1.0, 1000.0):
        moments = Moments.fresh(()).updated(factor * sums)
        np.testing.assert_allclose(factor * sums / jnp.sqrt(moments.var + 1e-8), sums / sums.std(), rtol=1e-3)


def test_the_normaliser_is_in_the_checkpoint(tmp_path):
    args = small(NAME, run_dir=str(tmp_path))
    state, _ = trained(NAME, args, 3)
    moments = state.params["moments"]["obs"]
    assert float(moments.count) == pytest.approx(96, rel=1e-5) and float(state.reward_scale.moments.count) > 95
    assert float(jnp.abs(moments.mean).max()) > 0 and float(state.reward_scale.moments.var) != 1
    folder = make_run_folder(args)
    save_checkpoint(folder, args, 96, state)
    assert_equal(state, restored(folder)[1])


def test_normalisation_can_be_left_out():
    with_it, _ = trained(NAME, small(NAME), 2)
    without, _ = trained(NAME, small(NAME, norm_reward=False), 2)
    values = [state.params["params"]["critic"]["Dense_2"]["bias"] for state in (with_it, without)]
    assert not np.allclose(*values)


@pytest.mark.slow
def test_pendulum_is_learned():
    """Random play gets about -1200 in 200 steps."""
    args = small(NAME, num_envs=16, num_steps=128, num_minibatches=16, update_epochs=10, gamma=0.9, learning_rate=1e-3)
    assert learned_return(NAME, dataclasses.replace(args, total_timesteps=61_440, hidden_size=64)) > -400


def test_actions_without_bounds_are_refused():
    """The random policy chooses uniformly between them."""
    env, _ = make_env(small("ppo_continuous_action"))
    endless = spaces.Box(-jnp.inf, jnp.inf, (2,))
    with pytest.raises(UserError, match="--env-id Endless has unbounded actions"):
        check_env(small("ppo_continuous_action"), "--env-id Endless", env, endless)
