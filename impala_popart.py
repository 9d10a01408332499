"""IMPALA with PopArt: one agent for many games, learned with V-trace, its values normalised game by game.

Papers: Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
        Architectures", https://arxiv.org/abs/1802.01561; Hessel et al. 2019, "Multi-task Deep Reinforcement Learning
        with PopArt", https://arxiv.org/abs/1809.04474
Run:    python impala_popart.py --env-ids BreakoutEasy CartPoleEasy --value-normalization popart
Page:   docs/impala_popart.md

Shapes: T steps of a rollout, E environments, B environments of a minibatch, A actions, H hidden, N tasks; time first.
Tasks lie in blocks: the first E / N environments play the first task. `start[t]` comes with `obs[t]` and is True at an
episode's first; `terminated[t]`, `truncated[t]` follow `action[t]`.
"""

import ast
import contextlib
import csv
import dataclasses
import difflib
import errno
import functools
import hashlib
import importlib.metadata
import json
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import distrax
import equinox as eqx
import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import memax.equinox.train_utils as memax
import numpy as np
import optax
import orbax.checkpoint as ocp
import tyro
from flax import struct
from gymnax.environments import spaces
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from memax.equinox.gras import GRAS
from memax.equinox.groups import BinaryAlgebra, Resettable
from memax.equinox.models.residual import ResidualModel
from memax.equinox.scans import semigroup_scan
from memax.equinox.semigroups.s6 import S6Semigroup
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, LatestN, PreservationPolicy
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tqdm import tqdm

import popgym_arcade
from popgym_arcade import device_memory, hosts
from popgym_arcade.convolution import convolve, keep_bytes, max_pool
from popgym_arcade.memories import PSpherical, Spherical, Stack

SCRIPT = Path(__file__).stem
MAX_INT = 2**31 - 1
MAX_FRAMES = 2_000  # of a GIF
SAMPLE, GREEDY, RANDOM = range(3)  # policies: the agent's own, its most probable action, uniform
POLICIES = {"random": RANDOM, "greedy": GREEDY}
WAITER = ThreadPoolExecutor(1)


# --------------------------------------------------------------------------------------------------------- arguments


class UserError(Exception):
    """Something the user can put right: shown as one line, exit code 2."""

    exit_code = 2


class Diverged(UserError):
    """A metric that is no finite number any more."""

    exit_code = 3


class CannotWrite(UserError):
    """A disk that is full or gone, or a folder that may not be written to."""

    exit_code = 4


class CannotMirror(CannotWrite):
    """Weights & Biases that begins no run; a disk's error and this one are met by one process of several."""

    exit_code = 2


