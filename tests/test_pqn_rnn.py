"""pqn_rnn.py: its mathematics against independent ones, its promises (resume, seeds, refusals), and that it learns."""

import csv
import dataclasses
import functools
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnax
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from gymnax.environments import spaces
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import pqn_rnn
from pqn_rnn import Args, UserError

ROOT = Path(__file__).parent.parent
SMALL = Args(
    env_id="CartPole-v1",
    num_envs=4,
    num_steps=8,
    num_minibatches=2,
    hidden_size=16,
    total_timesteps=32 * 8,
    log_every=64,
    eval_every=128,
    checkpoint_every=64,
    eval_episodes=3,
)
ARCADE = dataclasses.replace(SMALL, env_id="CartPoleEasy", partial_obs=True)


def small(**changes) -> Args:
    return dataclasses.replace(SMALL, **changes).checked()


@functools.lru_cache
def programs(args: Args):
    init, train_chunk = pqn_rnn.make_train(args)
    return jax.jit(pqn_rnn.over_seeds(init, args)), jax.jit(pqn_rnn.over_seeds(train_chunk, args, (0, None)))


def trained(args: Args, updates: int):
    """State and metrics after some updates. The seed is in the keys alone, so that all seeds share a program."""
    init, train_chunk = programs(dataclasses.replace(args, seed=0))
    return train_chunk(init(pqn_rnn.make_keys(args)[0]), jnp.int32(updates))


def assert_equal(one, other, atol=0.0):
    for (path, x), (_, y) in zip(*map(jax.tree_util.tree_leaves_with_path, (one, other)), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_allclose(x, y, rtol=0, atol=atol, err_msg=jax.tree_util.keystr(path))


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
    rollout, next_value = random_rollout(jax.random.key(0))
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
    got = pqn_rnn.q_lambda_returns(rollout, next_value, gamma, lam)
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
    params = memory.init(jax.random.key(1), carry, x, start)
    last, sequence = jax.jit(memory.apply)(params, carry, x, start)
    step = jax.jit(memory.apply)
    outputs = []
    for t in range(steps):
        carry, y = step(params, carry, x[t : t + 1], start[t : t + 1])
        outputs.append(y[0])
    np.testing.assert_allclose(jnp.stack(outputs), sequence, atol=2e-4)
    # float counterparts of both carries give the same continuation
    one, other = (step(params, h, x[:1], jnp.zeros((1, batch), bool))[1] for h in (last, carry))
    np.testing.assert_allclose(one, other, atol=2e-4)
    # what came before a start flag does not matter
    _, fresh = step(params, memory.initial_carry(batch), x[4:], start[4:].at[0].set(True))
    np.testing.assert_allclose(fresh[:, 0], sequence[4:, 0], atol=2e-4)
    # and what came before without one does, but for the model that remembers nothing
    _, altered = step(params, memory.initial_carry(batch), x.at[0].add(3.0), start)
    remembers = bool(jnp.abs(altered[1:4] - sequence[1:4]).max() > 1e-4)
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


def test_lowered_convolution_and_pooling_equal_the_native_ones():
    x = jax.random.normal(jax.random.key(0), (2, 30, 27, 3))
    for size, stride in ((5, 2), (3, 2), (7, 2), (1, 1)):
        kernel = jax.random.normal(jax.random.key(size), (size, size, 3, 4))
        gradients = [
            jax.grad(lambda k, native=native, stride=stride: (pqn_rnn.convolve(x, k, stride, native) ** 2).mean())(
                kernel
            )
            for native in (True, False)
        ]
        one, other = (pqn_rnn.convolve(x, kernel, stride, native) for native in (True, False))
        np.testing.assert_allclose(one, other, atol=1e-4)
        np.testing.assert_allclose(*gradients, atol=1e-4)
    for window, stride in ((2, 2), (3, 1)):
        want = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, window, window, 1), (1, stride, stride, 1), "VALID")
        np.testing.assert_array_equal(pqn_rnn.max_pool(x, window, stride), want)


