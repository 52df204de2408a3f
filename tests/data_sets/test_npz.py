"""[data] source = "npz": what fits is read as it is, what does not is refused with the array and the find."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_sdk.errors import UsageError
from edge_sim.sources import npz


def arrays(n: int = 12, m: int = 6, shape: tuple[int, ...] = (4, 5), dtype: type = np.uint8) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x_train": rng.integers(0, 200, (n, *shape)).astype(dtype),
        "y_train": np.arange(n) % 3,
        "x_test": rng.integers(0, 200, (m, *shape)).astype(dtype),
        "y_test": (np.arange(m) % 3).astype(np.uint8),
    }


def write(path: Path, **changes: object) -> Path:
    np.savez(path, **{**arrays(), **changes})
    return path


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 3), (7,)])
@pytest.mark.parametrize(("dtype", "scale"), [(np.uint8, 1 / 255), (np.float32, 1.0), (np.float64, 1.0)])
def test_samples_stay_as_they_were_recorded(tmp_path: Path, shape, dtype, scale) -> None:
    given = arrays(shape=shape, dtype=dtype)
    np.savez(tmp_path / "plants.npz", **given)
    whole = npz.read(tmp_path / "plants.npz")
    assert (whole.name, whole.scale, whole.users) == ("plants", scale, None)
    for part, samples in (("train", whole.train), ("test", whole.test)):
        assert samples.x.dtype == dtype
        assert samples.y.dtype == np.int64
        np.testing.assert_array_equal(samples.x, given[f"x_{part}"])
        np.testing.assert_array_equal(samples.y, given[f"y_{part}"])


@pytest.mark.parametrize("users", [np.arange(12) // 4, np.array(["ann", "bo"] * 6)])
def test_users_come_along(tmp_path: Path, users) -> None:
    np.testing.assert_array_equal(npz.read(write(tmp_path / "a.npz", user_train=users)).users, users)


def bad(y: list[int], n: int = 12) -> np.ndarray:
    return np.array((y * n)[:n])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.array(["a"] * 12)}, r"x_train: expected numbers, uint8 or float, found <U1 \(12,\)"),
        ({"x_train": np.zeros(12)}, r"x_train: expected \(n, h, w\), .* found float64 \(12,\)"),
        ({"x_train": np.zeros((12, 1, 2, 3, 4))}, r"x_train: expected .* found float64 \(12, 1, 2, 3, 4\)"),
        ({"x_test": np.zeros((6, 5, 4))}, r"x_test: samples of shape \(5, 4\), but those of x_train have \(4, 5\)"),
        ({"x_test": np.zeros((0, 4, 5)), "y_test": np.zeros(0, int)}, r"x_test: holds no samples: float64 \(0, 4, 5\)"),
        (
            {"x_train": np.where(np.arange(240).reshape(12, 4, 5) < 60, 1, np.nan)},
            "x_train: sample 3 holds NaN .* 9 in",
        ),
        (
            {"y_train": np.zeros((12, 1), int)},
            r"y_train: expected one label for each of 12 samples, found int64 \(12, 1\)",
        ),
        ({"y_test": np.zeros(7, int)}, "y_test: expected one label for each of 6 samples"),
        ({"y_train": np.zeros(12)}, "y_train: expected whole numbers, found float64"),
        ({"y_train": bad([0, 1, -1])}, "y_train: label -1 of sample 2: classes count from 0"),
        ({"y_train": bad([0, 70_000])}, "y_train: label 70000 of sample 1: at most 65535 classes"),
        ({"user_train": np.zeros(5)}, r"user_train: expected a whole number or a text for each of the 12 .* \(5,\)"),
        ({"user_train": np.zeros(12)}, "user_train: expected a whole number or a text .* found float64"),
        ({"y_train": np.array([{}] * 12)}, "y_train: not readable: Object arrays cannot be loaded"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, changes, message) -> None:
    with pytest.raises(UsageError, match=rf"a\.npz: {message}"):
        npz.read(write(tmp_path / "a.npz", **changes))


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=np.zeros((3, 4)), labels=np.zeros(3))
    with pytest.raises(UsageError, match=r"lacks the array y_train; expected x_train, .* found x_train, labels"):
        npz.read(tmp_path / "a.npz")


def damaged(path: Path, kind: str) -> None:
    whole = write(path).read_bytes()
    middle = len(whole) // 2
    path.write_bytes(
        {
            "empty": b"",
            "text": b"x_train, y_train",
            "cut off": whole[:-40],
            "no directory": whole[:100],
            "bits flipped": whole[:middle] + bytes(255 - b for b in whole[middle : middle + 80]) + whole[middle + 80 :],
        }[kind]
    )


@pytest.mark.parametrize("kind", ["empty", "text", "cut off", "no directory", "bits flipped"])
def test_a_damaged_file_is_no_traceback(tmp_path: Path, kind: str) -> None:
    damaged(tmp_path / "a.npz", kind)
    with pytest.raises(UsageError, match=r"a\.npz.*not (a )?readable"):
        npz.read(tmp_path / "a.npz")


def test_what_is_no_npz_at_all(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        npz.read(tmp_path / "absent.npz")
    with pytest.raises(UsageError, match="not a readable npz file"):
        npz.read(tmp_path)
    with (tmp_path / "bare.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(UsageError, match=r"one bare array; use numpy.savez with x_train, y_train, x_test, y_test"):
        npz.read(tmp_path / "bare.npz")
