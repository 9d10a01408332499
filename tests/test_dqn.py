"""Numbers of the two DQN scripts against loops and rlax; the replay buffer; what is drawn again."""

import dataclasses
import functools
import json
import shutil

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from runs import assert_equal, resumed, rows
from scripts import arcade, fresh_params, learned_return, programs, script, small, trained, usually

import dqn_mlp
import dqn_rnn
import popgym_arcade
from popgym_arcade.baselines.environment import in_parallel
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.running import checkpoints, memory_use

DQN = ("dqn_mlp", "dqn_rnn")
# Compiled as a whole: each operation alone is a program too
n_step_targets = jax.jit(dqn_rnn.n_step_targets, static_argnums=(2, 3))
lay_out = jax.jit(dqn_rnn.lay_out, static_argnums=1)
forward = jax.jit(dqn_rnn.forward, static_argnums=0)
read_sequence = jax.jit(dqn_rnn.read_sequence, static_argnums=0)
FAMILIES = sorted({name.removesuffix("Easy") for name in popgym_arcade.REGISTERED_ENVIRONMENTS if "Easy" in name})


def random_steps(length, batch, seed=0, truncated=0.2, terminated=0.2):
    """Steps of an observation that names its step: 100 * column + row, its next observation half a step on."""
    rng = np.random.default_rng(seed)
    ends = rng.random((2, length, batch)) < np.array([terminated, truncated])[:, None, None]
    ended = np.concatenate([np.ones((1, batch), bool), ends.any(axis=0)[:-1]])
    seen = np.arange(length)[:, None] + 100.0 * np.arange(batch)
    return dqn_rnn.Step(
        seen=jnp.asarray(seen)[..., None],
        prev_action=jnp.asarray(rng.integers(0, 3, (length, batch)), jnp.int32),
        start=jnp.asarray(ended),
        action=jnp.asarray(rng.integers(0, 3, (length, batch)), jnp.int32),
        reward=jnp.asarray(rng.normal(size=(length, batch)), jnp.float32),
        terminated=jnp.asarray(ends[0]),
        truncated=jnp.asarray(ends[1] & ~ends[0]),
        next_seen=jnp.asarray(seen)[..., None] + 0.5,
    )


# ------------------------------------------------------------------------------------------------------------ targets


def test_double_q_values_against_rlax():
    rng = np.random.default_rng(0)
    q, next_q, target_next_q = (jnp.asarray(rng.normal(size=(50, 4)), jnp.float32) for _ in range(3))
    action, reward = jnp.asarray(rng.integers(0, 4, 50)), jnp.asarray(rng.normal(size=50), jnp.float32)
    discount = jnp.asarray(rng.random(50) < 0.7, jnp.float32) * 0.9
    expected = jax.vmap(rlax.double_q_learning)(q, action, reward, discount, target_next_q, next_q)
    error = reward + discount * dqn_mlp.double_q_values(next_q, target_next_q) - q[jnp.arange(50), action]
    np.testing.assert_allclose(error, expected, atol=1e-6)
    one, other = dqn_mlp.double_q_values(next_q, target_next_q), dqn_mlp.double_q_values(next_q, next_q)
    assert (one <= target_next_q.max(axis=1)).all() and not np.allclose(one, other)


@pytest.mark.parametrize("n", [1, 2, 5, 30])
def test_n_step_targets_against_a_loop(n):
    steps = random_steps(12, 40, n)
    value = np.random.default_rng(n).normal(size=(12, 40)).astype(np.float32)
    found = n_step_targets(steps, value, 0.9, n)
    steps = jax.tree.map(np.asarray, steps)
    expected = np.zeros((12, 40))
    for b in range(40):
        for t in range(12):
            factor = 1.0
            for k in range(t, min(t + n, 12)):
                expected[t, b] += factor * float(steps.reward[k, b])
                factor *= 0.9 * (1 - bool(steps.terminated[k, b]))
                if bool(steps.terminated[k, b] | steps.truncated[k, b]):
                    break
            expected[t, b] += factor * value[k, b]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("n", [1, 3])
