"""Other libraries' environments: on the host, on the device, and in the training scripts."""

import dataclasses
import importlib.util
import re
import shutil
import subprocess
import sys

import counting_world
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from runs import assert_end_alike, called, only, resumed, rows, saved_steps
from scripts import OFF_POLICY, PIXEL, arcade, script, small, usually

from benchmark import throughput
from popgym_arcade.baselines.environment import ParallelEnvs, make_env
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.seats import ParallelSeats
from popgym_arcade.worlds import LIBRARIES, make_world

ENVS, STEPS = 4, 40
HOST = "counting_world:Counting"
DEVICE_IDS = {
    "brax": "brax/inverted_pendulum",
    "craftax": "craftax/Craftax-Classic-Symbolic-v1",
    "jumanji": "jumanji/Snake-v1",
    "navix": "navix/Navix-Empty-5x5-v0",
    "playground": "playground/CartpoleBalance",
    "xminigrid": "xminigrid/MiniGrid-MemoryS8",
}


def is_installed(library):
    return importlib.util.find_spec(LIBRARIES[library][0]) is not None


def needs(*libraries):
    """A mark that skips a test, by name, without these libraries."""
    missing = [library for library in libraries if not is_installed(library)]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)} (make test-worlds)")


def of_libraries(ids):
    """Cases of a test, an id of each library."""
    return [pytest.param(env_id, marks=needs(library), id=env_id) for library, env_id in ids.items()]


def play(env, params, seed=0, steps=STEPS, num_envs=ENVS, act=None):
    """Random play, inside one program: first observations, then what each step gave, [T, E, ...], and its state."""
    envs = ParallelEnvs(env, params)
    space = env.action_space(params)
    act = act or (lambda key: jax.vmap(space.sample)(jax.random.split(key, num_envs)))

    @jax.jit
    def run(key):
        reset_key, steps_key = jax.random.split(key)
        obs, state = envs.reset(reset_key, num_envs)

        def step(state, key):
            action_key, step_key = jax.random.split(key)
            action = act(action_key)
            obs, state, reward, terminated, truncated, info = envs.step(step_key, state, action)
            met = {"obs": obs, "reward": reward, "terminated": terminated, "truncated": truncated, "action": action}
            kept = {name: info[name] for name in ("raw_reward", "over", "final_observation")}
            return state, met | kept

        state, met = jax.lax.scan(step, state, jax.random.split(steps_key, steps))
        return obs, met, state

    return jax.device_get(run(jax.random.key(seed)))


# ----------------------------------------------------------------------------------------------------------- the host


def test_a_pool_is_stepped_once_a_step_inside_a_program():
    env = counting_world.Counting()
    first, met, state = play(env, env.default_params)
    assert first.shape == (ENVS, 3) and (first[:, 1:] == 0).all()
    assert (state.time == STEPS).all() and len(set(state.pool.tolist())) == 1
    length, time, action = np.moveaxis(met["final_observation"], -1, 0)
    assert (action == met["action"]).all()
    assert (met["raw_reward"] == time).all() and (met["reward"] == 1).all()
    before = np.concatenate([first[None], met["obs"][:-1]])
    assert (time == before[..., 1] + 1).all() and (length == before[..., 0]).all()


def test_episodes_end_at_their_end_or_at_the_limit_and_begin_anew():
    env = counting_world.Counting()
    _, met, _ = play(env, env.default_params.replace(max_steps_in_episode=5))
    length, time, _ = np.moveaxis(met["final_observation"], -1, 0)
    np.testing.assert_array_equal(met["over"], (time == length) | (time == 5))
    np.testing.assert_array_equal(met["truncated"], (time == 5) & (length != 5))
    np.testing.assert_array_equal(met["terminated"], (time == length) | (time == 1))  # a life is lost at step 1
    assert met["truncated"].any() and (met["over"] & met["terminated"]).any()
    over = met["over"]
    assert (met["obs"][over][:, 1:] == 0).all() and (met["obs"][~over] == met["final_observation"][~over]).all()


def test_the_same_key_plays_the_same_episodes():
    env = counting_world.Counting()
    one, again, other = (play(env, env.default_params, seed)[1] for seed in (0, 0, 1))
    for name in one:
        np.testing.assert_array_equal(one[name], again[name])
    assert (one["obs"] != other["obs"]).any()


