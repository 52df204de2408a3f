"""The layout of a run's parameter buffer: equal models lie side by side, so that a stack of them is a strided view.

Rows are sorted by kind of model, and in each kind by falling number of samples: the order in which the stacking engine
takes devices.  A buffer above a size lies in a file on disk, and the kernel pages out devices that do not take part.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from edge_sdk.device.workbench import Workbench
from edge_sdk.errors import RunFailed
from edge_sdk.models.torch_model import TorchModel
from edge_sim.engines.memory import give_back, large_blocks_apart
from edge_sim.engines.stack.torch_parameter_buffer import (
    ParameterBuffer,
    move_back_into_row,
    move_into_row,
    move_moments_into_row,
    row_bytes,
)

EARLY = "a device asked before all were attached: please report this"


class ParameterRows:
    """The rows of the torch models of a run, by device number."""

    def __init__(
        self, moments: int = 0, spill: Path | None = None, memory_bytes: int = 0, device: torch.device | None = None
    ) -> None:
        """moments: kinds of moments that a row has space for.

        spill: folder of the buffer where it is larger than `memory_bytes`, or None to keep it in memory.
        device: the GPU whose memory is used, or None for this machine's memory.
        """
        self.moments, self._spill, self._memory_bytes = moments, spill, memory_bytes
        self.models: dict[int, TorchModel] = {}
        self._samples: dict[int, int] = {}
        self.rows: dict[int, tuple[int, int]] = {}
        """Where each row begins and ends, in bytes."""
        self._device = device
        self._buffer: ParameterBuffer | None = None
        self._memory: Tensor | None = None
        self._building = ExitStack()
        """What ends when all models are built."""

    @property
    def ready(self) -> bool:
        """Whether the buffer is allocated."""
        return self._memory is not None

    @property
    def keeps_all(self) -> bool:
        """Whether also models that are not stacked have rows, because the memory of a run has a limit."""
        return self._spill is not None

    def attach(self, number: int, bench: Workbench) -> None:
        """Register a device that is switched on: before the buffer is allocated, or again after it."""
        if not isinstance(bench.model, TorchModel):
            return
        if not self.models:  # more will be built
            self._building.enter_context(large_blocks_apart())
        self.models[number], self._samples[number] = bench.model, len(bench.data.train)
        if self.ready:
            move_into_row(bench.model, self.row(number))

    def allocate(self) -> None:
        """Allocate the buffer for all registered models, and move them into it."""

        def order(number: int) -> tuple[bytes, int, int]:
            return self.models[number].spec.layout, -self._samples[number], number

        at = 0
        for number in sorted(self.models, key=order):
            size = row_bytes(self.models[number], self.moments)
            self.rows[number] = at, at + size
            at += size
        if self._device is None:
            self._buffer = ParameterBuffer(at, self._spill if at > self._memory_bytes else None)
            self._memory = self._buffer.memory
        else:
            self._memory = torch.zeros(at, dtype=torch.uint8, device=self._device)
        for number, model in self.models.items():
            move_into_row(model, self.row(number))
        self._building.close()
        give_back()  # the memory that the models were built in

    def take_in(self, number: int) -> None:
        """Move what a fit has left elsewhere into the device's row: moved parameters, the optimiser's moments."""
        if number in self.rows:
            move_back_into_row(self.models[number], self.row(number))
            move_moments_into_row(self.models[number], self.row(number))

    def row(self, number: int) -> Tensor:
        """Return the row of one device."""
        if self._memory is None:
            raise RunFailed(EARLY)
        begin, end = self.rows[number]
        return self._memory[begin:end]

    def close(self) -> None:
        """Close the buffer's file."""
        self._building.close()
        if self._buffer is not None:
            self._buffer.close()
