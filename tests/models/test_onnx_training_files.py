"""Files that other tools write, and files that no layer can learn from: what learns, and one clear line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from model_suite import CLASSES, SHAPE, batches, samples
from onnx_files import answers, file_of
from test_onnx_training import SGD, exported, net

from edge_sdk.errors import ModelError
from edge_sdk.models.base import Batches
from edge_sdk.objectives import CrossEntropy, Optim

torch = pytest.importorskip("torch")
pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.torch

from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel
from edge_sdk.models.torch_nets.torch_model import TorchModel

RNG = np.random.default_rng(0)


def array(name: str, *shape: int, kind: type = np.float32) -> Any:
    return numpy_helper.from_array(RNG.normal(0, 0.3, shape).astype(kind), name)


def file(
    nodes: Sequence[Any], constants: Sequence[Any], outputs: Sequence[str] = ("logits",), features: str = "features"
) -> bytes:
    """Samples (n, 1, 6, 6) as `flat` (n, 36), some operators that give features (n, 8), and a last layer."""
    first = helper.make_node("Flatten", ["x"], ["flat"])
    last = helper.make_node("Gemm", [features, "head.weight", "head.bias"], ["logits"], transB=1)
    held = [*constants, array("head.weight", CLASSES, 8), array("head.bias", CLASSES)]
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *SHAPE])
    return file_of([first, *nodes, last], [port], outputs, held)


def dense(given: str, weight: str, output: str) -> Any:
    return helper.make_node("MatMul", [given, weight], [output])


def loop() -> bytes:
    """Two layers with a loop between them."""
    inner = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["again"]), helper.make_node("Mul", ["state", "state"], ["next"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
        ],
    )
    nodes = [
        dense("flat", "first", "a"),
        helper.make_node("Loop", ["times", "", "a"], ["b"], body=inner),
        dense("b", "second", "features"),
    ]
    times = numpy_helper.from_array(np.array(2, np.int64), "times")
    return file(nodes, [array("first", 36, 8), array("second", 8, 8), times])


def custom() -> bytes:
    """A layer, and an operator of ONNX Runtime's own set."""
    nodes = [dense("flat", "first", "a"), helper.make_node("QuickGelu", ["a"], ["features"], domain="com.microsoft")]
    model = onnx.load_from_string(file(nodes, [array("first", 36, 8)]))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return bytes(model.SerializeToString())


def half() -> bytes:
    """Weights in two bytes."""
    nodes = [helper.make_node("Cast", ["first"], ["wide"], to=TensorProto.FLOAT), dense("flat", "wide", "features")]
    return file(nodes, [array("first", 36, 8, kind=np.float16)])


def shared_with_head() -> bytes:
    """The last layer's weights are used before it, too."""
    nodes = [dense("flat", "first", "a"), dense("a", "head.weight", "b"), dense("b", "second", "features")]
    model = onnx.load_from_string(file(nodes, [array("first", 36, CLASSES), array("second", 8, 8)]))
    return bytes(model.SerializeToString())


def nothing() -> bytes:
    """No layer before the last one."""
    chosen = numpy_helper.from_array(np.arange(8), "chosen")
    return file([helper.make_node("Gather", ["flat", "chosen"], ["features"], axis=1)], [chosen])


def old_opset() -> bytes:
    """Operator set 12."""
    model = onnx.load_from_string(file([dense("flat", "first", "features")], [array("first", 36, 8)]))
    model.opset_import[0].version = 12
    return bytes(model.SerializeToString())


