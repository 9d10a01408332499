"""pqn_rnn.py: seeds, keys, truncation, every environment, and that a memory learns what no memory can."""

import dataclasses

import gymnax
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces
from scripts import learned_return
from small import ARCADE, SMALL, assert_equal, small, trained

import pqn_rnn
from pqn_rnn import Args

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
        assert_equal(metrics["episodes"][i], alone_metrics["episodes"])


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
    state = jax.eval_shape(pqn_rnn.seed_by_seed(init, args), pqn_rnn.make_keys(args)[0])
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
    space = env.observation_space(env_params)
    params = jax.jit(lambda key: pqn_rnn.init_params(network, space, key))(jax.random.key(0))
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
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
    assert float(metrics["grad_norm"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["NavigatorEasy", "CountRecallHard", "NoisyCartPoleMedium"])
def test_one_update_on_arcade_ids(env_id):
    state, metrics = trained(dataclasses.replace(ARCADE, env_id=env_id, obs_size=256).checked(), 1)
    assert state.actor.obs.dtype == jnp.uint8 and float(metrics["grad_norm"]) > 0


def test_bfloat16_keeps_parameters_in_float32():
    state, metrics = trained(dataclasses.replace(ARCADE, precision="bfloat16").checked(), 1)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(state.params))
    assert np.isfinite(float(metrics["td_loss"]))
    single = trained(ARCADE.checked(), 1)[1]
    np.testing.assert_allclose(metrics["td_loss"], single["td_loss"], rtol=0.1)


@pytest.mark.optimized
@pytest.mark.slow
def test_a_memory_learns_what_no_memory_can():
    """MemoryChain: remember one bit for ten steps. Return 1 with memory, 0 on average without."""
    args = Args(env_id="MemoryChain-bsuite", env_params=("memory_length=10",), prev_action=False, hidden_size=32)
    args = dataclasses.replace(args, total_timesteps=100_000, num_envs=16, num_minibatches=4)
    means = {
        memory: learned_return("pqn_rnn", dataclasses.replace(args, memory=memory)) for memory in ("MinGRU", "MLP")
    }
    assert means["MinGRU"] > 0.95 and means["MLP"] < 0.5
