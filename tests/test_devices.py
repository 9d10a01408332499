"""Several devices: learning as on one, an exchange of gradients and hardly more, refusals of what does not divide."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripts import ALL, OFF_POLICY, arcade, script, small

import pqn_mlp
import pqn_rnn

ROOT = Path(__file__).parents[1]


def on_devices(name, **changes):
    """What tests/on_devices.py prints."""
    line = [sys.executable, str(ROOT / "tests" / "on_devices.py"), name, json.dumps(changes)]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    env = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, capture_output=True, text=True, timeout=900, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def assert_same_learning(one, other):
    np.testing.assert_allclose(one["params"], other["params"], atol=1e-5, rtol=1e-5)
    assert one["metrics"].keys() == other["metrics"].keys()
    for name in ("episodes", "episodic_return", "episodic_length", "updates"):
        np.testing.assert_allclose(one["metrics"][name], other["metrics"][name], rtol=1e-5)
    np.testing.assert_allclose(one["returns"], other["returns"], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_one_two_and_eight_devices_learn_the_same(name):
    one, two, eight = on_devices(name, num_envs=16)
    assert one["envs"] == ["P('envs',)"] == eight["envs"]
    assert not one["exchanges"] and two["exchanges"]
    for several in (two, eight):
        assert_same_learning(one, several)
        # in a gradient step all gradients together, once, and apart from them a few numbers
        size = 4 * len(one["params"])
        large = [exchange for exchange in several["exchanges"] if exchange[1] > size // 2]
        assert len(large) == 1 and large[0][0] == "all-reduce" and large[0][2]
        rest = sum(size for _, size, _ in several["exchanges"]) - large[0][1]
        assert rest < (20_000 if name in OFF_POLICY else 200)  # sampled steps, statistics of advantages and of episodes


@pytest.mark.slow
def test_pixels_on_two_devices():
    one, two = on_devices("pqn_rnn", env_id="CartPoleEasy", partial_obs=True, num_envs=8, counts=[1, 2], updates=2)
    assert_same_learning(one, two)
    frame = 128 * 128 * 3
    assert max(size for _, size, of_gradient in two["exchanges"] if not of_gradient) < frame


@pytest.mark.slow
def test_several_tasks_on_two_devices():
    ids = ["CartPole-v1", "CartPole-v1"]
    one, two = on_devices(
        "impala_popart", env_ids=ids, reward_scales=[1, 10], value_normalization="popart", num_envs=16, counts=[1, 2]
    )
    assert_same_learning(one, two)


@pytest.mark.slow
def test_seeds_that_divide_are_put_on_the_devices_and_exchange_nothing():
    one, two = on_devices("pqn_rnn", num_envs=2, num_seeds=4, counts=[1, 2], played=True)
    assert_same_learning(one, two)
    assert two["envs"] == ["P('seeds',)"]
    assert all(kind == "all-gather" and size < 100 for kind, size, _ in two["exchanges"])  # the metrics, to be logged


@pytest.mark.slow
def test_else_all_devices_have_environments_of_every_seed():
    one, two = on_devices("pqn_rnn", num_envs=8, num_seeds=3, counts=[1, 2], played=True, eval_episodes=4)
    assert_same_learning(one, two)
    assert two["envs"] == ["P(None, 'envs')"]


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("name", ALL)
def test_devices_that_are_not_there_are_refused(name):
    with pytest.raises(pqn_rnn.UserError if name == "pqn_rnn" else script(name).UserError, match="from 1 to 1, or 0"):
        small(name, num_devices=2)


@pytest.mark.parametrize("envs, minibatches, seeds, count, message", [
    (30, 2, 1, 8, "--num-envs 16 or 32, or --num-devices 5 or 15, or a multiple of 8 as --num-seeds"),
    (8, 4, 1, 4, "--num-envs 16, or --num-devices 2, or"),
    (8, 4, 3, 4, "--num-envs 16, or --num-devices 2, or"),
])  # fmt: skip
def test_what_does_not_divide_is_refused_with_what_does(monkeypatch, envs, minibatches, seeds, count, message):
    monkeypatch.setattr(jax, "device_count", lambda: count)
    args = pqn_rnn.Args(num_envs=envs, num_minibatches=minibatches, num_seeds=seeds)
    with pytest.raises(pqn_rnn.UserError, match=message):
        pqn_rnn.check_devices(args, group=minibatches)


def test_the_page_has_the_words_of_the_refusal(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    with pytest.raises(pqn_rnn.UserError) as error:
        pqn_rnn.check_devices(pqn_rnn.Args(), group=pqn_rnn.Args.num_minibatches)
    assert f"pqn_rnn.py: error: {error.value}" in " ".join((ROOT / "docs/scaling.md").read_text().split())


@pytest.mark.parametrize(
    "envs, minibatches, seeds, count", [(32, 4, 1, 8), (30, 2, 8, 8), (30, 2, 16, 8), (8, 1, 1, 1)]
)
def test_what_divides_is_not_refused(monkeypatch, envs, minibatches, seeds, count):
    monkeypatch.setattr(jax, "device_count", lambda: count)
    pqn_rnn.check_devices(pqn_rnn.Args(num_envs=envs, num_minibatches=minibatches, num_seeds=seeds), group=minibatches)


# ---------------------------------------------------------------------------------------------------------- minibatches


@pytest.mark.parametrize(
    "envs, steps, minibatches", [(8, 1, 4), (8, 1, 1), (4, 128, 4), (6, 10, 4), (16, 3, 12), (2, 5, 10)]
)
def test_minibatches_have_each_step_once_and_of_each_group_the_same_share(envs, steps, minibatches):
    order = jax.jit(pqn_mlp.shuffled, static_argnums=(1, 2, 3))(jax.random.key(0), envs, steps, minibatches)
    picked_steps, picked_envs = map(np.asarray, order)
    assert picked_steps.shape == picked_envs.shape == (minibatches, envs * steps // minibatches)
    assert sorted(zip(picked_envs.ravel(), picked_steps.ravel(), strict=True)) == [
        (e, t) for e in range(envs) for t in range(steps)
    ]
    groups = [e for e in range(1, envs + 1) if envs % e == 0 and e * steps % minibatches == 0]
    of_group = picked_envs // groups[0]  # the smallest that can be shared evenly
    shares = np.stack([(of_group == group).sum(axis=1) for group in range(envs // groups[0])])
    assert (shares == groups[0] * steps // minibatches).all()
    assert (np.diff(of_group, axis=1) >= 0).all()  # in the order of devices


def test_minibatches_are_random():
    """Each step comes into each minibatch about equally often, and so do pairs of different groups."""
    keys = jax.random.split(jax.random.key(1), 4000)
    steps, envs = jax.vmap(lambda key: pqn_mlp.shuffled(key, 4, 4, 4))(keys)  # [4000, 4, 4]
    where = np.zeros((4000, 4, 4), int)
    for m in range(4):
        np.put_along_axis(where.reshape(4000, 16), np.asarray(envs[:, m] * 4 + steps[:, m]), m, axis=1)
    frequency = np.stack([(where == m).mean(axis=0) for m in range(4)])
    np.testing.assert_allclose(frequency, 0.25, atol=0.04)
    assert (where[:, 0, 0] == where[:, 1, 0]).mean() == pytest.approx(0.25, abs=0.04)


def test_picking_on_one_device_is_indexing():
    args = dataclasses.replace(small("pqn_mlp"), num_envs=6)
    x = jnp.arange(4 * 6 * 2).reshape(4, 6, 2)
    steps, envs = jnp.array([[0, 3], [2, 2]]), jnp.array([[1, 5], [0, 4]])
    np.testing.assert_array_equal(pqn_mlp.pick_steps(args, x, steps, envs), x[steps, envs])
    np.testing.assert_array_equal(pqn_rnn.pick(args, x, envs[0]), x[:, envs[0]])
    np.testing.assert_array_equal(pqn_rnn.pick(args, x[0], envs[0], axis=0), x[0][envs[0]])


def test_environments_of_tasks_take_turns():
    """So that neighbours, which a device has, are of all tasks."""
    impala = script("impala_popart")
    mixed = impala.together([jnp.array([0, 1, 2]), jnp.array([10, 11, 12])])
    assert mixed.tolist() == [0, 10, 1, 11, 2, 12]
    args = arcade("impala_popart", env_ids=["CartPoleEasy", "BreakoutEasy"], num_envs=4)
    _, begin, _ = impala.make_actor(args)
    actor = jax.jit(begin, static_argnums=1)(jax.random.key(0), 2)
    alone = [
        jax.vmap(impala.make_env(task)[0].get_obs)(state)
        for task, state in zip(impala.tasks(args), actor.env_state, strict=True)
    ]
    np.testing.assert_array_equal(actor.obs[::2], alone[0])
    np.testing.assert_array_equal(actor.obs[1::2], alone[1])
