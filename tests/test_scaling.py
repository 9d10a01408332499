"""benchmark/scaling.py: times of messages from all-reduces, and what to expect of many devices."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.append(str(Path(__file__).parents[1] / "benchmark"))

import scaling  # noqa: E402

from popgym_arcade.baselines.errors import UserError  # noqa: E402

ONE = scaling.Training(update_seconds=0.5, gradient_steps=16, gradient_bytes=4_000_000)


@pytest.mark.parametrize("latency, bandwidth", [(5e-5, 1e9), (2e-6, 2e10)])
def test_latency_and_bandwidth_are_recovered(latency, bandwidth):
    sizes = np.array(scaling.SIZES, float)
    seconds = [scaling.all_reduce_seconds(2, size, latency, bandwidth) for size in sizes]
    assert scaling.fitted(sizes, np.array(seconds)) == pytest.approx((latency, bandwidth), rel=1e-6)


def test_an_all_reduce_takes_the_faster_way():
    latency, bandwidth = 1e-5, 1e9
    assert scaling.all_reduce_seconds(1, 1e6, latency, bandwidth) == 0
    few = [scaling.all_reduce_seconds(n, 1e6, latency, bandwidth) for n in scaling.DEVICES]
    assert few == sorted(few)
    ring = 2 * 7 * (latency + 1e6 / 8 / bandwidth)
    assert scaling.all_reduce_seconds(8, 1e6, latency, bandwidth) == pytest.approx(ring)
    tree = 2 * 8 * (latency + 10 / bandwidth)  # log2(256) messages there and back
    assert scaling.all_reduce_seconds(256, 10, latency, bandwidth) == pytest.approx(tree)


def test_what_is_expected_of_many_devices(tmp_path):
    rows = scaling.expected(ONE, latency=1e-5, bandwidth=1e9)
    assert [row["devices"] for row in rows] == list(scaling.DEVICES)
    assert rows[0] == {
        **{"devices": 1, "update_seconds": 0.5, "all_reduce_seconds": 0.0},
        **{"efficiency": 1.0, "speed_up": 1.0},
    }
    two = 16 * 2 * (1e-5 + 2e6 / 1e9)
    assert rows[1]["all_reduce_seconds"] == pytest.approx(two, abs=1e-4)
    assert rows[1]["efficiency"] == pytest.approx(0.5 / (0.5 + two), abs=1e-3)
    speed_up = [row["speed_up"] for row in rows]
    assert speed_up == sorted(speed_up) and all(row["efficiency"] <= 1 for row in rows)
    scaling.draw(rows, 1.7, tmp_path / "scaling.png")
    assert min(Image.open(tmp_path / "scaling.png").size) > 400


@pytest.mark.slow
def test_two_processes_time_their_all_reduces(monkeypatch):
    sizes, seconds = scaling.measure_all_reduces()
    assert sizes.tolist() == list(scaling.SIZES)
    assert (seconds > 0).all()


def test_the_tables_have_the_whole_name(tmp_path, monkeypatch):
    """Also where it has a dot."""
    monkeypatch.setattr(scaling, "measure_all_reduces", lambda: (np.array([1024.0, 4096.0]), np.array([1e-4, 2e-4])))
    monkeypatch.setattr(scaling, "train", lambda *_: ONE)
    scaling.main(scaling.Args(out=str(tmp_path / "scaling.v2")))
    names = ["scaling.v2.csv", "scaling.v2.png", "scaling.v2_allreduce.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_script_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(UserError, match="--script sarsa: there is no such script"):
        scaling.main(scaling.Args(script="sarsa", out=str(tmp_path / "scaling")))
