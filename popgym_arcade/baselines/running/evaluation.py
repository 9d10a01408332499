"""Complete episodes of a policy, for the evaluations during training and for the analysis scripts.

Works for every script through its `make_actor`: `begin(key, num_envs)` and `act(params, actor, policy)`.
Shapes: E environments.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from popgym_arcade.baselines.devices.mesh import spread


@struct.dataclass
class Evaluation:
    """Returns and lengths [E] of the first episode of each environment, and whether it is over."""

    actor: Any
    returns: jax.Array
    lengths: jax.Array
    over: jax.Array


def make_evaluate(args: Any, begin: Callable, act: Callable) -> Callable:
    """The pure function evaluate(params, key, policy) -> Evaluation of `args.eval_episodes` complete episodes.

    `policy` is one of the values of the script's `POLICIES`. With several tasks, each plays that many episodes.
    """

    def step(params, policy, now: Evaluation) -> Evaluation:
        actor, transition, _ = act(params, now.actor, policy)
        episode = transition.episode
        return Evaluation(
            actor=actor,
            returns=jnp.where(now.over, now.returns, episode.total_reward),
            lengths=jnp.where(now.over, now.lengths, episode.length),
            over=now.over | episode.over,
        )

    def evaluate(params, key: jax.Array, policy) -> Evaluation:
        actor = spread(args, begin(key, args.eval_episodes))
        unplayed = actor.episode
        nothing = Evaluation(actor=actor, returns=unplayed.total_reward, lengths=unplayed.length, over=unplayed.over)
        return jax.lax.while_loop(lambda now: ~now.over.all(), functools.partial(step, params, policy), nothing)

    return evaluate


def make_keys(args: Any) -> tuple[jax.Array, jax.Array]:
    """The keys of training and of evaluation, with a leading seed axis if there are several seeds."""

    def both(seed):
        train_key, eval_key = jax.random.split(jax.random.key(seed))
        return train_key, eval_key

    return jax.vmap(both)(args.seed + jnp.arange(args.num_seeds)) if args.num_seeds > 1 else both(args.seed)


def keys_at_step(args: Any, keys: jax.Array, step: int) -> jax.Array:
    """The keys to use at a step, one for each seed: `keys`, from `make_keys`, with the step folded in."""
    fold = jax.vmap(jax.random.fold_in, (0, None)) if args.num_seeds > 1 else jax.random.fold_in
    return fold(keys, step)
