"""Model runtimes behind one protocol.

`from edge_sdk.models import TorchModel` loads torch; importing this package loads no runtime at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_sdk.lazy import loaded_when_used

if TYPE_CHECKING:
    from edge_sdk.models.base import Batches, FitReport, Model, ModelSpec
    from edge_sdk.models.exporting import export
    from edge_sdk.models.linear_head import LinearHead
    from edge_sdk.models.numpy_model import NumpyModel
    from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel, OnnxTeacher
    from edge_sdk.models.predict_only import PredictOnly
    from edge_sdk.models.sequence_model import SequenceModel
    from edge_sdk.models.sklearn_model import SklearnModel
    from edge_sdk.models.torch_nets.torch_model import TorchModel

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
    "SequenceModel",
    "SklearnModel",
    "TorchModel",
    "export",
]

_HOMES = {
    "Batches": "edge_sdk.models.base",
    "FitReport": "edge_sdk.models.base",
    "Model": "edge_sdk.models.base",
    "ModelSpec": "edge_sdk.models.base",
    "export": "edge_sdk.models.exporting",
    "LinearHead": "edge_sdk.models.linear_head",
    "NumpyModel": "edge_sdk.models.numpy_model",
    "OnnxModel": "edge_sdk.models.onnx_runtime.onnx_model",
    "OnnxTeacher": "edge_sdk.models.onnx_runtime.onnx_model",
    "PredictOnly": "edge_sdk.models.predict_only",
    "SequenceModel": "edge_sdk.models.sequence_model",
    "SklearnModel": "edge_sdk.models.sklearn_model",
    "TorchModel": "edge_sdk.models.torch_nets.torch_model",
}
if not TYPE_CHECKING:  # a type checker would accept any name
    __getattr__ = loaded_when_used(__name__, _HOMES)
