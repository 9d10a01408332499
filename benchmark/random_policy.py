"""Return and length of episodes with uniformly random actions, for every id: what a trained agent is compared with.

    python benchmark/random_policy.py --episodes 10000

Writes OUT.csv and OUT.md (the table) and prints the table. Nothing is drawn, so both twins share a row.
"""

import difflib
from dataclasses import dataclass
from pathlib import Path

import gymnax
import jax
import jax.numpy as jnp
import numpy as np

import popgym_arcade
from popgym_arcade.analysis.command_line import launch
from popgym_arcade.analysis.tables import markdown, write_csv
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import Count, NonNegativeInt, PathName, check_limits

CHUNK = 2_000  # episodes played side by side
COLUMNS = ("env_id", "episodes", "return_mean", "return_standard_error", "return_min", "return_max", "length_mean")


@dataclass(frozen=True)
class Args:
    env_ids: tuple[str, ...] = ()
    """popgym_arcade ids to play; none: all"""
    episodes: Count = 10_000
    """episodes of each"""
    seed: NonNegativeInt = 0
    """seed of actions and episodes"""
    out: PathName = "benchmark/results/random_policy"
    """path of the files to write, without their endings"""


def play(env_id: str, episodes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Undiscounted returns float32 and lengths int32 of complete episodes, [episodes]."""
    env, params = gymnax.make(env_id)

    @jax.jit
    def chunk(key):
        key, reset_key = jax.random.split(key)
        _, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(reset_key, CHUNK), params)

        def step(now):
            state, key, value, length, over = now
            key, action_key, step_key = jax.random.split(key, 3)
            actions = jax.random.randint(action_key, (CHUNK,), 0, env.num_actions)
            _, state, reward, terminated, _ = jax.vmap(env.step_env, in_axes=(0, 0, 0, None))(
                jax.random.split(step_key, CHUNK), state, actions, params
            )
            done = terminated | env.is_truncated(state, params)
            return state, key, value + jnp.where(over, 0, reward), length + ~over, over | done

        begin = state, key, jnp.zeros(CHUNK), jnp.zeros(CHUNK, jnp.int32), jnp.zeros(CHUNK, bool)
        _, _, value, length, _ = jax.lax.while_loop(lambda now: ~now[-1].all(), step, begin)
        return value, length

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
    return markdown(["id", "return, mean ± standard error", "least", "greatest", "episode length"], lines)


def main(args: Args) -> None:
    check_limits(args)
    known = popgym_arcade.REGISTERED_ENVIRONMENTS
    for env_id in args.env_ids:
        if env_id not in known:
            close = ", ".join(difflib.get_close_matches(env_id, known))
            raise UserError(f"--env-ids {env_id} is unknown: the closest are {close}")
    rows = []
    for env_id in args.env_ids or known:
        rows.append(row(env_id, args))
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    write_csv(Path(f"{args.out}.csv"), COLUMNS, rows)
    Path(f"{args.out}.md").write_text(table(rows))
    print(table(rows), end="")


if __name__ == "__main__":
    launch(main, Args)
