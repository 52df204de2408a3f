"""Labels of public samples: where they come from, and which are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge_sdk import LocalData, NumpyModel, PublicSet, Samples, UsageError
from edge_sdk.device.training.workbench import Workbench

X = np.arange(24, dtype=np.float32).reshape(6, 4)
TRAIN = LocalData(train=Samples(X, np.arange(6) % 3))


def bench(public: PublicSet) -> Workbench:
    return Workbench(NumpyModel(3, (1, 1, 4), seed=0), TRAIN, public)


def test_labels_in_the_file_are_read_and_change_no_hash(tmp_path: Path) -> None:
    np.savez(tmp_path / "public.npz", public=X, labels=np.array([0, 1, 2, -1, -1, 0]))
    np.savez(tmp_path / "only.npz", X, labels=np.zeros(6, np.uint8))
    found = PublicSet.load(tmp_path / "public.npz")
    assert found.spec == PublicSet(X).spec == PublicSet.load(tmp_path / "only.npz").spec
    labelled = bench(found).labelled_public()
    assert labelled is not None
    np.testing.assert_array_equal(labelled[0].reshape(-1, 4), X[[0, 1, 2, 5]])
    np.testing.assert_array_equal(labelled[1], [0, 1, 2, 0])


def test_without_a_label_there_is_nothing_to_compare_on() -> None:
    assert bench(PublicSet(X)).labelled_public() is None
    assert bench(PublicSet(X, labels=np.full(6, -1))).labelled_public() is None


@pytest.mark.parametrize("labels", [np.zeros(5, int), np.zeros((6, 1), int), np.full(6, -2), np.zeros(6), ["a"] * 6])
def test_other_labels_are_refused(labels: object) -> None:
    with pytest.raises(UsageError, match=r"^labels: expected whole numbers from -1 on"):
        PublicSet(X, labels=labels)  # type: ignore[arg-type]  # as an app may give


def test_a_class_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match=r"public: labels up to 3: .* classes 0..2"):
        bench(PublicSet(X, labels=np.array([0, 1, 2, 3, 0, 1])))
