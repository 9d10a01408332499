"""Recurrent double DQN: replay of sequences, with the memory they began with and a burn-in that refreshes it.

Papers: Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning" (R2D2),
        https://openreview.net/forum?id=r1lyTjAqYX; and those of dqn_mlp.py
Run:    python dqn_rnn.py --env-id CartPoleEasy --partial-obs --memory MinGRU
Page:   docs/dqn_rnn.md

Shapes: T steps of a sequence, E environments, B sequences of a batch, A actions, F features; time first.
`start[t]` arrives with `obs[t]`, True on an episode's first step; `terminated[t]`, `truncated[t]` follow `action[t]`.
"""

import functools
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct

from popgym_arcade.anywhere import anywhere
from popgym_arcade.baselines.arguments import ArcadeArgs
from popgym_arcade.baselines.devices.mesh import spread
from popgym_arcade.baselines.environment import in_parallel, is_pixels
from popgym_arcade.baselines.episode import Episode
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import Count, NonNegativeInt, OneOf, Positive, Precision, UnitInterval
from popgym_arcade.baselines.networks.encoding import Centred, in_pieces, merge, of_weights, paper_convolutions, patches
from popgym_arcade.baselines.networks.memory import MEMORIES, Memory
from popgym_arcade.baselines.normalization import RewardScale
from popgym_arcade.baselines.replay import make_buffer, when_learning_resumes, without_replay
from popgym_arcade.baselines.running.command_line import launch
from popgym_arcade.baselines.running.metrics import episode_curves, episode_sums, nan_if_zero, repeat
from popgym_arcade.baselines.running.records import say
from popgym_arcade.baselines.running.run import Run

POLICIES = {"random": 1.0, "greedy": 0.0}  # epsilon
LOSSES = ("td_loss", "q_values", "grad_norm")
MIN_PRIORITY = 1e-6  # of a sequence without an error, so that it can be sampled again
SHARE_OF_MAX = 0.9  # weight of the largest error in a sequence's priority; the mean error has the rest (R2D2)


