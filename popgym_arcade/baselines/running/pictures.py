"""What a finished run leaves to look at: `curve.png`, and videos of one greedy episode."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from popgym_arcade.baselines import seats
from popgym_arcade.baselines.environment import is_arcade, make_env
from popgym_arcade.baselines.running.files import whole_file
from popgym_arcade.baselines.running.folder import title_of, video_paths
from popgym_arcade.baselines.running.records import Records

MAX_FRAMES = 2_000  # of a video
FRAME_MILLISECONDS = 50


def draw_curve(records: Records) -> None:
    """`curve.png` in the run folder: for each task the greedy return over steps, and that of the random policy."""
    from matplotlib.figure import Figure  # imported only here, because it takes half a second

    args, count = records.args, len(records.args.task_names)
    columns = math.ceil(math.sqrt(count))
    rows = -(-count // columns)
    figure = Figure(figsize=(max(3.6 * columns, 7), max(2.6 * rows + 0.4, 4)), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True).flatten()
    for n, axes in enumerate(panels[:count]):
        draw_task(axes, records, n)
        if count > 1:
            axes.set_title(args.task_names[n], fontsize=10)
    for axes in panels[count:]:
        axes.axis("off")
    panels[0].legend(fontsize=10)
    figure.suptitle(title_of(records.folder), fontsize=10)
    figure.supxlabel("environment steps" + " of all tasks" * (count > 1), fontsize=10)
    figure.supylabel(f"return, mean of {args.eval_episodes} episodes", fontsize=10)
    with whole_file(records.folder / "curve.png") as draft:
        figure.savefig(draft, dpi=150)


def draw_task(axes: Any, records: Records, n: int) -> None:
    """The curves of task n: a line for each seed."""
    (steps, means), (_, random) = records.task_returns("greedy"), records.task_returns("random")
    for i in range(records.args.num_seeds):
        axes.plot(steps, means[:, i, n], marker="o", markersize=5, label=f"greedy, seed {records.args.seed + i}")
    if random.size:
        axes.axhline(random[..., n].mean(), color="gray", linestyle="--", label="random policy")
    axes.set(xlim=(0, None))
    axes.tick_params(labelsize=9)
    axes.grid(alpha=0.3)


def save_videos(args: Any, folder: Path, program: tuple, params: Any, keys: jax.Array) -> None:
    """A GIF of a greedy episode of each task, played by the first seed. See `record_episode`."""
    if args.num_seeds > 1:
        params, keys = jax.tree.map(lambda x: x[0], (params, keys))
    videos = record_episode(args, *program, params, keys)
    for path, frames in zip(video_paths(args, folder), videos, strict=True):
        save_gif(frames, path)


def record_episode(args: Any, begin: Callable, act: Callable, greedy: Any, params: Any, key: jax.Array) -> list[list]:
    """The frames of a greedy episode of each task: what the agent sees and, if that is partial, the full frame.

    uint8 [height, width or 2 width, 3] each. `params` and `key` are those of one seed.
    """
    renderers = [make_renderer(task, (True, False) if args.partial_obs else (False,)) for task in args.tasks]
    count = len(renderers)

    def frames_of(states, obs) -> list[jax.Array]:
        each = [obs[n : n + 1] for n in range(count)] if count > 1 else [obs]
        states = states if count > 1 else (states,)
        return [render(state, seen)[0] for render, state, seen in zip(renderers, states, each, strict=True)]

    @jax.jit
    def advance(actor):
        actor, transition, info = act(params, actor, greedy)
        infos = info.get("tasks", (info,))
        last = [
            render(info.get("final_state"), info["final_observation"])[0]
            for render, info in zip(renderers, infos, strict=True)
        ]
        return actor, transition.episode.over, last

    actor, over = begin(key, 1), np.zeros(count, bool)
    videos = [[np.asarray(frame)] for frame in frames_of(actor.env_state, actor.obs)]
    while not over.all() and max(map(len, videos)) < MAX_FRAMES:
        actor, ended, frames = advance(actor)
        for n in np.flatnonzero(~over):
            videos[n].append(np.asarray(frames[n]))
        over |= np.asarray(ended)
    return videos


def make_renderer(args: Any, partials: tuple[bool, ...]) -> Callable:
    """render(states, obs) -> uint8 [E, height, width, 3]: the frames of E environments.

    Of popgym_arcade's games, the twins in `partials` are drawn side by side from the states. Of other environments,
    the frame is the observation. Of two-player games, it is what the agent sees next to what its opponent would see on
    the same twin, and if a second twin is asked for and the first hides something, the full frame.
    """
    if args.TWO_PLAYER:
        hides = len(partials) > 1 and args.partial_obs
        full = make_env(dataclasses.replace(args, partial_obs=False))[0].get_obs if hides else None
        return lambda states, obs: in_rgb(seats.side_by_side(obs.seen, full and jax.vmap(full)(states)))
    if not is_arcade(args):
        return lambda states, obs: in_rgb(obs)
    twins = [make_env(dataclasses.replace(args, partial_obs=partial))[0] for partial in partials]
    return lambda states, obs: jnp.concatenate([jax.vmap(twin.get_obs)(states) for twin in twins], axis=2)


def in_rgb(frames: Any) -> Any:
    """uint8 [..., height, width, 3] of frames in colour, or of the latest of several stacked gray ones."""
    return frames if frames.shape[-1] == 3 else frames[..., -1:].repeat(3, axis=-1)


def save_gif(frames: list[np.ndarray], path: Path) -> None:
    """A GIF at twice the size."""
    from PIL import Image

    size = 2 * frames[0].shape[1], 2 * frames[0].shape[0]
    images = [Image.fromarray(frame).resize(size, Image.Resampling.NEAREST) for frame in frames]
    with whole_file(path) as draft:
        images[0].save(draft, save_all=True, append_images=images[1:], duration=FRAME_MILLISECONDS, loop=0)
