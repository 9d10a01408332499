"""The code of the pages runs and does what they say; the scripts accept the commands they print."""

import ast
import contextlib
import dataclasses
import functools
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
import types
from importlib import import_module
from pathlib import Path

import gymnasium
import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tyro
from harness import IDS
from PIL import Image
from runs import command, missing_libraries, only, parsed, rows
from scripts import ALL

import popgym_arcade.check
import popgym_arcade.play
from popgym_arcade import registration
from popgym_arcade.baselines.networks.memory import MEMORIES

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmark"))
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md"))]
OWN_TWIN = "docs/make-your-own-twin.md"


def blocks(page, language):
    """The blocks of code of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def run_blocks(page):
    """Runs the blocks of a page one after the other, as in a notebook; returns the names that they leave."""
    names = {}
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), names)
    return names


@pytest.fixture(scope="module")
def own_twin(tmp_path_factory):
    """What the page defines; its id is forgotten afterwards, because other tests go through all ids."""
    folder = tmp_path_factory.mktemp("page")
    with contextlib.chdir(folder):
        names = run_blocks(OWN_TWIN)
    names["picture"] = Image.open(folder / "lamps.png")
    sys.modules["lamps"] = types.ModuleType("lamps")  # what the page saves as lamps.py
    sys.modules["lamps"].Lamps = names["Lamps"]
    yield names
    del sys.modules["lamps"]
    del registration._CONSTRUCTORS["Lamps"], gymnax.registration._registry["Lamps"]
    del gymnasium.registry["popgym_arcade/Lamps-v0"]
    gymnax.registration.registered_envs.remove("Lamps")
    popgym_arcade.REGISTERED_ENVIRONMENTS.remove("Lamps")


def play(env, params, state, actions):
    rewards, ends = [], []
    for action in actions:
        _, state, reward, terminated, truncated, _ = env.step(jax.random.key(0), state, action, params)
        rewards.append(float(reward))
        ends.append((bool(terminated), bool(truncated)))
    return rewards, ends


@pytest.mark.parametrize("lamp", [0, 1])
def test_the_game_of_the_page_pays_for_the_right_side(own_twin, lamp):
    env, params = gymnax.make("Lamps", partial_obs=True)
    _, state = env.reset(jax.random.key(0), params)
    state = state.replace(lamp=jnp.int32(lamp))
    for side, pay in ((2, 1.0 - lamp), (3, float(lamp))):
        rewards, ends = play(env, params, state, [4] * 7 + [side])
        assert rewards == [0.0] * 7 + [pay] and ends == [(False, False)] * 7 + [(True, False)]


def test_gymnasium_knows_the_game_of_the_page(own_twin):
    envs = own_twin["lamps"]
    frames, _ = envs.reset(seed=0)
    rewards = [envs.step(np.full(4, 2))[1] for _ in range(8)]
    left = frames[:, 40, 36].tolist()  # lit lamps are yellow
    assert np.sum(rewards, 0).tolist() == [float(pixel == [255, 220, 0]) for pixel in left]


def test_the_picture_of_the_page_shows_that_the_twins_differ(own_twin):
    full, partial = np.split(np.asarray(own_twin["picture"]), 2, axis=1)
    yellow = [(frame == (255, 220, 0)).all(axis=-1)[:96] for frame in (full, partial)]  # above the row of squares
    assert yellow[0].any() and not yellow[1].any()


@pytest.mark.parametrize("obs_size", [128, 256])
@pytest.mark.parametrize("partial_obs", [False, True])
def test_both_games_of_the_page_draw_the_same(own_twin, obs_size, partial_obs):
    slow, fast = (own_twin[name](partial_obs, obs_size) for name in ("Lamps", "FastLamps"))
    pictures = set()
    for time in range(8):
        for lamp in (0, 1):
            state = own_twin["LampsState"](time=jnp.int32(time), lamp=jnp.int32(lamp))
            one, other = np.asarray(slow.get_obs(state)), np.asarray(fast.get_obs(state))
            np.testing.assert_array_equal(one, other)
            pictures.add(one.tobytes())
    assert len(pictures) == (9 if partial_obs else 16)  # the partial twin shows the lamp at time 0 alone


@pytest.mark.optimized
def test_the_page_shows_what_the_check_says_of_its_game(own_twin, monkeypatch, capsys):
    whole, broken = blocks(OWN_TWIN, "text")
    popgym_arcade.check.main(["lamps:Lamps"])
    assert capsys.readouterr().out == whole

    class Lamps(own_twin["Lamps"]):
        def render(self, state, params=None):
            return super().render(state, params).at[96:].set(0)  # without the row of squares

    monkeypatch.setattr(sys.modules["lamps"], "Lamps", Lamps)
    with pytest.raises(SystemExit) as end:
        popgym_arcade.check.main(["lamps:Lamps"])
    assert end.value.code == 1 and broken in capsys.readouterr().out


def trained_on_the_page(folder, line):
    """The run of pqn_rnn.py on the page's game. The first block, saved as lamps.py, is all it takes."""
    (folder / "lamps.py").write_text(blocks(OWN_TWIN, "python")[0])
    flags = f"--env-id lamps:Lamps --partial-obs --hidden-size 32 --num-steps 16 {line}".split()
    process = command(*flags, script=ROOT / "pqn_rnn.py", cwd=folder)
    _, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    run = only(folder / "runs")
    assert run.name.startswith("lamps.Lamps__pomdp__") and (run / "lamps.py").exists()
    return run


