"""What a run leaves behind: its folder, curves, evaluations, pictures.

Every script runs this code, and pqn_mlp.py stands for all of them; test_contract.py looks at the rest.
"""

import dataclasses
import json
import re
import shutil
import types

import jax
import numpy as np
import pytest
from PIL import Image
from runs import command, parsed, restored, rows, scalars
from scripts import arcade, evaluation_program, script, small

import pqn_mlp
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.running import folder as run_folder
from popgym_arcade.baselines.running.evaluation import keys_at_step, make_evaluate, make_keys
from popgym_arcade.baselines.running.files import whole_file, write_csv
from popgym_arcade.baselines.running.pictures import record_episode, save_gif
from popgym_arcade.baselines.running.records import Evaluations

FLAGS = "--env-id CartPole-v1 --num-envs 4 --num-steps 8 --num-minibatches 2 --hidden-size 16 --total-timesteps 256"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a complete small run."""
    return pqn_mlp.main(small("pqn_mlp", run_dir=str(tmp_path_factory.mktemp("runs"))))


def test_the_folder_holds_what_it_promises(run):
    assert re.fullmatch(r"CartPole-v1__single__pqn_mlp__none__0__\d{8}-\d{6}(-\d+)?", run.name)
    about = json.loads((run / "args.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert about["script"] == "pqn_mlp" and about["args"]["hidden_size"] == 16 and about["device"]
    assert {"jax", "popgym-arcade", "tyro", "tensorboard"} <= set(about["versions"])
    assert about["versions"]["jax"] == jax.__version__
    assert (run / "curve.png").stat().st_size > 1000
    assert sorted(int(path.name) for path in (run / "checkpoints").iterdir()) == [128, 192, 256]
    found = [(row["global_step"], row["policy"], row["episodes"], row["env_id"]) for row in rows(run)]
    steps = (("0", "random"), ("128", "greedy"), ("256", "greedy"))
    assert found == [(step, policy, "3", "CartPole-v1") for step, policy in steps]


def test_tensorboard_holds_the_promised_curves(run):
    curves = scalars(run)
    names = "episodic_return episodic_length episodes SPS learning_rate epsilon compile_seconds"
    wanted = {f"charts/{name}" for name in names.split()} | {"eval/episodic_return"}
    assert set(curves) == wanted | {f"losses/{name}" for name in ("td_loss", "q_values", "grad_norm")}
    assert [point.step for point in curves["losses/td_loss"]] == [64, 128, 192, 256]
    assert [point.step for point in curves["eval/episodic_return"]] == [128, 256]


def test_a_loaded_run_gives_the_reported_return(run):
    step, state = restored(run)
    args = small("pqn_mlp")
    keys = keys_at_step(args, make_keys(args)[1], step)
    found = evaluation_program("pqn_mlp", args)(state.params, keys, pqn_mlp.POLICIES["greedy"])
    assert float(rows(run)[-1]["return_mean"]) == np.asarray(found.returns, float).mean()
    assert float(rows(run)[-1]["length_mean"]) == np.asarray(found.lengths, float).mean()


def test_evaluation_counts_first_episodes_only():
    args = small("pqn_mlp", env_params=("max_steps_in_episode=5",), eval_episodes=6)
    _, begin, act = pqn_mlp.make_actor(args)
    params = jax.jit(pqn_mlp.make_train(args)[0])(jax.random.key(0)).params
    found = jax.jit(make_evaluate(args, begin, act))(params, jax.random.key(1), 1.0)
    np.testing.assert_array_equal(found.returns, np.full(6, 5.0))
    np.testing.assert_array_equal(found.lengths, np.full(6, 5))


def test_several_seeds_share_a_folder(tmp_path):
    folder = pqn_mlp.main(small("pqn_mlp", num_seeds=2, seed=5, run_dir=str(tmp_path)))
    assert "__5__" in folder.name
    assert [row["seed"] for row in rows(folder)] == ["5", "6"] * 3
    assert {leaf.shape[0] for leaf in jax.tree.leaves(restored(folder)[1].params)} == {2}
    curves = [scalars(folder / name)["losses/td_loss"] for name in ("", "seed_5", "seed_6")]
    for mean, one, other in zip(*curves, strict=True):
        assert mean.value == pytest.approx((one.value + other.value) / 2, rel=1e-5)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_state_that_cannot_be_made_leaves_no_folder(tmp_path, monkeypatch):
    def out_of_memory(*_):
        raise RuntimeError("RESOURCE_EXHAUSTED")

    monkeypatch.setattr("popgym_arcade.baselines.running.run.jit_init", out_of_memory)
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        pqn_mlp.main(small("pqn_mlp", run_dir=str(tmp_path)))
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_update_that_cannot_be_compiled_leaves_no_new_folder(tmp_path, monkeypatch):
    """A mistake in a changed script, for example. The folder of a run that resumes stays."""
    args = small("pqn_mlp", run_dir=str(tmp_path / "whole"), total_timesteps=64, log_every=32, checkpoint_every=32)
    folder = pqn_mlp.main(args)
    shutil.rmtree(folder / "checkpoints/64")

    def mistaken(*_):
        raise TypeError("a mistake")

    monkeypatch.setattr(pqn_mlp, "q_lambda_returns", mistaken)
    for changes in ({"run_dir": str(tmp_path / "new")}, {"resume": str(folder)}):
        with pytest.raises(TypeError, match="a mistake"):
            pqn_mlp.main(dataclasses.replace(args, **changes))
    assert not list((tmp_path / "new").iterdir()) and (folder / "checkpoints/32").exists()


def test_nothing_is_overwritten_by_a_run_of_the_same_second(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder.time, "strftime", lambda _: "20260101-000000")
    args = small("pqn_mlp", run_dir=str(tmp_path))
    assert run_folder.make_run_folder(args) != run_folder.make_run_folder(args)


def test_a_machine_without_git_trains_as_well(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    assert run_folder.git_commit(tmp_path) is None


def test_the_arguments_of_a_run_are_the_defaults_of_a_new_one(tmp_path):
    args = small("pqn_mlp", run_dir=str(tmp_path), seed=3, gamma=0.9)
    folder = run_folder.make_run_folder(args)
    same = parsed("--from-run", folder)
    assert dataclasses.replace(same, from_run="") == args and same.from_run == str(folder)
    other = parsed("--from-run", folder, "--gamma", "0.5", "--seed", "4")
    assert dataclasses.replace(other, from_run="") == dataclasses.replace(args, gamma=0.5, seed=4)


def test_early_stop_after_two_good_evaluations(tmp_path):
    args = small("pqn_mlp", run_dir=str(tmp_path), total_timesteps=32 * 40, target_return=1.0, eval_every=64)
    steps = [row["global_step"] for row in rows(pqn_mlp.main(args)) if row["policy"] == "greedy"]
    assert steps == ["64", "128"]


def test_checkpoints_to_keep(tmp_path):
    args = small("pqn_mlp", run_dir=str(tmp_path), total_timesteps=32 * 20, save_every=128)
    folder = pqn_mlp.main(args)
    assert sorted(int(path.name) for path in (folder / "checkpoints").iterdir()) == [128, 256, 384, 512, 576, 640]


def test_resuming_with_another_grid_would_remove_checkpoints_to_keep(tmp_path):
    """They lie on the grid of --log-every, which may otherwise change."""
    kept, others = ({"save_every": 128}, {})
    for changes in (kept, others):
        args = small("pqn_mlp", run_dir=str(tmp_path), total_timesteps=32 * 8, **changes)
        flags = ("--resume", run_folder.make_run_folder(args), "--log-every", "96")
        if changes:
            with pytest.raises(UserError, match=f"was started with --log-every {args.log_every}: this cannot change"):
                parsed(*flags)
        else:
            assert parsed(*flags).log_every == 96


def test_a_file_is_whole_or_as_it_was(tmp_path):
    path = tmp_path / "a.csv"
    write_csv(path, ("x",), [{"x": 1}])
    before = path.read_text()
    with pytest.raises(ValueError):
        write_csv(path, ("x",), [{"x": 2}, {"y": 3}])
    assert path.read_text() == before and list(tmp_path.iterdir()) == [path]
    with whole_file(tmp_path / "b.gif") as draft:
        assert draft.suffix == ".gif" and not (tmp_path / "b.gif").exists()
        draft.write_text("frames")
    assert (tmp_path / "b.gif").read_text() == "frames" and not draft.exists()


def test_output_that_is_not_a_terminal_has_plain_lines(tmp_path):
    flags = f"{FLAGS} --log-every 64 --eval-every 128 --eval-episodes 3 --run-dir {tmp_path}"
    out, err = command(*flags.split()).communicate(timeout=300)
    assert "\r" not in out + err and "%|" not in out + err
    lines = [line for line in out.splitlines() if re.match(r"step \d+ +SPS \d+ +return \S+ +\d+ s left", line)]
    assert len(lines) == 4
    for word in ("run folder", "greedy return", "random policy", "tensorboard"):
        assert word in out


# ------------------------------------------------------------------------------------------------------------ videos


@pytest.mark.usefixtures("checks_keys")
def test_capture_video(tmp_path):
    args = arcade("pqn_mlp", capture_video=True, total_timesteps=32, num_seeds=2, run_dir=str(tmp_path))
    folder = pqn_mlp.main(args)
    with Image.open(folder / "episode.gif") as picture:
        assert picture.n_frames >= 8 and picture.size == (512, 256)
    (folder / "episode.gif").rename(folder / "episode.tmp.gif")  # as if stopped while it was written
    assert not Evaluations(folder, args, 32).is_finished(32)
    (folder / "episode.gif").touch()
    assert Evaluations(folder, args, 32).is_finished(32)


def test_every_task_has_its_own_video(tmp_path):
    args = types.SimpleNamespace(task_names=("CartPoleEasy", "my_games:Coin"))
    assert [path.name for path in run_folder.video_paths(args, tmp_path)] == [
        "episode_CartPoleEasy.gif",
        "episode_my_games.Coin.gif",
    ]


@pytest.mark.parametrize(
    ("name", "twin", "width"), [("pqn_mlp", True, 256), pytest.param("ppo_rnn", False, 128, marks=pytest.mark.thorough)]
)
def test_a_video_ends_with_the_last_frame(name, twin, width, tmp_path):
    args = arcade(name, env_params=("max_steps_in_episode=3",), partial_obs=twin)
    _, begin, act = script(name).make_actor(args)
    params = jax.jit(script(name).make_train(args)[0])(jax.random.key(0)).params
    greedy = script(name).POLICIES["greedy"]
    (frames,) = record_episode(args, begin, act, greedy, params, jax.random.key(1))
    assert [frame.shape for frame in frames] == [(128, width, 3)] * 4  # of time 0, 1, 2, 3
    save_gif(frames, tmp_path / "episode.gif")
    with Image.open(tmp_path / "episode.gif") as picture:
        assert picture.n_frames == 4 and picture.size == (2 * width, 256)


def test_tasks_are_recorded_together_each_to_its_end():
    impala = script("impala_popart")
    args = arcade("impala_popart", env_ids=("CartPoleEasy", "BreakoutEasy"), env_params=("max_steps_in_episode=9",))
    _, begin, act = impala.make_actor(args)
    params = jax.jit(impala.make_train(args)[0])(jax.random.key(0)).params
    videos = record_episode(args, begin, act, impala.POLICIES["greedy"], params, jax.random.key(1))
    assert len(videos) == 2 and all(1 < len(frames) <= 10 for frames in videos)
    assert not np.array_equal(videos[0][0], videos[1][0])
