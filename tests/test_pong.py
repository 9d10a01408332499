"""Pong: the rules against a slow model, what each twin shows, and that both seats are alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from popgym_arcade.environments.arcade import DOWN, UP
from popgym_arcade.environments.contract import check_game
from popgym_arcade.environments.pong import (
    BAND,
    COLUMNS,
    POINTS,
    ROWS,
    SPEED,
    SPINS,
    PongEasy,
    PongHard,
    PongMedium,
    PongState,
)
from popgym_arcade.environments.two_player import ArcadeSeats

LEVELS = (PongEasy, PongMedium, PongHard)


def random_states(env, count):
    """States in the middle of a rally."""
    keys = jax.random.split(jax.random.key(5), 7)
    draw = lambda k, low, high, *shape: jax.random.randint(keys[k], (count, *shape), low, high)
    return PongState(
        time=draw(0, 1, 400),
        points=draw(1, 0, POINTS, 2),
        paddles=draw(2, 0, ROWS - env.paddle_height + 1, 2),
        ball_y=draw(3, 0, ROWS),
        ball_x=draw(4, 1, COLUMNS - 1),
        to_right=jax.random.bernoulli(keys[5], 0.5, (count,)),
        dy=draw(6, -2, 3),
    )


def slow_step(env, state, actions):
    """The rules on plain numbers: the next state without a serve, the side that gets a point (None), and who hit."""
    paddles = []
    for seat in (0, 1):
        move = {UP: -1, DOWN: 1}.get(int(actions[seat]), 0)
        paddles.append(min(max(int(state.paddles[seat]) + move, 0), ROWS - env.paddle_height))
    y, dy = int(state.ball_y) + int(state.dy), int(state.dy)
    if y < 0:
        y, dy = -y, -dy
    elif y > ROWS - 1:
        y, dy = 2 * (ROWS - 1) - y, -dy
    right = bool(state.to_right)
    x = int(state.ball_x) + (SPEED if right else -SPEED)
    if 0 < x < COLUMNS - 1:
        return paddles, y, x, right, dy, None
    part = y - paddles[int(right)]
    if 0 <= part < env.paddle_height:
        return paddles, y, (COLUMNS - 2 if right else 1), not right, SPINS[env.paddle_height][part], None
    return paddles, y, x, right, dy, 1 - int(right)


@pytest.mark.parametrize("level", LEVELS)
def test_a_step_is_that_of_a_slow_model(level):
    env = level()
    states = random_states(env, 400)
    actions = jax.random.randint(jax.random.key(1), (400, 2), -1, 5)
    after, reward, over = jax.vmap(env.play)(jax.random.split(jax.random.key(0), 400), states, actions)
    kinds = set()
    for i in range(400):
        before, now = (jax.tree.map(lambda x, i=i: np.asarray(x[i]), part) for part in (states, after))
        paddles, y, x, right, dy, winner = slow_step(env, before, actions[i])
        assert now.paddles.tolist() == paddles
        if winner is None:
            assert (now.ball_y, now.ball_x, now.to_right, now.dy) == (y, x, right, dy)
            assert reward[i].tolist() == [0, 0] and now.points.tolist() == before.points.tolist() and not over[i]
            kinds.add("hit" if right != before.to_right else "wall" if dy != before.dy else "flight")
        else:
            won = np.eye(2, dtype=int)[winner]
            np.testing.assert_allclose(reward[i], (2 * won - 1) / POINTS)
            assert now.points.tolist() == (before.points + won).tolist()
            assert over[i] == (now.points == POINTS).any()
            assert now.ball_x == COLUMNS // 2 and 4 <= now.ball_y < ROWS - 4 and abs(now.dy) == 1  # a serve
            kinds.add("point")
    assert kinds == {"hit", "wall", "flight", "point"}


@pytest.mark.parametrize("level", LEVELS)
def test_both_seats_are_alike(level):
    """In the mirror, the same actions of the other seats do the same, and rewards add up to nothing."""
    env = level()
    states = random_states(env, 200)
    mirror = jax.vmap(env.mirrored)
    jax.tree.map(np.testing.assert_array_equal, mirror(mirror(states)), states)
    actions = jax.random.randint(jax.random.key(1), (200, 2), 0, 5)
    keys = lambda: jax.random.split(jax.random.key(0), 200)
    after, reward, over = jax.vmap(env.play)(keys(), states, actions)
    reflected, reward_there, over_there = jax.vmap(env.play)(keys(), mirror(states), actions[:, ::-1])
    np.testing.assert_array_equal(reward, reward_there[:, ::-1])
    np.testing.assert_array_equal(reward.sum(axis=1), 0)
    np.testing.assert_array_equal(over, over_there)
    rally = np.asarray(reward[:, 0] == 0)
    for x, y in zip(jax.tree.leaves(mirror(after)), jax.tree.leaves(reflected), strict=True):
        np.testing.assert_array_equal(x[rally], y[rally])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("obs_size", [128, 256])
def test_it_keeps_the_contract_of_games(level, obs_size):
    check_game(level, obs_size)


@pytest.mark.parametrize("obs_size", [128, 256])
def test_the_full_frame_shows_the_state_and_the_partial_frame_hides_the_ball_in_the_band(obs_size):
    full, partial = PongEasy(False, obs_size), PongEasy(True, obs_size)
    states = random_states(full, 300)
    draw = lambda env: np.asarray(jax.jit(jax.vmap(env.render))(states)).reshape(300, -1)
    fields = np.concatenate(
        [np.asarray(x).reshape(300, -1) for x in jax.tree.leaves(states.replace(time=0 * states.time))], 1
    )
    shown = draw(full)
    for i in range(0, 300, 7):  # equal frames mean equal states
        same = (shown == shown[i]).all(axis=1)
        np.testing.assert_array_equal(same, (fields == fields[i]).all(axis=1))
    hidden = np.isin(states.ball_x, list(BAND))
    np.testing.assert_array_equal((draw(partial) != shown).any(axis=1), hidden)
    first = jax.tree.map(lambda x: x[0], states.replace(time=0 * states.time))
    np.testing.assert_array_equal(partial.render(first), full.render(first))


def test_an_episode_ends_with_the_fifth_point_or_at_the_limit():
    env = PongEasy()
    seats = ArcadeSeats(env)
    state = jax.tree.map(lambda x: x[0], random_states(env, 1))
    missed = state.replace(
        points=jnp.array([4, 0]), paddles=jnp.array([0, 0]), ball_y=jnp.int32(12), ball_x=jnp.int32(17), dy=jnp.int32(0)
    ).replace(to_right=jnp.bool_(True))
    _, after, reward, terminated, truncated, _ = seats.step(
        jax.random.key(0), missed, jnp.array([4, 4]), env.default_params
    )
    assert (terminated, truncated, after.time) == (True, False, 0)
    np.testing.assert_allclose(reward, [0.2, -0.2])
    late = missed.replace(points=jnp.array([0, 0]), time=jnp.int32(499), ball_x=jnp.int32(9))
    _, _, reward, terminated, truncated, _ = seats.step(jax.random.key(0), late, jnp.array([4, 4]), env.default_params)
    assert (terminated, truncated) == (False, True)


def test_each_seat_sees_itself_on_the_right():
    env = PongEasy()
    seats = ArcadeSeats(env)
    obs, state = seats.reset(jax.random.key(0), env.default_params)
    np.testing.assert_array_equal(obs[1], env.render(state))
    np.testing.assert_array_equal(obs[0], env.render(env.mirrored(state)))
    assert seats.legal(state).shape == (2, 5) and seats.legal(state).all()


def test_the_script_follows_the_ball():
    env = PongEasy()
    states = random_states(env, 500)
    actions = jax.vmap(env.script)(jax.random.split(jax.random.key(0), 500), states)
    middle = np.asarray(states.paddles[:, 0] + 1.5)
    away = np.asarray(states.ball_y) - middle
    follows = np.where(away < 0, UP, DOWN)
    far = np.abs(away) > 1
    assert set(np.unique(actions[far & (actions != -1)] == follows[far & (actions != -1)])) == {True}
    np.testing.assert_allclose((actions[far] == -1).mean(), 0.25, atol=0.05)
