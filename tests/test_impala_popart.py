"""V-trace, PopArt, tasks and lag of impala_popart.py; test_contract.py has what all scripts promise."""

import csv
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from runs import assert_equal, restored
from scripts import arcade, fresh_params, learned_return, programs, small, trained, usually
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from untrained_agents import STEP, untrained

import evaluate
import impala_popart
import saliency
from impala_popart import PopArt, Transition
from popgym_arcade.analysis.agents import load_agent, load_agents
from popgym_arcade.analysis.trajectories import record
from popgym_arcade.analysis.twins import in_twins
from popgym_arcade.baselines.environment import make_env
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import MAX_INT
from popgym_arcade.baselines.running.checkpoints import save_checkpoint
from popgym_arcade.baselines.running.folder import make_run_folder
from popgym_arcade.baselines.running.pictures import save_videos
from popgym_arcade.baselines.running.records import Records

STEPS, ENVS, TASKS, ACTIONS = 12, 6, 3, 4
NO_CLIP = float(MAX_INT)
# Compiled as a whole: each operation alone is a program too
forward = jax.jit(impala_popart.forward, static_argnums=0)
vtrace = jax.jit(impala_popart.vtrace, static_argnums=0)


def random_steps(seed=0, **changes):
    """A rollout with both kinds of ends, and importance weights, values and the last value for it."""
    rng = np.random.default_rng(seed)
    real = lambda: jnp.asarray(rng.normal(size=(STEPS, ENVS)), jnp.float32)
    terminated = rng.random((STEPS, ENVS)) < 0.15
    truncated = ~terminated & (rng.random((STEPS, ENVS)) < 0.15)
    assert terminated.any() and truncated.any()
    fields = {name: real() for name in ("reward", "value", "log_prob", "prev_reward")}
    fields |= {"terminated": jnp.asarray(terminated), "truncated": jnp.asarray(truncated)}
    fields |= {"final_value": jnp.where(truncated, real(), 0.0), "start": jnp.zeros((STEPS, ENVS), bool)}
    fields |= {"action": jnp.asarray(rng.integers(ACTIONS, size=(STEPS, ENVS)), jnp.int32)}
    fields |= {"prev_action": fields["action"], "obs": fields["reward"], "episode": None}
    last_value = jnp.asarray(rng.normal(size=ENVS), jnp.float32)
    return Transition(**(fields | changes)), jnp.exp(real()), last_value


def pieces(steps, env):
    """From and to of each episode in one environment's steps; the last goes on."""
    ends = np.flatnonzero(np.asarray(steps.terminated | steps.truncated)[:, env]) + 1
    borders = [0, *ends, STEPS]
    return [(a, b) for a, b in zip(borders, borders[1:], strict=False) if a < b]


@pytest.mark.parametrize("rho_clip, lamb", [(1.0, 1.0), (1.0, 0.9), (2.5, 0.6)])
def test_vtrace_equals_rlax_episode_by_episode(rho_clip, lamb):
    args = small("impala_popart", gamma=0.9, rho_clip=rho_clip, vtrace_lambda=lamb)
    steps, rho, last_value = random_steps()
    target, advantage = vtrace(args, rho, steps, steps.value, last_value)
    of_one = jax.jit(rlax.vtrace_td_error_and_advantage, static_argnums=(5, 6, 7))
    steps, rho, last_value, target, advantage = jax.tree.map(np.asarray, (steps, rho, last_value, target, advantage))
    for env in range(ENVS):
        for a, b in pieces(steps, env):
            follows = steps.final_value[b - 1, env] if steps.truncated[b - 1, env] else last_value[env]
            value, reward, weight = (x[a:b, env] for x in (steps.value, steps.reward, rho))
            discount = np.float32(0.9) * (1 - steps.terminated[a:b, env].astype(np.float32))
            next_value = np.append(value[1:], follows)
            want = of_one(value, next_value, reward, discount, weight, lamb, rho_clip, rho_clip)
            np.testing.assert_allclose(target[a:b, env] - value, want.errors, atol=1e-5)
            np.testing.assert_allclose(advantage[a:b, env], want.pg_advantage, atol=1e-5)


@pytest.mark.parametrize("c_clip", [0.5, 1.0, NO_CLIP])
def test_vtrace_equals_a_loop_for_any_clip(c_clip):
    """Espeholt et al. 2018, equation 1, term by term."""
    args = small("impala_popart", gamma=0.95, rho_clip=1.3, c_clip=c_clip, vtrace_lambda=0.8)
    steps, rho, last_value = random_steps(1)
    target, _ = vtrace(args, rho, steps, steps.value, last_value)
    met, weight, target = jax.tree.map(lambda x: np.asarray(x, float), (steps, rho, target))
    for e, s in np.ndindex(ENVS, STEPS):
        want, factor = met.value[s, e], 1.0
        for t in range(s, STEPS):
            follows = met.value[t + 1, e] if t + 1 < STEPS else float(last_value[e])
            follows = met.final_value[t, e] if met.truncated[t, e] else follows
            error = met.reward[t, e] + 0.95 * follows * (1 - met.terminated[t, e]) - met.value[t, e]
            want += factor * min(weight[t, e], 1.3) * error
            factor *= 0.95 * 0.8 * min(weight[t, e], c_clip)
            if met.terminated[t, e] or met.truncated[t, e]:
                break
        assert float(target[s, e]) == pytest.approx(want, abs=1e-4)


