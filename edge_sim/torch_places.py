"""Where each device's weights lie in a run's slab: equal models side by side, so that a stack of them is a view.

In each worker's part the kinds of models follow one another, and in each kind those with most samples come first: the
order in which the stacking engine takes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from edge_sdk.errors import RunFailed
from edge_sdk.models.torch_model import TorchModel
from edge_sdk.workbench import Workbench
from edge_sim.memory import give_back
from edge_sim.torch_slab import Slab, row_bytes, settle


class Places:
    """The rows of a run's torch models, by device number."""

    def __init__(self, moments: int = 0, spill: Path | None = None, memory_bytes: int = 0) -> None:
        """moments: kinds that a row has room for.  spill: a folder for more than memory_bytes; None: in memory."""
        self.moments, self._spill, self._memory_bytes = moments, spill, memory_bytes
        self.models: dict[int, TorchModel] = {}
        self._samples: dict[int, int] = {}
        self.rows: dict[int, tuple[int, int]] = {}
        """Where each begins and ends."""
        self._slab: Slab | None = None

    @property
    def ready(self) -> bool:
        """Whether the memory is divided."""
        return self._slab is not None

    @property
    def slab(self) -> Slab:
        """The memory.  Raises RunFailed where it is not divided yet."""
        if self._slab is None:
            raise RunFailed("a device asked before all were attached: please report this")
        return self._slab

    def attach(self, number: int, bench: Workbench) -> None:
        """A device is switched on; before the memory is divided, or again."""
        if not isinstance(bench.model, TorchModel):
            return
        self.models[number], self._samples[number] = bench.model, len(bench.data.train)
        if self.ready:
            settle(bench.model, self.row(number), fresh=True)

    def divide(self, owners: Mapping[int, int]) -> None:
        """Everybody is there; owners: whose part of the memory each device's row is in."""

        def order(number: int) -> tuple[int, bytes, int, int]:
            return owners.get(number, 0), self.models[number].spec.layout, -self._samples[number], number

        at = 0
        for number in sorted(self.models, key=order):
            size = row_bytes(self.models[number], self.moments)
            self.rows[number] = at, at + size
            at += size
        self._slab = Slab(at, self._spill if at > self._memory_bytes else None)
        for number, model in self.models.items():
            settle(model, self.row(number), fresh=True)
        give_back()  # the memory in which the models were made

    def row(self, number: int) -> Tensor:
        """The memory of one device."""
        begin, end = self.rows[number]
        return self.slab.memory[begin:end]

    def close(self) -> None:
        """Let go of the file."""
        if self._slab is not None:
            self._slab.close()
