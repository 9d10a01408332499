"""PPO for continuous actions: proximal policy optimisation on parallel environments.

Paper: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", https://arxiv.org/abs/1707.06347
Run:   python ppo_continuous_action.py --env-id Pendulum-v1
Page:  docs/ppo_continuous_action.md

Shapes: T steps of a rollout, E environments, B steps of a minibatch, A components of an action, F features; time first.
`terminated[t]` and `truncated[t]` follow `action[t]`.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct
from gymnax.environments import spaces

from popgym_arcade.baselines.arguments import RunArgs
from popgym_arcade.baselines.devices.minibatches import group_size, pick_steps, shuffled
from popgym_arcade.baselines.environment import final_values, in_parallel
from popgym_arcade.baselines.episode import Episode
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import Count, NonNegative, Positive, Precision, UnitInterval
from popgym_arcade.baselines.normalization import Moments, RewardScale
from popgym_arcade.baselines.running.command_line import launch
from popgym_arcade.baselines.running.metrics import episode_curves, episode_sums, repeat, value_curves, value_sums
from popgym_arcade.baselines.running.run import Run

SAMPLE, GREEDY, RANDOM = range(3)  # policies: the agent's own, its mean action, uniform
POLICIES = {"random": RANDOM, "greedy": GREEDY}
LOSSES = ("policy_loss", "value_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac", "grad_norm")


# --------------------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True)
class Args(RunArgs):
    ACTIONS: ClassVar[type] = spaces.Box
    env_id: str = "Pendulum-v1"
    """id from gymnax, LIBRARY/ID of another library, or MODULE:CLASS of your own; with Box actions"""
    learning_rate: UnitInterval = 3e-4
    """learning rate of Adam"""
    anneal_lr: bool = True
    """lower the learning rate linearly, to zero at the end of the run"""
    num_envs: Count = 32
    """parallel environments"""
    num_steps: Count = 128
    """steps of each environment in one rollout"""
    num_minibatches: Count = 8
    """minibatches of a rollout; each holds NUM_ENVS * NUM_STEPS / NUM_MINIBATCHES steps"""
    update_epochs: Count = 4
    """passes over a rollout"""
    gamma: UnitInterval = 0.99
    """discount factor"""
    gae_lambda: UnitInterval = 0.95
    """lambda of generalised advantage estimation"""
    norm_obs: bool = True
    """normalise observations to a running mean of 0 and variance of 1, and clip them to [-10, 10]"""
    norm_reward: bool = True
    """learn from rewards divided by the running standard deviation of their discounted sums, clipped to [-10, 10]"""
    norm_adv: bool = True
    """normalise the advantages of each minibatch"""
    clip_coef: Positive = 0.2
    """clip the ratio of an action's new to its old density to within this distance of 1"""
    clip_vloss: bool = True
    """in the value loss, limit the change of each value to CLIP_COEF"""
    ent_coef: NonNegative = 0.0
    """weight of the entropy bonus"""
    vf_coef: NonNegative = 0.5
    """weight of the value loss"""
    max_grad_norm: Positive = 0.5
    """clip gradients to this global norm"""
    target_kl: Positive | None = None
    """skip the remaining epochs of a rollout once the policy has moved by this approximate KL divergence"""
    hidden_size: Count = 64
    """width of the two hidden layers"""
    precision: Precision = "float32"
    """matrix products in float32 or bfloat16; parameters and heads stay in float32"""

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


@struct.dataclass
class Output:
    """Network outputs for each observation: mean[T, B, A] and log_std[A] of the action, value[T, B]; float32."""

    mean: jax.Array
    log_std: jax.Array
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
    """Two towers, for policy and value. The moments that normalise observations are variables beside the parameters."""

    args: Args
    num_actions: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> Output:
        x = obs.reshape(*obs.shape[:2], -1).astype(jnp.float32)
        moments = self.variable("moments", "obs", Moments.fresh, x.shape[2:]).value
        if self.args.norm_obs:
            x = jnp.clip((x - moments.mean[None, None]) / jnp.sqrt(moments.var[None, None] + 1e-8), -10, 10)
        mean = Tower(self.args, self.num_actions, scale=0.01, name="actor")(x)
        value = Tower(self.args, 1, scale=1.0, name="critic")(x)[..., 0]
        log_std = self.param("log_std", nn.initializers.zeros, (self.num_actions,), jnp.float32)
        return Output(mean=mean, log_std=log_std, value=value)


def initial_carry(network: ActorCritic, batch: int) -> Any:
    """Nothing, because this network has no memory. (The analysis scripts call it for every script.)"""
    return ()


def forward(network: ActorCritic, params, carry, obs, prev_action=None, start=None) -> tuple[Any, Output]:
    """Reads obs[T, B, ...] and returns (carry, Output). Inputs that only a memory needs are ignored."""
    return carry, network.apply(params, obs)


# --------------------------------------------------------------------------------------------------------- algorithm


def policy_of(output: Output) -> distrax.Distribution:
    """The distribution of actions [..., A]: independent normals."""
    return distrax.MultivariateNormalDiag(output.mean, jnp.broadcast_to(jnp.exp(output.log_std), output.mean.shape))