def test_on_policy_without_clips_the_targets_are_n_step_returns():
    args = small("impala_popart", gamma=0.9, rho_clip=NO_CLIP, c_clip=NO_CLIP, vtrace_lambda=1.0)
    steps, _, last_value = random_steps(2)
    target, advantage = vtrace(args, jnp.ones((STEPS, ENVS)), steps, steps.value, last_value)
    want = np.zeros((STEPS, ENVS))
    following = np.asarray(last_value, float)
    for t in reversed(range(STEPS)):
        following = np.where(steps.truncated[t], steps.final_value[t], following)
        following = want[t] = steps.reward[t] + 0.9 * np.where(steps.terminated[t], 0, following)
    np.testing.assert_allclose(target, want, atol=1e-4)
    np.testing.assert_allclose(advantage, want - steps.value, atol=1e-4)


def test_without_lag_the_first_gradient_step_is_on_policy():
    """Importance weights are 1 in the first epoch's first minibatch; with lag, or later, they are not."""
    rho = {}
    for lag, epochs in ((0, 1), (0, 2), (3, 1)):
        args = small("impala_popart", actor_lag=lag, update_epochs=epochs, num_minibatches=1, learning_rate=0.01)
        init, train_chunk = programs("impala_popart", args)
        _, metrics = train_chunk(init(jax.random.key(0)), jnp.int32(4))
        rho[lag, epochs] = float(metrics["rho"] / metrics["gradient_steps"])
    assert rho[0, 1] == pytest.approx(1, abs=1e-5)
    assert abs(rho[0, 2] - 1) > 1e-4 and abs(rho[3, 1] - 1) > 1e-4


def test_a_rollout_of_one_step_is_learned_from_and_explains_nothing():
    state, metrics = trained("impala_popart", small("impala_popart", num_steps=1), 2)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
    assert float(metrics["grad_norm"]) > 0 and metrics["explained_updates"].tolist() == [0]


def test_the_player_lags_behind():
    """`past` holds the parameters before each of the last updates, the oldest first."""
    args = small("impala_popart", actor_lag=2)
    init, train_chunk = programs("impala_popart", args)
    state, seen = init(jax.random.key(0)), []
    for _ in range(4):
        seen.append(state.params["params"]["policy"]["bias"])
        state, _ = train_chunk(state, jnp.int32(1))
    assert not np.array_equal(seen[2], seen[3])
    np.testing.assert_array_equal(state.past["params"]["policy"]["bias"], jnp.stack(seen[2:]))


@pytest.mark.parametrize("memory", usually("MinGRU", of=("none", "MinGRU")))
def test_the_oldest_parameters_play_and_the_newest_value_what_was_final(memory):
    args = small("impala_popart", actor_lag=2, memory=memory, env_params=("max_steps_in_episode=7",))
    state, _ = trained("impala_popart", args, 3)
    heads = state.past["params"] | {"policy": {"bias": jnp.array([[0.0, 9.0], [9.0, 0.0]])}}  # right, then left
    heads["policy"]["kernel"] = state.past["params"]["policy"]["kernel"]
    state = state.replace(past=state.past | {"params": heads})
    after, _ = programs("impala_popart", dataclasses.replace(args, seed=0))[1](state, jnp.int32(1))
    network, _, act = impala_popart.make_actor(args)
    act = jax.jit(act)
    oldest, newer = (jax.tree.map(lambda x, i=i: x[i], state.past) for i in range(2))

    def play(player):
        actor, steps = state.actor.replace(key=jax.random.clone(state.actor.key)), []
        for _ in range(args.num_steps):
            actor, transition, infos = act(player, actor, impala_popart.SAMPLE, state.params)
            steps.append((actor, transition, infos))
        return steps

    played = play(oldest)
    assert_equal(played[-1][0], after.actor, atol=1e-5)
    assert not np.allclose(play(newer)[-1][0].obs, after.actor.obs, atol=1e-5)
    actor, transition, infos = played[3]  # the 28th step
    assert transition.truncated.all()
    met = infos["final_observation"][None], transition.action[None], jnp.zeros((1, args.num_envs), bool)
    assert (transition.action == 1).all()
    valued = [forward(network, params, actor.carry, *met)[1] for params in (state.params, oldest)]
    np.testing.assert_allclose(transition.final_value, valued[0].values[0, :, 0], atol=1e-5)
    assert np.abs(transition.final_value - valued[1].values[0, :, 0]).min() > 1e-4


