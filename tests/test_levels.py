"""Levels: first states that can be restricted and told apart, in the games, in training and in evaluation."""

import csv
import dataclasses
import functools
import hashlib
import json
from pathlib import Path

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import chances
from harness import EASY_USUALLY, IDS
from scripts import script, small
from untrained_agents import untrained

import evaluate
import popgym_arcade
from benchmark import levels
from popgym_arcade.analysis.agents import load_agent
from popgym_arcade.analysis.tables import read_csv
from popgym_arcade.baselines.errors import UserError

COUNT = 64
LEVELS = Path(__file__).parent / "reference" / "levels.json"
ALL_STARTS = {"Breakout": 2}  # families with fewer first states than the tests draw


def prints(states):
    """A line of bytes for each state, without its time."""
    leaves = [np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(states.replace(time=()))]
    return [b"".join(leaf[i].tobytes() for leaf in leaves) for i in range(len(leaves[0]))]


@functools.cache
def reset_of(env_id):
    env, params = gymnax.make(env_id)
    return jax.jit(jax.vmap(lambda key, params: env.reset_env(key, params)[1], (0, None))), params


def starts(env_id, seed=0, **levels):
    """The first states of COUNT episodes."""
    reset, params = reset_of(env_id)
    return reset(jax.random.split(jax.random.key(seed), COUNT), params.replace(**levels))


@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_as_many_first_states_as_levels(env_id):
    possible = ALL_STARTS.get(env_id.removesuffix("Easy").removesuffix("Medium").removesuffix("Hard"), COUNT)
    three = set(prints(starts(env_id, num_levels=3, start_level=5)))
    assert len(three) == min(3, possible)
    alone = [set(prints(starts(env_id, num_levels=1, start_level=level))) for level in (5, 6, 7, 8)]
    assert all(len(level) == 1 for level in alone)
    assert set.union(*alone[:3]) == three
    assert possible < 4 or not alone[3] & three
    # another seed draws from the same levels
    assert set(prints(starts(env_id, seed=1, num_levels=3, start_level=5))) == three


@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_without_levels_nothing_has_changed(env_id):
    """Not a bit: the first state is made from the reset's own key."""
    env, params = gymnax.make(env_id)
    assert params.num_levels == 0 and params.start_level == 0
    keys = jax.random.split(jax.random.key(0), COUNT)
    states = jax.jit(jax.vmap(env.reset_state, (0, None)))(keys, params)
    assert prints(states) == prints(starts(env_id))
    assert prints(states) == prints(starts(env_id, start_level=9))


@pytest.mark.parametrize("env_id", EASY_USUALLY)
def test_a_number_names_the_same_level_as_ever(env_id, update_references):
    """tests/reference/levels.json has a digest of levels 0 to 3; results on levels depend on them."""
    states = [prints(starts(env_id, num_levels=1, start_level=level))[0] for level in range(4)]
    found = hashlib.blake2b(b"".join(states), digest_size=8).hexdigest()
    stored = json.loads(LEVELS.read_text()) if LEVELS.exists() else {}
    if update_references:
        LEVELS.write_text(json.dumps(dict(sorted((stored | {env_id: found}).items())), indent=1) + "\n")
        return
    assert found == stored[env_id]


def test_levels_are_drawn_uniformly_and_stay_in_the_auto_reset():
    env, params = gymnax.make("NavigatorEasy")
    params = params.replace(num_levels=10, max_steps_in_episode=1)
    alone = [starts("NavigatorEasy", num_levels=1, start_level=level) for level in range(10)]
    known = [prints(states)[0] for states in alone]
    keys = jax.random.split(jax.random.key(1), 4096)
    first = jax.jit(jax.vmap(env.reset, (0, None)))(keys, params)[1]
    step = jax.jit(jax.vmap(env.step, (0, 0, 0, None)))
    keys = jax.random.split(jax.random.key(2), 4096)
    _, after, _, terminated, truncated, _ = step(keys, first, jnp.zeros(4096, jnp.int32), params)
    assert (terminated | truncated).all()
    for states in (first, after):
        levels = np.array([known.index(state) for state in prints(states)])
        assert chances.choice(levels, 10) > 1e-4
    drawn = [[known.index(state) for state in prints(states)] for states in (first, after)]
    assert chances.table(*map(np.array, drawn), (10, 10)) > 1e-4


def test_another_number_of_levels_is_not_compiled_again():
    env, params = popgym_arcade.make("CartPoleEasy")
    reset = jax.jit(env.reset)
    for num_levels, start_level in ((0, 0), (5, 0), (200, 1000)):
        reset(jax.random.key(0), params.replace(num_levels=num_levels, start_level=start_level))
    assert reset._cache_size() == 1


