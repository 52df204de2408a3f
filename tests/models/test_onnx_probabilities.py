"""Files that give probabilities, labels or maps beside them, as scikit-learn's tools and others write them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_sdk.cli import main
from edge_sdk.errors import ModelError
from edge_sdk.models.base import Batches
from edge_sdk.objectives import CrossEntropy, Optim

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx_files import (
    CLASSES,
    WIDTH,
    changed,
    classifier,
    file_of,
    float_port,
    forest,
    label_port,
    linear_classifier,
    ml_file,
    ml_node,
    naive_bayes,
    written_out_softmax,
)

from edge_sdk.models.onnx_file.graph import read_graph
from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel, OnnxTeacher

FILES = {
    "logistic regression": (linear_classifier(), "layer"),
    "with ZipMap": (linear_classifier(zipmap=True), "layer"),
    "with names of classes": (linear_classifier(strings=True), "layer"),
    "with names in ZipMap": (linear_classifier(strings=True, zipmap=True), "layer"),
    "of two classes": (linear_classifier("LOGISTIC", classes=2, normalised=False), "layer"),
    "one against the rest": (linear_classifier("LOGISTIC"), "outputs"),
    "of whole numbers": (linear_classifier(kind=TensorProto.INT64), "layer"),
    "forest": (forest(), "outputs"),
    "forest with ZipMap": (forest(zipmap=True), "outputs"),
    "forest with names": (forest(strings=True, zipmap=True), "outputs"),
    "forest of two classes": (forest(classes=2), "outputs"),
    "boosted trees": (forest(post_transform="SOFTMAX"), "outputs"),
    "naive Bayes": (naive_bayes(), "outputs"),
    "a Softmax in its parts": (written_out_softmax(), "layer"),
}


def samples(n: int = 12) -> np.ndarray:
    """(n, 1, 1, WIDTH), of 0 and 1, which are legal for whole numbers, too."""
    return np.random.default_rng(5).integers(0, 2, (n, 1, 1, WIDTH)).astype(np.float32)


def probabilities(logits: np.ndarray) -> np.ndarray:
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exp / exp.sum(axis=1, keepdims=True)


def told(file: bytes, x: np.ndarray) -> dict[str, np.ndarray]:
    """What ONNX Runtime gives for the whole file; maps as their values."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (port,) = session.get_inputs()
    fed = x.reshape(len(x), -1).astype("i8" if port.type == "tensor(int64)" else "f4")
    names = [each.name for each in session.get_outputs()]
    found = dict(zip(names, session.run(None, {port.name: fed}), strict=True))
    return {
        name: np.array([[*each.values()] for each in values]) if isinstance(values, list) else values
        for name, values in found.items()
    }


def train(model: OnnxModel) -> None:
    """Teach it another class for each sample than it says."""
    x = samples(40)
    other = (model.logits(x).argmax(axis=1) + 1) % model.spec.classes
    rounds = np.tile(np.arange(40).reshape(4, 10), (40, 1))
    model.fit(Batches(inputs=x, labels=other, indices=rounds), (CrossEntropy(),), Optim(learning_rate=0.5))


@pytest.mark.parametrize("name", FILES)
def test_the_file_s_probabilities_are_kept(name: str) -> None:
    (file, how), x = FILES[name], samples()
    expected = told(file, x)["probabilities"]
    model = OnnxModel(file)
    assert (model.spec.classes, model.split.how) == (expected.shape[1], how)
    np.testing.assert_allclose(probabilities(model.logits(x)), expected, atol=1e-3)
    teacher = OnnxTeacher(file, model.spec.classes)
    np.testing.assert_allclose(probabilities(teacher.logits(x)), expected, atol=1e-3)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_the_exported_file_is_the_device_s_function(name: str, head: Any) -> None:
    (file, _), x = FILES[name], samples()
    before, model = told(file, x), OnnxModel(file, head=head)
    if head == "linear":
        same = told(model.onnx_bytes(x), x)
        np.testing.assert_allclose(same["probabilities"], before["probabilities"], atol=1e-3)
    train(model)
    content = model.onnx_bytes(x)
    onnx.checker.check_model(onnx.load_from_string(content))
    after, mine = told(content, x), probabilities(model.logits(x))
    assert [*after] == [*before]
    np.testing.assert_allclose(after["probabilities"], mine, atol=1e-4)
    assert (mine.argmax(axis=1) != before["probabilities"].argmax(axis=1)).any()
    if "label" in after:
        calls = model.split.labels or range(model.spec.classes)
        assert after["label"].tolist() == [calls[i] for i in mine.argmax(axis=1)]
    np.testing.assert_allclose(probabilities(OnnxModel(content).logits(x)), mine, atol=1e-4)