def test_rmsprop():
    """Decay 0.99, a start corrected like Adam's, epsilon beside the root."""
    args = small("impala_popart", optimizer="rmsprop", update_epochs=1, num_minibatches=1, max_grad_norm=1e6)
    state = [trained("impala_popart", args, updates)[0] for updates in range(3)]
    moments = [jax.tree.leaves(x.opt_state[1].nu) for x in state[1:]]
    weights = [jax.tree.leaves(x.params["params"]) for x in state]
    first = [np.sqrt(nu / 0.01) for nu in moments[0]]
    second = [np.sqrt(np.maximum(nu - 0.99 * old, 0) / 0.01) for old, nu in zip(*moments, strict=True)]
    for i, (gradients, correction) in enumerate(((first, 0.01), (second, 1 - 0.99**2))):
        rate = float(impala_popart.learning_rate_at(args, jnp.int32(i)))
        for before, after, nu, size in zip(weights[i], weights[i + 1], moments[i], gradients, strict=True):
            want = rate * size / (np.sqrt(nu / correction) + 1e-5)
            np.testing.assert_allclose(np.abs(after - before), want, rtol=1e-2, atol=1e-6)
    assert max(np.abs(x).max() for x in first) > 0


# ------------------------------------------------------------------------------------------------------------- PopArt


def random_targets(seed, low=-3, high=4):
    """Targets [T, B] with magnitudes from 1e-3 to 1e4."""
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.choice([-1, 1], (STEPS, ENVS)) * 10 ** rng.uniform(low, high, (STEPS, ENVS)), jnp.float32)


