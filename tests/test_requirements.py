"""`make train` and `make test` install the pinned packages on every Python that the README promises."""

import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parent.parent
OLDEST = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")


def pins(name):
    """The pins of a requirements file that apply on Linux with the oldest Python."""
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    found = [Requirement(line) for line in lines if line.strip() and not line.startswith(("#", "-r"))]
    oldest = {"python_version": OLDEST, "python_full_version": f"{OLDEST}.0", "sys_platform": "linux"}
    return [pin for pin in found if pin.marker is None or pin.marker.evaluate(oldest)]


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-docs.txt", "requirements-dev.txt"])
def test_the_pins_support_the_first_release_of_the_oldest_python(name):
    """Checks those that are installed here; Debian 12, for example, has Python 3.11.2."""
    checked = 0
    for pin in pins(name):
        try:
            about = metadata(pin.name)
        except PackageNotFoundError:
            continue
        if pin.specifier.contains(about["Version"], prereleases=True):
            assert SpecifierSet(about["Requires-Python"] or "").contains(f"{OLDEST}.0"), f"{pin} on Python {OLDEST}.0"
            checked += 1
    assert checked >= len(pins(name)) / 2