@pytest.mark.parametrize("side", [64, 84, 128, 256])
def test_encoders_read_pixels_of_any_side(side):
    obs = jax.random.randint(jax.random.key(0), (2, side, side, 3), 0, 256).astype(jnp.uint8)
    kinds = ["patch"] + ["paper"] * (side in pqn_rnn.PAPER_LAYERS)
    for kind in kinds:
        encoder = pqn_rnn.Encoder(kind, jnp.float32)
        features, params = encoder.init_with_output(jax.random.key(1), obs)
        assert features.shape == (2, 512 if kind == "paper" else 256) and features.dtype == jnp.float32
        if kind == "patch":  # reads every corner; the paper's VALID convolutions leave out a few pixels at two edges
            for y, x in ((0, 0), (0, side - 1), (side - 1, 0), (side - 1, side - 1)):
                changed = obs.at[:, y, x].set(255 - obs[:, y, x])
                assert jnp.abs(encoder.apply(params, changed) - features).max() > 0


def test_observations_that_are_not_pixels_are_flattened():
    encoder = pqn_rnn.Encoder("patch", jnp.float32)
    for obs in (jnp.zeros((2,), jnp.int32), jnp.zeros((2, 10, 10, 4)), jnp.zeros((2, 8, 8, 3), jnp.uint8)):
        assert encoder.init_with_output(jax.random.key(0), obs)[0].shape == (2, 256)


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
    weights = pqn_rnn.init_params(network, env.observation_space(params), jax.random.key(0))
    obs, carry = jnp.ones((1, 1, 4)), pqn_rnn.initial_carry(network, 1)
    actions = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), jnp.int32)
    for start in (True, False):
        one, other = (
            pqn_rnn.forward(network, weights, carry, obs, action, jnp.full((1, 1), start))[1].q for action in actions
        )
        assert bool((one == other).all()) == start


# ------------------------------------------------------------------------------------------------------------- training


def test_a_seed_repeats_bit_for_bit_and_others_differ():
    args = small()
    one, other = trained(args, 3)[0], trained(args, 3)[0]
    assert_equal(one, other)
    different = trained(dataclasses.replace(args, seed=1), 3)[0]
    kernels = (state.params["params"]["head"]["kernel"] for state in (one, different))
    assert not np.array_equal(*kernels)


@pytest.mark.slow
@pytest.mark.parametrize("args", [SMALL, ARCADE], ids=["vector", "pixels"])
def test_seeds_together_equal_seeds_alone(args):
    together = dataclasses.replace(args, num_seeds=2, seed=3).checked()
    state, metrics = trained(together, 3)
    for i in range(2):
        alone, alone_metrics = trained(dataclasses.replace(together, num_seeds=1, seed=3 + i), 3)
        assert_equal(jax.tree.map(lambda x, i=i: x[i], state.params), alone.params, atol=1e-5)
        assert_equal(jax.tree.map(lambda x, i=i: x[i], state.actor.env_state), alone.actor.env_state, atol=1e-5)
        assert_equal(jax.tree.map(lambda x, i=i: x[i], metrics.episodes), alone_metrics.episodes)


def test_chunks_add_up():
    args = small()
    init, train_chunk = pqn_rnn.make_train(args)
    train_chunk = jax.jit(train_chunk)
    whole, metrics = train_chunk(jax.jit(init)(jax.random.key(0)), jnp.int32(5))
    part, first = train_chunk(jax.jit(init)(jax.random.key(0)), jnp.int32(2))
    part, second = train_chunk(part, jnp.int32(3))
    assert_equal(whole, part)
    assert_equal(metrics, jax.tree.map(jnp.add, first, second), atol=1e-5)


def test_reused_keys_are_caught_in_these_tests():
    def twice(key):
        return jax.random.uniform(key) + jax.random.normal(key)

    with pytest.raises(jax.errors.KeyReuseError):
        jax.jit(twice)(jax.random.key(0))


def jaxprs(jaxpr, depth_of_cond=0):
    """All equations in a jaxpr and its sub-programs, each with the number of conds around it."""
    for equation in jaxpr.eqns:
        yield equation, depth_of_cond
        inner = depth_of_cond + (equation.primitive.name == "cond")
        for sub in jax.extend.core.jaxprs_in_params(equation.params):
            yield from jaxprs(sub, inner)


