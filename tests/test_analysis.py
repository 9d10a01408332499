"""What all analysis scripts promise: equal copies, flags that are read, refusals, intervals that cover."""

import ast
import dataclasses
import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripts import fresh_params, script, small
from test_copies import definitions
from untrained_agents import ANALYSIS, PLAYERS, STEP, untrained

import evaluate

ROOT = Path(__file__).parents[1]

# What makes one script another; else, what has the same name has the same text.
OWN = {
    *("Args", "SCRIPT", "COLUMNS", "EPISODE_COLUMNS", "MEASURES"),
    *("load_all", "main", "measure", "write", "table", "rows_of", "episode_rows_of", "row_of"),
    *("film", "draw", "play"),
}


@pytest.mark.parametrize("name", ANALYSIS)
def test_copies_have_not_drifted(name):
    mine = definitions(name)
    for other in ANALYSIS:
        theirs = definitions(other)
        assert not [word for word in mine.keys() & theirs.keys() - OWN if mine[word] != theirs[word]], other


def test_the_scripts_do_share():
    shared = set.intersection(*(set(definitions(name)) for name in PLAYERS)) - OWN
    assert {
        "UserError",
        "Agent",
        "find_runs",
        "load_agent",
        "in_twins",
        "one_seed",
        "twin_name",
        "new_folder",
    } <= shared
    replaying = set.intersection(*(set(definitions(name)) for name in PLAYERS[1:]))
    assert {"Trajectory", "record", "observations", "action_values"} <= replaying - OWN - shared


@pytest.mark.parametrize("name", ANALYSIS)
def test_every_flag_is_read_and_every_part_in_its_place(name):
    source = (ROOT / f"{name}.py").read_text()
    for field in dataclasses.fields(importlib.import_module(name).Args):
        assert re.findall(rf"\b(?:args|self)\.{field.name}\b", source) or f'"{field.name}"' in source, field.name
    headings = re.findall(r"^# -+ (.*)$", source, re.MULTILINE)
    assert headings[0] == "arguments" and headings[-1] == "main" and len(headings) > 2
    assert source.endswith(source_end(ROOT / "evaluate.py")) and f"docs/{name}.md" in source


def source_end(path):
    """The last lines, which turn a UserError into one line and exit code 2."""
    return path.read_text()[path.read_text().index('if __name__ == "__main__":') :]


@pytest.mark.parametrize("name", ANALYSIS)
def test_nesting_stays_readable(name):
    def depth(node, kinds):
        inside = max((depth(child, kinds) for child in ast.iter_child_nodes(node)), default=0)
        return inside + isinstance(node, kinds)

    for node in ast.parse((ROOT / f"{name}.py").read_text()).body:
        assert depth(node, (ast.FunctionDef, ast.ClassDef)) <= 3, node.name
        assert depth(node, (ast.For, ast.While, ast.If, ast.With, ast.Try)) <= 3 or node.name == "new_folder"


@pytest.mark.parametrize("name", ANALYSIS)
def test_a_pattern_that_names_nothing_ends_with_one_line(name, tmp_path):
    command = [sys.executable, ROOT / f"{name}.py", "--runs", str(tmp_path / "no*"), "--out", str(tmp_path / "out")]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(rf"{name}\.py: error: --runs .*no\*.*\n", done.stderr)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return untrained("pqn_mlp", tmp_path_factory.mktemp("runs"))


def refused(name, words, out, **changes):
    """The script refuses with these words, and leaves nothing."""
    module = importlib.import_module(name)
    with pytest.raises(module.UserError, match=words) as error:
        module.main(module.Args(out=str(out), **changes))
    assert "\n" not in str(error.value) and not out.exists()


@pytest.mark.parametrize("name", PLAYERS)
def test_what_is_no_run_is_refused(name, run, tmp_path):
    out = tmp_path / "out"
    (tmp_path / "empty").mkdir()
    refused(name, "no run folder there", out, runs=(str(tmp_path / "empty"),))
    refused(name, "no run folder there", out, runs=(str(run), str(tmp_path / "*.json")))
    refused(name, "name a run folder", out, runs=())
    for i, text in enumerate(("", "[]", "{}", '{"script": 3}', '{"script": "evaluate", "args": {}}')):
        broken = tmp_path / str(i)
        broken.mkdir()
        (broken / "args.json").write_text(text)
        refused(name, "args.json cannot be read|not beside|no training script", out, runs=(str(broken),))


