"""With 64-bit types enabled and without rank promotion everything keeps its types."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import IDS, facts, only_usually
from scripts import ALL

ROOT = Path(__file__).parents[1]
USUALLY = ("pqn_mlp", "ppo_continuous_action", "dqn_rnn", "impala_popart")
OTHERS = tuple(name for name in ALL if name not in USUALLY)
NOT_MEDIUM = [env_id for env_id in IDS if not env_id.endswith("Medium")]  # see conftest.py


def answers(*words):
    line = [sys.executable, str(ROOT / "tests/wide.py"), *words]
    settings = {"JAX_ENABLE_X64": "1", "JAX_NUMPY_RANK_PROMOTION": "raise"}
    env = os.environ | {"PYTHONPATH": str(ROOT)} | settings
    done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def games(request):
    return answers("games", *(IDS if request.config.getoption("--thorough") else NOT_MEDIUM))


# not env_id, by which conftest.py groups: all ids share one process
@pytest.mark.parametrize("game_id", only_usually(NOT_MEDIUM, IDS))
def test_a_game_keeps_the_types_of_its_state_and_reward(games, game_id):
    family, level = facts(game_id)
    expected = {f".{name}": [list(shape), kind.__name__] for name, (shape, kind) in family.fields(level).items()}
    expected = {name: [shape, kind.removesuffix("_")] for name, (shape, kind) in expected.items()}
    found = games[game_id]
    assert found["first"] == found["last"] == expected
    assert (found["obs"], found["reward"]) == ("uint8", "float32")


@pytest.mark.slow
@pytest.mark.parametrize("names", [USUALLY, pytest.param(OTHERS, marks=pytest.mark.thorough)], ids=" ".join)
def test_every_script_trains_and_keeps_its_types(names):
    found = answers("scripts", *names)
    assert list(found) == list(names)
    for name, types in found.items():
        assert types["before"] == types["after"], name
        assert not [kind for _, kind in types["params"].values() if "64" in kind and kind != "complex64"], name
