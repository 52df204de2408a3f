"""What a board finds out before it trains a file: by the shapes alone, without a pass of a large sample, and with pauses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from model_suite import CLASSES, batches  # only where onnx is installed
from onnx import TensorProto, helper, numpy_helper

from edge_sdk.errors import ModelError
from edge_sdk.models import numpy_model as numpy_module
from edge_sdk.models.base import ahead, preparing
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.models.onnx_file.graph import port, read_graph
from edge_sdk.models.onnx_runtime import onnx_session as session_module
from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel
from edge_sdk.models.onnx_runtime.onnx_session import OnnxEngine, OnnxSession
from edge_sdk.models.onnx_training import body as body_module
from edge_sdk.models.onnx_training.body import GraphBody
from edge_sdk.objectives import CrossEntropy, Optim, Proximal

CHANNELS = 8
SGD = Optim(kind="sgd", learning_rate=0.1)
PLAIN = (CrossEntropy(),)


def pictures_file(side: int, channels: int = 3) -> bytes:
    """A convolution, a Reshape to sizes that the graph computes, a mean and a linear layer; samples (channels, side, side)."""
    rng = np.random.default_rng(0)
    held = {
        "conv": rng.normal(size=(CHANNELS, channels, 3, 3)).astype(np.float32),
        "weight": rng.normal(size=(CLASSES, CHANNELS)).astype(np.float32),
        "bias": np.zeros(CLASSES, np.float32),
        "two": np.array([2]),
        "rest": np.array([-1]),
        "last": np.array([2]),
    }
    nodes = [
        helper.make_node("Conv", ["x", "conv"], ["maps"], pads=[1, 1, 1, 1]),
        helper.make_node("Shape", ["maps"], ["first"], start=0, end=2),
        helper.make_node("Concat", ["first", "rest"], ["sizes"], axis=0),
        helper.make_node("Reshape", ["maps", "sizes"], ["rows"]),
        helper.make_node("ReduceMean", ["rows", "last"], ["features"], keepdims=0),
        helper.make_node("Gemm", ["features", "weight", "bias"], ["logits"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", channels, side, side])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", CLASSES])],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return bytes(made.SerializeToString())


def test_a_file_for_large_pictures_is_described_without_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def runs(_self: object, _x: Any) -> Any:
        raise AssertionError("a picture of 2048 x 2048 runs")

    small = OnnxModel(pictures_file(32), train="all")
    monkeypatch.setattr(OnnxSession, "_run", runs)
    monkeypatch.setattr(body_module, "free_memory_bytes", lambda: 2**36)
    whole = OnnxEngine.function

    def function(self: OnnxEngine, graph: Any) -> Any:
        run = whole(self, graph)
        return lambda inputs: run(inputs) if "maps" not in graph.outputs else runs(self, inputs)

    monkeypatch.setattr(OnnxEngine, "function", function)
    large = OnnxModel(pictures_file(2048), train="all")
    assert large.learning is not None
    assert large.learning.report.remark() == "learns: 2 of 2 layers"
    assert small.learning is not None
    ratio = large.learning.written_bytes / small.learning.written_bytes
    assert ratio == pytest.approx(64**2, rel=0.01)


def test_an_ending_that_is_guessed_is_tried_on_one_large_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    session = OnnxSession(read_graph(pictures_file(6), "net"), name="net")
    small = session.trial()
    assert len(small) == 4
    monkeypatch.setattr(session_module, "_LARGE", 3 * 6 * 6 - 1)
    np.testing.assert_array_equal(session.trial(), small[:1])


def test_shapes_and_types_are_those_of_a_pass() -> None:
    body = OnnxModel(pictures_file(6), train="all").learning
    assert body is not None
    names = [name for each in body._graph.nodes for name in each.outputs if name]
    graph = body_module.replace(body._graph, outputs={name: port(name) for name in names})
    inputs = {"x": np.zeros((4, 3, 6, 6), np.float32), **body._views(body.values)}
    engine = OnnxEngine()
    told, ran = engine.shaped(graph, inputs), dict(zip(names, engine.function(graph)(inputs), strict=True))
    assert {n: (a.shape, a.dtype) for n, a in told.items()} == {n: (a.shape, a.dtype) for n, a in ran.items()}
    np.testing.assert_array_equal(told["sizes"], ran["sizes"])


def test_memory_that_does_not_suffice_is_one_line_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = NumpyModel(3, (1, 1, 8), seed=1, hidden=(512, 1024)).onnx_bytes(np.zeros((1, 1, 1, 8), np.float32))
    monkeypatch.setattr(body_module, "free_memory_bytes", lambda: 2**22)
    with pytest.raises(ModelError, match=r"training takes \d+ MiB for one sample, and 4 MiB are free: .*last-4"):
        OnnxModel(pictures_file(512), train="all")
    assert OnnxModel(pictures_file(512)).learning is None
    for each in (OnnxModel, NumpyModel.from_onnx):  # the moments of Adam take 4 MiB
        with pytest.raises(ModelError, match=r"training takes 4 MiB for one sample, and 4 MiB are free"):
            each(wide, train="all")


@pytest.mark.parametrize("at_once", [True, False])
def test_a_first_step_is_prepared_with_pauses(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = OnnxModel(pictures_file(6, channels=1), train="all")
    objective = PLAIN if at_once else (*PLAIN, Proximal(anchor=model.weights(), weight=0.1))
    work = batches(5)
    pauses = sum(1 for _ in preparing(model, work, objective, "all"))
    assert pauses == (4 if at_once else 5)
    with monkeypatch.context() as patched:
        patched.setattr(GraphBody, "_made", None)  # what it would make is there
        model.fit(work, objective, SGD)
    assert not [*preparing(model, work, objective, "all")]
    other = OnnxModel(pictures_file(6, channels=1), train="all")
    other.fit(work, objective, SGD)
    np.testing.assert_array_equal(model.weights(), other.weights())


@pytest.mark.parametrize("train", ["all", "head"])
@pytest.mark.parametrize("quick", [True, False])
def test_answers_about_many_samples_are_computed_ahead_with_pauses(
    train: str, quick: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit as without: nothing depends on how quick the board is."""
    x = np.random.default_rng(0).normal(size=(300, 1, 6, 6)).astype(np.float32)
    model = OnnxModel(pictures_file(6, channels=1), train=train)
    monkeypatch.setattr(numpy_module, "BETWEEN_ANSWERS_S", 1e9 if quick else 0.0)
    pieces = []
    ask = type(model).feature_rows

    def asked(self: OnnxModel, x: Any, index: Any) -> Any:
        pieces.append(len(index))
        return ask(self, x, index)

    monkeypatch.setattr(OnnxModel, "feature_rows", asked)
    pauses = sum(1 for _ in ahead(model, x[:256]))
    assert pauses == len(pieces)
    assert max(pieces) == {(True, "all"): 128, (True, "head"): 128}.get((quick, train), 64 if train == "all" else 1)
    logits = model.logits(x[:256])
    assert len(pieces) == pauses  # what was computed ahead is taken
    again = OnnxModel(pictures_file(6, channels=1), train=train)
    np.testing.assert_array_equal(logits, again.logits(x[:256].copy()))
    assert [*ahead(model, x[:256])]
    np.testing.assert_array_equal(model.logits(x[44:]), again.logits(x[44:].copy()))  # others are asked about