@pytest.mark.slow
def test_a_script_trains_on_the_game_of_the_page(tmp_path):
    sizes = "--num-envs 4 --num-minibatches 2 --update-epochs 1 --memory MLP --total-timesteps 128 --eval-episodes 4"
    run = trained_on_the_page(tmp_path, sizes)
    assert [row["policy"] for row in rows(run)] == ["random", "greedy"]


@pytest.mark.thorough
@pytest.mark.optimized
@pytest.mark.slow
def test_a_script_learns_the_game_of_the_page(tmp_path):
    line = "--learning-rate 1e-3 --total-timesteps 60000 --log-every 5000 --eval-every 5000 --target-return 0.95"
    assert float(rows(trained_on_the_page(tmp_path, line))[-1]["return_mean"]) > 0.9  # 20,000 steps were enough


def test_a_taken_id_and_what_is_no_game_are_refused(own_twin):
    with pytest.raises(ValueError, match="taken"):
        popgym_arcade.register("NavigatorEasy", own_twin["Lamps"])
    with pytest.raises(ValueError, match="subclass of ArcadeEnvironment"):
        popgym_arcade.register("Nothing", object)


@pytest.mark.parametrize("page", [page for page in PAGES if page != OWN_TWIN and blocks(page, "python")])
def test_the_examples_of_a_page_run(page, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    names = run_blocks(page)
    said = capsys.readouterr().out.splitlines()
    check = CHECKS.get(page)
    assert names and (check is None or check(names, said))


def bytes_are_those_of_the_table(names, said):
    """docs/dqn_rnn.md: what its block prints is its table."""
    table = (ROOT / "docs/dqn_rnn.md").read_text().partition("--burn-in 64` |\n|-|-|-|-|\n")[2].partition("\n\n")[0]
    return said == table.splitlines()


def memory_is_that_of_the_table(names, said):
    """docs/interfaces.md: what its block prints stands in its table."""
    table = dict(
        re.findall(r"^\| (`\w+`.*) \| ([\d.]+ GB) \|$", (ROOT / "docs/interfaces.md").read_text(), re.MULTILINE)
    )
    rows = {f"`{name}`".replace(", ", "`, `"): size for name, size in (line.split(": ") for line in said)}
    return rows == table and names["obs"].dtype == np.float32 and 0 <= names["obs"].min() < names["obs"].max() <= 1


CHECKS = {
    "docs/interfaces.md": memory_is_that_of_the_table,
    "docs/dqn_rnn.md": bytes_are_those_of_the_table,
    "docs/memories.md": lambda names, said: said == ["(32, 2, 256) (16,)", "(32, 2, 256)"],
    "docs/faq.md": lambda names, said: names["total"] == float(said[-1]) > 0.5,  # the random policy earns -0.02
    "docs/gap_and_bias.md": lambda names, said: 0.4 < names["coverage"](seeds=2, ids=1, trials=20) <= 1,
}


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_of_the_repository_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text())
    missing = [link for link in links if "://" not in link and not ((ROOT / page).parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_has_at_most_forty_table_rows(page):
    tables = re.findall(r"^\|[-|]+\|\n((?:\|.*\n)*)", page.read_text(), re.MULTILINE)
    assert sum(table.count("\n") for table in tables) <= 40


def test_the_home_page_has_the_lines_of_every_script():
    rows = re.findall(
        r"^\| (\[`\w+\.py`\].*?) \| .* \| ([\d, ]+) \|$", (ROOT / "docs/index.md").read_text(), re.MULTILINE
    )
    told = {}
    for names, lines in rows:
        told |= dict(zip(re.findall(r"`(\w+)\.py`", names), map(int, lines.split(",")), strict=True))
    assert told == {name: (ROOT / f"{name}.py").read_text().count("\n") for name in ALL}


def test_the_page_of_the_games_has_every_family():
    page = (ROOT / "docs/environments.md").read_text()
    sections = set(re.findall(r"^## (\w+)$", page, re.MULTILINE))
    families = {env_id.removesuffix("Easy") for env_id in popgym_arcade.REGISTERED_ENVIRONMENTS if "Easy" in env_id}
    assert families <= sections
    for name in families:
        assert f"![{name}](figures/games/{name}.png)" in page


def test_the_limits_on_the_page_are_those_of_the_games():
    page = (ROOT / "docs/environments.md").read_text()
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        name = section.split("\n")[0]
        if f"{name}Easy" not in popgym_arcade.REGISTERED_ENVIRONMENTS:
            continue
        (line,) = re.findall(r"^\| time limit[^|]*\|(.*)\|$", section, re.MULTILINE)
        limits = [gymnax.make(name + level)[1].max_steps_in_episode for level in ("Easy", "Medium", "Hard")]
        assert [int(cell) for cell in line.split("|")] == limits, name


@pytest.mark.parametrize("name", ["random_policy", "oracle"])
def test_the_page_of_returns_has_the_measured_ones(name):
    table = (ROOT / f"benchmark/results/{name}.md").read_text()
    assert table in (ROOT / "docs/returns.md").read_text()
    for env_id in IDS if name == "random_policy" else ():  # the table of the oracle has the ids below 1
        assert f"| {env_id} | " in table


def test_every_memory_has_its_lines_on_the_pages_of_the_memories():
    costs, formulas = ((ROOT / f"docs/{name}.md").read_text() for name in ("memories", "memory-formulas"))
    for name in MEMORIES:
        assert f"| {name} | " in costs and f"`{name}`" in formulas


def run_as_the_paper(name, settings, family, folder):
    """Arguments of the run that a list of commands begins with the paper's settings."""
    env = {"DRY_RUN": "1", "BUDGET": "paper", "SETTINGS": settings, "ENVS": f"{family}Easy", "RUN_DIR": str(folder)}
    line = ["bash", ROOT / f"benchmark/{name}.sh"]
    said = subprocess.run(line, env=os.environ | env, capture_output=True, text=True, check=True).stdout
    _, script, *flags = shlex.split(said.splitlines()[0])
    assert script == f"{name}.py"
    return parsed(*flags, script=import_module(name))


@pytest.mark.parametrize(
    ("title", "name", "family", "steps"),
    [
        ("PQN", "pqn_rnn", "CartPole", "CartPole, NoisyCartPole, AutoEncode"),
        ("PQN", "pqn_rnn", "BattleShip", "BattleShip, CountRecall"),
        ("PQN", "pqn_rnn", "Navigator", "the other games"),
        ("PPO, where it differs from PQN", "ppo_rnn", "Navigator", ""),
    ],
)
def test_the_page_has_the_papers_settings_as_they_are_run(title, name, family, steps, tmp_path):
    page = (ROOT / "docs/differences.md").read_text()
    table = page.partition(f"| {title} | `stated` | `code` |\n")[2].partition("\n\n")[0].splitlines()[1:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    stated, code = (run_as_the_paper(name, settings, family, tmp_path) for settings in ("stated", "code"))
    seen = 0
    for what, *told in rows:
        flag, about = re.fullmatch(r"`--([\w-]+)`(?:, (.*))?", what).groups()
        found = [getattr(args, flag.replace("-", "_")) for args in (stated, code)]
        if flag == "total-timesteps" and about == steps:
            found = [f"{steps / 1e6:.0f}M" for steps in found]  # they were rounded up to whole updates
        if flag != "total-timesteps" or about == steps:
            assert found == [type(value)(text) for value, text in zip(found, told, strict=True)], what
            seen += 1
    assert seen == len(rows) - 2 * (name == "pqn_rnn")


def defaults_in_tables(page):
    """What the tables of a page say of flags: the column's title, the flag, its value there."""
    for table in re.findall(r"(?:^\|.*\n)+", (ROOT / page).read_text(), re.MULTILINE):
        titles, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines())
        for title, (first, cell) in ((titles[i], (row[0], row[i])) for row in rows for i in range(1, len(titles))):
            # `--flag` alone in the first cell, its values in the others; or `--flag` and its value in one of these
            flags = re.fullmatch(r"`--([\w-]+)`()", first), *re.finditer(r"`--([\w-]+)` (\d[\d.e-]*)", cell)
            for flag in filter(None, flags):
                yield title.strip("`"), flag[1].replace("-", "_"), flag[2] or re.match(r"[^ ,]*(,\d+)*", cell)[0]


def test_the_defaults_in_the_tables_of_differences_are_those_of_the_scripts(tmp_path):
    scripts = [page for page in PAGES if (ROOT / f"{Path(page).stem}.py").exists()]
    of_paper = run_as_the_paper("pqn_rnn", "code", "Navigator", tmp_path)
    seen = set()
    for page in scripts:
        for title, flag, text in defaults_in_tables(page):
            name = page if title == "here" else f"docs/{Path(title).stem}.md"
            if title != "the paper's code" and name not in scripts:
                continue
            args = of_paper if title == "the paper's code" else import_module(Path(name).stem).Args()
            value = dataclasses.asdict(args).get(flag, "")  # "": it has no such flag
            assert value == type(value)(text.replace(",", "")), (page, title, flag)
            seen.add((title, flag))
    assert {("here", "q_lambda"), ("the paper's code", "q_lambda"), ("here", "max_grad_norm")} <= seen
    assert {("dqn_rnn.py", "n_step"), ("dqn_mlp.py", "n_step"), ("dqn_mlp.py", "target_network_frequency")} <= seen


ELSEWHERE = {"StratifiedIndependentBootstrap"}  # rliable's


def names_of(tree):
    """What a piece of Python names: functions, classes, arguments, variables, attributes, imports, columns."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.alias(name=name):
                found.add(name)
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name):
                found.add(name)
            case ast.Constant(value=str(name)):
                found.add(name)
    return found


@functools.cache
def names_of_the_package():
    return set().union(*(names_of(ast.parse(path.read_text())) for path in ROOT.glob("popgym_arcade/**/*.py")))


def details(page):
    found = re.search(
        r"^## Implementation details\n(.*?)(?=^## |\Z)", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
    )
    return " ".join(found[1].split()) if found else ""


@pytest.mark.parametrize("page", [page for page in PAGES if details(page)])
def test_what_the_implementation_details_of_a_page_name_is_in_the_code(page):
    name = r"`[A-Za-z_][\w.]*`"
    told = re.findall(rf"\(({name}(?:(?:, | and | in ){name})*)\)", details(page))
    script = ast.parse((ROOT / f"{Path(page).stem}.py").read_text())
    known = names_of(script) | names_of_the_package()
    parts = {part for text in told for each in re.findall(r"`([\w.]+)`", text) for part in each.split(".")}
    assert told and parts <= known | ELSEWHERE, parts - known
    blocks_of = {node.name: node for node in ast.walk(script) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for text in told:
        for inner, outer in re.findall(r"`(\w+)` in `(\w+)`", text):
            assert inner in names_of(blocks_of[outer]), text


# ------------------------------------------------------------------------------------------------------------- commands


# Bash with nothing to call: what would have been called is noted, one call a line, and so are the settings of a list.
IN_BASH = """
note() { local IFS=$'\x1f'; printf '%s\n' "$*" >> "$CALLS"; }
command_not_found_handle() { note "$@"; }
cd() { :; }
PATH=/nonexistent
set -e
"""
LIST = """#!/bin/bash
IFS=$'\x1f'
line="$0"
for name in BUDGET SEEDS ENVS TWINS SETTINGS MEMORIES LENGTHS OUT RUN_DIR; do
    [ -z "${!name+set}" ] || line="$line$IFS$name=${!name}"
done
printf '%s\n' "$line" >> "$CALLS"
"""
NEEDS_MORE = {"--resume", "--from-run", "--num-devices", "--distributed", "--study"}  # than this machine has
VARIABLES = {"TRAIN_ARGS": "pqn_rnn.py", "SOAK_ARGS": "benchmark/soak.py"}  # of the Makefile: whose flags they are


def calls_of(text, folder):
    """What bash would call, as lists of words."""
    (folder / "benchmark").mkdir(exist_ok=True)
    for path in (ROOT / "benchmark").glob("*.sh"):
        place = folder / "benchmark" / path.name
        place.write_text(LIST)
        place.chmod(0o755)
    noted = folder / "calls"
    noted.write_text("")
    text = re.sub(r"<[^<>\n]+>", "PLACE", text)  # what the reader is to put in
    env = {"CALLS": str(noted)}
    done = subprocess.run(
        ["bash", "-c", IN_BASH + text], cwd=folder, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and not done.stderr, (text, done.stderr)
    return [line.split("\x1f") for line in noted.read_text().splitlines()]


def check_flags(path, flags):
    """The script takes the flags; where they ask for no more than there is here, it accepts their values too."""
    assert (ROOT / path).is_file(), path
    module = import_module(Path(path).stem)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            if "--" in flags:  # tune.py: flags of the script behind it
                return module.read_settings(flags)
            args = tyro.cli(module.Args, args=flags)
    except SystemExit as end:
        assert end.code in (0, None) and flags == ["--help"], said.getvalue()
        return
    if hasattr(args, "checked") and not NEEDS_MORE & set(flags) and not missing_libraries(flags):
        args.checked()


def check_python(words):
    if words[0] != "-c":
        return check_flags(words[0], words[1:])
    check_names(words[1])
    for name in re.findall(r"parse_args\((\w+)\.Args, sys\.argv\[1:\]\)", words[1]):
        check_flags(f"{name}.py", words[2:])


def check_make(words):
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for word in words:
        name, given, flags = word.partition("=")
        if name == "TEST_ARGS":  # pytest's
            assert all((ROOT / path).is_file() for path in re.findall(r"tests/\S+", flags)), word
            continue
        assert name in (VARIABLES if given else targets), word
        if given:
            check_flags(VARIABLES[name], shlex.split(flags))


def check_names(code):
    """What a program takes from the modules that it imports is there."""
    tree, modules = ast.parse(code), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name: import_module(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert all(hasattr(import_module(node.module), alias.name) for alias in node.names), code
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            assert hasattr(modules[node.value.id], node.attr), f"{node.value.id} has no {node.attr}"


def test_a_name_that_is_not_there_is_found():
    with pytest.raises(AssertionError, match="pqn_rnn has no parse_args"):
        check_names("import pqn_rnn; pqn_rnn.main(pqn_rnn.parse_args([]))")


def check_pip(words):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert words[0] == "install"
    for before, word in zip(words, words[1:], strict=False):
        assert before != "-r" or (ROOT / word).is_file()
        assert all(name in extras for names in re.findall(r"^\.\[(.*)\]$", word) for name in names.split(",")), word


def check_list(words):
    """A list of commands is there, and prints them with these settings."""
    path = ROOT / words[0]
    assert os.access(path, os.X_OK)
    if "common.sh" in path.read_text():
        env = os.environ | dict(word.split("=", 1) for word in words[1:]) | {"DRY_RUN": "1"}
        done = subprocess.run([path], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and done.stdout, done.stderr


def check_sbatch(words):
    assert (ROOT / words[0]).is_file()
    check_flags("pqn_rnn.py", words[1:])


def check_play(words):
    pong = types.SimpleNamespace(args=types.SimpleNamespace(env_id="popgym_arcade.environments.pong:PongEasy"))
    with pytest.MonkeyPatch.context() as patch:  # there is no run folder to play against
        patch.setattr(popgym_arcade.play, "_opponent", lambda parser, folder: pong)
        popgym_arcade.play.parse_args(words)


PROGRAMS = {
    "python": check_python,
    "make": check_make,
    "pip": check_pip,
    "sbatch": check_sbatch,
    "popgym-arcade-play": check_play,
    "popgym-arcade-check": popgym_arcade.check.parse_args,
}
OTHERS = ("git", "tensorboard", "wandb", "cp")  # not ours


@pytest.mark.usefixtures("asked_here")
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_are_such_that_can_be_given(page, tmp_path, monkeypatch, request):
    if page == OWN_TWIN:
        request.getfixturevalue("own_twin")  # its id
    monkeypatch.chdir(ROOT)
    inline = re.findall(r"`(python \w[\w/]*\.py [^`]+)`", (ROOT / page).read_text())
    calls = [call for text in blocks(page, "bash") + inline for call in calls_of(text, tmp_path)]
    assert calls or not (blocks(page, "bash") or inline)
    copies = {Path(words[-1]).name: words[0] for program, *words in calls if program == "cp"}
    for program, *words in calls:
        words[:1] = [copies.get(word, word) for word in words[:1]]
        if program.endswith(".sh"):
            check_list([program, *words])
        else:
            assert program in (*PROGRAMS, *OTHERS), program
            PROGRAMS.get(program, lambda words: None)(words)