# --------------------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True)
class Args(ArcadeArgs):
    env_id: str = "CartPoleEasy"
    """id from popgym_arcade or gymnax, LIBRARY/ID of another library, or MODULE:CLASS of your own; discrete actions"""
    learning_rate: UnitInterval = 5e-4
    """learning rate of Adam"""
    anneal_lr: bool = True
    """lower the learning rate linearly, to zero at the end of the run"""
    num_envs: Count = 32
    """parallel environments"""
    buffer_size: Count = 1_000_000
    """steps in the full replay buffer, over all environments"""
    storage: Annotated[str, OneOf(("states", "frames"))] = "states"
    """what the buffer stores for popgym_arcade games: states, drawn when sampled, or frames; results are the same"""
    save_buffer: bool = False
    """save the buffer in every checkpoint, so that a resumed run equals an uninterrupted one"""
    learning_starts: NonNegativeInt = 10_000
    """steps in the buffer before the first gradient step"""
    num_steps: Count = 16
    """steps of a sequence that are learned from"""
    burn_in: NonNegativeInt = 16
    """steps before them that only refresh the memory; divides NUM_STEPS or is a multiple of it"""
    train_frequency: Count = 32
    """steps over all environments per gradient step; divides NUM_ENVS * gcd(NUM_STEPS, BURN_IN)"""
    batch_size: Count = 8
    """sequences sampled from the buffer for a gradient step"""
    n_step: Count = 5
    """rewards in a target before the value it bootstraps from; fewer at the end of a sequence"""
    gamma: UnitInterval = 0.95
    """discount factor"""
    norm_reward: bool = True
    """learn from rewards divided by the running standard deviation of their discounted sums"""
    target_network_frequency: Count = 1_000
    """steps over all environments between two updates of the target network"""
    tau: UnitInterval = 1.0
    """weight of the new parameters in an update of the target network"""
    max_grad_norm: Positive = 0.5
    """clip gradients to this global norm"""
    start_e: UnitInterval = 1.0
    """epsilon at the first step"""
    end_e: UnitInterval = 0.05
    """epsilon after the exploration fraction"""
    exploration_fraction: UnitInterval = 0.3
    """fraction of TOTAL_TIMESTEPS over which epsilon falls linearly"""
    prioritized: bool = False
    """prioritized replay: sample sequences with large errors more often, corrected by importance weights"""
    prioritized_replay_alpha: UnitInterval = 0.6
    """exponent of the errors in the sampling probabilities; 0 is uniform (with --prioritized)"""
    prioritized_replay_beta: UnitInterval = 0.4
    """initial exponent of the importance weights; it rises linearly to 1 (with --prioritized)"""
    memory: Annotated[str, OneOf(tuple(MEMORIES))] = "MinGRU"
    """memory model: MinGRU or one of memax's (LRU, GRU, FFM, ...; MLP remembers nothing)"""
    hidden_size: Count = 128
    """width of the two memory layers"""
    prev_action: bool = True
    """feed the previous action to the memory"""
    encoder: Annotated[str, OneOf(("patch", "paper"))] = "patch"
    """encoder for pixels: patch (fast everywhere) or paper (POPGym Arcade's convolutions)"""
    precision: Precision = "float32"
    """matrix products of the encoder in float32 or bfloat16; parameters, memory and head stay in float32"""
    remat: bool = False
    """recompute the encoder in the backward pass, in eight pieces per batch: less memory, more time"""

    @property
    def segment(self) -> int:
        """Steps of each environment in one rollout, which are stored with the memory before them; gcd(n, 0) = n."""
        return math.gcd(self.num_steps, self.burn_in)

    @property
    def sequence_segments(self) -> int:
        """Segments of a sequence, its burn-in included."""
        return (self.burn_in + self.num_steps) // self.segment

    @property
    def update_size(self) -> int:
        """Steps of one rollout over all environments."""
        return self.num_envs * self.segment

    @property
    def gradient_steps(self) -> int:
        """Gradient steps after each rollout."""
        return self.update_size // self.train_frequency

    @property
    def minibatch_shape(self) -> tuple[int, int]:
        """T and B of a minibatch, for the memory estimate; the burn-in has no gradient and is left out."""
        return self.num_steps, self.batch_size

    @property
    def buffer_length(self) -> int:
        """Segments of each environment in the full buffer; not more than are played."""
        return min(self.buffer_size // self.update_size, self.num_updates)

    @property
    def first_segments(self) -> int:
        """Segments of each environment in the buffer before the first gradient step."""
        return max(self.sequence_segments, -(-self.learning_starts // self.update_size))

    def check(self) -> None:
        self.check_divides_or_multiple("burn_in", "num_steps")
        if self.n_step > self.num_steps:
            raise UserError(f"--n-step {self.n_step}: use {self.num_steps} (--num-steps) or less")
        self.check_divides("train_frequency", self.update_size, "NUM_ENVS * gcd(NUM_STEPS, BURN_IN) =")
        self.check_devices(group=1)
        least = self.sequence_segments * self.update_size
        for flag, steps in (("--buffer-size", self.buffer_size), ("--total-timesteps", self.total_timesteps)):
            if steps < least:
                raise UserError(f"{flag} {steps}: use {least} or more, for one sequence in every environment")
        most = self.buffer_length * self.update_size
        if self.learning_starts > most:
            raise UserError(f"--learning-starts {self.learning_starts}: use {most} or less, the steps in the buffer")


# ----------------------------------------------------------------------------------------------------------- network


class Encoder(nn.Module):
    """Observations [T * B, ...] -> features [T * B, F] float32; F is 512 for paper, else 256."""

    kind: str  # "patch" or "paper" for pixels, "dense" for anything else
    dtype: Any

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        dense = functools.partial(nn.Dense, dtype=self.dtype)
        if self.kind == "paper":
            x = paper_convolutions(obs, self.dtype)
        elif self.kind == "patch":
            x = Centred(dense(16, use_bias=False))(patches(obs, self.dtype, pixels=4))
            # instance norm gives every channel mean 0 and variance 1, so that small objects stand out
            x = nn.leaky_relu(nn.InstanceNorm(dtype=self.dtype)(x))
            x = nn.leaky_relu(dense(32)(merge(x, 2)))
            x = nn.leaky_relu(dense(256)(x.reshape(len(obs), -1)))
        else:
            x = obs.reshape(len(obs), -1).astype(jnp.float32)
            for _ in range(2):
                x = nn.leaky_relu(nn.LayerNorm(dtype=self.dtype)(dense(256)(x)))
        return x.astype(jnp.float32)


@struct.dataclass
class Output:
    """Network outputs for each observation: q[T, B, A] float32."""

    q: jax.Array


class QNetwork(nn.Module):
    """Encoder, memory over features and previous action, action values."""

    args: Args
    num_actions: int
    pixels: bool

    def setup(self):
        args, dtype, window = self.args, jnp.dtype(self.args.precision), self.args.burn_in + self.args.num_steps
        kind = args.encoder if self.pixels else "dense"
        self.encode = Encoder(kind, dtype)
        size = 512 if kind == "paper" else 256  # of the features
        input_size = size + args.prev_action * self.num_actions
        self.remember = Memory(
            MEMORIES[args.memory], input_size, args.hidden_size, output_size=size, num_layers=2, window=window
        )
        self.norm = nn.LayerNorm()
        self.head = nn.Dense(self.num_actions, kernel_init=nn.initializers.zeros)  # values start at 0

    def __call__(self, carry: Any, obs: jax.Array, prev_action: jax.Array, start: jax.Array) -> tuple[Any, Output]:
        steps, batch = start.shape
        x = obs.swapaxes(0, 1).reshape(batch * steps, *obs.shape[2:])  # batch axis first, because devices share it
        x = in_pieces(self.encode, x) if self.args.remat else self.encode(x)
        x = features = x.reshape(batch, steps, -1).swapaxes(0, 1)  # [T, B, F]
        if self.args.prev_action:  # the first observation of an episode follows no action: all zeros
            x = jnp.concatenate([x, jax.nn.one_hot(jnp.where(start, -1, prev_action), self.num_actions)], axis=-1)
        carry, x = self.remember(carry, x, start)
        x += features  # the current observation need not pass through the memory
        return carry, Output(q=self.head(nn.leaky_relu(self.norm(x))))


def initial_carry(network: QNetwork, batch: int) -> Any:
    """The memory of `batch` new sequences, leaves [B, ...]."""
    return network.bind({}).remember.initial_carry(batch)


@functools.partial(jax.jit, static_argnums=0, inline=True)  # so that the memory is traced only once per shape
def forward(network: QNetwork, params, carry, obs, prev_action, start) -> tuple[Any, Output]:
    """Reads obs[T, B, ...], prev_action[T, B] int32, start[T, B] bool, carry[B, ...]; returns (last carry, Output)."""
    return network.apply(params, carry, obs, prev_action, start)


# --------------------------------------------------------------------------------------------------------- algorithm


def epsilon_greedy(key: jax.Array, q: jax.Array, epsilon: jax.Array) -> jax.Array:
    """Actions [E] int32: uniform with probability epsilon, otherwise argmax of q[E, A]."""
    explore_key, action_key = jax.random.split(key)
    random = jax.random.randint(action_key, q.shape[:1], 0, q.shape[1], jnp.int32)
    explore = jax.random.uniform(explore_key, q.shape[:1]) < epsilon
    return jnp.where(explore, random, q.argmax(axis=-1)).astype(jnp.int32)


def double_q_values(next_q: jax.Array, target_next_q: jax.Array) -> jax.Array:
    """Values [...] of next observations, Q'(s', argmax_a Q(s', a)) (van Hasselt et al. 2016).

    next_q[..., A] = Q(s', .) of the network being trained, target_next_q[..., A] = Q'(s', .) of the target network.
    """
    best = jnp.argmax(next_q, axis=-1, keepdims=True)
    return jnp.take_along_axis(target_next_q, best, axis=-1)[..., 0]


def n_step_targets(steps: "Step", next_value: jax.Array, gamma: float, n: int) -> jax.Array:
    """Targets [T, B]: n discounted rewards, then the value of the observation they lead to, from next_value[T, B].

    The sum is shorter where the episode or the sequence ends. It bootstraps from the next value of a truncated step and
    of the last step of the sequence, but from nothing after a terminated step.
    """
    discount = gamma * (1 - steps.terminated)

    def one_more(_, target):
        later = jnp.concatenate([target[1:], next_value[-1:]])
        return steps.reward + discount * jnp.where(steps.truncated, next_value, later)

    return jax.lax.fori_loop(0, n - 1, one_more, steps.reward + discount * next_value)


def importance_weights(probabilities: jax.Array, beta: jax.Array) -> jax.Array:
    """Weights [B] of what was sampled with these probabilities, scaled to a maximum of 1 (Schaul et al. 2016).

    A probability of 0 gets the weight 0: because of rounding, flashbax's sum tree occasionally samples such a sequence.
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


def beta_at(args: Args, update: jax.Array) -> jax.Array:
    """Exponent of the importance weights in an update, rising from `prioritized_replay_beta` to 1."""
    return args.prioritized_replay_beta + (1 - args.prioritized_replay_beta) * update / args.num_updates


def target_share(args: Args, update: jax.Array, index: jax.Array) -> jax.Array:
    """Weight of the new parameters in the target network after gradient step `index` of an update: `tau` if one of its
    `train_frequency` environment steps is a multiple of `target_network_frequency`, else 0."""
    before = update * args.update_size + index * args.train_frequency
    every = args.target_network_frequency
    due = (before + args.train_frequency) // every > before // every
    return jnp.where(due, args.tau, 0.0)


@struct.dataclass
class Actor:
    """Environment states and the agent's memory, [E, ...]."""

    env_state: Any
    obs: jax.Array  # once an episode has ended, the first of the next
    carry: Any  # the memory before obs is read
    prev_action: jax.Array  # int32
    start: jax.Array  # bool
    episode: Episode  # after the last step
    key: jax.Array


@struct.dataclass
class Step:
    """What the replay buffer stores of a step: [E, ...] when it is played, [T, B, ...] when it is sampled."""

    seen: Any  # the environment's state before the step, or its observation
    prev_action: jax.Array  # int32
    start: jax.Array
    action: jax.Array  # int32
    reward: jax.Array  # float32
    terminated: jax.Array
    truncated: jax.Array
    next_seen: Any  # the state after the step, or its observation, before any reset


@struct.dataclass
class Segment:
    """An item of the replay buffer: successive steps of an environment, and the memory before the first."""

    carry: Any
    steps: Step


@struct.dataclass
class Slots:
    """What the network reads of a sequence, [S, B, ...] for S slots: its observations and next observations, in order.

    The next observation of a step comes right after its own. Usually it is that of the next step. After a truncated
    step and after the last one it has a slot of its own, and the start flag of the next slot erases the memory of it.
    Four steps, the second of them truncated, take six slots, o0 o1 o1' o2 o3 o3', and have the places 0, 1, 3, 4.
    """

    seen: Any
    prev_action: jax.Array
    start: jax.Array
    place: jax.Array  # [T, B] int32, the slot of each step


@struct.dataclass
class Transition(Step):
    """One step of all environments, [E, ...]; a rollout stacks them to [T, E, ...]."""

    episode: Episode  # after this step


@struct.dataclass
class TrainState:
    """Everything that changes during training."""

    # name prefixes of leaves with a leading axis E; keys have none
    OF_ENVS: ClassVar = ("actor.", "reward_scale.sums", "replay.experience.")

    params: Any  # {"params": weights}, for pixels also the encoder's "constants"
    target_params: Any
    opt_state: Any
    reward_scale: RewardScale
    replay: Any  # flashbax's; None in a checkpoint without it
    actor: Actor
    key: jax.Array
    update: jax.Array  # int32, rollouts so far


def make_replay(args: Args) -> tuple[Any, Segment]:
    """flashbax's ring buffer of segments, [E, `buffer_length`], sampled several in a row, and the shapes of one."""
    envs = in_parallel(args)
    obs, env_state = jax.eval_shape(envs.env.reset, jax.random.key(0), envs.env_params)
    seen = envs.seen(env_state, obs)
    number, scalar, flag = (jax.ShapeDtypeStruct((), dtype) for dtype in (jnp.int32, jnp.float32, bool))
    played = {"action": number, "reward": scalar, "terminated": flag, "truncated": flag, "next_seen": seen}
    step = Step(seen=seen, prev_action=number, start=flag, **played)
    steps = jax.tree.map(lambda x: jax.ShapeDtypeStruct((args.segment, *x.shape), x.dtype), step)
    carry = jax.eval_shape(lambda: jax.tree.map(lambda x: x[0], initial_carry(make_actor(args)[0], 1)))
    buffer = make_buffer(
        args,
        add_batch_size=args.num_envs,
        sample_batch_size=args.batch_size,
        max_length_time_axis=args.buffer_length,
        min_length_time_axis=args.first_segments,
        sample_sequence_length=args.sequence_segments,
    )
    return buffer, Segment(carry, steps)


def lay_out(steps: Step, size: int) -> Slots:
    """The slots of steps[T, B, ...], `size` of them. Unused ones, at the end, repeat the last next observation.

    `size` must be T + 1, plus one for each step before the last that may be truncated: what does not fit is dropped.
    """
    length, batch = steps.start.shape
    columns, numbers = jnp.arange(batch), jnp.arange(length)[:, None]
    place = numbers + jnp.cumsum(steps.truncated, axis=0) - steps.truncated  # a truncated step takes two slots
    apart = steps.truncated | (numbers == length - 1)  # [T, B], the steps whose next observation has its own slot
    next_place = jnp.where(apart, place + 1, size)  # `size` is no slot, so those of other steps are dropped
    # what each slot holds, as a row of the T observations followed by the T next ones; unused slots hold the last one
    source = jnp.full((size, batch), 2 * length - 1)
    source = source.at[place, columns].set(numbers, mode="drop")
    source = source.at[next_place, columns].set(length + numbers, mode="drop")

    now = steps.seen, steps.prev_action, steps.start
    after = steps.next_seen, steps.action, jnp.zeros_like(steps.start)
    seen, prev_action, start = jax.tree.map(lambda x, y: jnp.concatenate([x, y])[source, columns], now, after)
    return Slots(seen=seen, prev_action=prev_action, start=start, place=place)


def read_sequence(network: QNetwork, params, carry, past: Step, slots: Slots) -> tuple[jax.Array, jax.Array]:
    """Q [T, B, A] of each step's observation, and of its next one; the burn-in `past` gets no gradient."""
    if past.start.shape[0]:
        carry, _ = forward(network, params, carry, past.seen, past.prev_action, past.start)
    _, output = forward(network, params, jax.lax.stop_gradient(carry), slots.seen, slots.prev_action, slots.start)
    columns = jnp.arange(slots.start.shape[1])
    return output.q[slots.place, columns], output.q[slots.place + 1, columns]


def make_actor(args: Args):
    """The network, begin(key, num_envs) -> Actor, act(params, actor, epsilon) -> (Actor, Transition, step's info)."""
    envs = in_parallel(args)
    network = QNetwork(args, envs.num_actions, is_pixels(envs.observation_space))

    def begin(key: jax.Array, num_envs: int) -> Actor:
        key, reset_key = jax.random.split(key)
        obs, env_state = envs.reset(reset_key, num_envs)
        return Actor(
            env_state=env_state,
            obs=obs,
            carry=initial_carry(network, num_envs),
            prev_action=jnp.zeros(num_envs, jnp.int32),
            start=jnp.ones(num_envs, bool),
            episode=Episode.begin(num_envs),
            key=key,
        )

    def read(params, carry, obs, prev_action, start):
        carry, output = forward(network, params, carry, obs[None], prev_action[None], start[None])
        return carry, output.q[0]

    def act(params, actor: Actor, epsilon) -> tuple[Actor, Transition, dict]:
        key, action_key, step_key = jax.random.split(actor.key, 3)
        carry, q = read(params, actor.carry, actor.obs, actor.prev_action, actor.start)
        action = epsilon_greedy(action_key, q, epsilon)
        obs, env_state, reward, terminated, truncated, info = envs.step(step_key, actor.env_state, action)
        transition = Transition(
            seen=envs.seen(actor.env_state, actor.obs),
            prev_action=actor.prev_action,
            start=actor.start,
            action=action,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            next_seen=envs.next_seen(info),
            episode=actor.episode.after(info),
        )
        actor = Actor(
            env_state=env_state,
            obs=obs,
            carry=carry,
            prev_action=action,
            start=terminated | truncated,
            episode=transition.episode,
            key=key,
        )
        return actor, transition, info

    return network, begin, act


def make_train(args: Args):
    """The pure functions init(key) -> TrainState and update(state) -> (TrainState, sums of the metrics)."""
    envs = in_parallel(args)
    network, begin, act = make_actor(args)
    buffer, item = make_replay(args)
    optimizer = of_weights(optax.chain(optax.clip_by_global_norm(args.max_grad_norm), optax.scale_by_adam()))

    def init(key: jax.Array) -> TrainState:
        key, network_key, actor_key = jax.random.split(key, 3)
        actor = begin(actor_key, args.num_envs)
        params = network.init(network_key, actor.carry, actor.obs[None], actor.prev_action[None], actor.start[None])
        return TrainState(
            params=params,
            target_params=jax.tree.map(jnp.copy, params),
            opt_state=optimizer.init(params),
            reward_scale=RewardScale.fresh(args.num_envs),
            replay=buffer.init(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), item)),
            actor=actor,
            key=key,
            update=jnp.int32(0),
        )

    def loss(params, inputs, steps: Step, target_next_q, weight):
        """Half the weighted mean squared error of Q(s_t, a_t) against targets [T, B]; the metrics; priorities [B]."""
        all_q, next_q = read_sequence(network, params, *inputs)
        next_value = double_q_values(jax.lax.stop_gradient(next_q), target_next_q)
        target = n_step_targets(steps, next_value, args.gamma, args.n_step)
        q = jnp.take_along_axis(all_q, steps.action[..., None], axis=-1)[..., 0]
        error = jnp.abs(q - target)
        priority = SHARE_OF_MAX * error.max(axis=0) + (1 - SHARE_OF_MAX) * error.mean(axis=0)
        td_loss = 0.5 * (weight * jnp.square(error)).mean()
        return td_loss, ({"td_loss": td_loss, "q_values": q.mean()}, priority)

    def descend(state: TrainState, grads, index) -> TrainState:
        """One step of the optimizer and, if it is due, an update of the target network."""
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        learning_rate = learning_rate_at(args, state.update)
        params = jax.tree.map(lambda x, step: x - learning_rate * step, state.params, updates)
        target_params = optax.incremental_update(params, state.target_params, target_share(args, state.update, index))
        return state.replace(params=params, target_params=target_params, opt_state=opt_state)

    def learn(index, learner: tuple[TrainState, dict]) -> tuple[TrainState, dict]:
        """One gradient step on B sequences from the buffer."""
        state, sums = learner
        key, sample_key = jax.random.split(state.key)
        sample = spread(args, buffer.sample(state.replay, sample_key))  # [B, segments, steps, ...]
        carry = jax.tree.map(lambda x: x[:, 0], sample.experience.carry)
        flat = lambda x: x.reshape(x.shape[0], -1, *x.shape[3:]).swapaxes(0, 1)
        sequence = jax.tree.map(flat, sample.experience.steps)  # [burn-in + T, B, ...]
        past = jax.tree.map(lambda x: x[: args.burn_in], sequence)
        steps = jax.tree.map(lambda x: x[args.burn_in :], sequence)
        steps = steps.replace(reward=steps.reward / state.reward_scale.std)
        slots = lay_out(steps, args.num_steps + 1 + envs.most_truncations(args.num_steps - 1))
        observe = jax.vmap(envs.observe)
        inputs = carry, past.replace(seen=observe(past.seen)), slots.replace(seen=observe(slots.seen))
        _, target_next_q = read_sequence(network, state.target_params, *inputs)
        weight = importance_weights(sample.probabilities, beta_at(args, state.update)) if args.prioritized else 1.0
        grads, (metrics, priority) = jax.grad(loss, has_aux=True)(state.params, inputs, steps, target_next_q, weight)
        state = descend(state, grads, index).replace(key=key)
        if args.prioritized:
            priority = jnp.where(weight > 0, priority + MIN_PRIORITY, 0)
            state = state.replace(replay=buffer.set_priorities(state.replay, sample.indices, priority))
        return state, jax.tree.map(jnp.add, sums, metrics | {"grad_norm": optax.tree.norm(grads)})

    def update(state: TrainState) -> tuple[TrainState, dict]:
        epsilon = epsilon_at(args, state.update)
        rollout_step = lambda actor, _: act(state.params, actor, epsilon)[:2]
        actor, rollout = jax.lax.scan(rollout_step, state.actor, length=args.segment)
        steps = Step(**{field.name: getattr(rollout, field.name) for field in fields(Step)})
        segment = Segment(state.actor.carry, jax.tree.map(lambda x: x.swapaxes(0, 1), steps))  # [E, steps, ...]
        replay = buffer.add(state.replay, jax.tree.map(lambda x: x[:, None], segment))

        # the buffers of all seeds are equally full, so one number of gradient steps serves all of them
        gradient_steps = jnp.where(anywhere(buffer.can_sample(replay)), args.gradient_steps, 0)
        key, learn_key = jax.random.split(state.key)
        reward_scale = state.reward_scale.updated(rollout, args.gamma) if args.norm_reward else state.reward_scale
        learner = state.replace(reward_scale=reward_scale, replay=replay, actor=actor, key=learn_key)
        nothing = dict.fromkeys(LOSSES, jnp.float32(0))
        learner, metrics = jax.lax.fori_loop(0, gradient_steps, learn, (learner, nothing))
        state = learner.replace(key=key, update=state.update + 1)
        metrics["q_values"] *= reward_scale.std  # logged in the game's own unit
        return state, metrics | {"gradient_steps": gradient_steps} | episode_sums(rollout)

    return init, update


# -------------------------------------------------------------------------------------------------------------- main


def curves(args: Args, step: int, sums: dict) -> dict[str, Any]:
    """The points of the training curves at a step, from the sums since the last point: scalars, or one per seed."""
    updates, gradient_steps = step // args.update_size, nan_if_zero(sums["gradient_steps"])
    points = {f"losses/{name}": sums[name] / gradient_steps for name in LOSSES}
    points |= episode_curves(sums) | {"charts/epsilon": epsilon_at(args, updates - 1)}
    return points | {"charts/learning_rate": learning_rate_at(args, updates - 1)}


def main(args: Args) -> Path:
    """Trains, or resumes, and returns the run folder."""
    args = args.checked()
    init, update = make_train(args)
    with Run(args, make_actor(args), POLICIES) as run:
        state, train_chunk = run.begin(init, repeat(update), optional=("replay",))
        if "replay" in run.restarted:
            say(when_learning_resumes(args, run.step, args.first_segments * args.update_size))
        if run.step == 0:
            run.evaluate(state.params, "random")
        while run.goes_on():
            state, sums = run.train(train_chunk, state)
            run.log(curves(args, run.step, sums))
            if run.is_due(args.eval_every):
                run.evaluate(state.params, "greedy")
            if run.is_due(args.checkpoint_every):
                run.save(without_replay(args, state))
        run.finish(without_replay(args, state))
    return run.folder


if __name__ == "__main__":
    launch(main, Args)