@pytest.mark.parametrize("num_seeds", [1, 2])
def test_final_observations_are_read_in_a_cond_also_with_seeds(num_seeds):
    args = dataclasses.replace(ARCADE, num_seeds=num_seeds).checked()
    init, train_chunk = pqn_rnn.make_train(args)
    state = jax.eval_shape(pqn_rnn.over_seeds(init, args), pqn_rnn.make_keys(args)[0])
    program = jax.make_jaxpr(pqn_rnn.over_seeds(train_chunk, args, (0, None)))(state, jnp.int32(1))
    conds = [equation for equation, _ in jaxprs(program.jaxpr) if equation.primitive.name == "cond"]
    with_network = [
        cond
        for cond in conds
        if any(e.primitive.name == "dot_general" for branch in cond.params["branches"] for e, _ in jaxprs(branch.jaxpr))
    ]
    assert len(with_network) == 1
    # its operands hold states, not frames
    frame = (args.obs_size, args.obs_size, 3)
    assert not [variable for variable in with_network[0].invars if variable.aval.shape[-3:] == frame]


@pytest.mark.parametrize("env_id", ["CartPoleEasy", "CartPole-v1"])
def test_truncation_bootstraps_from_the_final_observation_with_the_memory_as_it_was(env_id):
    args = dataclasses.replace(SMALL, env_id=env_id, env_params=("max_steps_in_episode=3",)).checked()
    env, env_params = pqn_rnn.make_env(args)
    network, begin, act = pqn_rnn.make_actor(args)
    params = pqn_rnn.init_params(network, env.observation_space(env_params), jax.random.key(0))
    actor = begin(jax.random.key(1), args.num_envs)
    for t in range(3):
        before = actor
        actor, transition = act(params, before, 0.5)
        assert bool(transition.truncated.all()) == (t == 2) and not transition.terminated.any()
        if t < 2:
            assert (transition.final_value == 0).all()
    # the same step by hand, without auto-reset
    last = before.carry, before.obs[None], before.prev_action[None], before.start[None]
    carry, _ = pqn_rnn.forward(network, params, *last)
    _, _, step_key = jax.random.split(jax.random.clone(before.key), 3)
    step_keys = jax.vmap(lambda key: jax.random.split(key)[0])(jax.random.split(step_key, args.num_envs))
    stepped = jax.vmap(env.step_env, in_axes=(0, 0, 0, None))(
        step_keys, before.env_state, transition.action, env_params
    )
    _, output = pqn_rnn.forward(
        network, params, carry, stepped[0][None], transition.action[None], jnp.zeros((1, args.num_envs), bool)
    )
    np.testing.assert_allclose(transition.final_value, output.q[0].max(axis=-1), atol=1e-5)
    assert actor.start.all() and (actor.episode_length == 0).all() and (transition.episode_length == 3).all()


def discrete_gymnax_ids():
    for env_id in gymnax.registered_envs:
        if env_id in pqn_rnn.popgym_arcade.REGISTERED_ENVIRONMENTS or env_id == "MNISTBandit-bsuite":
            continue
        env, params = gymnax.make(env_id)
        if isinstance(env.action_space(params), spaces.Discrete):
            yield env_id


@pytest.mark.slow
@pytest.mark.parametrize("env_id", list(discrete_gymnax_ids()))
def test_one_update_on_every_gymnax_id(env_id):
    state, metrics = trained(small(env_id=env_id, memory="MLP", update_epochs=1, num_minibatches=1), 1)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(state.params))
    assert float(metrics.grad_norm) > 0


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["NavigatorEasy", "CountRecallHard", "NoisyCartPoleMedium"])
def test_one_update_on_arcade_ids(env_id):
    state, metrics = trained(dataclasses.replace(ARCADE, env_id=env_id, obs_size=256).checked(), 1)
    assert state.actor.obs.dtype == jnp.uint8 and float(metrics.grad_norm) > 0


def test_bfloat16_keeps_parameters_in_float32():
    state, metrics = trained(dataclasses.replace(ARCADE, precision="bfloat16").checked(), 1)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(state.params))
    assert np.isfinite(float(metrics.td_loss))
    single = trained(ARCADE.checked(), 1)[1]
    np.testing.assert_allclose(metrics.td_loss, single.td_loss, rtol=0.1)


@pytest.mark.slow
def test_a_memory_learns_what_no_memory_can():
    """MemoryChain: remember one bit for ten steps. Return 1 with memory, 0 on average without."""
    args = Args(env_id="MemoryChain-bsuite", env_params=("memory_length=10",), prev_action=False, hidden_size=32)
    args = dataclasses.replace(args, total_timesteps=100_000, num_envs=16, num_minibatches=4, eval_episodes=64)
    means = {}
    for memory in ("MinGRU", "MLP"):
        state, _ = trained(dataclasses.replace(args, memory=memory).checked(), args.num_updates)
        evaluate = jax.jit(pqn_rnn.make_evaluate(dataclasses.replace(args, memory=memory).checked()))
        means[memory] = float(evaluate(state.params, jax.random.key(5), 0.0).returns.mean())
    assert means["MinGRU"] > 0.95 and means["MLP"] < 0.5


