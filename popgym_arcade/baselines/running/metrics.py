"""Updates in chunks, and the sums from which the curves are made.

An update returns sums that add up over updates. Shapes: T steps of a rollout, E environments, P = 2 E players.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from popgym_arcade.baselines.errors import Diverged
from popgym_arcade.environments.two_player import SEATS


def repeat(update: Callable) -> Callable:
    """train_chunk(state, num_updates) -> (state, sums) from update(state) -> (state, sums).

    `num_updates` is traced, so one program serves chunks of every length. The sums count the "updates" as well.

    Raises:
        TypeError: for a metric that is True or False, which cannot be added up
    """
    update = jax.jit(update, inline=True)  # traced once, for `zero` and for the loop

    def train_chunk(state: Any, num_updates: jax.Array) -> tuple[Any, dict]:
        def counted(state):
            state, sums = update(state)
            flags = [name for name, x in sums.items() if x.dtype == bool]
            if flags:
                raise TypeError(f"update returns {flags[0]!r} as a bool, which cannot be added up: make it a number")
            return state, sums | {"updates": jnp.int32(1)}

        def body(_, carry):
            state, sums = counted(carry[0])
            return state, jax.tree.map(jnp.add, carry[1], sums)

        zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(counted, state)[1])
        return jax.lax.fori_loop(0, num_updates, body, (state, zero))

    return train_chunk


def episode_sums(rollout: Any) -> dict[str, jax.Array]:
    """Sums over the episodes that end in a rollout, whose `episode` has leaves [T, E]."""
    episode = rollout.episode
    return {
        "episodes": episode.over.sum(dtype=jnp.int32),
        "episodic_return": (episode.over * episode.total_reward).sum(),
        "episodic_length": (episode.over * episode.length).sum(dtype=jnp.float32),
    }


def episode_curves(sums: dict) -> dict[str, np.ndarray]:
    """Mean return and length of the episodes that ended, and their number; NaN, which adds no point, if none did."""
    episodes = nan_if_zero(sums["episodes"])
    means = {f"charts/{name}": sums[name] / episodes for name in ("episodic_return", "episodic_length")}
    return means | {"charts/episodes": episodes}


def player_sums(players: Any) -> dict[str, jax.Array]:
    """`episode_sums` of two-player games, from the Episode [T, P] of their players; returns are [2], of the seats."""
    games = jax.tree.map(lambda x: x.reshape(len(x), -1, SEATS), players)  # [T, E, 2]
    return {
        "episodes": games.over[..., 0].sum(dtype=jnp.int32),
        "episodic_return": (games.over * games.total_reward).sum(axis=(0, 1)),
        "episodic_length": (games.over * games.length)[..., 0].sum(dtype=jnp.float32),
    }


def player_curves(sums: dict) -> dict[str, np.ndarray]:
    """`episode_curves` of two-player games: the returns of both players, and as `episodic_return` that of the first."""
    totals, games = np.moveaxis(np.asarray(sums["episodic_return"]), -1, 0), nan_if_zero(sums["episodes"])
    returns = {f"charts/episodic_return-player{i}": total / games for i, total in enumerate(totals)}
    return returns | episode_curves(sums | {"episodic_return": totals[0]})


def explained_variance(value: jax.Array, target: jax.Array) -> jax.Array:
    """1 - Var[target - value] / Var[target]: 1 is perfect, 0 no better than a constant; NaN for a constant target."""
    # rounding gives equal targets a small variance; a rollout of one step may have no targets
    varies = target.max(initial=-jnp.inf) > target.min(initial=jnp.inf)
    return jnp.where(varies, 1 - (target - value).var() / target.var(), jnp.nan)


def value_sums(value: jax.Array, target: jax.Array) -> dict[str, jax.Array]:
    """The explained variance of a rollout's values, and whether it has one, as sums."""
    explained = explained_variance(value, target)
    return {"explained_variance": jnp.nan_to_num(explained), "explained_updates": jnp.int32(~jnp.isnan(explained))}


def value_curves(sums: dict) -> dict[str, np.ndarray]:
    """Mean explained variance of the rollouts that have one; NaN, which adds no point, if none has."""
    return {"losses/explained_variance": sums["explained_variance"] / nan_if_zero(sums["explained_updates"])}


def nan_if_zero(count: Any) -> np.ndarray:
    """A divisor that makes the mean of nothing NaN."""
    return np.where(np.asarray(count) > 0, count, math.nan)


def check_finite(args: Any, sums: dict, step: int) -> None:
    """Raises Diverged, naming the first of the sums that is NaN or infinite."""
    for name, value in sums.items():
        bad = ~np.isfinite(value)
        if bad.any():
            count = bad.reshape(args.num_seeds, -1).any(axis=1).sum()
            seeds = f" in {count} of the seeds" if args.num_seeds > 1 else ""
            raise Diverged(
                f"{name} became {value[bad][0]}{seeds} before step {step}: "
                "lower --learning-rate or --max-grad-norm; earlier checkpoints are kept"
            )