def fixed_batch() -> bytes:
    """Batches of 4 alone, as a Reshape has it."""
    shape = numpy_helper.from_array(np.array([4, 36]), "shape")
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["again"]), dense("again", "first", "features")]
    model = onnx.load_from_string(file(nodes, [array("first", 36, 8), shape]))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (custom, r"no layer before the last one can learn \(train='all'\): com.microsoft.QuickGelu freezes them: use"),
        (half, r"its weights are float16 \(first\): to train all layers, export them as float32"),
        (nothing, r"no layer before the last one can learn \(train='all'\): use train='head'"),
        (old_opset, r"opset 12: training its layers needs 13 or later"),
        (fixed_batch, r"the file takes batches of 4 alone: .* export it with a dynamic batch"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_one_line_says_why_no_layer_learns(made: Callable[[], bytes], line: str) -> None:
    content = made()
    OnnxModel(content)  # its head learns
    with pytest.raises(ModelError, match=line) as caught:
        OnnxModel(content, train="all")
    assert "\n" not in str(caught.value)


def test_a_head_that_shares_its_weights_is_refused() -> None:
    content = shared_with_head_square()
    with pytest.raises(ModelError, match=r"its last layer shares the weights 'head.weight' .*use train='head'"):
        OnnxModel(content, train="all")


@pytest.mark.parametrize(
    ("last", "shared"),
    [
        ({"inputs": ["features", "head.weight"]}, "head.weight"),
        ({"inputs": ["features", "head.weight", "head.bias"], "alpha": 0.5}, "head.weight"),
        ({"inputs": ["features", "other", "head.bias"]}, "head.bias"),
    ],
    ids=["without a bias", "scaled", "the bias alone"],
)
def test_a_last_layer_of_any_form_that_shares_a_constant_is_refused(last: dict[str, Any], shared: str) -> None:
    first = helper.make_node("Gemm", ["flat", "first", "head.bias"], ["a"])
    again = dense("a", "head.weight" if shared == "head.weight" else "second", "features")
    end = helper.make_node("Gemm", last.pop("inputs"), ["logits"], transB=1, **last)
    held = [array("first", 36, 8), array("second", 8, 8), array("other", 8, 8), array("head.weight", 8, 8)]
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *SHAPE])
    nodes = [helper.make_node("Flatten", ["x"], ["flat"]), first, again, end]
    content = file_of(nodes, [port], ["logits"], [*held, array("head.bias", 8)])
    for make in (partial(OnnxModel, train="all"), NumpyModel.from_onnx):
        with pytest.raises(
            ModelError, match=rf"its last layer shares the weights '(head.bias|{shared})' with an earlie"
        ):
            make(content)


def shared_with_head_square() -> bytes:
    """As many classes as features, and one layer twice."""
    nodes = [dense("flat", "first", "a"), dense("a", "head.weight", "features")]
    held = [array("first", 36, 8), array("head.weight", 8, 8), array("head.bias", 8)]
    first = helper.make_node("Flatten", ["x"], ["flat"])
    last = helper.make_node("Gemm", ["features", "head.weight", "head.bias"], ["logits"], transB=1)
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *SHAPE])
    return file_of([first, *nodes, last], [port], ["logits"], held)


def test_a_loop_freezes_what_lies_before_it() -> None:
    model = OnnxModel(loop(), train="all")
    assert model.weight_names() == ("second", "head.weight", "head.bias")
    assert "learns: 2 of 3 layers; Loop freezes what lies before it" in model.spec.note
    before = model.logits(samples()[0])
    model.fit(batches(5), (CrossEntropy(),), SGD)
    assert np.abs(model.logits(samples()[0]) - before).max() > 1e-4


def test_quantised_layers_stay_and_the_float_ones_behind_them_learn() -> None:
    scale = [numpy_helper.from_array(np.array(0.05, np.float32), "scale"),
             numpy_helper.from_array(np.array(0, np.int8), "zero")]  # fmt: skip
    first = numpy_helper.from_array(RNG.integers(-90, 90, (36, 8)).astype(np.int8), "first.q")
    nodes = [
        helper.make_node("DequantizeLinear", ["first.q", "scale", "zero"], ["first"]),
        dense("flat", "first", "a"),
        helper.make_node("QuantizeLinear", ["a", "scale", "zero"], ["aq"]),
        helper.make_node("DequantizeLinear", ["aq", "scale", "zero"], ["b"]),
        dense("b", "second", "c"),
        helper.make_node("Relu", ["c"], ["features"]),
    ]
    model = OnnxModel(file(nodes, [first, *scale, array("second", 8, 8)]), train="all")
    assert model.weight_names() == ("second", "head.weight", "head.bias")
    assert "learns: 2 of 3 layers" in model.spec.note