# ---------------------------------------------------------------------------------------------------- runs, checkpoints


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The folder of a complete small run."""
    return pqn_rnn.main(small(run_dir=str(tmp_path_factory.mktemp("runs"))))


def checkpoint_arrays(folder: Path, args: Args) -> dict:
    step, state = pqn_rnn.restore_checkpoint(folder, args)
    assert step == args.total_timesteps
    return pqn_rnn.named_arrays(state)


def scalars(folder: Path) -> dict[str, list]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}


def command(*flags, **kwargs):
    line = [sys.executable, str(ROOT / "pqn_rnn.py"), *map(str, flags)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs)


def flags_of(args: Args) -> list[str]:
    changed = {f.name: getattr(args, f.name) for f in dataclasses.fields(args) if getattr(args, f.name) != f.default}
    return [word for name, value in changed.items() for word in (pqn_rnn.flag(name), str(value))]


def test_run_folder_holds_what_it_promises(run):
    assert re.fullmatch(r"CartPole-v1__full__pqn_rnn__MinGRU__0__\d{8}-\d{6}(-\d+)?", run.name)
    about = json.loads((run / "args.json").read_text())
    assert about["script"] == "pqn_rnn" and about["args"]["hidden_size"] == 16
    assert about["versions"]["jax"] == jax.__version__ and about["device"]
    assert (run / "curve.png").stat().st_size > 1000
    assert sorted(int(path.name) for path in (run / "checkpoints").iterdir()) == [128, 192, 256]
    with (run / "eval.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == pqn_rnn.EVAL_COLUMNS
    assert [(int(row["global_step"]), row["policy"]) for row in rows] == [
        (0, "random"),
        (128, "greedy"),
        (256, "greedy"),
    ]
    assert {row["episodes"] for row in rows} == {"3"}


def test_tensorboard_holds_the_promised_curves(run):
    curves = scalars(run)
    names = "episodic_return episodic_length episodes SPS learning_rate epsilon compile_seconds"
    wanted = {f"charts/{name}" for name in names.split()} | {"eval/episodic_return"}
    wanted |= {f"losses/{name}" for name in ("td_loss", "q_values", "grad_norm")}
    assert set(curves) == wanted
    assert [point.step for point in curves["losses/td_loss"]] == [64, 128, 192, 256]
    assert [point.step for point in curves["eval/episodic_return"]] == [128, 256]


def test_a_loaded_run_gives_the_reported_return(run):
    args, params = pqn_rnn.load_run(run)
    key = jax.random.fold_in(pqn_rnn.make_keys(args)[1], args.total_timesteps)
    evaluation = jax.jit(pqn_rnn.make_evaluate(args))(params, key, 0.0)
    with (run / "eval.csv").open() as file:
        reported = list(csv.DictReader(file))[-1]
    assert float(reported["return_mean"]) == float(evaluation.returns.mean())
    assert float(reported["length_mean"]) == float(evaluation.lengths.mean())


def test_evaluation_counts_first_episodes_only():
    args = small(env_id="CartPole-v1", env_params=("max_steps_in_episode=5",), eval_episodes=6)
    env, params = pqn_rnn.make_env(args)
    network = pqn_rnn.make_network(args, env.observation_space(params), 2)
    weights = pqn_rnn.init_params(network, env.observation_space(params), jax.random.key(0))
    evaluation = pqn_rnn.make_evaluate(args)(weights, jax.random.key(1), 1.0)
    np.testing.assert_array_equal(evaluation.returns, np.full(6, 5.0))
    np.testing.assert_array_equal(evaluation.lengths, np.full(6, 5))


def test_several_seeds_share_a_folder(tmp_path):
    args = small(num_seeds=2, seed=5, run_dir=str(tmp_path))
    folder = pqn_rnn.main(args)
    assert "__5__" in folder.name
    with (folder / "eval.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["seed"] for row in rows] == ["5", "6"] * 3
    _, params = pqn_rnn.load_run(folder)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(params)} == {2}
    curves = [scalars(folder / name)["losses/td_loss"] for name in ("", "seed_5", "seed_6")]
    for mean, one, other in zip(*curves, strict=True):
        assert mean.value == pytest.approx((one.value + other.value) / 2, rel=1e-5)


def test_total_timesteps_are_rounded_up_to_whole_updates():
    assert small(total_timesteps=33).total_timesteps == 64


def test_nothing_is_overwritten_by_a_run_of_the_same_second(tmp_path, monkeypatch):
    monkeypatch.setattr(pqn_rnn.time, "strftime", lambda _: "20260101-000000")
    args = small(run_dir=str(tmp_path))
    assert pqn_rnn.make_run_folder(args) != pqn_rnn.make_run_folder(args)


@pytest.mark.slow
def test_killed_and_resumed_equals_unbroken(run, tmp_path):
    """kill -9 at a random moment, twice; parameters, optimiser, environments and curves end as if nothing happened."""
    args = small(run_dir=str(tmp_path))
    chance = np.random.default_rng(time.time_ns())
    process = command(*flags_of(args))
    folder = None
    for _ in range(2):
        deadline = time.time() + 300
        while time.time() < deadline and process.poll() is None:
            folder = next(tmp_path.iterdir(), None)
            if folder and next(folder.glob("checkpoints/*/sha256.json"), None):
                break
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 1.0))
        process.kill()
        process.communicate()
        process = command("--resume", folder)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    whole, broken = checkpoint_arrays(run, args), checkpoint_arrays(folder, args)
    assert whole.keys() == broken.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(array, broken[name], err_msg=name)
    rows = [[line.split(",")[:-1] for line in (f / "eval.csv").read_text().splitlines()] for f in (run, folder)]
    assert rows[0] == rows[1]  # but for the seconds
    for tag in ("losses/td_loss", "eval/episodic_return", "charts/epsilon"):
        points = [[(point.step, point.value) for point in scalars(f)[tag]] for f in (run, folder)]
        assert points[0] == points[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_a_checkpoint_and_says_where(tmp_path, number):
    args = small(run_dir=str(tmp_path), total_timesteps=10_000_000, checkpoint_every=0, eval_every=0)
    process = command(*flags_of(args))
    for line in process.stdout:
        if line.startswith("step "):
            break
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, err
    folder = next(tmp_path.iterdir())
    saved = [int(path.name) for path in (folder / "checkpoints").iterdir()]
    assert len(saved) == 1 and saved[0] > 0
    assert f"stopped at step {saved[0]}" in out and f"--resume {folder}" in out and "Traceback" not in err


def test_output_that_is_not_a_terminal_has_plain_lines(tmp_path):
    args = small(run_dir=str(tmp_path))
    out, err = command(*flags_of(args)).communicate(timeout=300)
    assert "\r" not in out + err and "%|" not in out + err
    lines = [line for line in out.splitlines() if re.match(r"step \d+ +SPS \d+ +return \S+ +left \d+ s", line)]
    assert len(lines) == 4
    for word in ("run folder", "greedy return", "random policy", "tensorboard"):
        assert word in out


def damage(path: Path, how: str):
    content = bytearray(path.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    else:
        content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("how", ["truncated", "altered", "incomplete"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, capsys, how):
    args = small(run_dir=str(tmp_path))
    init, _ = pqn_rnn.make_train(args)
    state = init(jax.random.key(0))
    folder = pqn_rnn.make_run_folder(args)
    for step in (32, 64):
        pqn_rnn.save_checkpoint(folder, step, state.replace(update=jnp.int32(step)))
    last = folder / "checkpoints" / "64"
    if how == "incomplete":
        (last / "sha256.json").unlink()
    else:
        damage(max((path for path in last.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size), how)
    step, restored = pqn_rnn.restore_checkpoint(folder, args)
    assert step == 32 and int(restored.update) == 32
    assert "64 is incomplete or damaged" in capsys.readouterr().err
    # going on does not lose the damaged one, and does not trip over it
    records, step, _ = pqn_rnn.begin_run(dataclasses.replace(args, resume=str(folder)), None)
    names = sorted(path.name.split("-")[0] for path in (folder / "checkpoints").iterdir())
    assert step == 32 and names == ["32", "damaged"]
    with pytest.raises(UserError, match="no sound checkpoint"):
        damage(next((folder / "checkpoints" / "32" / "default").rglob("_METADATA")), "altered")
        pqn_rnn.restore_checkpoint(folder, args)


@pytest.mark.slow
def test_every_leaf_survives_a_checkpoint(tmp_path):
    for memory in ("MLP", "LRU", "Attention"):  # empty, complex and integer carries
        args = small(run_dir=str(tmp_path), memory=memory)
        state, _ = trained(args, 2)
        folder = pqn_rnn.make_run_folder(args)
        pqn_rnn.save_checkpoint(folder, 64, state)
        _, restored = pqn_rnn.restore_checkpoint(folder, args)
        assert jax.tree.structure(state) == jax.tree.structure(restored)
        assert [leaf.dtype for leaf in jax.tree.leaves(state)] == [leaf.dtype for leaf in jax.tree.leaves(restored)]
        assert_equal(state, restored)


def test_early_stop_after_two_good_evaluations(tmp_path):
    args = small(run_dir=str(tmp_path), total_timesteps=32 * 40, target_return=1.0, eval_every=64)
    folder = pqn_rnn.main(args)
    with (folder / "eval.csv").open() as file:
        steps = [int(row["global_step"]) for row in csv.DictReader(file) if row["policy"] == "greedy"]
    assert steps == [64, 128]


def test_capture_video(tmp_path):
    from PIL import Image

    args = dataclasses.replace(ARCADE, capture_video=True, total_timesteps=32, num_seeds=2, run_dir=str(tmp_path))
    args = args.checked()
    folder = pqn_rnn.main(args)
    with Image.open(folder / "episode.gif") as picture:
        assert picture.n_frames >= 8 and picture.size == (512, 256)


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--env-id CartPoleEazy", "CartPoleEasy"),
        ("--env-id cartpole", "CartPole"),
        ("--env-id CartPole-v1 --partial-obs", "no partially observable twin"),
        ("--env-id Pendulum-v1", "Discrete"),
        ("--obs-size 100", "128 or 256"),
        ("--memory Elephant", "MinGRU"),
        ("--encoder resnet", "patch, paper"),
        ("--precision float8", "bfloat16"),
        ("--num-minibatches 5", "1, 2, 4, 8, 16, 32"),
        ("--memory Spherical", "lower --hidden-size"),
        ("--env-params speed=3", "max_steps_in_episode"),
        ("--env-params max_steps_in_episode=many", "int"),
        ("--num-envs 0", "--num-envs 0: use 1 or more"),
        ("--gamma 1.5", "from 0 to 1"),
        ("--learning-rate nan", "--learning-rate"),
        ("--env-id CartPole-v1 --capture-video", "no pixels"),
        ("--resume nowhere", "not a run folder"),
    ],
)
def test_bad_input_is_refused_in_one_line(line, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        pqn_rnn.parse_args(line.split())
    assert words in str(error.value) and "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_refusal_exits_with_2_and_one_line(tmp_path):
    process = command("--env-id", "NavigatorEazy", cwd=tmp_path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 2 and err.count("\n") == 1 and "NavigatorEasy" in err and not out
    assert not list(tmp_path.iterdir())


def test_resuming_with_other_arguments_says_which(run):
    with pytest.raises(UserError, match=r"--learning-rate 0.0005.*--gamma 0.99|--gamma 0.99.*--learning-rate"):
        pqn_rnn.parse_args(["--resume", str(run), "--learning-rate", "0.1", "--gamma", "0.5"])
    again = pqn_rnn.parse_args(["--resume", str(run), "--log-every", "32", "--eval-every", "0"])
    assert again.hidden_size == 16 and again.log_every == 32


def test_resuming_a_folder_without_a_checkpoint(tmp_path):
    args = small(run_dir=str(tmp_path))
    folder = pqn_rnn.make_run_folder(args)
    process = command("--resume", folder)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2 and "no sound checkpoint" in err and err.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["args.json"]


def test_every_flag_is_read():
    source = (ROOT / "pqn_rnn.py").read_text()
    for field in dataclasses.fields(Args):
        uses = re.findall(rf"\b(?:args|self|saved)\.{field.name}\b", source)
        assert uses, field.name


def test_help_has_a_line_for_every_flag():
    out, _ = command("--help").communicate(timeout=120)
    for field in dataclasses.fields(Args):
        assert pqn_rnn.flag(field.name) in out
