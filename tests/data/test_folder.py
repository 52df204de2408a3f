"""[data] source = "folder": pictures in one sub-folder for each class."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from edge_sdk.errors import MissingExtra, UsageError
from edge_sim.data.sources import folder

PLAIN = folder.FileOptions()
Image = pytest.importorskip("PIL.Image")


def paint(path: Path, value: int, size: tuple[int, int] = (6, 4), mode: str = "L") -> None:
    """A plain picture of height and width `size`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (size[1], size[0]), value if mode in ("L", "1", "I") else (value, 0, 0)).save(path)


def zoo(root: Path, part: str = "", each: int = 5) -> Path:
    for k, name in enumerate(("ant", "bee", "cat")):
        for i in range(each):
            paint(root / part / name / f"{i}.png", 50 * k + i)
    return root


def test_classes_are_numbered_by_name_and_part_of_each_is_the_test(tmp_path: Path) -> None:
    (zoo(tmp_path) / "bee" / "notes.txt").write_text("not a picture", encoding="utf-8")
    (tmp_path / ".cache").mkdir()
    whole = folder.read_folder(tmp_path, PLAIN, 0.2, 0)
    assert whole.train.x.shape == (12, 6, 4)
    assert whole.train.x.dtype == np.uint8
    assert whole.scale == 1 / 255
    np.testing.assert_array_equal(np.bincount(whole.test.y), [1, 1, 1])
    for samples in (whole.train, whole.test):
        np.testing.assert_array_equal(samples.x[:, 0, 0] // 50, samples.y)
    again, other = folder.read_folder(tmp_path, PLAIN, 0.2, 0), folder.read_folder(tmp_path, PLAIN, 0.2, 1)
    np.testing.assert_array_equal(again.test.x, whole.test.x)
    assert (other.test.x != whole.test.x).any()


def test_a_division_of_its_own_is_kept(tmp_path: Path) -> None:
    zoo(tmp_path, "train")
    zoo(tmp_path, "test", each=2)
    whole = folder.read_folder(tmp_path, PLAIN, 0.2, 0)
    assert (len(whole.train), len(whole.test)) == (15, 6)
    np.testing.assert_array_equal(whole.test.x[:, 0, 0], [0, 1, 50, 51, 100, 101])
    paint(tmp_path / "test" / "dog" / "0.png", 0)
    with pytest.raises(UsageError, match=r"dog: .*class.* ant, bee, cat$"):
        folder.read_folder(tmp_path, PLAIN, 0.2, 0)


def test_one_picture_in_colour_makes_all_so(tmp_path: Path) -> None:
    paint(zoo(tmp_path) / "ant" / "red.jpg", 200, mode="RGB")
    paint(tmp_path / "bee" / "clear.png", 90, mode="RGBA")
    whole = folder.read_folder(tmp_path, PLAIN, 0.2, 0)
    assert whole.train.x.shape[1:] == (6, 4, 3)


def test_pictures_of_several_sizes_need_one(tmp_path: Path) -> None:
    paint(zoo(tmp_path) / "cat" / "wide.png", 70, size=(6, 9))
    with pytest.raises(UsageError, match=r"wide\.png: 6 x 9.*data\.image_size"):
        folder.read_folder(tmp_path, PLAIN, 0.2, 0)
    assert folder.read_folder(tmp_path, folder.FileOptions((3, 5)), 0.2, 0).train.x.shape[1:] == (3, 5)


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^data\.path: .*absent: .*such folder"):
        folder.read_folder(tmp_path / "absent", PLAIN, 0.2, 0)
    paint(tmp_path / "one" / "ant" / "0.png", 0)
    with pytest.raises(UsageError, match=r"one: .*each class, found ant$"):
        folder.read_folder(tmp_path / "one", PLAIN, 0.2, 0)
    zoo(tmp_path / "two")
    (tmp_path / "two" / "dog").mkdir()
    with pytest.raises(UsageError, match=r"dog: .*no pictures \(\.bmp"):
        folder.read_folder(tmp_path / "two", PLAIN, 0.2, 0)
    (zoo(tmp_path / "three") / "ant" / "9.png").write_bytes(b"\x89PNG\r\n\x1a\n, cut off")
    with pytest.raises(UsageError, match=r"9\.png: not .*readable picture"):
        folder.read_folder(tmp_path / "three", PLAIN, 0.2, 0)
    paint(zoo(tmp_path / "four") / "ant" / "9.tif", 40_000, mode="I")
    with pytest.raises(UsageError, match=r"9\.tif: .*8 bits.*\(mode I"):
        folder.read_folder(tmp_path / "four", PLAIN, 0.2, 0)
    zoo(tmp_path / "five", each=1)
    with pytest.raises(UsageError, match=r"too few samples.* 0\.2 "):
        folder.read_folder(tmp_path / "five", PLAIN, 0.2, 0)


def test_without_pillow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zoo(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtra, match=r"pillow: pip install 'edge-sdk\[pictures\]'"):
        folder.read_folder(tmp_path, PLAIN, 0.2, 0)