def test_popart_equals_rlax():
    """rlax adds a step for every target: one of step / their number for each task."""
    task = jnp.repeat(jnp.arange(TASKS), ENVS // TASKS)
    head = {"kernel": jax.random.normal(jax.random.key(0), (5, TASKS)), "bias": jnp.arange(TASKS) / 7}
    popart, beta = impala_popart.fresh_popart(TASKS), 0.02
    theirs = rlax.PopArtState(popart.mean, popart.scale, popart.variance)
    params = {"w": head["kernel"], "b": head["bias"]}
    for i in range(50):
        target = random_targets(i, high=2)
        new = impala_popart.updated_popart(popart, target, task, beta)
        head, popart = impala_popart.rescaled_head(head, popart, new), new
        indices = jnp.broadcast_to(task, target.shape)
        step_size = max(beta, 1 / (i + 1)) * TASKS / target.size
        moved = rlax.art(theirs, target, indices, step_size, 1e-4, 1e6)
        params, theirs = rlax.pop(params, theirs, moved), moved
    np.testing.assert_allclose(popart.mean, theirs.shift, rtol=1e-3)
    np.testing.assert_allclose(popart.scale, theirs.scale, rtol=1e-3)
    np.testing.assert_allclose(head["kernel"], params["w"], rtol=1e-3)
    np.testing.assert_allclose(head["bias"], params["b"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("x64", [False, True])
def test_outputs_are_preserved_over_a_thousand_updates(x64):
    """Targets from 1e-3 to 1e4: what the head says stays to 1e-5, in float32 to 1e-5 of its scale."""
    with jax.enable_x64(x64):
        task = jnp.repeat(jnp.arange(TASKS), ENVS // TASKS)
        features = jax.random.normal(jax.random.key(1), (64, 5))
        head = {"kernel": jax.random.normal(jax.random.key(0), (5, TASKS)), "bias": jnp.arange(TASKS) / 7}
        statistics = impala_popart.fresh_popart(TASKS)  # float32; here also in the precision that shows the formula
        popart = jax.tree.map(lambda x: x.astype(head["kernel"].dtype) if x.dtype == jnp.float32 else x, statistics)
        assert popart.mean.dtype == (jnp.float64 if x64 else jnp.float32)

        def say():
            return np.asarray(popart.scale * (features @ head["kernel"] + head["bias"]) + popart.mean)

        @jax.jit
        def advance(head, popart, target):
            new = impala_popart.updated_popart(popart, target, task, 3e-4)
            return impala_popart.rescaled_head(head, popart, new), new

        first, scales = say(), []
        for i in range(1000):
            head, popart = advance(head, popart, random_targets(i, *((-3, 4) if i < 500 else (-3, -1))))
            scales.append(np.asarray(popart.scale))
        assert (np.max(scales, axis=0) > 500).all()
        assert (np.abs(say() - first) <= 1e-5 * (1 if x64 else np.max(scales, axis=0))).all()


def test_a_large_mean_does_not_hide_the_deviation():
    """1e4 +- 1: the difference of the moments, 1e8 each, would have an error of 8 in float32."""
    rng = np.random.default_rng(0)
    popart, task = impala_popart.fresh_popart(TASKS), jnp.zeros(ENVS, jnp.int32)
    for _ in range(400):
        target = jnp.asarray(1e4 + rng.normal(size=(STEPS, ENVS)), jnp.float32)
        popart = impala_popart.updated_popart(popart, target, task, 0.1)
    assert float(popart.mean[0]) == pytest.approx(1e4, abs=0.5)
    assert float(popart.scale[0]) == pytest.approx(1, abs=0.2)


def test_the_statistics_begin_as_averages_over_all_updates():
    """Whatever the scale, also far below the first, of which nothing is left, until beta is the longer memory."""
    task, rng = jnp.zeros(ENVS, jnp.int32), np.random.default_rng(0)
    targets = [1e-3 * rng.normal(size=(STEPS, ENVS)) + 3e-3 for _ in range(200)]
    popart = impala_popart.fresh_popart(1)
    for target in targets:
        popart = impala_popart.updated_popart(popart, jnp.asarray(target, jnp.float32), task, 3e-4)
    assert float(popart.mean[0]) == pytest.approx(np.mean(targets), rel=1e-3)
    assert float(popart.variance[0]) == pytest.approx(np.var(targets), rel=1e-3)
    settled = popart.replace(updates=jnp.array([10_000]))
    moved = impala_popart.updated_popart(settled, jnp.ones((STEPS, ENVS)), task, 3e-4)
    assert float(moved.mean[0] - popart.mean[0]) == pytest.approx(3e-4 * (1 - float(popart.mean[0])), rel=1e-2)


def test_an_absent_task_keeps_its_statistics_and_its_values():
    task = jnp.array([0, 2, 2, 0, 0, 2])
    old = PopArt(jnp.array([1.0, 2.0, 3.0]), jnp.array([4.0, 5.0, 6.0]), jnp.array([7, 8, 9]))
    new = impala_popart.updated_popart(old, random_targets(0), task, 0.1)
    assert new.mean[1] == 2 and new.variance[1] == 5 and new.updates.tolist() == [8, 8, 10]
    assert (np.asarray(new.mean)[[0, 2]] != [1, 3]).all() and (np.asarray(new.variance)[[0, 2]] != [4, 6]).all()
    head = {"kernel": jnp.ones((5, TASKS)), "bias": jnp.ones(TASKS)}
    kept = impala_popart.rescaled_head(head, old, new)
    assert (np.asarray(kept["kernel"])[:, 1] == 1).all() and kept["bias"][1] == 1


def test_the_scale_stays_within_its_bounds():
    popart = PopArt(jnp.zeros(3), jnp.array([0.0, 1.0, 1e20]), jnp.zeros(3, jnp.int32))
    np.testing.assert_allclose(popart.scale, [1e-4, 1, 1e6], rtol=1e-5)


def test_the_loss_equals_a_loop():
    args = small("impala_popart", gamma=0.9, ent_coef=0.03, vf_coef=0.7, value_normalization="popart")
    steps, _, last_value = random_steps(3)
    rng = np.random.default_rng(4)
    task = jnp.array([0, 0, 1, 1, 2, 2])
    popart = PopArt(jnp.array([0.5, -1.0, 20.0]), jnp.array([0.25, 1.0, 900.0]), jnp.zeros(3, jnp.int32))
    normalized = jnp.asarray(rng.normal(size=(STEPS + 1, ENVS, TASKS)), jnp.float32)
    logits = jnp.asarray(rng.normal(size=(STEPS + 1, ENVS, ACTIONS)), jnp.float32)
    output = impala_popart.Output(logits, normalized, popart.scale * normalized + popart.mean)
    loss, (metrics, new) = impala_popart.impala_loss(args, output, popart, steps, task)

    value = impala_popart.of_task(output.values, task)
    log_prob = np.asarray(jax.nn.log_softmax(logits), float)
    taken = np.take_along_axis(log_prob[:-1], np.asarray(steps.action)[..., None], axis=-1)[..., 0]
    rho = np.exp(taken - np.asarray(steps.log_prob, float))
    want_target, advantage = impala_popart.vtrace(args, jnp.asarray(rho, jnp.float32), steps, value[:-1], value[-1])
    assert_equal(new, impala_popart.updated_popart(popart, want_target, task, 3e-4), atol=1e-4)
    assert (new.scale != popart.scale).all()
    sums = dict.fromkeys(("policy_loss", "value_loss", "entropy", "rho_clipped"), 0.0)
    for t, e in np.ndindex(STEPS, ENVS):
        scale = float(new.scale[task[e]])
        sums["policy_loss"] -= float(advantage[t, e]) / scale * taken[t, e]
        sums["value_loss"] += 0.5 * (float(value[t, e] - want_target[t, e]) / scale) ** 2
        sums["entropy"] -= (np.exp(log_prob[t, e]) * log_prob[t, e]).sum()
        sums["rho_clipped"] += rho[t, e] > 1
    mean = {name: value / (STEPS * ENVS) for name, value in sums.items()}
    for name, want in mean.items():
        assert float(metrics[name]) == pytest.approx(want, rel=1e-4), name
    total = mean["policy_loss"] - 0.03 * mean["entropy"] + 0.7 * mean["value_loss"]
    assert float(loss) == pytest.approx(total, rel=1e-4)


def test_the_gradient_is_that_of_the_rescaled_head():
    """Statistics move before the gradient step: as if the head had been rescaled and the loss taken anew."""
    steps, _, _ = random_steps(3)
    task = jnp.array([0, 0, 1, 1, 2, 2])
    old = PopArt(jnp.array([0.5, -1.0, 20.0]), jnp.array([0.25, 1.0, 900.0]), jnp.zeros(3, jnp.int32))
    features = jax.random.normal(jax.random.key(1), (STEPS + 1, ENVS, 5))
    logits = jax.random.normal(jax.random.key(2), (STEPS + 1, ENVS, ACTIONS))
    head = {"kernel": jax.random.normal(jax.random.key(0), (5, TASKS)), "bias": jnp.arange(TASKS) / 7}

    def loss(head, popart, normalization):
        args = small("impala_popart", value_normalization=normalization)
        normalized = features @ head["kernel"] + head["bias"]
        output = impala_popart.Output(logits, normalized, popart.scale * normalized + popart.mean)
        return impala_popart.impala_loss(args, output, popart, steps, task)

    (before, (_, new)), grads = jax.value_and_grad(loss, has_aux=True)(head, old, "popart")
    rescaled = impala_popart.rescaled_head(head, old, new)
    (after, _), wanted = jax.value_and_grad(loss, has_aux=True)(rescaled, new, "none")
    assert float(before) == pytest.approx(float(after), rel=1e-4)
    grads = jax.tree.map(lambda x: x * new.scale / old.scale, grads)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-5), grads, wanted)


@pytest.mark.parametrize("scale", usually(2.0**10, of=(2.0**-10, 2.0**10)))
def test_the_scale_of_the_rewards_makes_no_difference(scale):
    """From the first gradient step on, while the scale is within its bounds and the network reads no rewards."""
    plain, scaled = (
        trained("impala_popart", small("impala_popart", reward_scales=(x,), value_normalization="popart"), 4)
        for x in (1.0, scale)
    )
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), plain[0].params["params"], scaled[0].params["params"]
    )
    statistics = [state.params["popart"]["statistics"] for state, _ in (plain, scaled)]
    np.testing.assert_allclose(statistics[1].mean, scale * statistics[0].mean, rtol=1e-4)
    np.testing.assert_allclose(statistics[1].scale, scale * statistics[0].scale, rtol=1e-4)
    assert float(scaled[1]["grad_norm"]) == pytest.approx(float(plain[1]["grad_norm"]), rel=1e-4)
    assert abs(float(statistics[0].scale[0]) - 1) > 0.1


