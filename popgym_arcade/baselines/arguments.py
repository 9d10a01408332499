"""The arguments that all training scripts share, checked before anything is compiled or written.

A script's `Args` inherits from `RunArgs`, or from `ArcadeArgs` if it also plays popgym_arcade's games, and adds the
flags of its algorithm. A flag's type says which values it accepts, see `limits`.
"""

import dataclasses
import math
import os
from dataclasses import dataclass
from typing import ClassVar, Self

import jax
from gymnax.environments import spaces

from popgym_arcade.baselines import limits
from popgym_arcade.baselines.env_params import MAX_INT, name_of
from popgym_arcade.baselines.environment import check_env, in_names, is_arcade, make_env, shows_pixels, spaces_of
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import Count, NonNegativeInt, PathName, check_limits, flag, plain
from popgym_arcade.baselines.scripts import script_name, script_of

MAX_NAME_BYTES = 255  # of a folder's name, on common file systems
TIME_BYTES = len("__20260101-000000-999")  # at the end of a run folder's name


@dataclass(frozen=True)
class RunArgs:
    """The flags of every training script. A script adds its algorithm's, `env_id`, `num_envs`, and `update_size`."""

    ACTIONS: ClassVar[type] = spaces.Discrete  # the kind of actions a script's policy chooses
    TWO_PLAYER: ClassVar[bool] = False  # whether a script plays both seats of two-player games

    env_params: tuple[str, ...] = ()
    """fields of the environment's parameters to replace, as NAME=VALUE ..."""
    eval_env_params: tuple[str, ...] = ()
    """the same for evaluations, overriding --env-params of the same name, such as num_levels=0 for all levels"""
    seed: NonNegativeInt = 0
    """seed of the first agent"""
    num_seeds: Count = 1
    """agents to train together, with seeds SEED, SEED + 1, ..."""
    total_timesteps: Count = 1_000_000
    """environment steps of each agent, rounded up to whole updates"""
    num_devices: NonNegativeInt = 0
    """devices to use; they share the seeds if NUM_SEEDS is a multiple of their number, else the environments; 0: all"""
    distributed: bool = False
    """train on several hosts, found through the cluster's variables (SLURM) or through the next three flags"""
    coordinator_address: str = ""
    """HOST:PORT of process 0, with any free port"""
    num_processes: Count | None = None
    """number of processes that train together"""
    process_id: int | None = None
    """index of this process, from 0"""
    deterministic: bool = False
    """make GPUs repeat a run bit for bit, at some cost in speed (CPUs always do)"""
    compile_cache: PathName = ""
    """folder for compiled programs, so that the next run with the same sizes need not compile"""
    exp_name: str = ""
    """name of the experiment in the run folder's name; empty: the script's name"""
    run_dir: PathName = "runs"
    """folder in which the run folder is created"""
    track: bool = False
    """mirror the curves to Weights & Biases, which must be installed; WANDB_MODE=offline keeps them local"""
    wandb_project_name: str = "popgym_arcade"
    """Weights & Biases project"""
    wandb_entity: str = ""
    """Weights & Biases user or team; empty: whoever is logged in"""
    log_every: Count = 5_000
    """steps between two points of the training curves"""
    eval_every: NonNegativeInt = 50_000
    """steps between two evaluations of the greedy policy; 0: only at the end"""
    eval_episodes: Count = 32
    """complete episodes per evaluation (of each task, if there are several)"""
    target_return: float | None = None
    """stop early once two evaluations in a row reach this mean return in every seed"""
    checkpoint_every: NonNegativeInt = 50_000
    """steps between two checkpoints, of which the last three are kept; 0: only at the end"""
    save_every: NonNegativeInt = 0
    """also keep the first checkpoint at or after each multiple of this many steps; 0: only the last three"""
    resume: PathName = ""
    """run folder to resume from its last checkpoint"""
    from_run: PathName = ""
    """start a new run with the arguments of this run folder; other flags override them"""

    def in_evaluation(self, env_params: tuple[str, ...] = ()) -> Self:
        """These arguments for an evaluation: `eval_env_params`, then the given `env_params`, override `env_params`."""
        changes = self.env_params
        for later in (self.eval_env_params, env_params):
            names = set(map(name_of, later))
            changes = (*(change for change in changes if name_of(change) not in names), *later)
        return dataclasses.replace(self, env_params=changes, eval_env_params=())

    @property
    def num_updates(self) -> int:
        """Updates in the whole run."""
        return -(-self.total_timesteps // self.update_size)

    @property
    def log_interval(self) -> int:
        """Steps between two points of the curves. Evaluations and checkpoints are at multiples of it, so a stop in
        between does not shift them."""
        return -(-self.log_every // self.update_size) * self.update_size

    @property
    def minibatch_shape(self) -> tuple[int, int]:
        """T and B of a minibatch, for the memory estimate: here single steps."""
        return 1, self.update_size // self.num_minibatches

    @property
    def tasks(self) -> tuple[Self, ...]:
        """These arguments for each environment the agent is trained on: here one."""
        return (self,)

    @property
    def task_names(self) -> tuple[str, ...]:
        """What tables and curves call each of the tasks: here the id."""
        return (self.env_id,)

    def check(self) -> None:
        """A script's own checks. Raises UserError."""

    def checked(self) -> Self:
        """These arguments as plain Python values, `total_timesteps` rounded up to whole updates, `exp_name` filled in.

        Raises:
            UserError: naming the flag to change and what to change it to.
        """
        args = plain(self)
        args.check_all()
        rounded = {
            "total_timesteps": args.num_updates * args.update_size,
            "exp_name": args.exp_name or script_name(args),
        }
        return dataclasses.replace(args, **rounded)

    def check_all(self) -> None:
        """Raises UserError for the first value that cannot be used."""
        check_limits(self)
        if self.seed + self.num_seeds > MAX_INT:
            raise UserError(f"--seed {self.seed}: use a number from 0 to {MAX_INT - self.num_seeds}")
        if self.target_return is not None and not (math.isfinite(self.target_return) and self.eval_every):
            raise UserError(f"--target-return {self.target_return}: use a finite number, and an --eval-every above 0")
        self.check()
        self.check_memory_size()
        if self.update_size > MAX_INT:
            raise UserError(f"an update has {self.update_size} steps: lower --num-envs, {MAX_INT} is the limit")
        if self.num_updates * self.update_size > MAX_INT:
            most = MAX_INT // self.update_size * self.update_size
            raise UserError(f"--total-timesteps {self.total_timesteps}: use {most} or less, in whole updates")
        self.check_tasks()
        self.check_save_every()
        self.check_exp_name()

    def check_divides(self, name: str, number: int, what: str) -> None:
        """Raises UserError, naming the nearest divisors, unless the flag `name` divides `number`, called `what`."""
        divisor = getattr(self, name)
        if number % divisor:
            nearest = limits.nearest_divisors(number, divisor)
            raise UserError(f"{flag(name)} {divisor} does not divide {what} {number}: use {nearest}")

    def check_divides_or_multiple(self, name: str, other: str) -> None:
        """Raises UserError, naming the nearest valid values, unless one of these two flags divides the other."""
        value, unit = getattr(self, name), getattr(self, other)
        if value % unit and unit % value:
            nearest = limits.nearest_multiples(value, unit) if value > unit else limits.nearest_divisors(unit, value)
            neither = f"{flag(name)} {value} neither divides {flag(other)} {unit} nor is a multiple of it"
            raise UserError(f"{neither}: use {nearest}")

    def check_devices(self, group: int) -> None:
        """Raises UserError for devices that do not exist, or that cannot share groups of this many environments."""
        available, count = jax.device_count(), self.num_devices or jax.device_count()
        if not 0 <= self.num_devices <= available:
            raise UserError(f"--num-devices {self.num_devices}: use a number from 1 to {available}, or 0 for all")
        groups = self.num_envs // group  # 0 if there are more minibatches than games, as in ppo_selfplay.py
        shared = count == 1 or (groups >= count and groups % count == 0)
        if not shared and self.num_seeds % count:
            envs = limits.nearest_multiples(self.num_envs, group * count)
            devices = limits.nearest_divisors(groups or 1, count)
            raise UserError(
                f"{count} devices cannot share --num-envs {self.num_envs} in groups of {group}: use --num-envs {envs}, "
                f"or --num-devices {devices}, or a multiple of {count} as --num-seeds"
            )

    def check_memory_size(self) -> None:
        """Raises UserError for a `hidden_size` that the memory, one of the script's MEMORIES, cannot have."""
        cell = getattr(script_of(self), "MEMORIES", {}).get(getattr(self, "memory", ""))
        if cell is not None:
            from popgym_arcade.baselines.networks.memory import check_size  # memax is needed only with a memory

            check_size(self.memory, cell, self.hidden_size)

    def check_tasks(self) -> None:
        """Raises UserError for environments that are unknown or have actions the script cannot choose."""
        id_flag = "--env-ids" if hasattr(self, "env_ids") else "--env-id"
        for task in self.tasks:
            try:
                env, env_params = make_env(task)
            except UserError as error:
                raise UserError(str(error).replace("--env-id ", f"{id_flag} ")) from None
            try:
                make_env(task.in_evaluation())
            except UserError as error:
                raise UserError(str(error).replace("--env-params ", "--eval-env-params ")) from None
            if self.eval_env_params and spaces_of(task.in_evaluation()) != spaces_of(task):
                raise UserError("--eval-env-params change the observations or actions: use --env-params for that")
            check_env(self, f"{id_flag} {task.env_id}", env, env.action_space(env_params))

    def check_exp_name(self) -> None:
        """Raises UserError if the experiment's name cannot be part of a folder's name."""
        if "/" in self.exp_name or not self.exp_name.isprintable():
            named = f"--exp-name {self.exp_name!r} becomes part of a folder's name"
            raise UserError(f"{named}: use printable characters, without /")
        excess = len(os.fsencode(run_name(self))) + TIME_BYTES - MAX_NAME_BYTES
        if excess > 0:
            shorter = f"use one that is {excess} shorter" if self.exp_name else "use a shorter --env-id"
            raise UserError(f"--exp-name {self.exp_name!r} makes the folder's name too long: {shorter}")

    def check_save_every(self) -> None:
        """Raises UserError if `save_every` keeps checkpoints that are never written."""
        if self.save_every and not 0 < self.checkpoint_every <= self.save_every:
            kept = f"--save-every {self.save_every} keeps some of the checkpoints"
            raise UserError(f"{kept}: use a --checkpoint-every from 1 to {self.save_every}, or --save-every 0")
        if self.save_every and self.log_interval > self.save_every:
            apart = f"checkpoints are {self.log_interval} steps apart because of --log-every"
            raise UserError(f"--save-every {self.save_every}: {apart}, use {self.log_interval} or more, or 0")


@dataclass(frozen=True)
class ArcadeArgs(RunArgs):
    """The flags of a script that also plays popgym_arcade's games."""

    partial_obs: bool = False
    """play the partially observable twin (popgym_arcade games only)"""
    obs_size: int = 128
    """side of the frame in pixels, 128 or 256 (popgym_arcade games only)"""
    capture_video: bool = False
    """record one greedy episode at the end, as a GIF in the run folder (environments with pixels only)"""

    def check_tasks(self) -> None:
        super().check_tasks()
        if self.capture_video and not shows_pixels(self):
            names = " ".join(self.task_names)
            raise UserError(f"--capture-video records environments with pixels only: leave it out with {names}")


def run_name(args: RunArgs) -> str:
    """The beginning of a run folder's name: environment, twin, experiment, memory, seed."""
    twin = ("pomdp" if args.partial_obs else "mdp") if is_arcade(args) else "single"
    env_id, exp_name = in_names(args.env_id), args.exp_name or script_name(args)
    return f"{env_id}__{twin}__{exp_name}__{getattr(args, 'memory', 'none')}__{args.seed}"
