"""Every step against a slow model, written from the specification in plain numpy (families/*.py)."""

import numpy as np
import pytest
from harness import (
    EASY_USUALLY,
    as_dict,
    at_easy_or_first_at_hard,
    expert_play,
    facts,
    flat,
    random_play,
    size,
    step,
    take,
    to_numpy,
)

STEPS = 1000


def transitions(env_id, limit):
    """Steps of random play (actions from -2 to 6): every one that ended an episode, up to a half, and any others."""
    played = flat(random_play(env_id, limit))
    done = played.terminated | played.truncated
    rng = np.random.default_rng(0)
    ends = rng.permutation(np.flatnonzero(done))[: STEPS // 2]
    others = rng.permutation(np.flatnonzero(~done))[: STEPS - len(ends)]
    return take(played, np.concatenate([ends, others]))


def compare(env_id, before, actions, limit, result):
    for i in range(size(before)):
        try:
            compare_step(env_id, as_dict(before, i), actions[i], limit, result, i)
        except AssertionError as error:  # to print every state takes longer than to step it
            raise AssertionError(f"action {actions[i]} in {as_dict(before, i)}: {error}") from error


def compare_step(env_id, state, action, limit, result, i):
    family, level = facts(env_id)
    names = set(state) - set(family.drawn)
    expected, reward, terminated = family.step(level, state, action, limit)
    assert result.reward[i] == pytest.approx(reward, abs=1e-6)
    for name in names:
        got = np.asarray(getattr(result.final_state, name)[i])
        if got.dtype == np.float32:
            # Steps may differ in the last bits of float32; a wrong formula differs by far more.
            np.testing.assert_allclose(got, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(got, expected[name], err_msg=name)
    assert result.terminated[i] == terminated
    assert result.truncated[i] == (not terminated and expected["time"] >= limit)


@pytest.mark.parametrize(("env_id", "limit"), at_easy_or_first_at_hard([None, 5]))
def test_random_play_follows_the_model(env_id, limit):
    played = transitions(env_id, limit)
    family, level = facts(env_id)
    compare(env_id, played.before, played.action, limit or family.limits[level], played)
    assert len(set(played.action)) == 9, "some action was never tried"


@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_expert_states_follow_the_model(env_id):
    """States that random play does not reach, under every action."""
    family, level = facts(env_id)
    met = expert_play(env_id).met
    rows = np.random.default_rng(1).permutation(size(met))[: STEPS // 2]
    met, actions = take(met, rows), np.arange(len(rows)) % 5
    compare(env_id, met, actions, family.limits[level], to_numpy(step(env_id, met, actions)))
