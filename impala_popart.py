"""IMPALA with PopArt: one agent for many games, trained with V-trace, its values normalised per game.

Papers: Espeholt et al. 2018, "IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner
        Architectures", https://arxiv.org/abs/1802.01561; Hessel et al. 2019, "Multi-task Deep Reinforcement Learning
        with PopArt", https://arxiv.org/abs/1809.04474
Run:    python impala_popart.py --env-ids BreakoutEasy CartPoleEasy --value-normalization popart
Page:   docs/impala_popart.md

Shapes: T steps of a rollout, E environments, B environments of a minibatch, A actions, F features, N tasks; time first.
Environment e plays task e % N. `start[t]` arrives with `obs[t]`, True on an episode's first step; `terminated[t]`,
`truncated[t]` follow `action[t]`.
"""

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from popgym_arcade.baselines.devices.mesh import leaf_name
from popgym_arcade.baselines.devices.minibatches import pick_envs, shuffled_envs
from popgym_arcade.baselines.environment import final_values, is_pixels
from popgym_arcade.baselines.episode import Episode
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import Count, NonNegative, OneOf, Positive, Precision, Range, UnitInterval
from popgym_arcade.baselines.networks.convolution import convolve, max_pool
from popgym_arcade.baselines.networks.encoding import Centred, in_pieces, merge, paper_convolutions, patches
from popgym_arcade.baselines.networks.memory import MEMORIES, Memory
from popgym_arcade.baselines.running.command_line import launch
from popgym_arcade.baselines.running.metrics import explained_variance, nan_if_zero, repeat
from popgym_arcade.baselines.running.run import Run
from popgym_arcade.baselines.tasks import TasksArgs, tasks_in_parallel

SAMPLE, GREEDY, RANDOM = range(3)  # policies: the agent's own, its most probable action, uniform
POLICIES = {"random": RANDOM, "greedy": GREEDY}
LOSSES = ("policy_loss", "value_loss", "entropy", "rho", "rho_clipped", "grad_norm")
OF_EACH_TASK = (  # sums [N]
    *("episodes", "episodic_return", "episodic_length", "explained_variance", "explained_updates"),
    *("popart_mean", "popart_scale"),
)