@dataclass(frozen=True)
class Args:
    env_ids: tuple[str, ...] = ("BreakoutEasy", "CartPoleEasy", "NoisyCartPoleEasy", "MineSweeperEasy")
    """ids of the tasks: any of popgym_arcade, or others of gymnax that share observations and discrete actions"""
    reward_scales: tuple[float, ...] = ()
    """what each task's rewards are multiplied with for learning; empty: 1"""
    reward_clip: float = 0.0
    """rewards to learn from are cut to [-REWARD_CLIP, REWARD_CLIP] after that; 0: not at all"""
    partial_obs: bool = False
    """play the partially observable twin (popgym_arcade ids only)"""
    obs_size: int = 128
    """side of the frame in pixels, 128 or 256 (popgym_arcade ids only)"""
    env_params: tuple[str, ...] = ()
    """fields of every task's parameters to replace, as NAME=VALUE ..."""
    seed: int = 0
    """seed of the first agent"""
    num_seeds: int = 1
    """agents trained together, with seeds SEED, SEED + 1, ..."""
    total_timesteps: int = 1_000_000
    """environment steps of each agent over all tasks, rounded up to whole updates"""
    optimizer: str = "adam"
    """adam or rmsprop (decay 0.99)"""
    learning_rate: float = 5e-4
    """learning rate of the optimizer"""
    anneal_lr: bool = True
    """bring the learning rate linearly to zero over the training"""
    num_envs: int = 32
    """parallel environments, divided evenly over the tasks"""
    num_steps: int = 32
    """steps of each environment in one rollout"""
    num_minibatches: int = 4
    """minibatches of a rollout; each holds NUM_ENVS / NUM_MINIBATCHES environments over all steps"""
    update_epochs: int = 2
    """passes over a rollout"""
    actor_lag: int = 0
    """the parameters that play are those from so many updates ago, all of which are kept, also in checkpoints"""
    gamma: float = 0.99
    """discount"""
    vtrace_lambda: float = 0.95
    """lambda of V-trace: 1 is IMPALA's, less leans on the values"""
    rho_clip: float = 1.0
    """largest importance weight of a step's own error, and of its policy gradient"""
    c_clip: float = 1.0
    """largest importance weight with which later errors are passed back"""
    ent_coef: float = 0.01
    """weight of the entropy bonus"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 0.5
    """gradients are scaled down to this global norm"""
    value_normalization: str = "none"
    """none, or popart: values by the mean and deviation of each task's targets, advantages by the deviation"""
    popart_beta: float = 3e-4
    """step of the averages that these come from; the n-th gradient step makes one of 1 / n as long as that is larger"""
    memory: str = "none"
    """memory model: none (two hidden layers instead), MinGRU or any of memax (LRU, GRU, FFM, ...)"""
    hidden_size: int = 256
    """width of the two memory layers, or hidden layers"""
    prev_action: bool = True
    """feed the previous action, and with the impala encoder the previous reward"""
    encoder: str = "patch"
    """reader of pixels: patch (fast everywhere), paper (POPGym Arcade's convolutions) or impala (residual network)"""
    precision: str = "float32"
    """matrix products in float32 or bfloat16; parameters, memory and the last layer stay in float32"""
    remat: bool = False
    """read a minibatch in eight pieces, each once more in the backward pass: less memory, more time"""
    num_devices: int = 0
    """devices that share the environments, or the seeds if these divide evenly; 0: all there are"""
    distributed: bool = False
    """train on several hosts together, found by the cluster's variables (SLURM) or by the next three flags"""
    coordinator_address: str = ""
    """HOST:PORT of process 0, any port that is free there"""
    num_processes: int | None = None
    """processes that train together"""
    process_id: int | None = None
    """number of this process, from 0"""
    deterministic: bool = False
    """bit-equal repetition also on GPUs, at some cost of speed (CPUs repeat bit for bit anyway)"""
    compile_cache: str = ""
    """folder that keeps compiled programs, so that the next run of the same sizes need not compile"""
    exp_name: str = SCRIPT
    """name of the experiment in the run folder's name"""
    run_dir: str = "runs"
    """folder that receives the run folder"""
    track: bool = False
    """mirror the curves to Weights & Biases, which has to be installed; WANDB_MODE=offline keeps them here"""
    wandb_project_name: str = "popgym_arcade"
    """project there"""
    wandb_entity: str = ""
    """user or team there; empty: the one that is logged in"""
    log_every: int = 5_000
    """steps between two points of the training curves"""
    eval_every: int = 50_000
    """steps between two evaluations of the greedy policy; 0: only at the end"""
    eval_episodes: int = 32
    """complete episodes of each task in one evaluation"""
    target_return: float | None = None
    """stop early when two evaluations in a row reach this return, the mean over tasks, in every seed"""
    checkpoint_every: int = 50_000
    """steps between two checkpoints; 0: only at the end"""
    save_every: int = 0
    """keep for good the first checkpoint from each multiple of so many steps on; 0: only the last three stay"""
    capture_video: bool = False
    """leave a GIF of one greedy episode of each task in the run folder (popgym_arcade ids only)"""
    resume: str = ""
    """run folder to continue from its last checkpoint"""
    from_run: str = ""
    """run folder whose arguments are this new run's, but those given beside"""

    @property
    def env_id(self) -> str:
        """The id of a task alone; of several, what stands for it in names."""
        return self.env_ids[0] if len(self.env_ids) == 1 else f"multi-{len(self.env_ids)}"

    @property
    def scales(self) -> tuple[float, ...]:
        """The factor of each task's rewards."""
        return self.reward_scales or (1.0,) * len(self.env_ids)

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks' ids, with the factor of the rewards where an id is there twice: BreakoutEasy_x1000."""
        named = zip(self.env_ids, self.scales, strict=True)
        return tuple(name if self.env_ids.count(name) == 1 else f"{name}_x{scale:g}" for name, scale in named)

    @property
    def update_size(self) -> int:
        """Steps of one rollout over all environments of a seed, T * E."""
        return self.num_envs * self.num_steps

    @property
    def minibatch_shape(self) -> tuple[int, int]:
        """Steps and environments of the sequences of a minibatch, on all devices together."""
        return self.num_steps, self.num_envs // self.num_minibatches

    @property
    def num_updates(self) -> int:
        """Rollouts of the whole training."""
        return -(-self.total_timesteps // self.update_size)

    @property
    def grid(self) -> int:
        """Steps between points where evaluations and checkpoints fall, so that a stop elsewhere does not move them."""
        return -(-self.log_every // self.update_size) * self.update_size

    def checked(self) -> "Args":
        """These arguments with `total_timesteps` rounded up to whole updates.

        Raises:
            UserError: with the flag to change and what to change it to, before anything is compiled or written.
        """
        counts = "num_seeds total_timesteps num_envs num_steps num_minibatches update_epochs hidden_size log_every"
        limits = dict.fromkeys([*counts.split(), "eval_episodes"], (1, MAX_INT))
        limits |= {"seed": (0, MAX_INT - self.num_seeds), "eval_every": (0, MAX_INT), "checkpoint_every": (0, MAX_INT)}
        limits |= dict.fromkeys("gamma vtrace_lambda learning_rate popart_beta".split(), (0, 1))
        limits |= dict.fromkeys("rho_clip c_clip reward_clip ent_coef vf_coef save_every".split(), (0, MAX_INT))
        limits |= {"max_grad_norm": (1e-6, MAX_INT), "actor_lag": (0, 1000)}
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:
                allowed = f"{low} or more" if value < low and high >= MAX_INT else f"a number from {low} to {high}"
                raise UserError(f"{flag(name)} {value}: use {allowed}")
        if self.update_size > MAX_INT:
            raise UserError(f"--num-envs * --num-steps = {self.update_size} steps: a rollout has at most {MAX_INT}")
        if self.actor_lag >= self.num_updates:
            raise UserError(f"--actor-lag {self.actor_lag}: there are {self.num_updates} updates, use less")
        self.check_tasks()
        if self.num_envs % self.num_minibatches:
            both = f"--num-minibatches {self.num_minibatches} does not divide --num-envs {self.num_envs}"
            raise UserError(f"{both}: use {nearest_divisors(self.num_envs, self.num_minibatches)}")
        check_devices(self, group=math.lcm(self.num_minibatches, len(self.env_ids)))
        if self.save_every and not 0 < self.checkpoint_every <= self.save_every:
            every = f"--save-every {self.save_every} keeps some of the checkpoints"
            raise UserError(f"{every}: use a --checkpoint-every from 1 to {self.save_every}")
        if self.save_every and self.grid > self.save_every:
            apart = f"checkpoints are {self.grid} steps apart, as --log-every has it"
            raise UserError(f"--save-every {self.save_every}: {apart}, use {self.grid} or more")
        choices = {"encoder": ("patch", "paper", "impala"), "precision": ("float32", "bfloat16")}
        choices |= {"memory": ("none", *MEMORIES), "optimizer": ("adam", "rmsprop")}
        choices |= {"value_normalization": ("none", "popart")}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise UserError(f"{flag(name)} {getattr(self, name)!r} is unknown: use one of {', '.join(known)}")
        if not self.exp_name or "/" in self.exp_name:
            raise UserError(f"--exp-name {self.exp_name!r} becomes part of a folder's name: use a word without /")
        if self.target_return is not None and not (math.isfinite(self.target_return) and self.eval_every):
            raise UserError(f"--target-return {self.target_return}: use a finite number, and an --eval-every above 0")
        env, env_params = make_env(tasks(self)[0])
        actions, observations = env.action_space(env_params), env.observation_space(env_params)
        if self.encoder == "paper" and is_pixels(observations) and observations.shape[:2] not in PAPER_LAYERS:
            raise UserError("--encoder paper reads frames of 128 or 256 px: use --encoder patch")
        if self.capture_video and not is_arcade(self):
            raise UserError(f"--capture-video films popgym_arcade ids only: leave it out with {' '.join(self.env_ids)}")
        network = make_network(self, observations, actions.n)
        params = jax.eval_shape(functools.partial(init_params, network, observations), jax.random.key(0))
        size = sum(leaf.size for leaf in jax.tree.leaves(params))
        if size > MAX_PARAMS:
            what = f"--memory {self.memory} at --hidden-size {self.hidden_size} makes {size / 1e6:.0f}M parameters"
            raise UserError(f"{what}, more than {MAX_PARAMS / 1e6:.0f}M: lower --hidden-size")
        tuples = {name: tuple(value) for name, value in vars(self).items() if isinstance(value, list)}  # can be hashed
        return dataclasses.replace(self, total_timesteps=self.num_updates * self.update_size, **tuples)

    def check_tasks(self) -> None:
        """Raises UserError unless the tasks can be played by one network, each by as many environments."""
        count = len(self.env_ids)
        if not count:
            raise UserError("--env-ids: name at least one")
        if len(self.scales) != count:
            raise UserError(f"--reward-scales: {len(self.scales)} numbers for {count} tasks, use one for each")
        if not all(math.isfinite(scale) and scale > 0 for scale in self.scales):
            raise UserError(f"--reward-scales {' '.join(map(str, self.scales))}: use numbers above 0")
        twice = [name for name in self.task_names if self.task_names.count(name) > 1]
        if twice:
            raise UserError(f"--env-ids {twice[0]} is there twice: leave it out, or use other --reward-scales")
        if self.num_envs % count:
            nearest = " or ".join(
                str(n) for n in (self.num_envs // count * count, -(-self.num_envs // count) * count) if n
            )
            raise UserError(f"--num-envs {self.num_envs} is not divided evenly over {count} tasks: use {nearest}")
        spaces_of = {}
        for task in tasks(self):
            env, env_params = make_env(task)
            actions, observations = env.action_space(env_params), env.observation_space(env_params)
            if not isinstance(actions, spaces.Discrete):
                raise UserError(
                    f"--env-ids {task.env_id} has {type(actions).__name__} actions: use ids with Discrete ones"
                )
            about = f"{jnp.dtype(observations.dtype)}{list(observations.shape)} observations, {actions.n} actions"
            spaces_of.setdefault(about, task.env_id)
        if len(spaces_of) > 1:
            told = "; ".join(f"{env_id} has {about}" for about, env_id in spaces_of.items())
            raise UserError(
                f"--env-ids: one network reads one kind of observation and gives one kind of action, but {told}"
            )


def tasks(args: Args) -> tuple[Args, ...]:
    """These arguments for each task alone."""
    each = zip(args.env_ids, args.scales, strict=True)
    return tuple(dataclasses.replace(args, env_ids=(env_id,), reward_scales=(scale,)) for env_id, scale in each)


NOWHERE = {"coordinator_address": "", "num_processes": None, "process_id": None}


def set_up(args: Args) -> None:
    """What has to be done before JAX is used: finds the other hosts, sets what the compiler is to do."""
    where = {name: getattr(args, name) for name in NOWHERE}
    given = [name for name in where if where[name] != NOWHERE[name]]
    if given and not (args.distributed and len(given) == 3):
        raise UserError(f"{flag(given[0])}: give --distributed and {', '.join(map(flag, where))} together")
    host, _, port = args.coordinator_address.rpartition(":")
    if given and not (host and port.isdigit()):
        raise UserError(f"--coordinator-address {args.coordinator_address}: write HOST:PORT")
    if given and not 0 <= args.process_id < args.num_processes:
        raise UserError(f"--process-id {args.process_id}: use a number from 0 to {args.num_processes - 1}")
    if args.compile_cache:
        jax.config.update("jax_compilation_cache_dir", args.compile_cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    if args.track:
        check_tracking()
    if args.deterministic:
        flags = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
    if args.distributed:
        try:
            hosts.join(**where)
        except (ValueError, RuntimeError) as error:
            raise UserError(f"--distributed: {str(error).splitlines()[0]}") from None


def check_tracking() -> None:
    """Raises UserError where Weights & Biases is not installed or not reached, or nobody is logged in."""
    online = os.environ.get("WANDB_MODE", "online") in ("online", "shared")
    try:
        import wandb  # here, since nothing else needs it

        logged_in = not online or wandb.login(verify=True)  # on a terminal it asks for the key
    except ImportError:
        raise UserError("--track mirrors to Weights & Biases: pip install wandb, or leave it out") from None
    except Exception as error:
        raise UserError(f"--track: {one_line(error)}; WANDB_MODE=offline needs no login") from None
    if not logged_in:
        raise UserError("--track: nobody is logged in to Weights & Biases: wandb login, or WANDB_MODE=offline")


def one_line(error: Exception) -> str:
    """An error of somebody else's in one line, with its type, since some say nothing else."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def check_devices(args: Args, group: int) -> None:
    """Refuses, by a UserError, devices that are not there, or that cannot share groups of so many environments."""
    there, count = jax.device_count(), args.num_devices or jax.device_count()
    if not 0 <= args.num_devices <= there:
        raise UserError(f"--num-devices {args.num_devices}: use a number from 1 to {there}, or 0 for all")
    groups = args.num_envs // group
    if groups % count and args.num_seeds % count:
        multiple = group * count
        below, above = args.num_envs // multiple * multiple, -(-args.num_envs // multiple) * multiple
        envs = f"{below} or {above}" if below else above
        raise UserError(
            f"{count} devices cannot share --num-envs {args.num_envs} in groups of {group}: use --num-envs {envs}, "
            f"or --num-devices {nearest_divisors(groups, count)}, or a multiple of {count} as --num-seeds"
        )


def nearest_divisors(number: int, wanted: int) -> str:
    """The divisors of `number` below and above `wanted`, which is none, as "4 or 8"."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    divisors = {*small, *(number // n for n in small)}
    nearest = [max(n for n in divisors if n < wanted), *sorted(n for n in divisors if n > wanted)[:1]]
    return " or ".join(map(str, nearest))


def flag(name: str) -> str:
    """The command line's spelling of a field of `Args`."""
    return "--" + name.replace("_", "-")


def is_arcade(args: Args) -> bool:
    """Whether all tasks are of popgym_arcade, with twins and sizes."""
    return all(env_id in popgym_arcade.REGISTERED_ENVIRONMENTS for env_id in args.env_ids)


@functools.lru_cache
def make_env(args: Args):
    """The environment and its parameters, `--env-params` replaced. Raises UserError on anything unknown."""
    known = gymnax.registered_envs
    if args.env_id not in known:
        like = difflib.get_close_matches(args.env_id, known, 3, 0.4) or sorted(known)
        raise UserError(f"--env-ids {args.env_id!r} is unknown: did you mean {' or '.join(like)}?")
    if args.partial_obs and not is_arcade(args):
        raise UserError(f"--env-ids {args.env_id} has no partially observable twin: leave --partial-obs out")
    if is_arcade(args) and args.obs_size not in (128, 256):
        raise UserError(f"--obs-size {args.obs_size}: use 128 or 256")
    twin = {"partial_obs": args.partial_obs, "obs_size": args.obs_size} if is_arcade(args) else {}
    if args.env_id == "MNISTBandit-bsuite":
        raise UserError(f"--env-ids {args.env_id} downloads data when it is made: use another id")
    env, env_params = gymnax.make(args.env_id, **twin)
    fields = {field.name: getattr(env_params, field.name) for field in dataclasses.fields(env_params)}
    for item in args.env_params:
        name, _, text = item.partition("=")
        if name not in fields:
            raise UserError(f"--env-params {item!r}: {args.env_id} has no such parameter; it has {', '.join(fields)}")
        try:
            env_params = env_params.replace(**{name: read_like(fields[name], text)})
        except (ValueError, SyntaxError, TypeError):
            kind = type(fields[name]).__name__
            raise UserError(f"--env-params {item!r}: write {name} like {fields[name]}, its {kind} now") from None
    return env, env_params


def read_like(old: Any, text: str) -> Any:
    """What `text` writes as a Python literal, if it is of the type and shape of `old`; else a ValueError."""
    new, like = np.asarray(ast.literal_eval(text)), np.asarray(old)
    fits = new.shape == like.shape and np.can_cast(new.dtype, like.dtype, "same_kind") and np.isfinite(new).all()
    if not fits or (like.dtype.kind in "iu" and np.abs(new).max() > MAX_INT):
        raise ValueError
    return jnp.asarray(new, old.dtype) if hasattr(old, "dtype") else type(old)(new.tolist())


# ----------------------------------------------------------------------------------------------------------- network


PAPER_LAYERS = {  # frame: (features, kernel, stride, pooling window, pooling stride); POPGym Arcade, arXiv:2503.01450
    (128, 128): ((64, 5, 2, 2, 2), (128, 3, 2, 2, 2), (256, 3, 2, 3, 1), (512, 1, 1, 1, 1)),
    (256, 256): ((64, 7, 2, 2, 2), (128, 3, 2, 2, 2), (256, 3, 2, 2, 2), (512, 3, 2, 1, 1)),
}
MAX_PARAMS = 50_000_000  # memax's Spherical grows with the cube of the hidden size


def is_pixels(observation) -> bool:
    """Whether an observation (or its space) is a picture: uint8 [side, side, channels] with side >= 64."""
    return observation.dtype == jnp.uint8 and len(observation.shape) == 3 and observation.shape[0] >= 64


def merge(x: jax.Array, side: int) -> jax.Array:
    """[N, h, w, c] -> [N, h / side, w / side, side * side * c]: neighbours side by side, by reshape alone."""
    n, h, w, c = x.shape
    x = x.reshape(n, h // side, side, w // side, side, c).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(n, h // side, w // side, side * side * c)


class Encoder(nn.Module):
    """Observations [N, ...] -> features in float32, [N, 512] of pixels and [N, width] of anything else."""

    kind: str  # of pixels "patch" or "paper", of anything else "dense"
    dtype: Any
    width: int = 256  # of the two layers that read anything but pixels
    norm: bool = True  # these have LayerNorm and leaky ReLU, else tanh
    kernel_init: Any = nn.linear.default_kernel_init

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        if self.kind == "dense":
            x = self.read_layer(obs.reshape(obs.shape[0], -1).astype(jnp.float32))
            return self.read_layer(x).astype(jnp.float32)
        read = self.read_paper if self.kind == "paper" else self.read_patches
        return read(obs).astype(jnp.float32)

    @nn.nowrap
    def read_layer(self, x: jax.Array) -> jax.Array:
        x = self.dense(self.width)(x)
        return nn.leaky_relu(nn.LayerNorm(dtype=self.dtype)(x)) if self.norm else nn.tanh(x)

    @nn.nowrap
    def dense(self, features: int, use_bias: bool = True) -> nn.Dense:
        return nn.Dense(features, use_bias, self.dtype, kernel_init=self.kernel_init)

    @nn.nowrap
    def read_paper(self, obs: jax.Array) -> jax.Array:
        x = obs if obs.dtype == jnp.uint8 else obs.astype(self.dtype) / 255
        options = {"dtype": self.dtype, "promote_dtype": keep_bytes, "kernel_init": self.kernel_init}
        for features, kernel, stride, *pool in PAPER_LAYERS[obs.shape[1:3]]:
            options["conv_general_dilated"] = functools.partial(convolve, pool=tuple(pool))
            x = nn.leaky_relu(nn.Conv(features, (kernel, kernel), stride, "VALID", **options)(x))
        return x.reshape(obs.shape[0], -1)

    @nn.nowrap
    def read_patches(self, obs: jax.Array) -> jax.Array:
        # 16 x 16 patches whatever the size; the bytes are rearranged before they become four times as many
        patch = -(-max(obs.shape[1:3]) // 16)
        rows, columns = (16 * patch - side for side in obs.shape[1:3])
        x = merge(jnp.pad(obs, ((0, 0), (0, rows), (0, columns), (0, 0))), patch).astype(self.dtype) / 255
        # most of a frame never changes: without its mean and scale, what does change is not drowned by the rest
        x = self.dense(32, use_bias=False)(x)
        x = nn.leaky_relu(nn.InstanceNorm(dtype=self.dtype)(x))
        x = nn.leaky_relu(self.dense(64)(merge(x, 2)))
        return nn.leaky_relu(self.dense(512)(x.reshape(obs.shape[0], -1)))


PIECES = 8  # in which --remat reads a batch


def in_pieces(encode: nn.Module, obs: jax.Array) -> jax.Array:
    """`encode(obs)` of obs[N, ...], read N / 8 at a time (fewer pieces if 8 does not divide N): features [N, F].

    The backward pass reads each piece once more, so that what the encoder computes within is kept of one piece only.
    Every device has its part of each piece.
    """

    def read(encode, _, piece):
        return None, nn.remat(lambda encode, piece: encode(piece))(encode, piece)

    pieces = math.gcd(len(obs), PIECES)
    parts = obs.reshape(-1, pieces, *obs.shape[1:]).swapaxes(0, 1)
    _, x = nn.scan(read, variable_broadcast="params", split_rngs={"params": False})(encode, None, parts)
    return x.swapaxes(0, 1).reshape(len(obs), -1)


class MinGRU(GRAS):
    """h_t = (1 - z_t) h_{t-1} + z_t W_h x_t with z_t = sigmoid(W_z x_t), as an associative scan.

    Feng et al. 2024, "Were RNNs All We Needed?", https://arxiv.org/abs/2410.01201
    """

    algebra: BinaryAlgebra
    scan: Any
    gate: eqx.nn.Linear
    candidate: eqx.nn.Linear

    def __init__(self, hidden_size: int, key: jax.Array):
        gate_key, candidate_key = jax.random.split(key)
        self.algebra = Resettable(S6Semigroup(hidden_size))  # h -> a h + b
        self.scan = semigroup_scan
        self.gate = eqx.nn.Linear(hidden_size, hidden_size, key=gate_key)
        self.candidate = eqx.nn.Linear(hidden_size, hidden_size, key=candidate_key)

    def forward_map(self, x, key=None):
        features, start = x
        z = jax.nn.sigmoid(self.gate(features))
        return (1 - z, z * self.candidate(features)), start

    def backward_map(self, h, x, key=None):
        (_, hidden), _ = h
        return hidden


def memax_layer(name: str):
    """The maker of one of memax's layers, (hidden_size, window, key) -> layer. Attention looks back `window` steps."""

    def make(hidden_size: int, window: int, key: jax.Array):
        kwargs = {name: {"window_size": window}} if name.startswith("Attention") else {}
        model = memax.get_residual_memory_model(
            name, 1, hidden_size, 1, num_layers=1, key=key, layer_kwargs=kwargs, model_kwargs={}
        )
        return model.layers[0]

    return make


MEMAX_NAMES = (
    "MLP NMax FART FWP DeltaNet DeltaProduct GDN FFM S6 PSpherical LRU LinearRNN Stack Attention Attention-RoPE"
    " Attention-ALiBi GRU Elman ElmanReLU Spherical MGU LSTM"
)
# Your own memory is a memax `GRAS` and one line here: name -> function (hidden_size, window, key) -> layer.
MEMORIES = {"MinGRU": lambda hidden_size, window, key: MinGRU(hidden_size, key)}
MEMORIES |= {name: memax_layer(name) for name in MEMAX_NAMES.split()}
# three of memax's by other means
MEMORIES["PSpherical"] = lambda hidden_size, window, key: PSpherical(round(hidden_size**0.5), hidden_size, key)
MEMORIES["Spherical"] = lambda hidden_size, window, key: Spherical(hidden_size, hidden_size, key)
MEMORIES["Stack"] = lambda hidden_size, window, key: Stack(hidden_size, 4, key)


def build_memory(name: str, sizes: tuple[int, int, int], window: int, num_layers: int, key: jax.Array) -> ResidualModel:
    """An equinox model of residual memory layers with fresh weights; `sizes` are those of input, output and hidden."""

    # memax 0.1.1 reuses keys within and between layers: each layer is made from a key of its own, and a raw one
    def one_layer(key):
        outer_key, layer_key = jax.random.key_data(jax.random.split(key))
        make_layer = lambda recurrent_size, key: MEMORIES[name](recurrent_size, window, layer_key)  # noqa: E731
        return ResidualModel(make_layer, *sizes, num_layers=1, key=outer_key)

    models = [one_layer(layer_key) for layer_key in jax.random.split(key, num_layers)]
    parts = [model.layers[0] for model in models], [model.ff[0] for model in models]
    return eqx.tree_at(lambda model: (model.layers, model.ff), models[0], parts)


@functools.lru_cache
def memory_skeleton(*config):
    """`build_memory(*config, key)` as shapes of the weights and the model without them; computes nothing."""
    with jax.ensure_compile_time_eval():
        model = eqx.filter_eval_shape(build_memory, *config, jax.random.key(0))
    return eqx.partition(model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))


class Memory(nn.Module):
    """Two residual layers of a memory: x[T, B, F], start[T, B] -> y[T, B, 256], in float32.

    Wraps an equinox model, whose arrays are this module's parameters under the names they have there.
    """

    model: str
    input_size: int
    hidden_size: int
    window: int

    @nn.nowrap
    def config(self):
        return self.model, (self.input_size, 256, self.hidden_size), self.window, 2

    @nn.nowrap
    def initial_carry(self, batch: int) -> Any:
        """Memory of `batch` fresh sequences, leaves [B, ...]; the first step of each has to have start = True."""
        shapes, rest = memory_skeleton(*self.config())
        # any weights do: where a start flag is set, the model computes its first state from the real ones
        model = eqx.combine(jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), shapes), rest)
        return memax.add_batch_dim(model.initialize_carry(None), batch)

    @nn.compact
    def __call__(self, carry: Any, x: jax.Array, start: jax.Array) -> tuple[Any, jax.Array]:
        shapes, rest = memory_skeleton(*self.config())
        named_shapes, treedef = jax.tree_util.tree_flatten_with_path(shapes)
        names = [leaf_name(path) for path, _ in named_shapes]

        def init_weights():
            model = build_memory(*self.config(), self.make_rng("params"))
            return dict(zip(names, jax.tree.leaves(eqx.filter(model, eqx.is_array)), strict=True))

        # not self.param, which traces the initialiser again at every call
        weights = self.variable("params", "weights", init_weights).value
        model = eqx.combine(jax.tree.unflatten(treedef, [weights[name] for name in names]), rest)

        def one_sequence(carry, x, start):
            carries, y = model(carry, (x, start))
            return model.latest_recurrent_state(carries), y

        return jax.vmap(one_sequence, in_axes=(0, 1, 1), out_axes=(0, 1))(carry, x, start)


def leaf_name(path) -> str:
    """A leaf's place in its tree, as "layers.0.gate.weight"."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


class ResidualEncoder(nn.Module):
    """Frames [N, h, w, 3] -> 256 features, float32: IMPALA's residual network (figure 3 of the paper, at the right)."""

    dtype: Any

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        x = obs.astype(self.dtype) / 255
        for features in (16, 32, 32):
            x = self.pool(self.convolution(features)(pad(x, 0.0)))
            for _ in range(2):
                inner = self.convolution(features)(pad(nn.relu(x), 0.0))
                x += self.convolution(features)(pad(nn.relu(inner), 0.0))
        x = nn.relu(x).reshape(obs.shape[0], -1)
        return nn.relu(nn.Dense(256, dtype=self.dtype)(x)).astype(jnp.float32)

    @nn.nowrap
    def convolution(self, features: int) -> nn.Conv:
        return nn.Conv(features, (3, 3), padding="VALID", dtype=self.dtype, conv_general_dilated=convolve)

    @nn.nowrap
    def pool(self, x: jax.Array) -> jax.Array:
        return max_pool(pad(x, -jnp.inf), 3, 2)


def pad(x: jax.Array, value: float) -> jax.Array:
    """x[N, h, w, c] with one more row and column of `value` at every side."""
    return jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=value)


@struct.dataclass
class PopArt:
    """Moving mean and variance of each task's value targets, float32 [N], in the units of the rewards learned from."""

    mean: jax.Array
    variance: jax.Array
    updates: jax.Array  # int32, so far

    @property
    def scale(self) -> jax.Array:
        """The targets' standard deviation [N], kept within [1e-4, 1e6] (Hessel et al. 2019)."""
        return jnp.sqrt(jnp.clip(self.variance, 1e-8, 1e12))


def fresh_popart(count: int) -> PopArt:
    """Mean 0 and variance 1, until the first update."""
    return PopArt(jnp.zeros(count), jnp.ones(count), jnp.zeros(count, jnp.int32))


@struct.dataclass
class Output:
    """What the network says of each observation: logits[T, B, A], and as many values as there are tasks, float32."""

    logits: jax.Array
    normalized: jax.Array  # [T, B, N], what the last layer gives: (value - mean) / scale of the task
    values: jax.Array  # [T, B, N], in the units of the rewards

    @property
    def value(self) -> jax.Array:
        """[T, B]: that of a task alone. Raises ValueError for a network of several (`select_task`)."""
        if self.values.shape[-1] > 1:
            raise ValueError(f"values of {self.values.shape[-1]} tasks: choose one with select_task")
        return self.values[..., 0]


class ActorCritic(nn.Module):
    """One network for all tasks: encoder, memory or hidden layers, then a policy and each task's value.

    Nothing tells it which task it sees but the observations.
    """

    args: Args
    num_actions: int
    pixels: bool

    def setup(self):
        args, dtype, orthogonal = self.args, jnp.dtype(self.args.precision), nn.initializers.orthogonal
        kind, init = args.encoder if self.pixels else "dense", orthogonal(math.sqrt(2))
        residual = kind == "impala"
        encoder = ResidualEncoder if residual else functools.partial(Encoder, kind, norm=False, kernel_init=init)
        self.encode = encoder(dtype=dtype)
        if args.memory == "none":
            layers = [nn.Dense(args.hidden_size, dtype=dtype, kernel_init=init) for _ in range(2)]
            self.hidden = [(layer, nn.LayerNorm(dtype=dtype)) for layer in layers]
        else:
            features = 512 if self.pixels and not residual else 256
            input_size = features + args.prev_action * (self.num_actions + residual)
            self.remember = Memory(args.memory, input_size, args.hidden_size, window=args.num_steps)
            self.norm = nn.LayerNorm()
        self.policy = nn.Dense(self.num_actions, kernel_init=orthogonal(0.01))
        # Values begin at 0, so that the first targets, and PopArt's first statistics, are those of the rewards alone
        self.value = nn.Dense(len(args.env_ids), kernel_init=nn.initializers.zeros)
        self.popart = self.variable("popart", "statistics", fresh_popart, len(args.env_ids))

    def __call__(self, carry: Any, obs: jax.Array, prev_action: jax.Array, start: jax.Array, prev_reward: jax.Array):
        steps, batch = start.shape
        x = obs.swapaxes(0, 1).reshape(batch * steps, *obs.shape[2:])  # B first, which devices share
        x = in_pieces(self.encode, x) if self.args.remat else self.encode(x)
        x = x.reshape(batch, steps, -1).swapaxes(0, 1)  # [T, B, F]
        if self.args.prev_action:  # an episode's first observation follows no action: all zeros
            x = jnp.concatenate([x, jax.nn.one_hot(jnp.where(start, -1, prev_action), self.num_actions)], axis=-1)
        if self.args.prev_action and isinstance(self.encode, ResidualEncoder):
            x = jnp.concatenate([x, jnp.where(start, 0.0, prev_reward.clip(-1, 1))[..., None]], axis=-1)
        if self.args.memory == "none":
            for layer, norm in self.hidden:
                x = nn.leaky_relu(norm(layer(x)))
            x = x.astype(jnp.float32)
        else:
            carry, x = self.remember(carry, x, start)
            x = nn.leaky_relu(self.norm(x))
        normalized, popart = self.value(x), self.popart.value
        return carry, Output(self.policy(x), normalized, popart.scale * normalized + popart.mean)


def make_network(args: Args, observation_space, num_actions: int) -> ActorCritic:
    """The network that these arguments describe; of the space only `shape` and `dtype` are read."""
    return ActorCritic(args, num_actions, is_pixels(observation_space))


def initial_carry(network: ActorCritic, batch: int) -> Any:
    """Memory of `batch` fresh sequences, leaves [B, ...]; () without a memory."""
    return () if network.args.memory == "none" else network.bind({}, mutable="popart").remember.initial_carry(batch)


@functools.partial(jax.jit, static_argnums=0, inline=True)  # memories take long to trace: once per shape
def forward(network: ActorCritic, params, carry, obs, prev_action, start, prev_reward=None) -> tuple[Any, Output]:
    """Reads obs[T, B, ...], prev_action[T, B] int32 and start[T, B] bool with carry[B, ...]: (last carry, Output).

    prev_reward[T, B], as it was learned from, is read with `--encoder impala` alone, clipped to [-1, 1]; None stands
    for zeros.
    """
    prev_reward = jnp.zeros(start.shape) if prev_reward is None else prev_reward
    return network.apply(params, carry, obs, prev_action, start, prev_reward)


def blank_inputs(network: ActorCritic, observation_space, steps: int, batch: int) -> tuple:
    """What `forward` reads, here of [steps, batch] observations that show nothing: the inputs in order."""
    obs = jnp.zeros((steps, batch, *observation_space.shape), observation_space.dtype)
    prev_action, start = jnp.zeros((steps, batch), jnp.int32), jnp.ones((steps, batch), bool)
    return initial_carry(network, batch), obs, prev_action, start, jnp.zeros((steps, batch))


def init_params(network: ActorCritic, observation_space, key: jax.Array):
    """Fresh parameters, float32: {"params": weights, "popart": {"statistics": PopArt}}."""
    return network.init(key, *blank_inputs(network, observation_space, 1, 1))


def select_task(args: Args, params, index: int) -> tuple[Args, Any]:
    """The agent of one task: arguments with its id alone, parameters with its value alone. Seed axes stay."""
    of_values = ("params.value.", "popart.")
    keep = lambda path, x: x[..., index : index + 1] if leaf_name(path).startswith(of_values) else x  # noqa: E731
    return tasks(args)[index], jax.tree_util.tree_map_with_path(keep, params)


# ----------------------------------------------------------------------------------------------------------- devices


OF_ENVS = ("actor.", "replay.experience.", "reward_sum")  # of a TrainState: leaves with an axis of environments


def device_mesh(args: Args) -> Mesh:
    """The devices of a run in a row, whose axis has the name of what they share: "seeds" or "envs"."""
    count = args.num_devices or jax.device_count()
    shared = "seeds" if args.num_seeds > 1 and args.num_seeds % count == 0 else "envs"
    return jax.make_mesh((count,), (shared,), (AxisType.Auto,), devices=jax.devices()[:count])


def on_host(tree):
    """`tree`, which may lie on several hosts, as host arrays on each of them."""
    return multihost_utils.process_allgather(tree, tiled=True) if jax.process_count() > 1 else jax.device_get(tree)


def everywhere(args: Args, key: jax.Array) -> jax.Array:
    """A random key, or several, on every device of the run."""
    data = np.asarray(jax.random.key_data(key))
    return jax.random.wrap_key_data(jax.device_put(data, NamedSharding(device_mesh(args), P())))


def shardings(args: Args, state: "TrainState"):
    """Where the leaves of a TrainState are to lie: divided by seeds or environments, or the same on every device."""
    mesh = device_mesh(args)
    seeds = () if args.num_seeds == 1 else (None,)  # a leading axis that the devices do not share

    def one(path, x) -> NamedSharding:
        if mesh.axis_names == ("seeds",):
            return NamedSharding(mesh, P("seeds"))
        of_envs = leaf_name(path).startswith(OF_ENVS) and x.ndim > len(seeds)
        return NamedSharding(mesh, P(*seeds, "envs") if of_envs else P())

    return jax.tree_util.tree_map_with_path(one, state)


def spread(args: Args, tree):
    """`tree` with the first axis of its leaves divided over the devices, if it can be."""
    mesh = device_mesh(args)
    divide = lambda x: x.ndim and x.shape[0] % mesh.size == 0  # noqa: E731
    if mesh.size == 1 or mesh.axis_names == ("seeds",):
        return tree
    sharding = NamedSharding(mesh, P("envs"))
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, sharding) if divide(x) else x, tree)


