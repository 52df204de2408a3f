"""Conversions between tensors and numpy arrays, with as few copies as possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edge_sdk.arrays import Floats


def to_tensor(values: Floats, device: torch.device) -> Tensor:
    """Return an f4 tensor of the values; on the CPU a view if the array is writable, which torch requires."""
    if values.dtype != np.float32 or not values.flags.carray:  # in C order, aligned and writable
        values = np.require(values, np.float32, ["C", "W"])
    return torch.from_numpy(values).to(device)


class _Writable:
    """An array as one that may be written to, which torch requires of every view, also of one that is only read."""

    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values
        self.__array_interface__ = {
            **values.__array_interface__,
            "data": (values.__array_interface__["data"][0], False),
        }


def shared(values: NDArray[Any]) -> Tensor:
    """Return the values as a tensor on the CPU that is only read: a view, unless the array is not in C order."""
    values = np.ascontiguousarray(values)
    return torch.from_numpy(values if values.flags.writeable else np.asarray(_Writable(values)))


def array_of(tensor: Tensor) -> NDArray[Any]:
    """Return the tensor's values; on the CPU as a view."""
    values: NDArray[Any] = tensor.detach().cpu().numpy()
    return values


def norm_of(tensors: Sequence[Tensor], wide: NDArray[np.float64]) -> float:
    """Return the L2 norm of tensors of p numbers together; wide: room for them, (p,)."""
    end = 0
    for each in tensors:
        begin, end = end, end + each.numel()
        wide[begin:end] = array_of(each).ravel()
    return float(np.linalg.norm(wide))


def lie_in(piece: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether these tensors fill a piece of memory, one after the other."""
    at = piece.data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != at:
            return False
        at += tensor.nbytes
    return at == piece.data_ptr() + piece.nbytes


class Views:
    """Tensors as arrays, for repeated use: on the CPU the views are reused while the tensors stay in place."""

    def __init__(self) -> None:
        self._places: list[tuple[int, tuple[int, ...]]] = []
        """Where each tensor begins, and its strides: a net may turn one in its own memory."""
        self._views: list[NDArray[Any]] = []

    def __reduce__(self) -> tuple[type[Views], tuple[()]]:
        """Leave the views out of a copy: the tensors of its model lie elsewhere."""
        return Views, ()

    def of(self, tensors: Sequence[Tensor]) -> Sequence[NDArray[Any]]:
        """Return the values of the tensors; on the CPU those are views, which follow later changes."""
        views = self._on_cpu(tensors)
        return [array_of(tensor) for tensor in tensors] if views is None else views

    def overwrite(self, tensors: Sequence[Tensor], values: Floats) -> None:
        """Overwrite tensors of p numbers together with values (p,); on the CPU numpy copies from read-only arrays."""
        views = self._on_cpu(tensors)
        if views is None:
            parts = torch.split(to_tensor(values, tensors[0].device), [tensor.numel() for tensor in tensors])
            with torch.no_grad():
                for tensor, part in zip(tensors, parts, strict=True):
                    tensor.copy_(part.view_as(tensor))
            return
        end = 0
        for view in views:
            begin, end = end, end + view.size
            view[...] = values[begin:end].reshape(view.shape)

    def _on_cpu(self, tensors: Sequence[Tensor]) -> Sequence[NDArray[Any]] | None:
        """Return views of the tensors, or None unless all of them are on the CPU."""
        if not all(tensor.is_cpu for tensor in tensors):
            return None
        places = [(tensor.data_ptr(), tensor.stride()) for tensor in tensors]
        if places != self._places:
            self._places, self._views = places, [array_of(tensor) for tensor in tensors]
        return self._views