def test_each_reset_in_a_program_has_its_own_pool():
    """Else an evaluation would end the training episodes."""
    env = counting_world.Counting()
    envs = ParallelEnvs(env, env.default_params)

    @jax.jit
    def run(key):
        keys = jax.random.split(key, 4)
        _, training = envs.reset(keys[0], ENVS)
        _, evaluation = envs.reset(keys[1], ENVS)
        return envs.step(keys[2], training, jnp.zeros(ENVS, int))[1], envs.step(
            keys[3], evaluation, jnp.zeros(ENVS, int)
        )[1]

    training, evaluation = run(jax.random.key(0))
    assert (training.pool != evaluation.pool).all() and (training.time == 1).all() and (evaluation.time == 1).all()
    again, _ = run(jax.random.key(1))
    assert (again.pool == training.pool).all()  # pools are reused


def test_a_state_can_be_stepped_only_once():
    env = counting_world.Counting()
    envs = ParallelEnvs(env, env.default_params)
    _, state = envs.reset(jax.random.key(0), ENVS)
    step = jax.jit(envs.step)
    *_, after = step(jax.random.key(1), state, jnp.zeros(ENVS, int))[:2]
    with pytest.raises(Exception, match="is not their latest: step each state once"):
        jax.block_until_ready(step(jax.random.key(2), state, jnp.zeros(ENVS, int)))
    some = jax.tree.map(lambda x: x[:2], after)
    with pytest.raises(Exception, match="step all 4 environments of a pool at once"):
        jax.block_until_ready(step(jax.random.key(3), some, jnp.zeros(2, int)))


def test_a_state_from_before_a_reset_is_refused():
    """Also if as many steps were taken since the reset as before it."""
    env = counting_world.Counting()
    envs = ParallelEnvs(env, env.default_params)
    reset = jax.jit(lambda key: envs.reset(key, ENVS))
    (_, old), (_, new) = reset(jax.random.key(0)), reset(jax.random.key(1))
    step = jax.jit(envs.step)
    with pytest.raises(Exception, match="is not their latest: step each state once"):
        jax.block_until_ready(step(jax.random.key(2), old, jnp.zeros(ENVS, int)))
    jax.block_until_ready(step(jax.random.key(2), new, jnp.zeros(ENVS, int)))


def test_a_single_environment_needs_no_vmap():
    env = counting_world.Counting()
    obs, state = env.reset(jax.random.key(0))
    assert obs.shape == (3,)
    obs, state, reward, *_ = env.step(jax.random.key(1), state, jnp.int32(2))
    assert obs.tolist()[1:] == [1, 2] and reward == 1 and state.time == 1


# ------------------------------------------------------------------------------------------------------- the scripts


def host_args(name, **changes):
    env_id = HOST + {"ppo_continuous_action": "ByForce", "ppo_selfplay": "ForTwo"}.get(name, "")
    own = {"save_buffer": False} if name in OFF_POLICY else {}
    return small(name, **({"env_id": env_id} | own | changes))


@pytest.mark.parametrize(
    "name", usually("pqn_rnn", "ppo_continuous_action", "dqn_mlp", "impala_popart", "ppo_selfplay")
)
def test_scripts_train_on_the_host_and_resume_with_new_episodes(name, tmp_path, capsys):
    folder = script(name).main(host_args(name, run_dir=str(tmp_path)))
    found = [row for row in rows(folder) if row["policy"] == "greedy"]
    assert [int(row["global_step"]) for row in found] == [128, 256]
    # an episode earns 1 + 2 + ... : a lost life does not end it, and rewards are not clipped
    length, most = (float(found[0][name]) for name in ("length_mean", "return_max"))
    assert 2 <= length <= 6 and most > length
    for step in (192, 256):
        shutil.rmtree(folder / "checkpoints" / str(step))
    capsys.readouterr()
    resumed(folder)
    assert "step 128 of 256; new episodes; compiling" in capsys.readouterr().out
    assert [int(row["global_step"]) for row in rows(folder) if row["policy"] == "greedy"] == [128, 256]
    assert saved_steps(folder) == [128, 192, 256]


