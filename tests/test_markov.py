"""The full frame is Markov: a search for two states that look alike and behave differently.

Pairs of states come from play (groups of equal frames among thousands of states) and from surgery (one field, or one
element of a field, replaced by its value in another state). Where the frames of a pair are equal, the secrets are made
equal, and then every action, with the same key, must give equal rewards, ends and next frames.
"""

import dataclasses

import numpy as np
import pytest
from harness import EASY_IDS, IDS, facts, field_names, frames, only_usually, same_pictures, size, states_met, step, take

from popgym_arcade.environments import markov

EXACT = [env_id for env_id in IDS if facts(env_id)[0].markov == "exact"]
PIXEL = [env_id for env_id in IDS if facts(env_id)[0].markov == "pixel"]
BASES = 150  # states that undergo surgery, per field and kind
PAIRS = 200  # met in play


def surgery(env_id, states, rng):
    """(field, states, altered states) for each field, altered in two ways; only states that may occur in play."""
    family, level = facts(env_id)
    for name in field_names(states):
        values = getattr(states, name)
        donors = rng.integers(size(states), size=BASES)
        whole, element = values[:BASES].copy(), values[:BASES].copy()
        whole[:] = values[donors]
        if element[0].size > 1:
            places = rng.integers(element[0].size, size=BASES)
            sources = rng.integers(element[0].size, size=BASES)
            rows = np.arange(BASES)
            element.reshape(BASES, -1)[rows, places] = values.reshape(size(states), -1)[donors, sources]
        else:
            element += rng.choice(np.array([-1, 1], element.dtype), element.shape)  # a neighbouring value
        base = take(states, slice(0, BASES))
        for kind in (whole, element):
            altered = base.replace(**{name: kind})
            changed = (kind != values[:BASES]).reshape(BASES, -1).any(1)
            keep = changed & family.possible(level, base) & family.possible(level, altered)
            yield name, take(base, keep), take(altered, keep)


@dataclasses.dataclass(frozen=True)
class Counterexample:
    """Two states with equal frames and unequal futures. Printed only when a test fails: printing is slow."""

    what: str
    states: object
    others: object
    i: int

    def __repr__(self):
        return f"{self.what}: {take(self.states, self.i)} and {take(self.others, self.i)}"


def counterexamples(env_id, draw, states, others):
    """list[Counterexample] among the pairs that look alike, and the number of those pairs."""
    family, level = facts(env_id)
    if size(states) == 0:
        return [], 0
    alike = same_pictures(draw(states), draw(others))
    states, others = take(states, alike), take(others, alike)
    if size(states) == 0:
        return [], 0
    others = family.equal_secrets(level, states, others)
    assert same_pictures(draw(states), draw(others)).all(), "a secret is in the frame, so it is none"
    found = []
    for action in range(5):
        one = step(env_id, states, action, seeds=np.arange(size(states)))
        other = step(env_id, others, action, seeds=np.arange(size(states)))
        differences = {
            "reward": one.reward != other.reward,
            "terminated": one.terminated != other.terminated,
            "next frame": ~same_pictures(draw(one.final_state), draw(other.final_state)),
        }
        for name, differs in differences.items():
            found += [
                Counterexample(f"{name} after action {action}", states, others, i) for i in np.flatnonzero(differs)
            ]
    return found, size(states)


def search(env_id, draw):
    """For the pairs met in play, and then for surgery on each field: counterexamples, number of look-alikes."""
    states = states_met(env_id, 1000)
    _, *pairs = markov.look_alikes(states, draw(states), secrets=())
    yield counterexamples(env_id, draw, *(take(pair, slice(PAIRS)) for pair in pairs))
    for _, base, altered in surgery(env_id, take(states, slice(0, 2 * BASES)), np.random.default_rng(5)):
        yield counterexamples(env_id, draw, base, altered)


@pytest.mark.parametrize("env_id", only_usually(EASY_IDS, EXACT))
def test_equal_full_frames_have_equal_futures(env_id):
    results = list(search(env_id, lambda states: frames(env_id, states)))
    assert [example for found, _ in results for example in found][:3] == []
    # The search has met look-alikes: at least the states that differ in time, which is not drawn, or in secrets.
    assert sum(alike for _, alike in results) > 50


@pytest.mark.parametrize("env_id", [env_id for env_id in EXACT if env_id.endswith("Easy")])
def test_the_search_finds_what_the_partial_frame_lacks(env_id):
    """Were the partial frame passed off as the full one, the search would tell."""

    def draw(states):
        return frames(env_id, states.replace(time=np.maximum(states.time, 1)), partial_obs=True)

    assert any(found for found, _ in search(env_id, draw))


SEARCHED_FOR_LONG = ("NavigatorEasy", "SkittlesEasy")  # only with --thorough
CUES = {env_id: list(facts(env_id)[0].cues) for env_id in EXACT if env_id.endswith("Easy")}


@pytest.mark.parametrize(
    ("env_id", "cue"),
    only_usually(
        [(env_id, cues[0]) for env_id, cues in CUES.items() if env_id not in SEARCHED_FOR_LONG],
        [(env_id, cue) for env_id, cues in CUES.items() for cue in cues],
    ),
)
def test_the_search_finds_a_missing_cue(env_id, cue):
    """With one thing painted over in every full frame, there are counterexamples: each cue is needed."""
    remove = facts(env_id)[0].cues[cue]
    assert any(found for found, _ in search(env_id, lambda states: remove(frames(env_id, states))))


