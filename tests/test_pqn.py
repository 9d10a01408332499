"""pqn_mlp.py and pqn_rnn.py: returns and exploration against independent implementations, and that they learn."""

import dataclasses

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from gymnax.environments import spaces
from scripts import arcade, fresh_params, learned_return, script, small, trained, usually

import popgym_arcade
import pqn_mlp
import pqn_rnn
from popgym_arcade.baselines.environment import make_env
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.running import churn

# ------------------------------------------------------------------------------------------------- returns, exploration


def random_rollout(key, steps=40, envs=6, ends=True):
    keys = jax.random.split(key, 6)
    terminated = jax.random.bernoulli(keys[0], 0.15 * ends, (steps, envs))
    truncated = jax.random.bernoulli(keys[1], 0.15 * ends, (steps, envs)) & ~terminated
    reward, final_value, next_value = (jax.random.normal(k, (steps, envs)) for k in keys[2:5])
    fields = {field.name: None for field in dataclasses.fields(pqn_rnn.Transition)}
    fields |= {"reward": reward, "terminated": terminated, "truncated": truncated, "final_value": final_value}
    return pqn_rnn.Transition(**fields), next_value


def test_q_lambda_returns_equal_a_slow_loop():
    rollout, next_value = jax.tree.map(np.asarray, random_rollout(jax.random.key(0)))
    assert rollout.terminated.any() and rollout.truncated.any()
    gamma, lam = 0.9, 0.7
    steps, envs = rollout.reward.shape
    want = np.zeros((steps, envs))
    for e in range(envs):
        for t in range(steps):  # by definition: the lambda-weighted sum of all n-step returns up to the episode's end
            weight, discount, reward_sum = 1.0, 1.0, 0.0
            for k in range(t, steps):
                reward_sum += discount * float(rollout.reward[k, e])
                discount *= gamma
                if rollout.terminated[k, e]:
                    want[t, e] += weight * reward_sum
                    break
                value = rollout.final_value[k, e] if rollout.truncated[k, e] else next_value[k, e]
                n_step_return = reward_sum + discount * float(value)
                if rollout.truncated[k, e] or k == steps - 1:
                    want[t, e] += weight * n_step_return
                    break
                want[t, e] += weight * (1 - lam) * n_step_return
                weight *= lam
    got = jax.jit(pqn_rnn.q_lambda_returns)(rollout, next_value, gamma, lam)
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("ends", [False, True])
def test_q_lambda_returns_equal_rlax(ends):
    rollout, next_value = random_rollout(jax.random.key(1), ends=ends)
    gamma, lam = 0.99, 0.65
    discount = gamma * (1.0 - rollout.terminated)
    value = jnp.where(rollout.truncated, rollout.final_value, next_value)
    want = jax.vmap(rlax.lambda_returns, in_axes=1, out_axes=1)(
        rollout.reward, discount, value, lam * (1.0 - rollout.truncated)
    )
    np.testing.assert_allclose(pqn_rnn.q_lambda_returns(rollout, next_value, gamma, lam), want, atol=1e-5)


def test_epsilon_greedy_explores_as_often_as_it_says():
    q = jnp.tile(jnp.array([0.0, 3.0, 1.0]), (20_000, 1))
    greedy = pqn_rnn.epsilon_greedy(jax.random.key(0), q, 0.0)
    assert (greedy == 1).all()
    action = pqn_rnn.epsilon_greedy(jax.random.key(1), q, 0.3)
    np.testing.assert_allclose(np.bincount(action) / len(q), [0.1, 0.8, 0.1], atol=0.01)


