"""Estimators of scikit-learn as models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from model_suite import ADAM, CLASSES, SHAPE, ModelSuite, batches, samples

import edge_sdk
from edge_sdk.errors import ModelError, Unsupported
from edge_sdk.objectives import CrossEntropy

pytest.importorskip("sklearn")

from sklearn.linear_model import LogisticRegression, SGDClassifier  # only where it is installed
from sklearn.naive_bayes import GaussianNB  # likewise
from sklearn.pipeline import make_pipeline  # likewise
from sklearn.preprocessing import StandardScaler  # likewise


def fitted(estimator: Any, classes: int = CLASSES) -> Any:
    x, y = samples()
    return estimator.fit(x.reshape(len(x), -1), y % classes)


def flat() -> np.ndarray:
    x, _ = samples()
    return x.reshape(len(x), -1)


class TestSklearnModel(ModelSuite):
    def make(self, seed: int = 0) -> edge_sdk.SklearnModel:
        return edge_sdk.SklearnModel(fitted(SGDClassifier(alpha=1, random_state=seed)), input_shape=SHAPE)


class TestPipeline(ModelSuite):
    def make(self, seed: int = 0) -> edge_sdk.SklearnModel:
        pipeline = make_pipeline(StandardScaler(), "passthrough", SGDClassifier(alpha=1, random_state=seed))
        return edge_sdk.SklearnModel(fitted(pipeline), input_shape=SHAPE)


@pytest.mark.parametrize("classes", [2, CLASSES])
@pytest.mark.parametrize("scaled", [False, True])
def test_starts_as_the_estimator(classes: int, scaled: bool) -> None:
    last = LogisticRegression()
    estimator = fitted(make_pipeline(StandardScaler(), last) if scaled else last, classes)
    model, (x, _) = edge_sdk.SklearnModel(estimator), samples()
    logits = model.logits(x)
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    np.testing.assert_allclose(exp / exp.sum(axis=1, keepdims=True), estimator.predict_proba(flat()), atol=1e-5)
    assert ("weights" in model.spec.capabilities) is not scaled


@pytest.mark.parametrize("classes", [2, CLASSES])
def test_gives_the_trained_weights_back(classes: int) -> None:
    given = fitted(LogisticRegression(), classes)
    model, (x, y) = edge_sdk.SklearnModel(given), samples()
    before = given.coef_.copy()
    work = batches(20)
    model.fit(type(work)(inputs=x, labels=y % classes, indices=work.indices), (CrossEntropy(),), ADAM)
    back = model.estimator()
    np.testing.assert_array_equal(back.predict(flat()), model.logits(x).argmax(axis=1))
    np.testing.assert_array_equal(given.coef_, before)
    assert not np.array_equal(back.coef_, before)
    back.fit(flat(), y % classes)


def test_a_copy_for_serving_does_not_learn() -> None:
    given = fitted(make_pipeline(StandardScaler(), LogisticRegression()))
    model, (x, _) = edge_sdk.SklearnModel(given), samples()
    served, before = model.serving_copy(), model.logits(x)
    model.fit(batches(5), (CrossEntropy(),), ADAM)
    np.testing.assert_array_equal(served.logits(x), before)
    assert (model.logits(x) != before).any()


def test_the_digest_is_of_the_steps_before_the_last() -> None:
    def model(scale: float) -> edge_sdk.SklearnModel:
        _, y = samples()
        return edge_sdk.SklearnModel(make_pipeline(StandardScaler(), LogisticRegression()).fit(scale * flat(), y))

    one, same, other = model(1), model(1), model(2)
    same.fit(batches(2), (CrossEntropy(),), ADAM)
    assert one.frozen_digest() == same.frozen_digest() != other.frozen_digest()
    bare = [edge_sdk.SklearnModel(fitted(LogisticRegression(C=c))).frozen_digest() for c in (1, 2)]
    assert bare[0] == bare[1]


def test_classes_that_the_estimator_has_not_seen() -> None:
    given = fitted(SGDClassifier(random_state=0), 3)
    model, (x, _) = edge_sdk.SklearnModel(given, classes=5), samples()
    np.testing.assert_array_equal(model.logits(x).argmax(axis=1), given.predict(flat()))
    assert model.spec.classes == 5
    assert model.estimator().predict(flat()).max() < 5
    with pytest.raises(ModelError):
        edge_sdk.SklearnModel(given, classes=2)


@pytest.mark.parametrize(
    ("estimator", "said"),
    [
        (SGDClassifier(), "not fitted"),
        (fitted(GaussianNB()), "PredictOnly"),
        (StandardScaler().fit(flat()), "not a classifier"),
        (LogisticRegression().fit(flat(), np.array(list("ab") * 20)), "class ids"),
        (object(), "object"),
    ],
    ids=["unfitted", "not linear", "no classifier", "words", "anything"],
)
def test_refused(estimator: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        edge_sdk.SklearnModel(estimator)


def test_samples_of_another_width() -> None:
    with pytest.raises(ModelError, match="36"):
        edge_sdk.SklearnModel(fitted(LogisticRegression())).logits(np.zeros((2, 1, 3, 3), np.float32))


def test_any_other_estimator_teaches() -> None:
    estimator, (x, _) = fitted(GaussianNB()), samples()
    teacher = edge_sdk.PredictOnly(
        lambda x: estimator.predict_proba(x.reshape(len(x), -1)), CLASSES, gives="probabilities"
    )
    np.testing.assert_array_equal(teacher.logits(x).argmax(axis=1), estimator.predict(flat()))


def test_exported() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from onnx_files import answers  # only where onnx is installed

    x, _ = samples()
    model = edge_sdk.SklearnModel(fitted(LogisticRegression()))
    np.testing.assert_allclose(answers(model.onnx_bytes(x), x, "samples"), model.logits(x), atol=1e-4)
    with pytest.raises(Unsupported, match="skl2onnx"):
        edge_sdk.SklearnModel(fitted(make_pipeline(StandardScaler(), LogisticRegression()))).onnx_bytes(x)