# -------------------------------------------------------------------------------------------------------------- tasks


@pytest.mark.parametrize("clip", [0.0, 2.0])
def test_rewards_are_scaled_and_clipped_for_learning_only(clip):
    """Of two tasks that are one game, each step's reward is 1: it is learned from as 1 and 10, and counted as 1."""
    args = small("impala_popart", env_ids=("CartPole-v1",) * 2, reward_scales=(1.0, 10.0), reward_clip=clip)
    _, begin, act = impala_popart.make_actor(args)
    _, params = fresh_params("impala_popart", args)
    actor = jax.jit(begin, static_argnums=1)(jax.random.key(0), 2)
    actor, transition, _ = jax.jit(act)(params, actor, impala_popart.SAMPLE)
    np.testing.assert_array_equal(transition.reward, [1, min(10, clip or 10)] * 2)
    np.testing.assert_array_equal(transition.episode.total_reward, np.ones(4))
    np.testing.assert_array_equal(actor.prev_reward, transition.reward)


def test_environments_are_divided_over_tasks_and_play_their_own_game():
    args = small("impala_popart", env_ids=("CartPoleEasy", "NavigatorEasy"), num_envs=4)
    _, begin, act = impala_popart.make_actor(args)
    _, params = fresh_params("impala_popart", args)
    actor = jax.jit(begin, static_argnums=1)(jax.random.key(0), 2)
    assert [type(state).__module__.rpartition(".")[2] for state in actor.env_state] == ["cartpole", "navigator"]
    after, _, info = jax.jit(act)(params, actor, impala_popart.SAMPLE)
    for i, (task, state, own) in enumerate(zip(args.tasks, after.env_state, info["tasks"], strict=True)):
        env, _ = make_env(task)
        np.testing.assert_array_equal(jax.jit(jax.vmap(env.get_obs))(state), after.obs[i::2])
        assert own["final_state"].time.shape == (2,)


@pytest.mark.parametrize("memory", usually("MinGRU", of=("none", "MinGRU")))
def test_a_task_alone_says_what_it_says_among_others(memory):
    """`select_task` gives a network with one value, the same policy and the same memory."""
    args = small("impala_popart", env_ids=("CartPole-v1",) * 2, reward_scales=(1.0, 10.0), memory=memory)
    network, params = fresh_params("impala_popart", args)
    params["popart"]["statistics"] = PopArt(jnp.array([1.0, 5.0]), jnp.array([4.0, 9.0]), jnp.array([2, 2]))
    obs, prev_action = jax.random.normal(jax.random.key(1), (5, 3, 4)), jnp.ones((5, 3), jnp.int32)
    start = jnp.zeros((5, 3), bool).at[0].set(True).at[2, 1].set(True)
    met = obs, prev_action, start
    _, output = forward(network, params, impala_popart.initial_carry(network, 3), *met)
    for i in range(2):
        alone, alone_params = impala_popart.select_task(args, params, i)
        assert (alone.env_ids, alone.reward_scales) == (("CartPole-v1",), ((1.0, 10.0)[i],))
        network, expected = fresh_params("impala_popart", alone)
        assert jax.tree.map(jnp.shape, expected) == jax.tree.map(jnp.shape, alone_params)
        _, found = forward(network, alone_params, impala_popart.initial_carry(network, 3), *met)
        np.testing.assert_array_equal(found.logits, output.logits)
        np.testing.assert_allclose(found.value, output.values[..., i], rtol=1e-5, atol=1e-5)  # one column, or of two


