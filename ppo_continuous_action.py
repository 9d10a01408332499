"""PPO for continuous actions, on vectors, with observations and rewards normalised.

Paper: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", https://arxiv.org/abs/1707.06347
Run:   python ppo_continuous_action.py --env-id Pendulum-v1
Page:  docs/ppo_continuous_action.md

Shapes: T steps of a rollout, E environments, B steps of a minibatch, A numbers of an action, H hidden; time first.
`terminated[t]` and `truncated[t]` follow `action[t]`.
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
import flax.linen as nn
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import tyro
from flax import struct
from gymnax.environments import spaces
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tqdm import tqdm

from popgym_arcade import device_memory, hosts

SCRIPT = Path(__file__).stem
MAX_INT = 2**31 - 1
SAMPLE, GREEDY, RANDOM = range(3)  # policies: the agent's own, its mean action, uniform
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
    env_id: str = "Pendulum-v1"
    """id of the environment: any of gymnax with Box actions"""
    env_params: tuple[str, ...] = ()
    """fields of the environment's parameters to replace, as NAME=VALUE ..."""
    seed: int = 0
    """seed of the first agent"""
    num_seeds: int = 1
    """agents trained together, with seeds SEED, SEED + 1, ..."""
    total_timesteps: int = 1_000_000
    """environment steps of each agent, rounded up to whole updates"""
    learning_rate: float = 3e-4
    """learning rate of Adam"""
    anneal_lr: bool = True
    """bring the learning rate linearly to zero over the training"""
    num_envs: int = 32
    """parallel environments"""
    num_steps: int = 128
    """steps of each environment in one rollout"""
    num_minibatches: int = 8
    """minibatches of a rollout; each holds NUM_ENVS * NUM_STEPS / NUM_MINIBATCHES steps"""
    update_epochs: int = 4
    """passes over a rollout"""
    gamma: float = 0.99
    """discount"""
    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation"""
    norm_obs: bool = True
    """give the network observations of running mean 0 and variance 1, clipped at 10"""
    norm_reward: bool = True
    """learn from rewards divided by the running deviation of their discounted sums, clipped at 10"""
    norm_adv: bool = True
    """normalise the advantages of each minibatch"""
    clip_coef: float = 0.2
    """an action's gradient is cut once its new density over its old one is this far from 1"""
    clip_vloss: bool = True
    """cut the value loss where the value has moved by more than CLIP_COEF"""
    ent_coef: float = 0.0
    """weight of the entropy bonus"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 0.5
    """gradients are scaled down to this global norm"""
    target_kl: float | None = None
    """no more epochs for a rollout once the policy has moved by this approximate KL divergence"""
    hidden_size: int = 64
    """width of the two hidden layers"""
    precision: str = "float32"
    """matrix products in float32 or bfloat16; parameters and the last layer stay in float32"""
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
    resume: str = ""
    """run folder to continue from its last checkpoint"""
    from_run: str = ""
    """run folder whose arguments are this new run's, but those given beside"""

    @property
    def update_size(self) -> int:
        """Steps of one rollout over all environments of a seed, T * E."""
        return self.num_envs * self.num_steps

    @property
    def minibatch_shape(self) -> tuple[int, int]:
        """Steps on end, that is one, and how many such there are in a minibatch, on all devices together."""
        return 1, self.update_size // self.num_minibatches

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
        limits |= dict.fromkeys("gamma gae_lambda learning_rate".split(), (0, 1))
        limits |= {"clip_coef": (1e-6, MAX_INT), "ent_coef": (0, MAX_INT), "vf_coef": (0, MAX_INT)}
        limits |= {"max_grad_norm": (1e-6, MAX_INT), "target_kl": (1e-6, MAX_INT)}
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                allowed = f"{low} or more" if value < low and high == MAX_INT else f"a number from {low} to {high}"
                raise UserError(f"{flag(name)} {value}: use {allowed}")
        if self.update_size > MAX_INT:
            raise UserError(f"--num-envs * --num-steps = {self.update_size} steps: a rollout has at most {MAX_INT}")
        if self.update_size % self.num_minibatches:
            both = f"--num-minibatches {self.num_minibatches} does not divide NUM_ENVS * NUM_STEPS = {self.update_size}"
            raise UserError(f"{both}: use {nearest_divisors(self.update_size, self.num_minibatches)}")
        check_devices(self, group=self.num_minibatches // math.gcd(self.num_minibatches, self.num_steps))
        if self.norm_adv and self.update_size == self.num_minibatches:
            raise UserError(
                "--norm-adv turns an advantage alone into zero: lower --num-minibatches or use --no-norm-adv"
            )
        if self.precision not in ("float32", "bfloat16"):
            raise UserError(f"--precision {self.precision!r} is unknown: use one of float32, bfloat16")
        if not self.exp_name or "/" in self.exp_name:
            raise UserError(f"--exp-name {self.exp_name!r} becomes part of a folder's name: use a word without /")
        if self.target_return is not None and not (math.isfinite(self.target_return) and self.eval_every):
            raise UserError(f"--target-return {self.target_return}: use a finite number, and an --eval-every above 0")
        env, env_params = make_env(self)
        actions, observations = env.action_space(env_params), env.observation_space(env_params)
        if not isinstance(actions, spaces.Box):
            raise UserError(f"--env-id {self.env_id} has {type(actions).__name__} actions: use one with Box ones")
        network = make_network(self, observations, math.prod(actions.shape))
        params = jax.eval_shape(functools.partial(init_params, network, observations), jax.random.key(0))
        size = sum(leaf.size for leaf in jax.tree.leaves(params))
        if size > MAX_PARAMS:
            what = f"--hidden-size {self.hidden_size} makes {size / 1e6:.0f}M parameters"
            raise UserError(f"{what}, more than {MAX_PARAMS / 1e6:.0f}M: lower --hidden-size")
        return dataclasses.replace(self, total_timesteps=self.num_updates * self.update_size)


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


@functools.lru_cache
def make_env(args: Args):
    """The environment and its parameters, `--env-params` replaced. Raises UserError on anything unknown."""
    known = gymnax.registered_envs
    if args.env_id not in known:
        like = difflib.get_close_matches(args.env_id, known, 3, 0.4) or sorted(known)
        raise UserError(f"--env-id {args.env_id!r} is unknown: did you mean {' or '.join(like)}?")
    if args.env_id == "MNISTBandit-bsuite":
        raise UserError(f"--env-id {args.env_id} downloads data when it is made: use another id")
    env, env_params = gymnax.make(args.env_id)
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


MAX_PARAMS = 50_000_000


def leaf_name(path) -> str:
    """A leaf's place in its tree, as "layers.0.gate.weight"."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


@struct.dataclass
class Moments:
    """Running mean and variance of so many samples."""

    mean: jax.Array
    var: jax.Array
    count: jax.Array

    @classmethod
    def fresh(cls, shape: tuple[int, ...]) -> "Moments":
        """Mean 0 and variance 1, soon forgotten: they weigh as much as a ten-thousandth of a sample."""
        return cls(mean=jnp.zeros(shape), var=jnp.ones(shape), count=jnp.float32(1e-4))

    def updated(self, x: jax.Array) -> "Moments":
        """With the samples x[N, ...] (Chan et al. 1979, the parallel algorithm)."""
        count = self.count + x.shape[0]
        weight = x.shape[0] / count
        delta = x.mean(axis=0) - self.mean
        var = (1 - weight) * self.var + weight * x.var(axis=0) + weight * (1 - weight) * delta**2
        return Moments(mean=self.mean + weight * delta, var=var, count=count)


@struct.dataclass
class Output:
    """What the network says of each observation: mean[T, B, A], log_std[A] of the action, value[T, B], float32."""

    mean: jax.Array
    log_std: jax.Array
    value: jax.Array


class Tower(nn.Module):
    """Two hidden layers and a linear head: x[T, B, F] -> [T, B, outputs]."""

    args: Args
    outputs: int
    scale: float  # of the head's weights at the start

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtype, orthogonal = jnp.dtype(self.args.precision), nn.initializers.orthogonal
        for _ in range(2):
            x = nn.tanh(nn.Dense(self.args.hidden_size, dtype=dtype, kernel_init=orthogonal(math.sqrt(2)))(x))
        return nn.Dense(self.outputs, kernel_init=orthogonal(self.scale))(x)


class ActorCritic(nn.Module):
    """Two towers that share nothing but the normalised observation: one gives the policy, the other the value.

    What normalises the observations is among the network's variables: it is saved and handed on with the parameters.
    """

    args: Args
    num_actions: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> Output:
        x = obs.reshape(*obs.shape[:2], -1).astype(jnp.float32)
        moments = self.variable("moments", "obs", Moments.fresh, x.shape[2:]).value
        if self.args.norm_obs:
            x = jnp.clip((x - moments.mean) / jnp.sqrt(moments.var + 1e-8), -10, 10)
        mean = Tower(self.args, self.num_actions, scale=0.01, name="actor")(x)
        value = Tower(self.args, 1, scale=1.0, name="critic")(x)[..., 0]
        log_std = self.param("log_std", nn.initializers.zeros, (self.num_actions,))
        return Output(mean=mean, log_std=log_std, value=value)


def make_network(args: Args, observation_space, num_actions: int) -> ActorCritic:
    """The network that these arguments describe; an action has `num_actions` components."""
    return ActorCritic(args, num_actions)


def initial_carry(network: ActorCritic, batch: int) -> Any:
    """Nothing: this network remembers nothing. (The analysis scripts ask every script for it.)"""
    return ()


def forward(network: ActorCritic, params, carry, obs, prev_action=None, start=None) -> tuple[Any, Output]:
    """Reads obs[T, B, ...]: (carry, Output). What only a memory needs is taken, and plays no part."""
    return carry, network.apply(params, obs)


def blank_inputs(network: ActorCritic, observation_space, steps: int, batch: int) -> tuple:
    """What `forward` reads, here of [steps, batch] observations that show nothing: no carry, obs."""
    return (), jnp.zeros((steps, batch, *observation_space.shape), observation_space.dtype)


def init_params(network: ActorCritic, observation_space, key: jax.Array):
    """Fresh parameters ("params") and moments of the observations ("moments"), float32."""
    _, obs = blank_inputs(network, observation_space, 1, 1)
    return network.init(key, obs)


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


def pick_steps(args: Args, tree, steps: jax.Array, envs: jax.Array):
    """`x[steps, envs]` of each leaf x[T, E, ...]: numbers [..., B], along the last axis in the order of devices.

    Every device has the environments that it looks for: nothing travels.
    """
    mesh = device_mesh(args)
    alone = mesh.size == 1 or mesh.axis_names == ("seeds",)

    def own(tree, steps, envs):
        first = 0 if alone else jax.lax.axis_index("envs") * (args.num_envs // mesh.size)
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[steps * x.shape[1] + envs - first], tree)

    index = P(*[None] * (steps.ndim - 1), "envs")
    specs = P(None, "envs"), index, index
    find = own if alone else jax.shard_map(own, mesh=mesh, in_specs=specs, out_specs=index)
    return find(tree, steps, envs)


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


def policy_of(output: Output):
    """The distribution of actions [..., A]: independent normals."""
    return distrax.MultivariateNormalDiag(output.mean, jnp.broadcast_to(jnp.exp(output.log_std), output.mean.shape))


def choose(key: jax.Array, output: Output, policy: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """Actions [E, A] of a policy (SAMPLE, GREEDY or RANDOM); they may lie outside of low[A] and high[A]."""
    sample_key, random_key = jax.random.split(key)
    sample = policy_of(output).sample(seed=sample_key)
    uniform = jax.random.uniform(random_key, output.mean.shape, minval=low, maxval=high)
    return jnp.select([policy == SAMPLE, policy == GREEDY], [sample, output.mean], uniform)


def discounted_sums(rollout: "Transition", before: jax.Array, gamma: float) -> tuple[jax.Array, jax.Array]:
    """S_t = r_t + gamma S_{t-1} from S_{-1} = `before`[E], anew in each episode: what goes on [E], and S[T, E]."""

    def forward_in_time(previous, now):
        reward, done = now
        total = reward + gamma * previous
        return jnp.where(done, 0.0, total), total

    return jax.lax.scan(forward_in_time, before, (rollout.reward, rollout.terminated | rollout.truncated))


def gae(rollout: "Transition", next_value: jax.Array, gamma: float, gae_lambda: float) -> jax.Array:
    """Generalised advantage estimates [T, E] of a rollout (Schulman et al. 2016, https://arxiv.org/abs/1506.02438).

    A_t = d_t + gamma lambda (1 - done_t) A_{t+1} with d_t = r_t + gamma (1 - terminated_t) v_t - V(s_t), where v_t is
    next_value[t] = V(s_{t+1}), or `final_value` after a truncated step. Beyond the rollout A is taken for zero.
    """
    value = jnp.where(rollout.truncated, rollout.final_value, next_value)
    delta = rollout.reward + gamma * jnp.where(rollout.terminated, 0.0, value) - rollout.value

    def backward(next_advantage, now):
        delta, done = now
        advantage = delta + gamma * gae_lambda * jnp.where(done, 0.0, next_advantage)
        return advantage, advantage

    done = rollout.terminated | rollout.truncated
    return jax.lax.scan(backward, jnp.zeros_like(delta[0]), (delta, done), reverse=True)[1]


def ppo_loss(args: Args, output: Output, batch: "Transition", advantage, target) -> tuple[jax.Array, dict]:
    """The clipped objective of Schulman et al. 2017, means over [T, B], and what is logged of it.

    T is 1 where single steps are shuffled. `advantage` and `target` (of the value) are those of the rollout. The
    estimates of the divergence KL(old policy || new policy) are Schulman's, http://joschu.net/blog/kl-approx.html.
    """
    distribution = policy_of(output)
    log_ratio = distribution.log_prob(batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    if args.norm_adv:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped_ratio = jnp.clip(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
    policy_loss = -jnp.minimum(advantage * ratio, advantage * clipped_ratio).mean()
    squared_error = jnp.square(output.value - target)
    if args.clip_vloss:
        clipped_value = batch.value + jnp.clip(output.value - batch.value, -args.clip_coef, args.clip_coef)
        squared_error = jnp.maximum(squared_error, jnp.square(clipped_value - target))
    value_loss = 0.5 * squared_error.mean()
    entropy = distribution.entropy().mean()
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "old_approx_kl": -log_ratio.mean(),
        "approx_kl": (ratio - 1 - log_ratio).mean(),
        "clipfrac": (jnp.abs(ratio - 1) > args.clip_coef).mean(),
    }
    return policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss, metrics


def explained_variance(value: jax.Array, target: jax.Array) -> jax.Array:
    """1 - Var[target - value] / Var[target]: 1 is perfect, 0 no better than a constant; nan for a constant target."""
    return jnp.where(target.var() > 0, 1 - (target - value).var() / target.var(), jnp.nan)


def learning_rate_at(args: Args, update: jax.Array) -> jax.Array:
    """Learning rate of a rollout; `update` counts the rollouts before it."""
    return args.learning_rate * (1 - update / args.num_updates if args.anneal_lr else 1.0)


@struct.dataclass
class Actor:
    """Environments being played, [E, ...]."""

    env_state: Any
    obs: jax.Array
    episode_return: jax.Array  # float32, of the episode under way
    episode_length: jax.Array  # int32
    key: jax.Array


@struct.dataclass
class Transition:
    """One step of all environments, [E, ...]; a rollout stacks them to [T, E, ...]."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array  # of the action
    value: jax.Array  # of obs
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_value: jax.Array  # of the observation that a truncated episode ended with, else 0
    episode_return: jax.Array  # up to and with this step
    episode_length: jax.Array


@struct.dataclass
class TrainState:
    """Everything that training goes on from."""

    params: Any
    opt_state: Any
    actor: Actor
    reward_sum: jax.Array  # [E], discounted, of the episodes under way
    reward_moments: Moments  # of such sums
    key: jax.Array
    update: jax.Array  # int32, rollouts so far


@struct.dataclass
class Learner:
    """What changes from one minibatch to the next, and whether learning from this rollout is over."""

    params: Any
    opt_state: Any
    stopped: jax.Array


def make_actor(args: Args):
    """The network, begin(key, num_envs) -> Actor, act(params, actor, policy) -> (Actor, Transition, step's info)."""
    env, env_params = make_env(args)
    actions = env.action_space(env_params)
    network = make_network(args, env.observation_space(env_params), math.prod(actions.shape))
    low, high = (jnp.broadcast_to(bound, actions.shape) for bound in (actions.low, actions.high))

    def begin(key: jax.Array, num_envs: int) -> Actor:
        key, reset_key = jax.random.split(key)
        obs, env_state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(reset_key, num_envs), env_params)
        return Actor(
            env_state=env_state,
            obs=obs,
            episode_return=jnp.zeros(num_envs),
            episode_length=jnp.zeros(num_envs, jnp.int32),
            key=key,
        )

    def read(params, obs):
        _, output = forward(network, params, (), obs[None])
        return jax.tree.map(lambda x: x[0], output)

    def final_values(params, info, truncated):
        """[E]: values of the observations that truncated episodes ended with; costs nothing where none did."""

        def read_value(final):
            return jnp.where(truncated, read(params, final).value, 0.0)

        somewhere = truncated.any()
        if args.num_seeds > 1:  # a predicate that differs between seeds would turn the cond into a select
            somewhere = jax.lax.pmax(somewhere.astype(jnp.int32), "seed") > 0
        return jax.lax.cond(somewhere, read_value, lambda _: jnp.zeros(truncated.shape), info["final_observation"])

    def act(params, actor: Actor, policy) -> tuple[Actor, Transition, dict]:
        key, action_key, step_key = jax.random.split(actor.key, 3)
        output = read(params, actor.obs)
        action = choose(action_key, output, policy, low.reshape(-1), high.reshape(-1))  # [E, A]
        played = jnp.clip(action.reshape(-1, *actions.shape), low, high)
        obs, env_state, reward, terminated, truncated, info = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
            jax.random.split(step_key, len(action)), actor.env_state, played, env_params
        )
        terminated = terminated.astype(bool)
        truncated = truncated & ~terminated  # some gymnax ids set both: the natural end wins
        done = terminated | truncated
        transition = Transition(
            obs=actor.obs,
            action=action,
            log_prob=policy_of(output).log_prob(action),
            value=output.value,
            reward=reward.astype(jnp.float32),
            terminated=terminated,
            truncated=truncated,
            final_value=by_device(args, final_values, len(action))(params, info, truncated),
            episode_return=actor.episode_return + reward,
            episode_length=actor.episode_length + 1,
        )
        actor = Actor(
            env_state=env_state,
            obs=obs,
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
    optimizer = optax.chain(optax.clip_by_global_norm(args.max_grad_norm), optax.scale_by_adam(eps=1e-5))

    def init(key: jax.Array) -> TrainState:
        key, network_key, actor_key = jax.random.split(key, 3)
        params = init_params(network, env.observation_space(env_params), network_key)
        return TrainState(
            params=params,
            opt_state=optimizer.init(params["params"]),
            actor=begin(actor_key, args.num_envs),
            reward_sum=jnp.zeros(args.num_envs),
            reward_moments=Moments.fresh(()),
            key=key,
            update=jnp.int32(0),
        )

    def loss(weights, moments, batch: Transition, advantage, target):
        """`ppo_loss` of a minibatch [1, B]."""
        _, output = forward(network, {"params": weights, "moments": moments}, (), batch.obs)
        return ppo_loss(args, output, batch, advantage, target)

    @functools.partial(jax.jit, inline=True)  # traced once for `zero` below and for the loop
    def update(state: TrainState) -> tuple[TrainState, dict]:
        rollout_step = lambda actor, _: act(state.params, actor, SAMPLE)[:2]  # noqa: E731
        actor, rollout = jax.lax.scan(rollout_step, state.actor, length=args.num_steps)
        _, output = forward(network, state.params, (), actor.obs[None])
        reward_sum, sums = discounted_sums(rollout, state.reward_sum, args.gamma)
        reward_moments = state.reward_moments.updated(sums.T.reshape(-1))  # E first, which devices share
        if args.norm_reward:
            scaled = jnp.clip(rollout.reward / jnp.sqrt(reward_moments.var + 1e-8), -10, 10)
            rollout = rollout.replace(reward=scaled)
        next_value = jnp.concatenate([rollout.value[1:], output.value])  # [T, E]
        advantage = gae(rollout, next_value, args.gamma, args.gae_lambda)
        target = advantage + rollout.value
        learning_rate = learning_rate_at(args, state.update)  # one for all gradient steps of the rollout
        rest = rollout.replace(obs=None), advantage, target

        def minibatch(learner: Learner, picked):
            """One gradient step on B steps of the rollout."""
            steps, envs, (batch, *estimates) = jax.tree.map(lambda x: x[None], picked)  # [1, B]
            batch = batch.replace(obs=pick_steps(args, rollout.obs, steps, envs))
            (_, learned), grads = jax.value_and_grad(loss, has_aux=True)(
                learner.params, state.params["moments"], batch, *estimates
            )
            updates, opt_state = optimizer.update(grads, learner.opt_state)
            params = optax.apply_updates(learner.params, jax.tree.map(lambda x: -learning_rate * x, updates))
            learned |= {"grad_norm": optax.tree.norm(grads)}
            return learner.replace(params=params, opt_state=opt_state), learned

        def epoch(learner: Learner, order):
            """A pass in an order, steps and environments [minibatches, B]; no effect once the policy moved too far."""
            # observations are fetched minibatch by minibatch: a shuffled copy of all would double the memory
            after, learned = jax.lax.scan(minibatch, learner, (*order, pick_steps(args, rest, *order)))
            learned = jax.tree.map(jnp.sum, learned) | {"gradient_steps": jnp.float32(args.num_minibatches)}
            if args.target_kl is None:
                return after, learned
            learned = jax.tree.map(lambda x: jnp.where(learner.stopped, 0.0, x), learned)
            after = jax.tree.map(functools.partial(jnp.where, learner.stopped), learner, after)
            moved = learned["approx_kl"] / args.num_minibatches > args.target_kl
            return after.replace(stopped=learner.stopped | moved), learned

        key, *epoch_keys = jax.random.split(state.key, 1 + args.update_epochs)
        orders = [shuffled(epoch_key, args.num_envs, args.num_steps, args.num_minibatches) for epoch_key in epoch_keys]
        orders = tuple(jnp.stack(numbers) for numbers in zip(*orders, strict=True))  # [epochs, minibatches, B]
        learner = Learner(params=state.params["params"], opt_state=state.opt_state, stopped=jnp.bool_(False))
        learner, learned = jax.lax.scan(epoch, learner, orders)
        done = rollout.terminated | rollout.truncated
        explained = explained_variance(rollout.value, target)
        metrics = jax.tree.map(jnp.sum, learned) | {
            "explained_variance": jnp.nan_to_num(explained),
            "explained_updates": ~jnp.isnan(explained) * 1,
            "updates": jnp.int32(1),
            "episodes": done.sum(dtype=jnp.int32),
            "episodic_return": (done * rollout.episode_return).sum(),
            "episodic_length": (done * rollout.episode_length).sum(dtype=jnp.float32),
        }
        # the new moments count from the next rollout on: the old policy's probabilities are those of the old ones
        obs = rollout.obs.swapaxes(0, 1).reshape(args.update_size, -1).astype(jnp.float32)
        moments = {"obs": state.params["moments"]["obs"].updated(obs)}
        state = TrainState(
            params={"params": learner.params, "moments": moments},
            opt_state=learner.opt_state,
            actor=actor,
            reward_sum=reward_sum,
            reward_moments=reward_moments,
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
    *("global_step", "seed", "env_id", "partial_obs", "policy", "episodes"),
    *("return_mean", "return_std", "return_min", "return_max", "length_mean", "wall_seconds"),
)
LOSSES = ("policy_loss", "value_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac", "grad_norm")
MAY_DIFFER = (  # on resuming
    *("log_every", "eval_every", "checkpoint_every", "capture_video", "run_dir", "resume", "from_run"),
    *("num_devices", "distributed", "coordinator_address", "num_processes", "process_id"),
    *("deterministic", "compile_cache", "track", "wandb_project_name", "wandb_entity"),
)


PACKAGES = "jax jaxlib flax gymnax distrax optax orbax-checkpoint numpy tyro tensorboard"


def run_name(args: Args) -> str:
    """What a run folder's name begins with: environment, twin, experiment, memory, seed."""
    return f"{args.env_id}__full__{args.exp_name}__none__{args.seed}"


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
    episodes = np.where(sums["episodes"] > 0, sums["episodes"], math.nan)
    values = {f"losses/{name}": sums[name] / sums["gradient_steps"] for name in LOSSES}
    explained = np.where(sums["explained_updates"] > 0, sums["explained_updates"], math.nan)
    values |= {"losses/explained_variance": sums["explained_variance"] / explained}
    values |= {f"charts/{name}": sums[name] / episodes for name in ("episodic_return", "episodic_length")}
    values |= {"charts/episodes": episodes, "charts/SPS": sums["updates"].sum() * args.update_size / seconds}
    values |= {"charts/learning_rate": learning_rate_at(args, update)}
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
        records, step, state = begin_run(args, train_keys)
        if records.mirror:
            at_end.push(records.mirror.finish)  # last, so that an upload that fails or hangs loses nothing
        first_step, saved_at, train_seconds = step, step if args.resume else None, 0.0
        say(f"{records.folder}: step {step} of {args.total_timesteps}; compiling ...")
        began = time.perf_counter()
        train_chunk, evaluate = waited(compile_programs, args, state, eval_keys)
        compile_seconds = time.perf_counter() - began
        records.scalar("charts/compile_seconds", compile_seconds, step)
        keys_at = over_seeds(jax.random.fold_in, args, (0, None))  # an evaluation's key depends on its step alone

        def record_evaluation(policy: str) -> None:
            began = time.perf_counter()
            episodes = waited(evaluate, state.params, keys_at(eval_keys, step), POLICIES[policy])
            records.evaluation(step, policy, episodes, time.perf_counter() - began)

        shape = "{percentage:3.0f}%|{bar}| {n_fmt} of {total_fmt} steps, {remaining} left{postfix}"
        bar = {"total": args.total_timesteps, "initial": step, "bar_format": shape, "unit_scale": True}
        with contextlib.closing(records), tqdm(**bar, disable=None) as bar:
            if not stop and not records.returns("random")[0].size:
                record_evaluation("random")
            while step < args.total_timesteps and not stop and not records.reached_target():
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
            if not stop and step not in records.returns("greedy")[0]:
                record_evaluation("greedy")
        if saved_at != step:
            save_checkpoint(records.folder, step, state)
        if not stop:
            draw_curve(records)
        python = os.path.relpath(sys.executable)
        if stop:
            go_on = f"{python} {os.path.relpath(__file__)} --resume {records.folder}"
            say(f"stopped at step {step}, saved in {records.folder}; to go on: {go_on}")
            sys.exit(128 + stop[0])
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