@pytest.mark.parametrize(
    "changes, line",
    [
        ({"num_seeds": 2}, "where seeds cannot train together: use --num-seeds 1"),
        ({"distributed": True}, "on one device: use --num-devices 1"),
        ({"save_buffer": True}, "and resumes with an empty replay buffer: leave out --save-buffer"),
    ],
)
def test_what_the_host_cannot_do_is_refused(changes, line):
    with pytest.raises(UserError, match=f"--env-id counting_world:Counting runs outside JAX, {line}"):
        host_args("dqn_mlp", **changes)


@pytest.mark.parametrize(
    "env_id, line",
    [
        ("nobody/Pong-v5", r"'nobody' is not a library: use one of atari, atari2p, brax, .*"),
        pytest.param(
            "atari/Pnog-v5", r"atari has no 'Pnog-v5': did you mean atari/Pong-v5 or .*\?", marks=needs("atari")
        ),
        pytest.param(
            "xminigrid/MiniGrid-Memory",
            r"xminigrid has no 'MiniGrid-Memory': did you mean xminigrid/MiniGrid-MemoryS\d+ or .*\?",
            marks=needs("xminigrid"),
        ),
    ],
)
def test_an_unknown_id_is_one_line_with_the_closest_ones(env_id, line):
    done = called("pqn_mlp.py", "--env-id", env_id)
    assert done.returncode == 2 and re.fullmatch(rf"pqn_mlp\.py: error: --env-id '{env_id}': {line}\n", done.stderr)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_missing_library_is_one_line_with_its_extra(library, monkeypatch):
    monkeypatch.setitem(LIBRARIES, library, ("a_package_that_nobody_has", LIBRARIES[library][1]))
    make_world.cache_clear()
    with pytest.raises(ValueError, match=rf"{library} is not installed: pip install 'popgym-arcade\[{library}\]'"):
        make_world(f"{library}/whatever")


