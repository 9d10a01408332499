"""popgym-arcade-check: states that look alike and behave differently are found, and no others are reported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import spaces

from popgym_arcade import check
from popgym_arcade.environments import MineSweeperEasy, markov
from popgym_arcade.environments.arcade import LEFT, ArcadeEnvironment, ArcadeState


def key():
    """A new copy of one key, because a copy can be used only once."""
    return jax.random.key(3)


@struct.dataclass
class FuseState(ArcadeState):
    side: jax.Array  # int32, 0 left, 1 right
    wait: jax.Array  # int32, steps until the answer


class Fuse(ArcadeEnvironment):
    """When the fuse has burned down, the answer is left or right. Both are in the frame; the partial twin hides one."""

    max_steps = 20
    shown = ("side", "wait")

    def reset_state(self, key, params):
        side_key, wait_key = jax.random.split(key)
        side = jax.random.randint(side_key, (), 0, 2)
        return FuseState(time=jnp.int32(0), side=side, wait=jax.random.randint(wait_key, (), 2, 6))

    def transition(self, key, state, action, params):
        last = state.wait == 0
        return state.replace(wait=jnp.maximum(state.wait - 1, 0)), last & (action == LEFT + state.side), last

    def render(self, state, params=None):
        side = state.side * (self.shows_all(state) & ("side" in self.shown))
        picture = jnp.zeros((self.obs_size, self.obs_size, 3), jnp.uint8).at[0, 0, 0].set(side.astype(jnp.uint8))
        wait = state.wait if "wait" in self.shown else 0
        return picture.at[0, 1, 0].set(jnp.asarray(wait, jnp.uint8))


class WithoutSide(Fuse):
    shown = ("wait",)


class WithoutWait(Fuse):
    shown = ("side",)


class Vectors(Fuse):
    """Observes numbers instead of pixels, and shows everything."""

    def render(self, state, params=None):
        return jnp.stack([state.side, state.wait]).astype(jnp.float32)

    def observation_space(self, params=None):
        return spaces.Box(0, 10, (2,), jnp.float32)


class Leaky(Fuse):
    """The frame shows `wait` only together with the time, so that equal frames do not mean equal `wait`."""

    def render(self, state, params=None):
        picture = jnp.zeros((self.obs_size, self.obs_size, 3), jnp.uint8)
        return picture.at[0, 0, 0].set((state.wait + state.time).astype(jnp.uint8))


def search(env, *args, num_states=256, **kwargs):
    return markov.search(env, markov.play(env, num_states, key()), key(), *args, **kwargs)


@pytest.mark.parametrize("game", [Fuse, Vectors])
def test_a_markov_game_has_no_counterexample(game):
    found = search(game())
    # the time is not in the frame, and changes nothing but the end by the time limit
    assert found.repeated and found.look_alikes > 30 and found.counterexamples == []


@pytest.mark.parametrize(
    ("game", "missing", "outcomes"),
    [(WithoutSide, "side", {("reward",)}), (WithoutWait, "wait", {("end",), ("reward", "end")})],
)
def test_what_the_frame_lacks_is_found(game, missing, outcomes):
    env, params = game(), game().default_params
    found = search(env).counterexamples
    assert found[0].fields == (missing,) and all(missing in example.fields for example in found)
    assert {example.outcomes for example in found} <= outcomes
    step = jax.jit(lambda state, action: env.step_env(key(), state, action, params)[1:4])
    for example in found[:20]:  # its actions really lead to different outcomes
        one, other = example.states
        np.testing.assert_array_equal(env.render(one), env.render(other))
        for i, action in enumerate(example.actions):
            (one, *results), (other, *other_results) = step(one, action), step(other, action)
            differ = tuple(name for name, a, b in zip(markov.OUTCOMES, results, other_results, strict=False) if a != b)
            assert differ == (example.outcomes if i == len(example.actions) - 1 else ())


def test_the_shortest_actions_are_reported():
    """Left or right at the last step, and otherwise one of them after the steps before it."""
    found = search(WithoutSide(), depth=6).counterexamples
    assert {len(example.actions) for example in found} > {1, 2}
    for example in found:
        assert len(example.actions) == 1 + int(example.states[0].wait)
        assert example.actions[-1] in (LEFT, LEFT + 1)


def test_a_difference_after_the_time_limit_is_not_found():
    class Short(WithoutSide):
        max_steps = 2  # the answer is never given

    assert search(Short()).counterexamples == []


def test_secrets_are_made_equal():
    found = search(WithoutSide(), ("side",))
    assert found.look_alikes > 30 and found.counterexamples == []
    with pytest.raises(ValueError, match="the frame shows wait: what it shows is not secret"):
        search(Leaky(), ("wait",))
    with pytest.raises(ValueError, match="the state has no field 'sid'; it has time, side, wait"):
        search(Fuse(), ("sid",), num_states=64)


def test_without_a_repeated_frame_the_search_says_nothing():
    states = markov.play(Fuse(), 64, key())
    differ = np.array([0, np.flatnonzero(states.wait != states.wait[0])[0]])
    assert markov.search(Fuse(), markov.take(states, differ), key()) == (False, 0, [])
    assert markov.search(Fuse(), markov.take(states, np.zeros(2, int)), key()) == (True, 0, [])  # one state, twice


def test_the_mines_are_secret():
    env = MineSweeperEasy()
    states = markov.play(env, 512, key())
    found = markov.search(env, states, key(), depth=1)
    assert found.counterexamples and all("mines" in example.fields for example in found.counterexamples)
    assert markov.search(env, states, key(), ("mines",), depth=1).counterexamples == []


def test_the_share_of_frames_that_the_partial_twin_changes():
    states = markov.play(Fuse(), 500, key())
    assert markov.size(states) == 500
    hidden = (states.time > 0) & (states.side == 1)
    assert markov.hidden_share(states, [Fuse(), Fuse(partial_obs=True)]) == pytest.approx(hidden.mean())
    assert markov.hidden_share(states, [Fuse(), Fuse()]) == 0


# ------------------------------------------------------------------------------------------------------- command line


def said(capsys, *argv):
    """The exit code and what the command printed."""
    try:
        check.main(argv)
        code = 0
    except SystemExit as end:
        code = end.code
    return code, capsys.readouterr()


def test_the_command_reports_and_its_exit_code_tells(capsys):
    game = f"{__name__}:WithoutSide"
    code, output = said(capsys, game, "--states", "256")
    assert code == 1 and "both twins pass check_game" in output.out
    assert "not Markov" in output.out and "differ in side (" in output.out and "the reward differs" in output.out
    code, output = said(capsys, game, "--states", "256", "--secrets", "side")
    assert code == 0 and "same futures: no counterexample" in output.out


def test_a_counterexample_is_one_sentence():
    one, other = (FuseState(time=np.int32(t), side=np.int32(0), wait=np.arange(t, t + 4)) for t in (0, 1))
    example = markov.Counterexample((one, other), (4, 2), ("reward", "end", "frame"))
    fields = "time (0 and 1) and wait (4 of 4 elements)"
    assert check.described(example) == (
        f"states that differ in {fields}: after fire, left, the reward, end and frame differ"
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["NavigatorEsy"], "the closest are NavigatorEasy"),
        (["Fuse:Fuse"], "cannot import Fuse"),
        (["NavigatorEasy", "--states", "1"], "--states 1: use a number from 2 to 100000"),
        (["NavigatorEasy", "--depth", "0"], "--depth 0: use a number from 1 to 1000"),
        (["NavigatorEasy", "--seed", "-1"], "--seed -1: use a number from 0 to 4294967295"),
        (["NavigatorEasy", "--secrets", "sid"], "the state has no field 'sid'"),
    ],
)
def test_bad_input_is_one_line(capsys, argv, message):
    code, output = said(capsys, *argv)
    assert code == 2 and message in output.err and output.err.count("\n") == 1