def by_device(args: Args, function, num_envs: int):
    """`function(params, *of_envs)`, in which every device looks at its own environments, [num_envs, ...] in `of_envs`.

    So what depends on whether any of them does something takes no word from the other devices.
    """
    mesh = device_mesh(args)
    if mesh.size == 1 or mesh.axis_names == ("seeds",) or num_envs % mesh.size:
        return function
    own = lambda params, of_envs: function(params, *of_envs)  # noqa: E731
    mapped = jax.shard_map(own, mesh=mesh, in_specs=(P(), P("envs")), out_specs=P("envs"), check_vma=False)
    return lambda params, *of_envs: mapped(params, of_envs)


def pick(args: Args, tree, envs: jax.Array, axis: int = 1):
    """`x[:, envs]` of each leaf, the environments being its axis 1 (or `axis`): [B] numbers in the order of devices.

    Every device has the environments that it looks for: nothing travels.
    """
    mesh = device_mesh(args)

    def own(tree, envs):
        first = jax.lax.axis_index("envs") * (args.num_envs // mesh.size) if mesh.size > 1 else 0
        return jax.tree.map(lambda x: jnp.take(x, envs - first, axis, mode="clip"), tree)

    if mesh.size == 1 or mesh.axis_names == ("seeds",):
        return jax.tree.map(lambda x: jnp.take(x, envs, axis, mode="clip"), tree)
    spec = P(*[None] * axis, "envs")
    return jax.shard_map(own, mesh=mesh, in_specs=(spec, P("envs")), out_specs=spec)(tree, envs)


# --------------------------------------------------------------------------------------------------------- algorithm


def shuffled(key: jax.Array, envs: int, steps: int, minibatches: int) -> tuple[jax.Array, jax.Array]:
    """Each step of each environment once, in random minibatches: steps and environments, [minibatches, B] int32.

    A minibatch has as many of each group of neighbouring environments, groups as small as can be: so devices that hold
    groups have equal shares of it, however many devices there are.
    """
    group = minibatches // math.gcd(minibatches, steps)
    first = group * jnp.arange(envs // group)[:, None]
    order = random_order(key, envs // group, group * steps).reshape(envs // group, minibatches, -1).swapaxes(0, 1)
    return (order % steps).reshape(minibatches, -1), (first + order // steps).reshape(minibatches, -1)


def random_order(key: jax.Array, rows: int, length: int) -> jax.Array:
    """[rows, length] int32: the numbers 0 ... length - 1 in an own random order in each row.

    `jax.random.permutation` sorts pairs, which XLA's CPU backend does four to nine times slower than plain numbers.
    Here the high bits of each number are random, the low ones say which it is; with 16 random bits or more, ties are
    rare.
    """
    bits = (length - 1).bit_length()
    if bits > 16:
        numbers = jnp.broadcast_to(jnp.arange(length), (rows, length))
        return jax.random.permutation(key, numbers, axis=1, independent=True)
    marked = jax.random.bits(key, (rows, length)) >> bits << bits | jnp.arange(length, dtype=jnp.uint32)
    return (jnp.sort(marked, axis=1) & ((1 << bits) - 1)).astype(jnp.int32)


def choose(key: jax.Array, logits: jax.Array, policy: jax.Array) -> jax.Array:
    """Actions [E] int32 of a policy (SAMPLE, GREEDY or RANDOM) on logits[E, A]."""
    distribution = distrax.Categorical(logits=jnp.where(policy == RANDOM, 0.0, logits))
    return jnp.where(policy == GREEDY, distribution.mode(), distribution.sample(seed=key))


def of_task(values: jax.Array, task: jax.Array) -> jax.Array:
    """Of values[T, B, N] those of the tasks [B] that are played: [T, B]."""
    return jnp.take_along_axis(values, jnp.broadcast_to(task[:, None], (*values.shape[:2], 1)), axis=2)[..., 0]


def vtrace(args: Args, rho: jax.Array, steps: "Transition", value: jax.Array, last_value: jax.Array):
    """Targets of the values and advantages, both [T, B] (Espeholt et al. 2018, equation 1 and section 4.2).

    rho[T, B] are the importance weights pi(a) / mu(a), value[T, B] is that of each step's observation and last_value[B]
    that of the one after them. `target - value` sums the errors of this step and all later ones, each times its own
    min(rho, rho_clip), passed back through factors gamma * lambda * min(rho, c_clip). A terminated step has no value
    after it, a truncated one `final_value`; nothing is passed back across either.
    """
    cut, done = jnp.minimum(rho, args.rho_clip), steps.terminated | steps.truncated

    def error(following):
        """r_t + gamma v - V(s_t), v being what follows where the episode goes on."""
        following = jnp.where(steps.truncated, steps.final_value, following)
        return steps.reward + args.gamma * jnp.where(steps.terminated, 0.0, following) - value

    def backward(later, now):
        correction, factor = now
        correction += factor * later
        return correction, correction

    next_value = jnp.concatenate([value[1:], last_value[None]])
    factor = args.gamma * args.vtrace_lambda * jnp.where(done, 0.0, jnp.minimum(rho, args.c_clip))
    scanned = cut * error(next_value), factor
    correction = jax.lax.scan(backward, jnp.zeros_like(last_value), scanned, reverse=True)[1]
    later = jnp.concatenate([correction[1:], jnp.zeros_like(last_value)[None]])
    return value + correction, cut * error(next_value + args.vtrace_lambda * later)


def adapted(popart: PopArt, target: jax.Array, task: jax.Array, beta: float) -> PopArt:
    """The statistics after a step towards those of target[T, B]; a task that is absent keeps its own.

    A step is beta or, as long as that is larger, what makes them averages over all updates so far; the first update
    leaves nothing of what they were. They are what moving averages of the first two moments give, the variance being
    their difference (Hessel et al. 2019, section 3), but without that difference, which float32 loses where the mean is
    a thousand deviations:
    mean' = mean + step (m - mean), variance' = (1 - step) (variance + step (m - mean)^2) + step v.
    """
    played = jax.nn.one_hot(task, len(popart.mean))  # [B, N]
    share = played / jnp.maximum(played.sum(axis=0), 1)
    present = played.any(axis=0)
    step = present * jnp.maximum(beta, 1 / (popart.updates + 1))
    mean = (target.mean(axis=0)[:, None] * share).sum(axis=0)
    variance = (jnp.square(target - mean[task]).mean(axis=0)[:, None] * share).sum(axis=0)
    moved = mean - popart.mean
    return PopArt(
        mean=popart.mean + step * moved,
        variance=(1 - step) * (popart.variance + step * jnp.square(moved)) + step * variance,
        updates=popart.updates + present,
    )


def in_new_units(normalized: jax.Array, old: PopArt, new: PopArt) -> jax.Array:
    """Normalised values [..., N] of the same values under new statistics; unchanged for a task that was absent."""
    return normalized * (old.scale / new.scale) + (old.mean - new.mean) / new.scale


def preserved(head: dict, old: PopArt, new: PopArt) -> dict:
    """The value head, kernel [H, N] and bias [N], rescaled so that all values stay what they were."""
    return {"kernel": head["kernel"] * (old.scale / new.scale), "bias": in_new_units(head["bias"], old, new)}


def impala_loss(args: Args, output: Output, popart: PopArt, batch: "Transition", task: jax.Array):
    """IMPALA's loss, means over [T, B], what is logged of it, and the statistics with this minibatch's targets.

    `output` has one step more than `batch`; `popart` are the statistics before. Advantages and value errors are in
    units of each task's scale after.
    """
    values = jax.lax.stop_gradient(of_task(output.values, task))  # [T + 1, B]
    distribution = distrax.Categorical(logits=output.logits[:-1])
    log_prob = distribution.log_prob(batch.action)
    rho = jnp.exp(jax.lax.stop_gradient(log_prob) - batch.log_prob)
    target, advantage = vtrace(args, rho, batch, values[:-1], values[-1])
    new = adapted(popart, target, task, args.popart_beta) if args.value_normalization == "popart" else popart
    scale = new.scale[task]  # [B]
    policy_loss = -(advantage / scale * log_prob).mean()
    normalized = of_task(in_new_units(output.normalized, popart, new), task)[:-1]
    value_loss = 0.5 * jnp.square(normalized - (target - new.mean[task]) / scale).mean()
    entropy = distribution.entropy().mean()
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "rho": rho.mean(),
        "rho_clipped": (rho > args.rho_clip).mean(),
    }
    return policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss, (metrics, new)


def explained_variance(value: jax.Array, target: jax.Array) -> jax.Array:
    """1 - Var[target - value] / Var[target]: 1 is perfect, 0 no better than a constant; nan for a constant target."""
    return jnp.where(target.var() > 0, 1 - (target - value).var() / target.var(), jnp.nan)


def learning_rate_at(args: Args, update: jax.Array) -> jax.Array:
    """Learning rate of a rollout; `update` counts the rollouts before it."""
    return args.learning_rate * (1 - update / args.num_updates if args.anneal_lr else 1.0)


@struct.dataclass
class Actor:
    """Environments being played and the memory of their player, [E, ...]: environment e plays task e % N."""

    env_state: Any  # of several tasks a tuple with the states of each
    obs: jax.Array
    carry: Any  # the memory before obs is read
    prev_action: jax.Array  # int32
    prev_reward: jax.Array  # as it is learned from
    start: jax.Array  # bool
    episode_return: jax.Array  # float32, of the episode under way, in the game's own units
    episode_length: jax.Array  # int32
    key: jax.Array


@struct.dataclass
class Transition:
    """One step of all environments, [E, ...]; a rollout stacks them to [T, E, ...]."""

    obs: jax.Array
    prev_action: jax.Array
    prev_reward: jax.Array
    start: jax.Array
    action: jax.Array
    log_prob: jax.Array  # of the action
    value: jax.Array  # of obs
    reward: jax.Array  # to learn from: scaled, and clipped
    terminated: jax.Array
    truncated: jax.Array
    final_value: jax.Array  # of the observation that a truncated episode ended with, else 0
    episode_return: jax.Array  # up to and with this step, in the game's own units
    episode_length: jax.Array


@struct.dataclass
class TrainState:
    """Everything that training goes on from."""

    params: Any
    past: Any  # the parameters before each of the last `actor_lag` updates, [actor_lag, ...], the oldest first
    opt_state: Any
    actor: Actor
    key: jax.Array
    update: jax.Array  # int32, rollouts so far


@struct.dataclass
class Learner:
    """What changes from one minibatch to the next."""

    params: Any
    opt_state: Any


def inputs_of(met: Actor | Transition) -> tuple:
    """What `forward` reads."""
    return met.obs, met.prev_action, met.start, met.prev_reward


def together(parts: list) -> Any:
    """What each task has of one structure, [E / N, ...], as [E, ...]: environment e is one of task e % N.

    So each of the devices, which have neighbouring environments, has as many of every task.
    """
    mix = lambda *arrays: jnp.stack(arrays, axis=1).reshape(-1, *arrays[0].shape[1:])  # noqa: E731
    return jax.tree.map(mix, *parts) if len(parts) > 1 else parts[0]


def bundle(parts: list) -> Any:
    """What each task has, each in its own structure: a tuple, or the one thing of a task alone."""
    return tuple(parts) if len(parts) > 1 else parts[0]


def make_actor(args: Args):
    """The network, begin(key, num_envs) -> Actor, act(params, actor, policy, learner) -> (Actor, Transition, info).

    `num_envs` is that of each task. `learner` are the parameters that value what a truncated episode ended with: None
    stands for `params`, those that play. `info` is the step's, of several tasks a tuple.
    """
    count = len(args.env_ids)
    envs = [make_env(task) for task in tasks(args)]
    network = make_network(args, envs[0][0].observation_space(envs[0][1]), envs[0][0].action_space(envs[0][1]).n)

    def begin(key: jax.Array, num_envs: int) -> Actor:
        key, *reset_keys = jax.random.split(key, 1 + count)
        found = [
            jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(reset_key, num_envs), env_params)
            for (env, env_params), reset_key in zip(envs, reset_keys, strict=True)
        ]
        num_envs *= count
        return Actor(
            env_state=bundle([env_state for _, env_state in found]),
            obs=together([obs for obs, _ in found]),
            carry=initial_carry(network, num_envs),
            prev_action=jnp.zeros(num_envs, jnp.int32),
            prev_reward=jnp.zeros(num_envs),
            start=jnp.ones(num_envs, bool),
            episode_return=jnp.zeros(num_envs),
            episode_length=jnp.zeros(num_envs, jnp.int32),
            key=key,
        )

    def read(params, carry, inputs, task):
        """One step for all tasks: the next carry, logits [E, A] and the values [E] of their own tasks."""
        carry, output = forward(network, params, carry, *(x[None] for x in inputs))
        return carry, output.logits[0], of_task(output.values, task)[0]

    def step(key, env_state, action):
        """One step of all environments: (obs, reward, terminated, truncated) [E], each task's states, list of infos."""
        states = env_state if count > 1 else (env_state,)
        met, stepped, infos = [], [], []
        for (env, env_params), env_key, state, chosen in zip(
            envs, jax.random.split(key, count), states, action.reshape(-1, count).T, strict=True
        ):
            obs, state, reward, terminated, truncated, info = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
                jax.random.split(env_key, len(chosen)), state, chosen, env_params
            )
            met.append((obs, reward.astype(jnp.float32), terminated.astype(bool), truncated.astype(bool)))
            stepped.append(state)
            infos.append(info)
        return together(met), bundle(stepped), infos

    def final_values(params, carry, infos, action, reward, truncated, task):
        """[E]: values of the observations that truncated episodes ended with; costs nothing where none did."""

        def draw_and_read(finals):
            drawn = [
                jax.vmap(env.get_obs)(final) if "final_state" in info else final
                for (env, _), final, info in zip(envs, finals, infos, strict=True)
            ]
            inputs = together(drawn), action, jnp.zeros_like(truncated), reward
            return jnp.where(truncated, read(params, carry, inputs, task)[2], 0.0)

        # an operand of the cond is computed at every step: hand it the state, not the frame, where a state is known
        finals = [info["final_state"] if "final_state" in info else info["final_observation"] for info in infos]
        somewhere = truncated.any()
        if args.num_seeds > 1:  # a predicate that differs between seeds would turn the cond into a select
            somewhere = jax.lax.pmax(somewhere.astype(jnp.int32), "seed") > 0
        return jax.lax.cond(somewhere, draw_and_read, lambda _: jnp.zeros(truncated.shape), finals)

    def act(params, actor: Actor, policy, learner=None) -> tuple[Actor, Transition, Any]:
        task = jnp.arange(len(actor.start)) % count  # [E]
        key, action_key, step_key = jax.random.split(actor.key, 3)
        carry, logits, value = read(params, actor.carry, inputs_of(actor), task)
        action = choose(action_key, logits, policy)
        (obs, reward, terminated, truncated), env_state, infos = step(step_key, actor.env_state, action)
        truncated = truncated & ~terminated  # some gymnax ids set both: the natural end wins
        done = terminated | truncated
        learned_reward = jnp.array(args.scales)[task] * reward
        if args.reward_clip:
            learned_reward = jnp.clip(learned_reward, -args.reward_clip, args.reward_clip)
        learner = params if learner is None else learner
        transition = Transition(
            obs=actor.obs,
            prev_action=actor.prev_action,
            prev_reward=actor.prev_reward,
            start=actor.start,
            action=action,
            log_prob=distrax.Categorical(logits=logits).log_prob(action),
            value=value,
            reward=learned_reward,
            terminated=terminated,
            truncated=truncated,
            final_value=by_device(args, final_values, len(action) // count)(
                learner, carry, infos, action, learned_reward, truncated, task
            ),
            episode_return=actor.episode_return + reward,
            episode_length=actor.episode_length + 1,
        )
        actor = Actor(
            env_state=env_state,
            obs=obs,
            carry=carry,
            prev_action=action,
            prev_reward=learned_reward,
            start=done,
            episode_return=jnp.where(done, 0, transition.episode_return),
            episode_length=jnp.where(done, 0, transition.episode_length),
            key=key,
        )
        return actor, transition, bundle(infos)

    return network, begin, act


def task_metrics(args: Args, rollout: Transition) -> dict:
    """What is logged of each task of a rollout, [N]: sums over its episodes, how well values foretold targets."""
    count = len(args.env_ids)
    apart = lambda x: x.reshape(len(x), args.num_envs // count, count)  # noqa: E731  # [T, E / N, N]
    early = jax.tree.map(lambda x: x[:-1], rollout)  # the last step's target would take another forward pass
    target, _ = vtrace(args, jnp.ones_like(early.value), early, early.value, rollout.value[-1])
    explained = jax.vmap(explained_variance, in_axes=2)(apart(early.value), apart(target))
    done = apart(rollout.terminated | rollout.truncated)
    return {
        "explained_variance": jnp.nan_to_num(explained),
        "explained_updates": ~jnp.isnan(explained) * 1,
        "episodes": done.sum(axis=(0, 1), dtype=jnp.int32),
        "episodic_return": (done * apart(rollout.episode_return)).sum(axis=(0, 1)),
        "episodic_length": (done * apart(rollout.episode_length)).sum(axis=(0, 1), dtype=jnp.float32),
    }


def make_train(args: Args):
    """The pure functions init(key) -> TrainState and train_chunk(state, num_updates) -> (TrainState, metrics).

    The metrics are sums over the updates, those of OF_EACH_TASK for each task [N]; `num_updates` is traced, so that one
    program serves chunks of every length. With several seeds map both over a leading axis named "seed" (`over_seeds`).
    """
    env, env_params = make_env(tasks(args)[0])
    network, begin, act = make_actor(args)
    scale_by_rms = optax.scale_by_rms(decay=0.99, eps=1e-5, eps_in_sqrt=False, bias_correction=True)
    scale_by = {"adam": optax.scale_by_adam(eps=1e-5), "rmsprop": scale_by_rms}
    optimizer = optax.chain(optax.clip_by_global_norm(args.max_grad_norm), scale_by[args.optimizer])

    def init(key: jax.Array) -> TrainState:
        key, network_key, actor_key = jax.random.split(key, 3)
        params = init_params(network, env.observation_space(env_params), network_key)
        return TrainState(
            params=params,
            past=jax.tree.map(lambda x: jnp.stack([x] * args.actor_lag), params) if args.actor_lag else (),
            opt_state=optimizer.init(params["params"]),
            actor=begin(actor_key, args.num_envs // len(args.env_ids)),
            key=key,
            update=jnp.int32(0),
        )

    def loss(weights, popart, carry, inputs, batch: Transition, task):
        """`impala_loss` of a minibatch [T, B], whose inputs have one step more."""
        params = {"params": weights, "popart": {"statistics": popart}}
        _, output = forward(network, params, carry, *inputs)
        return impala_loss(args, output, popart, batch, task)

    @functools.partial(jax.jit, inline=True)  # traced once for `zero` below and for the loop
    def update(state: TrainState) -> tuple[TrainState, dict]:
        oldest = jax.tree.map(lambda x: x[0], state.past) if args.actor_lag else state.params
        rollout_step = lambda actor, _: act(oldest, actor, SAMPLE, state.params)[:2]  # noqa: E731
        actor, rollout = jax.lax.scan(rollout_step, state.actor, length=args.num_steps)
        after_last = jax.tree.map(lambda x: x[None], inputs_of(actor))
        append = lambda x, last: jnp.concatenate([x, last])  # noqa: E731
        inputs = jax.tree.map(append, inputs_of(rollout), after_last)  # [T + 1, E, ...]
        task = jnp.arange(args.num_envs) % len(args.env_ids)  # [E]
        learning_rate = learning_rate_at(args, state.update)  # one for all gradient steps of the rollout

        def minibatch(learner: Learner, envs):
            """One gradient step on the whole sequences of the environments envs[B]."""
            batch = pick(args, (inputs, rollout), envs)
            carry = pick(args, state.actor.carry, envs, axis=0)
            weights, popart = learner.params["params"], learner.params["popart"]["statistics"]
            grads, (learned, new) = jax.grad(loss, has_aux=True)(weights, popart, carry, *batch, task[envs])
            # The rescaled head learns, so by the gradient with respect to it
            weights = weights | {"value": preserved(weights["value"], popart, new)}
            grads = grads | {"value": jax.tree.map(lambda x: x * (new.scale / popart.scale), grads["value"])}
            updates, opt_state = optimizer.update(grads, learner.opt_state)
            weights = optax.apply_updates(weights, jax.tree.map(lambda x: -learning_rate * x, updates))
            learned |= {"grad_norm": optax.tree.norm(grads), "gradient_steps": jnp.float32(1)}
            params = {"params": weights, "popart": {"statistics": new}}
            return Learner(params=params, opt_state=opt_state), learned

        key, *epoch_keys = jax.random.split(state.key, 1 + args.update_epochs)
        orders = [shuffled(epoch_key, args.num_envs, 1, args.num_minibatches)[1] for epoch_key in epoch_keys]
        orders = jnp.concatenate(orders)  # [epochs * minibatches, B]
        learner = Learner(params=state.params, opt_state=state.opt_state)
        learner, learned = jax.lax.scan(minibatch, learner, orders)
        metrics = jax.tree.map(jnp.sum, learned) | {"updates": jnp.int32(1)}
        metrics |= task_metrics(args, rollout)
        popart = learner.params["popart"]["statistics"]
        metrics |= {"popart_mean": popart.mean, "popart_scale": popart.scale}
        if args.actor_lag:
            past = jax.tree.map(lambda old, now: jnp.concatenate([old[1:], now[None]]), state.past, state.params)
        else:
            past = ()
        return TrainState(learner.params, past, learner.opt_state, actor, key, state.update + 1), metrics

    def train_chunk(state: TrainState, num_updates: jax.Array) -> tuple[TrainState, dict]:
        zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(update, state)[1])

        def body(_, total):
            state, metrics = update(total[0])
            return state, jax.tree.map(jnp.add, total[1], metrics)

        return jax.lax.fori_loop(0, num_updates, body, (state, zero))

    return init, train_chunk


@struct.dataclass
class Evaluation:
    """Returns and lengths [K] of the first episodes of K environments, and whether they are over."""

    actor: Actor
    returns: jax.Array
    lengths: jax.Array
    over: jax.Array


def make_evaluate(args: Args):
    """The pure function evaluate(params, key, policy) -> Evaluation of `eval_episodes` complete episodes.

    `policy` is one of the values of POLICIES.
    """
    _, begin, act = make_actor(args)

    def step(params, policy, now: Evaluation) -> Evaluation:
        actor, transition, _ = act(params, now.actor, policy)
        return Evaluation(
            actor=actor,
            returns=jnp.where(now.over, now.returns, transition.episode_return),
            lengths=jnp.where(now.over, now.lengths, transition.episode_length),
            over=now.over | transition.terminated | transition.truncated,
        )

    def evaluate(params, key: jax.Array, policy) -> Evaluation:
        actor = spread(args, begin(key, args.eval_episodes))
        over = jnp.zeros(actor.episode_return.shape, bool)
        nothing = Evaluation(actor, actor.episode_return, actor.episode_length, over)
        return jax.lax.while_loop(lambda now: ~now.over.all(), functools.partial(step, params, policy), nothing)

    return evaluate


def over_seeds(function, args: Args, in_axes=0):
    """`function` mapped over a leading seed axis, each device having its own seeds where it can be.

    A single seed has no such axis, so that its program is the plain one.
    """
    if args.num_seeds == 1:
        return function
    mapped, mesh = jax.vmap(function, in_axes=in_axes, axis_name="seed"), device_mesh(args)
    if mesh.size == 1 or mesh.axis_names == ("envs",):
        return mapped
    specs = jax.tree.map(lambda axis: P() if axis is None else P("seeds"), in_axes, is_leaf=lambda axis: axis is None)
    return jax.shard_map(mapped, mesh=mesh, in_specs=specs, out_specs=P("seeds"), check_vma=False)


def seed_by_seed(init, args: Args):
    """`init` for a key or, one after the other, for several.

    XLA's CPU backend (jax 0.10.2) can wait for itself for ever in the QR decompositions of several seeds at once, which
    orthogonal weights ask for.
    """
    return functools.partial(jax.lax.map, init) if args.num_seeds > 1 else init


LESS = {
    "state": "lower --num-envs or --num-seeds, or the sizes of the network",
    "rollout": "lower --num-envs or --num-steps",
    "minibatch": "raise --num-minibatches, or lower --num-envs or --num-steps",
}


def minibatch_bytes(args: Args, state: TrainState) -> int:
    """Bytes of a minibatch's observations, and of what is held while the network is differentiated on them."""
    network, _, _ = make_actor(args)
    space = jax.ShapeDtypeStruct(state.actor.obs.shape[1:], state.actor.obs.dtype)
    inputs = functools.partial(blank_inputs, network, space, *args.minibatch_shape)
    backward = device_memory.backward_bytes(lambda params: forward(network, params, *inputs())[1], state.params)
    return device_memory.byte_size(jax.eval_shape(inputs)) + backward


def memory_needed(args: Args) -> dict[str, float]:
    """Bytes that training takes on each device, by what takes them: "state", "rollout", "minibatch".

    What XLA has to hold at once: parameters, optimiser and environments; a rollout; of a minibatch the observations and
    what the backward pass needs of the forward pass.
    """
    mesh, seeds = device_mesh(args), args.num_seeds
    alone = dataclasses.replace(args, num_seeds=1, num_devices=1)
    _, _, act = make_actor(alone)
    state = jax.eval_shape(make_train(alone)[0], jax.random.key(0))

    def play(state):
        return act(state.params, state.actor, POLICIES["greedy"])[1]  # one step

    minibatch = minibatch_bytes(alone, state)
    if args.remat:  # of the pieces one at a time is there as a whole
        whole = minibatch_bytes(dataclasses.replace(alone, remat=False), state)
        minibatch += (whole - minibatch) / PIECES
    own = seeds / mesh.size if mesh.axis_names == ("seeds",) else seeds  # parameters on each device
    whole, actor, transition = map(device_memory.byte_size, (state, state.actor, jax.eval_shape(play, state)))
    return {
        "state": own * (whole - actor) + seeds * actor / mesh.size,
        "rollout": seeds * (args.num_steps * transition + actor) / mesh.size,
        "minibatch": seeds * minibatch / mesh.size,
    }


def check_memory(args: Args) -> None:
    """Raises UserError, with the flag to change, when training does not fit into the memory of a device."""
    needed, there = memory_needed(args), device_memory.available()
    total, largest = sum(needed.values()), max(LESS, key=needed.get)
    if total > there:
        raise UserError(
            f"training takes about {total / 1e9:.1f} GB, {needed[largest] / 1e9:.1f} of them for the {largest}, and "
            f"there are {there / 1e9:.1f}: {LESS[largest]}"
        )


# -------------------------------------------------------------------------------------------------- run and checkpoints


EVAL_COLUMNS = (
    *("global_step", "seed", "env_id", "task", "partial_obs", "policy", "episodes"),
    *("return_mean", "return_std", "return_min", "return_max", "length_mean", "wall_seconds"),
)
BEST_RETURN = 1.0  # of every id of popgym_arcade, see docs/environments.md
LOSSES = ("policy_loss", "value_loss", "entropy", "rho", "rho_clipped", "grad_norm")
OF_EACH_TASK = (  # metrics [N]
    *("episodes", "episodic_return", "episodic_length", "explained_variance", "explained_updates"),
    *("popart_mean", "popart_scale"),
)
MAY_DIFFER = (  # on resuming
    *("log_every", "eval_every", "checkpoint_every", "capture_video", "run_dir", "resume", "from_run"),
    *("num_devices", "distributed", "coordinator_address", "num_processes", "process_id"),
    *("deterministic", "compile_cache", "track", "wandb_project_name", "wandb_entity"),
)


PACKAGES = "jax jaxlib flax gymnax memax equinox distrax optax orbax-checkpoint numpy tyro tensorboard popgym-arcade"


def run_name(args: Args) -> str:
    """What a run folder's name begins with: environment, twin, experiment, memory, seed."""
    twin = ("pomdp" if args.partial_obs else "mdp") if is_arcade(args) else "full"
    return f"{args.env_id}__{twin}__{args.exp_name}__{args.memory}__{args.seed}"


def make_run_folder(args: Args) -> Path:
    """A new folder with `args.json`: the arguments and what they ran on. An existing one is never touched."""
    name = f"{run_name(args)}__{time.strftime('%Y%m%d-%H%M%S')}"
    for attempt in range(1, 1000):
        folder = Path(args.run_dir) / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            folder.mkdir(parents=True)
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise CannotWrite(f"--run-dir {args.run_dir}: {error.strerror}") from None
    about = {
        "script": SCRIPT,
        "args": dataclasses.asdict(args),
        "versions": {"python": sys.version.split()[0]} | {p: importlib.metadata.version(p) for p in PACKAGES.split()},
        "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "git_commit": git_commit(),
    }
    (folder / "args.json").write_text(json.dumps(about, indent=2))
    return folder


def git_commit() -> str | None:
    """The commit that this script was run from, with "-dirty" if a tracked file differs; None outside of git."""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with contextlib.suppress(OSError):
        return (
            subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True, text=True).stdout.strip() or None
        )


def read_args(folder: str | Path) -> Args:
    """The arguments a run was started with. Raises UserError when the folder holds no run of this script."""
    try:
        about = json.loads((Path(folder) / "args.json").read_text())
        script, saved = about["script"], about["args"]
        saved = {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise UserError(f"{folder} is not a run folder of {SCRIPT}.py: it has no readable args.json") from None
    if script != SCRIPT:
        raise UserError(f"{folder} was made by {script}.py: use that script")
    strange = saved.keys() - {field.name for field in dataclasses.fields(Args)}
    if strange:
        raise UserError(f"{folder} was started with {flag(min(strange))}, which this {SCRIPT}.py does not have")
    return Args(**saved)


def named_arrays(state: TrainState) -> dict[str, Any]:
    """The state as flat, named arrays: keys as their data, no arrays of size zero (orbax refuses them)."""
    plain = jax.tree.map(lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x, state)
    plain = plain if jax.process_count() > 1 else jax.device_get(plain)  # of several hosts, each writes its own part
    return {leaf_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(plain)[0] if leaf.size}


def file_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a checkpoint, by its path in the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("sha256."))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@dataclass
class FirstOfEach(PreservationPolicy):
    """Keeps the first checkpoint from each multiple of `every` steps on, of those on the grid: one that a stop left
    between its points would take the place of the one that comes after it, which other runs have."""

    every: int
    grid: int

    def should_preserve(self, checkpoints, *, context):
        steps = [checkpoint.step for checkpoint in checkpoints]  # in their order
        parts = [0 if step % self.grid else step // self.every for step in steps]
        return [part > 0 and part not in parts[:i] for i, part in enumerate(parts)]


def checkpoint_manager(folder: str | Path, reading: bool) -> ocp.CheckpointManager:
    """Keeps the last three checkpoints of a run folder and those of `--save-every`; unless only reading, clears away
    unfinished ones."""
    args = read_args(folder)
    of_each = [FirstOfEach(args.save_every, args.grid)] if args.save_every else []
    options = ocp.CheckpointManagerOptions(
        preservation_policy=AnyPreservationPolicy([LatestN(3), *of_each]),
        enable_async_checkpointing=False,
        cleanup_tmp_directories=not reading,
    )
    folder = Path(folder).resolve() / "checkpoints"
    return ocp.CheckpointManager(folder, options=options, item_handlers=ocp.PyTreeCheckpointHandler())


def save_checkpoint(folder: Path, step: int, state: TrainState) -> None:
    """Writes `checkpoints/{step}/`; it counts from the moment its digests are there, which come last."""
    with checkpoint_manager(folder, reading=False) as manager:
        manager.save(step, args=ocp.args.PyTreeSave(named_arrays(state)), force=True)
    checkpoint = folder / "checkpoints" / str(step)
    draft = checkpoint / "sha256.tmp"
    hosts.wait_for_all("the checkpoint is written")
    if jax.process_index() == 0:
        draft.write_text(json.dumps(file_digests(checkpoint)))
        draft.rename(checkpoint / "sha256.json")


def is_sound(checkpoint: Path) -> bool:
    """Whether a checkpoint is complete and unaltered."""
    try:
        return json.loads((checkpoint / "sha256.json").read_text()) == file_digests(checkpoint)
    except (OSError, ValueError):
        return False


def find_checkpoint(folder: str | Path, step: int | None = None) -> int:
    """The step of a run's last sound checkpoint, or `step` where that one is sound. Raises UserError without one."""
    folders = [path for path in Path(folder, "checkpoints").glob("*") if path.name.isdigit()]
    for checkpoint in sorted(folders, key=lambda path: int(path.name), reverse=True):
        if step not in (None, int(checkpoint.name)):
            continue
        if is_sound(checkpoint):
            return int(checkpoint.name)
        print(f"checkpoint {checkpoint} is incomplete or damaged: passing over it", file=sys.stderr)
    raise UserError(f"{folder} has no sound checkpoint" + ("" if step is None else f" of step {step}"))


def abstract_state(args: Args) -> TrainState:
    """Shapes and dtypes of the state that these arguments train, with a leading seed axis if there are several."""
    init, _ = make_train(args)
    return jax.eval_shape(seed_by_seed(init, args), make_keys(args)[0])


def restored(folder: str | Path, step: int, template: Any) -> Any:
    """What a checkpoint has in the place of `template`'s leaves. Raises UserError that names the first misfit."""
    with checkpoint_manager(folder, reading=True) as manager:
        about = manager.item_metadata(step)
        if about is None:  # its digests are right, so it is whole, but orbax does not find in it what it reads by
            raise UserError(f"{folder}: checkpoint {step} is of another orbax: use the versions in its args.json")
        plain = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in about.tree}
        arrays = manager.restore(step, args=ocp.args.PyTreeRestore(restore_args=plain))
    named = {leaf_name(path): like for path, like in jax.tree_util.tree_flatten_with_path(template)[0]}
    parts = {name.partition(".")[0] for name in named}
    strange = [name for name in arrays if name.partition(".")[0] in parts and name not in named]

    def find(path, like):
        if not math.prod(like.shape) and not jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
            return jax.device_put(np.zeros(like.shape, like.dtype), like.sharding)
        name = leaf_name(path)
        array = arrays.get(name)
        is_key = array is not None and jnp.issubdtype(like.dtype, jax.dtypes.prng_key)
        array = jax.random.wrap_key_data(jax.device_put(array, like.sharding)) if is_key else array
        if array is None or (array.shape, array.dtype) != (like.shape, like.dtype):
            has = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise UserError(
                f"{folder} does not fit this {SCRIPT}.py, use the one that made it: "
                f"{name} is {has} there, here {like.dtype}{list(like.shape)}"
            )
        return jax.device_put(array, like.sharding)

    found = jax.tree_util.tree_map_with_path(find, template)
    if strange:
        raise UserError(f"{folder} does not fit this {SCRIPT}.py, use the one that made it: {strange[0]} is not here")
    return found


def restore_checkpoint(folder: str | Path, args: Args) -> tuple[int, TrainState]:
    """The last sound checkpoint of a run: its step and its state. Raises UserError without one that fits."""
    step, state = find_checkpoint(folder), abstract_state(args)
    like = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)  # noqa: E731
    return step, restored(folder, step, jax.tree.map(like, state, shardings(args, state)))


