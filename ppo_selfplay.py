"""PPO by self-play: one network plays both seats of a two-player game, and rates its checkpoints against each other.

Paper: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", https://arxiv.org/abs/1707.06347
Run:   python ppo_selfplay.py --env-id popgym_arcade.environments.pong:PongEasy
Page:  docs/ppo_selfplay.md

Shapes: T steps of a rollout, E games, P = 2 E players, B players of a minibatch, K past opponents, A actions, F
features; time first. Player p sits in seat p % 2 of game p // 2. `start[t]` arrives with `obs[t]`, True on a game's
first step; `terminated[t]`, `truncated[t]` follow `action[t]`.
"""

import functools
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

from popgym_arcade.baselines import seats
from popgym_arcade.baselines.arguments import ArcadeArgs
from popgym_arcade.baselines.devices.minibatches import pick_envs, shuffled_envs
from popgym_arcade.baselines.environment import final_values, is_pixels
from popgym_arcade.baselines.episode import Episode
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import Count, NonNegative, NonNegativeInt, OneOf, Positive, Precision, UnitInterval
from popgym_arcade.baselines.networks.encoding import Centred, merge, of_weights, patches
from popgym_arcade.baselines.networks.memory import MEMORIES, Memory
from popgym_arcade.baselines.running.command_line import launch
from popgym_arcade.baselines.running.metrics import player_curves, player_sums, repeat, value_curves, value_sums
from popgym_arcade.baselines.running.ratings import rate
from popgym_arcade.baselines.running.run import Run
from popgym_arcade.baselines.seats import SEATS, OfPlayers, Rivals, View

SAMPLE, GREEDY, RANDOM, SELF_PLAY = range(4)  # agent's policy, its most probable action, uniform, all players' policies
POLICIES = {"random": RANDOM, "greedy": GREEDY}  # of the agent in an evaluation; its opponent plays at random
PAST = 4  # earlier versions to play against; every twentieth of the run, the agent takes the place of the oldest
LOSSES = ("policy_loss", "value_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac", "grad_norm")


# --------------------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True)
class Args(ArcadeArgs):
    TWO_PLAYER: ClassVar = True
    env_id: str = "popgym_arcade.environments.pong:PongEasy"
    """two-player game, as MODULE:CLASS, or LIBRARY/ID of another library; discrete actions"""
    learning_rate: UnitInterval = 5e-4
    """learning rate of Adam"""
    anneal_lr: bool = True
    """lower the learning rate linearly, to zero at the end of the run"""
    num_envs: Count = 64
    """parallel games"""
    num_steps: Count = 32
    """steps of each game in one rollout"""
    num_minibatches: Count = 8
    """minibatches of a rollout; each holds the same number of players over all steps"""
    update_epochs: Count = 2
    """passes over a rollout"""
    gamma: UnitInterval = 0.95
    """discount factor"""
    gae_lambda: UnitInterval = 0.9
    """lambda of generalised advantage estimation"""
    norm_adv: bool = True
    """normalise the advantages of each minibatch"""
    clip_coef: Positive = 0.2
    """clip the ratio of an action's new to its old probability to within this distance of 1"""
    ent_coef: NonNegative = 0.01
    """weight of the entropy bonus"""
    vf_coef: NonNegative = 0.5
    """weight of the value loss"""
    max_grad_norm: Positive = 0.5
    """clip gradients to this global norm"""
    save_every: NonNegativeInt = 50_000
    """keep the first checkpoint at or after each multiple of this many steps, to rate it; 0: only the last three"""
    elo_games: NonNegativeInt = 64
    """games between every pair of up to ten networks, for their Elo ratings at the end; 0: no ratings"""
    opponents: Annotated[str, OneOf(("latest", "past"))] = "latest"
    """who has the other seat: latest (the agent itself) or past (in half of the games, one of four earlier versions)"""
    memory: Annotated[str, OneOf(tuple(MEMORIES))] = "MLP"
    """memory model: MLP remembers nothing; MinGRU or one of memax's (LRU, GRU, FFM, ...)"""
    hidden_size: Count = 128
    """width of the two memory layers"""
    precision: Precision = "float32"
    """matrix products of the encoder in float32 or bfloat16; parameters, memory and heads stay in float32"""

    @property
    def update_size(self) -> int:
        """Steps of one rollout over all games, T * E."""
        return self.num_envs * self.num_steps

    @property
    def minibatch_shape(self) -> tuple[int, int]:
        """T and B of a minibatch, for the memory estimate."""
        return self.num_steps, len(self.learners) // self.num_minibatches

    @property
    def past_players(self) -> np.ndarray:
        """The players [K, n] that past opponents control: one in each of half of the games."""
        count = self.num_envs // 2 if self.opponents == "past" else 0
        return seats.opponents(self.num_envs)[:count].reshape(PAST, -1)

    @property
    def learners(self) -> np.ndarray:
        """The players that learn from a rollout."""
        return np.setdiff1d(np.arange(SEATS * self.num_envs), self.past_players)

    def check(self) -> None:
        if self.opponents == "past" and self.num_envs % (2 * PAST):
            raise UserError(f"--num-envs {self.num_envs}: with --opponents past, use a multiple of {2 * PAST}")
        self.check_divides("num_minibatches", len(self.learners), "the number of players that learn,")
        self.check_devices(group=self.num_minibatches)
        if self.distributed and self.elo_games:
            raise UserError("--elo-games: a distributed run cannot be rated, use 0")
        if self.norm_adv and len(self.learners) * self.num_steps == self.num_minibatches:
            raise UserError("--norm-adv needs two steps per minibatch: lower --num-minibatches or use --no-norm-adv")


