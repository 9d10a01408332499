"""evaluate.py: the returns that training reported, both twins, videos, tables."""

import csv
import dataclasses

import numpy as np
import pytest
from PIL import Image
from scripts import script, small, usually
from untrained_agents import agent_in, untrained

import evaluate
from evaluate import Args
from popgym_arcade.baselines.errors import UserError

PIXELS = {"env_id": "SkittlesEasy", "partial_obs": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("name", "seeds"), usually(("pqn_rnn", 2), of=[("pqn_rnn", 2), ("ppo_mlp", 1)]))
def test_reloading_gives_the_return_that_training_reported(folder, tmp_path, name, seeds):
    """At the last checkpoint and at an earlier one; to the last bit."""
    run = script(name).main(small(name, run_dir=str(folder), num_seeds=seeds))
    reported = [row for row in rows_of(run / "eval.csv") if row["policy"] == "greedy"]
    for step in (128, 256):
        out = evaluate.main(Args(runs=(str(run),), out=str(tmp_path / str(step)), step=None if step == 256 else step))
        rows = rows_of(out / "evaluate.csv")
        wanted = [row for row in reported if row["global_step"] == str(step)]
        assert len(rows) == len(wanted) == seeds
        for row, want in zip(rows, wanted, strict=True):
            assert row["run"] == run.name and row["script"] == name
            for column in want.keys() & row.keys() - {"wall_seconds"}:
                assert row[column] == want[column], column
    with pytest.raises(UserError, match="no intact checkpoint of step 100"):
        evaluate.main(Args(runs=(str(run),), step=100))


@pytest.mark.usefixtures("checks_keys")
def test_both_twins_of_the_same_episodes_and_videos(folder, tmp_path, capsys):
    run = untrained("pqn_mlp", folder, **PIXELS)
    args = Args(runs=(str(run),), twin="both", gif=True, mp4=True, side_by_side=True, videos=2, out=str(tmp_path / "o"))
    out = evaluate.main(args)
    rows, episodes = rows_of(out / "evaluate.csv"), rows_of(out / "episodes.csv")
    assert [(row["partial_obs"], row["trained_partial_obs"]) for row in rows] == [("False", "True"), ("True", "True")]
    assert len(episodes) == 6
    for row in rows:
        mine = [episode for episode in episodes if episode["partial_obs"] == row["partial_obs"]]
        returns = np.array([float(episode["return"]) for episode in mine])
        assert float(row["return_mean"]) == returns.mean() and float(row["return_std"]) == returns.std()
        assert float(row["return_low"]) <= returns.mean() <= float(row["return_high"])
        twin = "pomdp" if row["partial_obs"] == "True" else "mdp"
        for i in range(2):
            video = Image.open(out / f"{run.name}__{twin}__{i}.gif")
            assert video.n_frames == int(mine[i]["length"]) + 1 and video.size == (512, 256)
            assert frames_in(out / f"{run.name}__{twin}__{i}.mp4") == (video.n_frames, 512, 256)
    first = [Image.open(out / f"{run.name}__{twin}__0.gif").convert("RGB") for twin in ("mdp", "pomdp")]
    np.testing.assert_array_equal(*map(np.asarray, first))  # the episodes of both twins begin in the same state
    table = capsys.readouterr().out
    assert table.count(run.name) == 2 and "pomdp" in table
    assert len({len(line) for line in table.splitlines() if line.startswith(("run ", run.name))}) == 1  # aligned


def frames_in(path):
    import av

    with av.open(str(path)) as container:
        frames = list(container.decode(video=0))
    return len(frames), frames[0].width, frames[0].height


def test_sampling_and_other_seeds(folder, tmp_path):
    run = untrained("ppo_mlp", folder)
    found = {}
    for name, changes in {"a": {}, "b": {"sample": True}, "c": {"seed": 5}, "d": {"seed": 5}}.items():
        out = evaluate.main(Args(runs=(str(run),), out=str(tmp_path / name), episodes=8, **changes))
        found[name] = [row["return"] for row in rows_of(out / "episodes.csv")]
        assert {row["policy"] for row in rows_of(out / "evaluate.csv")} == {"sample" if name == "b" else "greedy"}
    assert found["c"] == found["d"] and len(found["a"]) == 8
    assert found["a"] != found["b"] and found["a"] != found["c"]


def test_q_networks_explore_with_the_epsilon_at_the_end_of_the_training(folder):
    agent = agent_in(untrained("pqn_mlp", folder))
    assert evaluate.policy_of(agent, True) == 0.05 and evaluate.policy_of(agent, False) == 0.0
    agent = agent_in(untrained("ppo_continuous_action", folder))
    assert evaluate.policy_of(agent, True) == agent.script.SAMPLE != evaluate.policy_of(agent, False)


def test_another_environment_with_the_same_frames(folder, tmp_path):
    run = untrained("pqn_mlp", folder, **PIXELS)
    out = evaluate.main(Args(runs=(str(run),), env_id="SkittlesHard", twin="mdp", out=str(tmp_path / "out")))
    (row,) = rows_of(out / "evaluate.csv")
    assert (row["trained_env_id"], row["env_id"], row["partial_obs"]) == ("SkittlesEasy", "SkittlesHard", "False")


@pytest.mark.thorough
def test_frames_of_256_pixels(folder):
    agent = agent_in(untrained("pqn_mlp", folder, obs_size=256, **PIXELS))
    agent = dataclasses.replace(agent, args=dataclasses.replace(agent.args, eval_episodes=1))
    args = Args(gif=True, side_by_side=True)
    assert evaluate.record_video(args, agent, None)[0].shape[1:] == (256, 512, 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"episodes": 0}, "--episodes 0"),
        ({"videos": -1}, "--videos -1"),
        ({"seed": -1}, "--seed -1"),
        ({"side_by_side": True}, "--side-by-side"),
    ],
)
def test_wrong_arguments_are_refused(changes, words):
    with pytest.raises(UserError, match=words):
        Args(**changes).checked()


def test_videos_that_cannot_be_made_are_refused(folder, tmp_path):
    run = untrained("pqn_mlp", folder)
    with pytest.raises(UserError, match="record environments with pixels only"):
        evaluate.main(Args(runs=(str(run),), gif=True, out=str(tmp_path / "out")))
    run = untrained("pqn_mlp", folder, **PIXELS)
    with pytest.raises(UserError, match="--videos 4: only 3 episodes are played"):
        evaluate.main(Args(runs=(str(run),), gif=True, videos=4, out=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()