def test_n_step_targets_against_rlax(n):
    steps = random_steps(12, 40, n, truncated=0)
    value = jnp.asarray(np.random.default_rng(n).normal(size=(12, 40)), jnp.float32)
    returns = functools.partial(rlax.n_step_bootstrapped_returns, n=n)
    expected = jax.jit(jax.vmap(returns, 1, 1))(steps.reward, 0.9 * (1 - steps.terminated), value)
    np.testing.assert_allclose(n_step_targets(steps, value, 0.9, n), expected, atol=1e-5)


def test_importance_weights():
    probabilities = jnp.array([0.5, 0.125, 0.25, 0.0])
    np.testing.assert_allclose(
        dqn_mlp.importance_weights(probabilities, 0.5), [0.5, 1, np.sqrt(0.5), 0], atol=1e-6
    )  # (1 / (N P))^beta / max, and nothing of what should not have been sampled
    np.testing.assert_array_equal(dqn_mlp.importance_weights(probabilities, 0.0), [1, 1, 1, 0])
    args = small("dqn_mlp", prioritized=True)
    assert dqn_mlp.beta_at(args, 0) == args.prioritized_replay_beta
    assert dqn_mlp.beta_at(args, args.num_updates) == pytest.approx(1)


# ---------------------------------------------------------------------------------------------------------- sequences


@pytest.mark.parametrize("seed", range(5))
def test_slots_hold_every_observation_and_every_next_one(seed):
    steps = random_steps(9, 30, seed)
    slots = lay_out(steps, 9 + 1 + 8)
    steps, slots = jax.tree.map(np.asarray, (steps, slots))
    for b in range(30):
        expected = []  # what a memory has to read, and in this order
        for t in range(9):
            now = float(steps.seen[t, b, 0]), int(steps.prev_action[t, b]), bool(steps.start[t, b])
            assert int(slots.place[t, b]) == len(expected)
            expected.append(now)
            if bool(steps.truncated[t, b]) or t == 8:
                expected.append((float(steps.next_seen[t, b, 0]), int(steps.action[t, b]), False))
        found = [
            (float(x), int(a), bool(s))
            for x, a, s in zip(slots.seen[:, b, 0], slots.prev_action[:, b], slots.start[:, b], strict=True)
        ]
        assert found[: len(expected)] == expected
        assert not any(start for *_, start in found[len(expected) :])


def sequence_of(args, steps):
    """Network, parameters and slots of a small recurrent network that reads these steps."""
    network, params = fresh_params("dqn_rnn", args)
    wide = steps.replace(seen=jnp.tile(steps.seen, 4) / 100, next_seen=jnp.tile(steps.next_seen, 4) / 100)
    return network, params, wide


def some_carry(network, params, scale):
    """A memory of six sequences that has read something."""
    obs = scale * jnp.arange(24.0).reshape(1, 6, 4)
    start = jnp.zeros((1, 6), jnp.int32), jnp.ones((1, 6), bool)
    return forward(network, params, dqn_rnn.initial_carry(network, 6), obs, *start)[0]


@pytest.mark.parametrize("memory", usually("MinGRU", of=("MinGRU", "LRU", "GRU")))
def test_sequences_equal_reading_step_by_step(memory):
    """Also where episodes begin in the middle, and where they are truncated: with the memory as it was."""
    args = small("dqn_rnn", memory=memory)
    steps = random_steps(8, 6, 3, truncated=0.3, terminated=0.1)
    network, params, steps = sequence_of(args, steps)
    carry = some_carry(network, params, 0.1)
    steps = steps.replace(start=steps.start.at[0].set(jnp.arange(6) % 2 == 0))
    past, present = (jax.tree.map(lambda x, part=part: x[part], steps) for part in (slice(3), slice(3, None)))
    q, next_q = read_sequence(network, params, carry, past, lay_out(present, 5 + 1 + 4))
    read = functools.partial(forward, network, params)
    steps, q, next_q = jax.tree.map(np.asarray, (steps, q, next_q))
    for t in range(8):
        carry, now = read(carry, steps.seen[t][None], steps.prev_action[t][None], steps.start[t][None])
        _, after = read(carry, steps.next_seen[t][None], steps.action[t][None], np.zeros((1, 6), bool))
        if t < 3:
            continue
        np.testing.assert_allclose(q[t - 3], np.asarray(now.q)[0], atol=2e-5)
        # (a step that goes on has as its next observation that of the next step, half a step from this one's here)
        apart = steps.truncated[t] if t < 7 else np.full(6, True)
        np.testing.assert_allclose(next_q[t - 3][apart], np.asarray(after.q)[0][apart], atol=2e-5)
        if t < 7:
            goes_on = ~(steps.truncated[t] | steps.terminated[t])
            np.testing.assert_allclose(next_q[t - 3][goes_on], q[t - 2][goes_on], atol=1e-7)


