"""jit, vmap and scan: one trace, one drawing, no surprises."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import EASY_IDS, FEW_USUALLY, IDS, TWINS, make, resets, split_id, step, take
from jax.interpreters import partial_eval

import popgym_arcade

BATCH = 32


@pytest.mark.parametrize("env_id", FEW_USUALLY)
def test_no_recompilation_from_step_to_step(env_id):
    """The outputs of reset and step go back in without a new trace, through episode ends and with other parameters."""
    env, params = make(env_id)
    traces = []

    @jax.jit
    def advance(key, state, action, params):
        traces.append(1)
        _, state, *_ = env.step(key, state, action, params)
        return state

    _, state = jax.jit(env.reset)(jax.random.key(0), params)
    for i in range(1, 8):
        state = advance(jax.random.key(i), state, jnp.int32(i % 5), params.replace(max_steps_in_episode=2 + i // 4))
    assert len(traces) == 1 and advance._cache_size() == 1


@pytest.mark.parametrize("env_id", EASY_IDS)
def test_jit_vmap_and_scan_agree(env_id):
    """One at a time, in a batch, or inside a scan: the same states (floats to the last bits)."""
    env, params = make(env_id)
    states = resets(env_id, 4)
    actions = np.array([[2, 3, 4, 1], [3, 3, 4, 0], [0, 2, 1, 4]], np.int32)

    batch = states
    for turn, row in enumerate(actions):
        batch = step(env_id, batch, row, seeds=turn).state

    def body(state, inputs):
        turn, action = inputs
        return env.step(jax.random.key(turn), state, action, params)[1], None

    turns = np.arange(3, dtype=np.uint32)
    for copy in range(4):
        state = take(states, copy)
        for turn in turns:
            state = env.step(jax.random.key(turn), state, actions[turn, copy], params)[1]
        scanned, _ = jax.lax.scan(body, take(states, copy), (turns, actions[:, copy]))
        for result in (state, scanned):
            jax.tree.map(
                lambda got, expected: np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6),
                result,
                take(batch, copy),
            )


def pixels_made(function, *arguments):
    """How many uint8 values the operations of a program produce, without those that its outputs do not need."""

    def count(jaxpr):
        total = 0
        for equation in jaxpr.eqns:
            inner = [param.jaxpr for param in equation.params.values() if hasattr(param, "jaxpr")]
            if inner:
                total += sum(map(count, inner))
            else:
                total += sum(out.aval.size for out in equation.outvars if out.aval.dtype == jnp.uint8)
        return total

    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    return count(partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0])


@pytest.mark.parametrize("env_id", EASY_IDS)
def test_a_step_draws_once(env_id):
    """Counted in the program: with auto-reset and all, a step makes no pixel more than one drawing does."""
    five, params = popgym_arcade.make(env_id, partial_obs=True)
    six, _ = make(env_id, partial_obs=True)
    state = take(resets(env_id, 1), 0)

    def trained(key, state):
        *outputs, info = six.step(key, state, 0, params)
        return outputs, info["final_state"]  # the final observation is left alone, as the scripts do

    once = pixels_made(six.get_obs, state)
    assert once >= 128 * 128 * 3
    assert pixels_made(lambda key, state: five.step(key, state, 0, params), jax.random.key(0), state) == once
    assert pixels_made(trained, jax.random.key(0), state) == once
    assert pixels_made(lambda key, state: six.step(key, state, 0, params), jax.random.key(0), state) == 2 * once


@pytest.mark.parametrize("env_id", FEW_USUALLY)
def test_the_compiled_step_draws_once(env_id):
    """What XLA makes of it moves hardly more bytes than a drawing, too (it does not bring a second one back in)."""
    five, params = popgym_arcade.make(env_id, partial_obs=True)
    six, _ = make(env_id, partial_obs=True)
    keys, states = jax.random.split(jax.random.key(0), BATCH), resets(env_id, BATCH)

    def bytes_moved(function, *arguments):
        return jax.jit(jax.vmap(function)).lower(*arguments).compile().cost_analysis()["bytes accessed"]

    once = bytes_moved(six.get_obs, states)
    assert bytes_moved(lambda key, state: five.step(key, state, 0, params), keys, states) < 1.5 * once
    assert bytes_moved(lambda key, state: six.step(key, state, 0, params), keys, states) > 1.7 * once


@pytest.mark.parametrize("env_id", IDS)
def test_the_frame_is_a_function_of_the_state_alone(env_id):
    """get_obs takes a key and parameters, as gymnax passes them, and ignores both."""
    for twin in TWINS.values():
        env, params = make(env_id, twin)

        def draw(state, limit, key, env=env, params=params):
            return env.get_obs(state, params.replace(max_steps_in_episode=limit), key)

        jaxpr = jax.make_jaxpr(draw)(take(resets(env_id, 1), 0), 5, jax.random.key(0)).jaxpr
        *_, limit, key = jaxpr.invars
        used = {id(variable) for equation in jaxpr.eqns for variable in equation.invars}
        assert id(limit) not in used and id(key) not in used
        assert "random" not in str(jaxpr)


def test_a_key_used_twice_is_noticed():
    """The flag of conftest.py is on: all other tests would raise if a reset or step used a key twice."""

    @jax.jit
    def twice(key):
        return jax.random.normal(key) + jax.random.uniform(key)

    with pytest.raises(jax.errors.KeyReuseError):
        twice(jax.random.key(0))


@pytest.mark.parametrize("env_id", EASY_IDS)
def test_the_limit_may_be_traced(env_id):
    """Parameters are data: a vmap over time limits works, and rewards that are divided by the limit follow it."""
    limits = np.arange(1, 4)
    result = step(env_id, take(resets(env_id, 1), np.zeros(3, int)), 0, limit=limits)  # a state at three limits
    np.testing.assert_array_equal(result.truncated, np.array([True, False, False]) & ~result.terminated)
    if "CartPole" in split_id(env_id)[0]:
        np.testing.assert_allclose(result.reward, 1 / limits, rtol=1e-6)
    else:
        assert len(set(result.reward.tolist())) == 1
