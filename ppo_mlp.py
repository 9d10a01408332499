"""PPO: proximal policy optimisation on parallel environments.

Paper: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", https://arxiv.org/abs/1707.06347
Run:   python ppo_mlp.py --env-id CartPoleEasy
Page:  docs/ppo_mlp.md

Shapes: T steps of a rollout, E environments, B steps of a minibatch, A actions, F features; time first.
`terminated[t]` and `truncated[t]` follow `action[t]`.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct

from popgym_arcade.baselines.arguments import ArcadeArgs
from popgym_arcade.baselines.devices.minibatches import group_size, pick_steps, shuffled
from popgym_arcade.baselines.environment import final_values, in_parallel, is_pixels
from popgym_arcade.baselines.episode import Episode
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import Count, NonNegative, OneOf, Positive, Precision, UnitInterval
from popgym_arcade.baselines.networks.encoding import Centred, in_pieces, merge, of_weights, paper_convolutions, patches
from popgym_arcade.baselines.normalization import RewardScale
from popgym_arcade.baselines.running.command_line import launch
from popgym_arcade.baselines.running.metrics import episode_curves, episode_sums, repeat, value_curves, value_sums
from popgym_arcade.baselines.running.run import Run

SAMPLE, GREEDY, RANDOM = range(3)  # policies: the agent's own, its most probable action, uniform
POLICIES = {"random": RANDOM, "greedy": GREEDY}
LOSSES = ("policy_loss", "value_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac", "grad_norm")


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
    num_steps: Count = 32
    """steps of each environment in one rollout"""
    num_minibatches: Count = 8
    """minibatches of a rollout; each holds NUM_ENVS * NUM_STEPS / NUM_MINIBATCHES steps"""
    update_epochs: Count = 2
    """passes over a rollout"""
    gamma: UnitInterval = 0.95
    """discount factor"""
    norm_reward: bool = True
    """learn from rewards divided by the running standard deviation of their discounted sums"""
    gae_lambda: UnitInterval = 0.9
    """lambda of generalised advantage estimation"""
    norm_adv: bool = True
    """normalise the advantages of each minibatch"""
    clip_coef: Positive = 0.2
    """clip the ratio of an action's new to its old probability to within this distance of 1"""
    clip_vloss: bool = True
    """in the value loss, limit the change of each value to CLIP_COEF"""
    ent_coef: NonNegative = 0.01
    """weight of the entropy bonus"""
    vf_coef: NonNegative = 0.5
    """weight of the value loss"""
    max_grad_norm: Positive = 0.5
    """clip gradients to this global norm"""
    target_kl: Positive | None = None
    """skip the remaining epochs of a rollout once the policy has moved by this approximate KL divergence"""
    hidden_size: Count = 256
    """width of the two hidden layers"""
    encoder: Annotated[str, OneOf(("patch", "paper"))] = "patch"
    """encoder for pixels: patch (fast everywhere) or paper (POPGym Arcade's convolutions)"""
    storage: Annotated[str, OneOf(("frames", "states"))] = "frames"
    """what a rollout stores for popgym_arcade games: frames, or states (a hundredth of the memory), drawn when used"""
    precision: Precision = "float32"
    """matrix products in float32 or bfloat16; parameters and heads stay in float32"""
    remat: bool = False
    """recompute the encoder in the backward pass, in eight pieces per minibatch: less memory, more time"""

    @property
    def update_size(self) -> int:
        """Steps of one rollout over all environments, T * E."""
        return self.num_envs * self.num_steps

    def check(self) -> None:
        self.check_divides("num_minibatches", self.update_size, "NUM_ENVS * NUM_STEPS =")
        self.check_devices(group_size(self.num_minibatches, self.num_steps))
        if self.norm_adv and self.update_size == self.num_minibatches:
            raise UserError("--norm-adv needs two steps per minibatch: lower --num-minibatches or use --no-norm-adv")


# ----------------------------------------------------------------------------------------------------------- network


class Encoder(nn.Module):
    """Observations [T * B, ...] -> features [T * B, F] float32; F is 512 for paper, 256 for patch, any for flat."""

    kind: str  # "patch" or "paper" for pixels, "flat" for anything else
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
            x = obs.reshape(len(obs), -1)
        return x.astype(jnp.float32)


@struct.dataclass
class Output:
    """Network outputs for each observation: logits[T, B, A] and value[T, B], float32."""

    logits: jax.Array
    value: jax.Array


