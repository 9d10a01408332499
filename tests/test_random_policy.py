"""benchmark/random_policy.py: the table of what random actions get."""

import csv

import numpy as np
import pytest
from harness import IDS, episodes, random_play
from runs import called

from benchmark import random_policy


def test_a_seed_repeats_and_others_differ():
    one, again, other = (random_policy.play(IDS[0], 50, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert (one[1] != other[1]).any()


@pytest.mark.parametrize("env_id", [env_id for env_id in IDS if env_id.endswith("Easy")])
def test_episodes_are_like_those_of_other_random_play(env_id):
    """(That play has preferences among the actions, so only the range is alike.)"""
    values, lengths = random_policy.play(env_id, 2_000)
    others = episodes(random_play(env_id))
    assert others[:, 1].min() <= lengths.mean() <= others[:, 1].max() + 1
    assert others[:, 0].min() - 0.2 <= values.mean() <= others[:, 0].max() + 0.2


def test_the_table_and_the_file_hold_what_was_played(tmp_path, capsys):
    args = random_policy.Args(env_ids=("NavigatorEasy",), episodes=30, out=str(tmp_path / "new" / "random"))
    random_policy.main(args)
    values, lengths = random_policy.play("NavigatorEasy", 30)
    with (tmp_path / "new" / "random.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["return_mean"]) == pytest.approx(values.mean(), abs=1e-5)
    assert float(row["return_standard_error"]) == pytest.approx(values.std(ddof=1) / 30**0.5, abs=1e-5)
    assert float(row["length_mean"]) == pytest.approx(lengths.mean(), abs=1e-4)
    table = (tmp_path / "new" / "random.md").read_text()
    assert table in capsys.readouterr().out and f"| NavigatorEasy | {values.mean():.4f} ±" in table


@pytest.mark.parametrize("flags", ["--env-ids NavigatorEazy", "--episodes 0", "--seed -1"])
def test_bad_input_is_refused_in_one_line(tmp_path, flags):
    done = called(random_policy.__file__, *flags.split(), "--out", tmp_path / "random")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not list(tmp_path.iterdir())
