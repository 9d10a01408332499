"""Several devices: they learn as one does, and exchange the gradients and little else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripts import OFF_POLICY, arcade, script, small, usually

from popgym_arcade.anywhere import anywhere
from popgym_arcade.baselines import tasks
from popgym_arcade.baselines.devices import minibatches as drawing
from popgym_arcade.baselines.devices.mesh import everywhere
from popgym_arcade.baselines.environment import make_env
from popgym_arcade.baselines.running.evaluation import make_keys

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
@pytest.mark.parametrize("name", usually("pqn_mlp"))
def test_one_two_and_eight_devices_learn_the_same(name):
    one, two, eight = on_devices(name, num_envs=16)
    assert one["envs"] == ["P('envs',)"] == eight["envs"]
    assert not one["exchanges"] and two["exchanges"]
    for several in (two, eight):
        assert_same_learning(one, several)
        # in a gradient step all gradients together, once; apart from that only a few numbers
        size = 4 * len(one["params"])
        large = [exchange for exchange in several["exchanges"] if exchange[1] > size // 2]
        assert len(large) == 1 and large[0][0] == "all-reduce" and large[0][2]
        rest = sum(size for _, size, _ in several["exchanges"]) - large[0][1]
        assert rest < (20_000 if name in OFF_POLICY else 200)  # sampled steps, statistics of advantages and of episodes


@pytest.mark.thorough
def test_pixels_on_two_devices():
    one, two = on_devices("pqn_mlp", env_id="CartPoleEasy", partial_obs=True, num_envs=8, counts=[1, 2], updates=2)
    assert_same_learning(one, two)
    frame = 128 * 128 * 3
    assert max(size for _, size, of_gradient in two["exchanges"] if not of_gradient) < frame


@pytest.mark.slow
def test_another_library_s_environment_on_two_devices():
    pytest.importorskip("xminigrid")
    one, two = on_devices("pqn_mlp", env_id="xminigrid/MiniGrid-Empty-5x5", num_envs=8, counts=[1, 2], updates=2)
    assert_same_learning(one, two)


@pytest.mark.thorough
@pytest.mark.slow
def test_several_tasks_on_two_devices():
    ids = ["CartPole-v1", "CartPole-v1"]
    one, two = on_devices(
        "impala_popart", env_ids=ids, reward_scales=[1, 10], value_normalization="popart", num_envs=16, counts=[1, 2]
    )
    assert_same_learning(one, two)


@pytest.mark.thorough
@pytest.mark.slow
def test_seeds_that_divide_are_put_on_the_devices_and_exchange_nothing():
    one, two = on_devices("pqn_mlp", num_envs=2, num_seeds=4, counts=[1, 2], played=True)
    assert_same_learning(one, two)
    assert two["envs"] == ["P('seeds',)"]
    assert all(kind == "all-gather" and size < 100 for kind, size, _ in two["exchanges"])  # the sums, to be logged


@pytest.mark.thorough
def test_else_all_devices_have_environments_of_every_seed():
    one, two = on_devices("pqn_mlp", num_envs=8, num_seeds=3, counts=[1, 2], played=True, eval_episodes=4)
    assert_same_learning(one, two)
    assert two["envs"] == ["P(None, 'envs')"]


# ---------------------------------------------------------------------------------------------------------- minibatches


def flat(steps, envs, group):
    """Steps and environments of minibatches, [minibatches, B], the latter counted over all groups."""
    steps, envs = map(np.asarray, (steps, envs))
    envs = envs + group * np.arange(envs.shape[-2])[:, None]
    return steps.reshape(*steps.shape[:-2], -1), envs.reshape(*envs.shape[:-2], -1)


@pytest.mark.parametrize(
    "envs, steps, minibatches", [(8, 1, 4), (8, 1, 1), (4, 128, 4), (6, 10, 4), (16, 3, 12), (2, 5, 10)]
)
def test_minibatches_have_each_step_once_and_of_each_group_the_same_share(envs, steps, minibatches):
    keys = jax.random.split(jax.random.key(0), 2)
    orders = jax.jit(drawing.shuffled, static_argnums=(1, 2, 3))(list(keys), envs, steps, minibatches)
    order = [x[1] for x in orders]
    group = drawing.group_size(minibatches, steps)
    assert [x.shape for x in order] == [(minibatches, envs // group, group * steps // minibatches)] * 2
    picked_steps, picked_envs = flat(*order, group)
    assert picked_steps.shape == picked_envs.shape == (minibatches, envs * steps // minibatches)
    assert sorted(zip(picked_envs.ravel(), picked_steps.ravel(), strict=True)) == [
        (e, t) for e in range(envs) for t in range(steps)
    ]
    groups = [e for e in range(1, envs + 1) if envs % e == 0 and e * steps % minibatches == 0]
    of_group = picked_envs // groups[0]  # the smallest that can be shared evenly
    shares = np.stack([(of_group == group).sum(axis=1) for group in range(envs // groups[0])])
    assert (shares == groups[0] * steps // minibatches).all()
    assert (np.diff(of_group, axis=1) >= 0).all()  # in the order of devices


def test_each_key_gives_an_order_of_its_own():
    keys = list(jax.random.split(jax.random.key(2)))
    both = drawing.shuffled(keys, 4, 8, 2)
    for i, key in enumerate(keys):
        for together, alone in zip(both, drawing.shuffled([jax.random.clone(key)], 4, 8, 2), strict=True):
            np.testing.assert_array_equal(together[i], alone[0])
    assert (both[0][0] != both[0][1]).any()
    assert drawing.shuffled_envs([jax.random.clone(keys[0])], 8, 4).shape == (1, 4, 2, 1)


def test_minibatches_are_random():
    """Each step comes into each minibatch about equally often, and so do pairs of different groups."""
    keys = jax.random.split(jax.random.key(1), 4000)
    steps, envs = flat(
        *(x[:, 0] for x in jax.vmap(lambda key: drawing.shuffled([key], 4, 4, 4))(keys)), group=1
    )  # [4000, 4, 4]
    where = np.zeros((4000, 4, 4), int)
    for m in range(4):
        np.put_along_axis(where.reshape(4000, 16), np.asarray(envs[:, m] * 4 + steps[:, m]), m, axis=1)
    frequency = np.stack([(where == m).mean(axis=0) for m in range(4)])
    np.testing.assert_allclose(frequency, 0.25, atol=0.04)
    assert (where[:, 0, 0] == where[:, 1, 0]).mean() == pytest.approx(0.25, abs=0.04)


def test_picking_is_indexing():
    x = np.arange(4 * 6 * 2).reshape(4, 6, 2)  # [T, E, ...] in groups of three environments
    steps, envs = np.array([[0, 3], [2, 2]]), np.array([[1, 2], [0, 1]])
    flat_steps, flat_envs = flat(steps, envs, group=3)
    np.testing.assert_array_equal(drawing.pick_steps(x, steps, envs), x[flat_steps, flat_envs])
    _, one_of_each = flat(steps, envs[:, :1], group=3)
    np.testing.assert_array_equal(drawing.pick_envs(x, envs[:, :1]), x[:, one_of_each])
    np.testing.assert_array_equal(drawing.pick_envs(x[0], envs[:, :1], axis=0), x[0][one_of_each])
    empty = np.zeros((4, 6, 0))  # such as the state of a memory that remembers nothing
    assert drawing.pick_steps(empty, steps, envs).shape == (4, 0)
    assert drawing.pick_envs(empty, envs[:, :1]).shape == (4, 2, 0)


@pytest.mark.parametrize("length", [1, 2, 500, 70_000])
def test_random_order_has_each_number_once_in_each_row(length):
    order = np.asarray(drawing.random_order(jax.random.key(0), 3, length))
    assert order.dtype == np.int32 and (np.sort(order, axis=1) == np.arange(length)).all()
    assert length < 3 or not (order[0] == order[1]).all()


def test_every_order_is_equally_likely():
    orders = drawing.random_order(jax.random.key(0), 6000, 3)
    _, counts = np.unique(np.asarray(orders), axis=0, return_counts=True)
    assert len(counts) == 6 and ((counts > 880) & (counts < 1120)).all()  # four standard deviations


def test_anywhere_reduces_over_seeds_too():
    """So that a cond on it stays a cond."""
    flags = np.array([[False, False], [False, True]])
    found = jax.vmap(lambda flags: (anywhere(flags), flags.any()))(flags)
    assert [x.tolist() for x in found] == [[True, True], [False, True]]
    assert not jax.vmap(anywhere)(np.zeros((2, 2), bool)).any()
    branch = lambda flags: jax.lax.cond(anywhere(flags), jnp.sin, jnp.cos, 0.5)
    assert "cond[" in str(jax.make_jaxpr(jax.vmap(branch))(flags))


def test_keys_are_the_same_on_every_device():
    args = small("pqn_mlp", num_seeds=2)
    keys, _ = make_keys(args)
    copied = everywhere(args, keys)
    assert copied.sharding.is_fully_replicated
    np.testing.assert_array_equal(jax.random.key_data(copied), jax.random.key_data(keys))


def test_environments_of_tasks_take_turns():
    """So that neighbours, which a device has, are of all tasks."""
    impala = script("impala_popart")
    mixed = tasks.interleave([jnp.array([0, 1, 2]), jnp.array([10, 11, 12])])
    assert mixed.tolist() == [0, 10, 1, 11, 2, 12]
    args = arcade("impala_popart", env_ids=["CartPoleEasy", "BreakoutEasy"], num_envs=4)
    _, begin, _ = impala.make_actor(args)
    actor = jax.jit(begin, static_argnums=1)(jax.random.key(0), 2)
    alone = [
        jax.vmap(make_env(task)[0].get_obs)(state) for task, state in zip(args.tasks, actor.env_state, strict=True)
    ]
    np.testing.assert_array_equal(actor.obs[::2], alone[0])
    np.testing.assert_array_equal(actor.obs[1::2], alone[1])
