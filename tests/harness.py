"""Playing and drawing for the environment tests: everything is compiled once per id and shared by all test files.

States come back as the environment's own dataclass holding numpy arrays with a leading batch axis, so tests read
`states.x` and change `states.replace(x=...)` without meeting jax. Randomness is named by integers, never by key
objects, because a key may be used only once (see conftest.py).
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, LEVELS

import popgym_arcade

IDS = list(popgym_arcade.REGISTERED_ENVIRONMENTS)
EASY_IDS = [env_id for env_id in IDS if env_id.endswith("Easy")]


def only_usually(names, cases):
    """`cases` as parameters of a test. Without --thorough only those in `names` are tested."""
    rare = lambda case: pytest.param(*case if isinstance(case, tuple) else [case], marks=pytest.mark.thorough)
    return [case if case in names else rare(case) for case in cases]


EASY_USUALLY = only_usually(EASY_IDS, IDS)  # for the longer tests of what is the same code at every level
# For tests of what all games share, where a few stand for all
FEW_USUALLY = only_usually(["NavigatorEasy", "CartPoleEasy", "TetrisEasy"], EASY_IDS)


def at_easy_or_first_at_hard(values):
    """(id, value) for every id and value. Without --thorough, Medium is left out, and Hard has the first value only."""
    cases = [(env_id, value) for value in values for env_id in IDS]
    hard = lambda case: case[0].endswith("Hard") and case[1] == values[0]
    return only_usually([case for case in cases if case[0] in EASY_IDS or hard(case)], cases)


TWINS = {"full": False, "partial": True}
STATE_CHUNK = 512  # batches are cut and padded to these sizes, so that each function is compiled for one shape only
FRAME_CHUNK = 32
# For what runs longer than it takes to compile (conftest.py has LLVM's optimisations switched off)
OPTIMIZED = {"xla_backend_optimization_level": 2, "xla_llvm_disable_expensive_passes": False}


def split_id(env_id):
    """'NavigatorHard' -> ('Navigator', 2)."""
    for level, name in enumerate(LEVELS):
        if env_id.endswith(name):
            return env_id.removesuffix(name), level
    raise ValueError(f"{env_id} does not end with a level")


def facts(env_id):
    """The family's entry in the table of facts, and the level."""
    family, level = split_id(env_id)
    return FAMILIES[family], level


def ids_of(family):
    return [env_id for env_id in IDS if split_id(env_id)[0] == family]


@functools.cache
def make(env_id, partial_obs=False, obs_size=128):
    """One environment object per variant: jit's cache is keyed by it."""
    return gymnax.make(env_id, partial_obs=partial_obs, obs_size=obs_size)


def params_of(env_id, limit=None):
    params = make(env_id)[1]
    return params if limit is None else params.replace(max_steps_in_episode=limit)


def forget():
    """Drop everything that was compiled or played."""
    for function in globals().values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()


# Batches of states


def to_numpy(tree):
    return jax.tree.map(np.asarray, tree)


def field_names(states):
    return [field.name for field in dataclasses.fields(states)]


def size(states):
    return len(states.time)


def take(states, index):
    return jax.tree.map(lambda leaf: leaf[index], states)


def join(*batches):
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)


def as_dict(states, i):
    """One state of a batch as a dictionary of copies, the form the slow models work on."""
    return {name: np.array(getattr(states, name)[i]) for name in field_names(states)}


def in_chunks(function, chunk, *batches):
    """function(*batches) on pieces of one fixed length; the last piece is padded with copies of its first row."""
    total = len(jax.tree.leaves(batches)[0])
    results = []
    for start in range(0, total, chunk):
        stop = min(start + chunk, total)
        rows = np.r_[start:stop, [start] * (start + chunk - stop)].astype(int)
        result = to_numpy(function(*jax.tree.map(lambda leaf, rows=rows: np.asarray(leaf)[rows], batches)))
        results.append(jax.tree.map(lambda leaf, keep=stop - start: leaf[:keep], result))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *results)


# Single resets, steps and pictures


