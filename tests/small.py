"""Small trainings of pqn_rnn.py, shared by its tests."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

import pqn_rnn
from pqn_rnn import Args

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
    functions = pqn_rnn.seed_by_seed(init, args), pqn_rnn.over_seeds(train_chunk, args, (0, None))
    return tuple(map(jax.jit, functions))


def trained(args: Args, updates: int):
    """State and metrics after some updates. The seed is in the keys alone, so that all seeds share a program."""
    init, train_chunk = programs(dataclasses.replace(args, seed=0))
    return train_chunk(init(pqn_rnn.make_keys(args)[0]), jnp.int32(updates))


def assert_equal(one, other, atol=0.0):
    for (path, x), (_, y) in zip(*map(jax.tree_util.tree_leaves_with_path, (one, other)), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_allclose(x, y, rtol=0, atol=atol, err_msg=jax.tree_util.keystr(path))
