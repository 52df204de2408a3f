"""The model in an .onnx file that a fleet is offered, made to learn as the app's model does."""

from __future__ import annotations

from typing import Any

import numpy as np

from edge_sdk.errors import MissingExtra
from edge_sdk.models.base import Model
from edge_sdk.models.numpy_model import NumpyModel


def model_from_file(file: bytes, like: Model, name: str) -> Model:
    """Return the model in a file, with the classes, the preprocessing and the kind of head of `like`.

    Where `like` is an OnnxModel, the same part learns, otherwise all layers.  Devices of the numpy runtime, and those
    without ONNX Runtime, compute it in numpy.  Raises ModelError for a file that cannot be used so.
    """
    spec = like.spec
    options: dict[str, Any] = {
        "name": name,
        "preprocess": spec.preprocess,
        "head": "cosine" if "cosine-head" in spec.capabilities else "linear",
        "train": getattr(like, "train", "all"),
    }
    if spec.runtime != "numpy":
        try:
            from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel

            return OnnxModel(file, spec.classes, **options)
        except MissingExtra:
            pass
    return NumpyModel.from_onnx(file, spec.classes, **options)


def has_new_head(model: Model) -> bool:
    """Return whether the last layer of a model from a file is drawn at random, as the file has none of its classes."""
    split = getattr(model, "split", None)
    return split.how == "new" if split is not None else bool(getattr(model, "has_new_head", False))


def take_head(model: Model, of: Model) -> bool:
    """Give a model the last layer of another one; returns False where widths or classes do not allow that."""
    able = all("head-rows" in each.spec.capabilities for each in (model, of))
    shapes = [(each.spec.classes, each.spec.feature_dim) for each in (model, of)]
    if not able or shapes[0] != shapes[1]:
        return False
    model.set_head_rows(np.arange(model.spec.classes), of.head_rows())
    return True
