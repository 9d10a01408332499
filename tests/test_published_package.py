"""benchmark/published_package.py: flags, workers and table. The published package itself is not installed."""

import dataclasses
import os
import sys
from pathlib import Path
from statistics import geometric_mean

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmark"))
import published_package  # noqa: E402
from published_package import Args, Row, Worker, measure, published_python, table  # noqa: E402

from popgym_arcade.analysis.tables import read_csv  # noqa: E402
from popgym_arcade.baselines.errors import UserError  # noqa: E402


def row(env_id: str, twin: str, published: float, ours: float) -> Row:
    """A line of the table, with a factor of its own."""
    return Row(env_id, twin, 64, published, ours, ours / published, 17.04, 1.26, 5, "a CPU", 2, "cpu", "0.10.2")


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"env_ids": ("Navigator",)}, "--env-ids 'Navigator' is unknown: use AutoEncodeEasy, "),
        ({"twins": ("full",)}, "--twins 'full' is unknown: use mdp, pomdp"),
        ({"twins": ()}, "--twins : name at least one"),
        (
            {"env_ids": ("TetrisEasy", "TetrisEasy")},
            "--env-ids TetrisEasy TetrisEasy: name at least one, and each once",
        ),
        ({"seconds": 0.0}, "--seconds 0.0"),
    ],
)
def test_bad_flags_are_reported_before_anything_is_installed(flags, message):
    with pytest.raises(UserError, match="^" + message):
        Args(**flags).checked()


def test_a_worker_plays_the_package_of_its_interpreter():
    with Worker(sys.executable, ROOT, "SkittlesEasy", "pomdp", num_envs=3) as worker:
        assert worker.first["file"] == str(ROOT / "popgym_arcade/__init__.py")
        assert worker.first["first_call_seconds"] > 0
        assert worker.ask(0.01)["frames_per_second"] > 0


def test_a_worker_that_fails_is_reported(tmp_path, capfd):
    with pytest.raises(UserError, match=r"^Unknown \(mdp\) with .* failed with exit code 1, see above$"):
        Worker(sys.executable, ROOT, "Unknown", "mdp", num_envs=2)
    assert "unknown environment 'Unknown'" in capfd.readouterr().err


def test_the_same_package_twice_is_no_comparison(tmp_path):
    args = Args(env_ids=("CartPoleEasy",), num_envs=2, environment=str(ROOT))
    with pytest.raises(UserError, match="which is this package$"):
        measure("CartPoleEasy", "mdp", sys.executable, args)


def test_an_environment_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setattr(published_package, "REQUIREMENTS", ("pip",))  # it is there already
    environment = tmp_path / "environment"
    python = published_python(str(environment))
    kept = environment / "kept"
    kept.touch()
    assert os.path.exists(python) and published_python(str(environment)) == python and kept.exists()


def test_no_other_folder_becomes_an_environment(tmp_path):
    kept = tmp_path / "kept"
    kept.touch()
    with pytest.raises(UserError, match="has no complete installation: remove it, or use another folder$"):
        published_python(str(tmp_path))
    assert os.listdir(tmp_path) == ["kept"]


def test_a_failed_installation_does_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr(published_package, "REQUIREMENTS", ("--no-such-flag",))
    environment = tmp_path / "environment"
    with pytest.raises(UserError, match="^pip could not install --no-such-flag, see above$"):
        published_python(str(environment))
    with pytest.raises(UserError, match="has no complete installation"):
        published_python(str(environment))


def test_the_table_has_the_factor_of_every_id_and_geometric_means(tmp_path):
    rows = [
        row("TetrisEasy", "mdp", 100, 1000),
        row("BreakoutEasy", "mdp", 10, 10000),
        row("TetrisEasy", "pomdp", 50, 100),
    ]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(rows).splitlines()[2:]]
    assert lines == [
        ["BreakoutEasy", "fully observable", "10", "10,000", "1,000", "17.0", "1.3"],
        ["TetrisEasy", "fully observable", "100", "1,000", "10", "17.0", "1.3"],
        ["geometric mean", "fully observable", "32", "3,162", "100", "", ""],
        ["TetrisEasy", "partially observable", "50", "100", "2", "17.0", "1.3"],
        ["geometric mean", "partially observable", "50", "100", "2", "", ""],
    ]
    assert " twin " not in table(rows[:2])


def test_everything_is_written(tmp_path, monkeypatch):
    made = lambda env_id, twin, python, args: row(env_id, twin, 100, 1000)
    monkeypatch.setattr(published_package, "measure", made)
    monkeypatch.setattr(published_package, "published_python", lambda environment: "python")
    ids = ("AutoEncodeEasy", "TetrisEasy")
    published_package.main(Args(env_ids=ids, twins=("mdp", "pomdp"), out=str(tmp_path)))
    lines = (tmp_path / "published_package.csv").read_text().splitlines()
    assert len(lines) == 1 + 4 and lines[1].startswith("AutoEncodeEasy,mdp,64,100,1000,10,17.04,1.26,5,a CPU,2,cpu,")
    assert (tmp_path / "published_package.png").stat().st_size > 10_000
    assert (tmp_path / "published_package.md").read_text().count("\n") == 2 + 6


def test_the_pages_have_the_measured_factors():
    folder = ROOT / "docs/figures/published_package"
    lines = read_csv(folder / "published_package.csv")
    rows = [Row(**{field.name: field.type(line[field.name]) for field in dataclasses.fields(Row)}) for line in lines]
    assert sorted(row.env_id for row in rows) == sorted(published_package.EASY)
    assert (folder / "published_package.md").read_text() == table(rows)
    ours, published, factors = ([getattr(row, name) for row in rows] for name in ("ours", "published", "factor"))
    readme, page = (" ".join((ROOT / name).read_text().split()) for name in ("README.md", "docs/throughput.md"))
    factor = f"{min(factors):,.0f} to {max(factors):,.0f} times as fast"
    assert factor in readme and factor in page and f"the geometric mean is {geometric_mean(factors):,.0f}" in page
    for speeds in ours, published:
        assert f"at {min(speeds):,.0f} to {max(speeds):,.0f}" in readme