# --------------------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True)
class Args(TasksArgs):
    env_ids: tuple[str, ...] = ("BreakoutEasy", "CartPoleEasy", "NoisyCartPoleEasy", "MineSweeperEasy")
    """ids as the other scripts' --env-id, with discrete actions, all with the same spaces"""
    reward_scales: tuple[float, ...] = ()
    """factor by which each task's rewards are scaled for learning; empty: 1"""
    reward_clip: NonNegative = 0.0
    """clip the scaled rewards to [-REWARD_CLIP, REWARD_CLIP]; 0: do not clip"""
    optimizer: Annotated[str, OneOf(("adam", "rmsprop"))] = "adam"
    """adam or rmsprop (decay 0.99)"""
    learning_rate: UnitInterval = 5e-4
    """learning rate of the optimizer"""
    anneal_lr: bool = True
    """lower the learning rate linearly, to zero at the end of the run"""
    num_envs: Count = 32
    """parallel environments, divided evenly among the tasks"""
    num_steps: Count = 32
    """steps of each environment in one rollout"""
    num_minibatches: Count = 4
    """minibatches of a rollout; each holds NUM_ENVS / NUM_MINIBATCHES environments over all steps"""
    update_epochs: Count = 2
    """passes over a rollout"""
    actor_lag: Annotated[int, Range(0, 1000)] = 0
    """play with the parameters of this many updates ago; the versions since then are kept, also in checkpoints"""
    gamma: UnitInterval = 0.99
    """discount factor"""
    vtrace_lambda: UnitInterval = 0.95
    """lambda of V-trace: 1 is IMPALA's, lower values rely more on the value estimates"""
    rho_clip: NonNegative = 1.0
    """rho-bar of V-trace: largest importance weight of a step's TD error and of its policy gradient"""
    c_clip: NonNegative = 1.0
    """c-bar of V-trace: largest importance weight with which later TD errors are passed back"""
    ent_coef: NonNegative = 0.01
    """weight of the entropy bonus"""
    vf_coef: NonNegative = 0.5
    """weight of the value loss"""
    max_grad_norm: Positive = 0.5
    """clip gradients to this global norm"""
    value_normalization: Annotated[str, OneOf(("none", "popart"))] = "none"
    """none, or popart: normalise values by mean and std of each task's targets, advantages by the std"""
    popart_beta: UnitInterval = 3e-4
    """step size of PopArt's moving statistics; gradient step n uses 1 / n while that is larger"""
    memory: Annotated[str, OneOf(("none", *MEMORIES))] = "none"
    """memory model: none (two hidden layers instead), MinGRU or one of memax's (LRU, GRU, FFM, ...)"""
    hidden_size: Count = 256
    """width of the two memory layers, or hidden layers"""
    prev_action: bool = True
    """feed the previous action and, with the impala encoder, the previous reward"""
    encoder: Annotated[str, OneOf(("patch", "paper", "impala"))] = "patch"
    """encoder for pixels: patch (fast everywhere), paper (POPGym Arcade's convolutions) or impala (residual network)"""
    precision: Precision = "float32"
    """matrix products of encoder and hidden layers in float32 or bfloat16; all else stays in float32"""
    remat: bool = False
    """recompute the encoder in the backward pass, in eight pieces per minibatch: less memory, more time"""

    @property
    def update_size(self) -> int:
        """Steps of one rollout over all environments, T * E."""
        return self.num_envs * self.num_steps

    @property
    def minibatch_shape(self) -> tuple[int, int]:
        """T and B of a minibatch, for the memory estimate."""
        return self.num_steps, self.num_envs // self.num_minibatches

    def check(self) -> None:
        self.check_names()
        self.check_shares()
        if self.actor_lag >= self.num_updates:
            raise UserError(f"--actor-lag {self.actor_lag}: there are {self.num_updates} updates, use a lower number")
        self.check_divides("num_minibatches", self.num_envs, "--num-envs")
        self.check_devices(group=math.lcm(self.num_minibatches, len(self.env_ids)))


# ----------------------------------------------------------------------------------------------------------- network


class Encoder(nn.Module):
    """Observations [T * B, ...] -> features [T * B, F] float32; F is 512 for paper, else 256."""

    kind: str  # "patch" or "paper" for pixels, "dense" for anything else
    dtype: Any

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        orthogonal = nn.initializers.orthogonal(2**0.5)
        dense = functools.partial(nn.Dense, dtype=self.dtype, kernel_init=orthogonal)
        if self.kind == "paper":
            x = paper_convolutions(obs, self.dtype, orthogonal)
        elif self.kind == "patch":
            x = Centred(dense(16, use_bias=False))(patches(obs, self.dtype, pixels=4))
            # instance norm gives every channel mean 0 and variance 1, so that small objects stand out
            x = nn.leaky_relu(nn.InstanceNorm(dtype=self.dtype)(x))
            x = nn.leaky_relu(dense(32)(merge(x, 2)))
            x = nn.leaky_relu(dense(256)(x.reshape(len(obs), -1)))
        else:
            x = obs.reshape(len(obs), -1).astype(jnp.float32)
            for _ in range(2):
                x = nn.tanh(dense(256)(x))
        return x.astype(jnp.float32)


class ResidualEncoder(nn.Module):
    """Frames [T * B, h, w, 3] -> features [T * B, 256] float32: IMPALA's residual network (figure 3, right)."""

    dtype: Any

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        conv = functools.partial(nn.Conv, dtype=self.dtype, padding="VALID", conv_general_dilated=convolve)
        x = obs.astype(self.dtype) / 255
        for features in (16, 32, 32):
            x = conv(features, (3, 3))(pad(x, 0.0))
            x = max_pool(pad(x, -jnp.inf), 3, 2)
            for _ in range(2):
                inner = conv(features, (3, 3))(pad(nn.relu(x), 0.0))
                x += conv(features, (3, 3))(pad(nn.relu(inner), 0.0))
        x = nn.relu(x).reshape(len(obs), -1)
        return nn.relu(nn.Dense(256, dtype=self.dtype)(x)).astype(jnp.float32)