def test_a_sequence_has_room_for_every_truncation():
    """An environment that truncates for reasons of its own may do so at every step."""
    of_time_limit = small("dqn_rnn", env_params=("max_steps_in_episode=4",))
    assert [in_parallel(of_time_limit).most_truncations(steps) for steps in (7, 8, 9)] == [2, 2, 3]
    assert in_parallel(arcade("dqn_rnn")).most_truncations(201) == 2
    own = in_parallel(small("dqn_rnn", env_id="counting_world:Counting", save_buffer=False))
    assert own.most_truncations(7) == 7
    early = type("Early", (type(in_parallel(of_time_limit).env),), {"is_truncated": lambda self, state, params: True})()
    assert dataclasses.replace(in_parallel(of_time_limit), env=early).most_truncations(7) == 7


def test_burn_in_gives_memory_but_no_gradient():
    args = small("dqn_rnn")
    network, params, steps = sequence_of(args, random_steps(8, 6, 1, truncated=0, terminated=0))
    steps = steps.replace(start=steps.start.at[:].set(False))
    past, present = (jax.tree.map(lambda x, part=part: x[part], steps) for part in (slice(3), slice(3, None)))
    slots = lay_out(present, 6)
    carry = some_carry(network, params, 0.1)

    def total(params, carry, seen, now):
        q, next_q = dqn_rnn.read_sequence(network, params, carry, past.replace(seen=seen), slots.replace(seen=now))
        return jnp.square(q).sum() + jnp.square(next_q).sum()

    grads = jax.jit(jax.grad(total, argnums=(0, 1, 2, 3), allow_int=True))(params, carry, past.seen, slots.seen)
    floats = [leaf for leaf in jax.tree.leaves(grads[1:3]) if leaf.dtype != jax.dtypes.float0]
    assert floats and all((leaf == 0).all() for leaf in floats) and (grads[3] != 0).any()
    # the same gradient as with the carry after the burn-in given, and another than without burn-in
    burnt, _ = forward(network, params, carry, past.seen, past.prev_action, past.start)
    nothing = jax.tree.map(lambda x: x[:0], past)

    def without(params, carry):
        return jnp.square(jnp.stack(dqn_rnn.read_sequence(network, params, carry, nothing, slots))).sum()

    value, grad = jax.jit(jax.value_and_grad(without))(params, burnt)
    assert_equal(grads[0], grad, atol=1e-4)
    assert not np.allclose(value, jax.jit(without)(params, carry))


def test_a_sequence_that_crosses_an_episode_start_resets_the_memory():
    args = small("dqn_rnn")
    network, params, steps = sequence_of(args, random_steps(8, 6, 1, truncated=0, terminated=0))
    steps = steps.replace(start=jnp.zeros((8, 6), bool).at[4].set(True))
    nothing = jax.tree.map(lambda x: x[:0], steps)

    def read(seen, scale):
        carry = some_carry(network, params, scale)
        slots = lay_out(steps.replace(seen=seen), 9)
        return read_sequence(network, params, carry, nothing, slots)[0]

    one, other = read(steps.seen, 0.1), read(steps.seen.at[:4].add(1.0), 0.2)
    np.testing.assert_allclose(one[4:], other[4:], atol=1e-6)
    assert (jnp.abs(one[:4] - other[:4]).max(axis=(1, 2)) > 1e-4).all()


# ------------------------------------------------------------------------------------------------ a whole gradient step


