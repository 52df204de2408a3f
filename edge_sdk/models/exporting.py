"""Models as .onnx files, for apps that stop using edge-sdk: `export` writes one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from edge_sdk.arrays import Floats
from edge_sdk.errors import StoreError, Unsupported


def export(model: object, path: str | os.PathLike[str], x: Floats) -> Path:
    """Write a model as an .onnx file, and return its path.

    x: some samples (n, c, h, w), as the model's `preprocess` makes them.  An old file is replaced at once, or stays
    whole.  Raises Unsupported for a model that cannot be written so, MissingExtra where a package for that is not
    installed, StoreError where the file cannot be written.
    """
    make = getattr(model, "onnx_bytes", None)
    if make is None:
        raise Unsupported(
            f"{type(model).__name__} cannot be exported: it has no method onnx_bytes, as TorchModel, OnnxModel and "
            "NumpyModel have"
        )
    content: bytes = make(x)
    file = Path(path)
    try:
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}.", delete=False) as new:
            new.write(content)
        try:
            Path(new.name).chmod(0o644)
            Path(new.name).replace(file)
        except OSError:
            Path(new.name).unlink()
            raise
    except OSError as error:
        raise StoreError(
            f"{file}: cannot be written ({error.strerror or error}); check the folder and its rights"
        ) from error
    return file