def pad(x: jax.Array, value: float) -> jax.Array:
    """x[T * B, h, w, c] with one more row or column of `value` on every side, which `convolve` does not add."""
    return jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=value)


@struct.dataclass
class PopArt:
    """Moving mean and variance of each task's value targets, float32 [N], in the units of the learned rewards."""

    mean: jax.Array
    variance: jax.Array
    updates: jax.Array  # int32, so far

    @property
    def scale(self) -> jax.Array:
        """Standard deviation of the targets [N], kept within [1e-4, 1e6] (Hessel et al. 2019)."""
        return jnp.sqrt(jnp.clip(self.variance, 1e-8, 1e12))


def fresh_popart(num_tasks: int) -> PopArt:
    """Mean 0 and variance 1, until the first update."""
    return PopArt(jnp.zeros(num_tasks, jnp.float32), jnp.ones(num_tasks, jnp.float32), jnp.zeros(num_tasks, jnp.int32))


@struct.dataclass
class Output:
    """Network outputs for each observation: logits[T, B, A] and a value for each task, float32."""

    logits: jax.Array
    normalized: jax.Array  # [T, B, N], from the value head: (value - mean) / scale of the task
    values: jax.Array  # [T, B, N], in the units of the learned rewards

    @property
    def value(self) -> jax.Array:
        """[T, B]: the value of a single task. Raises ValueError for a network of several (`select_task`)."""
        if self.values.shape[-1] > 1:
            raise ValueError(f"values of {self.values.shape[-1]} tasks: choose one with select_task")
        return self.values[..., 0]


class ActorCritic(nn.Module):
    """One network for all tasks: encoder, memory or hidden layers, then the policy and a value for each task.

    It recognises the task only by its observations.
    """

    args: Args
    num_actions: int
    pixels: bool

    def setup(self):
        args, dtype, orthogonal = self.args, jnp.dtype(self.args.precision), nn.initializers.orthogonal
        kind = args.encoder if self.pixels else "dense"
        residual = kind == "impala"
        self.encode = ResidualEncoder(dtype) if residual else Encoder(kind, dtype)
        if args.memory == "none":
            dense = functools.partial(nn.Dense, dtype=dtype, kernel_init=orthogonal(2**0.5))
            self.hidden = [(dense(args.hidden_size), nn.LayerNorm(dtype=dtype)) for _ in range(2)]
        else:
            size = 512 if kind == "paper" else 256  # of the features
            input_size = size + args.prev_action * (self.num_actions + residual)
            self.remember = Memory(
                MEMORIES[args.memory],
                input_size,
                args.hidden_size,
                output_size=size,
                num_layers=2,
                window=args.num_steps,
            )
            self.norm = nn.LayerNorm()
        self.policy = nn.Dense(self.num_actions, kernel_init=orthogonal(0.01))
        # values start at 0, so the first targets, and PopArt's first statistics, are those of the rewards alone
        self.value = nn.Dense(len(args.env_ids), kernel_init=nn.initializers.zeros)
        self.popart = self.variable("popart", "statistics", fresh_popart, len(args.env_ids))

    def __call__(self, carry: Any, obs: jax.Array, prev_action: jax.Array, start: jax.Array, prev_reward: jax.Array):
        steps, batch = start.shape
        x = obs.swapaxes(0, 1).reshape(batch * steps, *obs.shape[2:])  # batch axis first, because devices share it
        x = in_pieces(self.encode, x) if self.args.remat else self.encode(x)
        x = features = x.reshape(batch, steps, -1).swapaxes(0, 1)  # [T, B, F]
        if self.args.prev_action:  # the first observation of an episode follows no action: all zeros
            x = jnp.concatenate([x, jax.nn.one_hot(jnp.where(start, -1, prev_action), self.num_actions)], axis=-1)
        if self.args.prev_action and isinstance(self.encode, ResidualEncoder):
            x = jnp.concatenate([x, jnp.where(start, 0.0, prev_reward.clip(-1, 1))[..., None]], axis=-1)
        if self.args.memory == "none":
            for layer, norm in self.hidden:
                x = nn.leaky_relu(norm(layer(x)))
            x = x.astype(jnp.float32)
        else:
            carry, x = self.remember(carry, x, start)
            x += features  # the current observation need not pass through the memory
            x = nn.leaky_relu(self.norm(x))
        normalized, popart = self.value(x), self.popart.value
        values = popart.scale[None, None] * normalized + popart.mean[None, None]
        return carry, Output(self.policy(x), normalized, values)


