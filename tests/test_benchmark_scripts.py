"""benchmark/*.sh: every command that they would run has arguments that its script takes. Nothing is trained."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import tyro
from scripts import ALL, script

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmark"))
WORD, CALL = "\x1f", "\x1e"  # separators that no argument contains
IN_PLACE_OF_PYTHON = """#!/bin/sh
{ for word; do printf '%s\\037' "$word"; done; printf '\\036'; } >> "$CALLS"
"""


@pytest.mark.parametrize("path", sorted((ROOT / "benchmark").glob("*.sh")), ids=lambda path: path.stem)
def test_every_command_is_one_that_its_script_takes(path, tmp_path):
    python, calls = tmp_path / "python", tmp_path / "calls"
    python.write_text(IN_PLACE_OF_PYTHON)
    python.chmod(0o755)
    places = {"PYTHON": python, "CALLS": calls, "RUN_DIR": tmp_path / "runs", "OUT": tmp_path / "out"}
    subprocess.run([path], env=os.environ | {name: str(each) for name, each in places.items()}, check=True, timeout=60)
    found = [call.split(WORD)[:-1] for call in calls.read_text().split(CALL)[:-1]]
    assert found
    for name, *flags in found:
        assert (ROOT / name).is_file()
        stem = Path(name).stem
        if stem in ALL:
            script(stem).parse_args(flags)
        else:
            args = tyro.cli(import_module(stem).Args, args=flags)
            getattr(args, "checked", lambda: None)()
