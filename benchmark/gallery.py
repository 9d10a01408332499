"""The picture of the games in the README: both twins of every family, some steps into an episode.

python benchmark/gallery.py --out docs/figures/games.png
"""

from dataclasses import dataclass
from pathlib import Path

import gymnax
import jax
import numpy as np
import tyro
from PIL import Image, ImageDraw

import popgym_arcade

GAP, CAPTION = 8, 16  # pixels


@dataclass(frozen=True)
class Args:
    out: str = "docs/figures/games.png"
    """picture to write"""
    difficulty: str = "Easy"
    """Easy, Medium or Hard"""
    steps: int = 20
    """steps of random play into the episode; one that ends before is begun anew"""
    zoom: int = 2
    """screen pixels a pixel"""


def twins(env_id: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Full and partial frame uint8[128, 128, 3] of one state, `steps` random steps after a reset."""
    full, params = gymnax.make(env_id)
    partial, _ = gymnax.make(env_id, partial_obs=True)
    key, reset_key = jax.random.split(jax.random.key(3))
    _, state = full.reset(reset_key, params)
    while state.time < steps:
        key, action_key, step_key = jax.random.split(key, 3)
        _, state, *_ = full.step(step_key, state, full.action_space(params).sample(action_key), params)
    return np.asarray(full.get_obs(state)), np.asarray(partial.get_obs(state))


def main(args: Args) -> None:
    ids = [env_id for env_id in popgym_arcade.REGISTERED_ENVIRONMENTS if env_id.endswith(args.difficulty)]
    side = 128 * args.zoom
    sheet = Image.new("RGB", (len(ids) * (side + GAP) + GAP, 2 * (side + CAPTION + GAP)), "white")
    draw = ImageDraw.Draw(sheet)
    for column, env_id in enumerate(ids):
        for row, (name, frame) in enumerate(zip(("full", "partial"), twins(env_id, args.steps), strict=True)):
            x, y = GAP + column * (side + GAP), row * (side + CAPTION + GAP)
            draw.text((x, y + 2), f"{env_id.removesuffix(args.difficulty)}, {name}", fill="black")
            picture = Image.fromarray(frame).resize((side, side), Image.Resampling.NEAREST)
            sheet.paste(picture, (x, y + CAPTION))
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    sheet.save(args.out)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
