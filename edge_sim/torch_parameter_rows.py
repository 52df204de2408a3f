"""Where each device's weights lie in a run's slab: equal models side by side, so that a stack of them is a view.

In each worker's part the kinds of models follow one another, and in each kind those with most samples come first: the
order in which the stacking engine takes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from edge_sdk.errors import RunFailed
from edge_sdk.models.torch_model import TorchModel
from edge_sdk.workbench import Workbench
from edge_sim.memory import give_back
from edge_sim.torch_parameter_buffer import ParameterBuffer, move_into_row, row_bytes

EARLY = "a device asked before all were attached: please report this"


class ParameterRows:
    """The rows of a run's torch models, by device number."""

    def __init__(
        self, moments: int = 0, spill: Path | None = None, memory_bytes: int = 0, device: torch.device | None = None
    ) -> None:
        """moments: kinds that a row has room for.  spill: a folder for more than memory_bytes; None: in memory.

        device: whose own memory is divided; None: this machine's, which other processes may map.
        """
        self.moments, self._spill, self._memory_bytes = moments, spill, memory_bytes
        self.models: dict[int, TorchModel] = {}
        self._samples: dict[int, int] = {}
        self.rows: dict[int, tuple[int, int]] = {}
        """Where each begins and ends."""
        self._device = device
        self._slab: ParameterBuffer | None = None
        self._memory: Tensor | None = None

    @property
    def ready(self) -> bool:
        """Whether the memory is divided."""
        return self._memory is not None

    @property
    def slab(self) -> ParameterBuffer:
        """The memory, where it is this machine's.  Raises RunFailed where it is not divided yet."""
        if self._slab is None:
            raise RunFailed(EARLY)
        return self._slab

    def attach(self, number: int, bench: Workbench) -> None:
        """A device is switched on; before the memory is divided, or again."""
        if not isinstance(bench.model, TorchModel):
            return
        self.models[number], self._samples[number] = bench.model, len(bench.data.train)
        if self.ready:
            move_into_row(bench.model, self.row(number), fresh=True)

    def divide(self, owners: Mapping[int, int]) -> None:
        """Everybody is there; owners: whose part of the memory each device's row is in."""

        def order(number: int) -> tuple[int, bytes, int, int]:
            return owners.get(number, 0), self.models[number].spec.layout, -self._samples[number], number

        at = 0
        for number in sorted(self.models, key=order):
            size = row_bytes(self.models[number], self.moments)
            self.rows[number] = at, at + size
            at += size
        if self._device is None:
            self._slab = ParameterBuffer(at, self._spill if at > self._memory_bytes else None)
            self._memory = self._slab.memory
        else:
            self._memory = torch.zeros(at, dtype=torch.uint8, device=self._device)
        for number, model in self.models.items():
            move_into_row(model, self.row(number), fresh=True)
        give_back()  # the memory in which the models were made

    def row(self, number: int) -> Tensor:
        """The memory of one device."""
        if self._memory is None:
            raise RunFailed(EARLY)
        begin, end = self.rows[number]
        return self._memory[begin:end]

    def close(self) -> None:
        """Let go of the file."""
        if self._slab is not None:
            self._slab.close()