def test_schedules_are_fractions_of_the_training():
    args = small("pqn_rnn", start_e=1.0, end_e=0.1, exploration_fraction=0.5, learning_rate=1e-3)
    epsilons = [float(pqn_rnn.epsilon_at(args, update)) for update in (0, args.num_updates // 4, args.num_updates // 2)]
    np.testing.assert_allclose(epsilons, [1.0, 0.55, 0.1], atol=1e-6)
    assert float(pqn_rnn.epsilon_at(args, args.num_updates)) == pytest.approx(0.1)
    last = args.num_updates * args.update_epochs * args.num_minibatches
    rates = [float(pqn_rnn.learning_rate_at(args, step)) for step in (0, last // 2, last)]
    np.testing.assert_allclose(rates, [1e-3, 5e-4, 0], atol=1e-9)
    constant = dataclasses.replace(args, anneal_lr=False)
    assert float(pqn_rnn.learning_rate_at(constant, last)) == pytest.approx(1e-3)


@pytest.mark.parametrize("name", ["pqn_mlp", "pqn_rnn"])
def test_churn_is_the_share_of_greedy_actions_that_a_gradient_step_changes(name):
    """With two epochs of one minibatch, that is the share of the whole rollout after the first gradient step."""
    sizes = {"num_envs": 16, "num_steps": 16, "num_minibatches": 1, "update_epochs": 2}
    args = small(name, **sizes, learning_rate=1.0, anneal_lr=False, log_churn=True)
    network, params = fresh_params(name, args)
    state = trained(name, args, updates=0)[0].replace(params=params)
    _, sums = jax.jit(script(name).make_train(args)[1])(state)
    once = dataclasses.replace(args, update_epochs=1, log_churn=False)
    updated = jax.jit(script(name).make_train(once)[1])(state)[0].params

    _, _, act = script(name).make_actor(args)
    epsilon = script(name).epsilon_at(args, state.update)
    _, rollout = jax.lax.scan(lambda actor, _: act(state.params, actor, epsilon)[:2], state.actor, length=16)
    memory = (rollout.prev_action, rollout.start) if name == "pqn_rnn" else ()
    carry = state.actor.carry if name == "pqn_rnn" else ()

    def changed(params):
        _, output = script(name).forward(network, params, carry, rollout.seen, *memory)
        return float((output.q.argmax(axis=-1) != rollout.greedy).mean())

    assert changed(params) == 0 < changed(updated)
    assert sums["churn_per_step"] == sums["churn_per_rollout"] == pytest.approx(changed(updated), abs=1 / 256)


def test_churn_is_logged_if_a_rollout_has_two_gradient_steps():
    assert not trained("pqn_rnn", small("pqn_rnn"), updates=1)[1].keys() & churn.CHURN
    with pytest.raises(UserError, match="--log-churn compares gradient steps: use --num-minibatches"):
        small("pqn_rnn", num_minibatches=1, update_epochs=1, log_churn=True)
    args = small("pqn_rnn", log_churn=True)
    sums = churn.churn_sums(args, jnp.array([0.0, 0.25, 0.5, 0.75]))
    assert sums == {"churn_per_step": 0.25, "churn_per_rollout": 0.75}
    points = pqn_rnn.curves(args, args.update_size, trained("pqn_rnn", args, updates=1)[1])
    assert points.keys() >= {"charts/churn_per_step", "charts/churn_per_rollout"}


def test_both_scripts_share_their_mathematics():
    rollout, next_value = random_rollout(jax.random.key(2))
    fields = {field.name for field in dataclasses.fields(pqn_mlp.Transition)}
    other = pqn_mlp.Transition(**{name: getattr(rollout, name) for name in fields})
    returns = pqn_rnn.q_lambda_returns(rollout, next_value, 0.9, 0.7)
    np.testing.assert_array_equal(pqn_mlp.q_lambda_returns(other, next_value, 0.9, 0.7), returns)
    q = jax.random.normal(jax.random.key(3), (50, 4))
    actions = [module.epsilon_greedy(jax.random.key(4), q, 0.5) for module in (pqn_mlp, pqn_rnn)]
    np.testing.assert_array_equal(*actions)


# -------------------------------------------------------------------------------------------------------------- memory


def test_first_action_is_not_seen_across_an_episode_start():
    network, weights = fresh_params("pqn_rnn", small("pqn_rnn", memory="MLP"))
    forward = jax.jit(pqn_rnn.forward, static_argnums=0)
    obs, carry = jnp.ones((1, 1, 4)), pqn_rnn.initial_carry(network, 1)
    actions = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), jnp.int32)
    for start in (True, False):
        one, other = (forward(network, weights, carry, obs, action, jnp.full((1, 1), start))[1].q for action in actions)
        assert bool((one == other).all()) == start


@pytest.mark.parametrize("env_id", usually("CartPole-v1", of=("CartPoleEasy", "CartPole-v1")))
def test_truncation_bootstraps_from_the_final_observation_with_the_memory_as_it_was(env_id):
    args = small("pqn_rnn", env_id=env_id, env_params=("max_steps_in_episode=3",))
    env, env_params = make_env(args)
    _, begin, act = pqn_rnn.make_actor(args)
    network, params = fresh_params("pqn_rnn", args)
    forward, act = jax.jit(pqn_rnn.forward, static_argnums=0), jax.jit(act)
    actor = jax.jit(begin, static_argnums=1)(jax.random.key(1), args.num_envs)
    for t in range(3):
        before = actor
        actor, transition, info = act(params, before, 0.5)
        assert bool(transition.truncated.all()) == (t == 2) and not transition.terminated.any()
        if t < 2:
            assert (transition.final_value == 0).all()
    # the same step by hand, without auto-reset
    last = before.carry, before.obs[None], before.prev_action[None], before.start[None]
    carry, _ = forward(network, params, *last)
    _, _, step_key = jax.random.split(jax.random.clone(before.key), 3)
    step_keys = jax.vmap(lambda key: jax.random.split(key)[0])(jax.random.split(step_key, args.num_envs))
    stepped = jax.jit(jax.vmap(env.step_env, in_axes=(0, 0, 0, None)))(
        step_keys, before.env_state, transition.action, env_params
    )
    _, output = forward(
        network, params, carry, stepped[0][None], transition.action[None], jnp.zeros((1, args.num_envs), bool)
    )
    np.testing.assert_allclose(transition.final_value, output.q[0].max(axis=-1), atol=1e-5)
    np.testing.assert_allclose(info["final_observation"], stepped[0], atol=1e-6)
    assert actor.start.all() and actor.episode.over.all() and (transition.episode.length == 3).all()


# ------------------------------------------------------------------------------------------------------------ training


def discrete_gymnax_ids():
    for env_id in gymnax.registered_envs:
        if env_id in popgym_arcade.REGISTERED_ENVIRONMENTS or env_id == "MNISTBandit-bsuite":
            continue
        env, params = gymnax.make(env_id)
        if isinstance(env.action_space(params), spaces.Discrete):
            yield env_id


@pytest.mark.slow
@pytest.mark.parametrize("env_id", usually("Breakout-MinAtar", of=discrete_gymnax_ids()))
def test_some_updates_on_every_gymnax_id(env_id):
    state, metrics = trained(
        "pqn_rnn", small("pqn_rnn", env_id=env_id, memory="MLP", update_epochs=1, num_minibatches=1), 4
    )
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
    assert float(metrics["grad_norm"]) > 0


@pytest.mark.thorough
@pytest.mark.parametrize("env_id", ("NavigatorEasy", "CountRecallHard", "NoisyCartPoleMedium"))
def test_one_update_on_arcade_ids(env_id):
    state, metrics = trained("pqn_rnn", arcade("pqn_rnn", env_id=env_id, obs_size=256), 1)
    assert state.actor.obs.dtype == jnp.uint8 and float(metrics["grad_norm"]) > 0


@pytest.mark.slow
def test_a_memory_learns_what_no_memory_can():
    """MemoryChain: remember one bit for five steps. Return 1 with memory, 0 on average without."""
    args = pqn_rnn.Args(env_id="MemoryChain-bsuite", env_params=("memory_length=5",), prev_action=False, hidden_size=32)
    args = dataclasses.replace(args, total_timesteps=20_480, num_envs=16, num_minibatches=4)
    means = {
        memory: learned_return("pqn_rnn", dataclasses.replace(args, memory=memory), seeds=1)
        for memory in ("MinGRU", "MLP")
    }
    assert means["MinGRU"] > 0.95 and means["MLP"] < 0.5


@pytest.mark.thorough
@pytest.mark.optimized
@pytest.mark.slow
def test_cart_pole_is_learned():
    """Random play gets 22; the flags and the budget are those of benchmark/classic_control.sh."""
    flags = {"num_envs": 4, "num_steps": 128, "num_minibatches": 4, "update_epochs": 4, "hidden_size": 64}
    flags |= {"q_lambda": 0.9, "exploration_fraction": 0.5, "end_e": 0.02}
    assert learned_return("pqn_mlp", small("pqn_mlp", total_timesteps=500_000, **flags)) > 400
