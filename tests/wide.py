"""Run by test_wide.py in a process with other defaults of JAX: prints shapes and dtypes of games or scripts as JSON."""

import json
import sys

import gymnax
import jax
import jax.numpy as jnp

import popgym_arcade  # noqa: F401 (registers the ids)


def types(tree):
    """Shape and dtype of every leaf, by name."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): [list(leaf.shape), str(leaf.dtype)] for path, leaf in leaves}


def play(env, params, key):
    """First and later states and rewards of a scan, whose carry must keep its types."""

    def step(state, key):
        obs, state, reward, terminated, truncated, info = env.step(key, state, jnp.int64(1), params)
        return state, (obs, reward, terminated, truncated, info)

    obs, state = env.reset(key, params)
    return (obs, state), jax.lax.scan(step, state, jax.random.split(jax.random.fold_in(key, 1), 3))


def game(env_id):
    env, params = gymnax.make(env_id, partial_obs=True)
    (_, first), (last, (obs, reward, *_)) = jax.eval_shape(lambda key: play(env, params, key), jax.random.key(0))
    return {"first": types(first), "last": types(last), "obs": str(obs.dtype), "reward": str(reward.dtype)}


def training(name):
    """The state of a script before and after a chunk of training. Its evaluation is traced, too."""
    from scripts import arcade, script, small

    from popgym_arcade.baselines.running.evaluation import make_evaluate
    from popgym_arcade.baselines.running.metrics import repeat

    args = small(name) if name == "ppo_continuous_action" else arcade(name)
    module = script(name)
    init, update = module.make_train(args)
    before = jax.eval_shape(init, jax.random.key(0))
    after, _ = jax.eval_shape(repeat(update), before, jnp.int32(2))
    _, begin, act = module.make_actor(args)
    jax.eval_shape(make_evaluate(args, begin, act), before.params, jax.random.key(1), module.POLICIES["greedy"])
    return {"before": types(before), "after": types(after), "params": types(before.params)}


look = {"games": game, "scripts": training}[sys.argv[1]]
print(json.dumps({name: look(name) for name in sys.argv[2:]}))
