"""A torch net that predicts while the net that it was copied from trains."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from edge_sdk.arrays import Floats
from edge_sdk.models.base import ModelSpec, pack_arrays, unpack_arrays
from edge_sdk.models.checks import check_samples, check_state, check_width
from edge_sdk.models.torch_nets.torch_arrays import array_of, to_tensor
from edge_sdk.models.torch_nets.torch_export import net_bytes

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
