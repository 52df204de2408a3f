"""Whole classifiers from .onnx files: the head starts from the file's last layer, whatever the file looks like."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from edge_sdk.data import Preprocess
from edge_sdk.errors import ModelError
from edge_sdk.models.base import Batches, pack_arrays
from edge_sdk.objectives import CrossEntropy, Optim

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper
from onnx_files import CLASSES, FORMS, WIDTH, answers, changed, classifier, file_of

from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel, OnnxTeacher

NUMBERS = st.sampled_from([(), ("Identity",), ("Reshape",), ("Dropout",)])
SOFT = st.sampled_from([(), ("Softmax",), ("LogSoftmax",), ("Softmax", "Identity")])


def inputs(shape: tuple[int, ...], n: int = 7) -> np.ndarray:
    return np.random.default_rng(3).random((n, *shape), np.float32)


def probabilities(logits: np.ndarray) -> np.ndarray:
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exp / exp.sum(axis=1, keepdims=True)


@given(form=st.sampled_from(FORMS), numbers=NUMBERS, soft=SOFT, listed=st.booleans())
@examples(30)
def test_the_head_starts_from_the_last_layer(
    form: str, numbers: tuple[str, ...], soft: tuple[str, ...], listed: bool
) -> None:
    file = classifier(form=form, endings=(*numbers, *soft), listed=listed and not soft and "Dropout" not in numbers)
    model, x = OnnxModel(file), inputs((1, 6, 6))
    expected = answers(file, x)
    assert (model.spec.classes, model.spec.feature_dim) == (CLASSES, WIDTH)
    found = model.logits(x)
    if soft:
        found = probabilities(found) if "Softmax" in soft else np.log(probabilities(found))
    np.testing.assert_allclose(found, expected, atol=1e-5)


SHAPES = {
    "flat": (("n", 12), (1, 1, 12)),
    "series": (("n", 4, 3), (1, 4, 3)),
    "channels first": (("n", 3, 4, 5), (3, 4, 5)),
    "channels last": (("n", 4, 5, 3), (3, 4, 5)),
    "grey, channels last": (("n", 4, 5, 1), (1, 4, 5)),
    "video": (("n", 2, 3, 2, 2), (1, 1, 24)),
    "open batch": ((None, 12), (1, 1, 12)),
    "batch of one": ((1, 3, 4, 5), (3, 4, 5)),
    "batch of three": ((3, 4, 3), (1, 4, 3)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_any_rank_layout_and_batch(name: str) -> None:
    declared, chw = SHAPES[name]
    file, x = classifier(declared), inputs(chw)
    own = x.transpose(0, 2, 3, 1) if "last" in name else x
    own = own.reshape(len(x), *declared[1:])
    batch = declared[0] if isinstance(declared[0], int) else 1
    expected = [answers(file, np.repeat(own[i : i + 1], batch, axis=0))[0] for i in range(len(x))]
    np.testing.assert_allclose(OnnxModel(file).logits(x), expected, atol=1e-5)


def test_a_fixed_batch_is_left_for_single_samples_where_the_graph_allows() -> None:
    assert OnnxModel(classifier((3, 1, 6, 6))).split.session.inputs.batch == 1
    w = np.random.default_rng(0).normal(size=(12, CLASSES)).astype(np.float32)
    shape = numpy_helper.from_array(np.array([3, 12]), "shape")
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["y"])]
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4, 3])
    model = OnnxModel(file_of(nodes, [port], ["y"], [shape, numpy_helper.from_array(w, "w")]))
    x = inputs((1, 4, 3))
    assert model.split.session.inputs.batch == 3
    np.testing.assert_allclose(model.logits(x), x.reshape(7, 12) @ w, atol=1e-5)


def test_no_batch_axis() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    w = np.random.default_rng(0).normal(size=(12, CLASSES)).astype(np.float32)
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, [12])
    model, x = OnnxModel(file_of(nodes, [port], ["y"], [numpy_helper.from_array(w, "w")])), inputs((1, 1, 12))
    np.testing.assert_allclose(model.logits(x), x.reshape(7, 12) @ w, atol=1e-5)


def test_a_layout_that_the_sizes_do_not_tell() -> None:
    file, x = classifier(("n", 3, 4, 3)), inputs((3, 3, 4))
    model = OnnxModel(file, layout="NHWC")
    np.testing.assert_allclose(model.logits(x), answers(file, x.transpose(0, 2, 3, 1)), atol=1e-5)
    with pytest.raises(ModelError):
        OnnxModel(file, layout="CHWN")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32, TensorProto.DOUBLE])
def test_input_of_another_type(kind: int) -> None:
    file = classifier(("n", 6), kind=kind)
    raw = np.random.default_rng(0).integers(0, 100, (5, 6))
    x = Preprocess()(raw.astype(np.uint8))
    expected = answers(file, raw.astype(helper.tensor_dtype_to_np_dtype(kind)))
    np.testing.assert_allclose(OnnxModel(file).logits(x), expected, rtol=1e-5, atol=1e-4)


def test_whole_numbers_are_not_made_of_fractions() -> None:
    file = classifier(("n", 6), kind=TensorProto.UINT8)
    with pytest.raises(ModelError, match="scale"):
        OnnxModel(file, preprocess=Preprocess(scale=1 / 255))
    for x in (inputs((1, 1, 6)), np.full((1, 1, 1, 6), 256, np.float32), np.full((1, 1, 1, 6), np.nan, np.float32)):
        with pytest.raises(ModelError, match="uint8"):
            OnnxModel(file).logits(x)


def test_several_inputs_through_an_adapter() -> None:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("a", "b")]
    w = np.random.default_rng(0).normal(size=(3, CLASSES)).astype(np.float32)
    nodes = [helper.make_node("Sub", ["a", "b"], ["d"]), helper.make_node("MatMul", ["d", "w"], ["y"])]
    file = file_of(nodes, ports, ["y"], [numpy_helper.from_array(w, "w")])
    x = inputs((1, 2, 3))
    model = OnnxModel(file, adapter=lambda s: {"a": s[:, 0, 0], "b": s[:, 0, 1].astype(np.float64)}, input_shape=(2, 3))
    np.testing.assert_allclose(model.logits(x), (x[:, 0, 0] - x[:, 0, 1]) @ w, atol=1e-5)
    with pytest.raises(ModelError, match="adapter="):
        OnnxModel(file)
    with pytest.raises(ModelError, match="a, b"):
        OnnxModel(file, adapter=lambda s: s[:, 0, 0], input_shape=(2, 3))
    with pytest.raises(ModelError, match="KeyError"):
        OnnxModel(file, adapter=lambda _: {}["a"], input_shape=(2, 3))
    with pytest.raises(ModelError, match="input_shape"):
        OnnxModel(file, adapter=lambda s: {"a": s[:, 0, 0], "b": s[:, 0, 1]})


def test_a_named_tensor() -> None:
    file, x = classifier(), inputs((1, 6, 6))
    hidden = OnnxModel(file, 3, features="hidden", seed=1)
    assert hidden.spec.feature_dim == WIDTH
    assert hidden.features(x).min() < 0 <= OnnxModel(file).features(x).min()
    assert OnnxModel(file, 3, features="features").spec.classes == 3
    np.testing.assert_allclose(OnnxModel(file, features="features").logits(x), answers(file, x), atol=1e-5)
    with pytest.raises(ModelError, match=r"'feature'.*features"):
        OnnxModel(file, features="feature")


def test_a_classifier_of_other_classes_gives_its_features() -> None:
    soft = OnnxModel(classifier(endings=["Softmax"]), 9)
    assert (soft.spec.feature_dim, soft.spec.classes) == (WIDTH, 9)
    wide = OnnxModel(classifier(), 3)
    assert (wide.spec.feature_dim, wide.spec.classes) == (CLASSES, 3)


def test_fewer_numbers_than_classes_are_refused_with_the_tensors_to_name() -> None:
    message = rf"it gives {CLASSES} numbers, and classes is 9: pass classes={CLASSES} .* or features='(\w+)' or features='(\w+)'"
    with pytest.raises(ModelError, match=message) as raised:
        OnnxModel(classifier(), 9)
    found = re.search(message, str(raised.value))
    assert found is not None
    assert [OnnxModel(classifier(), 9, features=name).spec.feature_dim for name in found.groups()] == [WIDTH, CLASSES]


def test_without_a_last_linear_layer_the_head_starts_as_identity() -> None:
    """A convolution and a mean, as in SqueezeNet; a layer that is scaled afterwards."""
    w = np.random.default_rng(0).normal(size=(CLASSES, 1, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["maps"]),
        helper.make_node("GlobalAveragePool", ["maps"], ["mean"]),
        helper.make_node("Softmax", ["mean"], ["y"], axis=1),
    ]
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 6, 6])
    file, x = file_of(nodes, [port], ["y"], [numpy_helper.from_array(w, "w")]), inputs((1, 6, 6))
    model = OnnxModel(file, CLASSES)
    np.testing.assert_allclose(probabilities(model.logits(x)), answers(file, x).reshape(7, CLASSES), atol=1e-5)
    with pytest.raises(ModelError, match="classes="):
        OnnxModel(file)
    with pytest.raises(ModelError, match="Softmax"):
        OnnxModel(file, CLASSES + 1)


def test_one_output_for_two_classes() -> None:
    file, x = classifier(classes=1, endings=["Sigmoid"]), inputs((1, 6, 6))
    model = OnnxModel(file)
    assert model.spec.classes == 2
    np.testing.assert_allclose(probabilities(model.logits(x))[:, 1:], answers(file, x), atol=1e-5)
    np.testing.assert_allclose(answers(model.onnx_bytes(x), x), answers(file, x), atol=1e-5)


def test_softmax_over_the_batch_is_refused() -> None:
    def over_samples(model: object) -> None:
        model.graph.node[-1].attribute[0].i = 0  # type: ignore[attr-defined]

    with pytest.raises(ModelError, match="axis 0"):
        OnnxModel(changed(classifier(endings=["Softmax"]), over_samples))


def test_labels_beside_the_logits_are_passed_over() -> None:
    def with_label(model: object) -> None:
        graph = model.graph  # type: ignore[attr-defined]
        graph.node.append(helper.make_node("ArgMax", ["logits"], ["label"], axis=1))
        graph.output.insert(0, helper.make_tensor_value_info("label", TensorProto.INT64, None))

    file, x = changed(classifier(), with_label), inputs((1, 6, 6))
    np.testing.assert_allclose(OnnxModel(file).logits(x), answers(classifier(), x), atol=1e-5)


def test_a_series_that_is_classified_step_by_step_is_refused() -> None:
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6, 3])
    w = numpy_helper.from_array(np.ones((3, CLASSES), np.float32), "w")
    with pytest.raises(ModelError, match="features="):
        OnnxModel(file_of([helper.make_node("MatMul", ["x", "w"], ["y"])], [port], ["y"], [w]))


@pytest.mark.parametrize("weights", ["w1", "w2"])
def test_nan_in_the_weights(weights: str) -> None:
    def spoil(model: object) -> None:
        for constant in model.graph.initializer:  # type: ignore[attr-defined]
            if constant.name == weights:
                values = numpy_helper.to_array(constant).copy()
                values.flat[1] = np.nan
                constant.CopyFrom(numpy_helper.from_array(values, weights))

    with pytest.raises(ModelError, match=f"{weights}.*NaN"):
        OnnxModel(changed(classifier(), spoil))


@pytest.mark.parametrize(
    ("opset", "said"), [("", "opset_import"), ("99", "99"), ("com.acme 1", "com.acme")], ids=["none", "later", "custom"]
)
def test_operator_sets_that_are_missing_or_unknown(opset: str, said: str) -> None:
    def replaced(model: object) -> None:
        del model.opset_import[:]  # type: ignore[attr-defined]
        if opset == "99":
            model.opset_import.append(helper.make_opsetid("", 99))  # type: ignore[attr-defined]
        elif opset:
            model.opset_import.extend([helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)])  # type: ignore[attr-defined]
            model.graph.node[0].domain = "com.acme"  # type: ignore[attr-defined]

    with pytest.raises(ModelError, match=said) as refused:
        OnnxModel(changed(classifier(), replaced), name="theirs")
    assert "\n" not in str(refused.value)


def test_weights_in_a_file_beside(tmp_path: Path) -> None:
    """As torch's exporter writes them."""
    model = onnx.load_from_string(classifier())
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    x = inputs((1, 6, 6))
    np.testing.assert_allclose(OnnxModel(tmp_path / "m.onnx").logits(x), answers(classifier(), x), atol=1e-5)
    with pytest.raises(ModelError, match=r"m\.data"):
        OnnxModel((tmp_path / "m.onnx").read_bytes())
    (tmp_path / "m.data").write_bytes(b"short")
    with pytest.raises(ModelError, match=r"m\.data"):
        OnnxModel(tmp_path / "m.onnx")
    (tmp_path / "m.data").unlink()
    with pytest.raises(ModelError, match=r"m\.data"):
        OnnxModel(tmp_path / "m.onnx")


