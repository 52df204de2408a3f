"""A torch net as the content of an .onnx file, through torch.onnx."""

from __future__ import annotations

import importlib.util
import inspect
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

from edge_sdk.arrays import Floats
from edge_sdk.errors import MissingExtra, ModelError, UsageError
from edge_sdk.models.onnx_file.graph import read_graph
from edge_sdk.models.torch_nets.torch_intake import as_taken
from edge_sdk.sample_kind import AXES, SampleKind

AGREEMENT = 1e-4
"""The largest difference between the net's logits and the file's, relative to the largest logit above 1."""


def net_bytes(net: nn.Module, x: Floats, name: str, kind: SampleKind | None) -> bytes:
    """Return a net as an .onnx file: input `samples` (n, c, h, w), output `logits` (n, k); n is free.

    With a declared kind the input is as the net is given it: series (n, t, d), vectors (n, d), ids (n, t) in int64.
    Where ONNX Runtime is installed, the file is run on x and compared.  Raises MissingExtra without onnx and
    onnxscript, UsageError with a torch before 2.6, ModelError for a net that torch.onnx does not export.
    """
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, "export", "export of a torch model")
    if "dynamo" not in inspect.signature(torch.onnx.export).parameters:
        raise UsageError(f"export of a torch model needs torch 2.6 or later, found {torch.__version__}: upgrade torch")
    device = next((p.device for p in net.parameters()), torch.device("cpu"))
    samples = torch.from_numpy(np.ascontiguousarray(np.resize(x, (2, *x.shape[1:])))).to(
        device
    )  # a batch of one is fixed
    if kind is not None:
        samples = as_taken(samples, AXES[kind.name], ids=kind.name == "tokens")
    trained = net.training
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of the exporter about itself
            file = Path(folder) / "model.onnx"
            torch.onnx.export(
                net.eval(),
                (samples,),
                file,
                input_names=["samples"],
                output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("n")},),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
            content = file.read_bytes()
    except Exception as error:  # the exporter's errors have no common base
        text = " ".join(str(error).split())[:300]
        raise ModelError(f"model {name!r}: torch.onnx does not export it: {type(error).__name__}: {text}") from error
    finally:
        net.train(trained)
    _check(net, content, x, name)
    return content


def _check(net: nn.Module, content: bytes, x: Floats, name: str) -> None:
    """Raise ModelError unless the file gives the logits of the net; without ONNX Runtime, check nothing."""
    try:
        from edge_sdk.models.onnx_runtime.onnx_session import OnnxSession  # only where ONNX Runtime is installed
    except MissingExtra:
        return
    found = OnnxSession(read_graph(content, name), name=name).rows(x)
    with torch.inference_mode():
        device = next((p.device for p in net.parameters()), torch.device("cpu"))
        own = net(torch.from_numpy(np.ascontiguousarray(x)).to(device)).cpu().numpy()
    difference = float(np.abs(found - own).max(initial=0)) / max(1.0, float(np.abs(own).max(initial=0)))
    if not difference <= AGREEMENT:
        raise ModelError(f"model {name!r}: the exported file differs from the net by {difference:.2g} of its logits")
