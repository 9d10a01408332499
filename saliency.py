"""Which past pixels matter to what an agent does now? Gradient and perturbation saliency.

Run:   python saliency.py
       python saliency.py --runs 'runs/NavigatorEasy__pomdp__*' --twin both --kind gradient perturbation
Page:  docs/saliency.md

Papers: Wang et al. 2025, "Investigating Memory in Model-Free RL with POPGym Arcade", https://arxiv.org/abs/2503.01450
(gradient); Greydanus et al. 2018, "Visualizing and Understanding Atari Agents", https://arxiv.org/abs/1711.00138
(perturbation).
Shapes: T steps of an episode, n the step that is explained, t <= n the frame that explains it, A actions.
"""

import base64
import functools
import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import tyro
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage
from tqdm import tqdm

from popgym_arcade.analysis.agents import Agent, load_agents, one_seed
from popgym_arcade.analysis.command_line import PlayArgs, Twin, launch, showcase
from popgym_arcade.analysis.groups import title_of
from popgym_arcade.analysis.networks import (
    differentiable,
    network_args,
    other_inputs,
    relative_scores,
    scores_in_words,
)
from popgym_arcade.analysis.output import new_folder
from popgym_arcade.analysis.tables import TWINS_IN_WORDS
from popgym_arcade.analysis.trajectories import Trajectory, observations, record
from popgym_arcade.analysis.twins import in_twins
from popgym_arcade.baselines.environment import is_pixels, spaces_of
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import NonNegativeInt, PathName, Range
from popgym_arcade.baselines.running.pictures import in_rgb
from popgym_arcade.baselines.scripts import script_of
from popgym_arcade.environments.arcade import ACTION_NAMES

MAX_BYTES = 4e9  # of the maps of one twin
PAGE = Path(__file__).with_name("saliency.html")  # shows __DATA__, the numbers of an episode
Width = Annotated[float, Range(0.1, 256)]  # in pixels


# --------------------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True)
class Args(PlayArgs):
    runs: tuple[PathName, ...] = showcase(__file__)
    """run folders, or patterns that match some (agents/MineSweeperEasy, which comes with the repository)"""
    twin: Annotated[Twin, tyro.conf.arg(aliases=["--twins"])] = "own"
    """twin to play: own (as in training), mdp (fully observable), pomdp (partially observable), or both, stacked"""
    kind: tuple[Literal["gradient", "perturbation"], ...] = ("gradient",)
    """gradient with respect to the frames, and/or the effect of blurring a place"""
    seed_index: NonNegativeInt = 0
    """which seed of a run with several, counted from 0"""
    steps: Annotated[int, Range(1, 10_000)] = 40
    """steps of the episode, from its first; fewer if it ends earlier"""
    seed: NonNegativeInt = 0
    """seed of the episode"""
    columns: Annotated[int, Range(2, 20)] = 6
    """steps shown in the pictures, the first and the last included"""
    at: NonNegativeInt | None = None
    """perturbation: step whose decision is explained; None: the last"""
    lag: tuple[int, ...] = (0,)
    """perturbation: steps from the blurred frame to the decision, one number or several"""
    stride: Annotated[int, Range(1, 256)] = 5
    """perturbation: pixels between the centres of neighbouring places"""
    mask_sigma: Width | None = None
    """perturbation: standard deviation of a place's mask in pixels; None: 5 per 80 pixels of the frame's side"""
    blur_sigma: Width | None = None
    """perturbation: standard deviation of the blur in pixels; None: 3 per 80 pixels of the frame's side"""

    def check(self) -> None:
        last = self.steps - 1
        at = last if self.at is None else self.at
        if at > last:
            raise UserError(f"--at {at}: use a number from 0 to {last}")
        if not (self.lag and 0 <= min(self.lag) and max(self.lag) <= at):
            raise UserError(f"--lag {' '.join(map(str, self.lag))}: use numbers from 0 to {at}, the step explained")
        if not self.kind:
            raise UserError("--kind: use gradient, perturbation, or both")
        self.check_distinct("kind", "lag")


