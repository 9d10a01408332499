"""One run of a training script: everything between the command line and the algorithm.

A script's `main` shows the loop; `Run` supplies what every loop needs: the run folder, compiled programs, chunks of
updates with signals handled in between, curves, evaluations, checkpoints, and an orderly end.
"""

import contextlib
import math
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from popgym_arcade.baselines.arguments import RunArgs
from popgym_arcade.baselines.devices import hosts
from popgym_arcade.baselines.devices.mesh import everywhere, on_host
from popgym_arcade.baselines.errors import Finished
from popgym_arcade.baselines.running.checkpoints import (
    find_checkpoint,
    restore,
    save_checkpoint,
    saved_fields,
    set_aside_later,
    unsaved_fields,
)
from popgym_arcade.baselines.running.command_line import check_same, read_args
from popgym_arcade.baselines.running.evaluation import keys_at_step, make_evaluate, make_keys
from popgym_arcade.baselines.running.flags import python_command
from popgym_arcade.baselines.running.folder import make_run_folder, one_line_for_disk_errors, removed_on_failure
from popgym_arcade.baselines.running.memory_use import check_memory
from popgym_arcade.baselines.running.metrics import check_finite
from popgym_arcade.baselines.running.pictures import draw_curve, save_videos
from popgym_arcade.baselines.running.programs import abstract_state, compile_evaluate, compile_train_chunk, jit_init
from popgym_arcade.baselines.running.records import Evaluations, Records, progress_bar, say
from popgym_arcade.baselines.running.signals import run_in_worker, stop_signal, stop_signals
from popgym_arcade.baselines.scripts import script_of

CHUNK_SECONDS = 5  # a signal is handled within this time