def sampled_in_the_next_update(name, args, state):
    """The batch of the next update's only gradient step, [B, ...]; the state after the update, and its metrics."""
    buffer, _ = script(name).make_replay(args)
    _, train_chunk = programs(name, args)
    after, metrics = train_chunk(state, jnp.int32(1))
    rows = state.replay.current_index + jnp.arange(args.num_steps if name == "dqn_mlp" else 1)
    written = jax.tree.map(lambda x: x[:, rows % x.shape[1]], after.replay.experience)
    with jax.debug_key_reuse(False):  # the update has used its key already
        _, learn_key = jax.random.split(state.key)
        _, sample_key = jax.random.split(learn_key)
    sample = jax.jit(lambda replay, key: buffer.sample(buffer.add(replay, written), key))
    return sample(state.replay, sample_key), after, metrics


def with_another_target(state):
    """The state with a target network that differs from the network that learns."""
    noise = lambda x: 0.05 * jax.random.normal(jax.random.key(x.size), x.shape, x.dtype)
    return state.replace(target_params=jax.tree.map(lambda x: x + noise(x), state.params))


def weights(args, sample, update):
    """Importance weights by a loop: the inverse of the probabilities to the power of beta, the largest 1."""
    if not args.prioritized:
        return np.ones(args.batch_size)
    start = args.prioritized_replay_beta
    beta = start + (1 - start) * update / args.num_updates
    raw = [float(probability) ** -beta for probability in sample.probabilities]
    return np.array(raw) / max(raw)


