"""A run folder keeps the code that made it and is read by it; environments of your own need no edit of a script."""

import importlib
import json
import re
import shutil
import subprocess
import sys

import jax
import pytest
from runs import FLAGS, ROOT, assert_end_alike, command, only, parsed, restored, resumed, saved_steps
from scripts import small

import pqn_mlp
from popgym_arcade.baselines import scripts as run_scripts
from popgym_arcade.baselines.environment import has_twins, make_env
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.running.folder import make_run_folder
from popgym_arcade.own_classes import class_of

SQUARED = "0.5 * jnp.square(q - target).mean()"
LAMPS = '''
import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments.environment import Environment, EnvParams, EnvState
from gymnax.environments import spaces

from popgym_arcade.environments.arcade import LEFT, ArcadeEnvironment, ArcadeState
from popgym_arcade.environments.screen import blank


class Lamps(ArcadeEnvironment):
    max_steps = PATIENCE

    def reset_state(self, key, params):
        return ArcadeState(time=jnp.int32(0))

    def transition(self, key, state, action, params):
        return state, (action == LEFT) / self.max_steps, jnp.bool_(False)

    def render(self, state, params=None):
        shade = jnp.where(self.shows_all(state), 255, 20 * state.time).astype(jnp.uint8)
        return jnp.zeros((self.obs_size, self.obs_size, 3), jnp.uint8) + shade


class Coin(Environment):
    """Not an arcade game: no twins, no frames."""

    @property
    def default_params(self):
        return EnvParams(max_steps_in_episode=5)

    def step_env(self, key, state, action, params):
        state = EnvState(time=state.time + 1)
        return jnp.ones(2), state, jnp.float32(1), jnp.bool_(False), {}

    def reset_env(self, key, params):
        return jnp.ones(2), EnvState(time=jnp.int32(0))

    def get_obs(self, state, params=None, key=None):
        return jnp.ones(2)

    def action_space(self, params=None):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(0, 1, (2,), jnp.float32)


NOT_ONE = 3
'''


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return pqn_mlp.main(small("pqn_mlp", run_dir=str(tmp_path_factory.mktemp("runs"))))