@pytest.mark.parametrize("name", PLAYERS)
def test_a_run_that_does_not_fit_its_script_is_refused(name, run, tmp_path):
    copied, out = Path(shutil.copytree(run, tmp_path / "run")), tmp_path / "out"
    about = json.loads((copied / "args.json").read_text())

    def changed(**changes):
        (copied / "args.json").write_text(json.dumps(about | changes))
        return {"runs": (str(copied),)}

    refused(name, "made by dqn_cnn.py, which is not beside", out, **changed(script="dqn_cnn"))
    refused(
        name, r"params\S+ is float32\[.*\] there, here float32", out, **changed(args=about["args"] | {"hidden_size": 8})
    )
    refused(name, "--wings, which this pqn_mlp.py does not have", out, **changed(args=about["args"] | {"wings": 2}))
    refused(name, "--env-id 'Chess' is unknown", out, **changed(args=about["args"] | {"env_id": "Chess"}))
    for strange in ({"hidden_size": "abc"}, {"num_envs": None}, {"env_params": [1]}):
        refused(name, "do not fit pqn_mlp.py|env-params", out, **changed(args=about["args"] | strange))
    refused(name, "no sound checkpoint of step 3", out, **changed(), step=3)
    shutil.rmtree(copied / "checkpoints")
    refused(name, "no sound checkpoint", out, **changed())


@pytest.mark.parametrize("name", PLAYERS)
def test_another_environment_has_to_fit(name, run, tmp_path):
    out = tmp_path / "out"
    refused(name, r"observations of shape \(6,\), .* reads \(4,\)", out, runs=(str(run),), env_id="Acrobot-v1")
    refused(name, "--env-id 'Chess' is unknown", out, runs=(str(run),), env_id="Chess")
    refused(name, "--twin both: CartPole-v1 has no twins", out, runs=(str(run),), twin="both")


def test_another_number_of_actions_does_not_fit(tmp_path):
    run = untrained("pqn_mlp", tmp_path, env_id="Breakout-MinAtar")
    refused("evaluate", "other observations or actions", tmp_path / "out", runs=(str(run),), env_id="Asterix-MinAtar")


@pytest.mark.parametrize("name", PLAYERS)
def test_an_existing_folder_is_never_written_to(name, run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    module = importlib.import_module(name)
    with pytest.raises(module.UserError, match="--out .*File exists"):
        module.main(module.Args(runs=(str(run),), out=str(tmp_path / "out")))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]
    with module.new_folder(str(tmp_path / "unused")):
        pass
    assert not (tmp_path / "unused").exists()


def test_default_folders_of_the_same_second_differ(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluate.time, "strftime", lambda _: "now")
    for name in ("evaluate-now", "evaluate-now-2", "evaluate-now-3"):
        with evaluate.new_folder("") as folder:
            (folder / "file").touch()
        assert folder == Path("analysis") / name


def test_one_seed_of_a_run_with_several(tmp_path):
    module, args = script("pqn_mlp"), small("pqn_mlp", run_dir=str(tmp_path), num_seeds=2, seed=5)
    folder, (_, params) = module.make_run_folder(args), fresh_params("pqn_mlp", args)

    both = jax.tree.map(lambda x: jnp.stack([x, x + 1]), params)
    module.save_checkpoint(folder, STEP, {"params": both})
    agent = evaluate.load_agent(folder)
    assert agent.step == STEP and agent.args.num_seeds == 2
    for i in range(2):
        alone = evaluate.one_seed(agent, i)
        assert (alone.args.seed, alone.args.num_seeds) == (5 + i, 1)
        for mine, leaf in zip(jax.tree.leaves(alone.params), jax.tree.leaves(params), strict=True):
            np.testing.assert_array_equal(mine, leaf + i)
    assert evaluate.one_seed(alone, 0) is alone


def test_a_valid_run_on_the_command_line(run, tmp_path):
    command = [sys.executable, ROOT / "evaluate.py", "--runs", run.name, "--episodes", "2", "--out", tmp_path / "out"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=run.parent)
    assert done.returncode == 0 and run.name in done.stdout and (tmp_path / "out" / "evaluate.csv").is_file()


def test_odd_names_of_folders(run, tmp_path, monkeypatch):
    odd = Path(shutil.copytree(run, tmp_path / "home" / "a[1]b"))
    assert evaluate.find_runs((str(odd),)) == [odd]
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert evaluate.find_runs(("~/*",)) == [odd]
    agents = evaluate.load_agents((str(run), str(shutil.copytree(run, tmp_path / run.name))))
    assert [agent.name for agent in agents] == [run.name, f"{run.name}-2"]


def test_patterns_name_each_run_once(run):
    assert evaluate.find_runs((str(run), str(run.parent / "*"), str(run) + "/")) == [run.resolve()]


def test_intervals_cover_the_mean_in_95_of_100(monkeypatch):
    monkeypatch.setattr(evaluate, "RESAMPLES", 1_000)
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        low, high = evaluate.interval(rng.exponential(2.0, size=60))
        covered += low <= 2.0 <= high
    assert 0.90 <= covered / 300 <= 0.98
    assert evaluate.interval(np.array([3.0])) == (3, 3) and evaluate.interval(np.full(5, 0.1)) == (0.1, 0.1)
