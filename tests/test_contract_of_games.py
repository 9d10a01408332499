"""Mistakes in your own game: one clear line, from `register` and from the scripts, before anything is compiled."""

import random
import sys

import jax
import jax.numpy as jnp
import pytest
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import Environment, EnvParams, EnvState
from scripts import small

import popgym_arcade
from popgym_arcade import play
from popgym_arcade.baselines.environment import make_env
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.environments.arcade import RIGHT, ArcadeEnvironment, ArcadeState
from popgym_arcade.environments.contract import check_game, check_interface


@struct.dataclass
class Place(ArcadeState):
    x: jax.Array


class Corridor(ArcadeEnvironment):
    """Keeps the contract: walk to the right end."""

    max_steps = 9

    def reset_state(self, key, params):
        return Place(time=jnp.int32(0), x=jnp.int32(0))

    def transition(self, key, state, action, params):
        x = state.x + (action == RIGHT)
        return state.replace(x=x), x == 5, x == 5

    def render(self, state, params=None):
        return jnp.zeros((self.obs_size, self.obs_size, 3), jnp.uint8) + state.x.astype(jnp.uint8)


def changed(**methods) -> type[ArcadeEnvironment]:
    """A subclass of Corridor with other attributes."""
    return type("Mine", (Corridor,), methods)


def after(change):
    """Corridor's transition, with `change` applied to what it returns."""
    return lambda self, key, state, action, params: change(*Corridor.transition(self, key, state, action, params))


def branches(self, key, state, action, params):
    if action == RIGHT:
        return state, 0.0, False
    return state, 1.0, True


def remembers(self, key, params):
    self.home = jax.random.randint(key, (), 0, 5)
    return Place(time=jnp.int32(0), x=self.home)


def counts(self, state, params=None):
    self.frames = 1
    return Corridor.render(self, state)


def without_size(self, partial_obs=False):
    Corridor.__init__(self, partial_obs)


def without_super(self, partial_obs=False, obs_size=128):
    self.cells = 7


