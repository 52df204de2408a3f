"""Between tensors and numpy's arrays, with as few copies as either allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edge_sdk.arrays import Floats


def to_tensor(values: Floats, device: torch.device) -> Tensor:
    """An f4 tensor of the values; on the CPU a view where the array is writable, for torch takes no other."""
    return torch.from_numpy(np.require(values, np.float32, ["C", "W"])).to(device)


def array_of(tensor: Tensor) -> NDArray[Any]:
    """Its values; a view where they are on the CPU."""
    values: NDArray[Any] = tensor.detach().cpu().numpy()
    return values


def overwrite(tensor: Tensor, values: Floats) -> None:
    """With as many values of any shape; on the CPU numpy copies them, for torch takes no read-only array as it is."""
    if tensor.is_cpu:
        np.copyto(array_of(tensor), values.reshape(tensor.shape))
        return
    with torch.no_grad():
        tensor.copy_(to_tensor(values, tensor.device).view_as(tensor))


class Views:
    """Named tensors as arrays, over and over: on the CPU the same views, for as long as these lie in one place."""

    def __init__(self) -> None:
        self._places: list[int] = []
        self._views: dict[str, NDArray[Any]] = {}

    def of(self, tensors: Mapping[str, Tensor]) -> Mapping[str, NDArray[Any]]:
        """Their values; a view shows whatever they are changed to."""
        if not all(tensor.is_cpu for tensor in tensors.values()):
            return {name: array_of(tensor) for name, tensor in tensors.items()}
        places = [tensor.data_ptr() for tensor in tensors.values()]
        if places != self._places:
            self._places, self._views = places, {name: array_of(tensor) for name, tensor in tensors.items()}
        return self._views
