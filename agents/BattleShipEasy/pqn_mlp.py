"""PQN: Q-learning on parallel environments, without a replay buffer or a target network.

Paper: Gallici et al. 2024, "Simplifying Deep Temporal Difference Learning", https://arxiv.org/abs/2407.04811
Run:   python pqn_mlp.py --env-id CartPoleEasy
Page:  docs/pqn_mlp.md

Shapes: T steps of a rollout, E environments, B steps of a minibatch, A actions, F features; time first.
`terminated[t]` and `truncated[t]` follow `action[t]`.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct

from popgym_arcade.baselines.arguments import ArcadeArgs
from popgym_arcade.baselines.devices.minibatches import group_size, pick_steps, shuffled
from popgym_arcade.baselines.environment import final_values, in_parallel, is_pixels
from popgym_arcade.baselines.episode import Episode
from popgym_arcade.baselines.limits import Count, OneOf, Positive, PositiveUnitInterval, Precision, UnitInterval
from popgym_arcade.baselines.networks.encoding import Centred, in_pieces, merge, of_weights, paper_convolutions, patches
from popgym_arcade.baselines.normalization import RewardScale
from popgym_arcade.baselines.running.churn import changed, check_churn, churn_curves, churn_sums
from popgym_arcade.baselines.running.command_line import launch
from popgym_arcade.baselines.running.metrics import episode_curves, episode_sums, repeat
from popgym_arcade.baselines.running.run import Run

POLICIES = {"random": 1.0, "greedy": 0.0}  # epsilon
LOSSES = ("td_loss", "q_values", "grad_norm")


# --------------------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True)
class Args(ArcadeArgs):
    env_id: str = "CartPoleEasy"
    """id from popgym_arcade or gymnax, LIBRARY/ID of another library, or MODULE:CLASS of your own; discrete actions"""
    learning_rate: UnitInterval = 1e-3
    """learning rate of RAdam"""
    anneal_lr: bool = True
    """lower the learning rate linearly, to LEARNING_RATE_END"""
    learning_rate_end: UnitInterval = 0.0
    """final learning rate (with --anneal-lr)"""
    anneal_fraction: PositiveUnitInterval = 1.0
    """fraction of TOTAL_TIMESTEPS over which the learning rate falls (with --anneal-lr)"""
    num_envs: Count = 32
    """parallel environments"""
    num_steps: Count = 32
    """steps of each environment in one rollout"""
    num_minibatches: Count = 16
    """minibatches of a rollout; each holds NUM_ENVS * NUM_STEPS / NUM_MINIBATCHES steps"""
    update_epochs: Count = 2
    """passes over a rollout"""
    gamma: UnitInterval = 0.95
    """discount factor"""
    norm_reward: bool = True
    """learn from rewards divided by the running standard deviation of their discounted sums"""
    q_lambda: UnitInterval = 0.8
    """lambda of the Q(lambda) returns"""
    max_grad_norm: Positive = 10.0
    """clip gradients to this global norm"""
    start_e: UnitInterval = 1.0
    """epsilon at the first step"""
    end_e: UnitInterval = 0.05
    """epsilon after the exploration fraction"""
    exploration_fraction: UnitInterval = 0.25
    """fraction of TOTAL_TIMESTEPS over which epsilon falls linearly"""
    hidden_size: Count = 256
    """width of the two hidden layers"""
    encoder: Annotated[str, OneOf(("patch", "paper"))] = "patch"
    """encoder for pixels: patch (fast everywhere) or paper (POPGym Arcade's convolutions)"""
    storage: Annotated[str, OneOf(("frames", "states"))] = "frames"
    """what a rollout stores for popgym_arcade games: frames, or states (a hundredth of the memory), drawn when used"""
    precision: Precision = "float32"
    """matrix products before the head in float32 or bfloat16; parameters and head stay in float32"""
    remat: bool = False
    """recompute the encoder in the backward pass, in eight pieces per minibatch: less memory, more time"""
    log_churn: bool = False
    """log policy churn: the share of greedy actions changed by one gradient step, and by learning from a rollout"""

    @property
    def update_size(self) -> int:
        """Steps of one rollout over all environments, T * E."""
        return self.num_envs * self.num_steps

    def check(self) -> None:
        self.check_divides("num_minibatches", self.update_size, "NUM_ENVS * NUM_STEPS =")
        self.check_devices(group_size(self.num_minibatches, self.num_steps))
        check_churn(self)


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


def q_lambda_returns(rollout: "Transition", next_value: jax.Array, gamma: float, q_lambda: float) -> jax.Array:
    """Peng's Q(lambda) returns [T, E] of a rollout (Peng and Williams 1994; Gallici et al. 2024).

    R_t = r_t + gamma (1 - terminated_t) ((1 - lambda) v_t + lambda R_{t+1}), v_t = next_value[t] = max_a Q(s_{t+1}, a),
    and R_T = v_{T-1} after the last step. After a truncated step, `final_value` takes the place of both.
    """
    bootstrap = jnp.where(rollout.truncated, rollout.final_value, next_value)

    def backward(next_return, now):
        step, bootstrap = now
        mixed = jnp.where(step.truncated, bootstrap, (1 - q_lambda) * bootstrap + q_lambda * next_return)
        this_return = step.reward + gamma * jnp.where(step.terminated, 0.0, mixed)
        return this_return, this_return

    return jax.lax.scan(backward, bootstrap[-1], (rollout, bootstrap), reverse=True)[1]


def epsilon_at(args: Args, update: jax.Array) -> jax.Array:
    """Exploration rate of a rollout; `update` counts the rollouts before it."""
    duration = args.exploration_fraction * args.num_updates
    fraction = jnp.clip(update / duration, 0, 1) if duration else 1.0
    return args.start_e + fraction * (args.end_e - args.start_e)


def learning_rate_at(args: Args, step: jax.Array) -> jax.Array:
    """Learning rate of a gradient step; `step` counts the gradient steps before it."""
    steps = round(args.anneal_fraction * args.num_updates * args.update_epochs * args.num_minibatches)
    end = args.learning_rate_end if args.anneal_lr else args.learning_rate
    return optax.linear_schedule(args.learning_rate, end, max(1, steps))(step)


@struct.dataclass
class Actor:
    """The environments being played, [E, ...]."""

    env_state: Any
    obs: jax.Array  # once an episode has ended, the first of the next
    episode: Episode  # after the last step
    key: jax.Array


@struct.dataclass
class Transition:
    """One step of all environments, [E, ...]; a rollout stacks them to [T, E, ...]."""

    seen: Any  # the observation, or the environment's state that it is drawn from
    action: jax.Array
    greedy: jax.Array  # argmax_a Q(obs, a), int32
    value: jax.Array  # max_a Q(obs, a)
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_value: jax.Array  # max_a Q(final observation) if truncated, else 0
    episode: Episode  # after this step


@struct.dataclass
class TrainState:
    """Everything that changes during training."""

    OF_ENVS: ClassVar = ("actor.", "reward_scale.sums")  # name prefixes of leaves with a leading axis E; keys have none

    params: Any  # {"params": weights}, for pixels also the encoder's "constants"
    opt_state: Any
    reward_scale: RewardScale
    actor: Actor
    key: jax.Array
    update: jax.Array  # int32, rollouts so far


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
        return forward(network, params, (), obs[None])[1].q[0]

    def act(params, actor: Actor, epsilon) -> tuple[Actor, Transition, dict]:
        key, action_key, step_key = jax.random.split(actor.key, 3)
        q = read(params, actor.obs)
        action = epsilon_greedy(action_key, q, epsilon)
        obs, env_state, reward, terminated, truncated, info = envs.step(step_key, actor.env_state, action)
        transition = Transition(
            seen=envs.seen(actor.env_state, actor.obs),
            action=action,
            greedy=q.argmax(axis=-1),
            value=q.max(axis=-1),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            final_value=final_values(envs, info, truncated, lambda obs: read(params, obs).max(axis=-1)),
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
    learning_rate = functools.partial(learning_rate_at, args)
    optimizer = of_weights(optax.chain(optax.clip_by_global_norm(args.max_grad_norm), optax.radam(learning_rate)))

    def init(key: jax.Array) -> TrainState:
        key, network_key, actor_key = jax.random.split(key, 3)
        actor = begin(actor_key, args.num_envs)
        params = network.init(network_key, actor.obs[None])
        opt_state, reward_scale = optimizer.init(params), RewardScale.fresh(args.num_envs)
        return TrainState(
            params=params, opt_state=opt_state, reward_scale=reward_scale, actor=actor, key=key, update=jnp.int32(0)
        )

    def loss(params, batch: Transition, target):
        """Half the mean squared error of Q(s, a) against the targets [B], and the metrics."""
        _, output = forward(network, params, (), envs.observe(batch.seen)[None])
        q = jnp.take_along_axis(output.q[0], batch.action[:, None], axis=-1)[:, 0]
        td_loss = 0.5 * jnp.square(q - target).mean()
        return td_loss, {"td_loss": td_loss, "q_values": q.mean(), "changed": changed(output.q[0], batch.greedy)}

    def update(state: TrainState) -> tuple[TrainState, dict]:
        epsilon = epsilon_at(args, state.update)
        rollout_step = lambda actor, _: act(state.params, actor, epsilon)[:2]
        actor, rollout = jax.lax.scan(rollout_step, state.actor, length=args.num_steps)
        _, output = forward(network, state.params, (), actor.obs[None])
        next_value = jnp.concatenate([rollout.value[1:], output.q.max(axis=-1)])  # [T, E]
        reward_scale = state.reward_scale.updated(rollout, args.gamma) if args.norm_reward else state.reward_scale
        rollout = rollout.replace(reward=rollout.reward / reward_scale.std)
        target = q_lambda_returns(rollout, next_value, args.gamma, args.q_lambda)

        def minibatch(learner, picked):
            """One gradient step on B steps of the rollout."""
            params, opt_state = learner
            batch, batch_target = pick_steps((rollout, target), *picked)
            grads, metrics = jax.grad(loss, has_aux=True)(params, batch, batch_target)
            updates, opt_state = optimizer.update(grads, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), metrics | {"grad_norm": optax.tree.norm(grads)}

        key, *epoch_keys = jax.random.split(state.key, 1 + args.update_epochs)
        order = jax.tree.map(jnp.concatenate, shuffled(epoch_keys, args.num_envs, args.num_steps, args.num_minibatches))
        (params, opt_state), metrics = jax.lax.scan(minibatch, (state.params, state.opt_state), order)
        state = TrainState(
            params=params, opt_state=opt_state, reward_scale=reward_scale, actor=actor, key=key, update=state.update + 1
        )
        metrics["q_values"] *= reward_scale.std  # logged in the game's own unit
        churn = churn_sums(args, metrics.pop("changed"))
        return state, jax.tree.map(jnp.mean, metrics) | churn | episode_sums(rollout)

    return init, update


# -------------------------------------------------------------------------------------------------------------- main


def curves(args: Args, step: int, sums: dict) -> dict[str, Any]:
    """The points of the training curves at a step, from the sums since the last point: scalars, or one per seed."""
    updates = step // args.update_size
    gradient_steps = updates * args.update_epochs * args.num_minibatches
    points = {f"losses/{name}": sums[name] / sums["updates"] for name in LOSSES}
    points |= churn_curves(sums) | episode_curves(sums) | {"charts/epsilon": epsilon_at(args, updates - 1)}
    return points | {"charts/learning_rate": learning_rate_at(args, gradient_steps - 1)}


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
