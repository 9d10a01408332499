"""The pictures of the games in README and docs: both twins of every family, some steps into an episode.

    python benchmark/gallery.py --out docs/figures

Writes OUT/games.png, all families at one difficulty, and OUT/games/FAMILY.png, each at all three: above what the fully
observable twin shows, below the partially observable one, of the same state.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gymnax
import jax
import numpy as np
from PIL import Image, ImageDraw

import popgym_arcade
from popgym_arcade.analysis.command_line import launch
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import PathName

LEVELS = ("Easy", "Medium", "Hard")
TWINS = {"full": False, "partial": True}
GAP, CAPTION = 8, 16  # pixels
COLUMNS = 5
STEPS = {"AutoEncode": 36, "Breakout": 60, "CartPole": 16, "NoisyCartPole": 16, "Tetris": 40}  # into the episode
MOST_STEPS = 100_000  # of random play until an episode lasts that long


@dataclass(frozen=True)
class Args:
    out: PathName = "docs/figures"
    """folder to write to"""
    families: tuple[str, ...] = ()
    """families to draw, Navigator for instance; none: all"""
    difficulty: str = "Easy"
    """of the picture of all families: Easy, Medium or Hard"""
    steps: int = 20
    """steps of random play into the episode, for families that STEPS does not name"""
    zoom: int = 2
    """screen pixels a pixel"""
    seed: int = 3
    """of the random play"""


def twins(env_id: str, steps: int, seed: int) -> list[np.ndarray]:
    """Full and partial frame uint8[128, 128, 3] of one state, `steps` random steps after a reset.

    Raises UserError if no episode lasts that long.
    """
    env, params = gymnax.make(env_id)

    @jax.jit
    def advance(state, key):
        action_key, step_key = jax.random.split(key)
        return env.step(step_key, state, env.action_space(params).sample(action_key), params)[1]

    key, reset_key = jax.random.split(jax.random.key(seed))
    _, state = env.reset(reset_key, params)
    for _ in range(MOST_STEPS):
        if state.time >= steps:
            return [np.asarray(gymnax.make(env_id, partial_obs=twin)[0].get_obs(state)) for twin in TWINS.values()]
        key, step_key = jax.random.split(key)
        state = advance(state, step_key)
    raise UserError(f"{env_id}: no episode of {steps} steps among {MOST_STEPS} random steps")


def sheet(columns: list[tuple[str, list[np.ndarray]]], zoom: int) -> Image.Image:
    """Captioned pairs of frames, the full twin above the partial one, in rows of at most `COLUMNS` pairs."""
    side = 128 * zoom
    across, rows = min(COLUMNS, len(columns)), -(-len(columns) // COLUMNS)
    pair = 2 * (side + CAPTION + GAP)
    canvas = Image.new("RGB", (across * (side + GAP) + GAP, rows * pair + GAP * (rows - 1)), "white")
    draw = ImageDraw.Draw(canvas)
    for number, (caption, frames) in enumerate(columns):
        row, column = divmod(number, COLUMNS)
        for half, (twin, frame) in enumerate(zip(TWINS, frames, strict=True)):
            x, y = GAP + column * (side + GAP), row * (pair + GAP) + half * pair // 2
            draw.text((x, y + 2), f"{caption}, {twin}", fill="black")
            picture = Image.fromarray(frame).resize((side, side), Image.Resampling.NEAREST)
            canvas.paste(picture, (x, y + CAPTION))
    return canvas


def main(args: Args) -> None:
    known = [env_id.removesuffix("Easy") for env_id in popgym_arcade.REGISTERED_ENVIRONMENTS if "Easy" in env_id]
    families = args.families or known
    for flag, words, allowed in (("families", families, known), ("difficulty", [args.difficulty], LEVELS)):
        if not set(words) <= set(allowed):
            raise UserError(f"--{flag} {' '.join(words)}: use {', '.join(allowed)}")
    pair = partial(twins, seed=args.seed)
    frames = {name + level: pair(name + level, STEPS.get(name, args.steps)) for name in families for level in LEVELS}
    folder = Path(args.out) / "games"
    folder.mkdir(parents=True, exist_ok=True)
    sheet([(name, frames[name + args.difficulty]) for name in families], args.zoom).save(f"{args.out}/games.png")
    for name in families:
        columns = [(name + level, frames[name + level]) for level in LEVELS]
        sheet(columns, args.zoom).save(folder / f"{name}.png", optimize=True)


if __name__ == "__main__":
    launch(main, Args)
