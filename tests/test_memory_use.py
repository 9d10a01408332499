"""The memory training takes, known before it is compiled; what does not fit is refused; --remat needs less."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripts import ALL, arcade, script, small, trained, usually

from popgym_arcade.baselines.devices.mesh import over_seeds
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.running import memory_use
from popgym_arcade.baselines.running.evaluation import make_keys
from popgym_arcade.baselines.running.metrics import repeat
from popgym_arcade.baselines.running.programs import abstract_state

LARGE = {  # runs whose minibatches count
    "pqn_mlp": {"num_envs": 32, "num_steps": 16},
    "pqn_rnn": {"num_envs": 16, "num_steps": 16, "encoder": "paper"},
    "ppo_rnn": {"num_envs": 16, "num_steps": 16},
    "ppo_selfplay": {"num_envs": 16, "num_steps": 16, "env_id": "popgym_arcade.environments.pong:PongEasy"},
    "dqn_rnn": {"num_envs": 16, "batch_size": 32},
    "impala_popart": {"num_envs": 16, "num_steps": 16},
}


def measured(name, args):
    """Bytes XLA sets aside for a chunk of training: its arguments and its working memory."""
    init, update = script(name).make_train(args)
    chunk = jax.jit(over_seeds(repeat(update), args, (0, None)), donate_argnums=0)
    state = abstract_state(args, init, make_keys(args)[0])
    memory = chunk.lower(state, np.int32(1)).compile().memory_analysis()
    return memory.argument_size_in_bytes + memory.temp_size_in_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", usually("pqn_mlp", of=LARGE))
def test_the_prediction_is_within_a_quarter(name):
    args = arcade(name, **LARGE[name])
    needed = memory_use.memory_needed(args, script(name))
    assert sum(needed.values()) == pytest.approx(measured(name, args), rel=0.25)


@pytest.mark.thorough
@pytest.mark.slow
def test_reading_in_pieces_takes_less_memory_as_predicted():
    args = arcade("pqn_rnn", **LARGE["pqn_rnn"])
    again = dataclasses.replace(args, remat=True)
    taken = measured("pqn_rnn", again)
    assert taken < measured("pqn_rnn", args) / 2
    assert sum(memory_use.memory_needed(again, script("pqn_rnn")).values()) == pytest.approx(taken, rel=0.25)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", usually("pqn_mlp", of=("pqn_mlp", "pqn_rnn")))
def test_reading_in_pieces_learns_the_same(name):
    args = small(name, num_envs=8, num_steps=4)
    one, other = (trained(name, dataclasses.replace(args, remat=remat), 3)[0].params for remat in (False, True))
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for mine, yours in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(mine, yours, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_what_does_not_fit_is_refused_before_anything_is_written(name, monkeypatch, tmp_path):
    module, args = script(name), small(name, run_dir=str(tmp_path / "runs"))
    monkeypatch.setattr(memory_use, "memory_needed", functools.cache(memory_use.memory_needed))  # traced once
    needed = memory_use.memory_needed(args, module)
    largest = max(needed, key=needed.get)
    monkeypatch.setattr(memory_use, "available", lambda: 0.9 * sum(needed.values()))
    with pytest.raises(UserError, match=rf"^training takes about .* for the {largest}, .*: .*--") as error:
        module.main(args)
    assert "\n" not in str(error.value) and error.value.exit_code == 2
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(memory_use, "available", lambda: 1.1 * sum(needed.values()))
    memory_use.check_memory(args, module)


@pytest.mark.parametrize(
    "name, flag, flags",
    [("pqn_rnn", "eval_episodes", "--eval-episodes"), ("ppo_selfplay", "elo_games", "--eval-episodes or --elo-games")],
)
def test_more_episodes_than_fit_are_refused(name, flag, flags, tmp_path):
    module, args = script(name), small(name, run_dir=str(tmp_path / "runs"), **{flag: 500_000_000})
    with pytest.raises(UserError, match=f"GB of it for the episodes of an evaluation, but .*: lower {flags}$"):
        module.main(args)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name, flag, value, part", [
    ("pqn_mlp", "num_envs", 4096, "rollout"),
    ("pqn_rnn", "num_steps", 512, "rollout"),
    ("ppo_mlp", "num_seeds", 64, "rollout"),
    ("dqn_mlp", "batch_size", 4096, "minibatch"),
    ("dqn_rnn", "buffer_size", 20_000_000, "replay buffer"),
])  # fmt: skip
def test_more_of_what_costs_memory_needs_more(name, flag, value, part):
    module, args = script(name), arcade(name, total_timesteps=10**8)
    before = memory_use.memory_needed(args, module)
    after = memory_use.memory_needed(dataclasses.replace(args, **{flag: value}), module)
    assert before.keys() == after.keys() == memory_use.REMEDIES.keys()
    assert after[part] > 10 * before[part]
    assert all(after[other] >= before[other] for other in before)
    assert "--" + flag.replace("_", "-") in memory_use.remedy(args, part) or flag == "num_seeds"


def test_what_a_device_has(monkeypatch):
    assert 1e9 < memory_use.available() < 1e13
    monkeypatch.setattr(jax, "local_device_count", lambda: 2)
    alone = memory_use.available()
    monkeypatch.setattr(jax, "local_device_count", lambda: 8)
    assert memory_use.available() == alone / 4


def test_bytes_of_a_backward_pass():
    """Of sin((x + 1) w): x + 1 for the product's gradient, the slope of the sine; and the largest gradient, twice."""
    x, w = np.ones((32, 64), np.float32), jax.ShapeDtypeStruct((64, 128), np.float32)
    inputs, product = 4 * 32 * 64, 4 * 32 * 128
    layer = lambda w: jnp.sin((jnp.asarray(x) + 1) @ w)
    assert memory_use.backward_bytes(layer, w) == inputs + product + 2 * product
    two = lambda w: (layer(w), layer(w))
    assert memory_use.backward_bytes(two, w) == inputs + 2 * product + 2 * product  # x + 1 is held once


def test_byte_size_of_keys_and_shapes():
    tree = {"key": jax.random.key(0), "x": jax.ShapeDtypeStruct((3, 5), np.int8), "y": np.zeros(2)}
    assert memory_use.byte_size(tree) == 8 + 15 + 16