# ----------------------------------------------------------------------------------------------------------- network


class Encoder(nn.Module):
    """Observations [T * B, ...] -> features [T * B, F] float32; F is 256."""

    pixels: bool
    dtype: Any

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        dense = functools.partial(nn.Dense, dtype=self.dtype, kernel_init=nn.initializers.orthogonal(2**0.5))
        if self.pixels:
            x = Centred(dense(16, use_bias=False))(patches(obs, self.dtype, pixels=4))
            # instance norm gives every channel mean 0 and variance 1, so that small objects stand out
            x = nn.leaky_relu(nn.InstanceNorm(dtype=self.dtype)(x))
            x = nn.leaky_relu(dense(32)(merge(x, 2)))
            return nn.leaky_relu(dense(256)(x.reshape(len(obs), -1))).astype(jnp.float32)
        x = obs.reshape(len(obs), -1).astype(jnp.float32)
        for _ in range(2):
            x = nn.tanh(dense(256)(x))
        return x.astype(jnp.float32)


@struct.dataclass
class Output:
    """Network outputs for each observation: logits[T, B, A] and value[T, B], float32."""

    logits: jax.Array
    value: jax.Array


class ActorCritic(nn.Module):
    """Encoder, memory over features, seat, previous and legal actions, linear heads for the policy and the value."""

    args: Args
    num_actions: int
    pixels: bool

    def setup(self):
        args, orthogonal = self.args, nn.initializers.orthogonal
        self.encode = Encoder(self.pixels, jnp.dtype(args.precision))
        input_size = 256 + SEATS + 2 * self.num_actions
        self.remember = Memory(
            MEMORIES[args.memory], input_size, args.hidden_size, output_size=256, num_layers=2, window=args.num_steps
        )
        self.norm = nn.LayerNorm()
        self.policy = nn.Dense(self.num_actions, kernel_init=orthogonal(0.01))
        self.value = nn.Dense(1, kernel_init=nn.initializers.zeros)  # values start at 0

    def __call__(self, carry: Any, obs: View, prev_action: jax.Array, start: jax.Array) -> tuple[Any, Output]:
        steps, batch = start.shape
        x = obs.seen.swapaxes(0, 1).reshape(batch * steps, *obs.seen.shape[2:])  # batch first: devices share it
        x = features = self.encode(x).reshape(batch, steps, -1).swapaxes(0, 1)  # [T, B, F]
        # the first observation of a game follows no action: all zeros. Legal actions tell whose turn it is
        previous = jax.nn.one_hot(jnp.where(start, -1, prev_action), self.num_actions)
        x = jnp.concatenate([x, jax.nn.one_hot(obs.seat, SEATS), previous, obs.legal], axis=-1)
        carry, x = self.remember(carry, x, start)
        x += features  # the current observation need not pass through the memory
        x = nn.leaky_relu(self.norm(x))
        return carry, Output(logits=seats.among_legal(self.policy(x), obs.legal), value=self.value(x)[..., 0])