def load_run(folder: str | Path, step: int | None = None) -> tuple[Args, Any]:
    """Arguments and parameters of a run, from its last sound checkpoint or that of `step`; for the analysis scripts.

    With several seeds the parameters have a leading seed axis. Raises UserError where no run is, or one that misfits.
    """
    args = dataclasses.replace(read_args(folder), num_devices=1).checked()  # those of the training may not be here
    step = find_checkpoint(folder, step)
    return args, restored(folder, step, {"params": abstract_state(args).params})["params"]


def make_keys(args: Args) -> tuple[jax.Array, jax.Array]:
    """Keys of training and of evaluation, with a leading seed axis if there are several."""

    def both(seed):
        train_key, eval_key = jax.random.split(jax.random.key(seed))
        return train_key, eval_key

    return jax.vmap(both)(args.seed + jnp.arange(args.num_seeds)) if args.num_seeds > 1 else both(args.seed)


class Records:
    """TensorBoard events and `eval.csv` of a run folder; a run that goes on from `step` loses what came after it.

    Of several processes only the first writes.
    """

    def __init__(self, folder: Path, args: Args, step: int | None = None):
        self.folder, self.args = folder, args
        self.mirror = Mirror(folder, args) if args.track and jax.process_index() == 0 else None
        seeds = range(args.seed, args.seed + args.num_seeds) if args.num_seeds > 1 else ()
        # the first is of the mean over the seeds; unlike other writers, TensorBoard's own has a flush that waits
        paths = (folder, *(folder / f"seed_{seed}" for seed in seeds)) if jax.process_index() == 0 else ()
        self.writers = [EventFileWriter(str(path)) for path in paths]
        self.prefixes = ("", *(f"seed_{seed}/" for seed in seeds))
        for writer in self.writers if step is not None else ():
            writer.add_event(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))
        path = folder / "eval.csv"
        rows = csv.DictReader(path.read_text().splitlines()) if step is not None and path.exists() else ()
        self.evaluations = [row for row in rows if int(row["global_step"]) <= step]
        self.write_evaluations()

    def write_evaluations(self) -> None:
        if not self.writers:
            return
        draft = self.folder / "eval.csv.tmp"
        with draft.open("w", newline="") as file:
            table = csv.DictWriter(file, EVAL_COLUMNS)
            table.writeheader()
            table.writerows(self.evaluations)
        draft.rename(self.folder / "eval.csv")

    def text(self, tag: str, markdown: str) -> None:
        for writer in self.writers[:1]:
            writer.add_event(Event(wall_time=time.time(), summary=text_pb(tag, markdown)))

    def scalar(self, tag: str, values, step: int) -> float:
        """A point of every seed and of their mean, which is returned; a NaN is no point."""
        values = np.atleast_1d(values).astype(float)
        told = values[~np.isnan(values)]
        mean = told.mean() if told.size else math.nan
        each = values if len(values) > 1 else ()  # what the seeds share has one value, and is told once
        for writer, prefix, value in zip(self.writers, self.prefixes, (mean, *each), strict=False):
            if np.isnan(value):
                continue
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
            if self.mirror:
                self.mirror.log(prefix + tag, value, step)
        return mean

    def evaluation(self, step: int, policy: str, episodes: Evaluation, seconds: float) -> None:
        """A row of `eval.csv` for every seed and task, lines for the reader, points of the greedy policy's curves."""
        args = self.args
        shape = args.num_seeds, -1, len(args.env_ids)
        both = (np.asarray(x, float).reshape(shape).swapaxes(1, 2) for x in (episodes.returns, episodes.lengths))
        returns, lengths = both  # [seeds, N, episodes]
        for i, n in np.ndindex(returns.shape[:2]):
            row = [step, args.seed + i, args.env_ids[n], args.task_names[n], args.partial_obs, policy, returns.shape[2]]
            numbers = *(f(returns[i, n]) for f in (np.mean, np.std, np.min, np.max)), lengths[i, n].mean(), seconds
            self.evaluations.append(dict(zip(EVAL_COLUMNS, map(str, [*row, *map(float, numbers)]), strict=True)))
        self.write_evaluations()
        means = returns.mean(axis=2)  # [seeds, N]
        if policy == "greedy":
            self.scalar("eval/episodic_return", means.mean(axis=1), step)
            for n, name in enumerate(args.task_names):
                self.scalar(f"{name}/eval_return", means[:, n], step)
        if policy == "greedy" and is_arcade(args) and not args.env_params:  # which may change what is possible
            self.scalar("eval/normalized_return", self.normalized(means), step)
        each = "  ".join(f"{name} {mean:.3f}" for name, mean in zip(args.task_names, means.mean(axis=0), strict=True))
        say(f"step {step}  {policy} policy: return {means.mean():.3f} over {returns.size} episodes: {each}")

    def normalized(self, means: np.ndarray) -> np.ndarray:
        """Of mean returns [seeds, N]: their mean over tasks, 0 as the random policy and 1 the best of all games."""
        random = self.task_returns("random")[1][0]
        return ((means - random) / (BEST_RETURN - random)).mean(axis=1)

    def task_returns(self, policy: str) -> tuple[np.ndarray, np.ndarray]:
        """A policy's evaluations so far: global steps [K] and mean returns [K, seeds, N]."""
        shape = -1, self.args.num_seeds, len(self.args.env_ids)
        rows = [row for row in self.evaluations if row["policy"] == policy]
        steps, means = (np.array([float(row[name]) for row in rows]) for name in ("global_step", "return_mean"))
        return steps.reshape(shape)[:, 0, 0], means.reshape(shape)

    def returns(self, policy: str) -> tuple[np.ndarray, np.ndarray]:
        """A policy's evaluations so far: global steps [K] and mean returns over all tasks [K, seeds]."""
        steps, means = self.task_returns(policy)
        return steps, means.mean(axis=2)

    def reached_target(self) -> bool:
        """Whether the last two evaluations of the greedy policy reached the target return in every seed."""
        _, means = self.returns("greedy")
        target = self.args.target_return
        return target is not None and len(means) > 1 and bool((means[-2:] >= target).all())

    def flush(self) -> None:
        for writer in self.writers:
            writer.flush()
        if self.mirror:
            self.mirror.save()

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