@pytest.mark.parametrize(
    "changes",
    [
        {"burn_in": 4, "n_step": 3, "prioritized": True},
        pytest.param({"burn_in": 0, "n_step": 8, "max_steps": 3}, marks=pytest.mark.thorough),
        pytest.param({"burn_in": 16, "n_step": 1, "max_steps": 1}, marks=pytest.mark.thorough),
    ],
)
def test_a_gradient_step_of_dqn_rnn_against_a_loop(changes):
    """Sequences read step by step from their stored memory, next observations apart; targets one by one."""
    limit = (f"max_steps_in_episode={changes.get('max_steps', 6)}",)
    frequency = 3 * np.gcd(8, changes["burn_in"]).item()
    flags = {name: value for name, value in changes.items() if name != "max_steps"}
    flags |= {"num_envs": 3, "train_frequency": frequency, "learning_starts": 0, "buffer_size": 240}
    args = small("dqn_rnn", env_params=limit, **flags)
    state, _ = trained("dqn_rnn", args, 9 if args.segment < 8 else 6)
    state = with_another_target(state)
    sample, after, metrics = sampled_in_the_next_update("dqn_rnn", args, state)
    network, _, _ = dqn_rnn.make_actor(args)
    read = functools.partial(forward, network)
    flat = lambda x: np.asarray(x).reshape(args.batch_size, -1, *x.shape[3:])
    steps = jax.tree.map(flat, sample.experience.steps)  # [B, burn-in + T, ...]
    reward = steps.reward / float(after.reward_scale.std)
    length, no_start = args.burn_in + args.num_steps, jnp.zeros((1, args.batch_size), bool)

    def walk(params):
        carry, now, then = jax.tree.map(lambda x: x[:, 0], sample.experience.carry), [], []
        for t in range(length):
            carry, output = read(
                params, carry, steps.seen[None, :, t], steps.prev_action[None, :, t], steps.start[None, :, t]
            )
            now.append(np.asarray(output.q)[0])
            _, output = read(params, carry, steps.next_seen[None, :, t], steps.action[None, :, t], no_start)
            then.append(np.asarray(output.q)[0])
        return np.stack(now, axis=1), np.stack(then, axis=1)

    (q, next_q), (_, target_next_q) = walk(state.params), walk(state.target_params)
    error = np.zeros((args.batch_size, args.num_steps))
    for b, i in np.ndindex(error.shape):
        t, target, discount = args.burn_in + i, 0.0, 1.0
        for k in range(t, min(t + args.n_step, length)):
            target, discount = target + discount * reward[b, k], discount * args.gamma
            if steps.terminated[b, k] or steps.truncated[b, k]:
                break
        if not steps.terminated[b, k]:
            target += discount * target_next_q[b, k, next_q[b, k].argmax()]
        error[b, i] = q[b, t, steps.action[b, t]] - target
    assert steps.truncated.any()
    weight = weights(args, sample, int(state.update))
    assert float(metrics["td_loss"]) == pytest.approx(0.5 * (weight[:, None] * error**2).mean(), rel=1e-4)
    if args.prioritized:
        size = np.abs(error)
        expected = (0.9 * size.max(axis=1) + 0.1 * size.mean(axis=1) + 1e-6) ** args.prioritized_replay_alpha
        got = dict(zip(np.asarray(sample.indices).tolist(), expected, strict=True))  # an index may come more than once
        leaves = np.asarray(after.replay.sum_tree_state.nodes)[-(len(after.replay.sum_tree_state.nodes) + 1) // 2 :]
        np.testing.assert_allclose(leaves[list(got)], list(got.values()), rtol=1e-3)


@pytest.mark.parametrize("prioritized", usually(True, of=(False, True)))
def test_a_gradient_step_of_dqn_mlp_against_a_loop(prioritized):
    args = small("dqn_mlp", env_params=("max_steps_in_episode=6",), learning_starts=0, prioritized=prioritized)
    state = with_another_target(trained("dqn_mlp", args, 6)[0])
    sample, after, metrics = sampled_in_the_next_update("dqn_mlp", args, state)
    network, _, _ = dqn_mlp.make_actor(args)
    steps = jax.tree.map(lambda x: np.asarray(x)[:, 0], sample.experience)
    reward = steps.reward / float(after.reward_scale.std)
    values = jax.jit(lambda params, x: network.apply(params, x[None]).q[0])
    q, next_q = (np.asarray(values(state.params, x)) for x in (steps.seen, steps.next_seen))
    target_next_q = np.asarray(values(state.target_params, steps.next_seen))
    error = np.zeros(args.batch_size)
    for b in range(args.batch_size):
        value = 0 if steps.terminated[b] else target_next_q[b, int(next_q[b].argmax())]
        error[b] = q[b, steps.action[b]] - reward[b] - args.gamma * value
    expected = 0.5 * (weights(args, sample, int(state.update)) * error**2).mean()
    assert float(metrics["td_loss"]) == pytest.approx(expected, rel=1e-4)


# ------------------------------------------------------------------------------------------------------ replay buffer


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("name", DQN)
def test_wrap_around_never_mixes_two_writes(name, prioritized):
    """Every sample is of consecutive writes that are still in the buffer."""
    args = small(name, prioritized=prioritized, buffer_size=40 if name == "dqn_mlp" else 128, learning_starts=0)
    module = script(name)
    buffer, item = module.make_replay(args)
    segments = args.sequence_segments if name == "dqn_rnn" else 1
    replay = buffer.init(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), item))
    add, sample = jax.jit(buffer.add), jax.jit(buffer.sample)
    met = set()
    for write in range(1, 5 * args.buffer_length):
        number = jnp.arange(args.num_envs) * 1000 + write
        replay = add(
            replay,
            jax.tree.map(
                lambda x, number=number: jnp.broadcast_to(
                    number.reshape(-1, *(1,) * (x.ndim + 1)), (args.num_envs, 1, *x.shape)
                ).astype(x.dtype),
                item,
            ),
        )
        if write < segments:
            assert not bool(buffer.can_sample(replay))
            continue
        experience = sample(replay, jax.random.key(write)).experience
        reward = experience.steps.reward if name == "dqn_rnn" else experience.reward
        numbers = np.asarray(reward, int).reshape(args.batch_size, segments, -1)
        assert (numbers == numbers[:, :, :1]).all()
        first = numbers[:, 0, 0]
        assert (numbers[:, :, 0] == first[:, None] + np.arange(segments)).all()
        oldest = max(1, write - args.buffer_length + 1)
        assert (first % 1000 >= oldest).all() and (numbers[:, -1, 0] % 1000 <= write).all()
        met |= {(write, number) for number in first % 1000}
    assert len(met) > 3 * args.buffer_length