def test_weights_that_two_layers_share_learn_from_both() -> None:
    """And equal torch's, which has them once."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.twice, self.last = nn.Linear(36, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.twice(self.twice(self.first(x.flatten(1))).tanh()).tanh())

    one, two = OnnxModel(exported(Shared()), train="all"), TorchModel(Shared(), CLASSES, input_shape=SHAPE)
    assert one.spec.layout == two.spec.layout
    for each in (one, two):
        each.fit(batches(10), (CrossEntropy(),), SGD)
    np.testing.assert_allclose(one.weights(), two.weights(), atol=1e-6)


def test_an_initialiser_that_is_an_output_too_is_written_as_trained() -> None:
    content = file([dense("flat", "first", "features")], [array("first", 36, 8)], outputs=("logits", "first"))
    model, x = OnnxModel(content, train="all", output="logits"), samples()[0]
    model.fit(batches(3), (CrossEntropy(),), SGD)
    written = model.onnx_bytes(x)
    (held,) = (each for each in onnx.load_from_string(written).graph.initializer if each.name == "first")
    np.testing.assert_allclose(answers(written, x), model.logits(x), atol=1e-5)
    np.testing.assert_array_equal(numpy_helper.to_array(held), model.learning.arrays_by_name()["first"])


def test_a_loss_that_goes_to_infinity_ends_in_weights_that_are_seen_not_to_be_finite() -> None:
    model = OnnxModel(exported(net()), train="all")
    with np.errstate(all="ignore"):
        model.fit(batches(30), (CrossEntropy(),), Optim(kind="sgd", learning_rate=1e30))
    assert not np.isfinite(model.weights()).all()


def test_sizes_that_follow_from_the_samples_are_no_part_of_training() -> None:
    """NonZero finds another number of places in each sample: its slope has no shape."""
    nodes = [
        dense("flat", "first", "a"),
        helper.make_node("NonZero", ["a"], ["places"]),
        helper.make_node("Cast", ["places"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["floats"], ["mean"], keepdims=0),
        helper.make_node("Add", ["a", "mean"], ["features"]),
    ]
    with pytest.raises(ModelError, match="NonZero freezes them"):
        OnnxModel(file(nodes, [array("first", 36, 8)]), train="all")


def test_parts_of_a_sequence_learn() -> None:
    """As the newer exporter writes torch.chunk: the second half of 8 numbers, then the first."""
    whole = [numpy_helper.from_array(np.array(n, np.int64), name) for name, n in (("four", 4), ("0", 0), ("1", 1))]
    nodes = [
        dense("flat", "first", "a"),
        helper.make_node("SplitToSequence", ["a", "four"], ["parts"], axis=1),
        helper.make_node("SequenceAt", ["parts", "1"], ["b"]),
        helper.make_node("SequenceAt", ["parts", "0"], ["c"]),
        helper.make_node("Concat", ["b", "c"], ["features"], axis=1),
    ]
    content, x = file(nodes, [array("first", 36, 8), *whole]), samples()[0]
    model = OnnxModel(content, train="all")
    assert "learns: 2 of 2 layers" in model.spec.note
    np.testing.assert_allclose(model.logits(x), answers(content, x), atol=1e-5)
    before = model.weights()
    model.fit(batches(1), (CrossEntropy(),), SGD)
    assert np.abs(model.weights() - before)[: 36 * 8].max() > 1e-4


@pytest.mark.parametrize("opset", [13, 15, 17])
def test_operator_sets_of_the_older_exporter(opset: int) -> None:
    model = OnnxModel(exported(net(), opset_version=opset), train="all")
    two = TorchModel(net(), CLASSES, input_shape=SHAPE)
    for each in (model, two):
        each.fit(batches(5), (CrossEntropy(),), SGD)
    np.testing.assert_allclose(model.weights(), two.weights(), atol=1e-6)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("opset", [18, 20, 21, 23])
def test_operator_sets_of_the_newer_exporter(opset: int, tmp_path: Any) -> None:
    pytest.importorskip("onnxscript")
    path = tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about itself
        torch.onnx.export(net(), (torch.zeros(2, *SHAPE),), path, dynamo=True, optimize=False, opset_version=opset,
                          dynamic_shapes=({0: torch.export.Dim("n")},), external_data=False,
                          verbose=False)  # fmt: skip
    model, two = OnnxModel(path, train="all"), TorchModel(net(), CLASSES, input_shape=SHAPE)
    assert model.spec.layout == two.spec.layout
    for each in (model, two):
        each.fit(batches(5), (CrossEntropy(),), SGD)
    np.testing.assert_allclose(model.weights(), two.weights(), atol=1e-6)


class Attending(nn.Module):
    """A layer of a transformer over six steps of six numbers, and a last layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, dropout=0.0)
        self.last = nn.Linear(36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x.flatten(1, 2)).flatten(1))


