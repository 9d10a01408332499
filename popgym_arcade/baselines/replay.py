"""flashbax's replay buffers, for a script with the flag `prioritized`."""

from typing import Any

import flashbax as fbx
import jax

from popgym_arcade.baselines.jax_defaults import any_rank


def make_buffer(args: Any, **sizes: int) -> Any:
    """A ring buffer of items [E, ...] that samples uniformly or, with `--prioritized`, by priority.

    `sizes` are those of flashbax: add_batch_size, sample_batch_size, sample_sequence_length, and the limits of the time
    axis. A sample may start at any item.
    """
    if not args.prioritized:
        return any_rank(fbx.make_trajectory_buffer(period=1, **sizes))
    exponent = args.prioritized_replay_alpha
    make = fbx.make_prioritised_trajectory_buffer
    return any_rank(make(priority_exponent=exponent, device=jax.default_backend(), period=1, **sizes))


def without_replay(args: Any, state: Any) -> Any:
    """The part of a train state that a checkpoint holds: the replay buffer only with `--save-buffer`."""
    return state if args.save_buffer else state.replace(replay=None)


def when_learning_resumes(args: Any, step: int, steps_before_learning: int) -> str:
    """A line about a run that resumes at a step from a checkpoint without a replay buffer."""
    again = step + steps_before_learning
    then = f"resumes at step {again}" if again <= args.total_timesteps else "does not resume in the remaining steps"
    return f"{args.resume} was saved without --save-buffer: the replay buffer starts empty, and learning {then}"
