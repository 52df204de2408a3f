"""Types that model families and the nets behind them share; this module loads no model runtime."""

from __future__ import annotations

from os import PathLike
from typing import Literal, TypeAlias

InputShape: TypeAlias = tuple[int, int, int]
"""Shape of one preprocessed sample: (channels, height, width)."""
ModelFile: TypeAlias = "str | PathLike[str]"
"""Path of an .onnx file."""
HeadKind: TypeAlias = Literal["linear", "cosine"]
"""The last layer: a product with weights, or the cosine between features and weights (FedNH)."""
