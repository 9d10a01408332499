"""Environment objects: copies, pickles, equality and what it saves, state spaces, and what is refused in one line."""

import copy
import pickle
import re
import tomllib
from pathlib import Path

import gymnax
import jax
import numpy as np
import pytest
from gymnax import wrappers
from gymnax.environments import spaces
from harness import EASY_USUALLY, IDS

import popgym_arcade
from popgym_arcade import environments
from popgym_arcade.environments.identity import fingerprint
from popgym_arcade.wrappers import FlattenObservationWrapper, LogWrapper

DOORS = {"six": gymnax.make, "five": popgym_arcade.make}
COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda env: pickle.loads(pickle.dumps(env)),
}


@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_two_of_a_kind_are_equal_and_others_are_not(env_id):
    for door in DOORS.values():
        env = door(env_id, partial_obs=True)[0]
        same = door(env_id, partial_obs=True)[0]
        assert env is not same and env == same and hash(env) == hash(same)
    six, five = (door(env_id)[0] for door in DOORS.values())
    other_id = IDS[(IDS.index(env_id) + 1) % len(IDS)]
    different = [
        six,
        five,
        gymnax.make(env_id, partial_obs=True)[0],
        popgym_arcade.make(env_id, partial_obs=True)[0],
        popgym_arcade.make(env_id, final_state=True)[0],
        gymnax.make(other_id)[0],
        LogWrapper(five),
        FlattenObservationWrapper(five),
    ]
    assert len(set(different)) == len(different) and six != "six"


def test_sizes_differ():
    assert gymnax.make(IDS[0], obs_size=256)[0] != gymnax.make(IDS[0])[0]


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("door", DOORS)
def test_copies_are_equal_and_draw_the_same(door, how):
    env, params = DOORS[door]("SkittlesEasy", partial_obs=True)
    for one in [env] if door == "six" else [env, LogWrapper(env), FlattenObservationWrapper(env)]:
        other = COPIES[how](one)
        assert other is not one and other == one and hash(other) == hash(one)
        frames = [each.reset(jax.random.key(0), params)[0] for each in (one, other)]
        np.testing.assert_array_equal(*frames)


@pytest.mark.parametrize("door", DOORS)
def test_a_second_object_of_a_kind_compiles_nothing(door):
    make = lambda: DOORS[door]("NavigatorEasy", partial_obs=True)
    env, params = make()
    _, state = env.reset(jax.random.key(0), params)
    env.step(jax.random.key(1), state, 3, params)
    before = type(env).step._cache_size(), type(env).reset._cache_size()
    for other in (make()[0], copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        _, state = other.reset(jax.random.key(0), params)
        other.step(jax.random.key(1), state, 3, params)
    assert (type(env).step._cache_size(), type(env).reset._cache_size()) == before


class Wide(environments.NavigatorEasy):
    """A user's game with an argument of its own."""

    def __init__(self, partial_obs=False, obs_size=128, weights=(1.0,)):
        super().__init__(partial_obs, obs_size)
        self.weights = np.asarray(weights)


def test_an_argument_of_a_users_class_counts():
    """Else the program compiled for one would silently run for the other."""
    assert Wide(weights=[1, 2]) == Wide(weights=[1, 2])
    assert len({Wide(), Wide(weights=[2.0]), Wide(weights=[1.0, 1.0]), environments.NavigatorEasy()}) == 4
    copied = copy.copy(Wide())
    copied.weights = np.zeros(3)  # before anything is compiled for it
    assert copied != Wide()


def test_fingerprints_go_by_value_where_they_can():
    loop = []
    loop.append(loop)
    values = [1, 1.0, True, "1", None, (1,), [1], {"a": 1}, {"a": 2}, np.zeros(2), np.zeros(2, np.float32), np.zeros(3)]
    values += [slice(1, 3), slice(1, 3, 2), range(1, 3), {"a", "b"}, frozenset("ab"), {"a", "c"}]
    values += [jax.numpy.zeros(2), loop, lambda: 1, lambda: 1, jax.random.key(0)]
    assert len({fingerprint(value) for value in values}) == len(values)
    assert all(fingerprint(value) == fingerprint(copy.deepcopy(value)) for value in values[:-1])
    assert fingerprint({"b", "a"}) == fingerprint({"a", "b"})
    assert fingerprint(np.arange(6).reshape(2, 3)) != fingerprint(np.arange(6).reshape(3, 2))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_the_space_of_states(env_id, door):
    env, params = DOORS[door](env_id)
    space = env.state_space(params)
    state = jax.eval_shape(lambda: env.reset(jax.random.key(0), params)[1])
    assert isinstance(space, spaces.Dict) and list(space.spaces) == list(vars(state))
    for name, field in space.spaces.items():
        leaf = getattr(state, name)
        assert (field.shape, field.dtype) == (leaf.shape, leaf.dtype), name


def test_states_are_in_their_space_and_gymnax_converts_it():
    env, params = gymnax.make("CartPoleEasy")
    space = env.state_space(params)
    assert bool(space.contains(env.reset(jax.random.key(0), params)[1]))
    for env_id in ("CartPoleEasy", "NavigatorEasy"):
        env, params = gymnax.make(env_id)
        converted = spaces.gymnax_space_to_gym_space(env.state_space(params))
        assert converted["time"].dtype == np.int32
    assert converted["tnt"].dtype == bool


@pytest.mark.parametrize("door", DOORS)
def test_an_action_of_a_wrong_shape_is_refused(door):
    env, params = DOORS[door]("NavigatorEasy")
    _, state = env.reset(jax.random.key(0), params)
    for action in (np.zeros(4, int), np.zeros(1, int), np.zeros((2, 2), int)):
        told = re.escape(f"an action is a whole number of shape (), not {action.shape}: use jax.vmap for a batch")
        with pytest.raises(ValueError, match=told):
            env.step(jax.random.key(1), state, action, params)


@pytest.mark.parametrize("wrapper", [wrappers.GymnaxToGymWrapper, wrappers.GymnaxToVectorGymWrapper])
def test_gymnaxs_gym_wrappers_refuse_five_values_in_one_line(wrapper):
    env, params = popgym_arcade.make("NavigatorEasy")
    with pytest.raises(TypeError, match="six values per step: give them gymnax.make") as error:
        wrapper(env, params=params)
    assert "\n" not in str(error.value) and "popgym_arcade/NavigatorEasy-v0" in str(error.value)


@pytest.mark.parametrize("final_state", [1, None, "yes"])
def test_final_state_is_a_bool(final_state):
    with pytest.raises(ValueError, match="final_state must be True or False"):
        popgym_arcade.make("NavigatorEasy", final_state=final_state)


def test_a_missing_attribute_is_named():
    with pytest.raises(AttributeError, match="colour"):
        _ = popgym_arcade.make("NavigatorEasy")[0].colour


def test_the_thirty_classes_can_be_imported():
    assert environments.__all__ == IDS
    for env_id in IDS:
        scope = {}
        exec(f"from popgym_arcade.environments import {env_id}", scope)
        assert scope[env_id].__name__ == env_id and isinstance(gymnax.make(env_id)[0], scope[env_id])


def test_the_version_is_that_of_the_project():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert popgym_arcade.__version__ == project["version"]
