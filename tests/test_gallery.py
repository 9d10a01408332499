"""benchmark/gallery.py: the pictures of README and docs."""

import numpy as np
import pytest
from harness import EASY_IDS, take
from PIL import Image

from benchmark import gallery
from popgym_arcade.baselines.errors import UserError


def test_every_family_has_a_scene():
    assert [f"{family}Easy" for family in gallery.SCENES] == EASY_IDS


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The folder of a family's pictures, with a video of five frames."""
    folder = tmp_path_factory.mktemp("gallery")
    gallery.main(gallery.Args(out=str(folder), families=("Navigator",), video_steps=5))
    return folder


def test_the_pictures_hold_the_frames_they_promise(drawn):
    assert sorted(path.name for path in drawn.rglob("*.*")) == ["Navigator.png", "games.gif", "games.png"]
    full, partial = gallery.moment("Navigator")
    assert (full != partial).any()
    sheet = np.asarray(Image.open(drawn / "games.png").convert("RGB"))
    for top, frame in ((34, full), (34 + 256 + 4, partial)):
        np.testing.assert_array_equal(sheet[top : top + 256 : 2, 40 : 40 + 256 : 2], frame)
    explained = np.asarray(Image.open(drawn / "games" / "Navigator.png").convert("RGB"))
    for left, frame in ((184, full), (184 + 256 + 8, partial)):
        shown = explained[54 : 54 + 256 : 2, left : left + 256 : 2]
        assert 0.9 < (shown == frame).all(axis=-1).mean() < 1  # numbers and frame are on it


def test_the_video_shows_the_players_episodes_from_the_start(drawn):
    video = Image.open(drawn / "games.gif")
    states = take(gallery.episodes("Navigator")[0], slice(0, 5))
    assert video.n_frames == 5 and states.time.tolist() == [0, 1, 2, 3, 4]
    for i, frames in enumerate(gallery.both_twins("Navigator", states).swapaxes(0, 1)):
        video.seek(i)
        shown = np.asarray(video.convert("RGB"))
        for top, frame in zip((17, 17 + 132), frames, strict=True):
            np.testing.assert_array_equal(shown[top : top + 128, 24 : 24 + 128], frame)


def test_an_episode_ends_with_its_final_state():
    states = gallery.episodes("Navigator")[0]
    assert states.score[-1] == 100 and (states.score[:-1] == 0).all()  # the treasure is claimed
    assert gallery.record_video("Navigator", 40).shape == (2, 40, 128, 128, 3)


def test_a_number_is_put_beside_the_pixels_of_a_colour():
    frame = np.zeros((128, 128, 3), np.uint8)
    frame[40:51, 60:71] = frame[120] = 7, 8, 9  # the row below belongs to the name
    assert gallery.spot(frame, (7, 8, 9)) == (65 + 8, 45 - 7) and gallery.spot(frame, (3, 4)) == (3, 4)
    with pytest.raises(ValueError, match="no pixel"):
        gallery.spot(frame, (1, 2, 3))


def test_many_families_fill_several_rows():
    twins = np.zeros((2, 128, 128, 3), np.uint8)
    wide = gallery.sheet({str(i): twins for i in range(7)}, zoom=1)
    assert wide.size == (16 + 5 * 136 + 8, 2 * (17 + 2 * 136))
    names = np.asarray(wide)[17:145, :16], np.asarray(wide)[145 + 4 :, :16][:128]
    assert all(name.min() < 150 for name in names)  # both twins are named at the left


def test_unknown_families_are_refused(tmp_path):
    with pytest.raises(UserError, match="--families Chess: use AutoEncode"):
        gallery.main(gallery.Args(out=str(tmp_path / "new"), families=("Chess",)))
    with pytest.raises(UserError, match="--fps 0: use a number from 1 to 50"):
        gallery.main(gallery.Args(out=str(tmp_path / "new"), fps=0))
    assert not (tmp_path / "new").exists()