@functools.cache
def _reset(env_id):
    env, params = make(env_id)
    return jax.jit(jax.vmap(lambda key: env.reset(jax.random.wrap_key_data(key), params)[1]))


@functools.cache
def resets(env_id, count, seed=0):
    """The states of `count` resets from one key."""
    keys = jax.random.key_data(jax.random.split(jax.random.key(seed), count))
    return in_chunks(_reset(env_id), STATE_CHUNK, np.asarray(keys))


class Stepped(NamedTuple):
    """What a step gives, apart from pictures."""

    state: Any  # after auto-reset
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_state: Any  # before auto-reset


@functools.cache
def _step(env_id, partial_obs):
    env, _ = make(env_id, partial_obs)

    def step(seed, state, action, limit):
        params = params_of(env_id).replace(max_steps_in_episode=limit)
        _, state, reward, terminated, truncated, info = env.step(jax.random.key(seed), state, action, params)
        return Stepped(state, reward, terminated, truncated, info["final_state"])

    return jax.jit(jax.vmap(step))


def step(env_id, states, actions, seeds=0, limit=None, partial_obs=False):
    """One step of every state of the batch."""
    count = size(states)
    limit = params_of(env_id, limit).max_steps_in_episode
    actions, seeds, limits = (
        np.broadcast_to(np.asarray(value, dtype), count)
        for value, dtype in ((actions, np.int32), (seeds, np.uint32), (limit, np.int32))
    )
    return in_chunks(_step(env_id, partial_obs), STATE_CHUNK, seeds, states, actions, limits)


@functools.cache
def _draw(env_id, partial_obs, obs_size):
    return jax.jit(jax.vmap(make(env_id, partial_obs, obs_size)[0].get_obs), compiler_options=OPTIMIZED)


def frames(env_id, states, partial_obs=False, obs_size=128):
    """The picture of every state of the batch."""
    return in_chunks(_draw(env_id, partial_obs, obs_size), FRAME_CHUNK, states)


def same_pictures(one, other):
    """bool[n]; eight bytes are compared at a time."""
    words = [np.ascontiguousarray(frames).reshape(len(frames), -1).view(np.uint64) for frames in (one, other)]
    return (words[0] == words[1]).all(axis=1)


def colors_of(pictures):
    """The set of all colours."""
    red, green, blue = np.moveaxis(pictures.astype(np.uint32), -1, 0)
    return {(code >> 16, code >> 8 & 255, code & 255) for code in np.unique(red << 16 | green << 8 | blue).tolist()}


# Whole episodes


class Played(NamedTuple):
    """Random play: arrays with axes (time, copy of the game)."""

    before: Any
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    info_terminated: np.ndarray
    info_truncated: np.ndarray
    final_state: Any
    after: Any


def play_length(env_id):
    """Twice the limit and more, but for Tetris: random play is over long before its limit of 3000."""
    return min(max(256, 2 * facts(env_id)[0].limits[split_id(env_id)[1]] + 20), 1220)


@functools.cache
def _random_play(env_id, partial_obs, copies):
    env, _ = make(env_id, partial_obs)

    @jax.jit
    def play(key, params):
        taste_key, reset_key, play_key = jax.random.split(key, 3)
        # Every copy prefers other actions, so some walk off in one direction, some fire all the time.
        taste = 1.5 * jax.random.normal(taste_key, (copies, 9))

        def one(state, taste, key):
            action_key, step_key = jax.random.split(key)
            action = jax.random.categorical(action_key, taste) - 2  # -2..6: the ones outside 0..4 are clipped
            _, after, reward, terminated, truncated, info = env.step(step_key, state, action, params)
            flags = (terminated, truncated, info["terminated"], info["truncated"])
            return after, Played(state, action, reward, *flags, info["final_state"], after)

        # (A scan of a vmap: a vmap of a scan over keys is, wrongly, reported as reuse by jax 0.10.)
        _, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(reset_key, copies), params)
        keys = jax.random.split(play_key, (play_length(env_id), copies))
        return jax.lax.scan(lambda state, keys: jax.vmap(one)(state, taste, keys), state, keys)[1]

    return play


