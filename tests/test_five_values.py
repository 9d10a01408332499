"""popgym_arcade.wrappers, and the five values of `popgym_arcade.make` in training code written for them."""

import dataclasses

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import spaces
from harness import EASY_IDS, only_usually

import popgym_arcade
from popgym_arcade.wrappers import FlattenObservationWrapper, LogWrapper

# fields and keys of the published package
FIELDS = {"env_state", "episode_returns", "episode_lengths", "returned_episode_returns", "returned_episode_lengths"}
KEYS = {"returned_episode_returns", "returned_episode_lengths", "timestep", "returned_episode"}
FEW = only_usually(["NavigatorEasy", "CartPoleEasy"], EASY_IDS)


def play(env, params, steps, copies=3, seed=0):
    """Random steps of some copies, in a scan as training code does it: first observations, last states, the rest."""
    reset_key, action_key, play_key = jax.random.split(jax.random.key(seed), 3)
    actions = jax.random.randint(action_key, (steps, copies), 0, 5)

    def body(state, inputs):
        obs, state, reward, done, info = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
            *inputs[:1], state, *inputs[1:], params
        )
        return state, (obs, reward, done, info)

    obs, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(reset_key, copies), params)
    state, outputs = jax.lax.scan(body, state, (jax.random.split(play_key, (steps, copies)), actions))
    return obs, state, jax.tree.map(np.asarray, outputs)


@pytest.mark.parametrize("env_id", FEW)
def test_log_wrapper(env_id):
    env, params = popgym_arcade.make(env_id)
    _, state, (_, reward, done, info) = play(LogWrapper(env), params.replace(max_steps_in_episode=4), 11)
    assert {field.name for field in dataclasses.fields(state)} == FIELDS | {"timestep"}
    assert set(info) == KEYS | {"terminated", "truncated"}
    assert {leaf.shape for leaf in jax.tree.leaves(info)} == {(11, 3)}
    np.testing.assert_array_equal(info["returned_episode"], done)
    np.testing.assert_array_equal(info["timestep"], np.arange(1, 12)[:, None] * np.ones((1, 3), int))
    for copy in range(3):
        total, length, last = np.float32(0), 0, (0, 0)
        for t in range(11):
            total, length = total + reward[t, copy], length + 1
            if done[t, copy]:
                last, total, length = (total, length), np.float32(0), 0
            found = (info["returned_episode_returns"][t, copy], info["returned_episode_lengths"][t, copy])
            assert found == pytest.approx(last, abs=1e-6)
        assert float(state.episode_returns[copy]) == pytest.approx(total, abs=1e-6)
        assert int(state.episode_lengths[copy]) == length


def test_every_leaf_of_info_can_be_averaged():
    """As three code bases do it: `jax.tree.map(lambda x: x.mean(), info)` over a rollout."""
    env, params = popgym_arcade.make("NavigatorEasy")
    info = play(env, params.replace(max_steps_in_episode=4), 11)[-1][-1]
    means = jax.tree.map(lambda x: (x * np.ones((11, 3))).sum(-1).mean(-1), info)
    assert set(means) == {"terminated", "truncated"}


@pytest.mark.parametrize("env_id", FEW)
def test_flatten_observation_wrapper(env_id):
    env, params = popgym_arcade.make(env_id)
    flat = FlattenObservationWrapper(env)
    space = flat.observation_space(params)
    assert (space.low, space.high, space.shape, space.dtype) == (0, 255, (128 * 128 * 3,), np.uint8)
    first, _, outputs = play(flat, params, 3)
    plain_first, _, plain = play(env, params, 3)
    np.testing.assert_array_equal(first, np.reshape(plain_first, (3, -1)))
    np.testing.assert_array_equal(outputs[0], plain[0].reshape(3, 3, -1))
    assert LogWrapper(flat).num_actions == 5


@pytest.mark.parametrize("wrapper", [LogWrapper, FlattenObservationWrapper])
def test_a_six_value_environment_is_refused(wrapper):
    with pytest.raises(ValueError, match="five values of popgym_arcade.make and NavigatorEasy returns six"):
        wrapper(gymnax.make("NavigatorEasy")[0])


@struct.dataclass
class Count:
    time: jax.Array


class Counter:
    """Five values a step; the reward's dtype is the widest there is."""

    def reset(self, key, params=None):
        return jnp.zeros((2, 3)), Count(jnp.int32(0))

    def step(self, key, state, action, params=None):
        time = state.time + jnp.int32(1)
        done = time == 3
        reward = jnp.asarray(0.5, jnp.float64 if jax.config.jax_enable_x64 else jnp.float32)
        return jnp.full((2, 3), time), Count(jnp.where(done, jnp.int32(0), time)), reward, done, {}

    def observation_space(self, params=None):
        return spaces.Box(jnp.zeros((2, 3)), jnp.ones((2, 3)), (2, 3), jnp.float32)


@pytest.mark.parametrize("x64", [False, True])
def test_dtypes_of_the_log_are_constant(x64):
    """Else a scan whose carry is the state would not compile."""
    with jax.enable_x64(x64), jax.numpy_rank_promotion("raise"):
        env = LogWrapper(Counter())
        _, state = env.reset(jax.random.key(0))
        for _ in range(4):
            before = state
            _, state, _, _, info = env.step(jax.random.key(1), state, 0)
            for one, other in zip(jax.tree.leaves(before), jax.tree.leaves(state), strict=True):
                assert (one.dtype, one.weak_type, one.shape) == (other.dtype, False, other.shape)
        assert state.episode_returns.dtype == state.returned_episode_returns.dtype == jnp.float32
        assert state.episode_lengths.dtype == state.timestep.dtype == jnp.int32
        assert (state.returned_episode_returns, state.returned_episode_lengths, state.timestep) == (1.5, 3, 4)
        assert info["returned_episode_returns"].dtype == jnp.float32


def test_bounds_of_each_value_are_flattened_too():
    space = FlattenObservationWrapper(Counter()).observation_space()
    assert space.low.shape == space.high.shape == space.shape == (6,)
