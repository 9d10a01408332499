"""Small runs of any training script, shared by the tests of what all of them promise."""

import dataclasses
import functools
import importlib

import jax
import jax.numpy as jnp
from harness import only_usually

from popgym_arcade.baselines.devices.mesh import leaf_name, over_seeds, seed_by_seed
from popgym_arcade.baselines.running.evaluation import make_evaluate, make_keys
from popgym_arcade.baselines.running.metrics import repeat

ALL = (
    *("pqn_mlp", "pqn_rnn", "ppo_mlp", "ppo_rnn"),
    *("ppo_continuous_action", "ppo_selfplay", "dqn_mlp", "dqn_rnn", "impala_popart"),
)
PIXEL = tuple(name for name in ALL if name not in ("ppo_continuous_action", "ppo_selfplay"))  # of popgym_arcade's ids
ENV_IDS = dict.fromkeys(PIXEL, "CartPole-v1") | {"ppo_continuous_action": "Pendulum-v1", "ppo_selfplay": "race:Race"}
SIZES = {"num_envs": 4, "hidden_size": 16, "total_timesteps": 256}
ROLLOUTS = {"num_steps": 8, "num_minibatches": 2}
REPLAY = {"learning_starts": 32, "batch_size": 8, "target_network_frequency": 64, "save_buffer": True}
SIZES_OF = {
    "dqn_mlp": REPLAY | {"train_frequency": 32},
    "dqn_rnn": REPLAY | {"train_frequency": 16, "num_steps": 8, "burn_in": 8},
    "ppo_selfplay": ROLLOUTS | {"elo_games": 4},
}
OFF_POLICY = ("dqn_mlp", "dqn_rnn")
ON_POLICY = tuple(name for name in ALL if name not in OFF_POLICY)
CADENCES = {"log_every": 64, "eval_every": 128, "checkpoint_every": 64, "eval_episodes": 3}


def usually(*names, of=ALL):
    """The scripts, or whatever `of` holds, as parameters of a test; all but `names` only with --thorough."""
    return only_usually(names, of)


def script(name):
    return importlib.import_module(name)


def small(name, **changes):
    """Checked arguments of a run that takes seconds, most of them to compile: eight updates of 32 steps."""
    env_id = ENV_IDS[name]
    if "env_ids" in script(name).Args.__dataclass_fields__:
        changes = {"env_ids": (changes.pop("env_id", env_id),)} | changes
    else:
        changes = {"env_id": env_id} | changes
    return script(name).Args(**(SIZES | SIZES_OF.get(name, ROLLOUTS) | CADENCES | changes)).checked()


def arcade(name, **changes):
    return small(name, **({"env_id": "CartPoleEasy", "partial_obs": True} | changes))


@functools.lru_cache
def programs(name, args):
    """init(keys) and train_chunk(state, num_updates), over all seeds."""
    init, update = script(name).make_train(args)
    functions = seed_by_seed(init, args), over_seeds(repeat(update), args, (0, None))
    return tuple(map(jax.jit, functions))


def trained(name, args, updates):
    """State and sums after some updates. The seed is in the keys alone, so that all seeds share a program."""
    init, train_chunk = programs(name, dataclasses.replace(args, seed=0))
    return train_chunk(init(make_keys(args)[0]), jnp.int32(updates))


def evaluation_program(name, args):
    """evaluate(params, keys, policy), over all seeds."""
    _, begin, act = script(name).make_actor(args)
    return jax.jit(over_seeds(make_evaluate(args, begin, act), args, (0, 0, None)))


def learned_return(name, args, seeds=3):
    """The greedy return of the median of several seeds, over 64 episodes each: rounding differs between machines."""
    args, module = dataclasses.replace(args, num_seeds=seeds, eval_episodes=64).checked(), script(name)
    init, train_chunk = programs(name, args)
    train_keys, eval_keys = make_keys(args)
    state, _ = train_chunk(init(train_keys), jnp.int32(args.num_updates))
    returns = evaluation_program(name, args)(state.params, eval_keys, module.POLICIES["greedy"]).returns
    return float(jnp.median(returns.mean(axis=-1)))  # of [seeds, episodes]


def fresh_params(name, args):
    """The network and its parameters; values, which start at 0, are those of a random layer."""
    network, _, _ = script(name).make_actor(args)
    params = filled_params(name, dataclasses.replace(args, seed=0, run_dir=""))  # which do not change them
    return network, jax.tree.map(lambda x: x, params)  # a tree that a test may change


@functools.lru_cache(maxsize=16)  # a few megabytes each
def filled_params(name, args):
    """The parameters of `fresh_params`."""
    params = jax.jit(script(name).make_train(args)[0])(jax.random.key(0)).params

    def filled(path, x):
        at_zero = leaf_name(path).endswith("kernel") and not x.any()
        return 0.1 * jax.random.normal(jax.random.key(2), x.shape) if at_zero else x

    return jax.tree_util.tree_map_with_path(filled, params)