@pytest.mark.parametrize("make_key", [jax.random.PRNGKey, lambda seed: jax.random.key(seed, impl="rbg")])
def test_keys_of_every_kind(make_key):
    env, params = gymnax.make("MineSweeperEasy")
    params = params.replace(num_levels=2)
    states = jax.lax.map(lambda seed: env.reset_env(make_key(seed), params)[1], jnp.arange(COUNT))
    assert len(set(prints(states))) == 2


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_training_on_some_levels_and_evaluation_on_others(tmp_path):
    """A time limit stands for the levels, because it can be read off an episode's length."""
    flags = {
        "env_params": ("num_levels=3", "max_steps_in_episode=9"),
        "eval_env_params": ("num_levels=0", "max_steps_in_episode=5"),
    }
    args = small("pqn_mlp", run_dir=str(tmp_path), env_id="CartPoleEasy", **flags)
    assert args.in_evaluation().env_params == ("num_levels=0", "max_steps_in_episode=5")
    run = script("pqn_mlp").main(args)
    assert {float(row["length_mean"]) for row in rows_of(run / "eval.csv")} == {5.0}
    for given, length in (((), 5), (("max_steps_in_episode=7",), 7)):
        out = evaluate.main(evaluate.Args(runs=(str(run),), out=str(tmp_path / f"out{length}"), env_params=given))
        assert {float(row["length_mean"]) for row in rows_of(out / "evaluate.csv")} == {length}
    with pytest.raises(UserError, match=r"^--env-params 'levels=3': CartPoleEasy has no .*num_levels"):
        evaluate.main(evaluate.Args(runs=(str(run),), out=str(tmp_path / "bad"), env_params=("levels=3",)))
    with pytest.raises(UserError, match=r"^--eval-env-params 'levels=3'"):
        small("pqn_mlp", eval_env_params=("levels=3",)).checked()
    assert not (tmp_path / "bad").exists()


def test_every_id_has_levels():
    assert all(hasattr(gymnax.make(env_id)[1], "num_levels") for env_id in IDS)


@pytest.fixture(scope="module")
def agents(tmp_path_factory):
    """Runs of one untrained agent on one level and, with two seeds, on all."""
    folder = tmp_path_factory.mktemp("agents")
    few = untrained("pqn_mlp", folder / "few", env_id="CartPoleEasy", env_params=("num_levels=1",))
    return few, untrained("pqn_mlp", folder / "all", env_id="CartPoleEasy", num_seeds=2, seed=7)


def test_the_gap_is_measured_on_the_levels_of_the_training_and_on_unseen_ones(agents, tmp_path, monkeypatch):
    asked = []

    def play(agent, seed):
        asked.append((agent.name, agent.args.env_params, agent.args.eval_episodes, seed))
        value = 0.25 if levels.UNSEEN[0] in agent.args.env_params else 0.5
        returns = np.full((agent.args.num_seeds, 4), value)
        return evaluate.Episodes(agent, "greedy", returns, returns, 1.0)

    monkeypatch.setattr(evaluate, "play", play)
    out = levels.main(levels.Args(runs=tuple(map(str, agents)), out=str(tmp_path / "out"), episodes=4, seed=5))
    few, every = (load_agent(run).name for run in agents)
    assert asked == [
        (few, ("num_levels=1",), 4, 5),
        (few, levels.UNSEEN, 4, 5),
        (every, (), 4, 5),
        (every, levels.UNSEEN, 4, 5),
    ]
    rows = rows_of(out / "levels.csv")
    found = [(row["num_levels"], row["seed"], row["levels"]) for row in rows]
    assert found == [
        *(("1", "0", kind) for kind in levels.KINDS),
        *(("0", seed, kind) for kind in levels.KINDS for seed in ("7", "8")),
    ]
    low, high = levels.reference_of("CartPoleEasy")
    for row in rows:
        assert float(row["normalized"]) == pytest.approx((float(row["return_mean"]) - low) / (high - low), abs=2e-4)
    lines = (out / "levels.md").read_text().splitlines()[2:]
    assert [line.split(" | ")[1:3] for line in lines] == [["1", "1"], ["all", "2"]]
    gap = f"{0.25 / (high - low):.3f}"
    assert lines[0].endswith(f"| {gap} |") and lines[1].endswith(f"| {gap} ({gap} to {gap}) |")
    assert (out / "levels.png").stat().st_size > 1000


def test_levels_that_are_not_unseen_and_ids_without_levels_are_refused(agents, tmp_path):
    agent = load_agent(agents[0])
    late = dataclasses.replace(agent.saved, env_params=("num_levels=10", "start_level=999995"))
    with pytest.raises(UserError, match="trained on levels from 1,000,000 on"):
        levels.num_levels(dataclasses.replace(agent, saved=late))
    run = untrained("pqn_mlp", tmp_path / "runs")
    with pytest.raises(UserError, match="CartPole-v1: only the ids of popgym_arcade have levels"):
        levels.main(levels.Args(runs=(str(run),), out=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


def test_the_table_of_the_page_comes_from_its_file():
    folder = Path(__file__).parent.parent / "docs/figures/levels"
    rows = read_csv(folder / "levels.csv")
    rows = [row | {"num_levels": int(row["num_levels"]), "normalized": float(row["normalized"])} for row in rows]
    assert levels.table(rows) == (folder / "levels.md").read_text()