def choose(key: jax.Array, output: Output, policy: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """Actions [E, A] of a policy (SAMPLE, GREEDY or RANDOM); they may lie outside low[A] and high[A]."""
    sample_key, random_key = jax.random.split(key)
    uniform = jax.random.uniform(random_key, output.mean.shape, minval=low, maxval=high)
    sample = policy_of(output).sample(seed=sample_key)
    return jnp.select([policy == SAMPLE, policy == GREEDY], [sample, output.mean], uniform)


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

    obs: jax.Array
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

    params: Any  # {"params": weights, "moments": of the observations}
    opt_state: Any
    reward_scale: RewardScale
    actor: Actor
    key: jax.Array
    update: jax.Array  # int32, rollouts so far


def make_actor(args: Args):
    """The network, begin(key, num_envs) -> Actor, act(params, actor, policy) -> (Actor, Transition, step's info)."""
    envs = in_parallel(args)
    network = ActorCritic(args, envs.num_actions)
    space = envs.env.action_space(envs.env_params)
    low, high = (jnp.broadcast_to(bound, space.shape) for bound in (space.low, space.high))

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
        return output.replace(mean=output.mean[0], value=output.value[0])

    def act(params, actor: Actor, policy) -> tuple[Actor, Transition, dict]:
        key, action_key, step_key = jax.random.split(actor.key, 3)
        output = read(params, actor.obs)
        action = choose(action_key, output, policy, low.reshape(-1), high.reshape(-1))  # [E, A]
        played = jnp.clip(action.reshape(-1, *space.shape), low[None], high[None])
        obs, env_state, reward, terminated, truncated, info = envs.step(step_key, actor.env_state, played)
        transition = Transition(
            obs=actor.obs,
            action=action,
            log_prob=policy_of(output).log_prob(action),
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
    network, begin, act = make_actor(args)
    optimizer = optax.chain(optax.clip_by_global_norm(args.max_grad_norm), optax.scale_by_adam(eps=1e-5))

    def init(key: jax.Array) -> TrainState:
        key, network_key, actor_key = jax.random.split(key, 3)
        actor = begin(actor_key, args.num_envs)
        params = network.init(network_key, actor.obs[None])
        opt_state, reward_scale = optimizer.init(params["params"]), RewardScale.fresh(args.num_envs)
        return TrainState(
            params=params, opt_state=opt_state, reward_scale=reward_scale, actor=actor, key=key, update=jnp.int32(0)
        )

    def loss(weights, params, batch: Transition, advantage, target):
        """`ppo_loss` of a minibatch [1, B]."""
        _, output = forward(network, params | {"params": weights}, (), batch.obs)
        return ppo_loss(args, output, batch, advantage, target)

    def update(state: TrainState) -> tuple[TrainState, dict]:
        rollout_step = lambda actor, _: act(state.params, actor, SAMPLE)[:2]
        actor, rollout = jax.lax.scan(rollout_step, state.actor, length=args.num_steps)
        _, output = forward(network, state.params, (), actor.obs[None])
        next_value = jnp.concatenate([rollout.value[1:], output.value])  # [T, E]
        reward_scale = state.reward_scale.updated(rollout, args.gamma) if args.norm_reward else state.reward_scale
        if args.norm_reward:
            rollout = rollout.replace(reward=jnp.clip(rollout.reward / reward_scale.std, -10, 10))
        advantage = gae(rollout, next_value, args.gamma, args.gae_lambda)
        target = advantage + rollout.value
        learning_rate = learning_rate_at(args, state.update)  # the same for all gradient steps of the rollout

        def minibatch(learner, picked):
            """One gradient step on B steps of the rollout."""
            weights, opt_state = learner
            batch, *estimates = jax.tree.map(lambda x: x[None], picked)  # [1, B]
            grads, metrics = jax.grad(loss, has_aux=True)(weights, state.params, batch, *estimates)
            updates, opt_state = optimizer.update(grads, opt_state)
            updates = jax.tree.map(lambda x: -learning_rate * x, updates)
            return (optax.apply_updates(weights, updates), opt_state), metrics | {"grad_norm": optax.tree.norm(grads)}

        def epoch(learning, order):
            """A pass over the rollout in the minibatches of this order."""
            before, stopped = learning
            picked = jax.vmap(functools.partial(pick_steps, (rollout, advantage, target)))(*order)
            learner, metrics = jax.lax.scan(minibatch, before, picked)
            metrics = jax.tree.map(jnp.sum, metrics) | {"gradient_steps": jnp.float32(args.num_minibatches)}
            if args.target_kl is not None:  # once the policy has moved too far, an epoch has no effect
                nothing = before, jax.tree.map(jnp.zeros_like, metrics)
                learner, metrics = jax.tree.map(functools.partial(jnp.where, stopped), nothing, (learner, metrics))
                stopped |= metrics["approx_kl"] / args.num_minibatches > args.target_kl
            return (learner, stopped), metrics

        key, *epoch_keys = jax.random.split(state.key, 1 + args.update_epochs)
        orders = shuffled(epoch_keys, args.num_envs, args.num_steps, args.num_minibatches)
        learning = (state.params["params"], state.opt_state), jnp.bool_(False)
        ((weights, opt_state), _), metrics = jax.lax.scan(epoch, learning, orders)
        # the new moments apply from the next rollout on, because the old probabilities were computed with the old ones
        obs = rollout.obs.swapaxes(0, 1).reshape(args.update_size, -1).astype(jnp.float32)
        params = {"params": weights, "moments": {"obs": state.params["moments"]["obs"].updated(obs)}}
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
