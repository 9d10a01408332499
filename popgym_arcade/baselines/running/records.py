"""The records of a run: TensorBoard events and `eval.csv`.

With several seeds, the run folder's own curves are means over the seeds, and `seed_*/` has those of each. Only the
first of several processes writes. Shapes: S seeds, N tasks (1 unless a script trains on several), K evaluations.
"""

import contextlib
import csv
import dataclasses
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tqdm import tqdm

import popgym_arcade
from popgym_arcade.baselines.errors import Diverged
from popgym_arcade.baselines.running.files import write_csv
from popgym_arcade.baselines.running.folder import video_paths
from popgym_arcade.baselines.running.mirror import Mirror

MAX_RETURN = 1.0  # of every popgym_arcade game, see docs/environments.md


class Evaluations:
    """The evaluations of a run: the rows of its `eval.csv`, up to a step if it is resumed from there."""

    def __init__(self, folder: Path, args: Any, step: int | None = None):
        self.folder, self.args = folder, args
        self.evaluations = self.read_evaluations(step) if step is not None else []

    def read_evaluations(self, step: int) -> list[dict]:
        """The rows of `eval.csv` up to a step."""
        path = self.folder / "eval.csv"
        rows = csv.DictReader(path.read_text("utf-8").splitlines()) if path.exists() else ()
        return [row for row in rows if int(row["global_step"]) <= step]

    def task_returns(self, policy: str) -> tuple[np.ndarray, np.ndarray]:
        """The evaluations of a policy so far: global steps [K] and mean returns [K, S, N]."""
        rows = [row for row in self.evaluations if row["policy"] == policy]
        steps, means = (np.array([float(row[name]) for row in rows]) for name in ("global_step", "return_mean"))
        shape = -1, self.args.num_seeds, len(self.args.task_names)
        return steps.reshape(shape)[:, 0, 0], means.reshape(shape)

    def returns(self, policy: str) -> tuple[np.ndarray, np.ndarray]:
        """The evaluations of a policy so far: global steps [K] and returns [K, S], means over tasks."""
        steps, means = self.task_returns(policy)
        return steps, means.mean(axis=2)

    def reached_target(self) -> bool:
        """Whether the last two evaluations of the greedy policy reached the target return in every seed."""
        _, means = self.returns("greedy")
        target = self.args.target_return
        return target is not None and len(means) > 1 and bool((means[-2:] >= target).all())

    def summary(self) -> str:
        """The last return of the greedy policy, and that of the random one if it is known."""
        greedy, random = (self.returns(policy)[1] for policy in ("greedy", "random"))
        compared = f", random policy {random.mean():.3f}" if random.size else ""
        return f"{greedy[-1].mean():.3f}{compared}, {self.args.eval_episodes} episodes"

    def is_finished(self, step: int) -> bool:
        """Whether a run at this step is over and has written everything."""
        over = step >= self.args.total_timesteps or self.reached_target()
        videos = video_paths(self.args, self.folder) if getattr(self.args, "capture_video", False) else []
        written = all(path.is_file() for path in (self.folder / "curve.png", *videos))
        return over and step in self.returns("greedy")[0] and written


