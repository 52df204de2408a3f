"""docs/how-to/bring-your-model.md: its snippets run, one after the other, on small files."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge_sdk
from edge_sdk.models import export

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytest.importorskip("sklearn")

from onnx import TensorProto, helper, numpy_helper  # only where onnx is installed
from onnx_files import answers, classifier, file_of  # likewise

PAGE = (Path(__file__).parents[2] / "docs/how-to/bring-your-model.md").read_text(encoding="utf-8")


class FakeInterpreter:
    """As much of LiteRT's interpreter as the page uses."""

    def __init__(self, path: str, num_threads: int) -> None:
        assert (Path(path).suffix, num_threads) == (".tflite", 1)

    def allocate_tensors(self) -> None:
        pass

    def get_input_details(self) -> list[dict[str, Any]]:
        return [{"index": 0, "shape": np.array([1, 2, 2, 1]), "dtype": np.float32}]

    def get_output_details(self) -> list[dict[str, Any]]:
        return [{"index": 1}]

    def set_tensor(self, index: int, values: np.ndarray) -> None:
        assert (index, values.shape, values.dtype) == (0, (1, 2, 2, 1), np.float32)
        self.values = values

    def invoke(self) -> None:
        self.answer = self.values.reshape(1, 4) / self.values.sum()

    def get_tensor(self, index: int) -> np.ndarray:
        assert index == 1
        return self.answer


def two_inputs() -> bytes:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("left", "right")]
    nodes = [helper.make_node("Sub", ["left", "right"], ["d"]), helper.make_node("MatMul", ["d", "w"], ["y"])]
    return file_of(nodes, ports, ["y"], [numpy_helper.from_array(np.ones((3, 4), np.float32), "w")])


def test_the_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    litert = types.ModuleType("ai_edge_litert.interpreter")
    litert.Interpreter = FakeInterpreter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ai_edge_litert", types.ModuleType("ai_edge_litert"))
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", litert)
    Path("model.onnx").write_bytes(classifier(("n", 1, 2, 2)))
    Path("two_inputs.onnx").write_bytes(two_inputs())
    x = np.random.default_rng(0).random((5, 1, 2, 2), np.float32)
    digits = np.zeros((2, 1, 1, 64), np.float32)

    class Agent:
        def export(self, path: str) -> Path:
            return export(edge_sdk.OnnxModel("model.onnx"), path, x)

    names: dict[str, Any] = {"agent": Agent()}
    for snippet in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        exec(snippet, names)
        if "RandomForest" in snippet or "sklearn" in snippet:
            assert names["model"].logits(digits).shape == (2, 10)
    np.testing.assert_allclose(names["model"].logits(x).argmax(axis=1), x.reshape(5, 4).argmax(axis=1))
    assert answers(names["file"].read_bytes(), x).shape == (5, 4)