class Tower(nn.Module):
    """Two hidden layers and a linear head: x[T, B, F] -> [T, B, outputs]."""

    args: Args
    outputs: int
    scale: float  # of the head's initial weights

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        dtype, orthogonal = jnp.dtype(self.args.precision), nn.initializers.orthogonal
        for _ in range(2):
            x = nn.tanh(nn.Dense(self.args.hidden_size, dtype=dtype, kernel_init=orthogonal(2**0.5))(x))
        return nn.Dense(self.outputs, kernel_init=orthogonal(self.scale))(x)


class ActorCritic(nn.Module):
    """Two towers, for policy and value, on the features of one encoder."""

    args: Args
    num_actions: int
    pixels: bool

    def setup(self):
        self.encode = Encoder(self.args.encoder if self.pixels else "flat", jnp.dtype(self.args.precision))
        self.actor = Tower(self.args, self.num_actions, scale=0.01)
        self.critic = Tower(self.args, 1, scale=0.0)  # values start at 0

    def __call__(self, obs: jax.Array) -> Output:
        steps, batch = obs.shape[:2]
        x = obs.reshape(steps * batch, *obs.shape[2:])
        x = in_pieces(self.encode, x) if self.args.remat else self.encode(x)
        x = x.reshape(steps, batch, -1)  # [T, B, F]
        return Output(logits=self.actor(x), value=self.critic(x)[..., 0])


def initial_carry(network: ActorCritic, batch: int) -> Any:
    """Nothing, because this network has no memory. (The analysis scripts call it for every script.)"""
    return ()


def forward(network: ActorCritic, params, carry, obs, prev_action=None, start=None) -> tuple[Any, Output]:
    """Reads obs[T, B, ...] and returns (carry, Output). Inputs that only a memory needs are ignored."""
    return carry, network.apply(params, obs)


# --------------------------------------------------------------------------------------------------------- algorithm


def choose(key: jax.Array, logits: jax.Array, policy: jax.Array) -> jax.Array:
    """Actions [E] int32 of a policy (SAMPLE, GREEDY or RANDOM), given logits[E, A]."""
    distribution = distrax.Categorical(logits=jnp.where(policy == RANDOM, 0.0, logits))
    return jnp.where(policy == GREEDY, distribution.mode(), distribution.sample(seed=key)).astype(jnp.int32)


