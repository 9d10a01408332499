"""What a rollout or a replay buffer stores: frames, or the states they are drawn from."""

import pytest
from runs import assert_equal
from scripts import arcade, script, trained, usually

from popgym_arcade.baselines.running import memory_use

STORED_IN = {name: "rollout" for name in ("pqn_mlp", "pqn_rnn", "ppo_mlp", "ppo_rnn")}
STORED_IN |= {"dqn_mlp": "replay buffer", "dqn_rnn": "replay buffer"}
CASES = [*((name, {}) for name in STORED_IN), ("pqn_rnn", {"memory": "MLP"})]


def with_each(name, **flags):
    """The same arguments, storing states and frames."""
    return (arcade(name, storage=storage, **flags) for storage in ("states", "frames"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags"), usually(("ppo_mlp", {}), ("pqn_rnn", {"memory": "MLP"}), ("dqn_mlp", {}), of=CASES)
)
def test_states_or_frames_learn_the_same_to_the_last_bit(name, flags):
    states, frames = with_each(name, env_params=("max_steps_in_episode=5",), total_timesteps=512, **flags)
    (one, metrics), (other, other_metrics) = (trained(name, args, 8) for args in (states, frames))
    assert_equal(one.params, other.params)
    assert_equal(metrics, other_metrics)
    assert float(metrics["grad_norm"]) > 0
    if STORED_IN[name] == "replay buffer":
        assert_equal(one.target_params, other.target_params)
        assert float(metrics["gradient_steps"]) > 4


@pytest.mark.parametrize("name", STORED_IN)
def test_states_take_a_hundredth_of_the_memory(name):
    part = STORED_IN[name]
    sizes = {"num_envs": 64, "num_steps": 128} if part == "rollout" else {}
    states, frames = (memory_use.memory_needed(args, script(name)) for args in with_each(name, **sizes))
    # the environments as they are now have their frames in any case, and count as part of a rollout
    assert states[part] < frames[part] / (50 if part == "rollout" else 100)
    assert states["minibatch"] == frames["minibatch"]


def test_a_rollout_that_does_not_fit_names_the_flag(monkeypatch):
    states, frames = with_each("pqn_mlp", num_envs=4096, num_steps=128, num_minibatches=128)
    monkeypatch.setattr(memory_use, "available", lambda: 24e9)
    memory_use.check_memory(states, script("pqn_mlp"))
    with pytest.raises(memory_use.UserError, match="26.* of it for the rollout, .*, or use --storage states"):
        memory_use.check_memory(frames, script("pqn_mlp"))
