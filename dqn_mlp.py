"""Double DQN. For popgym_arcade games, the replay buffer stores states, and frames are drawn from sampled states.

Papers: Mnih et al. 2015, "Human-level control through deep reinforcement learning", doi:10.1038/nature14236;
        van Hasselt et al. 2016, "Deep Reinforcement Learning with Double Q-learning", https://arxiv.org/abs/1509.06461;
        Schaul et al. 2016, "Prioritized Experience Replay", https://arxiv.org/abs/1511.05952
Run:    python dqn_mlp.py --env-id CartPoleEasy
Page:   docs/dqn_mlp.md

Shapes: T steps of a rollout, E environments, B steps of a batch from the buffer, A actions, F features; time first.
`terminated[t]` and `truncated[t]` follow `action[t]`.
"""

import functools
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
from popgym_arcade.baselines.normalization import RewardScale
from popgym_arcade.baselines.replay import make_buffer, when_learning_resumes, without_replay
from popgym_arcade.baselines.running.command_line import launch
from popgym_arcade.baselines.running.metrics import episode_curves, episode_sums, nan_if_zero, repeat
from popgym_arcade.baselines.running.records import say
from popgym_arcade.baselines.running.run import Run

POLICIES = {"random": 1.0, "greedy": 0.0}  # epsilon
LOSSES = ("td_loss", "q_values", "grad_norm")
MIN_PRIORITY = 1e-6  # of a step without an error, so that it can be sampled again


