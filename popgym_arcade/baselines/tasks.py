"""Several tasks in one run: their arguments, and all their environments behind one interface.

A task is an environment with a factor for its rewards. Shapes: E environments, N tasks; environment e plays task e % N.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from popgym_arcade.baselines.arguments import ArcadeArgs
from popgym_arcade.baselines.environment import ParallelEnvs, in_parallel
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import nearest_multiples


@dataclass(frozen=True)
class TasksArgs(ArcadeArgs):
    """The flags of a script for several tasks, which adds `env_ids` and `reward_scales` (empty: 1 for each)."""

    @property
    def env_id(self) -> str:
        """The id of a single task; for several, a word that stands for them in names."""
        return self.env_ids[0] if len(self.env_ids) == 1 else f"multi-{len(self.env_ids)}"

    @property
    def scales(self) -> tuple[float, ...]:
        """The factor of each task's rewards."""
        return self.reward_scales or (1.0,) * len(self.env_ids)

    @property
    def tasks(self) -> tuple["TasksArgs", ...]:
        """These arguments for each task alone."""
        each = zip(self.env_ids, self.scales, strict=True)
        return tuple(dataclasses.replace(self, env_ids=(env_id,), reward_scales=(scale,)) for env_id, scale in each)

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks' ids, with the factor of the rewards if an id occurs twice: BreakoutEasy_x1000."""
        named = zip(self.env_ids, self.scales, strict=True)
        return tuple(name if self.env_ids.count(name) == 1 else f"{name}_x{scale:g}" for name, scale in named)

    def check_names(self) -> None:
        """Raises UserError unless there are tasks, each with a reward scale and a name of its own."""
        if not self.env_ids:
            raise UserError("--env-ids: name at least one")
        if len(self.scales) != len(self.env_ids):
            count = f"{len(self.scales)} numbers for {len(self.env_ids)} tasks"
            raise UserError(f"--reward-scales: {count}, use one for each")
        if not all(math.isfinite(scale) and scale > 0 for scale in self.scales):
            raise UserError(f"--reward-scales {' '.join(map(str, self.scales))}: use numbers above 0")
        twice = [name for name in self.task_names if self.task_names.count(name) > 1]
        if twice:
            raise UserError(f"--env-ids has {twice[0]} twice: leave one out, or give them different --reward-scales")

    def check_shares(self) -> None:
        """Raises UserError unless every task gets the same number of environments."""
        count = len(self.env_ids)
        if self.num_envs % count:
            envs = nearest_multiples(self.num_envs, count)
            raise UserError(f"--num-envs {self.num_envs} cannot be divided evenly among {count} tasks: use {envs}")

    def check_tasks(self) -> None:
        """Raises UserError as for a single task, and for tasks that one network cannot play."""
        super().check_tasks()
        found = {}
        for task in self.tasks:
            envs = in_parallel(task)
            space = envs.observation_space
            about = f"{jnp.dtype(space.dtype)}{list(space.shape)} observations, {envs.num_actions} actions"
            found.setdefault(about, task.env_id)
        if len(found) > 1:
            each = "; ".join(f"{env_id} has {about}" for about, env_id in found.items())
            raise UserError(f"--env-ids: all tasks need the same kind of observations and actions, but {each}")


@dataclass(frozen=True)
class ParallelTasks:
    """The environments of all tasks, behind the interface of `ParallelEnvs`: environment e plays task e % N.

    Devices hold neighbouring environments, so each has equally many of every task. States are a tuple with one entry
    per task; with a single task, its states alone.
    """

    envs: tuple[ParallelEnvs, ...]

    @property
    def observation_space(self) -> Any:
        """Of one environment, the same for all tasks."""
        return self.envs[0].observation_space

    @property
    def num_actions(self) -> int:
        """The number of actions, the same for all tasks."""
        return self.envs[0].num_actions

    def reset(self, keys: list[jax.Array], num_envs: int) -> tuple[jax.Array, Any]:
        """First observations [E, ...] and states, from a key for each task; `num_envs` is per task."""
        each = [envs.reset(key, num_envs) for envs, key in zip(self.envs, keys, strict=True)]
        obs, states = zip(*each, strict=True)
        return interleave(obs), bundle(states)

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple:
        """One step of each, as of `ParallelEnvs`; with several tasks, `info` has the tuple of theirs, as "tasks"."""
        count = len(self.envs)
        states = state if count > 1 else (state,)
        each = zip(self.envs, jax.random.split(key, count), states, action.reshape(-1, count).T, strict=True)
        stepped = [envs.step(*own) for envs, *own in each]
        obs, states, *outcome, infos = zip(*stepped, strict=True)
        if count > 1:
            of_all = {name: interleave([own[name] for own in infos]) for name in ("raw_reward", "over")}
            info = of_all | {"tasks": infos}
        else:
            info = infos[0]
        return interleave(obs), bundle(states), *map(interleave, outcome), info

    def final_observation(self, info: Any) -> tuple[tuple, Callable]:
        """What the tasks' infos hold of final observations, and the function that turns it into them, [E, ...]."""
        each = [envs.final_observation(own) for envs, own in zip(self.envs, info.get("tasks", (info,)), strict=True)]
        finals, observe = zip(*each, strict=True)
        return finals, lambda finals: interleave([f(final) for f, final in zip(observe, finals, strict=True)])


def interleave(parts: Any) -> Any:
    """Arrays [E / N, ...] of each task as one [E, ...]."""
    return jnp.stack(parts, axis=1).reshape(-1, *parts[0].shape[1:]) if len(parts) > 1 else parts[0]


def bundle(parts: tuple) -> Any:
    """The parts of all tasks as a tuple; with a single task, its part alone."""
    return parts if len(parts) > 1 else parts[0]


def tasks_in_parallel(args: TasksArgs) -> ParallelTasks:
    """The parallel environments of all tasks."""
    return ParallelTasks(tuple(in_parallel(task) for task in args.tasks))
