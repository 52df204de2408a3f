"""Conversions between tensors and numpy arrays, with as few copies as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def overwrite(tensor: Tensor, values: Floats) -> None:
    """Overwrite a tensor with as many values of any shape; on the CPU numpy copies, which allows read-only arrays."""
    if tensor.is_cpu:
        np.copyto(array_of(tensor), values.reshape(tensor.shape))
        return
    with torch.no_grad():
        tensor.copy_(to_tensor(values, tensor.device).view_as(tensor))


def lie_in(piece: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether these tensors lie one after the other in all of the memory of a piece."""
    at = piece.data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != at:
            return False
        at += tensor.nbytes
    return at == piece.data_ptr() + piece.nbytes


class Views:
    """Named tensors as arrays, for repeated use: on the CPU the views are reused while the tensors stay in place."""

    def __init__(self) -> None:
        self._places: list[int] = []
        self._views: dict[str, NDArray[Any]] = {}

    def of(self, tensors: Mapping[str, Tensor]) -> Mapping[str, NDArray[Any]]:
        """Return the values of the tensors; a view follows later changes."""
        if not all(tensor.is_cpu for tensor in tensors.values()):
            return {name: array_of(tensor) for name, tensor in tensors.items()}
        places = [tensor.data_ptr() for tensor in tensors.values()]
        if places != self._places:
            self._places, self._views = places, {name: array_of(tensor) for name, tensor in tensors.items()}
        return self._views