def test_priorities_follow_the_errors():
    args = small("dqn_mlp", prioritized=True, num_envs=1, train_frequency=1, buffer_size=64, batch_size=8)
    buffer, item = dqn_mlp.make_replay(args)
    replay = buffer.init(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), item))
    add, sample = jax.jit(buffer.add), jax.jit(buffer.sample)
    for i in range(64):
        one = jax.tree.map(lambda x: jnp.zeros((1, 1, *x.shape), x.dtype), item)
        replay = add(replay, one.replace(reward=jnp.full((1, 1), float(i))))
    replay = jax.jit(buffer.set_priorities)(replay, jnp.arange(64), jnp.where(jnp.arange(64) < 32, 1.0, 3.0))
    rewards = [np.asarray(sample(replay, jax.random.key(i)).experience.reward).ravel() for i in range(200)]
    share = (np.concatenate(rewards) >= 32).mean()
    assert share == pytest.approx(3**args.prioritized_replay_alpha / (1 + 3**args.prioritized_replay_alpha), abs=0.03)


@pytest.mark.parametrize("partial_obs", usually(True, of=(False, True)))  # the twins have one state
@pytest.mark.parametrize("family", usually("Navigator", of=FAMILIES))  # test_twins.py has all games
def test_redrawn_frames_equal_the_seen_ones(family, partial_obs):
    """Observation and next observation of every step, with ends of episodes among them."""
    env, env_params = gymnax.make(f"{family}Easy", partial_obs=partial_obs)
    env_params = env_params.replace(max_steps_in_episode=7)

    def step(now, key):
        obs, state = now
        step_key, action_key = jax.random.split(key)
        action = env.action_space(env_params).sample(action_key)
        next_obs, next_state, _, terminated, truncated, info = env.step(step_key, state, action, env_params)
        frames = obs, info["final_observation"]
        drawn = env.get_obs(state), env.get_obs(info["final_state"])
        same = jnp.stack([(one == other).all() for one, other in zip(frames, drawn, strict=True)])
        return (next_obs, next_state), (same, terminated | truncated, (drawn[0] != drawn[1]).any())

    @jax.jit
    def play(key):
        first, rest = jax.random.split(key)
        return jax.lax.scan(step, env.reset(first, env_params), jax.random.split(rest, 50))[1]

    same, over, moved = play(jax.random.key(0))
    assert same.all() and over.any() and moved.any()


def test_a_million_steps_fit_where_frames_never_would(monkeypatch, tmp_path):
    args = dqn_mlp.Args(env_id="TetrisHard", run_dir=str(tmp_path / "runs")).checked()
    assert memory_use.memory_needed(args, dqn_mlp)["replay buffer"] < 0.7e9
    monkeypatch.setattr(memory_use, "available", lambda: 16e9)
    memory_use.check_memory(args, dqn_mlp)
    advice = "98.3 GB of it for the replay buffer, .* lower --buffer-size, or use --storage states"
    with pytest.raises(UserError, match=advice):
        dqn_mlp.main(dataclasses.replace(args, storage="frames").checked())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", DQN)
def test_a_truncated_step_leads_to_its_final_observation(name):
    args = small(name, env_params=("max_steps_in_episode=3",))
    module = script(name)
    _, begin, act = module.make_actor(args)
    _, params = fresh_params(name, args)
    actor, act = jax.jit(begin, static_argnums=1)(jax.random.key(1), args.num_envs), jax.jit(act)
    for t in range(3):
        actor, transition, info = act(params, actor, module.POLICIES["greedy"])
        np.testing.assert_array_equal(transition.next_seen, info["final_observation"])
        assert bool(transition.truncated.all()) == (t == 2) and not transition.terminated.any()
    assert not np.allclose(transition.next_seen, actor.obs)


def late(name):
    """Learning begins, and the target network moves, after every 128 steps: one program for three tests."""
    flags = {"learning_starts": 128, "target_network_frequency": 128, "tau": 0.25, "prioritized": True}
    return small(name, total_timesteps=512, **flags)