def test_the_games_of_this_package_need_nothing_of_it():
    code = """
import sys
import pqn_mlp
args = pqn_mlp.Args(env_id="CartPoleEasy", partial_obs=True).checked()
pqn_mlp.make_train(args)
print([name for name in sys.modules if name.startswith("popgym_arcade.worlds")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "[]\n", done.stderr


# --------------------------------------------------------------------------------------------------------- the device


@pytest.mark.parametrize("env_id", of_libraries(DEVICE_IDS))
def test_an_environment_on_the_device_is_limited_and_reset(env_id):
    env, params = make_env(dataclasses.replace(arcade("pqn_mlp"), env_id=env_id, partial_obs=False))
    limit = 7
    params = params.replace(max_steps_in_episode=limit)
    first, met, state = play(env, params, steps=25)
    space = env.observation_space(params)
    assert first.shape == (ENVS, *space.shape) and met["obs"].dtype == space.dtype == first.dtype
    assert not (met["terminated"] & met["truncated"]).any() and met["truncated"].any()
    over, since = met["terminated"] | met["truncated"], np.zeros(ENVS, int)
    for t in range(25):
        since += 1
        assert (met["truncated"][t] == ((since == limit) & ~met["terminated"][t])).all()
        since = np.where(over[t], 0, since)
    assert (state.time == since).all()
    same = (met["obs"] == met["final_observation"]).reshape(25, ENVS, -1).all(axis=-1)
    assert same[~over].all() and np.isfinite(met["reward"]).all()


@needs("pgx")
def test_board_games_for_two(tmp_path):
    """Connect four by hand, then a run."""
    env = make_world("pgx/connect_four")
    obs, state = env.reset(jax.random.key(0))
    first = int(state.inner.current_player)
    legal = np.asarray(env.legal(state))
    assert obs.shape == (2, *env.observation_space(None).shape) and not obs.any()
    assert legal[first].all() and legal[1 - first].tolist() == [True] + 6 * [False]
    step = jax.jit(env.step)
    for turn in range(7):  # the first player drops four discs into column 2, the second three into column 3
        mover = (first + turn) % 2
        actions = jnp.zeros(2, jnp.int32).at[mover].set(2 if mover == first else 3)
        obs, state, reward, terminated, truncated, info = step(jax.random.key(turn), state, actions)
        seen = info["final_observation"]  # the plane of a player's own discs, then of the other's
        assert seen[mover, ..., 0].sum() == turn // 2 + 1 == seen[1 - mover, ..., 1].sum()
    assert terminated and not truncated and reward[first] == 1 == -reward[1 - first] and state.time == 0
    args = small("ppo_selfplay", env_id="pgx/connect_four", run_dir=str(tmp_path))
    folder = script("ppo_selfplay").main(args)
    assert len(rows(folder)) == 3 and (folder / "elo.csv").exists()


@needs("atari2p")
def test_atari_s_pong_for_two(tmp_path):
    """Seat 1 has the right paddle, seat 0 sees the mirror image, and a point is won by one and lost by the other."""
    env = make_world("atari2p/Pong-v5")
    params = env.default_params.replace(max_steps_in_episode=300)
    envs = ParallelSeats(env, params)
    moves = jnp.tile(jnp.array([2, 3]), ENVS)  # seat 0 up, seat 1 down

    @jax.jit
    def run(key):
        view, state = envs.reset(key, ENVS)

        def step(carry, key):
            view, state, reward, terminated, truncated, info = envs.step(key, carry, moves)
            return state, (view.seen, reward, truncated, info["final_observation"].seen)

        return view.seen, jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 320))[1]

    first, (seen, reward, truncated, final) = jax.device_get(run(jax.random.key(0)))
    np.testing.assert_array_equal(seen[:, 0::2], seen[:, 1::2, :, ::-1])
    paddle = lambda frame: np.flatnonzero(frame[14:77, 73:76, 0].max(axis=1) > 110)
    early, late = seen[2], seen[20]
    assert paddle(late[1]).mean() > paddle(early[1]).mean() > paddle(late[0]).mean()
    assert (truncated[299] & ~truncated[298]).all() and not truncated[:299].any()
    assert (final[299] != seen[299]).any() and (final[298] == seen[298]).all()
    points = reward[:300].reshape(300, ENVS, 2).sum(axis=0)
    assert (points[:, 0] + points[:, 1] <= 0).all() and (points != 0).any()
    limits = ("max_steps_in_episode=40",)
    args = small("ppo_selfplay", env_id="atari2p/Pong-v5", env_params=limits, run_dir=str(tmp_path), capture_video=True)
    folder = script("ppo_selfplay").main(args)
    assert len(rows(folder)) == 3 and (folder / "episode.gif").exists()


@needs("xminigrid")
@pytest.mark.parametrize("name", usually("pqn_rnn", of=PIXEL))
def test_a_run_on_the_device_resumes_within_its_episodes(name, tmp_path):
    args = small(name, env_id=DEVICE_IDS["xminigrid"], num_seeds=2, run_dir=str(tmp_path / "stopped"))
    folder = script(name).main(args)
    unbroken = shutil.copytree(folder, tmp_path / "unbroken")
    for step in saved_steps(folder)[1:]:
        shutil.rmtree(folder / "checkpoints" / str(step))
    resumed(folder)
    assert_end_alike(folder, unbroken)


@needs("xminigrid")
def test_steps_are_those_of_the_library():
    """Played by hand with the library's own functions, which do not reset."""
    import xminigrid

    env = make_world("xminigrid/MiniGrid-MemoryS8")
    theirs, params = xminigrid.make("MiniGrid-MemoryS8")
    step = jax.jit(lambda timestep, action: theirs.step(params, timestep, action))
    key = jax.random.key(3)
    timestep = theirs.reset(params, jax.random.clone(key))
    obs, state = env.reset(key)
    for t in range(60):
        np.testing.assert_array_equal(obs[..., :13].argmax(-1), timestep.observation[..., 0])
        np.testing.assert_array_equal(obs[..., 13:].argmax(-1), timestep.observation[..., 1])
        action = jnp.int32([2, 2, 0, 2, 1, 2][t % 6])
        timestep = step(timestep, action)
        obs, state, reward, terminated, truncated, info = env.step(jax.random.key(t), state, action)
        assert reward == timestep.reward and terminated == (timestep.last() & (timestep.discount == 0))
        if timestep.last():
            break
        assert not truncated


