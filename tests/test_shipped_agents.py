"""The agents that come with the repository: small, without traces of a machine, and good because they remember."""

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

import evaluate
import saliency
from popgym_arcade.analysis.agents import find_runs, load_agent, one_seed
from popgym_arcade.analysis.intervals import interval
from popgym_arcade.analysis.trajectories import record
from popgym_arcade.baselines.errors import UserError

ROOT = Path(__file__).parents[1]
FOLDERS = sorted((ROOT / "agents").iterdir())

sys.path.insert(0, str(ROOT / "benchmark"))
import ship_agent  # noqa: E402


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_they_are_small_and_reveal_nothing_about_the_machine(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 5e6
    for path in files:
        assert not re.search(rb"/(work|tmp|home|root)/", path.read_bytes()), path
    about = json.loads((folder / "args.json").read_text())
    assert about["args"]["run_dir"] == "runs" and about["git_commit"]


def test_the_default_of_the_analysis_scripts_finds_them():
    assert [path.name for path in find_runs(evaluate.Args().runs)] == [path.name for path in FOLDERS]


def test_the_skittles_agent_plays_as_promised_and_uses_past_frames():
    """0.39 is what the same training gives without a memory (docs/saliency.md)."""
    (folder,) = (path for path in FOLDERS if path.name.startswith("SkittlesEasy__pomdp"))
    agent = load_agent(folder)
    agent = dataclasses.replace(agent, args=dataclasses.replace(agent.args, eval_episodes=64))
    played = evaluate.play(agent, seed=1)
    with (folder / "eval.csv").open() as file:
        (told,) = (float(row["return_mean"]) for row in csv.DictReader(file) if row["policy"] == "greedy")
    low, high = interval(played.returns[0])
    assert low > 0.6 and abs(played.returns.mean() - told) < 0.15 and low < high
    (trajectory,) = record(agent, jax.random.key(0), 1, 12)
    shares = saliency.gradient_saliency(agent, trajectory).shares[-1]
    assert shares[:-1].sum() > 0.15 and shares[-4:].sum() > 0.6


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
        np.testing.assert_array_equal(ship_agent.rounded(one, 8), other)
    with (folder / "eval.csv").open() as file:
        assert [(row["policy"], row["seed"]) for row in csv.DictReader(file)] == [("random", "6"), ("greedy", "6")]
    for index, words in ((1, "CartPole-v1 exists already"), (2, "--seed-index 2")):
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