# CartPole: Markov up to the resolution of a pixel

ANGLE = 12 * np.pi / 180


def pixel_worth(name, obs_size):
    """How much of a variable one pixel is worth, from the layout: track 64 px, pole 32, arrows 22 (or twice)."""
    scale = obs_size // 128
    return {
        "x": 4.8 / (64 * scale),
        "theta": 1 / (32 * scale * np.cos(ANGLE)),  # the tip of the pole moves by one pixel
        "x_dot": 6 / (22 * scale),
        "theta_dot": 6 / (22 * scale),
    }[name]


def cartpole_states(env_id, count, rng):
    """Anywhere in the permitted box, speeds up to 3."""
    state = take(states_met(env_id, 1), 0)
    limits = {"x": 2.4, "x_dot": 3, "theta": ANGLE, "theta_dot": 3}
    values = {name: rng.uniform(-limit, limit, count).astype(np.float32) for name, limit in limits.items()}
    blank = {"time": np.full(count, 7, np.int32), "noise": np.zeros((count, 4), np.float32)}
    return dataclasses.replace(state, **values, **blank), limits


@pytest.mark.parametrize("obs_size", [128, 256])
@pytest.mark.parametrize("env_id", PIXEL[:1])
def test_each_variable_moves_the_picture_by_its_pixels(env_id, obs_size):
    """A change of any variable by just over a pixel's worth shows, anywhere in the permitted range."""
    rng = np.random.default_rng(2)
    states, limits = cartpole_states(env_id, 1000, rng)
    pictures = frames(env_id, states, obs_size=obs_size)
    for name, limit in limits.items():
        values = getattr(states, name)
        step_size = pixel_worth(name, obs_size) * 1.02
        moved = np.where(values + step_size <= limit, values + step_size, values - step_size).astype(np.float32)
        unseen = same_pictures(pictures, frames(env_id, states.replace(**{name: moved}), obs_size=obs_size))
        assert not unseen.any(), f"{name} {values[unseen][:5]} looks like {moved[unseen][:5]}"


@pytest.mark.parametrize("obs_size", [128, 256])
@pytest.mark.parametrize("env_id", PIXEL[:1])
def test_speeds_are_drawn_to_scale(env_id, obs_size):
    """As many pictures as pixels over the scale from -3 to 3, each for a stretch of equal length, by either twin."""
    count = 1201
    state = cartpole_states(env_id, count, np.random.default_rng(0))[0]
    still = state.replace(**{name: np.full(count, 0.01, np.float32) for name in ("x", "x_dot", "theta", "theta_dot")})
    speeds = np.linspace(-3, 3, count, dtype=np.float32)
    for name in ("x_dot", "theta_dot"):
        for twin in (False, True):
            pictures = frames(env_id, still.replace(**{name: speeds}), twin, obs_size)
            jumps = np.flatnonzero(~same_pictures(pictures[1:], pictures[:-1]))
            distinct = len({picture.tobytes() for picture in pictures})
            assert distinct == len(jumps) + 1, "two separate stretches of speed look alike"
            worth = pixel_worth(name, obs_size)
            assert distinct >= 6 / worth
            lengths = np.diff(speeds[jumps])
            # (the one around zero may be twice as long, as truncation makes it)
            assert np.sort(lengths)[-2] <= 1.1 * worth and lengths.max() <= 2.1 * worth


@pytest.mark.parametrize("env_id", PIXEL[:1])
def test_equal_frames_mean_equal_variables_up_to_a_pixel(env_id):
    """The converse: nearby states that look alike differ by less than a pixel's worth in every variable."""
    rng = np.random.default_rng(4)
    states, limits = cartpole_states(env_id, 2000, rng)
    nearness = 10 ** rng.uniform(-2, 0, 2000)  # most pairs are nearer than a pixel, some are not
    jitter = {
        name: np.clip(getattr(states, name) + rng.normal(size=2000) * nearness * pixel_worth(name, 128), -limit, limit)
        for name, limit in limits.items()
    }
    others = states.replace(**{name: value.astype(np.float32) for name, value in jitter.items()})
    alike = same_pictures(frames(env_id, states), frames(env_id, others))
    assert 50 < alike.sum() < 1950
    for name in limits:
        difference = np.abs(getattr(states, name) - getattr(others, name))[alike]
        assert difference.max() <= 1.02 * pixel_worth(name, 128), name


@pytest.mark.parametrize("env_id", PIXEL[:1])
def test_the_picture_of_cart_and_pole_is_needed(env_id):
    """Without it (in the partial frame) an upright and a falling pole look alike."""
    states, _ = cartpole_states(env_id, 200, np.random.default_rng(3))
    others = facts(env_id)[0].hidden(0, states, np.random.default_rng(1))["theta"]
    assert same_pictures(frames(env_id, states, True), frames(env_id, others, True)).all()
    assert (step(env_id, states, 0).terminated != step(env_id, others, 0).terminated).any()