def test_files_outside_of_the_model_s_folder_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(10_000))
    (tmp_path / "in").mkdir()

    def outside(model: object) -> None:
        for constant in model.graph.initializer:  # type: ignore[attr-defined]
            onnx.external_data_helper.set_external_data(constant, "../secret")
            constant.ClearField("raw_data")

    (tmp_path / "in" / "m.onnx").write_bytes(changed(classifier(), outside))
    with pytest.raises(ModelError, match="secret"):
        OnnxModel(tmp_path / "in" / "m.onnx")


def test_a_cosine_head_starts_from_the_directions_of_the_last_layer() -> None:
    file, x = classifier(form="matmul"), inputs((1, 6, 6))
    model, weights = OnnxModel(file, head="cosine"), OnnxModel(file).head_rows()[:, :-1]
    rows = model.head_rows()
    np.testing.assert_allclose(rows[:, :-1] / 20, weights / np.linalg.norm(weights, axis=1, keepdims=True), atol=1e-5)
    assert not rows[:, -1].any()
    assert model.logits(x).shape == (7, CLASSES)


def test_state_of_a_head_on_the_outputs_still_loads() -> None:
    """Before files were split, a classifier's logits were the features; such a head is composed with the last layer."""
    rng, file, x = np.random.default_rng(5), classifier(), inputs((1, 6, 6))
    stored = rng.normal(size=(CLASSES, CLASSES + 1)).astype(np.float32)
    model = OnnxModel(file)
    model.load_state(pack_arrays({"rows": stored}))
    np.testing.assert_allclose(model.logits(x), answers(file, x) @ stored[:, :-1].T + stored[:, -1], atol=1e-4)


