"""Draws the pictures of the games in README and docs. The players know the whole state (benchmark/oracle.py).

    python benchmark/gallery.py --out docs/figures

Writes OUT/games.png and OUT/games.gif, a moment and a video of all families: the fully observable twin above, the
partially observable twin below, in the same states. Also writes OUT/games/FAMILY.png, each family with explanations.
"""

import functools
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from popgym_arcade.analysis.command_line import launch
from popgym_arcade.analysis.tables import TWINS_IN_WORDS
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import Count, PathName, Range, check_limits

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from harness import EASY_IDS, expert_games, facts, frames, play_games, step, take  # noqa: E402

from benchmark.oracle import PLAYERS  # noqa: E402

SIDE = 128  # side of a frame, in pixels
GAP, COLUMNS = 8, 5  # layout of the pictures of all families
MARGIN, HEAD, FOOT, BADGE = 176, 54, 8, 9  # around annotated frames, and the radius of a number's disc
BESIDE = (8, -7)  # from an object to its number, in pixels of the frame
TWIN_NAMES = TWINS_IN_WORDS["mdp"], TWINS_IN_WORDS["pomdp"]
TEXT, QUIET, ACCENT = "#1a1a1a", "#6a6a6a", "#d9480f"
HOLD = 5  # frames for which the video shows the last state of an episode

Place = tuple[int, int] | tuple[int, int, int]
"""Where a number goes: a point (x, y) of the frame, or next to the pixels of a colour."""


@dataclass(frozen=True)
class Scene:
    """A moment of a family, with explanations."""

    goal: str
    hidden: str
    """what the partially observable twin does not show"""
    step: int
    """step of the player's episode"""
    labels: dict[str, Place]
    """explanations of the fully observable frame, and where their numbers go"""
    player: str = ""
    """another expert of the family than the one in benchmark/oracle.py"""


SCENES = {
    "AutoEncode": Scene(
        goal="Watch the cards, then play them back in reverse.",
        hidden="all cards shown so far, and which one to answer",
        step=46,
        labels={
            "question mark: answer now (before: the card shown now)": (20, 10),
            "score: right answers": (86, 8),
            "the suit chosen: left and right change it, fire answers": (107, 10),
            "pink: the next card to answer": (255, 105, 186),
        },
    ),
    "BattleShip": Scene(
        goal="Find and hit four hidden ships.",
        hidden="every mark but the one under the cursor",
        step=20,
        labels={
            "score: hits": (86, 8),
            "shots at cells already shot at": (120, 8),
            "X: a hit (O: a miss)": (255, 0, 0),
            "cursor": (217, 166, 33),
        },
    ),
    "Breakout": Scene(
        goal="Break all bricks and never lose the ball.",
        hidden="the ball while it falls; its notch and its trail at any time",
        step=600,
        labels={
            "score: bricks broken": (86, 8),
            "bricks": (50, 28),
            "the ball: a notch shows where it flies": (255, 255, 255),
            "trail: where the ball was": (150, 150, 150),
            "paddle": (64, 103),
        },
    ),
    "CartPole": Scene(
        goal="Push the cart left and right so that the pole stays up.",
        hidden="cart and pole",
        step=6,
        labels={
            "score: steps": (86, 8),
            "how fast the pole turns": (30, 31),
            "pole": (140, 69, 18),
            "cart": (245, 74, 140),
            "how fast the cart moves": (92, 86),
        },
        player="pushes one way",
    ),
    "CountRecall": Scene(
        goal="How often has the card on the right come up on the left?",
        hidden="all cards dealt so far, and the bars",
        step=30,
        labels={
            "a new card: one more of these": (20, 10),
            "score: right answers": (42, 8),
            "the answer: up and down turn it, fire gives it": (85, 8),
            "how many of these?": (104, 34),
            "cards dealt so far": (47, 32),
            "cards still to come on the right": (104, 62),
        },
    ),
    "MineSweeper": Scene(
        goal="Reveal every cell that has no mine.",
        hidden="every number but the one under the cursor",
        step=17,
        labels={
            "score: cells revealed": (86, 8),
            "shots at cells already revealed": (121, 8),
            "mines in the 3 by 3 cells around": (45, 67),
            "cursor": (255, 127, 0),
            "not revealed yet": (100, 30),
        },
    ),
    "Navigator": Scene(
        goal="Find the treasure and keep off the bombs.",
        hidden="treasure and bombs, after the first frame",
        step=3,
        labels={
            "score": (86, 8),
            "bomb: ends the episode": (255, 160, 0),
            "player": (255, 255, 0),
            "treasure: claim it with fire": (73, 214, 247),
        },
    ),
    "NoisyCartPole": Scene(
        goal="CartPole, but every number is seen through noise.",
        hidden="cart and pole",
        step=6,
        labels={
            "score: steps": (86, 8),
            "how fast the pole turns, plus noise": (30, 31),
            "the angle, plus noise": (140, 69, 18),
            "the position, plus noise": (245, 74, 140),
            "how fast the cart moves, plus noise": (92, 86),
        },
        player="pushes one way",
    ),
    "Skittles": Scene(
        goal="Dodge the falling balls.",
        hidden="about half of the balls, chosen anew in each step",
        step=39,
        labels={
            "score: steps survived": (86, 8),
            "balls fall by a row in each step": (0, 255, 0),
            "player": (255, 255, 255),
        },
    ),
    "Tetris": Scene(
        goal="Clear ten lines.",
        hidden="all locked cells",
        step=136,
        labels={
            "score: lines": (86, 8),
            "next pieces": (95, 35),
            "the falling piece": (48, 39),
            "the bag: pieces in colour are still to come": (27, 52),
            "locked cells": (60, 109),
        },
    ),
}