# ---------------------------------------------------------------------------------------------------------- gradient


def squared_gradients(values: Callable, obs: jax.Array, n: jax.Array) -> jax.Array:
    """sum over actions of (d values(obs)[n, a] / d obs)^2, [T, ...], for values(obs[T, ...]) -> [T, A].

    One pullback gives the gradient of one action's value with respect to the whole sequence; those of all actions are
    computed at once. If values[n] depends on obs[: n + 1] alone, as an agent's does, the rest is exactly zero.
    """
    y, pull_back = jax.vjp(lambda obs: values(obs)[n], obs)
    (gradients,) = jax.vmap(pull_back)(jnp.eye(y.size, dtype=y.dtype))  # [A, T, ...]
    return jnp.square(gradients).sum(axis=0)


@functools.lru_cache
def gradient_program(args: Any):
    """maps(params, obs[T, ...], others, n) -> (map [T, h, w] of step n, action values [T, A])."""
    prepare = differentiable(args)

    def maps(params, obs, others, n):
        x, values = prepare(params, obs, others)
        squares = squared_gradients(values, x, n)
        return squares.sum(axis=-1) if squares.ndim == 4 else squares, values(x)

    return jax.jit(maps)


@dataclass(frozen=True)
class GradientSaliency:
    """How much the decision at step n depends on what the agent saw at step t."""

    agent: Agent
    trajectory: Trajectory
    obs: np.ndarray  # [T, ...] as the agent saw it
    maps: np.ndarray  # float32 [T (n), T (t), h, w] of pixels, [T, T, ...] of other observations; 0 where t > n
    values: np.ndarray  # float32 [T, A], `action_values`

    @functools.cached_property  # a pass over all maps
    def shares(self) -> np.ndarray:
        """float64 [T, T]: share of each t in the gradient of n, by L2 norms as in a recall density.

        Rows sum to 1, or are 0 where nothing matters.
        """
        norms = np.sqrt(self.maps.reshape(*self.maps.shape[:2], -1).sum(axis=-1, dtype=float))
        return norms / np.maximum(norms.sum(axis=1, keepdims=True), np.finfo(float).tiny)


def gradient_saliency(agent: Agent, trajectory: Trajectory) -> GradientSaliency:
    """maps[n, t] = sum over actions a and colours of (d y(s_n, a) / d o_t)^2, through the whole memory.

    y is Q, the probability of a policy, or the mean action of a continuous one; o_t is a frame with values from 0 to 1,
    or any other observation in its own units. Wang et al. 2025, https://arxiv.org/abs/2503.01450.
    """
    obs = observations(agent, trajectory)
    program = gradient_program(network_args(agent))
    others = tuple(getattr(trajectory, name) for name in other_inputs(agent.script))
    inputs = jax.device_put((agent.params, obs, others))
    maps = np.zeros((len(obs), *(obs.shape[:-1] if obs.ndim == 4 else obs.shape)), np.float32)
    for n in tqdm(range(len(obs)), f"gradients, {agent.twin}", unit="step", disable=None):
        maps[n], values = program(*inputs, n)
    return GradientSaliency(agent, trajectory, obs, maps, np.asarray(values))


# ------------------------------------------------------------------------------------------------------ perturbation


@dataclass(frozen=True)
class PerturbationSaliency:
    """How much a decision changes when a frame is blurred in one place."""

    agent: Agent
    frame: np.ndarray  # uint8 [h, w, C], the one that is blurred
    at: int  # the step whose decision is explained
    lag: int  # steps from the frame to the decision
    policy: np.ndarray  # float32 [rows, columns], half the squared change of the `relative_scores`
    value: np.ndarray  # float32 [rows, columns], half the squared change of the value, which is the maximum of Q values
    flips: np.ndarray  # bool [rows, columns], whether the best action changes; False for continuous actions


