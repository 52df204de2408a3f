"""What leaves a torch net: an ONNX file, and a copy that predicts while the net trains."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from edge_sdk.arrays import Floats
from edge_sdk.errors import MissingExtra, ModelError, UsageError
from edge_sdk.models.base import ModelSpec, pack_arrays, unpack_arrays
from edge_sdk.models.checks import check_samples, check_state, check_width
from edge_sdk.models.onnx_file.graph import read_graph
from edge_sdk.models.torch_nets.torch_arrays import array_of, to_tensor
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


CHUNK = 256
"""Samples per inference pass; limits the activations (a small net at 28 x 28 has some 100 kB a sample)."""


class ServedNet:
    """A copy of a net in inference mode, with its parameters and buffers; it satisfies `Served`."""

    def __init__(
        self, net: nn.Module, spec: ModelSpec, input_shape: tuple[int, int, int] | None, device: torch.device
    ) -> None:
        """Copy the net, which must not change meanwhile."""
        self._net = copy.deepcopy(net).eval().requires_grad_(requires_grad=False)
        self._spec, self._input_shape, self._device = spec, input_shape, device

    def serving_copy(self) -> ServedNet:
        """Return another copy."""
        return ServedNet(self._net, self._spec, self._input_shape, self._device)

    @property
    def net(self) -> nn.Module:
        """The copied net."""
        return self._net

    def logits(self, x: Floats) -> Floats:
        """Return logits before softmax: (n, c, h, w) -> (n, k).  Raises ModelError for outputs of another shape."""
        check_samples(self._spec.name, x, self._input_shape)
        out = infer(self._net, x, self._device)
        check_width(self._spec.name, out.shape, len(x), self._spec.classes)
        return out

    def onnx_bytes(self, x: Floats) -> bytes:
        """Return the net as an .onnx file, as TorchModel does."""
        return net_bytes(self._net, x, self._spec.name, self._spec.preprocess.declared)

    def onnx_bytes_of_sum(self, other: ServedNet | None, x: Floats) -> bytes:
        """Return a net whose logits are the sum of this one's and another's as an .onnx file."""
        if other is None:
            return self.onnx_bytes(x)
        return net_bytes(Sum(self._net, other.net), x, self._spec.name, self._spec.preprocess.declared)

    def state_bytes(self) -> bytes:
        """Return parameters and buffers."""
        return pack_arrays({name: array_of(tensor) for name, tensor in self._tensors().items()})

    def load_state(self, state: bytes) -> None:
        """Restore what state_bytes gave.  Raises StoreError if it does not fit this net."""
        arrays = unpack_arrays(state)
        tensors = self._tensors()
        check_state(arrays, {name: array_of(tensor) for name, tensor in tensors.items()})
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(torch.from_numpy(arrays[name]))

    def _tensors(self) -> dict[str, Tensor]:
        return {**dict(self._net.named_parameters()), **dict(self._net.named_buffers())}


class Sum(nn.Module):
    """A net whose logits are the sum of two nets'."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits: (n, c, h, w) -> (n, k)."""
        logits: Tensor = self.first(x) + self.second(x)
        return logits


def infer(function: Callable[[Tensor], Tensor], x: Floats, device: torch.device) -> Floats:
    """Apply a function to samples (n, ...) in chunks, in inference mode; the result shares no memory with x."""
    return infer_all(lambda batch: (function(batch),), x, device)[0]


def infer_all(function: Callable[[Tensor], Sequence[Tensor]], x: Floats, device: torch.device) -> list[Floats]:
    """Apply a function with several results, as `infer` does."""
    with torch.inference_mode():
        starts = range(0, max(len(x), 1), CHUNK)  # one empty pass for no samples
        parts = [function(to_tensor(x[i : i + CHUNK], device)) for i in starts]
        return [torch.cat(each).cpu().numpy() for each in zip(*parts, strict=True)]