def test_what_was_computed_ahead_is_dropped_where_the_weights_change() -> None:
    x = np.random.default_rng(0).normal(size=(200, 1, 6, 6)).astype(np.float32)
    for change in ("fit", "set_weights", "load_state"):
        model, other = (OnnxModel(pictures_file(6, channels=1), train="all") for _ in range(2))
        other.set_weights(0.5 * other.weights())
        state = other.state_bytes()
        assert [*ahead(model, x)]
        {
            "fit": lambda model=model: model.fit(batches(5), PLAIN, SGD),
            "set_weights": lambda model=model, other=other: model.set_weights(other.weights()),
            "load_state": lambda model=model, state=state: model.load_state(state),
        }[change]()
        other.set_weights(model.weights())
        np.testing.assert_array_equal(model.logits(x), other.logits(x.copy()))


def test_large_nets_compute_few_samples_together() -> None:
    body = OnnxModel(pictures_file(32), train="all").learning
    assert body is not None
    assert body.together == 64
    body.flops = 10**8
    assert body.together == 4
    body.flops = 10**10
    assert body.together == 1


def test_the_head_alone_needs_no_preparing() -> None:
    model = OnnxModel(pictures_file(6, channels=1), train="all")
    assert not [*preparing(model, batches(5), PLAIN, "head")]
    assert not [*preparing(OnnxModel(pictures_file(6, channels=1)), batches(5), PLAIN, "all")]