def gae(rollout: "Transition", next_value: jax.Array, gamma: float, gae_lambda: float) -> jax.Array:
    """Generalised advantage estimates [T, E] of a rollout (Schulman et al. 2016, https://arxiv.org/abs/1506.02438).

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
    squared_error = jnp.square(output.value - target)
    if args.clip_vloss:
        clipped_value = batch.value + jnp.clip(output.value - batch.value, -args.clip_coef, args.clip_coef)
        squared_error = jnp.maximum(squared_error, jnp.square(clipped_value - target))
    value_loss = 0.5 * squared_error.mean()
    entropy = distribution.entropy().mean()
    metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
    metrics |= {"old_approx_kl": -log_ratio.mean(), "approx_kl": (ratio - 1 - log_ratio).mean()}
    metrics |= {"clipfrac": (jnp.abs(ratio - 1) > args.clip_coef).mean()}
    return policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss, metrics


def learning_rate_at(args: Args, update: jax.Array) -> jax.Array:
    """Learning rate of an update; `update` counts the updates before it."""
    return args.learning_rate * (1 - update / args.num_updates) if args.anneal_lr else args.learning_rate


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
    log_prob: jax.Array  # of the action
    value: jax.Array  # of obs
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_value: jax.Array  # of the observation a truncated episode ended with, else 0
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
    """The network, begin(key, num_envs) -> Actor, act(params, actor, policy) -> (Actor, Transition, step's info)."""
    envs = in_parallel(args)
    network = ActorCritic(args, envs.num_actions, is_pixels(envs.observation_space))

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
        return jax.tree.map(lambda x: x[0], output)

    def act(params, actor: Actor, policy) -> tuple[Actor, Transition, dict]:
        key, action_key, step_key = jax.random.split(actor.key, 3)
        output = read(params, actor.obs)
        action = choose(action_key, output.logits, policy)
        obs, env_state, reward, terminated, truncated, info = envs.step(step_key, actor.env_state, action)
        transition = Transition(
            seen=envs.seen(actor.env_state, actor.obs),
            action=action,
            log_prob=distrax.Categorical(logits=output.logits).log_prob(action),
            value=output.value,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            final_value=final_values(envs, info, truncated, lambda obs: read(params, obs).value),
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
    optimizer = of_weights(optax.chain(optax.clip_by_global_norm(args.max_grad_norm), optax.scale_by_adam(eps=1e-5)))

    def init(key: jax.Array) -> TrainState:
        key, network_key, actor_key = jax.random.split(key, 3)
        actor = begin(actor_key, args.num_envs)
        params = network.init(network_key, actor.obs[None])
        opt_state, reward_scale = optimizer.init(params), RewardScale.fresh(args.num_envs)
        return TrainState(
            params=params, opt_state=opt_state, reward_scale=reward_scale, actor=actor, key=key, update=jnp.int32(0)
        )

    def loss(params, batch: Transition, advantage, target):
        """`ppo_loss` of a minibatch [1, B]."""
        _, output = forward(network, params, (), jax.vmap(envs.observe)(batch.seen))
        return ppo_loss(args, output, batch, advantage, target)

    def update(state: TrainState) -> tuple[TrainState, dict]:
        rollout_step = lambda actor, _: act(state.params, actor, SAMPLE)[:2]
        actor, rollout = jax.lax.scan(rollout_step, state.actor, length=args.num_steps)
        _, output = forward(network, state.params, (), actor.obs[None])
        next_value = jnp.concatenate([rollout.value[1:], output.value])  # [T, E]
        reward_scale = state.reward_scale.updated(rollout, args.gamma) if args.norm_reward else state.reward_scale
        rollout = rollout.replace(reward=rollout.reward / reward_scale.std)
        advantage = gae(rollout, next_value, args.gamma, args.gae_lambda)
        target = advantage + rollout.value
        learning_rate = learning_rate_at(args, state.update)  # the same for all gradient steps of the rollout

        def minibatch(learner, picked):
            """One gradient step on B steps of the rollout."""
            params, opt_state = learner
            order, (batch, *estimates) = picked
            batch = batch.replace(seen=pick_steps(rollout.seen, *order))
            batch, *estimates = jax.tree.map(lambda x: x[None], (batch, *estimates))  # [1, B]
            grads, metrics = jax.grad(loss, has_aux=True)(params, batch, *estimates)
            updates, opt_state = optimizer.update(grads, opt_state)
            updates = jax.tree.map(lambda x: -learning_rate * x, updates)
            return (optax.apply_updates(params, updates), opt_state), metrics | {"grad_norm": optax.tree.norm(grads)}

        def epoch(learning, order):
            """A pass over the rollout in the minibatches of this order."""
            before, stopped = learning
            # all but the observations, whose shuffled copy could take too much memory
            rest = jax.vmap(functools.partial(pick_steps, (rollout.replace(seen=None), advantage, target)))(*order)
            learner, metrics = jax.lax.scan(minibatch, before, (order, rest))
            metrics = jax.tree.map(jnp.sum, metrics) | {"gradient_steps": jnp.float32(args.num_minibatches)}
            if args.target_kl is not None:  # once the policy has moved too far, an epoch has no effect
                nothing = before, jax.tree.map(jnp.zeros_like, metrics)
                learner, metrics = jax.tree.map(functools.partial(jnp.where, stopped), nothing, (learner, metrics))
                stopped |= metrics["approx_kl"] / args.num_minibatches > args.target_kl
            return (learner, stopped), metrics

        key, *epoch_keys = jax.random.split(state.key, 1 + args.update_epochs)
        orders = shuffled(epoch_keys, args.num_envs, args.num_steps, args.num_minibatches)
        learning = (state.params, state.opt_state), jnp.bool_(False)
        ((params, opt_state), _), metrics = jax.lax.scan(epoch, learning, orders)
        state = TrainState(
            params=params, opt_state=opt_state, reward_scale=reward_scale, actor=actor, key=key, update=state.update + 1
        )
        return state, jax.tree.map(jnp.sum, metrics) | value_sums(rollout.value, target) | episode_sums(rollout)

    return init, update


# -------------------------------------------------------------------------------------------------------------- main


def curves(args: Args, step: int, sums: dict) -> dict[str, Any]:
    """The points of the training curves at a step, from the sums since the last point: scalars, or one per seed."""
    points = {f"losses/{name}": sums[name] / sums["gradient_steps"] for name in LOSSES}
    points |= value_curves(sums) | episode_curves(sums)
    return points | {"charts/learning_rate": learning_rate_at(args, step // args.update_size - 1)}


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
