"""Recurrent double DQN: replay of sequences, with the memory that they began with and a burn-in to refresh it.

Papers: Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning" (R2D2),
        https://openreview.net/forum?id=r1lyTjAqYX; and those of dqn_mlp.py
Run:    python dqn_rnn.py --env-id CartPoleEasy --partial-obs --memory MinGRU --hidden-size 128
Page:   docs/dqn_rnn.md

Shapes: T steps of a sequence, E environments, B sequences of a batch, A actions, H hidden; time first.
`start[t]` comes with `obs[t]` and is True at an episode's first; `terminated[t]`, `truncated[t]` follow `action[t]`.
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

import equinox as eqx
import flashbax as fbx
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
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tqdm import tqdm

import popgym_arcade
from popgym_arcade import device_memory, hosts
from popgym_arcade.convolution import convolve, keep_bytes
from popgym_arcade.memories import PSpherical, Spherical, Stack

SCRIPT = Path(__file__).stem
MAX_INT = 2**31 - 1
MAX_FRAMES = 2_000  # of a GIF
POLICIES = {"random": 1.0, "greedy": 0.0}  # epsilon
WAITER = ThreadPoolExecutor(1)
MIN_PRIORITY = 1e-6  # of a step without an error, so that it can be sampled again
SHARE_OF_MAX = 0.9  # a sequence's priority is so much of its largest error, the rest of their mean (R2D2)


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
    env_id: str = "CartPoleEasy"
    """id of the environment: any of popgym_arcade or gymnax with discrete actions"""
    partial_obs: bool = False
    """play the partially observable twin (popgym_arcade ids only)"""
    obs_size: int = 128
    """side of the frame in pixels, 128 or 256 (popgym_arcade ids only)"""
    env_params: tuple[str, ...] = ()
    """fields of the environment's parameters to replace, as NAME=VALUE ..."""
    seed: int = 0
    """seed of the first agent"""
    num_seeds: int = 1
    """agents trained together, with seeds SEED, SEED + 1, ..."""
    total_timesteps: int = 1_000_000
    """environment steps of each agent, rounded up to whole updates"""
    learning_rate: float = 2e-4
    """learning rate of Adam"""
    anneal_lr: bool = True
    """bring the learning rate linearly to zero over the training"""
    num_envs: int = 32
    """parallel environments"""
    buffer_size: int = 1_000_000
    """steps that the replay buffer holds, those of all environments together"""
    replay_storage: str = "states"
    """what the buffer holds of popgym_arcade ids: states, drawn when sampled, or frames; what is learned is the same"""
    save_buffer: bool = False
    """save the buffer in every checkpoint, so that a resumed run equals an unbroken one"""
    learning_starts: int = 10_000
    """steps in the buffer before the first gradient step"""
    num_steps: int = 16
    """steps of a sequence that are learned from"""
    burn_in: int = 16
    """steps before them that only bring the memory up to date; divides NUM_STEPS or is a multiple of it"""
    train_frequency: int = 32
    """steps of all environments together for each gradient step; divides NUM_ENVS x gcd(NUM_STEPS, BURN_IN)"""
    batch_size: int = 8
    """sequences sampled from the buffer for a gradient step"""
    n_step: int = 5
    """rewards in a target before it goes on with a value; fewer at the end of a sequence"""
    gamma: float = 0.99
    """discount"""
    target_network_frequency: int = 1_000
    """steps of all environments together between two updates of the target network"""
    tau: float = 1.0
    """share of the parameters that the target network takes over in an update"""
    max_grad_norm: float = 0.5
    """gradients are scaled down to this global norm"""
    start_e: float = 1.0
    """epsilon at the first step"""
    end_e: float = 0.05
    """epsilon after the exploration fraction"""
    exploration_fraction: float = 0.3
    """fraction of TOTAL_TIMESTEPS over which epsilon falls linearly"""
    prioritized: bool = False
    """sample steps with large errors more often, their losses weighted down"""
    prioritized_replay_alpha: float = 0.6
    """exponent of the errors in the probabilities; 0 is uniform (with PRIORITIZED)"""
    prioritized_replay_beta: float = 0.4
    """exponent of the weights at the first step, from where it rises linearly to 1 (with PRIORITIZED)"""
    memory: str = "MinGRU"
    """memory model: MinGRU or any of memax (LRU, GRU, FFM, ...; MLP remembers nothing)"""
    hidden_size: int = 512
    """width of the two memory layers"""
    prev_action: bool = True
    """feed the previous action to the memory"""
    encoder: str = "patch"
    """reader of pixels: patch (fast everywhere) or paper (POPGym Arcade's convolutions)"""
    precision: str = "float32"
    """matrix products of encoder and head in float32 or bfloat16; parameters and memory stay in float32"""
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
    """complete episodes of one evaluation"""
    target_return: float | None = None
    """stop early when two evaluations in a row reach this mean return in every seed"""
    checkpoint_every: int = 50_000
    """steps between two checkpoints; 0: only at the end"""
    capture_video: bool = False
    """leave a GIF of one greedy episode in the run folder (popgym_arcade ids only)"""
    resume: str = ""
    """run folder to continue from its last checkpoint"""
    from_run: str = ""
    """run folder whose arguments are this new run's, but those given beside"""

    @property
    def segment(self) -> int:
        """Steps that each environment plays in an update, stored with the memory before them; gcd(n, 0) = n."""
        return math.gcd(self.num_steps, self.burn_in)

    @property
    def update_size(self) -> int:
        """Steps of one update over all environments of a seed."""
        return self.num_envs * self.segment

    @property
    def gradient_steps(self) -> int:
        """Gradient steps of one update."""
        return self.update_size // self.train_frequency

    @property
    def minibatch_shape(self) -> tuple[int, int]:
        """Steps with a gradient of the sequences of a minibatch, and how many there are, on all devices together."""
        return self.num_steps, self.batch_size

    @property
    def num_updates(self) -> int:
        """Updates of the whole training."""
        return -(-self.total_timesteps // self.update_size)

    @property
    def buffer_length(self) -> int:
        """Segments of each environment that the buffer holds; no more than there will be."""
        return min(self.buffer_size // self.update_size, self.num_updates)

    @property
    def sequence_segments(self) -> int:
        """Segments of one sequence, burn-in and all."""
        return (self.burn_in + self.num_steps) // self.segment

    @property
    def grid(self) -> int:
        """Steps between points where evaluations and checkpoints fall, so that a stop elsewhere does not move them."""
        return -(-self.log_every // self.update_size) * self.update_size

    def checked(self) -> "Args":
        """These arguments with `total_timesteps` rounded up to whole updates.

        Raises:
            UserError: with the flag to change and what to change it to, before anything is compiled or written.
        """
        counts = "num_seeds total_timesteps num_envs buffer_size num_steps train_frequency batch_size"
        counts += " n_step target_network_frequency hidden_size log_every eval_episodes"
        limits = dict.fromkeys(counts.split(), (1, MAX_INT))
        limits |= {"seed": (0, MAX_INT - self.num_seeds), "eval_every": (0, MAX_INT), "checkpoint_every": (0, MAX_INT)}
        shares = "gamma tau start_e end_e exploration_fraction learning_rate"
        shares += " prioritized_replay_alpha prioritized_replay_beta"
        limits |= dict.fromkeys(shares.split(), (0, 1))
        limits |= {"max_grad_norm": (1e-6, MAX_INT), "learning_starts": (0, MAX_INT), "burn_in": (0, MAX_INT)}
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:
                allowed = f"{low} or more" if value < low and high == MAX_INT else f"a number from {low} to {high}"
                raise UserError(f"{flag(name)} {value}: use {allowed}")
        if self.burn_in and self.segment < min(self.burn_in, self.num_steps):
            below = self.burn_in // self.num_steps * self.num_steps
            multiples = f"{below} or {below + self.num_steps}"
            nearest = multiples if below else nearest_divisors(self.num_steps, self.burn_in)
            both = f"--burn-in {self.burn_in} neither divides --num-steps {self.num_steps} nor is a multiple of it"
            raise UserError(f"{both}: use {nearest}")
        if self.n_step > self.num_steps:
            raise UserError(f"--n-step {self.n_step} is more than --num-steps {self.num_steps}: use no more")
        if self.update_size % self.train_frequency:
            larger = self.train_frequency > self.update_size
            nearest = self.update_size if larger else nearest_divisors(self.update_size, self.train_frequency)
            steps = f"{self.num_envs} x {self.segment} = {self.update_size} steps of an update"
            raise UserError(f"--train-frequency {self.train_frequency} does not divide the {steps}: use {nearest}")
        check_devices(self, group=1)
        least = self.sequence_segments * self.update_size
        for name in ("buffer_size", "total_timesteps"):
            if getattr(self, name) < least:
                what = f"{flag(name)} {getattr(self, name)}"
                raise UserError(f"{what}: a sequence in every environment takes {least} steps, use as many or more")
        if self.learning_starts > self.buffer_length * self.update_size:
            whole = f"the buffer never holds more than {self.buffer_length * self.update_size} steps"
            raise UserError(f"--learning-starts {self.learning_starts}: {whole}, use no more")
        choices = {"encoder": ("patch", "paper"), "precision": ("float32", "bfloat16"), "memory": tuple(MEMORIES)}
        choices |= {"replay_storage": ("states", "frames")}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise UserError(f"{flag(name)} {getattr(self, name)!r} is unknown: use one of {', '.join(known)}")
        if not self.exp_name or "/" in self.exp_name:
            raise UserError(f"--exp-name {self.exp_name!r} becomes part of a folder's name: use a word without /")
        if self.target_return is not None and not (math.isfinite(self.target_return) and self.eval_every):
            raise UserError(f"--target-return {self.target_return}: use a finite number, and an --eval-every above 0")
        env, env_params = make_env(self)
        actions, observations = env.action_space(env_params), env.observation_space(env_params)
        if not isinstance(actions, spaces.Discrete):
            raise UserError(f"--env-id {self.env_id} has {type(actions).__name__} actions: use one with Discrete ones")
        if self.encoder == "paper" and is_pixels(observations) and observations.shape[:2] not in PAPER_LAYERS:
            raise UserError("--encoder paper reads frames of 128 or 256 px: use --encoder patch")
        if self.capture_video and not is_arcade(self):
            raise UserError(f"--capture-video films popgym_arcade ids only: leave it out with {self.env_id}")
        network = make_network(self, observations, actions.n)
        params = jax.eval_shape(functools.partial(init_params, network, observations), jax.random.key(0))
        size = sum(leaf.size for leaf in jax.tree.leaves(params))
        if size > MAX_PARAMS:
            what = f"--memory {self.memory} at --hidden-size {self.hidden_size} makes {size / 1e6:.0f}M parameters"
            raise UserError(f"{what}, more than {MAX_PARAMS / 1e6:.0f}M: lower --hidden-size")
        tuples = {name: tuple(value) for name, value in vars(self).items() if isinstance(value, list)}  # can be hashed
        return dataclasses.replace(self, total_timesteps=self.num_updates * self.update_size, **tuples)


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
    """Whether the environment is one of popgym_arcade, with twins and sizes."""
    return args.env_id in popgym_arcade.REGISTERED_ENVIRONMENTS


@functools.lru_cache
def make_env(args: Args):
    """The environment and its parameters, `--env-params` replaced. Raises UserError on anything unknown."""
    known = gymnax.registered_envs
    if args.env_id not in known:
        like = difflib.get_close_matches(args.env_id, known, 3, 0.4) or sorted(known)
        raise UserError(f"--env-id {args.env_id!r} is unknown: did you mean {' or '.join(like)}?")
    if args.partial_obs and not is_arcade(args):
        raise UserError(f"--env-id {args.env_id} has no partially observable twin: leave --partial-obs out")
    if is_arcade(args) and args.obs_size not in (128, 256):
        raise UserError(f"--obs-size {args.obs_size}: use 128 or 256")
    twin = {"partial_obs": args.partial_obs, "obs_size": args.obs_size} if is_arcade(args) else {}
    if args.env_id == "MNISTBandit-bsuite":
        raise UserError(f"--env-id {args.env_id} downloads data when it is made: use another id")
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


@struct.dataclass
class Output:
    """What the network says of each observation: q[T, B, A] float32."""

    q: jax.Array


class QNetwork(nn.Module):
    """Encoder, memory over features and previous action, action values."""

    args: Args
    num_actions: int
    pixels: bool

    def setup(self):
        args, dtype = self.args, jnp.dtype(self.args.precision)
        input_size = (512 if self.pixels else 256) + args.prev_action * self.num_actions
        self.encode = Encoder(args.encoder if self.pixels else "dense", dtype)
        self.remember = Memory(args.memory, input_size, args.hidden_size, window=args.burn_in + args.num_steps)
        self.norm = nn.LayerNorm()
        self.head = nn.Dense(self.num_actions)

    def __call__(self, carry: Any, obs: jax.Array, prev_action: jax.Array, start: jax.Array) -> tuple[Any, Output]:
        steps, batch = start.shape
        x = obs.swapaxes(0, 1).reshape(batch * steps, *obs.shape[2:])  # B first, which devices share
        x = in_pieces(self.encode, x) if self.args.remat else self.encode(x)
        x = x.reshape(batch, steps, -1).swapaxes(0, 1)  # [T, B, F]
        if self.args.prev_action:  # an episode's first observation follows no action: all zeros
            x = jnp.concatenate([x, jax.nn.one_hot(jnp.where(start, -1, prev_action), self.num_actions)], axis=-1)
        carry, x = self.remember(carry, x, start)
        return carry, Output(q=self.head(nn.leaky_relu(self.norm(x))))


def make_network(args: Args, observation_space, num_actions: int) -> QNetwork:
    """The network that these arguments describe; of the space only `shape` and `dtype` are read."""
    return QNetwork(args, num_actions, is_pixels(observation_space))


def initial_carry(network: QNetwork, batch: int) -> Any:
    """Memory of `batch` fresh sequences, leaves [B, ...]."""
    return network.bind({}).remember.initial_carry(batch)


@functools.partial(jax.jit, static_argnums=0, inline=True)  # memories take long to trace: once per shape
def forward(network: QNetwork, params, carry, obs, prev_action, start) -> tuple[Any, Output]:
    """Reads obs[T, B, ...], prev_action[T, B] int32 and start[T, B] bool with carry[B, ...]: (last carry, Output)."""
    return network.apply(params, carry, obs, prev_action, start)


def blank_inputs(network: QNetwork, observation_space, steps: int, batch: int) -> tuple:
    """What `forward` reads, here of [steps, batch] observations that show nothing: carry, obs, prev_action, start."""
    obs = jnp.zeros((steps, batch, *observation_space.shape), observation_space.dtype)
    prev_action, start = jnp.zeros((steps, batch), jnp.int32), jnp.ones((steps, batch), bool)
    return initial_carry(network, batch), obs, prev_action, start


def init_params(network: QNetwork, observation_space, key: jax.Array):
    """Fresh parameters, float32."""
    return network.init(key, *blank_inputs(network, observation_space, 1, 1))


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


# --------------------------------------------------------------------------------------------------------- algorithm


def epsilon_greedy(key: jax.Array, q: jax.Array, epsilon: jax.Array) -> jax.Array:
    """Actions [E] int32: uniform with probability epsilon, else the best of q[E, A]."""
    explore_key, action_key = jax.random.split(key)
    explore = jax.random.uniform(explore_key, q.shape[:1]) < epsilon
    return jnp.where(explore, jax.random.randint(action_key, q.shape[:1], 0, q.shape[1]), jnp.argmax(q, axis=-1))


def double_q_values(next_q: jax.Array, target_next_q: jax.Array) -> jax.Array:
    """Values [...] of next observations: Q'(s', argmax_a Q(s', a)) with next_q[..., A] = Q(s', .) of the network that
    learns and target_next_q[..., A] = Q'(s', .) of the target network (van Hasselt et al. 2016).
    """
    best = jnp.argmax(next_q, axis=-1, keepdims=True)
    return jnp.take_along_axis(target_next_q, best, axis=-1)[..., 0]


def n_step_targets(steps: "Step", next_value: jax.Array, gamma: float, n: int) -> jax.Array:
    """Targets [T, B]: n discounted rewards, then the value of where they led; next_value[T, B] is that of each step.

    The end of an episode cuts the sum short: after a terminated step comes nothing, after a truncated one its own next
    value, and so after the last of the sequence.
    """
    going_on = gamma * (1 - steps.terminated)

    def one_more(_, target):
        later = jnp.concatenate([target[1:], next_value[-1:]])
        return steps.reward + going_on * jnp.where(steps.truncated, next_value, later)

    return jax.lax.fori_loop(0, n - 1, one_more, steps.reward + going_on * next_value)


def importance_weights(probabilities: jax.Array, beta: jax.Array) -> jax.Array:
    """Weights [B] of steps that were sampled with these probabilities, the largest being 1 (Schaul et al. 2016).

    What has no probability has no weight: rounding in flashbax's sum tree lets it be sampled now and then.
    """
    least = jnp.where(probabilities > 0, probabilities, jnp.inf).min()
    return jnp.where(probabilities > 0, (jnp.maximum(probabilities, least) / least) ** -beta, 0.0)


def epsilon_at(args: Args, update: jax.Array) -> jax.Array:
    """Exploration rate of a rollout; `update` counts the rollouts before it."""
    duration = args.exploration_fraction * args.num_updates
    fraction = jnp.clip(update / duration, 0, 1) if duration else 1.0
    return args.start_e + fraction * (args.end_e - args.start_e)


def learning_rate_at(args: Args, update: jax.Array) -> jax.Array:
    """Learning rate of an update; `update` counts the updates before it."""
    return args.learning_rate * (1 - update / args.num_updates) if args.anneal_lr else args.learning_rate


def target_share(args: Args, update: jax.Array, index: jax.Array) -> jax.Array:
    """Share of the parameters that the target network takes over after gradient step `index` of an update: `tau` if a
    multiple of `target_network_frequency` is among the steps that are its own, else 0.
    """
    steps = args.update_size // args.gradient_steps
    before = update * args.update_size + index * steps
    due = (before + steps) // args.target_network_frequency > before // args.target_network_frequency
    return jnp.where(due, args.tau, 0.0)


def beta_at(args: Args, update: jax.Array) -> jax.Array:
    """Exponent of the importance weights in an update, rising from `prioritized_replay_beta` to 1."""
    return args.prioritized_replay_beta + (1 - args.prioritized_replay_beta) * update / args.num_updates


@struct.dataclass
class Actor:
    """Environments being played and the memory of their player, [E, ...]."""

    env_state: Any
    obs: jax.Array
    carry: Any  # the memory before obs is read
    prev_action: jax.Array  # int32
    start: jax.Array  # bool
    episode_return: jax.Array  # float32, of the episode under way
    episode_length: jax.Array  # int32
    key: jax.Array


@struct.dataclass
class Step:
    """What the replay buffer holds of a step: [E, ...] when it is played, [T, B, ...] when it is learned from."""

    seen: Any  # the environment's state that the step began in, or its observation
    prev_action: jax.Array  # int32
    start: jax.Array
    action: jax.Array  # int32
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    next_seen: Any  # the state that the step led to, or its observation, before any reset


@struct.dataclass
class Segment:
    """An item of the replay buffer: steps on end of one environment, and the memory before the first."""

    carry: Any
    steps: Step


@struct.dataclass
class Transition:
    """One step of all environments, [E, ...]; several are stacked to [T, E, ...]."""

    step: Step
    episode_return: jax.Array  # up to and with this step
    episode_length: jax.Array

    @property
    def terminated(self) -> jax.Array:
        return self.step.terminated

    @property
    def truncated(self) -> jax.Array:
        return self.step.truncated


@struct.dataclass
class TrainState:
    """Everything that training goes on from."""

    params: Any
    target_params: Any
    opt_state: Any
    replay: Any  # flashbax's; None in a checkpoint without it
    actor: Actor
    key: jax.Array
    update: jax.Array  # int32, updates so far


@struct.dataclass
class Learner:
    """What a gradient step changes, and the sums of its metrics."""

    params: Any
    target_params: Any
    opt_state: Any
    replay: Any  # its priorities
    key: jax.Array
    learned: dict


def stores_states(args: Args) -> bool:
    """Whether the buffer holds states, from which frames are drawn, instead of observations."""
    return is_arcade(args) and args.replay_storage == "states"


def make_replay(args: Args):
    """flashbax's ring buffer [E, N] of segments, of which it samples several on end, and the shapes of one."""
    env, env_params = make_env(args)
    network = make_network(args, env.observation_space(env_params), env.action_space(env_params).n)
    obs, env_state = jax.eval_shape(env.reset, jax.random.key(0), env_params)
    seen = env_state if stores_states(args) else obs
    number, scalar, truth = (jax.ShapeDtypeStruct((), dtype) for dtype in (jnp.int32, jnp.float32, bool))
    step = Step(seen, number, truth, number, scalar, truth, truth, seen)
    steps = jax.tree.map(lambda x: jax.ShapeDtypeStruct((args.segment, *x.shape), x.dtype), step)
    item = Segment(jax.eval_shape(lambda: jax.tree.map(lambda x: x[0], initial_carry(network, 1))), steps)
    sizes = {
        "add_batch_size": args.num_envs,
        "sample_batch_size": args.batch_size,
        "max_length_time_axis": args.buffer_length,
        "min_length_time_axis": max(args.sequence_segments, -(-args.learning_starts // args.update_size)),
        "sample_sequence_length": args.sequence_segments,
        "period": 1,
    }
    if not args.prioritized:
        return fbx.make_trajectory_buffer(**sizes), item
    how = {"priority_exponent": args.prioritized_replay_alpha, "device": jax.default_backend()}
    return fbx.make_prioritised_trajectory_buffer(**sizes, **how), item


def replay_bytes(args: Args) -> int:
    """Bytes that the replay buffers of all seeds take."""
    _, item = make_replay(args)
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(item))
    return size * args.buffer_length * args.num_envs * args.num_seeds


def check_replay(args: Args) -> None:
    """Raises UserError when the replay buffers do not fit into the memory of the device."""
    needed, there = replay_bytes(args) / 1e9, device_memory.available() / 1e9
    if needed > there:
        instead = ", or use --replay-storage states" if is_arcade(args) and not stores_states(args) else ""
        instead = instead or f" or --hidden-size, or use another --memory than {args.memory}, which is stored with them"
        raise UserError(f"--buffer-size {args.buffer_size} takes {needed:.0f} GB of {there:.0f}: lower it{instead}")


@struct.dataclass
class Slots:
    """What the network reads of a sequence to learn from it, [S, B, ...]: all its observations and next observations.

    A step's next observation comes right after its own. Mostly that is the next step's; after a truncated step and
    after the last it has a slot to itself, and where an episode starts anew, its start flag wipes out the memory of it.
    Four steps, the second truncated, take six slots: o0 o1 o1' o2 o3 o3', with the steps' places 0, 1, 3, 4.
    """

    seen: Any
    prev_action: jax.Array
    start: jax.Array
    place: jax.Array  # [T, B] int32, each step's slot


def lay_out(steps: Step, size: int) -> Slots:
    """The slots of steps[T, B, ...], `size` of them; those behind the last next observation repeat it.

    `size` has to be T + 1 and one more for each step before the last that may be truncated: the rest is dropped.
    """
    length, batch = steps.start.shape
    columns, numbers = jnp.arange(batch), jnp.arange(length)[:, None]
    truncations_before = jnp.cumsum(steps.truncated, axis=0) - steps.truncated
    place = numbers + truncations_before
    apart = steps.truncated | (numbers == length - 1)  # [T, B], the steps whose next observation has its own slot
    next_place = jnp.where(apart, place + 1, size)  # `size` is no slot: dropped

    # What each slot holds, as a row of the T observations followed by the T next ones; unused slots the last of these.
    source = jnp.full((size, batch), 2 * length - 1)
    source = source.at[place, columns].set(numbers, mode="drop")
    source = source.at[next_place, columns].set(length + numbers, mode="drop")

    def gather(now, after):
        return jax.tree.map(lambda x, y: jnp.concatenate([x, y])[source, columns], now, after)

    return Slots(
        seen=gather(steps.seen, steps.next_seen),
        prev_action=gather(steps.prev_action, steps.action),
        start=gather(steps.start, jnp.zeros_like(steps.start)),
        place=place,
    )


def read_sequence(network: QNetwork, params, carry, past: Step, slots: Slots) -> tuple[jax.Array, jax.Array]:
    """Q [T, B, A] of each step's observation and of its next one; no gradient goes back into the burn-in `past`."""
    if past.start.shape[0]:
        carry, _ = forward(network, params, carry, past.seen, past.prev_action, past.start)
    _, output = forward(network, params, jax.lax.stop_gradient(carry), slots.seen, slots.prev_action, slots.start)
    columns = jnp.arange(slots.start.shape[1])
    return output.q[slots.place, columns], output.q[slots.place + 1, columns]


def make_actor(args: Args):
    """The network, begin(key, num_envs) -> Actor, act(params, actor, epsilon) -> (Actor, Transition, step's info)."""
    env, env_params = make_env(args)
    network = make_network(args, env.observation_space(env_params), env.action_space(env_params).n)

    def begin(key: jax.Array, num_envs: int) -> Actor:
        key, reset_key = jax.random.split(key)
        obs, env_state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(reset_key, num_envs), env_params)
        return Actor(
            env_state=env_state,
            obs=obs,
            carry=initial_carry(network, num_envs),
            prev_action=jnp.zeros(num_envs, jnp.int32),
            start=jnp.ones(num_envs, bool),
            episode_return=jnp.zeros(num_envs),
            episode_length=jnp.zeros(num_envs, jnp.int32),
            key=key,
        )

    def read(params, carry, obs, prev_action, start):
        carry, output = forward(network, params, carry, obs[None], prev_action[None], start[None])
        return carry, output.q[0]

    def act(params, actor: Actor, epsilon) -> tuple[Actor, Transition, dict]:
        key, action_key, step_key = jax.random.split(actor.key, 3)
        carry, q = read(params, actor.carry, actor.obs, actor.prev_action, actor.start)
        action = epsilon_greedy(action_key, q, epsilon)
        obs, env_state, reward, terminated, truncated, info = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
            jax.random.split(step_key, len(action)), actor.env_state, action, env_params
        )
        terminated = terminated.astype(bool)
        truncated = truncated & ~terminated  # some gymnax ids set both: the natural end wins
        done = terminated | truncated
        transition = Transition(
            step=Step(
                seen=actor.env_state if stores_states(args) else actor.obs,
                prev_action=actor.prev_action,
                start=actor.start,
                action=action,
                reward=reward.astype(jnp.float32),
                terminated=terminated,
                truncated=truncated,
                next_seen=info["final_state" if stores_states(args) else "final_observation"],
            ),
            episode_return=actor.episode_return + reward,
            episode_length=actor.episode_length + 1,
        )
        actor = Actor(
            env_state=env_state,
            obs=obs,
            carry=carry,
            prev_action=action,
            start=done,
            episode_return=jnp.where(done, 0, transition.episode_return),
            episode_length=jnp.where(done, 0, transition.episode_length),
            key=key,
        )
        return actor, transition, info

    return network, begin, act


def make_train(args: Args):
    """The pure functions init(key) -> TrainState and train_chunk(state, num_updates) -> (TrainState, metrics).

    The metrics are sums over the updates; `num_updates` is traced, so that one program serves chunks of every length.
    With several seeds map both over a leading axis named "seed" (`over_seeds`).
    """
    env, env_params = make_env(args)
    network, begin, act = make_actor(args)
    buffer, item = make_replay(args)
    optimizer = optax.chain(optax.clip_by_global_norm(args.max_grad_norm), optax.scale_by_adam())
    most_truncations = -(-(args.num_steps - 1) // max(1, int(env_params.max_steps_in_episode)))

    def init(key: jax.Array) -> TrainState:
        key, network_key, actor_key = jax.random.split(key, 3)
        params = init_params(network, env.observation_space(env_params), network_key)
        return TrainState(
            params=params,
            target_params=jax.tree.map(jnp.copy, params),
            opt_state=optimizer.init(params),
            replay=buffer.init(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), item)),
            actor=begin(actor_key, args.num_envs),
            key=key,
            update=jnp.int32(0),
        )

    def observe(seen):
        """Observations [T, B, ...] of what the buffer holds of them."""
        return jax.vmap(jax.vmap(env.get_obs))(seen) if stores_states(args) else seen

    def learn(update, index, learner: Learner) -> Learner:
        """One gradient step on B sequences from the buffer."""
        key, sample_key = jax.random.split(learner.key)
        sample = spread(args, buffer.sample(learner.replay, sample_key))  # segments [B, N, ...]
        carry = jax.tree.map(lambda x: x[:, 0], sample.experience.carry)
        sequence = jax.tree.map(
            lambda x: x.reshape(x.shape[0], -1, *x.shape[3:]).swapaxes(0, 1), sample.experience.steps
        )  # [burn-in + T, B, ...]
        past = jax.tree.map(lambda x: x[: args.burn_in], sequence)
        steps = jax.tree.map(lambda x: x[args.burn_in :], sequence)
        slots = lay_out(steps, args.num_steps + 1 + most_truncations)
        weight = jnp.ones(args.batch_size)
        if args.prioritized:
            weight = importance_weights(sample.probabilities, beta_at(args, update))

        read = functools.partial(read_sequence, network)
        past = past.replace(seen=observe(past.seen))
        slots = slots.replace(seen=observe(slots.seen))
        _, target_next_q = read(learner.target_params, carry, past, slots)

        def loss(params):
            """Half the weighted mean squared distance of Q(s_t, a_t) to the targets [T, B]; mean Q, priorities [B]."""
            all_q, next_q = read(params, carry, past, slots)
            next_value = double_q_values(jax.lax.stop_gradient(next_q), target_next_q)
            target = n_step_targets(steps, next_value, args.gamma, args.n_step)
            q = jnp.take_along_axis(all_q, steps.action[..., None], axis=-1)[..., 0]
            error = jnp.abs(q - target)
            priority = SHARE_OF_MAX * error.max(axis=0) + (1 - SHARE_OF_MAX) * error.mean(axis=0)
            return 0.5 * (weight * jnp.square(error)).mean(), (q.mean(), priority)

        (td_loss, (q_mean, priority)), grads = jax.value_and_grad(loss, has_aux=True)(learner.params)
        direction, opt_state = optimizer.update(grads, learner.opt_state, learner.params)
        rate = learning_rate_at(args, update)
        learned = {"td_loss": td_loss, "q_values": q_mean, "grad_norm": optax.tree.norm(grads)}
        replay = learner.replay
        if args.prioritized:
            replay = buffer.set_priorities(replay, sample.indices, jnp.where(weight > 0, priority + MIN_PRIORITY, 0))
        params = jax.tree.map(lambda x, step: x - rate * step, learner.params, direction)
        return Learner(
            params=params,
            target_params=optax.incremental_update(params, learner.target_params, target_share(args, update, index)),
            opt_state=opt_state,
            replay=replay,
            key=key,
            learned=jax.tree.map(jnp.add, learner.learned, learned),
        )

    @functools.partial(jax.jit, inline=True)  # traced once for `zero` below and for the loop
    def update(state: TrainState) -> tuple[TrainState, dict]:
        epsilon = epsilon_at(args, state.update)
        rollout_step = lambda actor, _: act(state.params, actor, epsilon)[:2]  # noqa: E731
        actor, rollout = jax.lax.scan(rollout_step, state.actor, length=args.segment)
        played = jax.tree.map(lambda x: x.swapaxes(0, 1), rollout.step)  # [E, T, ...]
        replay = buffer.add(state.replay, jax.tree.map(lambda x: x[:, None], Segment(state.actor.carry, played)))

        ready = buffer.can_sample(replay)
        if args.num_seeds > 1:  # all are at the same step; what differs between seeds would be computed and thrown away
            ready = jax.lax.pmax(ready.astype(jnp.int32), "seed") > 0
        gradient_steps = jnp.where(ready, args.gradient_steps, 0)
        key, learn_key = jax.random.split(state.key)
        nothing = dict.fromkeys(("td_loss", "q_values", "grad_norm"), jnp.float32(0))
        learner = Learner(state.params, state.target_params, state.opt_state, replay, learn_key, nothing)
        learner = jax.lax.fori_loop(0, gradient_steps, functools.partial(learn, state.update), learner)

        done = rollout.terminated | rollout.truncated
        metrics = learner.learned | {
            "updates": jnp.int32(1),
            "gradient_steps": gradient_steps,
            "episodes": done.sum(dtype=jnp.int32),
            "episodic_return": (done * rollout.episode_return).sum(),
            "episodic_length": (done * rollout.episode_length).sum(dtype=jnp.float32),
        }
        state = TrainState(
            params=learner.params,
            target_params=learner.target_params,
            opt_state=learner.opt_state,
            replay=learner.replay,
            actor=actor,
            key=key,
            update=state.update + 1,
        )
        return state, metrics

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
    "replay buffer": "lower --buffer-size",
    "minibatch": "lower --batch-size",
}