def initial_carry(network: ActorCritic, batch: int) -> Any:
    """The memory of `batch` new sequences, leaves [B, ...]."""
    return network.bind({}).remember.initial_carry(batch)


@functools.partial(jax.jit, static_argnums=0, inline=True)  # so that the memory is traced only once per shape
def forward(network: ActorCritic, params, carry, obs, prev_action, start) -> tuple[Any, Output]:
    """Reads View[T, B, ...], prev_action[T, B] int32, start[T, B] bool, carry[B, ...]; returns (last carry, Output)."""
    return network.apply(params, carry, obs, prev_action, start)


# --------------------------------------------------------------------------------------------------------- algorithm


def choose(key: jax.Array, logits: jax.Array, legal: jax.Array, policy: jax.Array) -> jax.Array:
    """Actions [P] int32 of each player's policy[P] (SELF_PLAY samples too), given logits[P, A] and legal[P, A] bool."""
    at_random = seats.among_legal(jnp.zeros_like(logits), legal)
    distribution = distrax.Categorical(logits=jnp.where((policy == RANDOM)[:, None], at_random, logits))
    return jnp.where(policy == GREEDY, distribution.mode(), distribution.sample(seed=key)).astype(jnp.int32)


def gae(rollout: "Transition", next_value: jax.Array, gamma: float, gae_lambda: float) -> jax.Array:
    """Generalised advantage estimates [T, P] of a rollout (Schulman et al. 2016, https://arxiv.org/abs/1506.02438).

    A_t = d_t + gamma lambda (1 - done_t) A_{t+1} with d_t = r_t + gamma (1 - terminated_t) v_t - V(s_t), where v_t is
    next_value[t] = V(s_{t+1}), or `final_value` after a truncated step. A_T = 0 after the last step.
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
    """The clipped objective of Schulman et al. 2017 as means over a minibatch, and the metrics.

    `target` is the value target. For both estimates of KL(old || new policy) see http://joschu.net/blog/kl-approx.html.
    """
    distribution = distrax.Categorical(logits=output.logits)
    log_ratio = distribution.log_prob(batch.action) - batch.log_prob
    ratio = jnp.exp(log_ratio)
    if args.norm_adv:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped_ratio = jnp.clip(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
    policy_loss = -jnp.minimum(advantage * ratio, advantage * clipped_ratio).mean()
    value_loss = 0.5 * jnp.square(output.value - target).mean()
    entropy = distribution.entropy().mean()
    metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
    metrics |= {"old_approx_kl": -log_ratio.mean(), "approx_kl": (ratio - 1 - log_ratio).mean()}
    metrics |= {"clipfrac": (jnp.abs(ratio - 1) > args.clip_coef).mean()}
    return policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss, metrics


def learning_rate_at(args: Args, update: jax.Array) -> jax.Array:
    """Learning rate of an update; `update` counts the updates before it."""
    return args.learning_rate * (1 - update / args.num_updates) if args.anneal_lr else args.learning_rate


@struct.dataclass
class Actor(OfPlayers):
    """The games [E, ...] and their players, [P, ...]."""

    env_state: Any  # of the games
    obs: View  # once a game has ended, the first of the next
    carry: Any  # the memory before obs is read
    prev_action: jax.Array  # int32
    start: jax.Array  # bool
    players: Episode  # after the last step
    key: jax.Array


@struct.dataclass
class Transition(OfPlayers):
    """One step of all players, [P, ...]; a rollout stacks them to [T, P, ...]."""

    obs: View
    prev_action: jax.Array
    start: jax.Array
    action: jax.Array
    log_prob: jax.Array  # of the action
    value: jax.Array  # of obs
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_value: jax.Array  # of the observation a truncated game ended with, else 0
    players: Episode  # after this step


@struct.dataclass
class TrainState:
    """Everything that changes during training."""

    OF_ENVS: ClassVar = ("actor.",)  # name prefixes of leaves with a leading axis E or P; keys have none

    params: Any  # {"params": weights}, for pixels also the encoder's "constants"
    rivals: Rivals | None  # the past opponents; None with --opponents latest
    opt_state: Any
    actor: Actor
    key: jax.Array
    update: jax.Array  # int32, rollouts so far


def make_actor(args: Args):
    """The network, begin(key, num_games) -> Actor, act(params, actor, policy) -> (Actor, Transition, step's info).

    With SELF_PLAY, all players sample from the network's policy, or from that of the `rivals`. Any other policy is that
    of the agents, and their opponents play at random.
    """
    envs = seats.seats_in_parallel(args)
    network = ActorCritic(args, envs.num_actions, is_pixels(envs.observation_space))

    def begin(key: jax.Array, num_games: int) -> Actor:
        key, reset_key = jax.random.split(key)
        obs, env_state = envs.reset(reset_key, num_games)
        num_players = SEATS * num_games
        return Actor(
            env_state=env_state,
            obs=obs,
            carry=initial_carry(network, num_players),
            prev_action=jnp.zeros(num_players, jnp.int32),
            start=jnp.ones(num_players, bool),
            players=Episode.begin(num_players),
            key=key,
        )

    def read(params, carry, *inputs):
        carry, output = forward(network, params, carry, *seats.in_time(inputs))
        return carry, jax.tree.map(lambda x: x[0], output)

    def act(params, actor: Actor, policy, rivals: Rivals | None = None) -> tuple[Actor, Transition, dict]:
        key, action_key, step_key = jax.random.split(actor.key, 3)
        inputs = actor.carry, actor.obs, actor.prev_action, actor.start
        carry, output = read(params, *inputs)
        if rivals is not None:
            carry, output = seats.with_rivals(read, rivals, (carry, output), inputs)
        of_player = jnp.where(seats.is_agent(len(actor.start)) | (policy == SELF_PLAY), policy, RANDOM)
        action = choose(action_key, output.logits, actor.obs.legal, of_player)
        obs, env_state, reward, terminated, truncated, info = envs.step(step_key, actor.env_state, action)

        def value_of(next_obs):  # values [P], with the memory after this step
            return read(params, carry, next_obs, action, jnp.zeros_like(truncated))[1].value

        transition = Transition(
            obs=actor.obs,
            prev_action=actor.prev_action,
            start=actor.start,
            action=action,
            log_prob=distrax.Categorical(logits=output.logits).log_prob(action),
            value=output.value,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            final_value=final_values(envs, info, truncated, value_of),
            players=actor.players.after(info),
        )
        actor = Actor(
            env_state=env_state,
            obs=obs,
            carry=carry,
            prev_action=action,
            start=terminated | truncated,
            players=transition.players,
            key=key,
        )
        return actor, transition, info

    return network, begin, act


def make_train(args: Args):
    """The pure functions init(key) -> TrainState and update(state) -> (TrainState, sums of the metrics)."""
    network, begin, act = make_actor(args)
    optimizer = of_weights(optax.chain(optax.clip_by_global_norm(args.max_grad_norm), optax.scale_by_adam(eps=1e-5)))

    def init(key: jax.Array) -> TrainState:
        key, network_key, actor_key = jax.random.split(key, 3)
        actor = begin(actor_key, args.num_envs)
        params = network.init(network_key, actor.carry, *seats.in_time((actor.obs, actor.prev_action, actor.start)))
        return TrainState(
            params=params,
            rivals=seats.first_rivals(params, args.past_players),
            opt_state=optimizer.init(params),
            actor=actor,
            key=key,
            update=jnp.int32(0),
        )

    def loss(params, carry, batch: Transition, advantage, target):
        """`ppo_loss` of a minibatch [T, B]."""
        _, output = forward(network, params, carry, batch.obs, batch.prev_action, batch.start)
        return ppo_loss(args, output, batch, advantage, target)

    def update(state: TrainState) -> tuple[TrainState, dict]:
        rivals = seats.with_snapshot(state.rivals, state.params, state.update, -(-args.num_updates // 20))
        rollout_step = lambda actor, _: act(state.params, actor, SELF_PLAY, rivals)[:2]
        actor, rollout = jax.lax.scan(rollout_step, state.actor, length=args.num_steps)
        last = seats.in_time((actor.obs, actor.prev_action, actor.start))
        _, output = forward(network, state.params, actor.carry, *last)
        next_value = jnp.concatenate([rollout.value[1:], output.value])  # [T, P]
        advantage = gae(rollout, next_value, args.gamma, args.gae_lambda)
        target = advantage + rollout.value
        learning_rate = learning_rate_at(args, state.update)  # the same for all gradient steps of the rollout
        experience, advantage, target = seats.only((rollout, advantage, target), args.learners)
        carry_before = seats.only(state.actor.carry, args.learners, axis=0)

        def minibatch(learner, picked):
            """One gradient step on the whole sequences of some players."""
            params, opt_state = learner
            batch, *estimates = pick_envs((experience, advantage, target), picked)
            carry = pick_envs(carry_before, picked, axis=0)
            grads, metrics = jax.grad(loss, has_aux=True)(params, carry, batch, *estimates)
            updates, opt_state = optimizer.update(grads, opt_state)
            updates = jax.tree.map(lambda x: -learning_rate * x, updates)
            return (optax.apply_updates(params, updates), opt_state), metrics | {"grad_norm": optax.tree.norm(grads)}

        key, *epoch_keys = jax.random.split(state.key, 1 + args.update_epochs)
        order = jnp.concatenate(shuffled_envs(epoch_keys, len(args.learners), args.num_minibatches))
        (params, opt_state), metrics = jax.lax.scan(minibatch, (state.params, state.opt_state), order)
        state = state.replace(params=params, rivals=rivals, opt_state=opt_state, actor=actor, key=key)
        sums = value_sums(experience.value, target) | player_sums(rollout.players)
        return state.replace(update=state.update + 1), jax.tree.map(jnp.mean, metrics) | sums

    return init, update


# -------------------------------------------------------------------------------------------------------------- main


def curves(args: Args, step: int, sums: dict) -> dict[str, Any]:
    """The points of the training curves at a step, from the sums since the last point: scalars, or one per seed."""
    points = {f"losses/{name}": sums[name] / sums["updates"] for name in LOSSES}
    points |= value_curves(sums) | player_curves(sums)
    return points | {"charts/learning_rate": learning_rate_at(args, step // args.update_size - 1)}


def main(args: Args) -> Path:
    """Trains, or resumes, rates the checkpoints, and returns the run folder."""
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
    rate(args, run.folder, init, make_actor(args.in_evaluation()), SELF_PLAY)
    return run.folder


if __name__ == "__main__":
    launch(main, Args)