def test_the_digest_is_of_the_body_alone() -> None:
    model, other = OnnxModel(classifier()), OnnxModel(classifier(seed=1))
    before = model.frozen_digest()
    train(model)
    assert model.frozen_digest() == before != other.frozen_digest()


def test_a_teacher_s_softmax_is_left_out() -> None:
    file, x = classifier(endings=["Softmax"]), inputs((1, 6, 6))
    np.testing.assert_allclose(OnnxTeacher(file, CLASSES).logits(x), OnnxModel(file).logits(x), atol=1e-5)


def train(model: OnnxModel) -> None:
    x = inputs((1, 6, 6), 20)
    work = Batches(inputs=x, labels=np.arange(20) % model.spec.classes, indices=np.arange(20).reshape(4, 5))
    model.fit(work, (CrossEntropy(),), Optim(learning_rate=0.1))


EXPORTED = {
    "layer": {"file": classifier(form="gemm-t")},
    "softmax": {"file": classifier(form="matmul-add", endings=["Softmax"])},
    "half": {"file": classifier(form="half")},
    "old": {"file": classifier(listed=True)},
    "batch of one": {"file": classifier((1, 1, 6, 6))},
    "extractor": {"file": classifier(), "classes": 3},
    "named": {"file": classifier(endings=["Softmax"]), "classes": 3, "features": "hidden"},
    "cosine": {"file": classifier(endings=["LogSoftmax"]), "head": "cosine"},
}


@pytest.mark.parametrize("name", EXPORTED)
def test_the_trained_head_written_back(name: str) -> None:
    model, x = OnnxModel(**EXPORTED[name]), inputs((1, 6, 6))  # type: ignore[arg-type]
    train(model)
    content = model.onnx_bytes(x)
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    expected = model.logits(x)
    if model.split.cut:
        expected = np.log(probabilities(expected)) if model.split.cut == "LogSoftmax" else probabilities(expected)
    found = np.concatenate([answers(content, x[i : i + 1]) for i in range(len(x))])
    np.testing.assert_allclose(found, expected, atol=1e-4)
    again = OnnxModel(content)
    np.testing.assert_allclose(again.onnx_bytes(x) and again.logits(x), model.logits(x), atol=1e-4)


def test_a_file_that_has_changed_is_not_mixed_with_the_old_head(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(classifier())
    model = OnnxModel(path)
    path.write_bytes(classifier(seed=1))
    with pytest.raises(ModelError, match="changed"):
        model.onnx_bytes(inputs((1, 6, 6)))