def test_the_residual_network_reads_the_last_reward_and_action():
    args = small("impala_popart", env_ids=("CartPoleEasy",), encoder="impala")
    network, params = fresh_params("impala_popart", args)
    shapes = jax.tree.map(jnp.shape, params["params"]["encode"])
    assert {shapes[f"Conv_{i}"]["kernel"][-2:] for i in range(15)} == {(3, 16), (16, 16), (16, 32), (32, 32)}
    assert shapes["Dense_0"]["kernel"] == (16 * 16 * 32, 256)
    assert params["params"]["hidden_0_0"]["kernel"].shape[0] == 256 + 5 + 1
    frame, action, start = (
        jnp.ones((1, 1, 128, 128, 3), jnp.uint8),
        jnp.zeros((1, 1), jnp.int32),
        jnp.zeros((1, 1), bool),
    )

    def say(reward, start):
        _, output = forward(network, params, (), frame, action, start, jnp.full((1, 1), reward))
        return float(output.values[0, 0, 0])

    assert say(1.0, start) != say(0.0, start) and say(1.0, start) == say(5.0, start)
    assert say(1.0, ~start) == say(0.0, ~start)


@pytest.mark.thorough
@pytest.mark.parametrize("memory, precision", [("none", "float32"), ("MinGRU", "bfloat16")])
def test_one_update_with_the_residual_network(memory, precision):
    changes = {"num_envs": 2, "num_steps": 2, "num_minibatches": 1, "update_epochs": 1}
    args = arcade("impala_popart", encoder="impala", memory=memory, precision=precision, **changes)
    init, train_chunk = programs("impala_popart", args)
    program = train_chunk.lower(jax.eval_shape(init, jax.random.key(0)), jnp.int32(1)).as_text()
    assert "stablehlo.dot_general" in program and "stablehlo.convolution" not in program
    before, (after, metrics) = (trained("impala_popart", args, updates) for updates in (0, 1))
    assert float(metrics["grad_norm"]) > 0
    moved = jax.tree.map(lambda x, y: bool((x != y).any()), before[0].params["params"], after.params["params"])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.params))
    assert all(jax.tree.leaves(moved["encode"]))


def test_the_residual_network_lowered_for_a_cpu_equals_the_convolutions(monkeypatch):
    encoder = impala_popart.ResidualEncoder(jnp.float32)
    obs = jax.random.randint(jax.random.key(0), (2, 128, 128, 3), 0, 256).astype(jnp.uint8)
    params = encoder.init(jax.random.key(1), obs)
    lowered = encoder.apply(params, obs)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    native = encoder.apply(params, obs)
    assert "conv_general_dilated" in str(jax.make_jaxpr(encoder.apply)(params, obs))
    np.testing.assert_allclose(lowered, native, rtol=1e-4, atol=1e-5)


TWO = {"env_ids": ("CartPoleEasy", "NavigatorEasy"), "env_params": ("max_steps_in_episode=5",)}


def test_the_tools_ask_each_task_of_a_checkpoint(tmp_path):
    run = untrained("impala_popart", tmp_path / "runs", **TWO)
    out = evaluate.main(evaluate.Args(runs=(str(run),), out=str(tmp_path / "out"), twin="both", episodes=2))
    with (out / "evaluate.csv").open() as file:
        rows = list(csv.DictReader(file))
    found = [(row["run"].removeprefix(f"{run.name}__"), row["env_id"], row["twin"]) for row in rows]
    assert found == [(name, name, twin) for name in TWO["env_ids"] for twin in ("mdp", "pomdp")]
    assert all(row["global_step"] == str(STEP) and float(row["length_mean"]) <= 5 for row in rows)
    agent = load_agents((str(run),))[1]
    with pytest.raises(UserError, match="--env-id 'Nope' is unknown"):
        in_twins(agent, "own", "Nope")
    assert in_twins(agent, "own", "TetrisEasy")[0].args.env_id == "TetrisEasy"


def test_saliency_has_a_policy_map_and_a_value_map_of_each_task(tmp_path):
    run = untrained("impala_popart", tmp_path, **TWO)
    agents = load_agents((str(run),))
    values = []
    for agent in agents:
        (trajectory,) = record(agent, jax.random.key(0), 1, steps=2)
        found = saliency.perturbation_saliency(agent, trajectory, stride=30)
        assert found.policy.max() > 0 and found.value.max() > 0
        values.append(found.value)
    assert values[0].shape == values[1].shape