def initial_carry(network: ActorCritic, batch: int) -> Any:
    """The memory of `batch` new sequences, leaves [B, ...]; () without a memory."""
    return () if network.args.memory == "none" else network.bind({}, mutable="popart").remember.initial_carry(batch)


@functools.partial(jax.jit, static_argnums=0, inline=True)  # so that the memory is traced only once per shape
def forward(network: ActorCritic, params, carry, obs, prev_action, start, prev_reward=None) -> tuple[Any, Output]:
    """Reads obs[T, B, ...], prev_action[T, B] int32, start[T, B] bool, carry[B, ...]; returns (last carry, Output).

    Only the impala encoder reads prev_reward[T, B], in the units of the learned rewards and clipped to [-1, 1]; None
    stands for zeros.
    """
    prev_reward = jnp.zeros(start.shape, jnp.float32) if prev_reward is None else prev_reward
    return network.apply(params, carry, obs, prev_action, start, prev_reward)


def of_task(values: jax.Array, task: jax.Array) -> jax.Array:
    """The values [T, B] of the tasks [B] being played, from values[T, B, N]."""
    return jnp.take_along_axis(values, jnp.broadcast_to(task[:, None], (*values.shape[:2], 1)), axis=2)[..., 0]


def select_task(args: Args, params, index: int) -> tuple[Args, Any]:
    """The agent of one task: arguments with only its id, parameters with only its value. Keeps seed axes."""
    of_values = ("params.value.", "popart.")
    keep = lambda path, x: x[..., index : index + 1] if leaf_name(path).startswith(of_values) else x
    return args.tasks[index], jax.tree_util.tree_map_with_path(keep, params)


# --------------------------------------------------------------------------------------------------------- algorithm


def choose(key: jax.Array, logits: jax.Array, policy: jax.Array) -> jax.Array:
    """Actions [E] int32 of a policy (SAMPLE, GREEDY or RANDOM), given logits[E, A]."""
    distribution = distrax.Categorical(logits=jnp.where(policy == RANDOM, 0.0, logits))
    return jnp.where(policy == GREEDY, distribution.mode(), distribution.sample(seed=key)).astype(jnp.int32)


def vtrace(args: Args, rho: jax.Array, steps: "Transition", value: jax.Array, last_value: jax.Array):
    """Targets of the values, and advantages, both [T, B] (Espeholt et al. 2018, equation 1 and section 4.2).

    rho[T, B] are the importance weights pi(a) / mu(a), value[T, B] is the value of each step's observation and
    last_value[B] that of the observation after them. `target - value` sums the errors of this step and all later ones,
    each times its own min(rho, rho_clip), passed back through factors gamma * lambda * min(rho, c_clip). A terminated
    step is followed by no value, a truncated one by `final_value`; no error is passed back across either.
    """
    clipped_rho, clipped_c = jnp.minimum(rho, args.rho_clip), jnp.minimum(rho, args.c_clip)

    def td_error(next_value):
        """r_t + gamma v - V(s_t), where v = `next_value` unless the episode ends."""
        next_value = jnp.where(steps.truncated, steps.final_value, next_value)
        return steps.reward + args.gamma * jnp.where(steps.terminated, 0.0, next_value) - value

    def backward(next_correction, now):
        error, factor = now
        correction = error + factor * next_correction
        return correction, correction

    next_value = jnp.concatenate([value[1:], last_value[None]])
    factor = args.gamma * args.vtrace_lambda * jnp.where(steps.terminated | steps.truncated, 0.0, clipped_c)
    errors = clipped_rho * td_error(next_value)
    correction = jax.lax.scan(backward, jnp.zeros_like(last_value), (errors, factor), reverse=True)[1]
    next_correction = jnp.concatenate([correction[1:], jnp.zeros_like(last_value)[None]])
    return value + correction, clipped_rho * td_error(next_value + args.vtrace_lambda * next_correction)