# --------------------------------------------------------------------------------------------------------------- Atari


@needs("atari")
def test_atari_sees_what_the_emulator_shows():
    from ale_py.vector_env import AtariVectorEnv

    env = make_world("atari/Breakout-v5")
    params = env.default_params.replace(frame_stack=4)
    assert env.observation_space(params).shape == (84, 84, 4)
    pool = env.make_pool(2, params)
    theirs = AtariVectorEnv("breakout", 2, autoreset_mode="SameStep", reward_clipping=False, life_loss_info=False)
    seeds = np.array([5, 6])
    np.testing.assert_array_equal(pool.reset(seeds), theirs.reset(seed=seeds)[0].transpose(0, 2, 3, 1))
    rng, lost, over = np.random.default_rng(0), 0, 0
    for _ in range(250):
        action = rng.integers(0, 4, 2)
        found = pool.step(action)
        obs, reward, terminated, truncated, _ = theirs.step(action)
        np.testing.assert_array_equal(found.obs, obs.transpose(0, 2, 3, 1))
        np.testing.assert_array_equal(found.raw_reward, reward)
        np.testing.assert_array_equal(found.over, terminated | truncated)
        assert not (found.over & ~found.terminated & ~found.truncated).any()
        lost, over = lost + found.terminated.sum(), over + found.over.sum()
    assert over >= 2 and lost >= 4 * over  # five lives


@needs("atari")
def test_atari_truncates_at_the_limit_and_resets():
    env = make_world("atari/Pong-v5")
    params = env.default_params.replace(max_steps_in_episode=20)
    first, met, _ = play(env, params, steps=45, num_envs=2)
    assert met["truncated"].sum(axis=0).tolist() == [2, 2] and not met["terminated"].any()
    np.testing.assert_array_equal(met["over"], met["truncated"])
    ends = np.flatnonzero(met["over"][:, 0])
    assert len(set(np.diff(ends))) == 1
    shown, following = met["final_observation"][ends[0], 0], met["obs"][ends[0], 0]
    assert (shown != following).any()


@needs("atari")
def test_atari_s_parameters():
    env, params = make_env(
        dataclasses.replace(
            arcade("pqn_mlp"),
            env_id="atari/Pong-v5",
            partial_obs=False,
            env_params=("full_action_space=True", "frame_stack=2", "clip_reward=False"),
        )
    )
    assert env.action_space(params).n == 18 and env.observation_space(params).shape == (84, 84, 2)
    assert env.action_space(env.default_params).n == 6 and params.clip_reward is False


@needs("atari")
def test_an_episode_of_one_step_is_over_after_one():
    env = make_world("atari/Pong-v5")
    _, met, _ = play(env, env.default_params.replace(max_steps_in_episode=1), steps=6, num_envs=2)
    assert met["over"].all() and met["truncated"].all()


@needs("atari")
@pytest.mark.parametrize(
    "flags, line",
    [
        ("--env-params frame_stack=0", "--env-params frame_stack=0: use 1 or more"),
        ("--env-params repeat_action_probability=2.0", "--env-params repeat_action_probability=2.0: use 1 or less"),
        ("--eval-env-params frame_stack=2", "--eval-env-params change the observations or actions: .*"),
    ],
)
def test_values_that_cannot_be_played_are_one_line(flags, line):
    done = called("ppo_mlp.py", "--env-id", "atari/Pong-v5", *flags.split())
    assert done.returncode == 2 and re.fullmatch(rf"ppo_mlp\.py: error: {line}\n", done.stderr)


@needs("atari")
def test_several_games_are_filmed_under_names_without_a_slash(tmp_path):
    flags = "--num-envs 4 --num-steps 8 --num-minibatches 2 --hidden-size 16 --total-timesteps 32 --eval-episodes 2"
    flags += " --eval-every 0 --eval-env-params max_steps_in_episode=5 --env-params full_action_space=True"
    games = "atari/Pong-v5", "atari/Breakout-v5"
    done = called("impala_popart.py", "--env-ids", *games, *flags.split(), "--capture-video", "--run-dir", tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in only(tmp_path).glob("*.gif")) == [
        "episode_atari.Breakout-v5.gif",
        "episode_atari.Pong-v5.gif",
    ]


