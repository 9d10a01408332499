"""Returns and lengths of the random policy for every id, the baseline of trained agents.

    python benchmark/random_policy.py --episodes 10000

Writes OUT.csv and OUT.md (the table) and prints the table. No frames are drawn, so both twins share a row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import gymnax
import jax
import jax.numpy as jnp
import numpy as np

import popgym_arcade
from popgym_arcade.analysis.command_line import launch
from popgym_arcade.analysis.tables import markdown, write_table
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import Count, NonNegativeInt, PathName, check_limits
from popgym_arcade.environments.arcade import ArcadeEnvironment

CHUNK = 2_000  # episodes played side by side
COLUMNS = ("env_id", "episodes", "return_mean", "return_standard_error", "return_min", "return_max", "length_mean")


@dataclass(frozen=True)
class Args:
    env_ids: tuple[str, ...] = ()
    """popgym_arcade ids to play; none: all"""
    episodes: Count = 10_000
    """episodes per id"""
    seed: NonNegativeInt = 0
    """seed of actions and episodes"""
    out: PathName = "runs/random_policy"
    """path of the files to write, without their endings"""


def check_ids(env_ids: tuple[str, ...]) -> None:
    """Raises UserError for an unknown id, and names similar ones."""
    known = popgym_arcade.REGISTERED_ENVIRONMENTS
    for env_id in env_ids:
        if env_id not in known:
            closest = ", ".join(get_close_matches(env_id, known, cutoff=0))
            raise UserError(f"--env-ids {env_id} is unknown: the closest are {closest}")


def play_to_the_end(env: ArcadeEnvironment, params: Any, state: Any, key: jax.Array, act: Callable) -> tuple:
    """Undiscounted returns float32[n] and lengths int32[n] of the episodes that start from n states, under jit.

    `params` and `state` have a leading axis of n; act(state, key) gives actions int32[n].
    """
    n = len(state.time)

    def step(now):
        state, key, value, length, over = now
        key, action_key, step_key = jax.random.split(key, 3)
        actions = act(state, action_key)
        _, state, reward, terminated, _ = jax.vmap(env.step_env)(jax.random.split(step_key, n), state, actions, params)
        done = terminated | env.is_truncated(state, params)
        return state, key, value + jnp.where(over, 0, reward), length + ~over, over | done

    begin = state, key, jnp.zeros(n), jnp.zeros(n, jnp.int32), jnp.zeros(n, bool)
    _, _, value, length, _ = jax.lax.while_loop(lambda now: ~now[-1].all(), step, begin)
    return value, length


def play(env_id: str, episodes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Undiscounted returns float32 and lengths int32 of complete episodes, [episodes]."""
    env, params = gymnax.make(env_id)
    act = lambda state, key: jax.random.randint(key, state.time.shape, 0, env.num_actions)

    @jax.jit
    def chunk(key):
        key, reset_key = jax.random.split(key)
        _, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(reset_key, CHUNK), params)
        return play_to_the_end(env, jax.tree.map(lambda x: jnp.full(CHUNK, x), params), state, key, act)

    keys = jax.random.split(jax.random.key(seed), -(-episodes // CHUNK))
    values, lengths = zip(*(chunk(key) for key in keys), strict=True)
    return np.concatenate(values)[:episodes], np.concatenate(lengths)[:episodes]


def row(env_id: str, args: Args) -> dict:
    """The figures of one id."""
    values, lengths = play(env_id, args.episodes, args.seed)
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    figures = values.mean(), error, values.min(), values.max(), lengths.mean()
    return dict(zip(COLUMNS, (env_id, len(values), *(round(float(figure), 5) for figure in figures)), strict=True))


def table(rows: list[dict]) -> str:
    """Markdown of all rows."""
    lines = []
    for r in rows:
        mean = f"{r['return_mean']:.4f} ± {r['return_standard_error']:.4f}"
        lines.append([r["env_id"], mean, f"{r['return_min']:.3f}", f"{r['return_max']:.3f}", f"{r['length_mean']:.1f}"])
    return markdown(["id", "return, mean ± standard error", "lowest", "highest", "episode length"], lines)


def main(args: Args) -> None:
    """Plays the ids, writes the files and prints the table. Raises UserError for an unknown id."""
    check_limits(args)
    check_ids(args.env_ids)
    rows = []
    for env_id in args.env_ids or popgym_arcade.REGISTERED_ENVIRONMENTS:
        rows.append(row(env_id, args))
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    write_table(args.out, COLUMNS, rows, table(rows))


if __name__ == "__main__":
    launch(main, Args)
