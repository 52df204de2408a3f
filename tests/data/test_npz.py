"""[data] source = "npz": what fits is read as it is, what does not is refused with the array and the find."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_sdk.errors import UsageError
from edge_sim.data.sources import npz


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
@pytest.mark.parametrize(("dtype", "scale"), [(np.uint8, 1 / 255), (np.float32, 1.0)])
def test_samples_stay_as_they_were_recorded(tmp_path: Path, shape, dtype, scale) -> None:
    given = arrays(shape=shape, dtype=dtype)
    np.savez(tmp_path / "plants.npz", **given)
    whole = npz.read_npz(tmp_path / "plants.npz")
    assert (whole.name, whole.scale, whole.users) == ("plants", scale, None)
    for part, samples in (("train", whole.train), ("test", whole.test)):
        assert samples.x.dtype == dtype
        assert samples.y.dtype == np.int64
        np.testing.assert_array_equal(samples.x, given[f"x_{part}"])
        np.testing.assert_array_equal(samples.y, given[f"y_{part}"])


@pytest.mark.parametrize("users", [np.arange(12) // 4, np.array(["ann", "bo"] * 6)])
def test_users_come_along(tmp_path: Path, users) -> None:
    np.testing.assert_array_equal(npz.read_npz(write(tmp_path / "a.npz", user_train=users)).users, users)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"x_train": np.where(np.arange(240).reshape(12, 4, 5) < 60, 1, np.nan)},
            r"x_train: .* NaN or Inf in 9 .* first of them 3",
        ),
        ({"y_train": np.array([0, 1, -1] * 4)}, r"y_train: .* found -1 to 1, .* sample 2"),
        ({"y_test": np.array([0, 70_000] * 3)}, r"y_test: .* found 0 to 70000, .* sample 1"),
        (
            {"user_train": np.zeros(5, int)},
            r"user_train: expected .* 12 .* int64 \(5,\)",
        ),
        ({"user_train": np.zeros(12)}, r"user_train: expected .* found float64 \(12,\)"),
        ({"y_train": np.array([{}] * 12)}, r"not a readable npz file: y_train: it holds Python objects"),
    ],
)
def test_the_sample_or_the_array_at_fault_is_named(tmp_path: Path, changes, message) -> None:
    """What else is refused: tests/data/test_datasets.py."""
    if "x_train" in changes:
        changes = {**changes, "x_test": np.ones((6, 4, 5))}
    with pytest.raises(UsageError, match=rf"a\.npz: {message}"):
        npz.read_npz(write(tmp_path / "a.npz", **changes))


def test_a_file_with_a_flipped_byte_is_an_error_that_names_it_or_other_data(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.npz").read_bytes()
    for at in range(len(whole)):
        (tmp_path / "b.npz").write_bytes(whole[:at] + bytes([whole[at] ^ 0x15]) + whole[at + 1 :])
        try:
            npz.read_npz(tmp_path / "b.npz")
        except UsageError as error:
            assert "b.npz: " in str(error)  # noqa: PT017  # either will do