def attending(tmp_path: Any) -> bytes:
    """A file of the newer exporter, with the operator Attention."""
    path = tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about itself
        torch.onnx.export(Attending().eval(), (torch.zeros(2, *SHAPE),), path, dynamo=True, optimize=False,
                          dynamic_shapes=({0: torch.export.Dim("n")},), external_data=False, opset_version=23,
                          verbose=False)  # fmt: skip
    return path.read_bytes()


def test_attention_of_the_newer_exporter_learns_as_in_torch(tmp_path: Any) -> None:
    content = attending(tmp_path)
    assert any(each.op_type == "Attention" for each in onnx.load_from_string(content).graph.node)
    model, two = OnnxModel(content, train="all"), TorchModel(Attending().eval(), CLASSES, input_shape=SHAPE)
    assert "freezes" not in model.spec.note
    x, start = samples()[0], model.logits(samples()[0])
    for each in (model, two):
        each.fit(batches(20), (CrossEntropy(),), SGD)
    np.testing.assert_allclose(model.logits(x), two.logits(x), atol=1e-5)
    assert np.abs(model.logits(x) - start).max() > 1e-3


def test_attention_with_a_cap_freezes_what_lies_before_it(tmp_path: Any) -> None:
    found = onnx.load_from_string(attending(tmp_path))
    (each,) = (each for each in found.graph.node if each.op_type == "Attention")
    (cap,) = (one for one in each.attribute if one.name == "softcap")
    cap.f = 2.0
    assert "Attention freezes what lies before it" in OnnxModel(found.SerializeToString(), train="all").spec.note


FAMILIES = ("mobilenet_v3_small", "mobilenet_v2", "resnet18", "shufflenet_v2_x0_5", "efficientnet_b0", "mnasnet0_5",
            "regnet_y_400mf", "densenet121", "googlenet", "convnext_tiny", "vit_b_16", "swin_t")  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_net_of_torchvision_learns_whole(family: str) -> None:
    """Its layout is that of torch, and so is its gradient: of one step with rate 1."""
    pytest.importorskip("edge_sim.models.torch_vision")  # which finds torchvision's operators
    vision = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    more = {"init_weights": False, "aux_logits": False} if family == "googlenet" else {}
    if family == "vit_b_16":
        made = vision.VisionTransformer(64, 16, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=5)
    else:
        made = getattr(vision, family)(weights=None, num_classes=5, **more)
    shape, optim = (3, 64, 64), Optim(kind="sgd", learning_rate=1.0)
    one = OnnxModel(exported(made.eval(), shape), train="all")
    two = TorchModel(made, 5, input_shape=shape)
    assert one.spec.layout == two.spec.layout
    assert one.learning.report.learning == one.learning.report.layers
    x = np.random.default_rng(0).normal(size=(4, *shape)).astype(np.float32)
    work = Batches(inputs=x, labels=np.arange(4), indices=np.arange(4)[None], stochastic=False)
    start = one.weights()
    for each in (one, two):
        each.fit(work, (CrossEntropy(),), optim)
    gradient, expected = one.weights() - start, two.weights() - start
    assert np.abs(gradient - expected).max() < 2e-4 * np.abs(expected).max()  # a ReLU may lie at its kink
    assert np.linalg.norm(gradient - expected) < 1e-4 * np.linalg.norm(expected)


def test_the_whole_file_gives_what_the_model_does() -> None:
    content, x = exported(net()), samples()[0]
    np.testing.assert_allclose(OnnxModel(content, train="all").logits(x), answers(content, x), atol=1e-5)