def test_names_of_classes_are_reported() -> None:
    assert OnnxModel(forest(strings=True)).split.labels == ("kind 0", "kind 1", "kind 2", "kind 3")
    model = OnnxModel(naive_bayes())
    assert model.split.labels == (10, 11, 12, 13)
    assert "its classes are 10, 11, 12, 13" in model.spec.note
    assert OnnxModel(forest()).split.labels == ()  # 0, 1, 2, 3, as a federation counts


def test_a_federation_of_other_classes() -> None:
    """Probabilities of other classes are no features, unless they are named."""
    with pytest.raises(ModelError, match=r"probabilities over 4 numbers, the federation has 7 classes.*features="):
        OnnxModel(forest(), 7)
    assert OnnxModel(forest(), 7, features="probabilities").spec.feature_dim == CLASSES
    assert OnnxModel(linear_classifier(), 7).split.how == "new"
    with pytest.raises(ModelError, match="expected"):
        OnnxTeacher(forest(), 7)


def test_log_probabilities_stay_so() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["wide"]),
        helper.make_node("Add", ["wide", "b"], ["logits"]),
        helper.make_node("ReduceLogSumExp", ["logits"], ["total"], axes=[1]),
        helper.make_node("Sub", ["logits", "total"], ["logs"]),
    ]
    rng = np.random.default_rng(0)
    held = {"w": rng.normal(size=(WIDTH, CLASSES)), "b": rng.normal(size=CLASSES)}
    constants = [numpy_helper.from_array(values.astype(np.float32), name) for name, values in held.items()]
    file, x = ml_file(nodes, [float_port("logs", None, CLASSES)], constants), samples()
    model = OnnxModel(file)
    np.testing.assert_allclose(model.logits(x), told(file, x)["logs"], atol=1e-5)
    train(model)
    np.testing.assert_allclose(told(model.onnx_bytes(x), x)["logs"], np.log(probabilities(model.logits(x))), atol=1e-4)


def test_a_quantised_softmax() -> None:
    """Quantised to 1/256, as converters leave it at the end."""

    def quantised(model: Any) -> None:
        graph = model.graph
        graph.initializer.append(numpy_helper.from_array(np.array(1 / 256, np.float32), "scale"))
        graph.initializer.append(numpy_helper.from_array(np.array(0, np.uint8), "zero"))
        graph.node.append(helper.make_node("QuantizeLinear", ["end0", "scale", "zero"], ["q"]))
        graph.node.append(helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["probabilities"]))
        del graph.output[:]
        graph.output.append(float_port("probabilities", "n", CLASSES))

    file, x = changed(classifier(("n", WIDTH), endings=["Softmax"]), quantised), samples()
    model = OnnxModel(file)
    assert (model.split.how, model.split.cut) == ("layer", "Softmax")
    np.testing.assert_allclose(probabilities(model.logits(x)), told(file, x)["probabilities"], atol=1 / 256)
    train(model)
    np.testing.assert_allclose(
        told(model.onnx_bytes(x), x)["probabilities"], probabilities(model.logits(x)), atol=1 / 256
    )


def one_number(*endings: Any, bias: float = 0.0) -> bytes:
    """A file that gives one number for a sample: a sum that is no linear layer, then `endings`."""
    held = {"b": np.array(bias, np.float32), "axes": np.array([1])}
    constants = [numpy_helper.from_array(values, name) for name, values in held.items()]
    nodes = [
        helper.make_node("Sub", ["x", "b"], ["centred"]),
        helper.make_node("ReduceSum", ["centred", "axes"], ["sum"], keepdims=1),
        *endings,
    ]
    last = nodes[-1].output[0]
    return ml_file(nodes, [float_port(last)], constants)


