"""Any function that predicts, as a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from model_suite import check_unsupported

import edge_sdk
from edge_sdk.errors import ModelError, StoreError
from edge_sdk.methods.contract.registry import load_method

X = np.random.default_rng(0).random((6, 1, 2, 2), np.float32)


def flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), 4)


def test_logits() -> None:
    model = edge_sdk.PredictOnly(flat, classes=4)
    np.testing.assert_array_equal(model.logits(X), flat(X))
    assert model.logits(X[:0]).shape == (0, 4)
    assert model.logits(X).dtype == np.float32


def test_probabilities_become_logits() -> None:
    """Also those of a model that is sure; what logits have in common means nothing, and is left out."""
    rows = np.array([[1.0, 0, 0, 0], [0.1, 0.2, 0.3, 0.4]])
    found = edge_sdk.PredictOnly(lambda _: rows, classes=4, gives="probabilities").logits(X[:2])
    exp = np.exp(found)
    np.testing.assert_allclose(exp / exp.sum(axis=1, keepdims=True), rows, atol=1e-3)
    np.testing.assert_allclose(found.sum(axis=1), 0, atol=1e-5)


def test_probabilities_are_found() -> None:
    """Where nothing was said of what the function gives."""
    rows = np.array([[0.9, 0.1, 0, 0], [0.1, 0.2, 0.3, 0.4]])
    model = edge_sdk.PredictOnly(lambda x: rows[: len(x)], classes=4)
    exp = np.exp(model.logits(X[:2]))
    np.testing.assert_allclose(exp / exp.sum(axis=1, keepdims=True), rows, atol=1e-3)
    said = edge_sdk.PredictOnly(lambda _: rows, classes=4, gives="logits")
    np.testing.assert_allclose(said.logits(X[:2]), rows, rtol=1e-6)


def test_what_is_open_is_refused() -> None:
    rows = np.array([[0.9, 0.1, 0, 0], [0.5, 0.5, 0, 0], [0.1, 0.2, 0.3, 7]])
    with pytest.raises(ModelError, match=r"2 of 3 answers are probabilities.*gives="):
        edge_sdk.PredictOnly(lambda _: rows, classes=4).logits(X[:3])
    model = edge_sdk.PredictOnly(lambda x: rows[: len(x)], classes=4)
    model.logits(X[:2])
    with pytest.raises(ModelError, match=r"sum to 1.*gives='logits'"):
        model.logits(X[:3])


def failing(_x: np.ndarray) -> Any:
    raise OSError("the accelerator\nis busy")


@pytest.mark.parametrize(
    ("function", "gives", "said"),
    [
        (lambda x: flat(x)[:, :3], "logits", r"\(6, 3\)"),
        (lambda x: flat(x).argmax(axis=1), "logits", r"\(6,\)"),
        (lambda x: flat(x) * np.nan, "logits", "finite"),
        (lambda x: flat(x).astype(str), "logits", "<U32"),
        (flat, "probabilities", "sum to 1"),
        (failing, "logits", "OSError: the accelerator is busy"),
    ],
    ids=["classes", "labels", "nan", "text", "no probabilities", "error"],
)
def test_answers_that_are_no_logits(function: Any, gives: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        edge_sdk.PredictOnly(function, classes=4, gives=gives).logits(X)


def test_arguments_that_make_no_sense() -> None:
    with pytest.raises(ModelError, match="ndarray"):
        edge_sdk.PredictOnly(X, classes=4)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="labels"):
        edge_sdk.PredictOnly(flat, classes=4, gives="labels")  # type: ignore[arg-type]


@pytest.mark.parametrize("capability", ["features", "head-rows", "weights", "logit-gradients"])
def test_and_nothing_else(capability: str) -> None:
    check_unsupported(edge_sdk.PredictOnly(flat, classes=4), capability)


def test_keeps_no_state() -> None:
    model = edge_sdk.PredictOnly(flat, classes=4)
    model.load_state(model.state_bytes())
    with pytest.raises(StoreError):
        model.load_state(b"weights")


def test_suffices_where_logits_alone_travel() -> None:
    has = edge_sdk.PredictOnly(flat, classes=4).spec.capabilities
    assert load_method("fedmd").teaches <= has
    assert not load_method("fedavg").teaches
