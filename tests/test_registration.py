"""Ids, the two doors, and what is refused."""

import importlib

import gymnax
import jax
import numpy as np
import pytest
from families import FAMILIES, LEVELS
from gymnax.environments.environment import Environment
from harness import EASY_IDS, IDS, make, only_usually, split_id

import popgym_arcade

# The snippet by which POPGym Arcade introduces itself; it runs for every id.
SNIPPET = """
env, env_params = popgym_arcade.make("NavigatorEasy", partial_obs=True)
reset = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))
step = jax.jit(jax.vmap(env.step, in_axes=(0, 0, 0, None)))
observation, env_state = reset(jax.random.split(jax.random.key(0), 4), env_params)
actions = jax.vmap(env.action_space(env_params).sample)(jax.random.split(jax.random.key(1), 4))
observation, env_state, reward, done, info = step(jax.random.split(jax.random.key(2), 4), env_state, actions, env_params)
mdp, mdp_params = popgym_arcade.make("NavigatorEasy", partial_obs=False)      # the twin goes on from the same state
markov_state, env_state, reward, done, info = jax.jit(jax.vmap(mdp.step, in_axes=(0, 0, 0, None)))(
    jax.random.split(jax.random.key(3), 4), env_state, actions, mdp_params)
"""  # noqa: E501


def one_line(error):
    message = str(error.value)
    assert message and "\n" not in message
    return message


def test_every_family_has_an_entry_in_the_table_of_facts():
    assert {split_id(env_id)[0] for env_id in IDS} == set(FAMILIES)


def test_every_family_has_three_levels():
    assert sorted(IDS) == sorted(family + level for family in FAMILIES for level in LEVELS)


def test_ids_are_registered_with_gymnax_once():
    assert [gymnax.registered_envs.count(env_id) for env_id in IDS] == [1] * len(IDS)


def test_importing_again_is_harmless():
    before = list(gymnax.registered_envs)
    for module in (popgym_arcade.registration, popgym_arcade):
        importlib.reload(module)
    assert gymnax.registered_envs == before
    assert isinstance(gymnax.make(IDS[0])[0], Environment)


@pytest.mark.parametrize("env_id", IDS)
def test_both_doors_give_an_environment_and_its_parameters(env_id):
    for door in (gymnax.make, popgym_arcade.make):
        env, params = door(env_id)
        assert params == env.default_params
        assert env.num_actions == 5
        assert env.observation_space(params).shape == (128, 128, 3)
        env, params = door(env_id, partial_obs=True, obs_size=256)
        assert env.observation_space(params).shape == (256, 256, 3)


@pytest.mark.parametrize("env_id", only_usually(["NavigatorEasy", "CountRecallEasy", "CartPoleEasy"], IDS))
def test_the_readme_snippet_runs(env_id):
    scope = {"jax": jax, "popgym_arcade": popgym_arcade}
    exec(SNIPPET.replace("NavigatorEasy", env_id), scope)
    for frame in (scope["observation"], scope["markov_state"]):
        assert frame.shape == (4, 128, 128, 3) and frame.dtype == np.uint8
    assert scope["reward"].shape == scope["done"].shape == (4,)
    assert (np.asarray(scope["env_state"].time) == np.where(scope["done"], 0, 2)).all()
    assert set(scope["info"]) == {"terminated", "truncated"}  # arrays alone: training code averages all leaves
    assert {(leaf.shape, leaf.dtype.name) for leaf in jax.tree.leaves(scope["info"])} == {((4,), "bool")}


@pytest.mark.parametrize(
    "wrong, closest",
    [
        ("NavigatorEazy", "NavigatorEasy"),
        ("navigatoreasy", "NavigatorEasy"),
        ("NavigatorMedum", "NavigatorMedium"),
        ("CountRecal", "CountRecall"),
        ("CartPole-Easy", "CartPoleEasy"),
        ("NoisyCartpoleHard", "NoisyCartPoleHard"),
    ],
)
def test_an_unknown_id_names_the_closest(wrong, closest):
    with pytest.raises(ValueError) as error:
        popgym_arcade.make(wrong)
    message = one_line(error)
    assert wrong in message and closest in message


def test_an_id_like_no_other_is_refused():
    with pytest.raises(ValueError) as error:
        popgym_arcade.make("xyzzy")
    assert "xyzzy" in one_line(error)


@pytest.mark.parametrize("obs_size", [0, 64, 127, 129, 512, -128, "128", None, 128.5])
@pytest.mark.parametrize("door", [popgym_arcade.make, gymnax.make], ids=["popgym_arcade", "gymnax"])
def test_a_wrong_size_is_refused(door, obs_size):
    with pytest.raises(ValueError) as error:
        door(IDS[0], obs_size=obs_size)
    message = one_line(error)
    assert "128" in message and "256" in message


@pytest.mark.parametrize("env_id", EASY_IDS)
def test_five_values_say_the_same_as_six(env_id):
    six, params = make(env_id)
    five, _ = popgym_arcade.make(env_id, final_state=True)
    params = params.replace(max_steps_in_episode=2)  # the second step ends the episode

    @jax.jit
    def both(seed, action):
        def play(step):
            _, state = six.reset(jax.random.key(seed), params)
            state = step(jax.random.key(seed + 1), state, action, params)[1]
            return step(jax.random.key(seed + 2), state, action, params)

        return play(six.step), play(five.step)

    with jax.debug_key_reuse(False):  # one program plays the same keys twice, to compare
        first, second = both(5, 1)
    obs, state, reward, terminated, truncated, info = first
    obs5, state5, reward5, done5, info5 = second
    assert bool(done5) == bool(terminated | truncated) and bool(done5)
    info.pop("final_observation")
    jax.tree.map(np.testing.assert_array_equal, (obs, state, reward, info), (obs5, state5, reward5, info5))