@pytest.mark.parametrize("name", usually("dqn_mlp", of=DQN))
def test_nothing_is_learned_before_the_buffer_holds_enough(name):
    args = late(name)
    before = trained(name, args, 0)[0]
    steps = []
    for updates in range(1, 512 // args.update_size):
        state, metrics = trained(name, args, updates)
        steps.append(int(metrics["gradient_steps"]))
        done = updates * args.update_size
        assert (steps[-1] > 0) == (done >= 128)
        if done < 128:
            assert_equal(before.params, state.params)
    assert steps[-1] == args.gradient_steps * (len(steps) - 128 // args.update_size + 1)


@pytest.mark.parametrize("name", usually("dqn_mlp", of=DQN))
def test_the_target_network_moves_by_tau_when_due_and_else_stays(name):
    args = late(name)
    before = trained(name, args, 128 // args.update_size - 1)[0]
    for done in range(128, 512, args.update_size):
        after = trained(name, args, done // args.update_size)[0]
        tau = args.tau if done % 128 == 0 else 0
        mixed = lambda old, new, tau=tau: (1 - tau) * old + tau * new
        assert_equal(jax.tree.map(mixed, before.target_params, after.params), after.target_params, atol=1e-6)
        moved = jax.tree.map(lambda x, y: bool((x != y).any()), before.params, after.params)
        assert any(jax.tree.leaves(moved))
        before = after


@pytest.mark.parametrize("name", usually("dqn_mlp", of=DQN))
def test_prioritized_replay_learns_and_moves_its_priorities(name):
    args = late(name)
    state, metrics = trained(name, args, args.num_updates)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
    leaves = np.asarray(state.replay.sum_tree_state.nodes)
    assert len(np.unique(leaves)) > 5 and np.isfinite(leaves).all()
    assert float(metrics["td_loss"]) > 0


@pytest.mark.parametrize("frequency", [1, 8, 12, 24, 40, 100])
def test_the_target_network_is_due_whenever_so_many_steps_have_passed(frequency):
    """A gradient step is for 8 steps here, four of them make an update."""
    args = small("dqn_mlp", num_envs=32, train_frequency=8, target_network_frequency=frequency, tau=0.5)
    for update, index in np.ndindex(10, 4):
        own = range(update * 32 + index * 8 + 1, update * 32 + index * 8 + 9)
        due = any(step % frequency == 0 for step in own)
        assert float(dqn_mlp.target_share(args, jnp.int32(update), jnp.int32(index))) == 0.5 * due


# --------------------------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("save_buffer", usually(True, of=(False, True)))
@pytest.mark.parametrize("name", usually("dqn_mlp", of=DQN))
def test_a_checkpoint_holds_the_buffer_if_asked(name, save_buffer, tmp_path, capsys):
    args = small(name, run_dir=str(tmp_path), save_buffer=save_buffer, total_timesteps=192)
    folder = script(name).main(args)
    arrays = {array.partition(".")[0] for array in saved_names(folder, 192)}
    assert ("replay" in arrays) == save_buffer and "params" in arrays
    for step in (128, 192):
        shutil.rmtree(folder / "checkpoints" / str(step))
    before = rows(folder)
    capsys.readouterr()
    resumed(folder)
    said = capsys.readouterr().out
    assert ("the replay buffer starts empty" in said) != save_buffer
    # 32 steps after step 64, or a sequence of 16 steps in each of four environments
    assert save_buffer or f"at step {96 if name == 'dqn_mlp' else 128}" in said
    assert not save_buffer or rows(folder) == before
    assert json.loads((folder / "args.json").read_text())["args"]["save_buffer"] == save_buffer


def saved_names(folder, step):
    """The names of the arrays of a checkpoint."""
    with checkpoints.manager(folder) as manager:
        return list(manager.item_metadata(step).tree)


# ----------------------------------------------------------------------------------------------------------- learning


@pytest.mark.thorough
@pytest.mark.optimized
@pytest.mark.slow
def test_cart_pole_is_learned():
    """The flags and the budget are those of benchmark/dqn.sh."""
    flags = {"num_envs": 10, "train_frequency": 10, "batch_size": 128, "hidden_size": 128, "buffer_size": 100_000}
    flags |= {"learning_rate": 2.5e-4, "target_network_frequency": 2_000, "exploration_fraction": 0.5}
    args = dqn_mlp.Args(env_id="CartPole-v1", total_timesteps=500_000, max_grad_norm=10, **flags)
    assert learned_return("dqn_mlp", args.checked()) > 400