def minibatch_bytes(args: Args, state: TrainState) -> int:
    """Bytes of a minibatch's observations, and of what is held while the network is differentiated on them."""
    network, _, _ = make_actor(args)
    space = jax.ShapeDtypeStruct(state.actor.obs.shape[1:], state.actor.obs.dtype)
    inputs = functools.partial(blank_inputs, network, space, *args.minibatch_shape)
    backward = device_memory.backward_bytes(lambda params: forward(network, params, *inputs())[1], state.params)
    return device_memory.byte_size(jax.eval_shape(inputs)) + backward


def memory_needed(args: Args) -> dict[str, float]:
    """Bytes that training takes on each device, by what takes them: "state", "replay buffer", "minibatch".

    What XLA has to hold at once: parameters, optimiser, environments; the stored steps; of a minibatch the observations
    and next observations, and what the backward pass needs of the forward pass.
    """
    mesh, seeds = device_mesh(args), args.num_seeds
    alone = dataclasses.replace(args, num_seeds=1, num_devices=1)
    state = jax.eval_shape(make_train(alone)[0], jax.random.key(0))

    minibatch = minibatch_bytes(alone, state)
    if args.remat:  # of the pieces one at a time is there as a whole
        whole = minibatch_bytes(dataclasses.replace(alone, remat=False), state)
        minibatch += (whole - minibatch) / PIECES
    own = seeds / mesh.size if mesh.axis_names == ("seeds",) else seeds  # parameters on each device
    whole, actor, replay = map(device_memory.byte_size, (state, state.actor, state.replay))
    return {
        "state": own * (whole - actor - replay) + seeds * actor / mesh.size,
        "replay buffer": seeds * replay / mesh.size,
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
    *("global_step", "seed", "env_id", "partial_obs", "policy", "episodes"),
    *("return_mean", "return_std", "return_min", "return_max", "length_mean", "wall_seconds"),
)
MAY_DIFFER = (  # on resuming
    *("log_every", "eval_every", "checkpoint_every", "save_buffer", "capture_video"),
    *("run_dir", "resume", "from_run"),
    *("num_devices", "distributed", "coordinator_address", "num_processes", "process_id"),
    *("deterministic", "compile_cache", "track", "wandb_project_name", "wandb_entity"),
)  # on resuming


