"""pqn_rnn.py: returns, exploration, memory and encoder against independent implementations."""

import dataclasses

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from small import ARCADE, small

import pqn_rnn

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
    args = small(start_e=1.0, end_e=0.1, exploration_fraction=0.5, learning_rate=1e-3)
    epsilons = [float(pqn_rnn.epsilon_at(args, update)) for update in (0, args.num_updates // 4, args.num_updates // 2)]
    np.testing.assert_allclose(epsilons, [1.0, 0.55, 0.1], atol=1e-6)
    assert float(pqn_rnn.epsilon_at(args, args.num_updates)) == pytest.approx(0.1)
    last = args.num_updates * args.update_epochs * args.num_minibatches
    rates = [float(pqn_rnn.learning_rate_at(args, step)) for step in (0, last // 2, last)]
    np.testing.assert_allclose(rates, [1e-3, 5e-4, 0], atol=1e-9)
    constant = dataclasses.replace(args, anneal_lr=False)
    assert float(pqn_rnn.learning_rate_at(constant, last)) == pytest.approx(1e-3)


# ----------------------------------------------------------------------------------------------------- memory, encoder


@pytest.mark.parametrize("name", pqn_rnn.MEMORIES)
def test_memory_step_by_step_equals_the_sequence(name):
    steps, batch, size = 12, 3, 5
    memory = pqn_rnn.Memory(name, input_size=size, hidden_size=16, window=steps)
    x = jax.random.normal(jax.random.key(0), (steps, batch, size))
    start = jnp.zeros((steps, batch), bool).at[0].set(True).at[4, 0].set(True).at[5:7, 1].set(True)
    carry = memory.initial_carry(batch)
    step = jax.jit(memory.apply)
    params = jax.jit(memory.init)(jax.random.key(1), carry, x, start)
    last, sequence = step(params, carry, x, start)
    x, start = np.asarray(x), np.asarray(start)  # each slice of a jax.Array is a program
    outputs = []
    for t in range(steps):
        carry, y = step(params, carry, x[t : t + 1], start[t : t + 1])
        outputs.append(np.asarray(y)[0])
    np.testing.assert_allclose(np.stack(outputs), sequence, atol=2e-4)
    # float counterparts of both carries give the same continuation
    one, other = (step(params, h, x[:1], np.zeros((1, batch), bool))[1] for h in (last, carry))
    np.testing.assert_allclose(one, other, atol=2e-4)
    # what came before a start flag does not matter
    late, more = start[4:].copy(), x.copy()
    late[0] = True
    more[0] += 3.0
    _, fresh = step(params, memory.initial_carry(batch), x[4:], late)
    sequence = np.asarray(sequence)
    np.testing.assert_allclose(np.asarray(fresh)[:, 0], sequence[4:, 0], atol=2e-4)
    # and what came before without one does, but for the model that remembers nothing
    _, altered = step(params, memory.initial_carry(batch), more, start)
    remembers = bool(np.abs(np.asarray(altered)[1:4] - sequence[1:4]).max() > 1e-4)
    assert remembers == (name != "MLP")


@pytest.mark.parametrize("name", ["MinGRU", "GRU", "LRU"])
def test_no_two_weights_of_a_memory_come_from_one_key(name):
    memory = pqn_rnn.Memory(name, input_size=16, hidden_size=16, window=4)
    args = memory.initial_carry(1), jnp.zeros((1, 1, 16)), jnp.ones((1, 1), bool)
    weights = memory.init(jax.random.key(0), *args)["params"]["weights"]
    matrices = [np.asarray(w).real.ravel() for w in weights.values() if w.ndim == 2 and w.size == 256]
    assert len(matrices) > 4
    for i, one in enumerate(matrices):
        for other in matrices[:i]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 0.3


def test_min_gru_equals_a_loop():
    layer = pqn_rnn.MinGRU(8, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (10, 8))
    start = jnp.zeros(10, bool).at[6].set(True)
    _, got = layer(layer.initialize_carry(), (x, start))
    h = np.zeros(8)
    for t in range(10):
        z = 1 / (1 + np.exp(-(np.asarray(layer.gate.weight) @ x[t] + layer.gate.bias)))
        candidate = np.asarray(layer.candidate.weight) @ x[t] + layer.candidate.bias
        h = (1 - z) * (h * (not start[t])) + z * candidate
        np.testing.assert_allclose(got[t], h, atol=1e-5)


@pytest.mark.parametrize("side", [64, 84, 128, 256])
def test_encoders_read_pixels_of_any_side(side):
    obs = jax.random.randint(jax.random.key(0), (2, side, side, 3), 0, 256).astype(jnp.uint8)
    kinds = ["patch"] + ["paper"] * ((side, side) in pqn_rnn.PAPER_LAYERS)
    for kind in kinds:
        encoder = pqn_rnn.Encoder(kind, jnp.float32)
        features, params = encoder.init_with_output(jax.random.key(1), obs)
        assert features.shape == (2, 512) and features.dtype == jnp.float32
        if kind == "patch":  # reads every corner; the paper's VALID convolutions leave out a few pixels at two edges
            for y, x in ((0, 0), (0, side - 1), (side - 1, 0), (side - 1, side - 1)):
                changed = obs.at[:, y, x].set(255 - obs[:, y, x])
                assert jnp.abs(encoder.apply(params, changed) - features).max() > 0


def test_observations_that_are_not_pixels_are_flattened():
    encoder = pqn_rnn.Encoder("dense", jnp.float32)
    for obs in (jnp.zeros((2,), jnp.int32), jnp.zeros((2, 10, 10, 4)), jnp.zeros((2, 8, 8, 3), jnp.uint8)):
        assert encoder.init_with_output(jax.random.key(0), obs)[0].shape == (2, 256)
        assert not pqn_rnn.make_network(ARCADE, obs[0], 3).pixels


@pytest.mark.parametrize("kind", ["patch", "paper"])
def test_frames_as_floats_are_read_like_bytes(kind):
    """The analysis scripts differentiate with respect to frames, and so hand them in as float32, 0 to 255."""
    obs = jax.random.randint(jax.random.key(0), (2, 128, 128, 3), 0, 256).astype(jnp.uint8)
    encoder = pqn_rnn.Encoder(kind, jnp.float32)
    features, params = encoder.init_with_output(jax.random.key(1), obs)
    np.testing.assert_array_equal(encoder.apply(params, obs.astype(jnp.float32)), features)


@pytest.mark.parametrize("encoder", ["patch", "paper"])
def test_no_convolution_is_left_in_a_cpu_program(encoder):
    args = dataclasses.replace(ARCADE, encoder=encoder).checked()
    init, train_chunk = pqn_rnn.make_train(args)
    state = jax.eval_shape(init, jax.random.key(0))
    text = jax.jit(train_chunk).lower(state, jnp.int32(1)).as_text()
    assert "stablehlo.dot_general" in text and "stablehlo.convolution" not in text


def test_first_action_is_not_seen_across_an_episode_start():
    args = small(memory="MLP")
    env, params = pqn_rnn.make_env(args)
    network = pqn_rnn.make_network(args, env.observation_space(params), 2)
    space, forward = env.observation_space(params), jax.jit(pqn_rnn.forward, static_argnums=0)
    weights = jax.jit(lambda key: pqn_rnn.init_params(network, space, key))(jax.random.key(0))
    obs, carry = jnp.ones((1, 1, 4)), pqn_rnn.initial_carry(network, 1)
    actions = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), jnp.int32)
    for start in (True, False):
        one, other = (forward(network, weights, carry, obs, action, jnp.full((1, 1), start))[1].q for action in actions)
        assert bool((one == other).all()) == start
