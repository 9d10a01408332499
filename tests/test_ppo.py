"""PPO's mathematics against slow loops, rlax and numbers computed by hand."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from scripts import fresh_params, learned_return, programs, script, small, usually

import ppo_mlp
import ppo_rnn
from popgym_arcade.baselines.running.metrics import explained_variance

STEPS, ENVS, ACTIONS = 30, 5, 3


def rollout_of(seed=0, ends=True, **fields):
    """A random rollout [30, 5] with terminated and truncated steps in the middle, and the values after its steps."""
    rng = np.random.default_rng(seed)
    terminated = (rng.random((STEPS, ENVS)) < 0.15) & ends
    truncated = (rng.random((STEPS, ENVS)) < 0.15) & ends & ~terminated
    names = [field.name for field in dataclasses.fields(ppo_mlp.Transition)]
    numbers = {name: jnp.asarray(rng.normal(size=(STEPS, ENVS)), jnp.float32) for name in names}
    numbers |= {"terminated": jnp.asarray(terminated), "truncated": jnp.asarray(truncated)}
    numbers |= {"action": jnp.asarray(rng.integers(0, ACTIONS, (STEPS, ENVS)))}
    last_value = jnp.asarray(rng.normal(size=(1, ENVS)), jnp.float32)
    next_value = jnp.concatenate([numbers["value"][1:], last_value])
    return ppo_mlp.Transition(**(numbers | fields)), next_value


def test_gae_equals_a_slow_loop():
    rollout, next_value = rollout_of()
    assert rollout.terminated[:-1].any() and rollout.truncated[:-1].any()
    gamma, lam = 0.9, 0.8
    want = np.zeros((STEPS, ENVS))
    for e in range(ENVS):
        for t in range(STEPS):  # by definition: the discounted sum of the one-step errors up to the episode's end
            weight = 1.0
            for k in range(t, STEPS):
                after = rollout.final_value[k, e] if rollout.truncated[k, e] else next_value[k, e]
                after = 0.0 if rollout.terminated[k, e] else float(after)
                want[t, e] += weight * (float(rollout.reward[k, e]) + gamma * after - float(rollout.value[k, e]))
                weight *= gamma * lam
                if rollout.terminated[k, e] or rollout.truncated[k, e]:
                    break
    np.testing.assert_allclose(ppo_mlp.gae(rollout, next_value, gamma, lam), want, atol=1e-5)


@pytest.mark.parametrize("ends", ["never", "terminated"])
def test_gae_equals_rlax(ends):
    """rlax knows no truncation."""
    rollout, next_value = rollout_of(1, ends=ends == "terminated")
    rollout = rollout.replace(truncated=jnp.zeros_like(rollout.truncated))
    values = jnp.concatenate([rollout.value, next_value[-1:]])
    discount = 0.95 * (1.0 - rollout.terminated)
    want = jax.vmap(rlax.truncated_generalized_advantage_estimation, in_axes=(1, 1, None, 1), out_axes=1)(
        rollout.reward, discount, 0.7, values
    )
    np.testing.assert_allclose(ppo_mlp.gae(rollout, next_value, 0.95, 0.7), want, atol=1e-5)


def test_a_time_limit_does_not_pull_the_value_to_zero():
    """One is paid for ever, and every fifth step is a cut: the value that is right without cuts has no advantage."""
    ones, gamma = jnp.ones((STEPS, ENVS)), 0.9
    value = ones / (1 - gamma)
    cut = jnp.zeros((STEPS, ENVS), bool).at[4::5].set(True)
    fields = {"reward": ones, "value": value, "final_value": jnp.where(cut, value, 0.0)}
    rollout, _ = rollout_of(terminated=jnp.zeros_like(cut), truncated=cut, **fields)
    np.testing.assert_allclose(ppo_mlp.gae(rollout, value, gamma, 0.95), 0.0, atol=1e-5)
    ended = rollout.replace(terminated=cut, truncated=jnp.zeros_like(cut))
    assert float(ppo_mlp.gae(ended, value, gamma, 0.95)[4, 0]) == pytest.approx(-gamma / (1 - gamma), abs=1e-4)


def output_of(seed=2):
    rng = np.random.default_rng(seed)
    logits = jnp.asarray(rng.normal(size=(STEPS, ENVS, ACTIONS)), jnp.float32)
    return ppo_mlp.Output(logits=logits, value=jnp.asarray(rng.normal(size=(STEPS, ENVS)), jnp.float32))


@pytest.mark.parametrize("clip_vloss", [True, False])
@pytest.mark.parametrize("norm_adv", [True, False])
def test_ppo_loss_equals_a_slow_loop(clip_vloss, norm_adv):
    args = small("ppo_mlp", clip_vloss=clip_vloss, norm_adv=norm_adv, ent_coef=0.03, vf_coef=0.7, clip_coef=0.25)
    rollout, _ = rollout_of()
    output = output_of()
    log_prob = jax.nn.log_softmax(output.logits)
    taken = jnp.take_along_axis(log_prob, rollout.action[..., None], axis=-1)[..., 0]
    rollout = rollout.replace(log_prob=taken + 0.5 * rollout.log_prob)  # ratios around one
    rng = np.random.default_rng(3)
    advantage, target = (jnp.asarray(rng.normal(size=(STEPS, ENVS)), jnp.float32) for _ in range(2))
    loss, metrics = ppo_mlp.ppo_loss(args, output, rollout, advantage, target)

    scaled = np.asarray(advantage, np.float64)
    if norm_adv:
        scaled = (scaled - scaled.mean()) / (scaled.std() + 1e-8)
    sums = dict.fromkeys(("policy", "value", "entropy", "old_kl", "kl", "clipped"), 0.0)
    for t in range(STEPS):
        for e in range(ENVS):
            p = np.exp(np.asarray(log_prob[t, e], np.float64))
            ratio = p[rollout.action[t, e]] / np.exp(float(rollout.log_prob[t, e]))
            near = min(max(ratio, 0.75), 1.25)
            sums["policy"] -= min(ratio * scaled[t, e], near * scaled[t, e])
            old, new, goal = (float(x[t, e]) for x in (rollout.value, output.value, target))
            errors = [(new - goal) ** 2]
            if clip_vloss:
                errors.append((old + min(max(new - old, -0.25), 0.25) - goal) ** 2)
            sums["value"] += 0.5 * max(errors)
            sums["entropy"] -= (p * np.log(p)).sum()
            sums["old_kl"] -= np.log(ratio)
            sums["kl"] += ratio - 1 - np.log(ratio)
            sums["clipped"] += abs(ratio - 1) > 0.25
    mean = {name: value / (STEPS * ENVS) for name, value in sums.items()}
    assert 0.1 < mean["clipped"] < 0.9
    names = ("policy_loss", "value_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac")
    for name, want in zip(names, mean.values(), strict=True):
        assert float(metrics[name]) == pytest.approx(want, abs=1e-4), name
    assert float(loss) == pytest.approx(mean["policy"] - 0.03 * mean["entropy"] + 0.7 * mean["value"], abs=1e-4)


def test_policy_loss_and_entropy_equal_rlax():
    args = small("ppo_mlp", norm_adv=False, clip_coef=0.2)
    rollout, _ = rollout_of()
    output, advantage = output_of(), rollout.reward
    _, metrics = ppo_mlp.ppo_loss(args, output, rollout, advantage, advantage)
    taken = jnp.take_along_axis(jax.nn.log_softmax(output.logits), rollout.action[..., None], axis=-1)[..., 0]
    ratio = jnp.exp(taken - rollout.log_prob)
    want = rlax.clipped_surrogate_pg_loss(ratio.reshape(-1), advantage.reshape(-1), 0.2)
    assert float(metrics["policy_loss"]) == pytest.approx(float(want), rel=1e-5)
    entropy = -rlax.entropy_loss(output.logits.reshape(-1, ACTIONS), jnp.ones(STEPS * ENVS))
    assert float(metrics["entropy"]) == pytest.approx(float(entropy), rel=1e-5)


def test_numbers_by_hand():
    """One step of probability 1/2 that has become 3/4: ratio 1.5, cut at 1.2; value 1 has become 2, cut at 1.2."""
    args = small("ppo_mlp", norm_adv=False, clip_coef=0.2, ent_coef=0.0, vf_coef=1.0)
    output = ppo_mlp.Output(logits=jnp.log(jnp.array([[[0.75, 0.25]]])), value=jnp.full((1, 1), 2.0))
    fields = {"action": jnp.zeros((1, 1), jnp.int32), "log_prob": jnp.log(jnp.full((1, 1), 0.5))}
    rollout, _ = rollout_of(value=jnp.ones((1, 1)), **fields)
    loss, metrics = ppo_mlp.ppo_loss(args, output, rollout, jnp.full((1, 1), 2.0), jnp.full((1, 1), 2.0))
    assert float(metrics["policy_loss"]) == pytest.approx(-2.4)
    assert float(metrics["value_loss"]) == pytest.approx(0.5 * 0.8**2)
    assert float(metrics["old_approx_kl"]) == pytest.approx(-np.log(1.5))
    assert float(metrics["approx_kl"]) == pytest.approx(0.5 - np.log(1.5))
    assert float(metrics["clipfrac"]) == 1.0
    assert float(loss) == pytest.approx(-2.4 + 0.32)
    value, target = jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 2.0, 6.0])
    assert float(explained_variance(value, target)) == pytest.approx(1 - 2 / (14 / 3))
    assert float(explained_variance(target, target)) == 1.0
    assert np.isnan(explained_variance(value, jnp.ones(3)))


def test_policies():
    logits = jnp.tile(jnp.log(jnp.array([0.2, 0.7, 0.1])), (20_000, 1))
    shares = [
        np.bincount(ppo_mlp.choose(jax.random.key(policy), logits, policy), minlength=3) / 20_000
        for policy in (ppo_mlp.SAMPLE, ppo_mlp.GREEDY, ppo_mlp.RANDOM)
    ]
    np.testing.assert_allclose(shares, [[0.2, 0.7, 0.1], [0, 1, 0], [1 / 3] * 3], atol=0.012)


def test_the_learning_rate_falls_to_zero_over_the_training():
    args = small("ppo_mlp", learning_rate=1e-3)
    rates = [float(ppo_mlp.learning_rate_at(args, jnp.int32(update))) for update in (0, 4, 8)]
    np.testing.assert_allclose(rates, [1e-3, 5e-4, 0], atol=1e-9)
    assert float(ppo_mlp.learning_rate_at(dataclasses.replace(args, anneal_lr=False), jnp.int32(8))) == 1e-3


def test_a_policy_that_moves_too_far_stops_learning_from_the_rollout():
    """With a divergence that any step exceeds, the second epoch changes nothing: the same as one epoch."""
    states = {}
    for epochs, target_kl in ((1, None), (3, 1e-6), (3, None)):
        args = small("ppo_mlp", update_epochs=epochs, target_kl=target_kl, learning_rate=0.01, anneal_lr=False)
        init, train_chunk = programs("ppo_mlp", args)
        states[epochs, target_kl] = train_chunk(init(jax.random.key(0)), jnp.int32(1))
    steps = {key: float(metrics["gradient_steps"]) for key, (_, metrics) in states.items()}
    assert steps == {(1, None): 2, (3, 1e-6): 2, (3, None): 6}
    counts = {key: int(state.opt_state.inner_state[1].count) for key, (state, _) in states.items()}
    assert counts == steps
    # (the order of the minibatches depends on the number of epochs: compare how far, not where to)
    kls = {key: float(metrics["approx_kl"]) / steps[key] for key, (_, metrics) in states.items()}
    assert kls[3, 1e-6] < kls[3, None] / 2


def test_the_first_policy_is_nearly_uniform():
    network, params = fresh_params("ppo_mlp", small("ppo_mlp"))
    obs = jax.random.normal(jax.random.key(1), (1, 50, 4))
    probabilities = jax.nn.softmax(ppo_mlp.forward(network, params, (), obs)[1].logits)
    np.testing.assert_allclose(probabilities, 0.5, atol=0.02)


@pytest.mark.parametrize("name", usually("ppo_rnn", of=("ppo_rnn", "pqn_rnn")))
def test_recurrent_minibatches_give_the_gradient_of_the_whole_batch(name):
    """Whole sequences with their stored memory: the mean over minibatches is the gradient over all environments."""
    module, args = script(name), small(name, num_minibatches=1, **({"norm_adv": False} if name == "ppo_rnn" else {}))
    _, begin, act = module.make_actor(args)
    network, params = fresh_params(name, args)
    policy = 0.5 if name == "pqn_rnn" else module.SAMPLE
    actor = jax.jit(begin, static_argnums=1)(jax.random.key(1), args.num_envs)
    act = jax.jit(act)
    for _ in range(
        args.num_steps
    ):  # so that the memory at the rollout's start is not empty, and some episodes are over
        actor, _, _ = act(params, actor, policy)
    first, steps = actor, []
    for _ in range(3 * args.num_steps):
        actor, transition, _ = act(params, actor, policy)
        steps.append(transition)
    rollout = jax.tree.map(lambda *leaves: np.stack(leaves), *steps)
    assert rollout.start[1:].any() and any(np.abs(x).max() > 0 for x in jax.tree.leaves(first.carry) if x.size)
    advantage = jnp.sin(jnp.arange(rollout.reward.size, dtype=jnp.float32)).reshape(rollout.reward.shape)

    def loss(params, envs):
        batch, weight = jax.tree.map(lambda x: jnp.asarray(x)[:, envs], (rollout, advantage))
        carry = jax.tree.map(lambda x: x[envs], first.carry)
        _, output = module.forward(network, params, carry, batch.seen, batch.prev_action, batch.start)
        if name == "ppo_rnn":
            return module.ppo_loss(args, output, batch, weight, weight)[0]
        q = jnp.take_along_axis(output.q, batch.action[..., None], axis=-1)[..., 0]
        return 0.5 * jnp.square(q - weight).mean()

    gradient = jax.jit(jax.grad(loss))
    whole = gradient(params, jnp.arange(4))
    parts = [gradient(params, jnp.array(envs)) for envs in ([2, 0], [1, 3])]
    mean = jax.tree.map(lambda one, other: (one + other) / 2, *parts)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5), whole, mean)


def test_training_reads_the_memory_that_acting_had():
    """The states reconstructed in training give the probabilities and values that were met in the rollout."""
    args = small("ppo_rnn")
    _, begin, act = ppo_rnn.make_actor(args)
    network, params = fresh_params("ppo_rnn", args)
    actor, steps, act = jax.jit(begin, static_argnums=1)(jax.random.key(1), args.num_envs), [], jax.jit(act)
    for t in range(40):
        if t == 10:
            first = actor
        actor, transition, _ = act(params, actor, ppo_rnn.SAMPLE)
        steps.append(transition)
    rollout = jax.tree.map(lambda *leaves: np.stack(leaves), *steps[10:])
    assert rollout.start.any()
    forward = jax.jit(ppo_rnn.forward, static_argnums=0)
    _, output = forward(network, params, first.carry, rollout.seen, rollout.prev_action, rollout.start)
    np.testing.assert_allclose(output.value, rollout.value, atol=1e-4)
    log_prob = jax.nn.log_softmax(output.logits)
    taken = jnp.take_along_axis(log_prob, rollout.action[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(taken, rollout.log_prob, atol=1e-4)


@pytest.mark.parametrize("name", ["ppo_rnn", "impala_popart"])
def test_scripts_share_their_mathematics(name):
    module, logits = script(name), jax.random.normal(jax.random.key(0), (50, ACTIONS))
    for policy in range(3):
        actions = [m.choose(jax.random.key(1), logits, policy) for m in (ppo_mlp, module)]
        np.testing.assert_array_equal(*actions)


def test_the_loss_and_the_advantages_are_those_of_ppo_mlp():
    rollout, next_value = rollout_of()
    fields = {field.name: None for field in dataclasses.fields(ppo_rnn.Transition)} | dict(vars(rollout))
    other, output = ppo_rnn.Transition(**fields), output_of()
    np.testing.assert_array_equal(ppo_rnn.gae(other, next_value, 0.9, 0.8), ppo_mlp.gae(rollout, next_value, 0.9, 0.8))
    advantage = ppo_mlp.gae(rollout, next_value, 0.9, 0.8)
    losses = [
        module.ppo_loss(small(name), module.Output(output.logits, output.value), batch, advantage, advantage)[0]
        for name, module, batch in (("ppo_mlp", ppo_mlp, rollout), ("ppo_rnn", ppo_rnn, other))
    ]
    assert losses[0] == losses[1]


@pytest.mark.thorough
@pytest.mark.optimized
@pytest.mark.slow
def test_cart_pole_is_learned():
    """Random play gets 22; the flags and the budget are those of benchmark/classic_control.sh."""
    flags = {"num_envs": 4, "num_steps": 128, "num_minibatches": 4, "update_epochs": 4, "hidden_size": 64}
    assert learned_return("ppo_mlp", small("ppo_mlp", total_timesteps=500_000, **flags)) > 400
