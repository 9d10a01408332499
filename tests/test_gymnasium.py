"""The games as Gymnasium environments: one by one, and many in one compiled program."""

import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.error import NameNotFound, ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from harness import IDS, only_usually

import popgym_arcade
from benchmark import sb3
from popgym_arcade import gymnasium_envs, registration
from popgym_arcade.baselines.errors import UserError

ROOT = Path(__file__).parents[1]
ID = "popgym_arcade/NavigatorEasy-v0"
NUM_ENVS = 5
LIMIT = 9
SHORT = {"partial_obs": True, "env_params": {"max_steps_in_episode": LIMIT}}  # ends by TNT and by the limit
# benchmark/sb3.py --check has this checker, and that of stable-baselines3, look at every family
CHECKED = only_usually(["NavigatorEasy", "CartPoleEasy"], IDS)


def make(**options):
    return gymnasium.make(ID, **SHORT, **options)


def make_vec(num_envs=NUM_ENVS, **options):
    return gymnasium.make_vec(ID, num_envs=num_envs, **SHORT, **options)


def actions_of(steps, num_envs=NUM_ENVS, seed=0):
    return np.random.default_rng(seed).integers(0, 5, (steps, num_envs))


def played(envs, steps=60, seed=3):
    """Everything that a vector environment returns; in the mode DISABLED with a reset of those that ended."""
    outputs = [envs.reset(seed=seed)]
    for actions in actions_of(steps):
        outputs.append(envs.step(actions))
        _, _, terminated, truncated, _ = outputs[-1]
        ended = terminated | truncated
        if envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED and ended.any():
            outputs.append(envs.reset(options={"reset_mask": ended}))
    return outputs


def assert_same(one, other):
    """The same values in the same structure, and of the same dtypes."""
    assert isinstance(one, type(other))
    if isinstance(one, dict):
        assert list(one) == list(other)
        one, other = list(one.values()), list(other.values())
    if isinstance(one, tuple | list) or (isinstance(one, np.ndarray) and one.dtype.hasobject):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif one is not None:
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


# ------------------------------------------------------------------------------------------------------------ registry


def test_all_ids_are_registered():
    for env_id in IDS:
        spec = gymnasium.spec(f"popgym_arcade/{env_id}-v0")
        assert spec.vector_entry_point and spec.max_episode_steps is None  # the limit is the game's own


def test_registering_again_is_silent_and_an_unknown_id_names_the_closest():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registration._register()
    with pytest.raises(NameNotFound, match="NavigatorEasy"):
        gymnasium.make("popgym_arcade/NavigatorEazy-v0")


def test_gymnasium_imports_the_package_that_the_id_names():
    code = f"import gymnasium; gymnasium.make('popgym_arcade:{ID}')"
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], capture_output=True, cwd=ROOT)
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.parametrize("door", [gymnasium.make, gymnasium.make_vec], ids=["make", "make_vec"])
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"partial_ops": True}, "did you mean 'partial_obs'"),
        ({"xyzzy": 1}, "use one of "),
        ({"obs_size": 64}, "128 or 256"),
        ({"partial_obs": 1}, "True or False"),
        ({"env_params": {"max_steps": 3}}, "unknown parameter 'max_steps': "),
    ],
)
def test_a_wrong_argument_gives_one_clear_line(door, options, told):
    with pytest.raises(ValueError, match=told) as error:
        door(ID, **options)
    assert "\n" not in str(error.value) and error.value.__cause__ is None


@pytest.mark.parametrize("options", [{"num_envs": 0}, {"max_episode_steps": 0}, {"autoreset_mode": "sometimes"}])
def test_a_wrong_argument_of_a_vector_is_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        gymnasium.make_vec(ID, **options)


# --------------------------------------------------------------------------------------------------------------- single


