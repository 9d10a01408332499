"""What every analysis script promises, tested once: its structure, what it refuses, how it loads and plays agents.

The parts of popgym_arcade/analysis are tested here with evaluate.py, which is the cheapest. What is different in each
script is tested in the file of its name.
"""

import ast
import csv
import dataclasses
import importlib
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from rliable import library, metrics
from runs import called
from scripts import ALL, CADENCES, ROLLOUTS, SIZES, fresh_params, usually
from test_run_scripts import LAMPS, SQUARED
from untrained_agents import ANALYSIS, PLAYERS, STEP, agent_in, untrained

import evaluate
import recall_density
from popgym_arcade.analysis import intervals
from popgym_arcade.analysis.agents import (
    first_params,
    load_agent,
    load_agents,
    one_seed,
    params_at,
)
from popgym_arcade.analysis.colors import colors_of
from popgym_arcade.analysis.groups import groups_of, title_of, unequal_steps
from popgym_arcade.analysis.interquartile import estimate, iqm, matrices_of
from popgym_arcade.analysis.intervals import interval, ratio_interval
from popgym_arcade.analysis.output import new_folder
from popgym_arcade.analysis.runs import find_runs
from popgym_arcade.analysis.trajectories import observations, record
from popgym_arcade.analysis.twins import in_twins
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.running.checkpoints import save_checkpoint, saved_steps
from popgym_arcade.baselines.running.evaluation import make_keys
from popgym_arcade.baselines.running.folder import make_run_folder
from popgym_arcade.baselines.scripts import executed

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "popgym_arcade" / "analysis"
MODULES = (  # of popgym_arcade.analysis; each imports only those before it
    *("colors", "command_line", "output", "tables", "reference_returns", "intervals", "interquartile"),
    *("runs", "agents", "twins", "networks", "groups", "trajectories", "recall", "matches", "opponent"),
)
MAX_LINES = {
    **{"evaluate": 300, "saliency": 620, "recall_density": 480, "last_frames": 330, "contamination": 600},
    **{"filter_comparison": 450, "gap_and_bias": 520, "tune": 600},
}
PIXELS = {"env_id": "SkittlesEasy", "partial_obs": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return untrained("pqn_mlp", tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory):
    """A run with seeds 5 and 6; see `untrained` for their parameters."""
    return untrained("pqn_mlp", tmp_path_factory.mktemp("two_seeds"), num_seeds=2, seed=5)


def rows_in(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# --------------------------------------------------------------------------------------------------------- structure


def imports_of(path):
    """The names of the modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield node.module


def test_the_package_is_short_modules_that_import_in_one_direction():
    assert {path.stem for path in PACKAGE.glob("*.py")} == {"__init__", *MODULES}
    for path in PACKAGE.glob("*.py"):
        assert path.read_text().count("\n") <= 250, path
        for name in imports_of(path):
            top, *parts = name.split(".")
            assert top not in {script.stem for script in ROOT.glob("*.py")}, f"{path} imports the script {name}"
            if top == "popgym_arcade":
                assert parts[0] in ("analysis", "baselines", "environments"), f"{path} imports {name}"
            if top == "popgym_arcade" and parts[0] == "analysis":
                assert MODULES.index(parts[1]) < MODULES.index(path.stem), f"{path} imports {name}"


def test_a_memory_has_the_same_colour_in_every_picture():
    memories, runs = colors_of(["GRU", "MLP", "MinGRU"]), colors_of(["pqn_mlp+none", "pqn_rnn+GRU", "pqn_rnn+MLP"])
    assert runs["pqn_rnn+GRU"] == memories["GRU"] and runs["pqn_rnn+MLP"] == memories["MLP"]
    assert len({*memories.values(), *runs.values()}) == 4
    without = colors_of(["Pole, pqn_rnn, GRU, mdp", "Pole, pqn_mlp, no memory, mdp"])
    assert [*without.values()] == [memories["GRU"], runs["pqn_mlp+none"]]
    assert colors_of(["Pole, ppo_rnn, GRU, mdp"]) == {"Pole, ppo_rnn, GRU, mdp": memories["GRU"]}
    # groups that a memory does not tell apart
    assert colors_of(["0.1", "0.3"]) == {"0.1": "C0", "0.3": "C1"}
    assert colors_of(["ppo_rnn+GRU", "pqn_rnn+GRU"]) == {"ppo_rnn+GRU": "C0", "pqn_rnn+GRU": "C1"}


def test_nothing_below_imports_the_analysis():
    for path in (ROOT / "popgym_arcade").rglob("*.py"):
        if path.parent != PACKAGE:
            if path.name == "play.py":  # a program, in which a trained agent can be the opponent
                continue
            assert not [name for name in imports_of(path) if name.startswith("popgym_arcade.analysis")], path


def test_no_script_imports_another_script():
    scripts = {path.stem: set(imports_of(path)) for path in ROOT.glob("*.py")}
    assert {*ALL, *MAX_LINES} == set(scripts)
    for name, imported in scripts.items():
        assert not imported & scripts.keys(), name
    for name in ALL:
        assert not [module for module in scripts[name] if module.startswith("popgym_arcade.analysis")], name


@pytest.mark.parametrize("name", MAX_LINES)
def test_a_script_is_short_and_its_parts_come_in_order(name):
    source = (ROOT / f"{name}.py").read_text()
    assert source.count("\n") <= MAX_LINES[name]
    headings = re.findall(r"^# -+ (.*)$", source, re.MULTILINE)
    assert headings[0] == "arguments" and headings[-1] == "main" and len(headings) > 2
    assert f"Run:   python {name}.py" in source and f"Page:  docs/{name}.md" in source


@pytest.mark.parametrize("name", ANALYSIS)
def test_a_script_reads_all_its_flags_and_launches_its_main(name):
    source = (ROOT / f"{name}.py").read_text()
    readers = [source, (PACKAGE / "output.py").read_text()]  # `new_folder` reads --out
    readers += [(PACKAGE / "twins.py").read_text()] if "load_all(args" in source else []
    for field in dataclasses.fields(importlib.import_module(name).Args):
        assert re.search(rf"\b(args|self)\.{field.name}\b|\"{field.name}\"", "".join(readers)), field.name
    assert "with new_folder(args) as out:\n" in source and "args = args.checked()\n" in source
    assert source.endswith('\n\nif __name__ == "__main__":\n    launch(main, Args)\n')


FILES = [*(ROOT / f"{name}.py" for name in ANALYSIS), *PACKAGE.glob("*.py")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nesting_stays_readable(path):
    def depth(node, kinds):
        inside = max((depth(child, kinds) for child in ast.iter_child_nodes(node)), default=0)
        return inside + isinstance(node, kinds)

    for node in ast.parse(path.read_text()).body:
        assert depth(node, (ast.FunctionDef, ast.ClassDef)) <= 3, node.name
        assert depth(node, (ast.For, ast.While, ast.If, ast.With, ast.Try)) <= 3, node.name


# ------------------------------------------------------------------------------------------------- the command line


@pytest.mark.parametrize("name", ANALYSIS)
def test_a_pattern_that_matches_nothing_is_one_line_and_exit_code_2(name, tmp_path):
    done = called(ROOT / f"{name}.py", "--runs", tmp_path / "no*", "--out", tmp_path / "out")
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(rf"{name}\.py: error: --runs .*no\*.*\n", done.stderr)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def idea(tmp_path, monkeypatch):
    """The run of a modified script on its author's own environment. Both files exist only in the run folder."""
    ideas = tmp_path / "ideas"
    ideas.mkdir()
    source = (ROOT / "pqn_mlp.py").read_text().replace(SQUARED, "optax.huber_loss(q, target).mean()")
    source = source.replace("hidden_size: Count", "wide: Count").replace("args.hidden_size", "args.wide")
    (ideas / "my-idea.py").write_text(source)
    (ideas / "lamp_games.py").write_text(LAMPS.replace("PATIENCE", "7"))
    monkeypatch.chdir(ideas)
    module = executed("my_idea", ideas / "my-idea.py", beside=ideas)
    sizes = {name: value for name, value in (SIZES | ROLLOUTS | CADENCES).items() if name != "hidden_size"}
    played = {"env_id": "lamp_games:Lamps", "partial_obs": True, "wide": 16, "run_dir": str(tmp_path / "runs")}
    args = module.Args(**(sizes | played)).checked()
    run = make_run_folder(args)
    save_checkpoint(run, args, STEP, {"params": first_params(args)})
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(ideas)
    yield run
    sys.modules.pop("my_idea"), sys.modules.pop("lamp_games")


def test_a_run_of_a_modified_copy_is_analysed_from_any_folder(idea, tmp_path):
    """The script has a name that is not an identifier, and a flag that the repository's script does not have."""
    assert {"my-idea.py", "lamp_games.py", "args.json", "checkpoints"} == {path.name for path in idea.iterdir()}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    flags = "--runs", f"../runs/{idea.name}", "--twin", "both", "--episodes", 2
    line = [sys.executable, str(ROOT / "evaluate.py"), *map(str, flags), "--out", "out"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(idea.name) == 2 and done.stdout.endswith("written to out\n")
    rows = rows_in(elsewhere / "out" / "evaluate.csv")
    assert [(row["script"], row["env_id"], row["twin"]) for row in rows] == [
        ("my-idea", "lamp_games:Lamps", "mdp"),
        ("my-idea", "lamp_games:Lamps", "pomdp"),
    ]
    assert {row["length_mean"] for row in rows} == {"7.0"}  # what the copied environment says


def test_runs_of_different_versions_of_a_script_are_each_read_by_their_own(run, tmp_path, capsys):
    """The other version negates the network's output, and its run has a negated head: both play the same."""
    changed = shutil.copytree(run, tmp_path / "changed")
    source = (changed / "pqn_mlp.py").read_text()
    assert source.count("q=self.head(x)") == 1
    (changed / "pqn_mlp.py").write_text(source.replace("q=self.head(x)", "q=-self.head(x)"))
    negated = lambda path, x: -x if "head" in jax.tree_util.keystr(path) else x
    params = jax.tree_util.tree_map_with_path(negated, load_agent(run).params)
    capsys.readouterr()
    saved = load_agent(changed).saved
    assert (
        capsys.readouterr().err
        == f"{ROOT}/pqn_mlp.py differs from this run's script: executing {changed / 'pqn_mlp.py'}\n"
    )
    save_checkpoint(changed, saved, 2 * STEP, {"params": params})

    patterns = str(run), str(changed)
    args = evaluate.Args(runs=patterns, seed=0, episodes=8, out=str(tmp_path / "out"))
    rows = rows_in(evaluate.main(args) / "episodes.csv")
    returns = {name: [row["return"] for row in rows if row["run"] == name] for name in (run.name, "changed")}
    assert returns[run.name] == returns["changed"] and len(returns["changed"]) == 8

    one, other = load_agents(patterns)
    misread = evaluate.play(dataclasses.replace(one, params=other.params), seed=0)
    assert misread.returns[0].tolist() != [float(x) for x in returns[run.name][:3]]
    assert one.script is not other.script and len(groups_of([one, other])) == 2


# --------------------------------------------------------------------------------------------- what is not a run


def refused(words, out, **changes):
    """evaluate.py refuses in one line with these words, and leaves nothing behind."""
    with pytest.raises(UserError, match=words) as error:
        evaluate.main(evaluate.Args(out=str(out), **changes))
    assert "\n" not in str(error.value) and not out.exists()


def test_what_is_not_a_run_is_refused(run, tmp_path):
    out = tmp_path / "out"
    (tmp_path / "empty").mkdir()
    refused("no run folder there", out, runs=(str(tmp_path / "empty"),))
    refused("no run folder there", out, runs=(str(run), str(tmp_path / "*.json")))
    refused("name a run folder", out, runs=())
    broken = "not a run folder: it has no readable args.json"
    for i, text in enumerate(("", "[]", "{}", '{"script": 3}', '{"script": "evaluate", "args": {}}')):
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "args.json").write_text(text)
        words = "evaluate.py, which is not a training script" if "evaluate" in text else broken
        refused(words, out, runs=(str(tmp_path / str(i)),))


def test_a_run_that_does_not_fit_its_script_is_refused(run, tmp_path):
    copied, out = Path(shutil.copytree(run, tmp_path / "run")), tmp_path / "out"
    about = json.loads((copied / "args.json").read_text())

    def changed(**changes):
        (copied / "args.json").write_text(json.dumps(about | changes))
        return {"runs": (str(copied),)}

    def with_args(**changes):
        return changed(args=about["args"] | changes)

    refused("made by dqn_cnn.py and has no copy of it", out, **changed(script="dqn_cnn"))
    misfit = r"params\S+ is float32\[.*\] in the checkpoint, float32\[.*\] in the script"
    refused(misfit, out, **with_args(hidden_size=8))
    refused("--wings, which pqn_mlp.py does not have", out, **with_args(wings=2))
    refused("--env-id 'Chess' is unknown", out, **with_args(env_id="Chess"))
    for strange in ({"hidden_size": "abc"}, {"num_envs": None}, {"env_params": [1]}):
        refused("its arguments do not fit pqn_mlp.py: ", out, **with_args(**strange))
    refused("no intact checkpoint of step 3", out, **changed(), step=3)
    shutil.rmtree(copied / "checkpoints")
    refused("no intact checkpoint", out, **changed())


def test_another_environment_has_to_fit(run, tmp_path):
    out = tmp_path / "out"
    refused(r"observations of shape \(6,\), .* reads \(4,\)", out, runs=(str(run),), env_id="Acrobot-v1")
    refused("--env-id 'Chess' is unknown", out, runs=(str(run),), env_id="Chess")
    refused("--twin both: CartPole-v1 has no twins", out, runs=(str(run),), twin="both")
    actions = untrained("pqn_mlp", tmp_path, env_id="Breakout-MinAtar")
    refused("different observations or actions", out, runs=(str(actions),), env_id="Asterix-MinAtar")


@pytest.mark.parametrize("name", PLAYERS)
def test_every_script_that_plays_passes_on_checkpoint_environment_and_twin(name, run):
    module = importlib.import_module(name)
    cases = {"no intact checkpoint of step 3": {"step": 3}, "--twin mdp: CartPole-v1 has no twins": {"twin": "mdp"}}
    for words, changes in (cases | {"observations of shape": {"env_id": "Acrobot-v1"}}).items():
        with pytest.raises(UserError, match=words):
            module.load_all(module.Args(runs=(str(run),), **changes))


# ------------------------------------------------------------------------------------------------- names and seeds


def test_odd_names_of_folders(run, tmp_path, monkeypatch):
    odd = Path(shutil.copytree(run, tmp_path / "home" / "a[1]b"))
    assert find_runs((str(odd),)) == [odd]
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert find_runs(("~/*",)) == [odd]
    agents = load_agents((str(run), str(shutil.copytree(run, tmp_path / run.name))))
    assert [agent.name for agent in agents] == [run.name, f"{run.name}-2"]


def test_patterns_find_each_run_once(run):
    assert find_runs((str(run), str(run.parent / "*"), str(run) + "/")) == [run.resolve()]


def test_one_seed_of_a_run_with_several(two_seeds):
    agent = load_agent(two_seeds)
    assert agent.step == STEP and agent.args.num_seeds == 2
    _, params = fresh_params("pqn_mlp", dataclasses.replace(agent.saved, num_seeds=1))
    for i in range(2):
        alone = one_seed(agent, i)
        assert (alone.args.seed, alone.args.num_seeds) == (5 + i, 1)
        for mine, leaf in zip(jax.tree.leaves(alone.params), jax.tree.leaves(params), strict=True):
            np.testing.assert_array_equal(mine, (i + 1) * leaf)
    assert one_seed(alone, 0) is alone


def test_the_parameters_a_training_began_with_follow_from_its_arguments(two_seeds):
    """Bit for bit, for each seed."""
    agent = load_agent(two_seeds)
    args = dataclasses.replace(agent.saved, num_seeds=1, seed=6)
    state = jax.jit(agent.script.make_train(args)[0])(make_keys(args)[0])
    for found in (first_params(agent.saved), params_at(agent, 0)):
        for mine, leaf in zip(jax.tree.leaves(found), jax.tree.leaves(state.params), strict=True):
            np.testing.assert_array_equal(mine[1], leaf)
    assert params_at(agent, STEP) is agent.params


def test_damaged_checkpoints_are_skipped(run, tmp_path):
    copied = shutil.copytree(run, tmp_path / "run")
    agent = load_agent(copied)
    save_checkpoint(copied, agent.saved, 2 * STEP, {"params": jax.tree.map(lambda x: 2 * x, agent.params)})
    assert saved_steps(copied) == [STEP, 2 * STEP] and load_agent(copied).step == 2 * STEP
    for early, late in zip(*map(jax.tree.leaves, (agent.params, params_at(agent, 2 * STEP))), strict=True):
        np.testing.assert_array_equal(2 * early, late)
    (copied / "checkpoints" / str(2 * STEP) / "sha256.json").unlink()
    assert saved_steps(copied) == [STEP] and load_agent(copied).step == STEP


# ------------------------------------------------------------------------------------------ twins and trajectories


@pytest.mark.parametrize("name", usually("pqn_rnn", of=("pqn_rnn", "ppo_mlp")))
def test_a_trajectory_is_the_agents_own_greedy_episode(folder, name):
    """Frames drawn again from the states are those the agent saw, and its greedy actions on them those it took."""
    agent = agent_in(untrained(name, folder, **PIXELS))
    (trajectory,) = record(agent, jax.random.key(0), 1, 40)
    _, begin, act = agent.script.make_actor(agent.args)
    act, actor = jax.jit(act), begin(jax.random.key(0), 1)
    obs = observations(agent, trajectory)
    assert len(obs) == len(trajectory) <= 40 and (len(trajectory) == 40 or trajectory.over)
    for t in range(len(trajectory)):
        actor, transition, _ = act(agent.params, actor, agent.script.POLICIES["greedy"])
        np.testing.assert_array_equal(transition.seen[0], obs[t])
        assert transition.action[0] == trajectory.action[t] and transition.reward[0] == trajectory.reward[t]
        assert bool(transition.terminated[0] | transition.truncated[0]) == (trajectory.over and t == len(obs) - 1)
        assert trajectory.start[t] == (t == 0)
        read = t > 0 and name == "pqn_rnn"  # the other has no memory
        assert trajectory.prev_action[t] == (trajectory.action[t - 1] if read else 0)
        assert trajectory.prev_reward[t] == 0  # which these networks do not read


def test_a_trajectory_has_the_resets_of_the_memory_and_the_games_own_rewards(folder):
    """In this game, a life is lost at the first step of an episode, which is a termination for the learner."""
    agent = agent_in(untrained("pqn_rnn", folder, env_id="counting_world:Counting"))
    trajectory = max(record(agent, jax.random.key(0), 4), key=len)
    assert trajectory.over and len(trajectory) > 2
    np.testing.assert_array_equal(trajectory.start, np.arange(len(trajectory)) < 2)
    np.testing.assert_array_equal(trajectory.reward, 1 + np.arange(len(trajectory)))


def test_the_other_twin_sees_the_same_states(folder):
    mdp, pomdp = in_twins(load_agent(untrained("pqn_mlp", folder, **PIXELS)), "both")
    (trajectory,) = record(pomdp, jax.random.key(0), 1, 12)
    full, partial = (observations(agent, trajectory) for agent in (mdp, pomdp))
    np.testing.assert_array_equal(full[0], partial[0])
    assert (full != partial).any() and (mdp.twin, pomdp.twin) == ("mdp", "pomdp")


def test_agents_are_analysed_with_the_parameters_of_their_evaluations(folder):
    changes = {"env_params": ("num_levels=5",), "eval_env_params": ("num_levels=0", "start_level=7")}
    agent = load_agent(untrained("pqn_mlp", folder, **PIXELS, **changes))
    for twin in in_twins(agent, "both"):
        assert twin.args.env_params == ("num_levels=0", "start_level=7") and twin.args.eval_env_params == ()
        assert twin.saved.env_params == ("num_levels=5",)


def test_a_title_says_what_is_played_and_by_which_agent(folder, run):
    assert title_of(agent_in(run)) == "CartPole-v1 · pqn_mlp · no memory · seed 0"
    agent = load_agent(untrained("pqn_rnn", folder, **PIXELS))
    without = dataclasses.replace(agent, saved=dataclasses.replace(agent.saved, memory="MLP"))
    assert title_of(without) == "SkittlesEasy · partially observable · pqn_rnn · MLP (no memory) · seed 0"


def test_what_makes_a_group(folder, run):
    """Runs that differ in their seed are one group; other flags make another, and the same agent twice is refused."""
    one = agent_in(run)
    seed = dataclasses.replace(one, args=dataclasses.replace(one.args, seed=1), name="seed")
    wide = dataclasses.replace(one, saved=dataclasses.replace(one.saved, gamma=0.5), name="wide")
    assert groups_of([one, wide, seed]) == {
        "CartPole-v1, pqn_mlp, no memory, single": [0, 2],
        "CartPole-v1, pqn_mlp, no memory, single (wide)": [1],
    }
    assert not unequal_steps([one, wide, seed])
    assert unequal_steps([one, wide, dataclasses.replace(seed, step=one.step + 64)]) == [
        "CartPole-v1, pqn_mlp, no memory, single: these agents were trained for different numbers of steps, "
        f"{one.step} to {one.step + 64}"
    ]
    with pytest.raises(UserError, match="seed 0 of one group appears twice"):
        groups_of([one, seed, dataclasses.replace(one, name="copy")])
    mdp, pomdp = in_twins(load_agent(untrained("pqn_rnn", folder, **PIXELS)), "both")
    assert list(groups_of([mdp, pomdp])) == [
        "SkittlesEasy, pqn_rnn, MinGRU, mdp (trained on SkittlesEasy pomdp)",
        "SkittlesEasy, pqn_rnn, MinGRU, pomdp",
    ]
    assert list(groups_of([pomdp, one, mdp])) == [  # by environment and twin, whatever the order of the runs
        "CartPole-v1, pqn_mlp, no memory, single",
        *groups_of([mdp, pomdp]),
    ]


# -------------------------------------------------------------------------------------------------- output folders


def test_an_existing_folder_is_never_written_to(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(UserError, match="--out .*File exists"):
        evaluate.main(evaluate.Args(runs=(str(run),), out=str(tmp_path / "out")))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]
    with new_folder(evaluate.Args(out=str(tmp_path / "unused"))):
        pass
    assert not (tmp_path / "unused").exists()


def test_default_folders_made_in_the_same_second_differ(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda _: "now")
    for name in ("evaluate-now", "evaluate-now-2", "evaluate-now-3"):
        with new_folder(evaluate.Args()) as out:
            (out / "file").touch()
        assert out == Path("analysis") / name
    with new_folder(recall_density.Args()) as out:
        assert out == Path("analysis/recall_density-now")


# ------------------------------------------------------------------------------------------------------- intervals


def test_intervals_cover_the_mean_in_95_of_100(monkeypatch):
    monkeypatch.setattr(intervals, "RESAMPLES", 1_000)
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        low, high = interval(rng.exponential(2.0, size=60))
        covered += low <= 2.0 <= high
    assert 0.90 <= covered / 300 <= 0.98
    assert np.isnan(interval(np.array([3.0]))).all() and interval(np.full(5, 0.1)) == (0.1, 0.1)


def test_intervals_of_ratios_of_pairs():
    rng = np.random.default_rng(0)
    wholes = rng.uniform(1, 3, 40)
    assert ratio_interval(wholes, wholes) == (1, 1) and ratio_interval(wholes / 2, wholes) == (0.5, 0.5)
    low, high = ratio_interval(wholes / 2 + rng.normal(0, 0.1, 40), wholes)
    assert 0.45 < low < 0.5 < high < 0.55
    assert np.isnan(ratio_interval(wholes[:1], wholes[:1])).all()
    assert np.isnan(ratio_interval(np.ones(4), np.array([-1.0, -1, 1, 2]))).all()  # may be anything


def test_with_equally_many_seeds_the_statistics_are_rliables_own():
    rng = np.random.default_rng(0)
    one, other = rng.normal(1, 1, (6, 3)), rng.normal(0, 1, (8, 3))

    def difference(x, y):
        return np.array([metrics.aggregate_iqm(x) - metrics.aggregate_iqm(y)])

    np.random.seed(1)
    values, bounds = library.get_interval_estimates({"gap": (one, other)}, difference, reps=2000)
    found = estimate(list(one.T), list(other.T), resamples=2000)
    assert found.value == pytest.approx(values["gap"][0])
    np.testing.assert_allclose([found.low, found.high], bounds["gap"][:, 0], atol=0.1)  # other resamples


def test_one_seed_more_or_less_does_not_change_the_weight_of_an_id():
    ids = [np.zeros(2), np.ones(4), np.full(4, 5.0)]
    matrices = matrices_of(ids)
    assert [matrix.shape for matrix in matrices] == [(2, 1), (4, 2)]
    assert iqm(*matrices[:1], matrices[1][:, :1]) == 0.5  # of six scores as they are: 0.75
    assert iqm(*matrices) == pytest.approx((0 + 4 * 1 + 5) / 6)  # of 12, the middle six
    found = estimate([np.array([0.0, 1.0]), np.full(3, 10.0)])
    assert found.value == 5.5  # 0 0 0 1 1 1 and 10 six times, of which the middle six are 1 1 1 10 10 10
    assert (found.low, found.high) == (5.0, 5.5)  # the first id resampled: 0 0, 0 1 or 1 1


def test_the_same_scores_give_the_same_interval_and_leave_numpys_generator_alone():
    scores = [np.random.default_rng(i).normal(size=5) for i in range(2)]
    np.random.seed(3)
    state = np.random.get_state()[1].copy()
    one = estimate(scores, resamples=200)
    np.testing.assert_array_equal(np.random.get_state()[1], state)
    np.random.seed(4)
    assert estimate(scores, resamples=200) == one and one.low < one.value < one.high


def test_intervals_of_differences_cover_the_truth_in_about_95_of_100_trials():
    """Returns around -2, 0, 2 on three ids: symmetric, so that the interquartile mean is 0 and that of the gap known.

    Their spread between ids is not part of the interval: without strata it is so wide that all 100 cover.
    """
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(100):
        mdp, pomdp = ([rng.normal(mean + level, 1, 10) for mean in (-2, 0, 2)] for level in (0.7, 0.0))
        gap = estimate(mdp, pomdp, resamples=150)
        covered += gap.low <= 0.7 <= gap.high
    assert 85 <= covered <= 99
