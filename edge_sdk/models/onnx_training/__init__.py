"""Training all layers of an .onnx file: its graph differentiated into a graph of ordinary operators, and what runs it.

The backward pass is emitted for one shape of mini-batches, so that every size in it is a constant.  ONNX Runtime's
inference kernels compute it, or numpy (ADR 0047).  May import `models`, `models.onnx_file` and what models may import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_sdk.lazy import loaded_when_used

if TYPE_CHECKING:
    from edge_sdk.models.onnx_training.numpy_body import dense_parts, file_parts

__all__ = ["dense_parts", "file_parts"]

_HOMES = {
    "dense_parts": "edge_sdk.models.onnx_training.numpy_body",
    "file_parts": "edge_sdk.models.onnx_training.numpy_body",
}
"""Names that a model in numpy needs only if it is a net."""
__getattr__ = loaded_when_used(__name__, _HOMES)