class Mirror:
    """The curves of a run folder at Weights & Biases. Once it has begun, none of its errors stops the training.

    `wandb.json` in the run folder keeps its id and each curve's last step, so that a run that goes on from a checkpoint
    is the same one there, and has no point twice.
    """

    def __init__(self, folder: Path, args: Args):
        """Raises CannotMirror where no run begins; a new run folder is then taken away."""
        import wandb

        self.path = folder / "wandb.json"
        where = {"project": args.wandb_project_name, "entity": args.wandb_entity or None, "dir": folder}
        name, config = folder.resolve().name, dataclasses.asdict(args)
        try:
            saved = json.loads(self.path.read_text()) if self.path.exists() else {}
            self.id, self.last_steps = saved.get("id", uuid.uuid4().hex), saved.get("last_steps", {})
            self.run = wandb.init(**where, id=self.id, name=name, config=config, resume="allow")
            self.run.define_metric("*", step_metric="global_step")
        except Exception as error:
            if {path.name for path in folder.iterdir()} <= {"args.json", "wandb"}:  # a new run, so nothing is lost
                shutil.rmtree(folder, ignore_errors=True)
            raise CannotMirror(f"--track: {one_line(error)}") from None
        self.save()

    @contextlib.contextmanager
    def going_on(self):
        """Within it an error ends the mirror, in one line, and not the training."""
        try:
            yield
        except Exception as error:
            self.run = None
            tqdm.write(f"--track: going on without Weights & Biases: {one_line(error)}", file=sys.stderr)

    def log(self, tag: str, value: float, step: int) -> None:
        if self.run and step > self.last_steps.get(tag, -1):
            with self.going_on():
                self.run.log({tag: value, "global_step": step})
                self.last_steps[tag] = step

    def save(self) -> None:
        draft = self.path.with_suffix(".tmp")
        with self.going_on():
            draft.write_text(json.dumps({"id": self.id, "last_steps": self.last_steps}))
            draft.rename(self.path)

    def finish(self, error_type, *_) -> None:
        """For an `ExitStack`, which gives the type of what ended the training early, or None."""
        self.save()
        if self.run:
            with self.going_on():
                self.run.finish(exit_code=int(error_type is not None))


