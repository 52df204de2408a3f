"""The section [data]: what becomes of a source before the devices get it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_sdk.errors import UsageError
from edge_sim.config import settings
from edge_sim.config.settings import Config, DataTable
from edge_sim.data.datasets import Dataset, load_dataset

N, M, CLASSES = 120, 30, 3


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training sample i is a picture of the number i; labels in order, as CIFAR-10 has them."""
    path = tmp_path_factory.mktemp("load") / "numbers.npz"
    np.savez(
        path,
        x_train=np.broadcast_to(np.arange(N, dtype=np.uint8)[:, None, None], (N, 2, 2)),
        y_train=np.arange(N) * CLASSES // N,
        x_test=np.zeros((M, 2, 2), np.uint8),
        y_test=np.arange(M) % CLASSES,
        user_train=np.arange(N) // 10,
    )
    return path


def loaded(file: Path, federation_seed: int = 0, classes: int | None = None, **table: Any) -> Dataset:
    plain = {"public": 20, **table}
    return load_dataset(DataTable(source="npz", path=file.name, **plain), federation_seed, file.parent, classes)


def numbers(x: np.ndarray) -> list[int]:
    return [int(n) for n in x[:, 0, 0]]


def test_public_samples_are_no_private_ones(file: Path) -> None:
    found = loaded(file)
    assert found.public is not None
    assert sorted(numbers(found.private.x) + numbers(found.public.samples)) == list(range(N))
    np.testing.assert_array_equal(found.rows, numbers(found.private.x))
    np.testing.assert_array_equal(found.users, found.rows // 10)
    assert (found.source_samples, found.classes, found.scale, found.raw_shape) == (N, CLASSES, 1 / 255, (2, 2))
    assert found.private.x.dtype == found.public.samples.dtype == np.uint8  # raw: scaling is each device's own


def test_a_part_of_a_data_set_keeps_its_classes(file: Path) -> None:
    found = loaded(file, train_samples=60, test_samples=9, public=0)
    np.testing.assert_array_equal(np.bincount(found.private.y), [20, 20, 20])
    np.testing.assert_array_equal(np.bincount(found.test.y), [3, 3, 3])
    np.testing.assert_array_equal(found.rows, numbers(found.private.x))
    np.testing.assert_array_equal(found.users, found.rows // 10)
    assert found.public is None
    assert found.sha256 != loaded(file, public=0).sha256


def test_its_own_seed_counts_before_the_federations(file: Path) -> None:
    assert (
        loaded(file, 0, seed=4).rows.tolist() == loaded(file, 1, seed=4).rows.tolist() == loaded(file, 4).rows.tolist()
    )
    assert loaded(file, 0).rows.tolist() != loaded(file, 1).rows.tolist()
    assert (loaded(file, 0, seed=4).seed, loaded(file, 3).seed) == (4, 3)


def test_a_federation_may_have_more_classes_than_the_data_and_not_fewer(file: Path) -> None:
    assert loaded(file, classes=5).classes == 5
    with pytest.raises(UsageError, match=r"^federation\.classes: 2, .*y_train.*2.* 80"):
        loaded(file, classes=2)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"train_samples": 20}, r"data\.public: .* 20 .* found 20"),
        ({"train_samples": N + 1}, r"data\.train_samples: expected at most .* 120 .* found 121"),
        ({"test_samples": M + 1}, r"data\.test_samples: expected at most .* 30 .* found 31"),
    ],
)
def test_more_than_there_is_is_refused(file: Path, table: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        loaded(file, **table)


def parsed(**sections: Any) -> Config:
    tables = {"federation": {"name": "a", "rounds": 1, "devices": 2}, **sections}
    return settings.parse(tables, Path("f.toml"))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": {"source": "npz"}}, r'f\.toml: data\.path: missing; .* source = "npz"'),
        ({"data": {"source": "folder"}}, r'data\.path: missing; .* source = "folder"'),
        ({"data": {"source": "svhn"}}, r'data\.root: missing; .* source = "svhn"'),
        ({"data": {"source": "imagenet"}}, r"data\.source"),
        ({"data": {"split": [8, 1]}}, r"data\.split: expected \[train, validation, test\], .* found \[8\.0, 1\.0\]"),
        ({"data": {"split": [0, 1, 1]}}, r"data\.split: expected .* found \[0"),
        ({"data": {"split": [8, -1, 1]}}, r"data\.split\[1\]"),
        (
            {"data": {"source": "folder", "path": "a", "image_size": [8]}},
            r"data\.image_size: expected \[height, width\]",
        ),
        ({"partition": {"kind": "by_mood"}}, r"partition\.kind"),
        ({"partition": {"kind": "iid", "file": "p.json"}}, r"partition\.kind: .* partition\.file"),
        ({"partition": {"export": "q.json", "file": "p.json"}}, r"partition\.export: .* partition\.file"),
    ],
)
def test_tables_that_cannot_be_meant(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parsed(**sections)


def test_whole_numbers_will_do_for_a_split() -> None:
    assert parsed(data={"split": [8, 1, 1]}).data.split == (8.0, 1.0, 1.0)
    assert parsed().data.split == (1.0, 0.0, 0.0)


def test_a_run_can_be_repeated_from_another_folder(tmp_path: Path) -> None:
    tables = {"federation": {"name": "a", "rounds": 1, "devices": 2}, "data": {"source": "svhn", "root": "svhn"}}
    given = settings.parse({**tables, "partition": {"file": "part.json"}}, tmp_path / "f.toml")
    assert given.tables["data"]["root"] == str((tmp_path / "svhn").resolve())
    assert given.tables["partition"]["file"] == str((tmp_path / "part.json").resolve())
    drawn = settings.parse({**tables, "partition": {"export": "part.json"}}, tmp_path / "f.toml")
    assert drawn.tables["partition"]["export"] == str((tmp_path / "part.json").resolve())


def test_a_balanced_test_has_as_many_of_each_class(tmp_path: Path) -> None:
    """Eight, three and five of them in the file."""
    y = np.repeat([0, 1, 2], [8, 3, 5])
    x = np.arange(16, dtype=np.uint8)[:, None, None] * np.ones((1, 2, 2), np.uint8)
    file = tmp_path / "a.npz"
    np.savez(file, x_train=np.zeros((30, 2, 2), np.uint8), y_train=np.arange(30) % 3, x_test=x, y_test=y)
    np.testing.assert_array_equal(np.bincount(loaded(file, public=0).test.y), [8, 3, 5])
    found = loaded(file, public=0, balance_test=True)
    np.testing.assert_array_equal(np.bincount(found.test.y), [3, 3, 3])
    assert len(set(numbers(found.test.x))) == 9
    assert [int(y[n]) for n in numbers(found.test.x)] == found.test.y.tolist()
    smaller = loaded(file, public=0, balance_test=True, test_samples=6)
    np.testing.assert_array_equal(np.bincount(smaller.test.y), [2, 2, 2])
    with pytest.raises(UsageError, match=r"^data\.test_samples: .*9 .*found 10"):
        loaded(file, public=0, balance_test=True, test_samples=10)
    again, other = (loaded(file, seed, public=0, balance_test=True) for seed in (0, 1))
    assert numbers(again.test.x) == numbers(found.test.x) != numbers(other.test.x)