def updated_popart(popart: PopArt, target: jax.Array, task: jax.Array, beta: float) -> PopArt:
    """The statistics after a step towards mean m and variance v of target[T, B]; an absent task keeps its own.

    The step size is beta or, while that is larger, the one that makes them averages over all updates so far; the
    first update replaces the initial ones entirely. The variance equals the difference of moving averages of the first
    two moments (Hessel et al. 2019, section 3), but is computed without that difference, which float32 cannot resolve
    when the mean is a thousand standard deviations:
    mean' = mean + step (m - mean), variance' = (1 - step) (variance + step (m - mean)^2) + step v.
    """
    played = jax.nn.one_hot(task, len(popart.mean))  # [B, N]
    share = played / jnp.maximum(played.sum(axis=0, keepdims=True), 1)
    present = played.any(axis=0)
    step = present * jnp.maximum(beta, 1 / (popart.updates + 1))
    mean = (target.mean(axis=0)[:, None] * share).sum(axis=0)
    variance = (jnp.square(target - mean[task][None]).mean(axis=0)[:, None] * share).sum(axis=0)
    moved = mean - popart.mean
    return PopArt(
        mean=popart.mean + step * moved,
        variance=(1 - step) * (popart.variance + step * jnp.square(moved)) + step * variance,
        updates=popart.updates + present,
    )


def in_new_units(normalized: jax.Array, old: PopArt, new: PopArt) -> jax.Array:
    """Normalised values [..., N], converted to new statistics; unchanged for a task that was absent."""
    factor, shift = old.scale / new.scale, (old.mean - new.mean) / new.scale
    return normalized * jnp.broadcast_to(factor, normalized.shape) + jnp.broadcast_to(shift, normalized.shape)


def rescaled_head(head: dict, old: PopArt, new: PopArt) -> dict:
    """The value head, kernel [F, N] and bias [N], rescaled so that all values stay the same."""
    return {"kernel": head["kernel"] * (old.scale / new.scale)[None], "bias": in_new_units(head["bias"], old, new)}


def impala_loss(args: Args, output: Output, popart: PopArt, batch: "Transition", task: jax.Array):
    """IMPALA's loss, means over [T, B], the metrics, and the statistics with this minibatch's targets.

    `output` has one step more than `batch`. `popart` holds the statistics before this minibatch; advantages and value
    errors are in units of each task's scale after it.
    """
    values = jax.lax.stop_gradient(of_task(output.values, task))  # [T + 1, B]
    distribution = distrax.Categorical(logits=output.logits[:-1])
    log_prob = distribution.log_prob(batch.action)
    rho = jnp.exp(jax.lax.stop_gradient(log_prob) - batch.log_prob)
    target, advantage = vtrace(args, rho, batch, values[:-1], values[-1])
    new = updated_popart(popart, target, task, args.popart_beta) if args.value_normalization == "popart" else popart
    mean, scale = new.mean[task][None], new.scale[task][None]  # [1, B]
    policy_loss = -(advantage / scale * log_prob).mean()
    normalized = of_task(in_new_units(output.normalized, popart, new), task)[:-1]
    value_loss = 0.5 * jnp.square(normalized - (target - mean) / scale).mean()
    entropy = distribution.entropy().mean()
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "rho": rho.mean(),
        "rho_clipped": (rho > args.rho_clip).mean(),
    }
    return policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss, (metrics, new)


