"""Model runtimes behind one protocol.

`from edge_sdk.models import TorchModel` loads torch; importing this package loads no runtime at all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge_sdk.models.base import Batches, FitReport, Model, ModelSpec
    from edge_sdk.models.exporting import export
    from edge_sdk.models.linear_head import LinearHead
    from edge_sdk.models.numpy_model import NumpyModel
    from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel, OnnxTeacher
    from edge_sdk.models.predict_only import PredictOnly
    from edge_sdk.models.sklearn_model import SklearnModel
    from edge_sdk.models.torch_model import TorchModel

__all__ = [
    "Batches",
    "FitReport",
    "LinearHead",
    "Model",
    "ModelSpec",
    "NumpyModel",
    "OnnxModel",
    "OnnxTeacher",
    "PredictOnly",
    "SklearnModel",
    "TorchModel",
    "export",
]

_HOMES = {
    "Batches": "base",
    "FitReport": "base",
    "Model": "base",
    "ModelSpec": "base",
    "export": "exporting",
    "LinearHead": "linear_head",
    "NumpyModel": "numpy_model",
    "OnnxModel": "onnx_runtime.onnx_model",
    "OnnxTeacher": "onnx_runtime.onnx_model",
    "PredictOnly": "predict_only",
    "SklearnModel": "sklearn_model",
    "TorchModel": "torch_model",
}


def __getattr__(name: str) -> Any:
    """A public name, its module loaded at the first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