@dataclass(frozen=True)
class Args:
    out: PathName = "runs/gallery"
    """folder to write to"""
    families: tuple[str, ...] = ()
    """families to draw, such as Navigator; none: all"""
    zoom: Count = 2
    """size of a frame's pixel in the pictures"""
    video_steps: Count = 60
    """number of frames in the video"""
    fps: Annotated[int, Range(1, 50)] = 6
    """frames per second of the video"""


@functools.cache
def episodes(family: str, player: str = "") -> list[Any]:
    """The player's first episodes on Easy, longest first: a batch of all states for each, including the last."""
    env_id, names = f"{family}Easy", (player or PLAYERS[family][0],)
    games = [game for game in expert_games(env_id) if game.name in names][:8]
    starts = jax.tree.map(lambda *leaves: np.stack(leaves), *(game.state for game in games))
    result = play_games(env_id, starts, np.stack([game.plan for game in games]))
    found = []
    for game, end, length in zip(games, np.cumsum(result.length), result.length, strict=True):
        states = take(result.met, slice(end - length, end))
        last = take(states, slice(-1, None))
        action = facts(env_id)[0].policy(game.plan, take(last, 0))
        final = step(env_id, last, int(action)).final_state
        found.append(jax.tree.map(lambda *leaves: np.concatenate(leaves), states, final))
    return sorted(found, key=lambda states: -len(states.time))


def both_twins(family: str, states: Any) -> np.ndarray:
    """Full and partial frames uint8[2, n, 128, 128, 3] of n states."""
    return np.stack([frames(f"{family}Easy", states, partial_obs) for partial_obs in (False, True)])


def moment(family: str) -> np.ndarray:
    """Full and partial frame uint8[2, 128, 128, 3] of the family's scene."""
    scene = SCENES[family]
    states = episodes(family, scene.player)[0]
    return both_twins(family, take(states, slice(scene.step, scene.step + 1)))[:, 0]


