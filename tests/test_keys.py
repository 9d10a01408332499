"""Random keys are split and never used twice: the programs of all scripts and ids, checked by JAX without running them.

Tests of other code that draws random numbers run with the same check switched on (conftest.py).
"""

import jax
import jax.numpy as jnp
import pytest
from harness import EASY_USUALLY, make
from jax.errors import KeyReuseError
from jax.experimental.key_reuse._core import check_key_reuse  # what --jax_debug_key_reuse calls
from scripts import arcade, script, small

import pqn_mlp
from popgym_arcade.analysis.trajectories import record_program
from popgym_arcade.baselines.running.evaluation import make_evaluate

PATHS = [  # script, flags: every place where a run draws random numbers
    *(("pqn_mlp", {}), ("pqn_rnn", {}), ("ppo_mlp", {"target_kl": 0.01}), ("ppo_rnn", {})),
    *(("ppo_continuous_action", {}), ("dqn_mlp", {}), ("dqn_mlp", {"prioritized": True})),
    *(("dqn_rnn", {"prioritized": True}), ("impala_popart", {"actor_lag": 2, "value_normalization": "popart"})),
    ("impala_popart", {"env_ids": ("CartPoleEasy", "BreakoutEasy")}),
    *(("ppo_selfplay", {}), ("ppo_selfplay", {"opponents": "past", "num_envs": 8})),
]


def check_training(args, name):
    """Raises KeyReuseError if init or update uses a key twice."""
    init, update = script(name).make_train(args)
    check_key_reuse(init, jax.random.key(0))
    check_key_reuse(update, jax.eval_shape(init, jax.random.key(0)))


@pytest.mark.parametrize("name, flags", PATHS)
def test_a_training_uses_no_key_twice(name, flags):
    check_training(small(name, **flags), name)


def test_an_evaluation_and_a_training_from_pixels_use_no_key_twice():
    args = arcade("pqn_rnn")
    check_training(args, "pqn_rnn")
    _, begin, act = script("pqn_rnn").make_actor(args)
    params = jax.eval_shape(script("pqn_rnn").make_train(args)[0], jax.random.key(0)).params
    check_key_reuse(make_evaluate(args, begin, act), params, jax.random.key(0), jnp.float32(0))


def test_episodes_that_the_analysis_records_use_no_key_twice():
    args = arcade("pqn_rnn")
    begin, advance = record_program(args, 2)
    params = jax.eval_shape(script("pqn_rnn").make_train(args)[0], jax.random.key(0)).params
    check_key_reuse(begin, jax.random.key(0))
    check_key_reuse(advance, params, jax.eval_shape(begin, jax.random.key(0)))


def test_a_key_that_is_used_twice_is_found(monkeypatch):
    def twice(key, q, epsilon):
        explore = jax.random.uniform(key, q.shape[:1]) < epsilon
        return jnp.where(explore, jax.random.randint(key, q.shape[:1], 0, q.shape[1], jnp.int32), q.argmax(axis=-1))

    monkeypatch.setattr(pqn_mlp, "epsilon_greedy", twice)
    with pytest.raises(KeyReuseError):
        check_training(small("pqn_mlp"), "pqn_mlp")


@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_an_environment_uses_no_key_twice(env_id):
    env, params = make(env_id)
    check_key_reuse(env.reset, jax.random.key(0), params)
    _, state = jax.eval_shape(env.reset, jax.random.key(0), params)
    check_key_reuse(env.step, jax.random.key(0), state, jnp.int32(4), params)