MISTAKES = {
    "no twin": (
        {"__init__": lambda self: None},
        r"Mine\(partial_obs=False, obs_size=128\) fails: TypeError: .*partial_obs",
    ),
    "no size": ({"__init__": without_size}, "fails: TypeError: .*'obs_size'"),
    "no super": ({"__init__": without_super}, r"Mine: __init__ must call super\(\).__init__\(partial_obs, obs_size\)"),
    "no time limit": ({"max_steps": None}, "max_steps is None, use a whole number of 1 or more"),
    "limit 0": ({"max_steps": 0}, "max_steps is 0, use a whole number of 1 or more"),
    "parameters": ({"default_params": None}, "default_params is a NoneType, not an ArcadeParams"),
    "no transition": ({"transition": ArcadeEnvironment.transition}, "Mine has no method transition"),
    "no render": ({"render": ArcadeEnvironment.render}, "Mine has no method render"),
    "few arguments": (
        {"reset_state": lambda self, key: None},
        r"Mine: reset_state must take \(self, key, params\)",
    ),
    "no key": (
        {"transition": lambda self, state, action: (state, 0.0, False)},
        r"Mine: transition must take \(self, key, state, action, params\)",
    ),
    "state outside JAX": (
        {"reset_state": lambda self, key, params: object()},
        "reset_state returns a value that is not an array; a state is a flax.struct dataclass",
    ),
    "remembers outside the state": (
        {"reset_state": remembers},
        "reset_state sets self.home; the state must hold everything that changes",
    ),
    "counts frames": ({"render": counts}, "render sets self.frames; the state must hold"),
    "randomness of Python": (
        {"reset_state": lambda self, key, params: Place(time=jnp.int32(0), x=jnp.int32(random.random() * 1e9))},
        "reset_state differs from call to call; draw random numbers with jax.random and the key",
    ),
    "plain state": (
        {"reset_state": lambda self, key, params: jnp.int32(0)},
        "reset_state returns a ShapeDtypeStruct, not a flax.struct dataclass that extends ArcadeState",
    ),
    "time in seconds": (
        {"reset_state": lambda self, key, params: Place(time=jnp.float32(0), x=jnp.int32(0))},
        r"a time that is float32\[\], use jnp.int32\(0\)",
    ),
    "two values": (
        {"transition": after(lambda *values: values[:2])},
        "transition returns 2 values, not 3: state, reward",
    ),
    "swapped": ({"transition": after(lambda s, r, t: (r, s, t))}, "a state of ShapeDtypeStruct, not Place"),
    "drift": (
        {"transition": after(lambda s, r, t: (s.replace(x=s.x * 1.0), r, t))},
        r"transition changes the state's x from int32\[\] to float32\[\]",
    ),
    "vector reward": (
        {"transition": after(lambda s, r, t: (s, r[None], t))},
        r"a reward of shape \(1,\), not a scalar",
    ),
    "vector end": (
        {"transition": after(lambda s, r, t: (s, r, t[None]))},
        r"a terminated of shape \(1,\), not a scalar",
    ),
    "branch": (
        {"transition": branches},
        r"transition fails: TracerBoolConversionError: .*test_contract_of_games.py, line",
    ),
    "float frame": (
        {"render": lambda self, state, params=None: Corridor.render(self, state) / 255.0},
        r"render returns float32\[128, 128, 3\], but observation_space is uint8\[128, 128, 3\]",
    ),
    "small frame": (
        {"render": lambda self, state, params=None: Corridor.render(self, state)[::2, ::2]},
        r"render returns uint8\[64, 64, 3\], but observation_space is uint8\[128, 128, 3\]",
    ),
    "misspelled": (
        {"render": lambda self, state, params=None: Corridor.render(self, state) + self.colour},
        "render fails: AttributeError: .*'colour'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_game_is_one_line(mistake, monkeypatch):
    methods, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message) as found:
        popgym_arcade.register("Mine", changed(**methods))
    assert "\n" not in str(found.value) and "Mine" not in popgym_arcade.REGISTERED_ENVIRONMENTS
    monkeypatch.setattr(sys.modules[__name__], "Mine", changed(**methods), raising=False)
    with pytest.raises(UserError, match=f"--env-id {__name__}:Mine: .*{message}"):
        make_env(small("pqn_mlp", env_id=f"{__name__}:Mine"))
    make_env.__globals__["_make_env"].cache_clear()


def test_a_game_that_keeps_the_contract_passes():
    check_game(Corridor)
    check_game(Corridor, obs_size=256)
    check_game(popgym_arcade.environments.NavigatorEasy)
    vectors = {
        "render": lambda self, state, params=None: jnp.ones(3) * state.x,
        "observation_space": lambda self, params=None: spaces.Box(0, 5, (3,), jnp.float32),
    }
    check_game(changed(**vectors))


def test_make_and_the_keyboard_take_a_class_of_your_own():
    name = f"{__name__}:Corridor"
    env, params = popgym_arcade.make(name, partial_obs=True)
    obs, state = env.reset(jax.random.key(0), params)
    assert type(state) is Place and obs.shape == (128, 128, 3)
    session = play.Session(name, (False, True), 128, seed=0)
    assert session.picture().shape == (128, 2 * 128 + play.GAP, 3)
    for _ in range(5):
        session.act(RIGHT)
    assert session.over and session.episode_return == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:Game", "cannot import nowhere: ModuleNotFoundError"),
        (f"{__name__}:Coin", "Coin is not a subclass of ArcadeEnvironment"),
        (f"{__name__}:Drifting", "Drifting: transition changes the state's x"),
    ],
)
def test_a_wrong_class_is_one_line(name, message, monkeypatch, capsys):
    drifting = type("Drifting", (Corridor,), MISTAKES["drift"][0])
    monkeypatch.setattr(sys.modules[__name__], "Drifting", drifting, raising=False)
    with pytest.raises(ValueError, match=message):
        popgym_arcade.make(name)
    with pytest.raises(SystemExit) as end:
        play.parse_args([name])
    told = capsys.readouterr().err
    assert end.value.code == 2 and message in told and told.count("\n") == 1


class Coin(Environment):
    """A gymnax environment that keeps the interface."""

    kind = jnp.float32

    @property
    def default_params(self):
        return EnvParams(max_steps_in_episode=5)

    def step_env(self, key, state, action, params):
        state = EnvState(time=state.time + 1)
        return self.get_obs(state), state, jnp.float32(1), jnp.bool_(False), {}

    def reset_env(self, key, params):
        state = EnvState(time=jnp.int32(0))
        return self.get_obs(state), state

    def get_obs(self, state, params=None, key=None):
        return jnp.ones(2, self.kind)

    def action_space(self, params):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(0, 1, (2,), jnp.float32)


def test_the_interface_of_a_gymnax_environment_is_checked():
    env = Coin()
    check_interface("Coin", env, env.default_params)
    mistakes = {
        r"Coin: reset returns float32\[3\], but observation_space is float32\[2\]": {
            "get_obs": lambda self, state, params=None, key=None: jnp.ones(3)
        },
        r"Coin: reset returns uint8\[2\]": {"kind": jnp.uint8},
        "Coin has no method step": {"step_env": Environment.step_env},
        r"Coin: step returns a reward of shape \(2,\), not a scalar": {
            "step_env": lambda self, key, state, action, params: (
                jnp.ones(2),
                EnvState(time=state.time + 1),
                jnp.ones(2),
                jnp.bool_(False),
                {},
            )
        },
    }
    mistakes["Coin: step returns an info without final_observation"] = {
        "step": lambda self, key, state, action, params: (*Coin().step(key, state, action, params)[:5], {})
    }
    for message, methods in mistakes.items():
        env = type("Coin", (Coin,), methods)()
        with pytest.raises(ValueError, match=message):
            check_interface("Coin", env, env.default_params)