@pytest.mark.thorough
def test_saliency_reads_the_previous_reward_where_the_network_does(tmp_path):
    """The values at each step are those of the network that played, which the residual network says of rewards too."""
    changes = {"env_ids": ("CartPoleEasy",), "encoder": "impala", "reward_scales": (100.0,)}
    agent = load_agent(untrained("impala_popart", tmp_path, **changes))
    (trajectory,) = record(agent, jax.random.key(0), 1, steps=3)
    found = saliency.gradient_saliency(agent, trajectory)
    np.testing.assert_allclose(trajectory.reward, 1 / 200)
    np.testing.assert_allclose(trajectory.prev_reward, [0, 100 / 200, 100 / 200])
    network, _ = fresh_params("impala_popart", agent.args)
    met = found.obs[:, None], trajectory.prev_action[:, None], trajectory.start[:, None]
    _, output = forward(network, agent.params, (), *met, trajectory.prev_reward[:, None])
    _, without = forward(network, agent.params, (), *met)
    np.testing.assert_allclose(found.values, jax.nn.softmax(output.logits)[:, 0], atol=1e-6)
    assert np.abs(found.values - jax.nn.softmax(without.logits)[:, 0]).max() > 1e-5


def test_values_of_several_tasks_have_to_be_chosen_from():
    output = impala_popart.Output(
        logits=jnp.zeros((1, 1, 2)), normalized=jnp.zeros((1, 1, 2)), values=jnp.ones((1, 1, 2))
    )
    with pytest.raises(ValueError, match="select_task"):
        output.value  # noqa: B018


def test_checkpoints_are_kept_from_each_multiple_on(tmp_path):
    """Steps that do not fall on multiples, but none that a stop left off the grid, and the last three in any case."""
    args = small("impala_popart", run_dir=str(tmp_path), log_every=32, checkpoint_every=40, save_every=100)
    run = make_run_folder(args)
    for step in (64, 96, 144, 160, 192, 200, 256, 288, 384, 416, 448, 480):
        save_checkpoint(run, args, step, {"params": jnp.ones(2)})
    kept = sorted(int(path.name) for path in (run / "checkpoints").iterdir())
    assert kept == [160, 256, 384, 416, 448, 480]


EVERYTHING = {"env_ids": ("CartPole-v1",) * 2, "reward_scales": (1.0, 10.0), "memory": "MinGRU", "actor_lag": 2}
EVERYTHING |= {"value_normalization": "popart", "popart_beta": 0.1}


def test_several_tasks_with_memory_lag_and_popart_resume_bit_equal(tmp_path):
    """Saved after two updates and restored: the same state as without a break after five."""
    args = small("impala_popart", run_dir=str(tmp_path), **EVERYTHING)
    state, _ = trained("impala_popart", args, 2)
    run = make_run_folder(args)
    save_checkpoint(run, args, 64, state)
    _, again = restored(run)
    assert_equal(again, state)
    assert int(again.params["popart"]["statistics"].updates[0]) > 0
    _, train_chunk = programs("impala_popart", dataclasses.replace(args, seed=0))
    assert_equal(train_chunk(again, jnp.int32(3))[0], trained("impala_popart", args, 5)[0])


@pytest.mark.thorough
def test_several_tasks_in_several_seeds_equal_each_alone():
    args = small("impala_popart", num_seeds=2, seed=3, **EVERYTHING)
    state, metrics = trained("impala_popart", args, 3)
    for i in range(2):
        alone, alone_metrics = trained("impala_popart", dataclasses.replace(args, num_seeds=1, seed=3 + i), 3)
        together = jax.tree.map(lambda x, i=i: x[i], state.params)
        assert_equal(together["params"], alone.params["params"], atol=1e-5)
        jax.tree.map(  # in the units of returns, in the hundreds here
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), together["popart"], alone.params["popart"]
        )
        assert_equal(metrics["episodes"][i], alone_metrics["episodes"])
        assert alone_metrics["episodes"].shape == (2,)


def test_the_program_of_several_tasks_trains_and_reports(tmp_path):
    """Rows, curves and returns of a run on two games with two seeds."""
    args = small("impala_popart", num_seeds=2, run_dir=str(tmp_path), total_timesteps=96, **EVERYTHING)
    run = impala_popart.main(args)
    assert run.name.startswith("multi-2__single__impala_popart__MinGRU__0__")
    with (run / "eval.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["policy"], row["seed"], row["task"].partition("_x")[2]) for row in rows] == [
        (policy, seed, scale) for policy in ("random", "greedy") for seed in "01" for scale in ("1", "10")
    ]
    for folder in (run, run / "seed_0", run / "seed_1"):
        tags = EventAccumulator(str(folder)).Reload().Tags()["scalars"]
        for task in ("CartPole-v1_x1", "CartPole-v1_x10"):
            wanted = "episodic_return episodes eval_return explained_variance popart_mean popart_scale".split()
            assert {f"{task}/{tag}" for tag in wanted} <= set(tags)
    assert (run / "curve.png").stat().st_size > 1000