def say(line: str) -> None:
    """Prints a line, above the progress bar if there is one; of several processes only the first does."""
    if jax.process_index() == 0:
        tqdm.write(line)
        sys.stdout.flush()


@contextlib.contextmanager
def stop_signals():
    """Within it Ctrl-C and SIGTERM are only noted, in the list it gives; a second one ends the process at once."""
    received = []

    def note(number, _frame):
        if received:
            os._exit(128 + number)
        received.append(number)
        os.write(2, b"\nstopping at the end of this chunk; once more stops at once\n")  # print may be interrupted here

    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    previous = {number: signal.signal(number, note) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def heard(stop: list[int]) -> int:
    """The signal that came to this process or to another, 0 if none did."""
    return hosts.agreed(stop[0] if stop else 0)


@contextlib.contextmanager
def writing(folder: str | Path):
    """Within it an error of the disk ends the run in one line; what had been saved before stays."""
    known = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOENT)
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:  # tensorstore has the latter two for its own
        reasons = [os.strerror(number) for number in known if os.strerror(number) in str(error)]
        if not reasons:
            raise
        raise CannotWrite(f"{folder}: {reasons[0]}; put that right, then go on from its last checkpoint") from None


def waited(function, *args):
    """`function(*args)`, run to its end in another thread: Python hears no signal while the main one is in XLA."""
    return WAITER.submit(lambda: jax.block_until_ready(function(*args))).result()