@pytest.fixture
def ideas(tmp_path):
    """A folder outside the repository with a modified script and a module of environments."""
    folder = tmp_path / "ideas"
    folder.mkdir()
    source = (ROOT / "pqn_mlp.py").read_text()
    assert source.count(SQUARED) == 1
    huber = source.replace(SQUARED, "optax.huber_loss(q, target).mean()").replace("hidden_size: Count", "wide: Count")
    huber = huber.replace("args.hidden_size", "args.wide")
    (folder / "my-idea.py").write_text(huber)
    (folder / "my_games.py").write_text(LAMPS.replace("PATIENCE", "7"))
    return folder


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """The module of environments in the working directory, forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_games.py").write_text(LAMPS.replace("PATIENCE", "7"))
    yield "my_games"
    sys.modules.pop("my_games", None)


# -------------------------------------------------------------------------------------------------------- the copy


def test_a_run_folder_has_the_script_that_made_it(run):
    assert (run / "pqn_mlp.py").read_bytes() == (ROOT / "pqn_mlp.py").read_bytes()
    assert run_scripts.load_script(run) is pqn_mlp  # the contents are the same: no second module


def test_a_changed_copy_is_what_is_executed(run, tmp_path, capsys):
    copied = shutil.copytree(run, tmp_path / "run")
    changed = (
        (copied / "pqn_mlp.py")
        .read_text()
        .replace(f"gamma: UnitInterval = {pqn_mlp.Args.gamma}", "gamma: UnitInterval = 0.5")
    )
    (copied / "pqn_mlp.py").write_text(changed)
    module = run_scripts.load_script(copied)
    assert module is not pqn_mlp and module.Args.gamma == 0.5 and run_scripts.load_script(copied) is module
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"executing {copied / 'pqn_mlp.py'}" in said  # once, not at every load
    assert parsed("--resume", copied).gamma == pqn_mlp.Args.gamma  # the run's own arguments


def test_a_run_without_a_copy_is_read_by_the_script_of_its_name(run, tmp_path):
    """As run folders were before they kept one."""
    old = shutil.copytree(run, tmp_path / "run")
    (old / "pqn_mlp.py").unlink()
    assert run_scripts.load_script(old) is pqn_mlp
    assert restored(old)[0] == 256


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("elephant", "was made by elephant.py and has no copy of it"),
        ("benchmark", "not a training script"),
        ("../../etc/passwd", "is not the name of a script"),
    ],
)
def test_what_is_not_a_training_script_is_refused(name, message, tmp_path):
    (tmp_path / "args.json").write_text(json.dumps({"script": name, "args": {}}))
    with pytest.raises(UserError, match=message):
        run_scripts.load_script(tmp_path)


def test_a_copy_that_cannot_be_imported_is_one_line(run, tmp_path):
    copied = shutil.copytree(run, tmp_path / "run")
    (copied / "pqn_mlp.py").write_text("import elephants\n")
    with pytest.raises(
        UserError, match="cannot be imported.*ModuleNotFoundError: No module named 'elephants'"
    ) as error:
        run_scripts.load_script(copied)
    assert "\n" not in str(error.value)


def test_modules_a_script_imports_from_its_folder_are_copied_and_its_own(tmp_path, monkeypatch):
    """Two runs whose scripts are the same, but not what they import, are each read by their own."""
    for number in (1, 2):
        ideas = tmp_path / f"ideas{number}"
        ideas.mkdir()
        source = (ROOT / "pqn_mlp.py").read_text()
        (ideas / "helped.py").write_text(source.replace("import optax\n", "import optax\n\nfrom cells import NUMBER\n"))
        (ideas / "cells.py").write_text(f"NUMBER = {number}\n")
        script = run_scripts.executed(f"helped_{number}", ideas / "helped.py", ideas)
        args = script.Args(env_id="CartPole-v1", run_dir=str(tmp_path / "runs"), seed=number).checked()
        make_run_folder(args)
        shutil.rmtree(ideas)
    runs = sorted((tmp_path / "runs").iterdir(), key=lambda run: run.name.split("__")[4])
    assert [(run / "cells.py").read_text() for run in runs] == ["NUMBER = 1\n", "NUMBER = 2\n"]
    assert [run_scripts.load_script(run).NUMBER for run in runs] == [1, 2] and "cells" not in sys.modules


def test_packages_in_the_folder_of_a_script_are_copied_and_its_own(tmp_path, monkeypatch):
    """Only the files that are imported; a run is read by them even if the originals have changed or are loaded."""
    source = (ROOT / "pqn_mlp.py").read_text()
    imports = "import optax\n\nfrom own_lib.cells import NUMBER\n"
    (tmp_path / "packaged.py").write_text(source.replace("import optax\n", imports))
    files = {
        "__init__.py": "",
        "cells.py": "from .deep import numbers\nfrom . import unit\nNUMBER = numbers.NUMBER * unit.ONE\n",
        "unit.py": "ONE = 1\n",
        "deep/numbers.py": "from ..unit import ONE\nNUMBER = 6 + ONE\n",
        "unused.py": "",
    }
    for name, text in files.items():
        (tmp_path / "own_lib" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "own_lib" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    script = importlib.import_module("packaged")
    run = make_run_folder(script.Args(env_id="CartPole-v1", run_dir=str(tmp_path / "runs")).checked())
    copied = {str(path.relative_to(run)) for path in run.rglob("*.py")}
    assert copied == {"packaged.py", *(f"own_lib/{name}" for name in files if name != "unused.py")}
    assert run_scripts.load_script(run) is script
    (tmp_path / "own_lib" / "unit.py").write_text("ONE = 2\n")
    (run / "own_lib" / "unit.py").write_text("ONE = 3\n")  # 6 + 3, times 3
    loaded = sys.modules["own_lib.cells"]
    assert loaded.NUMBER == 7 and run_scripts.load_script(run).NUMBER == 27
    assert sys.modules["own_lib.cells"] is loaded
    for name in [name for name in sys.modules if name.partition(".")[0] in ("packaged", "own_lib")]:
        del sys.modules[name]


def test_an_environment_in_a_package_is_copied_and_read_from_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_games").mkdir()
    (tmp_path / "own_games" / "patience.py").write_text("PATIENCE = 7\n")
    (tmp_path / "own_games" / "lamps.py").write_text("from .patience import PATIENCE\n" + LAMPS)
    args = small("pqn_mlp", env_id="own_games.lamps:Lamps", run_dir=str(tmp_path / "runs"))
    run = make_run_folder(args)
    assert (run / "own_games" / "patience.py").is_file()
    run_scripts.load_script(run)
    (run / "own_games" / "patience.py").write_text("PATIENCE = 9\n")
    with pytest.raises(UserError, match="differs from .*lamps.py, which is already loaded"):
        run_scripts.load_script(run)
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_games"]:
        del sys.modules[name]
    run_scripts.load_script(run)
    assert class_of("own_games.lamps:Lamps").max_steps == 9
    del sys.modules["own_games.lamps"]


def test_a_library_that_has_the_environment_is_not_copied(tmp_path):
    module = "popgym_arcade.environments.delayed_recall"
    args = small("pqn_mlp", env_id=f"{module}:DelayedRecall", run_dir=str(tmp_path))
    assert run_scripts.environment_modules(args) == []
    assert [path.name for path in make_run_folder(args).rglob("*.py")] == ["pqn_mlp.py"]


def test_a_run_of_another_script_is_not_resumed(run):
    with pytest.raises(UserError, match="was made by pqn_mlp.py: use that script"):
        parsed("--resume", run, script=sys.modules.get("ppo_mlp") or __import__("ppo_mlp"))


# ------------------------------------------------------------------------------------------------ copy and modify


@pytest.mark.slow
def test_a_modified_copy_outside_the_repository_trains_and_resumes(ideas, tmp_path):
    """Under a name that is not an identifier, with another loss, a renamed flag and an environment of your own."""
    flags = FLAGS.replace("CartPole-v1", "my_games:Coin").replace("--hidden-size", "--wide")
    process = command(*flags.split(), script=ideas / "my-idea.py", cwd=ideas)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    run = only(ideas / "runs")
    assert run.name.startswith("my_games.Coin__single__my-idea__none__0__")
    assert {"my-idea.py", "my_games.py", "args.json", "eval.csv"} <= {path.name for path in run.iterdir()}
    broken = shutil.copytree(run, tmp_path / "broken")
    for step in (192, 256):
        shutil.rmtree(broken / "checkpoints" / str(step))
    shutil.rmtree(ideas / "runs")
    (ideas / "my-idea.py").write_text("raise RuntimeError('edited since')\n")
    process = command("--resume", broken, script=broken / "my-idea.py", cwd=tmp_path)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert saved_steps(broken)[-1] == 256


def test_resuming_with_the_edited_script_executes_the_copy(run, tmp_path):
    """The script on the command line may have changed since, even its flags."""
    edited = tmp_path / "pqn_mlp.py"
    edited.write_text((ROOT / "pqn_mlp.py").read_text().replace("q_lambda", "trace"))
    broken = shutil.copytree(run, tmp_path / "broken")
    for step in (192, 256):
        shutil.rmtree(broken / "checkpoints" / str(step))
    process = command("--resume", broken, script=edited, env=None)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert f"executing {broken / 'pqn_mlp.py'}" in err
    assert_end_alike(run, broken)


def test_a_run_of_scripts_without_an_episode_is_refused_in_one_line(run, tmp_path):
    old = shutil.copytree(run, tmp_path / "old")
    script = (old / "pqn_mlp.py").read_text()
    field = "    episode: Episode  # after this step\n"
    (old / "pqn_mlp.py").write_text(script.replace(field, field + "    episode_return: Any = None\n"))
    with pytest.raises(UserError, match="old was made by an older version of this package"):
        run_scripts.load_script(old)


# -------------------------------------------------------------------------------------------------- MODULE:CLASS


def test_an_environment_of_your_own_has_its_twins(own_module):
    args = small("pqn_mlp", env_id="my_games:Lamps", partial_obs=True)
    full, _ = make_env(small("pqn_mlp", env_id="my_games:Lamps"))
    partial, env_params = make_env(args)
    assert has_twins("my_games:Lamps") and not has_twins("my_games:Coin") and env_params.max_steps_in_episode == 7
    obs, _ = partial.reset(jax.random.key(0), env_params)
    assert obs.shape == (128, 128, 3) and not full.partial_obs and partial.partial_obs
    assert run_scripts.environment_modules(args) == ["my_games"]


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        (
            "my_games:Lump",
            r"no gymnax environment 'Lump'; its environments are Lamps, Coin \(.*my_games.py\)",
        ),
        ("my_games:NOT_ONE", "no gymnax environment 'NOT_ONE'"),
        ("your_games:Lamps", "cannot import your_games: ModuleNotFoundError"),
        ("broken:Lamps", r"cannot import broken: ZeroDivisionError: division by zero \(.*broken.py, line 2\)"),
        ("my_games:Coin --partial-obs", "no partially observable twin"),
    ],
)
def test_what_cannot_be_found_there_is_one_line(env_id, message, own_module, tmp_path):
    (tmp_path / "broken.py").write_text("x = 1\n1 / 0\n")
    with pytest.raises(UserError, match=message) as error:
        parsed("--env-id", *env_id.split())
    assert "\n" not in str(error.value)


def test_what_an_environment_imports_from_its_folder_is_copied_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "patience.py").write_text("PATIENCE = 7\n")
    (tmp_path / "patient_games.py").write_text("from patience import PATIENCE\n" + LAMPS)
    args = small("pqn_mlp", env_id="patient_games:Coin", run_dir=str(tmp_path / "runs"), total_timesteps=64)
    run = pqn_mlp.main(args)
    assert (run / "patience.py").read_text() == "PATIENCE = 7\n"
    run_scripts.load_script(run)
    (tmp_path / "patience.py").write_text("PATIENCE = 9\n")
    with pytest.raises(UserError, match="differs from .*patient_games.py, which is already loaded"):
        run_scripts.load_script(run)


def test_two_files_of_the_same_name_are_not_mixed_up(own_module, tmp_path, monkeypatch):
    monkeypatch.setattr(run_scripts, "environment_modules", lambda args: ["my_games"])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "pqn_mlp.py").write_text("")
    importlib.import_module("my_games").__file__ = str(elsewhere / "pqn_mlp.py")
    with pytest.raises(UserError, match="uses another pqn_mlp.py, rename one of them"):
        make_run_folder(small("pqn_mlp", run_dir=str(tmp_path / "runs")))
    assert not list((tmp_path / "runs").iterdir())


def test_two_versions_of_a_module_in_one_call_are_refused(own_module, tmp_path, monkeypatch):
    args = small("pqn_mlp", env_id="my_games:Coin", run_dir=str(tmp_path / "runs"), total_timesteps=64)
    run = pqn_mlp.main(args)
    assert resumed(run) == run
    (run / "my_games.py").write_text(LAMPS.replace("PATIENCE", "9"))
    with pytest.raises(UserError, match="differs from .*my_games.py, which is already loaded"):
        run_scripts.load_script(run)


# ----------------------------------------------------------------------------------------------------- the package


def test_the_package_loads_no_baselines():
    """Neither does the command that lets a person play."""
    code = "import sys, popgym_arcade, popgym_arcade.play; "
    code += (
        "sys.exit(any(name.startswith(('popgym_arcade.baselines', 'popgym_arcade.analysis')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120).returncode == 0


def test_environments_import_neither_baselines_nor_analysis():
    for path in (ROOT / "popgym_arcade" / "environments").rglob("*.py"):
        assert "baselines" not in path.read_text() and "popgym_arcade.analysis" not in path.read_text()


def test_a_script_without_a_part_is_refused_before_it_trains(tmp_path):
    source = (ROOT / "pqn_mlp.py").read_text()
    (tmp_path / "mine.py").write_text(re.sub(r"\bOutput\b", "Outputs", source))
    line = [sys.executable, "mine.py", "--num-envs", "4"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and not done.stdout and done.stderr.count("\n") == 1
    assert "mine.py is not a training script: it has no Output, see docs/scripts.md" in done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".pyc"] == ["mine.py"]