def learning_rate_at(args: Args, update: jax.Array) -> jax.Array:
    """Learning rate of an update; `update` counts the updates before it."""
    return args.learning_rate * (1 - update / args.num_updates) if args.anneal_lr else args.learning_rate


@struct.dataclass
class Actor:
    """Environment states and the agent's memory, [E, ...]."""

    env_state: Any  # with several tasks, a tuple with the states of each
    obs: jax.Array  # once an episode has ended, the first of the next
    carry: Any  # the memory before obs is read
    prev_action: jax.Array  # int32
    prev_reward: jax.Array  # in the units of the learned rewards
    start: jax.Array  # bool
    episode: Episode  # after the last step
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
    value: jax.Array  # of obs, from the network that played; only for the explained variance
    reward: jax.Array  # the learned one: scaled, and clipped
    terminated: jax.Array
    truncated: jax.Array
    final_value: jax.Array  # of the observation a truncated episode ended with, else 0
    episode: Episode  # after this step


@struct.dataclass
class TrainState:
    """Everything that changes during training."""

    OF_ENVS: ClassVar = ("actor.",)  # name prefixes of leaves with a leading axis E; keys have none

    params: Any  # {"params": weights, "popart": {"statistics": PopArt}}, for pixels also the encoder's "constants"
    past: Any  # the parameters before each of the last `actor_lag` updates, [actor_lag, ...], the oldest first
    opt_state: Any
    actor: Actor
    key: jax.Array
    update: jax.Array  # int32, rollouts so far


def inputs_of(step: Actor | Transition) -> tuple:
    """What `forward` reads apart from the memory."""
    return step.obs, step.prev_action, step.start, step.prev_reward


def make_actor(args: Args):
    """The network, begin(key, num_envs) -> Actor, act(params, actor, policy, learner) -> (Actor, Transition, info).

    `num_envs` is per task. `learner` holds the parameters that value the last observations of truncated episodes; None
    stands for `params`, which play. `info` is the step's.
    """
    envs = tasks_in_parallel(args)
    network = ActorCritic(args, envs.num_actions, is_pixels(envs.observation_space))
    num_tasks = len(args.env_ids)

    def begin(key: jax.Array, num_envs: int) -> Actor:
        key, *reset_keys = jax.random.split(key, 1 + num_tasks)
        obs, env_state = envs.reset(reset_keys, num_envs)
        num_envs *= num_tasks  # those of all tasks
        return Actor(
            env_state=env_state,
            obs=obs,
            carry=initial_carry(network, num_envs),
            prev_action=jnp.zeros(num_envs, jnp.int32),
            prev_reward=jnp.zeros(num_envs, jnp.float32),
            start=jnp.ones(num_envs, bool),
            episode=Episode.begin(num_envs),
            key=key,
        )

    def read(params, carry, inputs, task):
        """One step: the next carry, logits [E, A] and the values [E] of the tasks being played."""
        carry, output = forward(network, params, carry, *(x[None] for x in inputs))
        return carry, output.logits[0], of_task(output.values, task)[0]

    def act(params, actor: Actor, policy, learner=None) -> tuple[Actor, Transition, dict]:
        task = jnp.arange(len(actor.start)) % num_tasks  # [E]
        key, action_key, step_key = jax.random.split(actor.key, 3)
        carry, logits, value = read(params, actor.carry, inputs_of(actor), task)
        action = choose(action_key, logits, policy)
        obs, env_state, reward, terminated, truncated, info = envs.step(step_key, actor.env_state, action)
        learned_reward = jnp.array(args.scales, jnp.float32)[task] * reward
        if args.reward_clip:
            learned_reward = jnp.clip(learned_reward, -args.reward_clip, args.reward_clip)
        learner = params if learner is None else learner

        def value_of(next_obs):  # values [E], with the memory after this step
            return read(learner, carry, (next_obs, action, jnp.zeros_like(truncated), learned_reward), task)[2]

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
            final_value=final_values(envs, info, truncated, value_of),
            episode=actor.episode.after(info),
        )
        actor = Actor(
            env_state=env_state,
            obs=obs,
            carry=carry,
            prev_action=action,
            prev_reward=learned_reward,
            start=terminated | truncated,
            episode=transition.episode,
            key=key,
        )
        return actor, transition, info

    return network, begin, act


