"""Every picture against the one that was looked at: tests/reference/<id>.png.

A sheet holds the family's gallery: four moments from left to right, for each size a row of full and a row of partial
frames. After a wanted change of the drawing run `pytest tests/test_references.py --update-references`, look at every
sheet, and commit it.
"""

from pathlib import Path

import jax
import numpy as np
import pytest
from harness import IDS, colors_of, facts, frames, resets, take
from PIL import Image

FOLDER = Path(__file__).parent / "reference"
ROWS = [(128, False), (128, True), (256, False), (256, True)]


def gallery(env_id):
    family, level = facts(env_id)
    states = family.gallery(level, take(resets(env_id, 1), 0))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *states)


def sheet(env_id):
    """All pictures of an id on one canvas; what is left free is black."""
    states = gallery(env_id)
    count = len(states.time)
    canvas = np.zeros((2 * 128 + 2 * 256, 256 * count, 3), np.uint8)
    top = 0
    for obs_size, partial_obs in ROWS:
        for i, picture in enumerate(frames(env_id, states, partial_obs, obs_size)):
            canvas[top : top + obs_size, i * obs_size : (i + 1) * obs_size] = picture
        top += obs_size
    return canvas


def save(path, canvas):
    """As a palette picture: a few kilobytes, and exact as long as there are at most 256 colours."""
    colors, index = np.unique(canvas.reshape(-1, 3), axis=0, return_inverse=True)
    assert len(colors) <= 256
    image = Image.fromarray(index.reshape(canvas.shape[:2]).astype(np.uint8), mode="P")
    image.putpalette(colors.astype(np.uint8).tobytes())
    path.parent.mkdir(exist_ok=True)
    image.save(path, optimize=True)


@pytest.mark.parametrize("env_id", IDS)
def test_pictures_are_those_that_were_looked_at(env_id, update_references):
    path = FOLDER / f"{env_id}.png"
    canvas = sheet(env_id)
    if update_references:
        save(path, canvas)
    stored = np.asarray(Image.open(path).convert("RGB"))
    different = np.argwhere((stored != canvas).any(-1))
    assert not len(different), f"{len(different)} pixels differ from {path.name}, the first at (y, x) = {different[0]}"


def test_there_is_no_picture_of_an_unknown_id():
    assert {path.stem for path in FOLDER.glob("*.png")} == set(IDS)


def test_the_pictures_are_small():
    assert sum(path.stat().st_size for path in FOLDER.glob("*")) < 700_000


@pytest.mark.parametrize("env_id", IDS)
def test_a_gallery_shows_all_colours(env_id):
    """The stored pictures cover what the family can draw, the partial frame after the first included."""
    family, level = facts(env_id)
    assert family.palette <= colors_of(sheet(env_id)[:128])
    assert (gallery(env_id).time == 0).any() and (gallery(env_id).time > 0).sum() >= 2