@functools.cache
def random_play(env_id, limit=None, partial_obs=False, copies=64):
    return to_numpy(_random_play(env_id, partial_obs, copies)(jax.random.key(7), params_of(env_id, limit)))


def episodes(played):
    """(return, length) of every episode that was finished in random play."""
    done = played.terminated | played.truncated
    results = []
    for copy in range(done.shape[1]):
        start = 0
        for end in np.flatnonzero(done[:, copy]) + 1:
            results.append((played.reward[start:end, copy].astype(np.float64).sum(), end - start))
            start = end
    return np.array(results).reshape(-1, 2)


@functools.cache
def states_met(env_id, count=1500, seed=0):
    """States in the middle of random and of expert episodes, in random order."""
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), random_play(env_id).before)
    pool = join(flat, expert_play(env_id).met)
    return take(pool, np.random.default_rng(seed).permutation(size(pool))[:count])


class Result(NamedTuple):
    """One episode of each game: arrays over games."""

    value: np.ndarray  # the undiscounted return
    length: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    met: Any  # all states visited, in one batch


def play_games(env_id, states, plans, limit=None):
    """Play one episode from each state, the actions chosen by the family's policy from the plan and the state."""
    family, level = facts(env_id)
    env, _ = make(env_id)
    params = params_of(env_id, limit)
    steps = params.max_steps_in_episode

    @jax.jit
    @jax.vmap
    def play(state, plan):
        def body(carry, seed):
            state, over = carry
            action = family.policy(plan, state)
            _, after, reward, terminated, truncated, _ = env.step(jax.random.key(seed), state, action, params)
            now = (jnp.where(over, 0.0, reward), ~over, ~over & terminated, ~over & truncated)
            return (after, over | terminated | truncated), (*now, state)

        return jax.lax.scan(body, (state, False), jnp.arange(steps, dtype=jnp.uint32))[1]

    reward, alive, terminated, truncated, visited = to_numpy(play(states, plans))
    value = reward.astype(np.float64).sum(1)
    return Result(value, alive.sum(1), terminated.any(1), truncated.any(1), take(visited, alive))


@functools.cache
def expert_games(env_id):
    """The games of known result that the family's entry sets up, from 64 resets."""
    family, level = facts(env_id)
    return family.games(level, resets(env_id, 64, seed=3))


@functools.cache
def expert_play(env_id):
    games = expert_games(env_id)
    states = jax.tree.map(lambda *leaves: np.stack(leaves), *(game.state for game in games))
    return play_games(env_id, states, np.stack([game.plan for game in games]))


# A short video of each twin: pictures from reset and step, with auto-resets in between


class Video(NamedTuple):
    """Arrays with axes (time, copy); frame 0 is the reset's."""

    state: Any
    frame: np.ndarray
    final_state: Any
    final_frame: np.ndarray
    done: np.ndarray


VIDEO_LIMIT = 20  # by then the first piece of Tetris is down


@functools.cache
def record_video(env_id, partial_obs, steps=44, copies=6):
    env, _ = make(env_id, partial_obs)
    params = params_of(env_id, VIDEO_LIMIT)

    @jax.jit
    def record(key):
        reset_key, action_key, play_key = jax.random.split(key, 3)
        actions = jax.random.randint(action_key, (steps, copies), 0, 5)

        def one(key, state, action):
            frame, state, _, terminated, truncated, info = env.step(key, state, action, params)
            return state, Video(state, frame, info["final_state"], info["final_observation"], terminated | truncated)

        def body(state, inputs):
            keys, actions = inputs
            return jax.vmap(one)(keys, state, actions)

        frame, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(reset_key, copies), params)
        rest = jax.lax.scan(body, state, (jax.random.split(play_key, (steps, copies)), actions))[1]
        first = jax.tree.map(lambda leaf: leaf[None], (state, frame))
        together = jax.tree.map(lambda one, more: jnp.concatenate([one, more]), first, (rest.state, rest.frame))
        return rest._replace(state=together[0], frame=together[1])

    return to_numpy(record(jax.random.key(11)))


def flat(batch):
    """(time, copy, ...) -> (time * copy, ...)."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch)