def places(height: int, width: int, stride: int) -> np.ndarray:
    """Centres int [rows, columns, 2] (y, x) of places on a frame, equally far from opposite borders."""
    lines = (np.arange((side - 1) % stride // 2, side, stride) for side in (height, width))
    return np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1)


def place_mask(place: jax.Array, height: int, width: int, sigma: float) -> jax.Array:
    """float32 [height, width, 1]: a Gaussian that is 1 at place (y, x)."""
    y, x = (jnp.square(jnp.arange(side) - centre) for side, centre in zip((height, width), place, strict=True))
    return jnp.exp(-(y[:, None] + x) / (2 * sigma**2))[..., None]


@functools.lru_cache
def perturbation_program(args: Any):
    """scores(params, carry, obs[T, ...], others, blurred, places[P, 2], sigma) -> policy [P], value [P], flips [P].

    The first of T >= 1 frames is blurred, and the decision at the last is compared. `carry` holds what came before.
    Also returns before(params, obs, others), the memory after some frames, and fresh(), the one of a new episode.
    """
    script = script_of(args)
    network, _, _ = script.make_actor(args)
    discrete = "mean" not in script.Output.__annotations__

    def decide(params, carry, obs, others):
        """The `relative_scores` [A] and the value at the last of obs[T, ...]."""
        carry, output = script.forward(network, params, carry, obs[:, None], *(x[:, None] for x in others))
        last = jax.tree.map(lambda x: x[-1, 0] if x.ndim > 1 else x, output)
        return carry, (relative_scores(last), last.value if hasattr(last, "value") else last.q.max())

    def scores(params, carry, obs, others, blurred, places, sigma):
        first, rest = (tuple(x[part] for x in others) for part in (slice(1), slice(1, None)))
        frame = obs[0].astype(jnp.float32)

        def look(frame):
            """The decision if the first frame were this one; the frames after it are encoded once for all places."""
            now, decision = decide(params, carry, frame[None], first)
            return decide(params, now, obs[1:].astype(jnp.float32), rest)[1] if len(obs) > 1 else decision

        policy, value = look(frame)

        def score(place):
            mask = place_mask(place, *frame.shape[:2], sigma)
            new_policy, new_value = look(frame * (1 - mask) + blurred * mask)
            flips = new_policy.argmax() != policy.argmax() if discrete else False
            return 0.5 * jnp.square(new_policy - policy).sum(), 0.5 * jnp.square(new_value - value), flips

        return jax.lax.map(score, places, batch_size=64)

    def before(params, obs, others):
        return decide(params, script.initial_carry(network, 1), obs, others)[0]

    return jax.jit(scores), jax.jit(before), functools.partial(script.initial_carry, network, 1)


def perturbation_saliency(
    agent: Agent,
    trajectory: Trajectory,
    at: int = -1,
    lag: int = 0,
    stride: int = 5,
    mask_sigma: float | None = None,
    blur_sigma: float | None = None,
) -> PerturbationSaliency:
    """How much the decision at step `at` changes when the frame `lag` steps before it is blurred, place by place.

    The memory reads everything again from that frame on. The paper's widths, 5 for a place and 3 for the blur on frames
    of 80 px, grow with the side. Greydanus et al. 2018, https://arxiv.org/abs/1711.00138.

    Raises:
        UserError: for observations that are not frames
    """
    obs = observations(agent, trajectory)
    if not (obs.dtype == np.uint8 and obs.ndim == 4):
        raise UserError(f"--kind perturbation blurs frames, and {agent.args.env_id} has none: use --kind gradient")
    at = range(len(obs))[at]  # a negative step counts from the end
    side, first = min(obs.shape[1:3]), at - lag
    mask_sigma, blur_sigma = mask_sigma or 5 * side / 80, blur_sigma or 3 * side / 80
    scores, before, fresh = perturbation_program(network_args(agent))
    inputs = obs, tuple(getattr(trajectory, name) for name in other_inputs(agent.script))
    carry = before(agent.params, *jax.tree.map(lambda x: x[:first], inputs)) if first else fresh()
    blurred = ndimage.gaussian_filter(obs[first].astype(np.float32), (blur_sigma, blur_sigma, 0))
    read_again = jax.tree.map(lambda x: x[first : at + 1], inputs)
    centres = places(*obs.shape[1:3], stride)
    found = scores(agent.params, carry, *read_again, blurred, centres.reshape(-1, 2), np.float32(mask_sigma))
    policy, value, flips = (np.asarray(x).reshape(centres.shape[:2]) for x in found)
    return PerturbationSaliency(agent=agent, frame=obs[first], at=at, lag=lag, policy=policy, value=value, flips=flips)


# ---------------------------------------------------------------------------------------------------------- pictures


def pictures_of(obs: np.ndarray) -> np.ndarray:
    """uint8 [T, h, w, 3] of observations [T, ...]: frames as they are, a colour for each channel, numbers in grey."""
    if obs.ndim == 4 and is_pixels(obs[0]):
        return in_rgb(obs)
    x = obs.astype(float)
    axes = None if x.ndim > 2 else 0  # each number of a vector has its own scale
    x = (x - x.min(axis=axes)) / np.maximum(np.ptp(x, axis=axes), 1e-9)
    if x.ndim == 4:
        colours = matplotlib.colormaps["tab10"](np.arange(x.shape[-1]) % 10)[:, :3]
        return (255 * np.minimum(x @ colours, 1)).astype(np.uint8)
    return (255 * on_grid(x)).astype(np.uint8)[..., None].repeat(3, axis=-1)


def on_grid(x: np.ndarray) -> np.ndarray:
    """Numbers [T] or [T, F] as nearly square pictures [T, h, w], padded with zeros; pictures stay as they are."""
    if x.ndim > 2:
        return x
    x = x.reshape(len(x), -1)
    width = math.isqrt(x.shape[-1] - 1) + 1
    height = -(-x.shape[-1] // width)
    return np.pad(x, ((0, 0), (0, height * width - x.shape[-1]))).reshape(len(x), height, width)


def map_pictures(found: GradientSaliency) -> np.ndarray:
    """float32 [T, T, h, w]: the maps with the shape of `pictures_of(obs)`."""
    return found.maps if found.maps.ndim > 3 else np.stack([on_grid(maps) for maps in found.maps])


def evenly_spaced(steps: int, columns: int) -> list[int]:
    """At most `columns` of `steps` steps, evenly spread from the first to the last."""
    return sorted({round(t) for t in np.linspace(0, steps - 1, min(columns, steps))})


def most_relevant_steps(shares: np.ndarray, columns: int) -> list[int]:
    """At most `columns` steps of the shares [T]: half of them the last ones, the others those with the most before."""
    last = min(-(-columns // 2), len(shares))
    before = np.argsort(-shares[: len(shares) - last], kind="stable")[: columns - last]
    return [*sorted(before.tolist()), *range(len(shares) - last, len(shares))]


def colour_scale(maps: list[np.ndarray]) -> PowerNorm:
    """From 0 to the 99.9th percentile of positive values, by the square root: brightness is the gradient's size."""
    above = np.concatenate([x[x > 0] for x in maps])
    return PowerNorm(0.5, vmin=0, vmax=np.percentile(above, 99.9) if above.size else 1, clip=True)


def bare(axes: Any, title: str = "", side: str = "") -> None:
    """Removes the ticks and adds a title above and one on the left."""
    axes.set(xticks=[], yticks=[])
    axes.set_title(title, fontsize=8)
    axes.set_ylabel(side, fontsize=8)


def draw_maps(found: list[GradientSaliency], columns: int, last_only: bool) -> Figure:
    """Frames above maps, columns t, for some n or only the last; one twin above the other, one colour bar for all."""
    shown = []
    for each in found:
        steps = most_relevant_steps(each.shares[-1], columns) if last_only else evenly_spaced(len(each.obs), columns)
        shown.append((each, map_pictures(each), steps))
    norm = colour_scale([maps[np.ix_(steps[-1:] if last_only else steps, steps)] for _, maps, steps in shown])
    rows = [(each, maps, steps, n) for each, maps, steps in shown for n in [None, *steps[-1 if last_only else 0 :]]]
    width = max(len(steps) for *_, steps in shown)
    figure = Figure(figsize=(max(1.15 * width + 1.3, 5), 1.2 * len(rows) + 0.5), layout="constrained")
    grid = figure.subplots(len(rows), width, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for line, (each, maps, steps, n) in zip(grid, rows, strict=True):
        pictures, name = pictures_of(each.obs), TWINS_IN_WORDS[each.agent.twin].replace(" ", "\n")
        for axes, t in zip(line, steps, strict=False):
            if n is not None and t > n:
                continue
            axes.axis("on")
            if n is None:
                axes.imshow(pictures[t])
                bare(axes, f"step {t}", name if axes is line[0] else "")
                continue
            image = axes.imshow(maps[n, t], cmap="inferno", norm=norm)
            bare(axes, f"{each.shares[n, t]:.1%}", f"decision at\nstep {n}" if axes is line[0] else "")
    add_bar(figure, image, grid, "squared gradient, all actions and colours", fraction=0.03, pad=0.01)
    figure.suptitle(title_of(found[0].agent), fontsize=10)
    return figure


def add_bar(figure: Figure, image: Any, axes: Any, label: str, **place: Any) -> None:
    """A colour bar with the ends of the scale and its middle, which the square root puts at a quarter."""
    bar = figure.colorbar(image, ax=axes, ticks=[0, image.norm.vmax / 4, image.norm.vmax], format="%.2g", **place)
    bar.ax.tick_params(labelsize=7)
    bar.set_label(label, fontsize=8)


def laid_over(picture: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """uint8 [h, w, 3]: a picture in dim grey, coloured where strength[h, w], from 0 to 1, is high."""
    grey = picture.mean(axis=-1, keepdims=True) * 0.55
    colour = 255 * matplotlib.colormaps["inferno"](strength)[..., :3]
    alpha = np.minimum(1.5 * strength, 1)[..., None]
    return (grey * (1 - alpha) + colour * alpha).astype(np.uint8)


def enlarged(picture: np.ndarray, side: int) -> Image.Image:
    height = round(side * picture.shape[0] / picture.shape[1])
    return Image.fromarray(picture).resize((side, height), Image.Resampling.NEAREST)


def draw_video(found: list[GradientSaliency], columns: int) -> list[Image.Image]:
    """A picture for each n: for each twin a row with the frame seen at n, then earlier frames overlaid with their maps.

    It ends with the shorter of two episodes. Each n has its own colour scale.
    """
    steps = min(len(each.obs) for each in found)
    shown = [(each, pictures_of(each.obs), map_pictures(each)) for each in found]
    font, images, side, head = ImageFont.load_default(14), [], 128, 22
    for n in range(steps):
        image = Image.new("RGB", ((side + 6) * (columns + 1), (side + head) * len(shown)), "white")
        draw = ImageDraw.Draw(image)
        for row, (each, pictures, maps) in enumerate(shown):
            top, norm = row * (side + head), colour_scale([maps[n, : n + 1]])
            draw.text((2, top + 2), f"{each.agent.twin} step {n}".replace("single ", ""), "black", font)
            image.paste(enlarged(pictures[n], side), (0, top + head))
            for column, t in enumerate(most_relevant_steps(each.shares[n, : n + 1], columns), 1):
                left = column * (side + 6)
                draw.text((left + 2, top + 2), f"step {t}: {each.shares[n, t]:.0%}", "black", font)
                over = laid_over(pictures[t], np.asarray(norm(maps[n, t])))
                image.paste(enlarged(over, side), (left, top + head))
        images.append(image)
    return images


def draw_perturbation(found: list[PerturbationSaliency], gradients: list[GradientSaliency] = ()) -> Figure:
    """A row for each blurred frame: the frame, policy (red) and value (blue) over it, and each of them alone; and if
    gradients of the same episodes are given, that of the same decision with respect to the same frame.
    All rows share one scale per map, by the square root, so that brightness compares frames. A line on the policy map
    surrounds the places that change the best action."""
    columns = 5 if gradients else 4
    figure = Figure(figsize=(2.25 * columns, 2.15 * len(found) + 0.6), layout="constrained")
    grid = figure.subplots(len(found), columns, squeeze=False)
    tops = np.max([(each.policy.max(), each.value.max()) for each in found], axis=0)
    norms = [PowerNorm(0.5, vmin=0, vmax=max(1e-30, top)) for top in tops]
    styles = {}, {}, {"cmap": "Reds", "norm": norms[0]}, {"cmap": "Blues", "norm": norms[1]}
    for line, each in zip(grid[:, :4], found, strict=True):
        pictures = in_rgb(each.frame), both_over(each, norms), each.policy, each.value
        policy, value = (f"largest {x.max():.2g}" for x in (each.policy, each.value))
        scores = scores_in_words(each.agent.script)
        titles = "frame", f"{scores} red, value blue", f"{scores}, {policy}", f"value, {value}"
        for axes, picture, style, title in zip(line, pictures, styles, titles, strict=True):
            axes.imshow(picture, **style)
            bare(axes, title)
        if each.flips.any() and not each.flips.all():
            line[2].contour(each.flips, [0.5], colors="black", linewidths=0.8)
        lag = f"{each.lag} step{'s' if each.lag > 1 else ''} earlier" if each.lag else "the current frame"
        line[0].set_ylabel(f"{TWINS_IN_WORDS[each.agent.twin]}\nstep {each.at}: {lag}".strip(), fontsize=8)
    if gradients:
        draw_gradients_of(found, {each.agent.twin: each for each in gradients}, grid[:, 4])
    place = {"location": "bottom", "fraction": 0.04, "pad": 0.02}
    labels = "half the squared change", "half the squared change", "squared gradient"
    for axes, label in zip(grid.T[2:], labels, strict=False):
        add_bar(figure, axes[0].images[0], axes, label, **place)
    figure.suptitle(f"{title_of(found[0].agent)}: what the decision depends on", fontsize=10)
    return figure


def draw_gradients_of(found: list[PerturbationSaliency], gradients: dict[str, GradientSaliency], column: Any) -> None:
    """For each decision and frame in `found`, the gradient of that twin's episode, on one scale."""
    places = [(gradients[each.agent.twin], each.at, each.at - each.lag) for each in found]
    maps = [gradient.maps[n, t] for gradient, n, t in places]
    norm = PowerNorm(0.5, vmin=0, vmax=max(1e-30, *(x.max() for x in maps)))
    for axes, picture, (gradient, n, t) in zip(column, maps, places, strict=True):
        axes.imshow(picture, cmap="inferno", norm=norm)
        bare(axes, f"gradient, {gradient.shares[n, t]:.1%} of the total")


def both_over(found: PerturbationSaliency, norms: list[PowerNorm]) -> np.ndarray:
    """[h, w, 3] from 0 to 1: the frame in dim grey, policy scores in red and value scores in blue over it."""
    maps = (np.asarray(norm(scores)) for norm, scores in zip(norms, (found.policy, found.value), strict=True))
    grey = in_rgb(found.frame).mean(axis=-1) / 255 * 0.5
    policy, value = (resized(scores, *grey.shape) for scores in maps)
    return np.stack([grey + policy, grey, grey + value], axis=-1).clip(0, 1)


def resized(scores: np.ndarray, height: int, width: int) -> np.ndarray:
    """Scores [rows, columns] as [height, width], interpolated."""
    image = Image.fromarray(scores.astype(np.float32), mode="F").resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image)


# -------------------------------------------------------------------------------------------------------------- page


def data_uri(picture: np.ndarray) -> str:
    """A PNG of uint8 [h, w, 3] or [h, w], to be embedded in a page."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def sheet(pictures: np.ndarray, columns: int = 16) -> np.ndarray:
    """Pictures [N, h, w, ...] as a single one, row by row."""
    rows = -(-len(pictures) // columns)
    fill = np.zeros((rows * columns - len(pictures), *pictures.shape[1:]), pictures.dtype)
    parts = np.concatenate([pictures, fill]).reshape(rows, columns, *pictures.shape[1:])
    height, width = pictures.shape[1:3]
    return np.moveaxis(parts, 2, 1).reshape(rows * height, columns * width, *pictures.shape[3:])


def page_data(found: GradientSaliency) -> dict:
    """What the page shows for one twin: a sheet of frames, and one of maps for each n, as roots relative to a peak."""
    maps, pictures = map_pictures(found), pictures_of(found.obs)
    # almost the largest value: a few pixels far above the rest would leave the others dark
    peaks = np.array([np.quantile(each[: n + 1], 0.9995) for n, each in enumerate(maps)])
    peaks = np.maximum(peaks, np.finfo(np.float32).tiny)
    sheets = []
    for n, peak in enumerate(peaks):
        root = np.sqrt(np.minimum(maps[n, : n + 1] / peak, 1))
        sheets.append(data_uri(sheet(np.rint(255 * root).astype(np.uint8))))
    output = "action value" if scores_in_words(found.agent.script) == "relative values" else "probability"
    discrete = found.trajectory.action.ndim == 1
    count = found.values.shape[1]
    arcade = found.agent.twin != "single" and count == len(ACTION_NAMES)
    names = ACTION_NAMES if arcade else [str(i) for i in range(count)]
    return {
        "twin": found.agent.twin,
        "width": pictures.shape[2],
        "height": pictures.shape[1],
        "frames": data_uri(sheet(pictures)),
        "maps": sheets,
        "roots": np.sqrt(peaks).tolist(),
        "shares": [[round(float(x), 5) for x in row[: n + 1]] for n, row in enumerate(found.shares)],
        "values": np.round(found.values.astype(float), 5).tolist(),
        "kind": output if discrete else "mean action",
        "names": list(names),
        "chosen": found.trajectory.action.tolist() if discrete else None,
        "rewards": np.round(found.trajectory.reward.astype(float), 5).tolist(),
    }


def write_page(path: Path, found: list[GradientSaliency]) -> None:
    """One self-contained file: a slider for n, frames overlaid with their maps, action values as bars."""
    data = json.dumps({"title": title_of(found[0].agent), "twins": [page_data(each) for each in found]})
    path.write_text(PAGE.read_text("utf-8").replace("__DATA__", data.replace("</", "<\\/")), encoding="utf-8")


# -------------------------------------------------------------------------------------------------------------- main


def load_all(args: Args) -> list[list[Agent]]:
    """One seed of every run, on every twin asked for. Raises UserError for the first that cannot play there."""
    loaded = []
    for agent in load_agents(args.runs, args.step):
        if args.seed_index >= agent.args.num_seeds:
            raise UserError(f"--seed-index {args.seed_index}: {agent.name} has {agent.args.num_seeds} seeds")
        twins = [one_seed(twin, args.seed_index) for twin in in_twins(agent, args.twin, args.env_id)]
        shape, dtype, *_ = spaces_of(twins[0].args)
        if "perturbation" in args.kind and not (dtype == jnp.uint8 and len(shape) == 3):
            raise UserError(f"--kind perturbation blurs frames, and {twins[0].args.env_id} has none: use gradient")
        size = 4 * args.steps**2 * math.prod(shape[:2])
        if "gradient" in args.kind and size > MAX_BYTES:
            most = int(args.steps * math.sqrt(MAX_BYTES / size))
            much = f"{size / 1e9:.0f} GB per twin"
            raise UserError(f"--steps {args.steps}: the maps would take {much}, use {most} or less")
        loaded.append(twins)
    return loaded


def play(agents: list[Agent], args: Args) -> list[Trajectory]:
    """An episode on each twin. Raises UserError if it ends before a step that is asked for."""
    trajectories = []
    for agent in agents:
        trajectories += record(agent, jax.random.key(args.seed), 1, args.steps)
        length = len(trajectories[-1])
        at = length - 1 if args.at is None else args.at
        if "perturbation" in args.kind and not max(args.lag) <= at < length:
            wrong = f"--at {at}" if at >= length else f"--lag {max(args.lag)}"
            raise UserError(f"{wrong}: the episode of {agent.name} ({agent.twin}) has {length} steps, counted from 0")
    return trajectories


def write_gradients(out: Path, found: list[GradientSaliency], columns: int) -> None:
    """Grid, line, video and page of a run's twins together, and the numbers of each as NPZ."""
    name = found[0].agent.name
    draw_maps(found, columns, last_only=False).savefig(out / f"{name}__grid.png", dpi=120)
    draw_maps(found, columns, last_only=True).savefig(out / f"{name}__line.png", dpi=150)
    images = draw_video(found, columns)
    images[0].save(out / f"{name}__video.gif", save_all=True, append_images=images[1:], duration=250, loop=0)
    write_page(out / f"{name}.html", found)
    for each in found:
        played = {"obs": each.obs, "action": each.trajectory.action, "reward": each.trajectory.reward}
        numbers = {"maps": each.maps, "shares": each.shares, "values": each.values}
        np.savez_compressed(out / f"{name}__{each.agent.twin}__gradient.npz", **played, **numbers)


def write_perturbations(out: Path, found: list[PerturbationSaliency], gradients: list[GradientSaliency]) -> None:
    """One picture of all twins and lags of a run, next to any gradients, and the numbers of each as NPZ."""
    name = found[0].agent.name
    draw_perturbation(found, gradients).savefig(out / f"{name}__perturbation.png", dpi=150)
    for each in found:
        path = out / f"{name}__{each.agent.twin}__perturbation_{each.at}_{each.lag}.npz"
        about = {"frame": each.frame, "at": each.at, "lag": each.lag}
        np.savez_compressed(path, **about, policy=each.policy, value=each.value, flips=each.flips)


def explain(agents: list[Agent], trajectories: list[Trajectory], args: Args, out: Path) -> list[tuple[str, str]]:
    """Everything asked for about one run, on each of its twins; returns names and numbers for the table."""
    lines, gradients, perturbations = [], [], []
    for agent, trajectory in zip(agents, trajectories, strict=True):
        if "gradient" in args.kind:
            gradients.append(gradient_saliency(agent, trajectory))
            lines.append(line_of(gradients[-1]))
        at = len(trajectory) - 1 if args.at is None else args.at
        for lag in args.lag if "perturbation" in args.kind else ():
            widths = args.stride, args.mask_sigma, args.blur_sigma
            perturbations.append(perturbation_saliency(agent, trajectory, at, lag, *widths))
    if gradients:
        write_gradients(out, gradients, args.columns)
    if perturbations:
        write_perturbations(out, perturbations, gradients)
    return lines


def line_of(found: GradientSaliency) -> tuple[str, str]:
    """A run's name and its numbers: shares of the last decision's frame, of the four before it, and of the rest."""
    shares = found.shares[-1]
    percentages = f"{shares[:-5].sum():>9.1%} {shares[-5:-1].sum():>11.1%} {shares[-1]:>9.1%}"
    return found.agent.name, f"{found.agent.twin:<5} {len(shares):>5} {percentages}"


def main(args: Args) -> Path:
    """Plays, explains, prints a table, writes the results and returns their folder."""
    args = args.checked()
    loaded = load_all(args)
    played = [play(agents, args) for agents in loaded]
    with new_folder(args) as out:
        jobs = zip(loaded, played, strict=True)
        lines = [line for agents, trajectories in jobs for line in explain(agents, trajectories, args, out)]
    if lines:
        print("shares of the frames in the gradient of the last decision")
        lines.insert(0, ("run", f"{'twin':<5} {'steps':>5} {'earlier':>9} {'previous 4':>11} {'last':>9}"))
        width = max(len(name) for name, _ in lines)
        print(*(f"{name:<{width}} {numbers}" for name, numbers in lines), sep="\n")
    print(f"written to {out}")
    return out


if __name__ == "__main__":
    launch(main, Args)