def test_returns_of_tasks_are_normalized_between_random_and_best(tmp_path):
    args = small("impala_popart", num_seeds=2, run_dir=str(tmp_path), **TWO | {"env_params": ()})
    rng = np.random.default_rng(0)
    random, greedy = rng.uniform(-0.9, 0.9, (2, 2, args.eval_episodes * 2))  # of each seed, the tasks in turns

    def curve(args):
        records = Records(make_run_folder(args), args)
        for step, policy, returns in ((0, "random", random), (64, "greedy", greedy)):
            returns = returns.reshape(2, -1, 2).swapaxes(1, 2)  # [seeds, tasks, episodes]
            records.evaluation(step, policy, returns, np.ones_like(returns), 1.0)
        records.close()
        return records.folder

    def points(folder):
        events = EventAccumulator(str(folder)).Reload()
        tag = "eval/normalized_return"
        return [point.value for point in events.Scalars(tag)] if tag in events.Tags()["scalars"] else []

    folder = curve(args)
    low, high = (x.reshape(2, -1, 2).mean(axis=1) for x in (random, greedy))
    each = ((high - low) / (1 - low)).mean(axis=1)
    np.testing.assert_allclose([points(folder / f"seed_{i}") for i in (0, 1)], each[:, None], rtol=1e-6)
    np.testing.assert_allclose(points(folder), [each.mean()], rtol=1e-6)
    # what can be reached may be another with other parameters
    assert not points(curve(dataclasses.replace(args, env_params=("max_steps_in_episode=5",))))


@pytest.mark.thorough
def test_each_task_is_recorded(tmp_path):
    args = small("impala_popart", **TWO)
    _, params = fresh_params("impala_popart", args)
    program = *impala_popart.make_actor(args)[1:], impala_popart.POLICIES["greedy"]
    save_videos(args, tmp_path, program, params, jax.random.key(1))
    names = [f"episode_{task}.gif" for task in ("CartPoleEasy", "NavigatorEasy")]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


REFUSED = {
    "no_such_id": ({"env_ids": ("CartPoleEasy", "Tetriss")}, "--env-ids 'Tetriss' is unknown: did you mean Tetris"),
    "no_id": ({"env_ids": ()}, "--env-ids: name at least one"),
    "spaces": ({"env_ids": ("CartPole-v1", "CartPoleEasy")}, "CartPole-v1 has float32"),
    "actions": ({"env_ids": ("Pendulum-v1",)}, "--env-ids Pendulum-v1 has Box actions"),
    "uneven": ({"env_ids": ("BreakoutEasy", "CartPoleEasy", "TetrisEasy")}, "use 3 or 6"),
    "scales": ({"reward_scales": (1.0, 2.0)}, "--reward-scales: 2 numbers for 1 tasks"),
    "scale": ({"reward_scales": (0.0,)}, "--reward-scales 0.0: use numbers above 0"),
    "twice": ({"env_ids": ("CartPole-v1",) * 2}, "twice: leave one out, or give them different --reward-scales"),
    "save_every": ({"save_every": 32}, "use a --checkpoint-every from 1 to 32"),
    "optimizer": ({"optimizer": "sgd"}, "use one of adam, rmsprop"),
    "lag": ({"actor_lag": -1}, "--actor-lag -1: use a number from 0 to 1000"),
    "late": ({"actor_lag": 8}, "--actor-lag 8: there are 8 updates, use a lower number"),
    "infinite": ({"ent_coef": np.inf}, "--ent-coef inf: use a number from 0 to"),
    "clip": ({"rho_clip": -1.0}, "--rho-clip -1.0: use 0 or more"),
    "no_clip": ({"c_clip": np.inf}, "--c-clip inf: use a number from 0 to"),
    "grid": ({"save_every": 60, "checkpoint_every": 32}, "--save-every 60: checkpoints are 64 steps apart"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(case):
    changes, message = REFUSED[case]
    with pytest.raises(UserError) as raised:
        small("impala_popart", **changes)
    assert message in str(raised.value)


def test_names_of_tasks():
    args = dataclasses.replace(
        impala_popart.Args(), env_ids=("BreakoutEasy", "TetrisEasy", "BreakoutEasy"), reward_scales=(1.0, 2.0, 1000.0)
    )
    assert args.task_names == ("BreakoutEasy_x1", "TetrisEasy", "BreakoutEasy_x1000")
    assert args.env_id == "multi-3" and args.tasks[1].env_id == "TetrisEasy"


@pytest.mark.slow
def test_two_tasks_of_different_scales_are_learned_together():
    """Catch twice, its rewards once multiplied by 100: with PopArt both are learned. Random play gets -0.6 of 1."""
    tasks = {"env_ids": ("Catch-bsuite",) * 2, "reward_scales": (1.0, 100.0), "value_normalization": "popart"}
    flags = {"num_envs": 16, "num_steps": 32, "num_minibatches": 4, "hidden_size": 64, "learning_rate": 1e-3}
    assert learned_return("impala_popart", small("impala_popart", total_timesteps=40_000, **tasks, **flags)) > 0.9