# ------------------------------------------------------------------------------------------------------------ pictures


def draw_curve(records: Records) -> None:
    """`curve.png` in the run folder: for each task greedy return over steps, and the random policy's."""
    from matplotlib.figure import Figure  # here, since it takes half a second to import

    args = records.args
    count = len(args.env_ids)
    columns = math.ceil(math.sqrt(count))
    rows = -(-count // columns)
    figure = Figure(figsize=(max(3.6 * columns, 7), max(2.6 * rows + 0.4, 4)), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True).flatten()
    (steps, means), (_, random) = records.task_returns("greedy"), records.task_returns("random")
    for n, name in enumerate(args.task_names):
        for i in range(args.num_seeds):
            grid[n].plot(steps, means[:, i, n], marker="o", markersize=3, label=f"greedy, seed {args.seed + i}")
        grid[n].axhline(random[..., n].mean(), color="gray", linestyle="--", label="random policy")
        grid[n].set_title(name, fontsize=10)
        grid[n].set(xlim=(0, None))
        grid[n].tick_params(labelsize=8)
        grid[n].grid(alpha=0.3)
    for axes in grid[count:]:
        axes.axis("off")
    grid[0].legend(fontsize=8)
    figure.suptitle(records.folder.resolve().name.rpartition("__")[0].replace("__", " · "), fontsize=10)
    figure.supxlabel("environment steps of all tasks", fontsize=9)
    figure.supylabel(f"return, mean of {args.eval_episodes} episodes", fontsize=9)
    figure.savefig(records.folder / "curve.png", dpi=150)


def record_episode(args: Args, params, key: jax.Array, path: Path) -> None:
    """A GIF of a greedy episode of each task, by the first seed; with several tasks their names are in the files'."""
    if args.num_seeds > 1:
        args = dataclasses.replace(args, num_seeds=1)
        params, key = jax.tree.map(lambda x: x[0], (params, key))
    for n, name in enumerate(args.task_names):
        film = path.with_stem(f"{path.stem}_{name}") if len(args.env_ids) > 1 else path
        record_task(*select_task(args, params, n), jax.random.fold_in(key, n), film)


def record_task(args: Args, params, key: jax.Array, path: Path) -> None:
    """A GIF of a greedy episode: what the agent sees, and beside a partial twin the full frame."""
    from PIL import Image

    _, begin, act = make_actor(args)
    twins = [make_env(dataclasses.replace(args, partial_obs=partial))[0] for partial in (True, False)]

    def picture(env_state):
        """Of one environment's state [1, ...]: uint8 [side, side or 2 side, 3]."""
        state = jax.tree.map(lambda x: x[0], env_state)
        return jnp.concatenate([twin.get_obs(state) for twin in twins[not args.partial_obs :]], axis=1)

    @jax.jit
    def advance(actor: Actor):
        actor, transition, info = act(params, actor, POLICIES["greedy"])
        return actor, transition.terminated[0] | transition.truncated[0], picture(info["final_state"])

    actor, over = begin(key, 1), False
    frames = [picture(actor.env_state)]
    while not over and len(frames) < MAX_FRAMES:
        actor, over, frame = advance(actor)
        frames.append(frame)
    size = 2 * frames[0].shape[1], 2 * frames[0].shape[0]
    images = [Image.fromarray(np.asarray(frame)).resize(size, Image.Resampling.NEAREST) for frame in frames]
    images[0].save(path, save_all=True, append_images=images[1:], duration=50, loop=0)


# ---------------------------------------------------------------------------------------------------------------- main


def parse_args(argv: list[str]) -> Args:
    """Checked arguments of a command line; `--resume RUN` and `--from-run RUN` start from that run's own.

    Raises:
        UserError: see `Args.checked`; also when an argument differs from the run that is to be resumed.
    """
    args = saved = tyro.cli(Args, args=argv, description=__doc__)
    if args.resume and args.from_run:
        raise UserError("--resume goes on with a run, --from-run begins a new one: give one of them")
    if args.resume or args.from_run:
        saved = dataclasses.replace(read_args(args.resume or args.from_run), distributed=False, **NOWHERE)
        args = tyro.cli(Args, args=argv, default=saved)
    set_up(args)
    args = args.checked()
    fields = [field.name for field in dataclasses.fields(Args) if field.name not in MAY_DIFFER]
    differing = [name for name in fields if getattr(args, name) != getattr(saved, name)]
    if args.resume and differing:
        was = ", ".join(f"{flag(name)} {getattr(saved, name)}" for name in differing)
        raise UserError(f"{args.resume} was started with {was}, which cannot change on the way: leave it as it was")
    return args


def is_due(cadence: int, before: int, step: int) -> bool:
    """Whether a multiple of the cadence lies in (before, step]; a cadence of 0 never is."""
    return cadence > 0 and step // cadence > before // cadence


def run_updates(
    train_chunk, state: TrainState, updates: int, stop: list, pace: float
) -> tuple[TrainState, dict, float]:
    """Up to `updates` updates in calls of about five seconds, so that a signal is answered: state, sums, seconds.

    `pace` is the updates a second so far; 0 if none is known.
    """
    totals, seconds, done = None, 0.0, 0
    while done < updates and (totals is None or not heard(stop)):
        pace = done / seconds if done else pace
        some = hosts.agreed(min(updates - done, max(1, int(5 * pace))))
        began = time.perf_counter()
        state, metrics = waited(train_chunk, state, np.int32(some))
        seconds += time.perf_counter() - began
        metrics = jax.device_get(metrics)
        totals = metrics if totals is None else jax.tree.map(np.add, totals, metrics)
        done += some
    return state, totals, seconds


def check_finite(args: Args, sums: dict, step: int) -> None:
    """Raises Diverged, with the first of the metrics that is no finite number."""
    for name, value in sums.items():
        bad = ~np.isfinite(value)
        if bad.any():
            count = bad.reshape(args.num_seeds, -1).any(axis=1).sum()
            seeds = f" in {count} of the seeds" if args.num_seeds > 1 else ""
            raise Diverged(
                f"{name} became {value[bad][0]}{seeds} before step {step}: "
                "lower --learning-rate or --max-grad-norm; the checkpoints of before are kept"
            )


def log_point(records: Records, sums: dict, step: int, seconds: float, bar: tqdm) -> None:
    """A point of every training curve from the sums since the last one; the progress bar, or a line for a log file."""
    args, sums = records.args, jax.tree.map(np.asarray, sums)
    update = step // args.update_size - 1  # the last one done
    updates = np.atleast_1d(sums["updates"])[:, None]
    by_task = {name: sums[name].reshape(-1, len(args.env_ids)) for name in OF_EACH_TASK}  # [seeds, N]
    episodes = np.where(by_task["episodes"] > 0, by_task["episodes"], math.nan)
    explained = np.where(by_task["explained_updates"] > 0, by_task["explained_updates"], math.nan)
    means = {name: by_task[name] / episodes for name in ("episodic_return", "episodic_length")}
    means |= {"episodes": episodes, "explained_variance": by_task["explained_variance"] / explained}
    values = {f"losses/{name}": sums[name] / sums["gradient_steps"] for name in LOSSES}
    values |= {"losses/explained_variance": means["explained_variance"].mean(axis=1)}
    values |= {f"charts/{name}": means[name].mean(axis=1) for name in ("episodic_return", "episodic_length")}
    values |= {"charts/episodes": np.where(np.isnan(episodes).all(axis=1), math.nan, np.nansum(episodes, axis=1))}
    values |= {"charts/SPS": updates.sum() * args.update_size / seconds}
    values |= {"charts/learning_rate": learning_rate_at(args, update)}
    if args.value_normalization == "popart":
        means |= {name: by_task[name] / updates for name in ("popart_mean", "popart_scale")}
    for name, value in means.items():
        values |= {f"{task}/{name}": value[:, n] for n, task in enumerate(args.task_names)}
    told = {name: records.scalar(name, value, step) for name, value in values.items()}
    speed = told["charts/SPS"]
    returns = " ".join(f"{told[f'{task}/episodic_return']:.2f}" for task in args.task_names).replace("nan", "-")
    bar.set_postfix({"SPS": round(speed), "return": returns}, refresh=False)
    bar.update(step - bar.n)
    if bar.disable:
        left = (args.total_timesteps - step) * args.num_seeds / speed
        say(f"step {step}  SPS {speed:.0f}  return {returns}  left {left:.0f} s")


def begin_run(args: Args, train_keys: jax.Array) -> tuple[Records, int, TrainState]:
    """A new run folder, or the one to go on with: its records, global step and state."""
    check_memory(args)
    first = jax.process_index() == 0
    if not args.resume:
        init, _ = make_train(args)
        records = Records(Path(hosts.first_says(str(make_run_folder(args)) if first else "")), args)
        table = "".join(f"|{name}|{value}|\n" for name, value in dataclasses.asdict(args).items())
        records.text("hyperparameters", f"|argument|value|\n|-|-|\n{table}")
        init = jax.jit(seed_by_seed(init, args), out_shardings=shardings(args, abstract_state(args)))
        return records, 0, waited(init, train_keys)
    step, state = restore_checkpoint(args.resume, args)
    hosts.wait_for_all("the checkpoint is read")
    for checkpoint in Path(args.resume, "checkpoints").glob("*") if first else ():
        if checkpoint.name.isdigit() and int(checkpoint.name) > step:  # damaged: out of the way, but kept
            checkpoint.rename(checkpoint.with_name(f"damaged-{checkpoint.name}-{time.strftime('%Y%m%d-%H%M%S')}"))
    return Records(Path(args.resume), args, step), step, state


def compile_programs(args: Args, state: TrainState, eval_keys: jax.Array):
    """The compiled train_chunk(state, num_updates), which takes its state over, and evaluate(params, keys, policy)."""
    everywhere = NamedSharding(device_mesh(args), P())
    train_chunk = over_seeds(make_train(args)[1], args, (0, None))
    train_chunk = jax.jit(train_chunk, donate_argnums=0, out_shardings=(shardings(args, state), everywhere))
    evaluate = over_seeds(make_evaluate(args), args, (0, 0, None))
    episodes = lambda *args: evaluate(*args).replace(actor=None)  # noqa: E731
    episodes = jax.jit(episodes, out_shardings=everywhere)
    train_chunk = train_chunk.lower(state, np.int32(1)).compile()
    return train_chunk, episodes.lower(state.params, eval_keys, POLICIES["greedy"]).compile()


def main(args: Args) -> Path:
    """Trains, or goes on training, and returns the run folder.

    Raises:
        UserError: when the training cannot go on: Diverged, CannotWrite.
        SystemExit: with 128 + its number when a signal ended the training; a checkpoint is saved before.
    """
    with stop_signals() as stop, writing(args.resume or args.run_dir), contextlib.ExitStack() as at_end:
        train_keys, eval_keys = make_keys(args)
        records, step, state = begin_run(args, everywhere(args, train_keys))
        if records.mirror:
            at_end.push(records.mirror.finish)  # last, so that an upload that fails or hangs loses nothing
        first_step, saved_at, train_seconds = step, step if args.resume else None, 0.0
        hosts.note(f"to go on: start all of them with --resume {records.folder}")
        say(f"{records.folder}: step {step} of {args.total_timesteps}; compiling ...")
        began = time.perf_counter()
        train_chunk, evaluate = waited(compile_programs, args, state, everywhere(args, eval_keys))
        compile_seconds = time.perf_counter() - began
        records.scalar("charts/compile_seconds", compile_seconds, step)
        fold = jax.vmap(jax.random.fold_in, (0, None)) if args.num_seeds > 1 else jax.random.fold_in

        def record_evaluation(policy: str) -> None:
            began = time.perf_counter()
            keys = everywhere(args, fold(eval_keys, step))  # an evaluation's key depends on its step alone
            episodes = waited(evaluate, state.params, keys, POLICIES[policy])
            records.evaluation(step, policy, episodes, time.perf_counter() - began)

        shape = "{percentage:3.0f}%|{bar}| {n_fmt} of {total_fmt} steps, {remaining} left{postfix}"
        bar = {"total": args.total_timesteps, "initial": step, "bar_format": shape, "unit_scale": True}
        with contextlib.closing(records), tqdm(**bar, disable=None if records.writers else True) as bar:
            if not heard(stop) and not records.returns("random")[0].size:
                record_evaluation("random")
            while step < args.total_timesteps and not heard(stop) and not records.reached_target():
                before = step - step % args.grid
                goal = min(before + args.grid, args.total_timesteps)
                updates, done = (goal - step) // args.update_size, (step - first_step) // args.update_size
                pace = done / train_seconds if done else 0.0
                state, sums, seconds = run_updates(train_chunk, state, updates, stop, pace)
                step += int(sums["updates"].max()) * args.update_size
                train_seconds += seconds
                check_finite(args, sums, step)
                log_point(records, sums, step, seconds, bar)
                if step == goal and is_due(args.eval_every, before, step):
                    record_evaluation("greedy")
                records.flush()  # before the checkpoint, so that what it goes on from is on disk
                if step == goal and is_due(args.checkpoint_every, before, step):
                    save_checkpoint(records.folder, step, state)
                    saved_at = step
            if not heard(stop) and step not in records.returns("greedy")[0]:
                record_evaluation("greedy")
        if saved_at != step:
            save_checkpoint(records.folder, step, state)
        stopped = heard(stop)
        if not stopped and records.writers:
            draw_curve(records)
        if not stopped and args.capture_video:
            params = on_host(state.params)
            if records.writers:
                waited(record_episode, args, params, fold(eval_keys, step + 1), records.folder / "episode.gif")
        hosts.leave()
        python = os.path.relpath(sys.executable)
        if stopped:
            go_on = f"{python} {os.path.relpath(__file__)} --resume {records.folder}"
            say(f"stopped at step {step}, saved in {records.folder}; to go on: {go_on}")
            sys.exit(128 + stopped)
    speed = (step - first_step) * args.num_seeds / (train_seconds or math.inf)
    greedy, random = records.returns("greedy")[1][-1].mean(), records.returns("random")[1].mean()
    say(
        f"run folder     {records.folder}\n"
        f"greedy return  {greedy:.3f}, random policy {random:.3f}, {args.eval_episodes} episodes\n"
        f"speed          {speed:.0f} steps/s, compiled in {compile_seconds:.0f} s\n"
        f"TensorBoard    {python} -m tensorboard.main --logdir {records.folder}"
    )
    return records.folder


def quiet_threads() -> None:
    """Lets the main thread alone say what went wrong: those of orbax and TensorBoard print stack traces of the same."""
    threading.excepthook = lambda _: None
    sys.unraisablehook = lambda _: None
    logging.getLogger("absl").addFilter(lambda record: record.levelno > logging.ERROR)


if __name__ == "__main__":
    quiet_threads()
    try:
        main(parse_args(sys.argv[1:]))
    except UserError as error:
        print(f"{SCRIPT}.py: error: {error}", file=sys.stderr)
        if isinstance(error, CannotWrite):  # which only the process that writes has met
            hosts.abandon(error.exit_code)
        hosts.leave()
        sys.exit(error.exit_code)
