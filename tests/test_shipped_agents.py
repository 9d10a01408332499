"""The agents that come with the repository: small, without traces of a machine, and as good as they say."""

import csv
import dataclasses
import json
import re
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from untrained_agents import untrained

import contamination
import evaluate
import recall_density
import saliency
from popgym_arcade.analysis.agents import load_agent, one_seed
from popgym_arcade.analysis.runs import find_runs
from popgym_arcade.analysis.trajectories import record
from popgym_arcade.baselines.errors import UserError

ROOT = Path(__file__).parents[1]
FOLDERS = sorted((ROOT / "agents").iterdir())

sys.path.insert(0, str(ROOT / "benchmark"))
import ship_agent  # noqa: E402


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_they_are_small_and_reveal_nothing_about_the_machine(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1e6
    for path in files:
        assert not re.search(rb"/(work|tmp|home|root)/", path.read_bytes()), path
    about = json.loads((folder / "args.json").read_text())
    assert about["args"]["run_dir"] == "runs" and about["git_commit"]
    assert about["args"]["env_id"] == folder.name


def test_together_they_are_small():
    assert sum(path.stat().st_size for path in (ROOT / "agents").rglob("*") if path.is_file()) < 8e6


def test_the_defaults_of_the_analysis_scripts_find_them():
    assert [path.name for path in find_runs(evaluate.Args().runs)] == [path.name for path in FOLDERS]
    for script in (saliency, contamination, recall_density):
        assert [path.name for path in find_runs(script.Args().runs)] == ["MineSweeperEasy"]


def loaded(folder, episodes):
    agent = load_agent(folder)
    return dataclasses.replace(agent, args=dataclasses.replace(agent.args, eval_episodes=episodes))


def told(folder, policy):
    """The mean return of a policy in an agent's eval.csv."""
    with (folder / "eval.csv").open() as file:
        (mean,) = (float(row["return_mean"]) for row in csv.DictReader(file) if row["policy"] == policy)
    return mean


@pytest.mark.parametrize(
    "folder",
    [pytest.param(x, marks=[] if x.name == "MineSweeperEasy" else [pytest.mark.thorough], id=x.name) for x in FOLDERS],
)
def test_an_agent_plays_as_promised(folder):
    """On 64 episodes that are not those of its eval.csv; three standard errors of both means, and more than random."""
    played = evaluate.play(loaded(folder, 64), seed=1).returns[0]
    error = played.std() * (1 / 64 + 1 / 256) ** 0.5
    assert abs(played.mean() - told(folder, "greedy")) < 3 * error + 0.01
    assert played.mean() > told(folder, "random") + 0.1


def test_the_showcase_decides_by_a_number_that_it_no_longer_sees():
    """The picture of docs/saliency.md: at step 14 it opens a cell because of the 0 it saw one step earlier."""
    agent = load_agent(ROOT / "agents/MineSweeperEasy")
    (trajectory,) = record(agent, jax.random.key(1), 1, 15)
    fire, (x, y) = 4, (56, 56)  # the cell left of the cursor, in pixels, with 10 more on each side
    now, before = (saliency.perturbation_saliency(agent, trajectory, at=14, lag=lag).policy for lag in (0, 1))
    assert trajectory.action[14] == fire
    assert before.max() > 5 * now.max()
    places = np.argwhere(before > before.max() / 2) * 5
    assert ((places >= (y - 12, x - 12)) & (places <= (y + 32, x + 32))).all()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_an_agent_has_its_video_and_its_return_on_the_page(folder):
    page = (ROOT / "docs/agents.md").read_text()
    assert f"(figures/agents/{folder.name}.gif)" in page
    (row,) = (line for line in page.splitlines() if line.startswith(f"| {folder.name} |"))
    assert f"{told(folder, 'greedy'):.3f}" in row


def test_a_shipped_copy_is_loaded_like_a_run_and_reveals_nothing_about_the_machine(tmp_path):
    run = untrained("pqn_mlp", tmp_path / "runs", num_seeds=2, seed=5)
    (run / "eval.csv").write_text("global_step,seed,policy,return_mean\n0,5,random,20.0\n0,6,random,21.0\n")
    shipped = ship_agent.Args(run=str(run), seed_index=1, out=str(tmp_path / "agents"), episodes=2)
    folder = ship_agent.ship(shipped)
    assert folder.name == "CartPole-v1"
    assert {path.name for path in folder.iterdir()} == {"args.json", "pqn_mlp.py", "checkpoints", "eval.csv"}
    for path in folder.rglob("*"):
        assert path.is_dir() or not re.search(rb"/(work|tmp|home|root)/", path.read_bytes()), path
    agent, copy = one_seed(load_agent(run), 1), load_agent(folder)
    assert copy.script is agent.script and copy.step == agent.step and copy.args.seed == 6
    for one, other in zip(*(jax.tree.leaves(x.params) for x in (agent, copy)), strict=True):
        assert other.dtype == one.dtype
        np.testing.assert_array_equal(ship_agent.rounded(one, 8), other)
    with (folder / "eval.csv").open() as file:
        assert [(row["policy"], row["seed"]) for row in csv.DictReader(file)] == [("random", "6"), ("greedy", "6")]
    for index, words in ((1, "CartPole-v1 already exists"), (2, "--seed-index 2")):
        with pytest.raises(UserError, match=words):
            ship_agent.ship(dataclasses.replace(shipped, seed_index=index))


def test_rounding_keeps_what_matters():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 40)).astype(np.float32)
    found = ship_agent.rounded(x, 8)
    step = np.abs(x).max() / 127
    assert found.dtype == np.float32 and len(np.unique(found)) <= 255 and np.abs(found - x).max() <= step
    assert ship_agent.rounded(x, 0) is x and ship_agent.rounded(x[:1], 8) is not None
    np.testing.assert_array_equal(ship_agent.rounded(x[0], 8), x[0])  # few numbers stay as they are
    assert not ship_agent.rounded(np.zeros((50, 40), np.float32), 8).any()
    half = ship_agent.halved(found)
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half.astype(np.float32), found)
    for exact in (x, np.full(3, 1e6, np.float32)):  # too fine or too large for float16
        assert ship_agent.halved(exact) is exact


def test_only_one_run_is_shipped_and_nothing_is_left_of_one_that_fails(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="matches 6 runs: name one of them"):
        ship_agent.ship(ship_agent.Args(run=str(ROOT / "agents/*"), out=str(tmp_path)))
    monkeypatch.setattr(ship_agent, "rounded", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ship_agent.ship(ship_agent.Args(run=str(ROOT / "agents/SkittlesEasy"), out=str(tmp_path)))
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="--bits 1: use 2 or more"):
        ship_agent.ship(ship_agent.Args(run=str(ROOT / "agents/SkittlesEasy"), out=str(tmp_path), bits=1))