def record_video(family: str, steps: int) -> np.ndarray:
    """Full and partial frames uint8[2, steps, 128, 128, 3] of the family's first episodes, one after the other."""
    wanted = []
    for states in episodes(family):
        wanted.append(take(states, np.r_[np.arange(len(states.time)), [-1] * (HOLD - 1)]))
        if sum(len(states.time) for states in wanted) >= steps:
            break
    states = jax.tree.map(lambda *leaves: np.concatenate(leaves), *wanted)
    return both_twins(family, take(states, np.resize(np.arange(len(states.time)), steps)))


# ------------------------------------------------------------------------------------------------------- all families


def sheet(columns: dict[str, np.ndarray], zoom: int) -> Image.Image:
    """Pairs of frames with captions, the full frame above the partial one, in rows of at most `COLUMNS` pairs.

    The twins are named at the left of each row.
    """
    side, lines, margin, caption = SIDE * zoom, -(-len(columns) // COLUMNS), 16 * zoom, 17 * zoom
    across, pair = min(COLUMNS, len(columns)), caption + 2 * (side + GAP)
    canvas = Image.new("RGB", (margin + across * (side + GAP) + GAP, lines * pair), "white")
    draw = ImageDraw.Draw(canvas)
    for number, (name, twins) in enumerate(columns.items()):
        line, column = divmod(number, COLUMNS)
        x, y = margin + GAP + column * (side + GAP), line * pair
        draw.text((x, y + 1), name, fill=TEXT, font=font(12 * zoom))
        for half, frame in enumerate(twins):
            top = y + caption + half * (side + GAP // 2)
            canvas.paste(enlarged(frame, zoom), (x, top))
            if column == 0:
                canvas.paste(upwards(TWIN_NAMES[half], (margin, side), font(12 * zoom)), (0, top))
    return canvas


def upwards(text: str, size: tuple[int, int], letters: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> Image.Image:
    """A line of text that is read from below, in the middle of a white strip of this width and height."""
    strip = Image.new("RGB", size[::-1], "white")
    ImageDraw.Draw(strip).text((size[1] / 2, size[0] / 2), text, fill=QUIET, font=letters, anchor="mm")
    return strip.transpose(Image.Transpose.ROTATE_90)


def enlarged(frame: np.ndarray, zoom: int) -> Image.Image:
    """A frame whose pixels are squares of zoom x zoom."""
    return Image.fromarray(frame).resize((SIDE * zoom, SIDE * zoom), Image.Resampling.NEAREST)


@functools.cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font."""
    return ImageFont.load_default(size)


# --------------------------------------------------------------------------------------------- a family, explained


def spot(frame: np.ndarray, place: Place) -> tuple[int, int]:
    """The point (x, y) of a place.

    Raises ValueError if no pixel above the name has the place's colour.
    """
    if len(place) == 2:
        return place
    rows, columns = np.nonzero((frame[:112] == place).all(axis=-1))
    if not len(rows):
        raise ValueError(f"no pixel of the frame is {place}")
    nearest = np.argmin((rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2)
    return int(columns[nearest]) + BESIDE[0], int(rows[nearest]) + BESIDE[1]


def hidden_box(twins: np.ndarray) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of the pixels in which the twins' frames differ."""
    rows, columns = np.nonzero((twins[0] != twins[1]).any(axis=-1))
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def explained(family: str, twins: np.ndarray, zoom: int) -> Image.Image:
    """Both twins side by side, with numbers in the full frame and a box around what the partial one hides."""
    scene, side = SCENES[family], SIDE * zoom
    canvas = Image.new("RGB", (2 * MARGIN + 2 * side + 3 * GAP, HEAD + side + FOOT), "white")
    draw = ImageDraw.Draw(canvas)
    left, right = MARGIN + GAP, MARGIN + 2 * GAP + side  # of the frames
    draw.text((left, 2), f"{family}: {scene.goal}", fill=TEXT, font=font(17))
    for x, twin, frame in zip((left, right), TWIN_NAMES, twins, strict=True):
        draw.text((x, HEAD - 22), twin, fill=QUIET, font=font(14))
        canvas.paste(enlarged(frame, zoom), (x, HEAD))

    height = side / len(scene.labels)
    for number, (text, place) in enumerate(scene.labels.items(), start=1):
        x, y = spot(twins[0], place)
        badge(draw, (left + (x + 0.5) * zoom, HEAD + (y + 0.5) * zoom), number)
        middle = HEAD + (number - 0.5) * height
        badge(draw, (BADGE, middle), number)
        write(draw, (2.5 * BADGE, middle), textwrap.wrap(text, 20), TEXT)

    box = [value * zoom for value in hidden_box(twins)]
    box = [right + box[0], HEAD + box[1], right + box[2] - 1, HEAD + box[3] - 1]
    middle = (box[1] + box[3]) / 2
    draw.rectangle(box, outline="white", width=4)
    draw.rectangle(box, outline=ACCENT, width=2)
    draw.line([box[2], middle, right + side + 12, middle], fill=ACCENT, width=2)
    write(draw, (right + side + 16, middle), ["hidden:", *textwrap.wrap(scene.hidden, 22)], ACCENT)
    return canvas


def write(draw: ImageDraw.ImageDraw, at: tuple[float, float], lines: list[str], color: str) -> None:
    """Lines of text to the right of a point, vertically centred on it."""
    for number, line in enumerate(lines):
        y = at[1] + (number - (len(lines) - 1) / 2) * 17
        draw.text((at[0], y), line, fill=color, font=font(14), anchor="lm")


def badge(draw: ImageDraw.ImageDraw, at: tuple[float, float], number: int) -> None:
    """A number in a disc."""
    x, y = at
    draw.ellipse([x - BADGE, y - BADGE, x + BADGE, y + BADGE], fill=TEXT, outline="white", width=2)
    draw.text((x, y), str(number), fill="white", font=font(13), anchor="mm")


def in_one_palette(pictures: list[Image.Image]) -> list[Image.Image]:
    """The pictures in one palette of 255 colours, without dithering, so that a GIF stores only what changes.

    Pillow needs the 256th colour as the transparent one. The most frequent colours stay exact, whereas Pillow's own
    `quantize` can change any colour by up to 3 in 255.
    """
    shots = np.stack([np.asarray(picture) for picture in pictures])
    packed = shots.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)  # sorts faster than rows of three
    packed, which, counts = np.unique(packed, return_inverse=True, return_counts=True)
    colors = np.stack([packed >> 16, packed >> 8 & 255, packed & 255], axis=-1).astype(np.uint8)
    palette = colors[np.argsort(-counts)[:255]]
    nearest = np.abs(colors[:, None].astype(int) - palette[None]).sum(axis=-1).argmin(axis=1).astype(np.uint8)
    found = [Image.fromarray(indices) for indices in nearest[which].reshape(shots.shape[:3])]
    for picture in found:
        picture.putpalette(palette.tobytes())
    return found


def main(args: Args) -> None:
    """Draws all pictures. Raises UserError for a wrong value, before anything is written."""
    check_limits(args)
    known = [env_id.removesuffix("Easy") for env_id in EASY_IDS]
    families = args.families or known
    if not set(families) <= set(known):
        raise UserError(f"--families {' '.join(families)}: use {', '.join(known)}")
    moments = {family: moment(family) for family in families}
    videos = {family: record_video(family, args.video_steps) for family in families}
    folder = Path(args.out) / "games"
    folder.mkdir(parents=True, exist_ok=True)
    sheet(moments, args.zoom).save(f"{args.out}/games.png", optimize=True)
    shots = [{family: frames[:, i] for family, frames in videos.items()} for i in range(args.video_steps)]
    pictures = [sheet(each, zoom=1) for each in shots]
    first, *later = in_one_palette(pictures)
    first.save(f"{args.out}/games.gif", save_all=True, append_images=later, duration=1000 // args.fps, loop=0)
    for family, twins in moments.items():
        explained(family, twins, args.zoom).save(folder / f"{family}.png", optimize=True)


if __name__ == "__main__":
    launch(main, Args)