PACKAGES = "jax jaxlib flax flashbax gymnax memax equinox optax orbax-checkpoint numpy tyro tensorboard popgym-arcade"


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


def without_replay(args: Args, state: TrainState) -> TrainState:
    """What a checkpoint holds of the state: the replay buffer only with `--save-buffer`."""
    return state if args.save_buffer else state.replace(replay=None)


def file_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a checkpoint, by its path in the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("sha256."))
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def checkpoint_manager(folder: str | Path, reading: bool) -> ocp.CheckpointManager:
    """Keeps the last three checkpoints of a run folder; unless only reading, clears away unfinished ones."""
    options = ocp.CheckpointManagerOptions(
        max_to_keep=3, enable_async_checkpointing=False, cleanup_tmp_directories=not reading
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
    """The last sound checkpoint of a run: its step and its state. Raises UserError without one that fits.

    The replay buffer is empty where the checkpoint has none, and a line says so.
    """
    step = find_checkpoint(folder)
    state = abstract_state(args)
    like = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)  # noqa: E731
    template = jax.tree.map(like, state, shardings(args, state))
    with checkpoint_manager(folder, reading=True) as manager:
        if any(name.startswith("replay.") for name in manager.item_metadata(step).tree):
            return step, restored(folder, step, template)
    again = step + args.learning_starts
    then = f"at step {again}" if again < args.total_timesteps else "no more, --learning-starts is more than is left"
    say(f"{folder} was saved without --save-buffer: the replay buffer starts empty, and learning goes on {then}")
    init, _ = make_train(args)
    empty = jax.jit(seed_by_seed(lambda key: init(key).replay, args), out_shardings=shardings(args, state).replay)
    empty = empty(everywhere(args, make_keys(args)[0]))
    return step, restored(folder, step, template.replace(replay=None)).replace(replay=empty)


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
        """A row of `eval.csv` for every seed, a line for the reader, a point of the greedy policy's curve."""
        shape = self.args.num_seeds, -1
        returns, lengths = (np.asarray(x, float).reshape(shape) for x in (episodes.returns, episodes.lengths))
        partial_obs = getattr(self.args, "partial_obs", False)  # a script for vectors has no twins
        for i in range(self.args.num_seeds):
            row = [step, self.args.seed + i, self.args.env_id, partial_obs, policy, returns.shape[1]]
            numbers = *(f(returns[i]) for f in (np.mean, np.std, np.min, np.max)), lengths[i].mean(), seconds
            row += [float(number) for number in numbers]
            self.evaluations.append(dict(zip(EVAL_COLUMNS, map(str, row), strict=True)))
        self.write_evaluations()
        if policy == "greedy":
            self.scalar("eval/episodic_return", returns.mean(axis=1), step)
        say(f"step {step}  {policy} policy: return {returns.mean():.3f} over {returns.size} episodes")

    def returns(self, policy: str) -> tuple[np.ndarray, np.ndarray]:
        """A policy's evaluations so far: global steps [N] and mean returns [N, seeds]."""
        rows = [row for row in self.evaluations if row["policy"] == policy]
        steps, means = (np.array([float(row[name]) for row in rows]) for name in ("global_step", "return_mean"))
        return steps[:: self.args.num_seeds], means.reshape(-1, self.args.num_seeds)

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
    """`curve.png` in the run folder: greedy return over steps for every seed, and the random policy's."""
    from matplotlib.figure import Figure  # here, since it takes half a second to import

    args = records.args
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    steps, means = records.returns("greedy")
    for i in range(args.num_seeds):
        axes.plot(steps, means[:, i], marker="o", label=f"greedy, seed {args.seed + i}")
    axes.axhline(records.returns("random")[1].mean(), color="gray", linestyle="--", label="random policy")
    axes.set_title(records.folder.resolve().name.rpartition("__")[0].replace("__", " · "), fontsize=10)
    axes.set(xlabel="environment steps", ylabel=f"return, mean of {args.eval_episodes} episodes", xlim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(records.folder / "curve.png", dpi=150)


def record_episode(args: Args, params, key: jax.Array, path: Path) -> None:
    """A GIF of a greedy episode of the first seed: what the agent sees, and beside a partial twin the full frame."""
    from PIL import Image

    if args.num_seeds > 1:
        args = dataclasses.replace(args, num_seeds=1)
        params, key = jax.tree.map(lambda x: x[0], (params, key))
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
    gradient_steps = np.where(sums["gradient_steps"] > 0, sums["gradient_steps"], math.nan)
    episodes = np.where(sums["episodes"] > 0, sums["episodes"], math.nan)
    values = {f"losses/{name}": sums[name] / gradient_steps for name in ("td_loss", "q_values", "grad_norm")}
    values |= {f"charts/{name}": sums[name] / episodes for name in ("episodic_return", "episodic_length")}
    values |= {"charts/episodes": episodes, "charts/SPS": sums["updates"].sum() * args.update_size / seconds}
    values |= {"charts/epsilon": epsilon_at(args, update), "charts/learning_rate": learning_rate_at(args, update)}
    means = {name: records.scalar(name, value, step) for name, value in values.items()}
    speed, episodic_return = means["charts/SPS"], means["charts/episodic_return"]
    told = "-" if math.isnan(episodic_return) else f"{episodic_return:.3f}"
    bar.set_postfix({"SPS": round(speed), "return": told}, refresh=False)
    bar.update(step - bar.n)
    if bar.disable:
        left = (args.total_timesteps - step) * args.num_seeds / speed
        say(f"step {step}  SPS {speed:.0f}  return {told}  left {left:.0f} s")


def begin_run(args: Args, train_keys: jax.Array) -> tuple[Records, int, TrainState]:
    """A new run folder, or the one to go on with: its records, global step and state."""
    check_replay(args)
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
                    save_checkpoint(records.folder, step, without_replay(args, state))
                    saved_at = step
            if not heard(stop) and step not in records.returns("greedy")[0]:
                record_evaluation("greedy")
        if saved_at != step:
            save_checkpoint(records.folder, step, without_replay(args, state))
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