@pytest.mark.parametrize("env_id", CHECKED)
def test_the_checker_of_gymnasium_has_no_warning(env_id):
    env = gymnasium.make(f"popgym_arcade/{env_id}-v0", partial_obs=True, render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


def test_one_environment_plays_to_its_own_limit_and_then_wants_a_reset():
    env = make().unwrapped
    with pytest.raises(ResetNeeded):
        env.step(0)
    obs, info = env.reset(seed=4)
    assert obs.shape == (128, 128, 3) and obs.dtype == np.uint8 and info == {}
    steps, ended = 0, False
    while not ended:
        obs, reward, terminated, truncated, info = env.step(np.int64(4))
        assert type(reward) is float and type(terminated) is type(truncated) is bool and info == {}
        steps, ended = steps + 1, terminated or truncated
    assert (steps, terminated, truncated) == (LIMIT, False, True)
    with pytest.raises(ResetNeeded):
        env.step(0)


@pytest.mark.parametrize("action", [1.0, [1], np.array([0, 1]), None])
def test_an_action_that_is_not_a_whole_number_is_refused(action):
    env = make().unwrapped
    env.reset()
    with pytest.raises(ValueError, match=r"a whole number of shape \(\)"):
        env.step(action)


def test_the_same_seed_gives_the_same_episodes_and_no_seed_others():
    env, other = make(), make()

    def first_frames(env, **seed):
        return [env.reset(**seed)[0].tobytes(), *(env.reset()[0].tobytes() for _ in range(4))]

    frames = first_frames(env, seed=7)
    assert frames == first_frames(other, seed=7) == first_frames(env, seed=7) and len(set(frames)) > 3
    assert first_frames(make()) != first_frames(make()) != frames


def test_frames_are_the_callers_own_and_render_shows_what_the_agent_sees():
    env = make(render_mode="rgb_array")
    obs, _ = env.reset(seed=0)
    for action in (0, 1, 4):
        before, picture = obs.copy(), env.render()
        np.testing.assert_array_equal(picture, obs)
        picture[:] = 0
        obs[:] = 1
        np.testing.assert_array_equal(env.render(), before)
        obs, *_ = env.step(action)
    assert make().unwrapped.render() is None


def test_wrappers_of_gymnasium_record_frames():
    env = gymnasium.wrappers.RenderCollection(make(render_mode="rgb_array"))
    env.reset(seed=0)
    for action in (0, 1, 4):
        obs, *_ = env.step(action)
    frames = env.render()
    assert len(frames) == 4
    np.testing.assert_array_equal(frames[-1], obs)


def test_record_video(tmp_path):
    pytest.importorskip("moviepy")
    env = make(render_mode="rgb_array")
    env = gymnasium.wrappers.RecordVideo(env, str(tmp_path), episode_trigger=lambda episode: True)
    env.reset(seed=0)
    for _ in range(LIMIT):
        env.step(4)
    env.close()
    assert list(tmp_path.glob("*.mp4"))


def test_the_limit_of_gymnasium_shortens_episodes():
    env, envs = gymnasium.make(ID, max_episode_steps=3), gymnasium.make_vec(ID, num_envs=2, max_episode_steps=3)
    env.reset(seed=0)
    envs.reset(seed=0)
    assert [env.step(4)[3] for _ in range(3)] == [False, False, True]
    assert [envs.step(np.array([4, 4]))[3].tolist() for _ in range(3)] == [[False] * 2, [False] * 2, [True] * 2]


# --------------------------------------------------------------------------------------------------------------- vector


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_a_vector_does_what_gymnasiums_own_does(mode):
    """Observations, rewards, ends and infos are those of a SyncVectorEnv of single environments, to the bit."""
    envs = make_vec(autoreset_mode=mode)
    theirs = SyncVectorEnv([make] * NUM_ENVS, autoreset_mode=mode)
    assert envs.metadata == theirs.metadata and envs.metadata["autoreset_mode"] is mode
    assert envs.observation_space == theirs.observation_space and envs.action_space == theirs.action_space
    outputs, expected = played(envs), played(theirs)
    steps = [output for output in outputs if len(output) == 5]
    ends = [sum(step[i].sum() for step in steps) for i in (2, 3)]
    assert min(ends) > 3, "hardly an end of each kind"
    for ours, others in zip(outputs, expected, strict=True):
        assert_same(ours, others)


def test_final_frames_are_drawn_only_where_an_episode_ended(monkeypatch):
    drawn = []
    draw = gymnasium_envs._draw
    monkeypatch.setattr(gymnasium_envs, "_draw", lambda *arguments: drawn.append(1) or draw(*arguments))
    for mode in AutoresetMode:
        drawn.clear()
        outputs = played(make_vec(autoreset_mode=mode), steps=30)
        ended = sum(len(step) == 5 and bool((step[2] | step[3]).any()) for step in outputs)
        assert ended and len(drawn) == (ended if mode is AutoresetMode.SAME_STEP else 0)


def test_more_ends_than_are_drawn_at_once():
    envs = gymnasium.make_vec(ID, num_envs=11, max_episode_steps=1, autoreset_mode="SameStep")
    shown, _ = envs.reset(seed=0)
    _, _, terminated, truncated, info = envs.step(np.full(11, 4))
    assert (terminated | truncated).all() and info["_final_obs"].all()
    final = np.stack(info["final_obs"])
    assert len({frame.tobytes() for frame in final}) == 11
    np.testing.assert_array_equal(final, shown)  # a wrong claim leaves the field as it was


def test_one_program_steps_resets_and_serves_all_vectors_of_a_kind():
    played(make_vec(), steps=3)
    before = gymnasium_envs._advance._cache_size()
    envs = make_vec()
    played(envs, steps=30)
    envs.reset(options={"reset_mask": np.arange(NUM_ENVS) == 2})
    played(make_vec(autoreset_mode="Disabled"), steps=30)
    assert gymnasium_envs._advance._cache_size() == before


def test_seeds_of_a_vector():
    envs = make_vec()
    frames, _ = envs.reset(seed=5)
    listed, _ = envs.reset(seed=[5, 6, 7, 8, 9])
    np.testing.assert_array_equal(frames, listed)
    np.testing.assert_array_equal(make().reset(seed=7)[0], frames[2])
    again, _ = envs.reset(seed=[None, None, 7, None, None])
    assert [(one == other).all() for one, other in zip(frames, again, strict=True)].count(True) == 1
    assert len({frame.tobytes() for frame in make_vec().reset()[0]}) == NUM_ENVS
    with pytest.raises(ValueError, match="2 seeds for 5"):
        envs.reset(seed=[1, 2])


def test_a_vector_refuses_what_it_cannot_do():
    envs = make_vec(autoreset_mode="Disabled")
    with pytest.raises(ResetNeeded):
        envs.step(np.zeros(NUM_ENVS, int))
    envs.reset(seed=0)
    for actions in (3, np.zeros(4, int), np.zeros(NUM_ENVS), np.zeros((NUM_ENVS, 1), int)):
        with pytest.raises(ValueError, match=r"5 whole numbers of shape \(5,\)"):
            envs.step(actions)
    for mask in (np.ones(4, bool), np.zeros(NUM_ENVS, bool), np.ones(NUM_ENVS), [True] * NUM_ENVS):
        with pytest.raises(ValueError, match="reset_mask"):
            envs.reset(options={"reset_mask": mask})
    with pytest.raises(ValueError, match="unknown option 'mask'"):
        envs.reset(options={"mask": None})
    for _ in range(LIMIT):
        envs.step(np.full(NUM_ENVS, 4))
    with pytest.raises(ResetNeeded, match="has ended"):
        envs.step(np.full(NUM_ENVS, 4))


def test_what_a_vector_returns_is_the_callers_own():
    envs = make_vec(render_mode="rgb_array")
    obs, _ = envs.reset(seed=0)
    before = obs.copy()
    obs[:] = 0
    np.testing.assert_array_equal(np.stack(envs.render()), before)
    outputs = envs.step(np.full(NUM_ENVS, 4))
    kept = [np.copy(output) for output in outputs[:4]]
    envs.step(np.full(NUM_ENVS, 0))
    for output, copy in zip(outputs, kept, strict=False):
        assert output.flags.writeable
        np.testing.assert_array_equal(output, copy)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_statistics_of_gymnasium_count_the_episodes(mode):
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(make_vec(autoreset_mode=mode))
    lengths = [length for step in played(envs)[1:] for length in step[4].get("episode", {"l": []})["l"] if length]
    assert len(lengths) > 10 and max(lengths) == LIMIT


def test_environments_of_gymnasium_can_be_pickled():
    for env, action in ((make(), 3), (make_vec(), np.full(NUM_ENVS, 3))):
        env.reset(seed=2)
        other = pickle.loads(pickle.dumps(env))
        assert_same(env.step(action)[0], other.step(action)[0])


def test_another_kind_of_key_as_jaxs_default_changes_nothing():
    frames, _ = make_vec().reset(seed=5)
    with jax.default_prng_impl("rbg"):
        np.testing.assert_array_equal(make_vec().reset(seed=5)[0], frames)


def test_a_registered_game_is_known_to_gymnasium():
    env_class = type("Field", (popgym_arcade.environments.NavigatorEasy,), {})
    with pytest.raises(ValueError, match="Gymnasium"):
        popgym_arcade.register("a field", env_class)
    assert "a field" not in popgym_arcade.REGISTERED_ENVIRONMENTS


def test_a_missing_stable_baselines3_is_one_line(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="stable_baselines3 is not installed: pip install stable-baselines3"):
        sb3.main(sb3.Args())