def test_one_column_for_two_classes() -> None:
    x = samples()
    sigmoid = helper.make_node("Sigmoid", ["sum"], ["y"])
    flat = helper.make_node("Squeeze", ["y", "axes"], ["z"])
    for file in (one_number(sigmoid, bias=0.4), one_number(sigmoid, flat, bias=0.4)):
        model = OnnxModel(file, 2)
        (name, given), *_ = told(file, x).items()
        np.testing.assert_allclose(probabilities(model.logits(x))[:, 1], given.ravel(), atol=1e-5)
        np.testing.assert_allclose(probabilities(OnnxTeacher(file, 2).logits(x))[:, 1], given.ravel(), atol=1e-5)
        train(model)
        after = told(model.onnx_bytes(x), x)[name]
        assert after.shape == given.shape
        np.testing.assert_allclose(after.ravel(), probabilities(model.logits(x))[:, 1], atol=1e-4)
    score = OnnxModel(one_number(bias=0.4), 2)
    np.testing.assert_allclose(np.diff(score.logits(x)).ravel(), x.sum(axis=(1, 2, 3)) - 0.4 * WIDTH, atol=1e-5)
    half = helper.make_node("HardSigmoid", ["sum"], ["h"])
    squared = helper.make_node("Mul", ["h", "h"], ["y"])
    with pytest.raises(ModelError, match="one number from 0 to 1"):
        OnnxModel(one_number(half, squared), 2)


def test_a_label_beside_one_column() -> None:
    """As skl2onnx writes RidgeClassifier for two classes: of both scores, the output has the second."""
    rows = np.random.default_rng(0).normal(size=(2, WIDTH)) * [[1], [0]]
    node = ml_node(
        "LinearClassifier",
        ["x"],
        ["label", "both"],
        coefficients=np.stack([-rows[0], rows[0]]).ravel().tolist(),
        intercepts=[0.0, 0.0],
        classlabels_ints=[5, 6],
        post_transform="NONE",
    )
    second = ml_node("ArrayFeatureExtractor", ["both", "one"], ["score"])
    constants = [numpy_helper.from_array(np.array([1]), "one")]
    file, x = ml_file([node, second], [label_port(), float_port("score", None, 1)], constants), samples()
    model = OnnxModel(file, 2)
    np.testing.assert_allclose(np.diff(model.logits(x)), told(file, x)["score"], atol=1e-5)
    train(model)
    after = told(model.onnx_bytes(x), x)
    np.testing.assert_allclose(after["score"], np.diff(model.logits(x)), atol=1e-4)
    assert after["label"].tolist() == (5 + model.logits(x).argmax(axis=1)).tolist()


def test_a_bare_layer_of_one_column() -> None:
    """As nets that were trained with BCEWithLogitsLoss are exported."""
    file, x = classifier(("n", WIDTH), classes=1), samples()
    model = OnnxModel(file, 2)
    np.testing.assert_allclose(np.diff(model.logits(x)), told(file, x)["logits"], atol=1e-5)
    train(model)
    np.testing.assert_allclose(told(model.onnx_bytes(x), x)["logits"], np.diff(model.logits(x)), atol=1e-4)
    with pytest.raises(ModelError, match="classes=2"):
        OnnxModel(file)


def test_a_probability_for_each_class_alone() -> None:
    """LOGISTIC over several classes, not normalised: what comes before its Sigmoid are the logits."""
    file, x = linear_classifier("LOGISTIC", normalised=False), samples()
    model = OnnxModel(file)
    assert (model.split.how, model.split.cut) == ("layer", "Sigmoid")
    np.testing.assert_allclose(1 / (1 + np.exp(-model.logits(x))), told(file, x)["probabilities"], atol=1e-5)
    for head in ("linear", "cosine"):
        model = OnnxModel(file, head=head)  # type: ignore[arg-type]  # both are heads
        train(model)
        after = told(model.onnx_bytes(x), x)
        np.testing.assert_allclose(after["probabilities"], 1 / (1 + np.exp(-model.logits(x))), atol=1e-4)
        assert after["label"].tolist() == model.logits(x).argmax(axis=1).tolist()
    with pytest.raises(ModelError, match="do not sum to 1"):
        OnnxTeacher(file, CLASSES)