@needs("atari")
def test_a_script_learns_from_atari_and_films_it(tmp_path):
    flags = "--num-envs 4 --num-steps 8 --num-minibatches 2 --hidden-size 16 --total-timesteps 64 --eval-episodes 2"
    flags += " --eval-every 0 --eval-env-params max_steps_in_episode=30 --capture-video"
    done = called("ppo_rnn.py", "--env-id", "atari/Pong-v5", *flags.split(), "--run-dir", tmp_path)
    assert done.returncode == 0, done.stderr
    folder = only(tmp_path)
    assert folder.name.startswith("atari.Pong-v5__single__ppo_rnn__MinGRU__0__")
    assert (folder / "episode.gif").stat().st_size > 1000


# ------------------------------------------------------------------------------------------------------------- EnvPool


@needs("envpool")
@pytest.mark.parametrize("env_id", ["envpool/Hopper-v4", "envpool/CartpoleBalance-v1"])
def test_envpool_resets_in_the_step_that_ends_an_episode(env_id):
    env = make_world(env_id)
    params = env.default_params.replace(max_steps_in_episode=30)
    first, met, _ = play(env, params, steps=70)
    again = play(env, params, steps=70)[1]
    np.testing.assert_array_equal(met["obs"], again["obs"])
    assert met["truncated"].any() and not (met["truncated"] & met["terminated"]).any()
    since = np.zeros(ENVS, int)
    for t in range(70):
        since += 1
        assert (met["truncated"][t] == ((since == 30) & ~met["terminated"][t])).all()
        since = np.where(met["over"][t], 0, since)
    same = (met["obs"] == met["final_observation"]).all(axis=-1)
    assert same[~met["over"]].all() and not same[met["over"]].any()


@needs("envpool")
@pytest.mark.parametrize("env_id", ["envpool/CoinrunEasy-v0", "envpool/CliffWalking-v0", "envpool/Breakout-v5"])
def test_a_limit_that_envpool_ignores_holds(env_id):
    env = make_world(env_id)
    assert env.default_params.max_steps_in_episode <= 10**6
    _, met, _ = play(env, env.default_params.replace(max_steps_in_episode=9), steps=30)
    assert met["truncated"].sum(axis=0).min() >= 1 and np.diff(np.flatnonzero(met["over"][:, 0])).max() <= 9


@needs("envpool")
@pytest.mark.parametrize("env_id", ["envpool/TicTacToe-v1", "envpool/Jumanji/BinPack-v2"])
def test_what_no_script_can_play_is_refused_in_one_line(env_id):
    done = called("pqn_mlp.py", "--env-id", env_id)
    assert done.returncode == 2 and re.fullmatch(r"pqn_mlp\.py: error: --env-id .* has .*\n", done.stderr)


@needs("envpool")
def test_procgen_s_levels():
    args = dataclasses.replace(
        arcade("pqn_mlp"), env_id="envpool/CoinrunEasy-v0", partial_obs=False, env_params=("num_levels=2",)
    )
    env, params = make_env(args)
    assert params.num_levels == 2 and env.observation_space(params).shape == (64, 64, 3)
    first, _, _ = play(env, params, steps=1, num_envs=16)
    assert len({frame.tobytes() for frame in first}) == 2


@pytest.mark.parametrize("env_id", of_libraries({"atari": "atari/Pong-v5"} | DEVICE_IDS))
def test_the_speed_under_random_actions_is_measured(env_id):
    args = throughput.Args(env_ids=(env_id,), steps=4, repeats=1).checked()
    row = throughput.measure(env_id, "mdp", 2, args)
    env = make_world(env_id)
    space = env.observation_space(env.default_params)
    assert row.frames_per_second > 0 and row.steps == 4
    assert row.obs_bytes == np.prod(space.shape) * np.dtype(space.dtype).itemsize


@needs("atari")
def test_an_unknown_id_has_no_speed():
    with pytest.raises(UserError, match=r"--env-ids atari/Pnog-v5: .* did you mean atari/Pong-v5 or"):
        throughput.Args(env_ids=("atari/Pnog-v5",)).checked()