class Records(Evaluations):
    """Writes the curves and evaluations of a run; a run resumed from `step` drops what came after it."""

    def __init__(self, folder: Path, args: Any, step: int | None = None):
        super().__init__(folder, args, step)
        first = jax.process_index() == 0
        self.mirror = Mirror(folder, args) if args.track and first else None
        seeds = range(args.seed, args.seed + args.num_seeds) if args.num_seeds > 1 else ()
        # TensorBoard's own writer, because its flush waits until the file is written
        paths = (folder, *(folder / f"seed_{seed}" for seed in seeds)) if first else ()
        self.writers = [EventFileWriter(str(path)) for path in paths]
        self.prefixes = ("", *(f"seed_{seed}/" for seed in seeds))
        for writer in self.writers if step is not None else ():
            writer.add_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))
        if step is None:
            self.hyperparameters()
        self.write_evaluations()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of `eval.csv`; a script for several environments also has their names."""
        task = ("task",) if hasattr(self.args, "env_ids") else ()
        numbers = ("return_mean", "return_std", "return_min", "return_max", "length_mean", "wall_seconds")
        return ("global_step", "seed", "env_id", *task, "partial_obs", "policy", "episodes", *numbers)

    def write_evaluations(self) -> None:
        """Replaces `eval.csv` as a whole, so that it is never half written."""
        if not self.writers:
            return
        write_csv(self.folder / "eval.csv", self.columns, self.evaluations)

    def text(self, tag: str, markdown: str) -> None:
        """A text on TensorBoard's text page."""
        for writer in self.writers[:1]:
            writer.add_event(Event(wall_time=time.time(), summary=text_pb(tag, markdown)))

    def hyperparameters(self) -> None:
        """The arguments as a table on TensorBoard's text page."""
        table = "".join(f"|{name}|{value}|\n" for name, value in dataclasses.asdict(self.args).items())
        self.text("hyperparameters", f"|argument|value|\n|-|-|\n{table}")

    def scalar(self, tag: str, values: Any, step: int) -> float:
        """A point for each seed and for their mean, which is returned; NaN adds no point."""
        values = np.atleast_1d(values).astype(float)
        known = values[~np.isnan(values)]
        mean = known.mean() if known.size else math.nan
        each = values if len(values) > 1 else ()  # a value that all seeds share is written once
        for writer, prefix, value in zip(self.writers, self.prefixes, (mean, *each), strict=False):
            if np.isnan(value):
                continue
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
            if self.mirror:
                self.mirror.log(prefix + tag, value, step)
        return mean

    def evaluation(self, step: int, policy: str, returns: np.ndarray, lengths: np.ndarray, seconds: float) -> None:
        """Rows of `eval.csv` for returns and lengths [S, N, episodes], a printed line, and points of the curves.

        Raises:
            Diverged: if a return is NaN or infinite
        """
        if not np.isfinite(returns).all():
            names = " ".join(self.args.task_names)
            raise Diverged(f"{names}: a return of the {policy} policy is not finite: check the environment's rewards")
        for seed, task in np.ndindex(returns.shape[:2]):
            self.evaluations.append(
                self.row(step, seed, task, policy, returns[seed, task], lengths[seed, task], seconds)
            )
        self.write_evaluations()
        means = returns.mean(axis=2)  # [S, N]
        if policy == "greedy":
            self.greedy_curves(step, means)
        names = zip(self.args.task_names, means.mean(axis=0), strict=True)
        each = ": " + "  ".join(f"{name} {mean:.3f}" for name, mean in names) if hasattr(self.args, "env_ids") else ""
        say(f"step {step}  {policy} policy: return {means.mean():.3f} over {returns.size} episodes{each}")

    def row(self, step, seed: int, task: int, policy: str, returns: np.ndarray, lengths: np.ndarray, seconds) -> dict:
        """A row of `eval.csv`."""
        args = self.args.tasks[task]
        names = {"env_id": args.env_id, "task": self.args.task_names[task], "policy": policy}
        counts = {"global_step": step, "seed": args.seed + seed, "episodes": len(returns)}
        numbers = {f"return_{f.__name__}": float(f(returns)) for f in (np.mean, np.std, np.min, np.max)}
        numbers |= {"length_mean": float(lengths.mean()), "wall_seconds": float(seconds)}
        found = names | counts | numbers | {"partial_obs": getattr(args, "partial_obs", False)}
        return {name: str(found[name]) for name in self.columns}

    def greedy_curves(self, step: int, means: np.ndarray) -> None:
        """Points of the greedy policy's curves, from mean returns [S, N]."""
        self.scalar("eval/episodic_return", means.mean(axis=1), step)
        if not hasattr(self.args, "env_ids"):
            return
        for n, name in enumerate(self.args.task_names):
            self.scalar(f"{name}/eval_return", means[:, n], step)
        _, random = self.task_returns("random")
        changed = self.args.in_evaluation().env_params  # they may change the best possible return
        if {*self.args.env_ids} <= {*popgym_arcade.REGISTERED_ENVIRONMENTS} and random.size and not changed:
            self.scalar("eval/normalized_return", ((means - random[0]) / (MAX_RETURN - random[0])).mean(axis=1), step)

    def flush(self) -> None:
        """Waits until all points are written, and saves how far the mirror is."""
        for writer in self.writers:
            writer.flush()
        if self.mirror:
            self.mirror.save()

    def close(self) -> None:
        """Writes what is left and closes the files of events."""
        for writer in self.writers:
            writer.close()

    @contextlib.contextmanager
    def closed_on_failure(self) -> Iterator[None]:
        """Within the context, an error closes the files, so that no thread writes into a folder that is removed."""
        try:
            yield
        except BaseException:
            self.close()
            raise


def progress_bar(args: Any, step: int, shown: bool) -> tqdm:
    """A bar of the run's steps; hidden, too, where the output is not a terminal."""
    form = "{percentage:3.0f}%|{bar}| {n_fmt} of {total_fmt} steps, {remaining} left{postfix}"
    size = {"total": args.total_timesteps, "initial": step, "bar_format": form, "unit_scale": True}
    return tqdm(**size, disable=None if shown else True)


def say(line: str) -> None:
    """Prints a line, above the progress bar if there is one. Only the first of several processes prints."""
    if jax.process_index() == 0:
        tqdm.write(line)
        sys.stdout.flush()
