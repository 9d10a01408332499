"""The easier kinds of Tetris of benchmark/tetris_narrow.py."""

import jax
import numpy as np
import pytest

from benchmark.tetris_narrow import Narrow, Squares
from popgym_arcade.environments.arcade import DOWN, LEFT, RIGHT
from popgym_arcade.environments.tetris import O


def play(env, actions):
    """The states and rewards of a sequence of actions."""
    step = jax.jit(env.step_env)
    params = env.default_params
    reset_key, *step_keys = jax.random.split(jax.random.key(0), 1 + len(actions))
    _, state = env.reset(reset_key, params)
    states, rewards = [state], []
    for key, action in zip(step_keys, actions, strict=True):
        _, state, reward, *_ = step(key, state, action, params)
        states.append(state)
        rewards.append(float(reward))
    return states, rewards


@pytest.mark.parametrize("kind", [Narrow, Squares])
def test_the_outer_columns_stay_filled(kind):
    states, _ = play(kind(), [DOWN] * 60)
    for state in states:
        board = np.asarray(state.board) > 0
        assert board[:, [0, 1, 2, 7, 8, 9]].all() and not board[0, 3:7].any()
    assert (np.asarray(states[-1].board)[:, 3:7] > 0).any()  # pieces have locked


def test_two_squares_side_by_side_clear_two_rows():
    states, rewards = play(Squares(), [LEFT, *[DOWN] * 9, RIGHT, *[DOWN] * 9])
    assert all(int(state.piece) == O and (np.asarray(state.next_pieces) == O).all() for state in states)
    np.testing.assert_allclose(max(rewards), 0.2)
    assert int(states[-1].score) == 2