class Run:
    """The run of a script; use it in a `with` statement.

    Attributes:
        folder: the run folder, known after `begin`
        step: environment steps of each seed so far
        restarted: fields of the state that a resumed run initialises again, because its checkpoint does not hold them
    """

    def __init__(self, args: RunArgs, actor: tuple, policies: dict[str, Any]):
        """`actor` is what the script's make_actor(args) returns, `policies` its POLICIES."""
        self.args, self.policies = args, policies
        evaluated = script_of(args).make_actor(args.in_evaluation()) if args.eval_env_params else actor
        _, self.begin_actor, self.act = evaluated
        self.folder, self.step, self.restarted = Path(args.resume), 0, ()
        self.train_seconds, self.saved_at = 0.0, None

    def __enter__(self) -> "Run":
        if self.args.resume:
            check_same(self.args, read_args(self.args.resume, type(self.args)))
        check_memory(self.args, script_of(self.args))
        self.contexts = contextlib.ExitStack()
        self.received = self.contexts.enter_context(stop_signals())
        self.contexts.enter_context(one_line_for_disk_errors(self.args.resume or self.args.run_dir))
        return self

    def __exit__(self, kind, *error) -> bool | None:
        return self.contexts.__exit__(kind, *error) or kind is Finished

    def begin(self, init: Callable, train_chunk: Callable, optional: tuple[str, ...] = ()) -> tuple[Any, Callable]:
        """The first state, or that of the last checkpoint, and `train_chunk` compiled for all seeds and devices.

        Args:
            init: init(key) -> state
            train_chunk: train_chunk(state, num_updates) -> (state, sums), see `metrics.repeat`; it overwrites the state
            optional: fields of the state that a checkpoint may lack
        """
        args = self.args
        train_keys, self.eval_keys = make_keys(args)
        init = jax.jit(init)  # traced once for both uses
        template = abstract_state(args, init, everywhere(args, train_keys))
        self.unsaved = unsaved_fields(args, template)
        fresh = lambda keys=train_keys: run_in_worker(jit_init(args, init, template), everywhere(args, keys))
        state = self.resumed(template, fresh, (*optional, *self.unsaved)) if args.resume else self.started(fresh)
        if self.records.mirror:  # finished last, so that an upload that fails or hangs loses nothing
            self.contexts.push(self.records.mirror.finish)
        self.first_step = self.goal = self.before = self.step
        hosts.note(f"to resume: start every process with --resume {shlex.quote(str(self.folder))}")
        episodes = "new episodes; " if "actor" in self.restarted else ""
        say(f"{self.folder}: step {self.step} of {args.total_timesteps}; {episodes}compiling ...")
        began = time.perf_counter()
        with removed_on_failure(None if args.resume else self.folder), self.records.closed_on_failure():
            train_chunk = run_in_worker(compile_train_chunk, args, train_chunk, state)
            evaluate = make_evaluate(args, self.begin_actor, self.act)
            inputs = state.params, everywhere(args, self.eval_keys), self.policies["greedy"]
            self.play = run_in_worker(compile_evaluate, args, evaluate, *inputs)
        self.compile_seconds = time.perf_counter() - began
        self.records.scalar("charts/compile_seconds", self.compile_seconds, self.step)
        self.contexts.enter_context(contextlib.closing(self.records))
        self.bar = self.contexts.enter_context(progress_bar(args, self.step, bool(self.records.writers)))
        return state, train_chunk

    def started(self, fresh: Callable) -> Any:
        """A new run folder and a fresh state."""
        self.folder = Path(hosts.from_first(str(make_run_folder(self.args)) if jax.process_index() == 0 else ""))
        with removed_on_failure(self.folder):
            self.records = Records(self.folder, self.args)
            with self.records.closed_on_failure():
                return fresh()

    def check_unfinished(self) -> None:
        """Raises Finished, after printing a line, if the checkpoint is the end of the run."""
        if Evaluations(self.folder, self.args, self.step).is_finished(self.step):
            say(f"{self.folder}: the run ended at step {self.step}, there is nothing left to do")
            hosts.leave()
            raise Finished

    def resumed(self, template: Any, fresh: Callable, optional: tuple[str, ...]) -> Any:
        """The state of the last intact checkpoint."""
        self.step = self.saved_at = find_checkpoint(self.folder)
        saved = saved_fields(self.folder, self.step)
        self.restarted = tuple(name for name in optional if name not in saved)
        state = restore(self.folder, self.step, template.replace(**dict.fromkeys(self.restarted)))
        self.check_unfinished()
        if self.restarted:
            new = fresh(keys_at_step(self.args, make_keys(self.args)[0], self.step))  # not the first episodes again
            state = state.replace(**{name: getattr(new, name) for name in self.restarted})
        hosts.wait_for_all("the checkpoint is read")
        if jax.process_index() == 0:
            set_aside_later(self.folder, self.step)
        self.records = Records(self.folder, self.args, self.step)
        return state

    def goes_on(self) -> bool:
        """Whether to continue: False at the end, at the target return, and after a signal to stop."""
        over = self.step >= self.args.total_timesteps
        return not (over or stop_signal(self.received) or self.records.reached_target())

    def train(self, train_chunk: Callable, state: Any) -> tuple[Any, dict]:
        """Updates up to the next point of the curves, or to a signal: the state and the sums over these updates.

        Raises:
            Diverged: if one of the sums became NaN or infinite
        """
        args = self.args
        self.before = self.step - self.step % args.log_interval
        self.goal = min(self.before + args.log_interval, args.total_timesteps)
        sums, self.chunk_steps, self.chunk_seconds = None, 0, 0.0
        while self.step < self.goal and (sums is None or not stop_signal(self.received)):
            left = (self.goal - self.step) // args.update_size
            updates = hosts.largest(min(left, max(1, int(CHUNK_SECONDS * self.pace()))))
            began = time.perf_counter()
            state, new = run_in_worker(train_chunk, state, np.int32(updates))
            self.chunk_seconds += time.perf_counter() - began
            sums = jax.device_get(new if sums is None else jax.tree.map(np.add, sums, new))
            self.chunk_steps += updates * args.update_size
            self.step += updates * args.update_size
        self.train_seconds += self.chunk_seconds
        check_finite(args, sums, self.step)
        return state, sums

    def pace(self) -> float:
        """Updates per second since the last point or, at a point, in the whole run; 0 before the first."""
        if self.chunk_steps:
            return self.chunk_steps / self.args.update_size / self.chunk_seconds
        return (self.step - self.first_step) / self.args.update_size / (self.train_seconds or math.inf)

    def log(self, curves: dict[str, Any]) -> None:
        """A point of each curve, values [] or [seeds], and of the speed; moves the progress bar, or prints a line."""
        args, step = self.args, self.step
        speed = self.chunk_steps * args.num_seeds / self.chunk_seconds
        means = {name: self.records.scalar(name, value, step) for name, value in curves.items()}
        self.records.scalar("charts/SPS", speed, step)
        self.records.flush()
        tasks = [f"{name}/episodic_return" for name in args.task_names] if len(args.task_names) > 1 else ()
        returns = [means[name] for name in tasks or ("charts/episodic_return",)]
        told = " ".join("-" if math.isnan(x) else f"{x:.3f}" for x in returns)
        self.bar.set_postfix({"SPS": round(speed), "return": told}, refresh=False)
        self.bar.update(step - self.bar.n)
        if self.bar.disable:
            left = (args.total_timesteps - step) * args.num_seeds / speed
            say(f"step {step}  SPS {speed:.0f}  return {told}  {left:.0f} s left")

    def is_due(self, cadence: int) -> bool:
        """Whether a multiple of the cadence has just been reached or passed; never for a cadence of 0.

        Only at the log interval: a stop in between does not shift evaluations and checkpoints.
        """
        return cadence > 0 and self.step == self.goal and self.step // cadence > self.before // cadence

    def evaluate(self, params: Any, policy: str) -> None:
        """Plays complete episodes of a policy, one of POLICIES. Skipped if done at this step, and when stopping."""
        if stop_signal(self.received) or self.step in self.records.returns(policy)[0]:
            return
        keys = everywhere(self.args, keys_at_step(self.args, self.eval_keys, self.step))
        began = time.perf_counter()
        found = run_in_worker(self.play, params, keys, self.policies[policy])
        seconds = time.perf_counter() - began
        shape = self.args.num_seeds, -1, len(self.args.task_names)  # environment e plays task e % N
        returns, lengths = (np.asarray(x, float).reshape(shape).swapaxes(1, 2) for x in (found.returns, found.lengths))
        self.records.evaluation(self.step, policy, returns, lengths, seconds)

    def save(self, state: Any) -> None:
        """Writes a checkpoint after flushing the records, unless this step has one."""
        if self.saved_at != self.step:
            self.records.flush()
            save_checkpoint(self.folder, self.args, self.step, state.replace(**dict.fromkeys(self.unsaved)))
            self.saved_at = self.step

    def finish(self, state: Any) -> None:
        """The last evaluation and checkpoint, pictures, and a summary.

        Raises:
            SystemExit: with 128 + the number of the signal that ended the run, if any; the state is saved
        """
        self.evaluate(state.params, "greedy")
        self.bar.close()
        self.save(state)
        self.records.close()
        stopped = stop_signal(self.received)
        if not stopped:
            self.draw(state.params)
        hosts.leave()
        if stopped:
            resume = python_command(script_of(self.args).__file__, "--resume", self.folder)
            say(f"stopped at step {self.step}, saved in {self.folder}; to resume: {resume}")
            sys.exit(128 + stopped)
        speed = (self.step - self.first_step) * self.args.num_seeds / (self.train_seconds or math.inf)
        say(
            f"run folder     {self.folder}\ngreedy return  {self.records.summary()}\n"
            f"speed          {speed:.0f} steps/s, compiled in {self.compile_seconds:.0f} s\n"
            f"TensorBoard    {python_command('-m', 'tensorboard.main', '--logdir', self.folder)}"
        )

    def draw(self, params: Any) -> None:
        """`curve.png`, and with `--capture-video` a video of each task."""
        capture = getattr(self.args, "capture_video", False)
        params = on_host(params) if capture else None
        if not self.records.writers:
            return
        draw_curve(self.records)
        if capture:
            key = keys_at_step(self.args, self.eval_keys, self.step + 1)
            program = self.begin_actor, self.act, self.policies["greedy"]
            run_in_worker(save_videos, self.args, self.folder, program, params, key)