def task_sums(args: Args, rollout: Transition) -> dict[str, jax.Array]:
    """Sums [N] over the episodes of each task that end in a rollout, and how well its values predicted the targets."""
    num_tasks = len(args.env_ids)
    by_task = lambda x: x.reshape(len(x), args.num_envs // num_tasks, num_tasks)  # [T, E / N, N]
    early = jax.tree.map(lambda x: x[:-1], rollout)  # the last step's target would need another forward pass
    target, _ = vtrace(args, jnp.ones_like(early.value), early, early.value, rollout.value[-1])
    explained = jax.vmap(explained_variance, in_axes=2)(by_task(early.value), by_task(target))
    over = by_task(rollout.episode.over)
    return {
        "explained_variance": jnp.nan_to_num(explained),
        "explained_updates": jnp.int32(~jnp.isnan(explained)),
        "episodes": over.sum(axis=(0, 1), dtype=jnp.int32),
        "episodic_return": (over * by_task(rollout.episode.total_reward)).sum(axis=(0, 1)),
        "episodic_length": (over * by_task(rollout.episode.length)).sum(axis=(0, 1), dtype=jnp.float32),
    }


def make_train(args: Args):
    """The pure functions init(key) -> TrainState and update(state) -> (TrainState, sums of the metrics)."""
    network, begin, act = make_actor(args)
    scale_by_rms = optax.scale_by_rms(decay=0.99, eps=1e-5, eps_in_sqrt=False, bias_correction=True)
    scale_by = {"adam": optax.scale_by_adam(eps=1e-5), "rmsprop": scale_by_rms}
    optimizer = optax.chain(optax.clip_by_global_norm(args.max_grad_norm), scale_by[args.optimizer])

    def init(key: jax.Array) -> TrainState:
        key, network_key, actor_key = jax.random.split(key, 3)
        actor = begin(actor_key, args.num_envs // len(args.env_ids))
        params = network.init(network_key, actor.carry, *(x[None] for x in inputs_of(actor)))
        return TrainState(
            params=params,
            past=jax.tree.map(lambda x: jnp.stack([x] * args.actor_lag), params) if args.actor_lag else (),
            opt_state=optimizer.init(params["params"]),
            actor=actor,
            key=key,
            update=jnp.int32(0),
        )

    def loss(weights, params, carry, inputs, batch: Transition, task):
        """`impala_loss` of a minibatch [T, B], whose inputs have one step more."""
        _, output = forward(network, params | {"params": weights}, carry, *inputs)
        return impala_loss(args, output, params["popart"]["statistics"], batch, task)

    def update(state: TrainState) -> tuple[TrainState, dict]:
        player = jax.tree.map(lambda x: x[0], state.past) if args.actor_lag else state.params
        rollout_step = lambda actor, _: act(player, actor, SAMPLE, state.params)[:2]
        actor, rollout = jax.lax.scan(rollout_step, state.actor, length=args.num_steps)
        append = lambda x, last: jnp.concatenate([x, last[None]])
        inputs = jax.tree.map(append, inputs_of(rollout), inputs_of(actor))  # [T + 1, E, ...]
        task = jnp.arange(args.num_envs) % len(args.env_ids)  # [E]
        learning_rate = learning_rate_at(args, state.update)  # the same for all gradient steps of the rollout

        def minibatch(learner, picked):
            """One gradient step on the whole sequences of some environments."""
            params, opt_state = learner
            batch = pick_envs((inputs, rollout), picked)
            carry, batch_task = pick_envs((state.actor.carry, task), picked, axis=0)
            weights, popart = params["params"], params["popart"]["statistics"]
            grads, (metrics, new) = jax.grad(loss, has_aux=True)(weights, params, carry, *batch, batch_task)
            # the rescaled head is trained, so rescale its gradient too
            weights = weights | {"value": rescaled_head(weights["value"], popart, new)}
            rescaled = lambda x: x * jnp.broadcast_to(new.scale / popart.scale, x.shape)
            grads = grads | {"value": jax.tree.map(rescaled, grads["value"])}
            updates, opt_state = optimizer.update(grads, opt_state)
            updates = jax.tree.map(lambda x: -learning_rate * x, updates)
            metrics |= {"grad_norm": optax.tree.norm(grads), "gradient_steps": jnp.float32(1)}
            params = params | {"params": optax.apply_updates(weights, updates), "popart": {"statistics": new}}
            return (params, opt_state), metrics

        key, *epoch_keys = jax.random.split(state.key, 1 + args.update_epochs)
        order = jnp.concatenate(shuffled_envs(epoch_keys, args.num_envs, args.num_minibatches))
        (params, opt_state), metrics = jax.lax.scan(minibatch, (state.params, state.opt_state), order)
        past = jax.tree.map(lambda old, now: append(old[1:], now), state.past, state.params) if args.actor_lag else ()
        popart = params["popart"]["statistics"]
        statistics = {"popart_mean": popart.mean, "popart_scale": popart.scale}
        state = TrainState(params=params, past=past, opt_state=opt_state, actor=actor, key=key, update=state.update + 1)
        return state, jax.tree.map(jnp.sum, metrics) | task_sums(args, rollout) | statistics

    return init, update


# -------------------------------------------------------------------------------------------------------------- main


def curves(args: Args, step: int, sums: dict) -> dict[str, Any]:
    """The points of the training curves at a step, from the sums since the last point: scalars, or one per seed."""
    by_task = {name: np.reshape(sums[name], (-1, len(args.env_ids))) for name in OF_EACH_TASK}  # [seeds, N]
    episodes = nan_if_zero(by_task["episodes"])
    means = {name: by_task[name] / episodes for name in ("episodic_return", "episodic_length")}
    means["episodes"] = episodes
    means["explained_variance"] = by_task["explained_variance"] / nan_if_zero(by_task["explained_updates"])
    if args.value_normalization == "popart":
        updates = np.reshape(sums["updates"], (-1, 1))
        means |= {name: by_task[name] / updates for name in ("popart_mean", "popart_scale")}
    points = {f"losses/{name}": sums[name] / sums["gradient_steps"] for name in LOSSES}
    points["losses/explained_variance"] = means["explained_variance"].mean(axis=1)
    points |= {f"charts/{name}": means[name].mean(axis=1) for name in ("episodic_return", "episodic_length")}
    points["charts/episodes"] = nan_if_zero(by_task["episodes"].sum(axis=1))
    points["charts/learning_rate"] = learning_rate_at(args, step // args.update_size - 1)
    for n, task in enumerate(args.task_names):
        points |= {f"{task}/{name}": values[:, n] for name, values in means.items()}
    return points


def main(args: Args) -> Path:
    """Trains, or resumes, and returns the run folder."""
    args = args.checked()
    init, update = make_train(args)
    with Run(args, make_actor(args), POLICIES) as run:
        state, train_chunk = run.begin(init, repeat(update))
        if run.step == 0:
            run.evaluate(state.params, "random")
        while run.goes_on():
            state, sums = run.train(train_chunk, state)
            run.log(curves(args, run.step, sums))
            if run.is_due(args.eval_every):
                run.evaluate(state.params, "greedy")
            if run.is_due(args.checkpoint_every):
                run.save(state)
        run.finish(state)
    return run.folder


if __name__ == "__main__":
    launch(main, Args)
