"""The layout of a run's parameter buffer: equal models lie side by side, so that a stack of them is a strided view.

Rows are sorted by kind of model, and in each kind by falling number of samples: the order of the stacking engine.
A buffer above a size lies in a file on disk, and the kernel pages out devices that do not take part.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import RunFailed, StoreError
from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sdk.models.torch_training.torch_optim import Moments
from edge_sim.engines.memory import give_back, large_blocks_apart

EARLY = "a device asked before all were attached: please report this"


class ParameterRows:
    """The rows of the torch models of a run, by device number."""

    def __init__(
        self, moments: int = 0, spill: Path | None = None, memory_bytes: int = 0, device: torch.device | None = None
    ) -> None:
        """moments: number of kinds of moments for which a row has space.

        spill: folder of a buffer larger than `memory_bytes`, or None to keep it in memory.
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
        """Contexts that end when all models are built."""

    @property
    def ready(self) -> bool:
        """Whether the buffer is allocated."""
        return self._memory is not None

    @property
    def keeps_all(self) -> bool:
        """Whether models that are not stacked have rows, too, because the run's memory is limited."""
        return self._spill is not None

    def attach(self, number: int, bench: Workbench) -> None:
        """Register a device that is switched on: before the buffer is allocated, or again after it."""
        if not isinstance(bench.model, TorchModel):
            return
        if not self.models:  # more models will be built
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
        """Move values that a fit has put elsewhere into the device's row: parameters, the optimiser's moments."""
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


# -- One buffer for the parameters of many models, in memory or in a file on disk -------------------------------------
# A row of the buffer holds the parameters and buffers of one model, and then the moments of its optimiser.  The model
# computes on the row itself, so nothing is copied.

_ALIGNED = 64
"""Alignment in bytes, like torch's allocator: the same instructions run, and give the same bits."""


class ParameterBuffer:
    """Zeroed memory for rows, as one mapped file: unnamed in memory, or in a folder on disk."""

    def __init__(self, size_bytes: int, folder: Path | None = None) -> None:
        """folder: of the file, or None for memory (or a temporary file on a system without such memory).

        Raises StoreError if the disk has no room for the file, and OSError if memory cannot be mapped.
        """
        self.descriptor = _file(folder, max(size_bytes, mmap.PAGESIZE))
        self.memory = torch.frombuffer(mmap.mmap(self.descriptor, 0), dtype=torch.uint8)

    def close(self) -> None:
        """Close the file; the memory is freed with the last tensor in it."""
        os.close(self.descriptor)


def _file(folder: Path | None, size_bytes: int) -> int:
    if folder is None:
        with contextlib.suppress(AttributeError, OSError):  # not on Linux, or refused
            return _file_in_memory(size_bytes)
    try:
        return _file_on_disk(folder, size_bytes)
    except OSError as error:
        raise StoreError(_no_room(folder, size_bytes, error)) from error


def _no_room(folder: Path | None, size_bytes: int, error: OSError) -> str:
    where, why = folder or tempfile.tempdir or "TMPDIR", error.strerror or error
    other = "" if folder is None else ", or raise run.memory_bytes, to keep them in memory"
    return (
        f"{where}: no space for {size_bytes / 1e6:.1f} MB of models' weights and moments ({why}); "
        f"free space there, or name another folder with TMPDIR{other}"
    )


def _file_in_memory(size_bytes: int) -> int:
    """Pages are not reserved: that would allocate all, even for the moments of devices that never train."""
    with os.fdopen(os.memfd_create("edge-parameters"), "wb") as file:
        file.truncate(size_bytes)
        return os.dup(file.fileno())


def _file_on_disk(folder: Path | None, size_bytes: int) -> int:
    with tempfile.TemporaryFile(dir=folder) as file:
        if hasattr(os, "posix_fallocate"):  # not on macOS
            os.posix_fallocate(file.fileno(), 0, size_bytes)  # else a full disk would kill the process without an error
        else:
            file.truncate(size_bytes)
        return os.dup(file.fileno())


def row_bytes(model: TorchModel, kinds: int) -> int:
    """Return the size of a row for a model and `kinds` kinds of moments, in bytes."""
    parameters = sum(_aligned(p) for p in model.trained)
    return sum(map(_aligned, _tensors(model))) + kinds * parameters


def move_into_row(model: TorchModel, row: Tensor) -> None:
    """Copy a model's values into its row, and make it compute there."""
    at = 0
    for tensor in _tensors(model):
        there = _view(row, at, tensor)
        there.copy_(tensor.detach())
        tensor.data = there
        at += _aligned(tensor)
    model.flat = _in_one_piece(model.trained, row)


def move_back_into_row(model: TorchModel, row: Tensor) -> None:
    """Move parameters and buffers back into the row after a net gave them other memory, as `weight.data = ...` does."""
    at, moved = 0, False
    for tensor in _tensors(model):
        there = _view(row, at, tensor)
        if tensor.data_ptr() != there.data_ptr():
            tensor.data, moved = there.copy_(tensor.detach()), True
        at += _aligned(tensor)
    if moved:
        model.flat = _in_one_piece(model.trained, row)


def _in_one_piece(tensors: Sequence[Tensor], row: Tensor) -> Tensor | None:
    """Return tensors that lie in a row without gaps as one (p,), or None if there are gaps (as for alignment)."""
    begin = end = tensors[0].data_ptr() if tensors else row.data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != end:
            return None
        end += tensor.nbytes
    start = begin - row.data_ptr()
    return row[start : start + end - begin].view(torch.float32)


def move_moments_into_row(model: TorchModel, row: Tensor) -> None:
    """Move the moments of a model's optimiser, if it has any, into its row."""
    optimiser = model.optimiser
    if optimiser is None:
        return
    for own, there in zip(optimiser.moments, _moments(model, row, len(optimiser.moments)), strict=True):
        for j, (moment, place) in enumerate(zip(own, there, strict=True)):
            if moment.data_ptr() != place.data_ptr():
                place.copy_(moment)
                own[j] = place


def _moments(model: TorchModel, row: Tensor, kinds: int) -> Moments:
    if not kinds:
        return []
    at = sum(map(_aligned, _tensors(model)))
    found: Moments = []
    for _ in range(kinds):
        found.append([])
        for parameter in model.trained:
            found[-1].append(_view(row, at, parameter))
            at += _aligned(parameter)
    return found


def _tensors(model: TorchModel) -> Iterator[Tensor]:
    yield from model.net.parameters()
    yield from model.net.buffers()


def _aligned(tensor: Tensor) -> int:
    size = tensor.numel() * tensor.element_size()
    return -(-size // _ALIGNED) * _ALIGNED


def _view(row: Tensor, at: int, like: Tensor) -> Tensor:
    size = like.numel() * like.element_size()
    return row[at : at + size].view(like.dtype).view(like.shape)
