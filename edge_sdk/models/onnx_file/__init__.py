"""The content of .onnx files, read and written without the package onnx: wire format, tensors, graph, last layer.

A board needs ONNX Runtime to run a file, and nothing more to split one or to write a trained head back (ADR 0026).
These modules may import numpy, edge_sdk.errors and edge_sdk.arrays; none imports onnx or ONNX Runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_sdk.lazy import loaded_when_used

if TYPE_CHECKING:
    from edge_sdk.models.onnx_file.graph import samples_graph
    from edge_sdk.models.onnx_file.head import with_new_head

__all__ = ["samples_graph", "with_new_head"]

_HOMES = {
    "samples_graph": "edge_sdk.models.onnx_file.graph",
    "with_new_head": "edge_sdk.models.onnx_file.head",
}
"""Names that models without a file need only to be written to one."""
if not TYPE_CHECKING:  # a type checker would accept any name
    __getattr__ = loaded_when_used(__name__, _HOMES)