# --------------------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True)
class Args(ArcadeArgs):
    env_id: str = "CartPoleEasy"
    """id from popgym_arcade or gymnax, LIBRARY/ID of another library, or MODULE:CLASS of your own; discrete actions"""
    learning_rate: UnitInterval = 1e-3
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
    train_frequency: Count = 16
    """steps over all environments per gradient step; divides NUM_ENVS or is a multiple of it"""
    batch_size: Count = 64
    """steps sampled from the buffer for a gradient step"""
    gamma: UnitInterval = 0.95
    """discount factor"""
    norm_reward: bool = True
    """learn from rewards divided by the running standard deviation of their discounted sums"""
    target_network_frequency: Count = 500
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
    """prioritized replay: sample steps with large errors more often, corrected by importance weights"""
    prioritized_replay_alpha: UnitInterval = 0.6
    """exponent of the errors in the sampling probabilities; 0 is uniform (with --prioritized)"""
    prioritized_replay_beta: UnitInterval = 0.4
    """initial exponent of the importance weights; it rises linearly to 1 (with --prioritized)"""
    hidden_size: Count = 256
    """width of the two hidden layers"""
    encoder: Annotated[str, OneOf(("patch", "paper"))] = "patch"
    """encoder for pixels: patch (fast everywhere) or paper (POPGym Arcade's convolutions)"""
    precision: Precision = "float32"
    """matrix products before the head in float32 or bfloat16; parameters and head stay in float32"""
    remat: bool = False
    """recompute the encoder in the backward pass, in eight pieces per batch: less memory, more time"""

    @property
    def num_steps(self) -> int:
        """Steps of each environment in one rollout, T."""
        return max(1, self.train_frequency // self.num_envs)

    @property
    def update_size(self) -> int:
        """Steps of one rollout over all environments, T * E."""
        return self.num_envs * self.num_steps

    @property
    def gradient_steps(self) -> int:
        """Gradient steps after each rollout."""
        return self.update_size // self.train_frequency

    @property
    def minibatch_shape(self) -> tuple[int, int]:
        """A minibatch as [1, B] steps, for the memory estimate."""
        return 1, self.batch_size

    @property
    def buffer_length(self) -> int:
        """Steps of each environment in the full buffer; not more than are played."""
        return min(self.buffer_size, self.num_updates * self.update_size) // self.num_envs

    @property
    def first_updates(self) -> int:
        """Rollouts in the buffer before the first gradient step."""
        return max(1, -(-self.learning_starts // self.update_size))

    def check(self) -> None:
        self.check_devices(group=1)
        self.check_divides_or_multiple("train_frequency", "num_envs")
        if self.buffer_size < self.update_size:
            added = f"an update adds {self.update_size} steps"
            raise UserError(f"--buffer-size {self.buffer_size}: {added}, use {self.update_size} or more")
        most = self.buffer_length * self.num_envs
        if self.learning_starts > most:
            raise UserError(f"--learning-starts {self.learning_starts}: use {most} or less, the steps in the buffer")


# ----------------------------------------------------------------------------------------------------------- network


class Encoder(nn.Module):
    """Observations [T * B, ...] -> features [T * B, F] float32; F is 512 for paper, 256 for patch, width for dense."""

    kind: str  # "patch" or "paper" for pixels, "dense" for anything else
    dtype: Any
    width: int  # of the two layers that read anything but pixels

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
                x = nn.leaky_relu(nn.LayerNorm(dtype=self.dtype)(dense(self.width)(x)))
        return x.astype(jnp.float32)


@struct.dataclass
class Output:
    """Network outputs for each observation: q[T, B, A] float32."""

    q: jax.Array


class QNetwork(nn.Module):
    """Encoder, two hidden layers (for vectors, the encoder already consists of them), action values."""

    args: Args
    num_actions: int
    pixels: bool

    def setup(self):
        args, dtype = self.args, jnp.dtype(self.args.precision)
        self.encode = Encoder(args.encoder if self.pixels else "dense", dtype, args.hidden_size)
        layers = [nn.Dense(args.hidden_size, dtype=dtype) for _ in range(2 if self.pixels else 0)]
        self.hidden = [(layer, nn.LayerNorm(dtype=dtype)) for layer in layers]
        self.head = nn.Dense(self.num_actions, kernel_init=nn.initializers.zeros)  # values start at 0

    def __call__(self, obs: jax.Array) -> Output:
        steps, batch = obs.shape[:2]
        x = obs.reshape(steps * batch, *obs.shape[2:])
        x = in_pieces(self.encode, x) if self.args.remat else self.encode(x)
        x = x.reshape(steps, batch, -1)  # [T, B, F]
        for layer, norm in self.hidden:
            x = nn.leaky_relu(norm(layer(x)))
        return Output(q=self.head(x))


def initial_carry(network: QNetwork, batch: int) -> Any:
    """Nothing, because this network has no memory. (The analysis scripts call it for every script.)"""
    return ()


def forward(network: QNetwork, params, carry, obs, prev_action=None, start=None) -> tuple[Any, Output]:
    """Reads obs[T, B, ...] and returns (carry, Output). Inputs that only a memory needs are ignored."""
    return carry, network.apply(params, obs)


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


def importance_weights(probabilities: jax.Array, beta: jax.Array) -> jax.Array:
    """Weights [B] of what was sampled with these probabilities, scaled to a maximum of 1 (Schaul et al. 2016).

    A probability of 0 gets the weight 0: because of rounding, flashbax's sum tree occasionally samples such a step.
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
    """The environments being played, [E, ...]."""

    env_state: Any
    obs: jax.Array  # once an episode has ended, the first of the next
    episode: Episode  # after the last step
    key: jax.Array


@struct.dataclass
class Step:
    """What the replay buffer stores of a step: [E, ...] when it is played, [B, ...] when it is sampled."""

    seen: Any  # the environment's state before the step, or its observation
    action: jax.Array  # int32
    reward: jax.Array  # float32
    terminated: jax.Array
    next_seen: Any  # the state after the step, or its observation, before any reset


@struct.dataclass
class Transition(Step):
    """One step of all environments, [E, ...]; a rollout stacks them to [T, E, ...]."""

    truncated: jax.Array
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


def make_replay(args: Args) -> tuple[Any, Step]:
    """flashbax's ring buffer of single steps, [E, `buffer_length`], and the shapes of one step."""
    envs = in_parallel(args)
    obs, env_state = jax.eval_shape(envs.env.reset, jax.random.key(0), envs.env_params)
    seen = envs.seen(env_state, obs)
    number, scalar, flag = (jax.ShapeDtypeStruct((), dtype) for dtype in (jnp.int32, jnp.float32, bool))
    item = Step(seen=seen, action=number, reward=scalar, terminated=flag, next_seen=seen)
    buffer = make_buffer(
        args,
        add_batch_size=args.num_envs,
        sample_batch_size=args.batch_size,
        max_length_time_axis=args.buffer_length,
        min_length_time_axis=max(1, -(-args.learning_starts // args.num_envs)),
        sample_sequence_length=1,
    )
    return buffer, item


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
            episode=Episode.begin(num_envs),
            key=key,
        )

    def read(params, obs):
        _, output = forward(network, params, (), obs[None])
        return output.q[0]

    def act(params, actor: Actor, epsilon) -> tuple[Actor, Transition, dict]:
        key, action_key, step_key = jax.random.split(actor.key, 3)
        q = read(params, actor.obs)
        action = epsilon_greedy(action_key, q, epsilon)
        obs, env_state, reward, terminated, truncated, info = envs.step(step_key, actor.env_state, action)
        transition = Transition(
            seen=envs.seen(actor.env_state, actor.obs),
            action=action,
            reward=reward,
            terminated=terminated,
            next_seen=envs.next_seen(info),
            truncated=truncated,
            episode=actor.episode.after(info),
        )
        actor = Actor(
            env_state=env_state,
            obs=obs,
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
        params = network.init(network_key, actor.obs[None])
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

    def loss(params, obs, action, target, weight):
        """Half the weighted mean squared error of Q(s, a) against the targets [B]; the metrics; the errors [B]."""
        _, output = forward(network, params, (), obs[None])
        q = jnp.take_along_axis(output.q[0], action[:, None], axis=-1)[:, 0]
        td_loss = 0.5 * (weight * jnp.square(q - target)).mean()
        return td_loss, ({"td_loss": td_loss, "q_values": q.mean()}, jnp.abs(q - target))

    def descend(state: TrainState, grads, index) -> TrainState:
        """One step of the optimizer and, if it is due, an update of the target network."""
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        learning_rate = learning_rate_at(args, state.update)
        params = jax.tree.map(lambda x, step: x - learning_rate * step, state.params, updates)
        target_params = optax.incremental_update(params, state.target_params, target_share(args, state.update, index))
        return state.replace(params=params, target_params=target_params, opt_state=opt_state)

    def learn(index, learner: tuple[TrainState, dict]) -> tuple[TrainState, dict]:
        """One gradient step on B steps from the buffer."""
        state, sums = learner
        key, sample_key = jax.random.split(state.key)
        sample = spread(args, buffer.sample(state.replay, sample_key))
        batch = jax.tree.map(lambda x: x[:, 0], sample.experience)  # [B, ...]
        obs, next_obs = envs.observe(batch.seen), envs.observe(batch.next_seen)
        _, next_output = forward(network, state.params, (), next_obs[None])
        _, target_output = forward(network, state.target_params, (), next_obs[None])
        next_value = double_q_values(next_output.q[0], target_output.q[0])
        reward = batch.reward / state.reward_scale.std
        target = reward + args.gamma * jnp.where(batch.terminated, 0.0, next_value)
        weight = importance_weights(sample.probabilities, beta_at(args, state.update)) if args.prioritized else 1.0
        grads, (metrics, error) = jax.grad(loss, has_aux=True)(state.params, obs, batch.action, target, weight)
        state = descend(state, grads, index).replace(key=key)
        if args.prioritized:
            priority = jnp.where(weight > 0, error + MIN_PRIORITY, 0)
            state = state.replace(replay=buffer.set_priorities(state.replay, sample.indices, priority))
        return state, jax.tree.map(jnp.add, sums, metrics | {"grad_norm": optax.tree.norm(grads)})

    def update(state: TrainState) -> tuple[TrainState, dict]:
        epsilon = epsilon_at(args, state.update)
        rollout_step = lambda actor, _: act(state.params, actor, epsilon)[:2]
        actor, rollout = jax.lax.scan(rollout_step, state.actor, length=args.num_steps)
        steps = Step(**{field.name: getattr(rollout, field.name) for field in fields(Step)})
        replay = buffer.add(state.replay, jax.tree.map(lambda x: x.swapaxes(0, 1), steps))

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
            say(when_learning_resumes(args, run.step, args.first_updates * args.update_size))
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