def test_scores_that_contradict_the_label_are_refused() -> None:
    node = ml_node("SVMClassifier", ["x"], ["label", "probabilities"], classlabels_ints=[0, 1], kernel_type="LINEAR")
    with pytest.raises(ModelError, match="lower score is the label"):
        OnnxModel(ml_file([node], [label_port(), float_port("probabilities", None, 2)]), 2)


# -- several outputs ------------------------------------------------------------------------------------------------


def with_outputs(file: bytes, *names: str) -> bytes:
    """The file with these tensors as its outputs."""

    def shown(model: Any) -> None:
        del model.graph.output[:]
        model.graph.output.extend(float_port(name, "n", None) for name in names)

    return changed(file, shown)


@pytest.mark.parametrize("names", [("features", "logits"), ("hidden", "features", "end0"), ("logits", "end0")], ids=str)
def test_the_output_behind_the_last_layer_is_taken_and_all_are_kept(names: tuple[str, ...]) -> None:
    file, x = with_outputs(classifier(("n", WIDTH), endings=["Softmax"]), *names), samples()
    before, model = told(file, x), OnnxModel(file)
    assert (model.split.how, model.split.features, model.spec.classes) == ("layer", "features", CLASSES)
    train(model)
    after = told(model.onnx_bytes(x), x)
    assert [*after] == [*names]
    if "features" in names:
        np.testing.assert_array_equal(after["features"], before["features"])
    if "end0" in names:
        np.testing.assert_allclose(after["end0"], probabilities(model.logits(x)), atol=1e-4)
    if "logits" in names:
        np.testing.assert_allclose(after["logits"], model.logits(x), atol=1e-4)


def test_an_extractor_keeps_its_outputs_beside_the_new_head() -> None:
    file, x = with_outputs(classifier(("n", WIDTH)), "hidden", "features"), samples()
    model = OnnxModel(file, 3, output="features")
    assert [*told(model.onnx_bytes(x), x)] == ["logits", "hidden", "features"]
    np.testing.assert_allclose(told(model.onnx_bytes(x), x)["logits"], model.logits(x), atol=1e-5)


def two_layers() -> bytes:
    """Two linear layers side by side, of three and of four classes."""
    rng = np.random.default_rng(0)
    constants = [numpy_helper.from_array(rng.normal(size=(WIDTH, k)).astype(np.float32), f"w{k}") for k in (3, 4)]
    nodes = [helper.make_node("MatMul", ["x", f"w{k}"], [f"of{k}"]) for k in (3, 4)]
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", WIDTH])
    return file_of(nodes, [port], ["of3", "of4"], constants)


def test_what_the_structure_does_not_decide_is_named() -> None:
    file, x = two_layers(), samples()
    with pytest.raises(ModelError, match=r"of3, of4.*output="):
        OnnxModel(file)
    for model in (OnnxModel(file, 4), OnnxModel(file, output="of4")):
        np.testing.assert_allclose(model.logits(x), told(file, x)["of4"], atol=1e-5)
    np.testing.assert_allclose(OnnxTeacher(file, 3, output="of3").logits(x), told(file, x)["of3"], atol=1e-5)
    with pytest.raises(ModelError, match=r"output 'of5': the file has no such output; nearest: .*of4"):
        OnnxModel(file, output="of5")


def test_inspect_names_an_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "two.onnx"
    file.write_bytes(two_layers())
    assert main(["inspect", str(file)]) == 2
    assert "output=" in capsys.readouterr().err
    assert main(["inspect", str(file), "--output", "of3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["head_starts"], found["classes"]) == ("layer", 3)


def test_inspect_finds_probabilities(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "forest.onnx"
    file.write_bytes(forest(zipmap=True, strings=True))
    assert main(["inspect", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["head_starts"], found["classes"], found["classes_known"]) == ("outputs", CLASSES, True)
    assert "the logarithm of the probabilities" in found["remark"]
    assert found["class_labels"] == ["kind 0", "kind 1", "kind 2", "kind 3"]


# -- large ensembles ------------------------------------------------------------------------------------------------


def test_an_ensemble_of_many_trees_is_read_in_linear_time() -> None:
    """With a copy of the list so far for each number, as it was, these lists of 24,000 take 24 seconds."""
    file = forest(8_000)
    begun = time.process_time()
    graph = read_graph(file, "forest")
    content = graph.content()
    assert time.process_time() - begun < 2
    assert len(content) > 0.9 * len(file)
