"""benchmark/gallery.py: the pictures of README and docs."""

import numpy as np
import pytest
from PIL import Image

from benchmark import gallery
from popgym_arcade.baselines.errors import UserError


def test_a_sheet_holds_the_frames_it_promises(tmp_path):
    gallery.main(gallery.Args(out=str(tmp_path), families=("Navigator",), steps=5))
    assert sorted(path.name for path in tmp_path.rglob("*.png")) == ["Navigator.png", "games.png"]
    sheet = np.asarray(Image.open(tmp_path / "games" / "Navigator.png").convert("RGB"))
    assert sheet.shape == (2 * (256 + 16 + 8), 3 * (256 + 8) + 8, 3)
    full, partial = gallery.twins("NavigatorMedium", 5, gallery.Args().seed)
    assert (full != partial).any()
    for half, frame in enumerate((full, partial)):
        top, left = 16 + half * 280, 8 + 264
        np.testing.assert_array_equal(sheet[top : top + 256 : 2, left : left + 256 : 2], frame)


def test_many_families_fill_several_rows():
    frame = np.zeros((128, 128, 3), np.uint8)
    wide = gallery.sheet([(str(i), [frame, frame]) for i in range(7)], zoom=1)
    assert wide.size == (5 * 136 + 8, 2 * 2 * 152 + 8)


@pytest.mark.parametrize("change", [{"families": ("Chess",)}, {"difficulty": "Absurd"}])
def test_unknown_words_are_refused(tmp_path, change):
    with pytest.raises(UserError, match="use "):
        gallery.main(gallery.Args(out=str(tmp_path / "new"), **change))
    assert not (tmp_path / "new").exists()


def test_an_episode_that_is_never_long_enough_is_an_error(monkeypatch):
    monkeypatch.setattr(gallery, "MOST_STEPS", 70)
    with pytest.raises(UserError, match="no episode of 65 steps"):
        gallery.twins("NavigatorEasy", 65, 0)
