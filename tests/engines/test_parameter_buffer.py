"""Models whose parameters lie in the rows of a buffer: they are the same models as before."""

from __future__ import annotations

import copy
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn

from edge_sdk.errors import StoreError
from edge_sdk.models.base import lent_weights
from edge_sdk.models.torch_nets.torch_model import TorchModel
from edge_sim.engines.stack.torch_parameter_rows import (
    ParameterBuffer,
    move_back_into_row,
    move_into_row,
    row_bytes,
)

pytestmark = [pytest.mark.torch, pytest.mark.traced]


SIZE_BYTES = 2**16


def refused_with(number: int) -> Any:
    def refuse(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return refuse


def in_one_piece() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


def with_gaps() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def with_a_frozen_layer() -> nn.Sequential:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 3))
    net[2].requires_grad_(requires_grad=False)
    return net


@pytest.mark.parametrize(("net", "flat"), [(in_one_piece, True), (with_gaps, False), (with_a_frozen_layer, False)])
def test_weights_in_a_row_are_those_of_the_model(net: type[nn.Sequential], flat: bool) -> None:
    model, settled = (TorchModel(net(), 3, input_shape=(1, 2, 2)) for _ in range(2))
    before = settled.weights()
    buffer = ParameterBuffer(row_bytes(settled, kinds=0))
    move_into_row(settled, buffer.memory)
    assert (settled.flat is not None) == flat
    np.testing.assert_array_equal(settled.weights(), before)
    values = np.arange(model.spec.parameters, dtype=np.float32)
    values.setflags(write=False)  # as what is received
    for each in (model, settled):
        each.set_weights(values)
        each.weights()[:] = 7  # a copy: nothing happens
        np.testing.assert_array_equal(each.weights(), values)
    for there, own in zip(settled.trained, model.trained, strict=True):
        torch.testing.assert_close(there.detach(), own.detach(), rtol=0, atol=0)
    buffer.close()


@pytest.fixture
def settled() -> Iterator[TorchModel]:
    """A model whose parameters lie in a row."""
    model = TorchModel(in_one_piece(), 3, input_shape=(1, 2, 2))
    buffer = ParameterBuffer(row_bytes(model, kinds=0))
    move_into_row(model, buffer.memory)
    yield model
    buffer.close()


@pytest.mark.parametrize("in_a_row", [True, False])
def test_lent_weights_are_read_only_and_a_view_of_parameters_in_one_piece(settled: TorchModel, in_a_row: bool) -> None:
    model = settled if in_a_row else TorchModel(in_one_piece(), 3, input_shape=(1, 2, 2))
    lent = lent_weights(model)
    np.testing.assert_array_equal(lent, model.weights())
    assert any(np.shares_memory(lent, p.detach().numpy()) for p in model.trained) == in_a_row
    with pytest.raises(ValueError, match="read-only"):
        lent[0] = 1.0
    model.set_weights(np.zeros_like(lent))  # the model may still write
    assert not model.weights().any()


class Rounded(TorchModel):
    """A model that lets rounded weights out alone."""

    def weights(self) -> Any:
        return np.round(super().weights(), 1)


class Around:
    """A model around another one, with a say in what leaves."""

    def __init__(self, model: TorchModel) -> None:
        self._model = model

    def weights(self) -> Any:
        return np.round(self._model.weights(), 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


@pytest.mark.parametrize("around", [Around, lambda model: Rounded(model.net, 3, input_shape=(1, 2, 2))])
def test_a_model_with_weights_of_its_own_lends_those(settled: TorchModel, around: Callable[[TorchModel], Any]) -> None:
    model = around(settled)
    np.testing.assert_array_equal(lent_weights(model), np.round(settled.weights(), 1))


def moved(net: nn.Module) -> None:
    net[1].weight.data = net[1].weight.data.clone()  # type: ignore[index]  # a Sequential


@pytest.mark.parametrize("leave", [moved, lambda net: net.double().float()])
def test_parameters_that_leave_their_row_are_those_that_count(
    settled: TorchModel, leave: Callable[[nn.Module], object]
) -> None:
    leave(settled.net)
    with torch.no_grad():
        settled.trained[0].fill_(7)
    assert (settled.weights()[: 4 * 16] == 7).all()
    assert (lent_weights(settled)[: 4 * 16] == 7).all()
    settled.set_weights(np.zeros(settled.spec.parameters, np.float32))
    assert not settled.trained[0].any()


def test_a_copy_of_a_model_in_a_row_is_a_model_of_its_own(settled: TorchModel) -> None:
    twin, before = copy.deepcopy(settled), settled.weights()
    twin.set_weights(np.zeros_like(before))
    assert not twin.trained[0].any()
    np.testing.assert_array_equal(settled.weights(), before)


def test_parameters_come_back_into_their_row() -> None:
    model = TorchModel(in_one_piece(), 3, input_shape=(1, 2, 2))
    row = ParameterBuffer(row_bytes(model, kinds=0))
    move_into_row(model, row.memory)
    moved(model.net)
    with torch.no_grad():
        model.trained[0].fill_(7)
    move_back_into_row(model, row.memory)
    assert model.trained[0].data_ptr() == row.memory.data_ptr()
    assert (row.memory[: 4 * 4 * 16].view(torch.float32) == 7).all()
    assert model.flat is not None
    row.close()


def test_a_disk_without_room_is_told_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A write to a mapped page without room would end the process with SIGBUS."""
    monkeypatch.setattr(os, "posix_fallocate", refused_with(errno.ENOSPC), raising=False)
    with pytest.raises(StoreError, match=rf"^{tmp_path}: no space for 0.1 MB .*TMPDIR, or raise run.memory_bytes"):
        ParameterBuffer(SIZE_BYTES, tmp_path)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory without a name")
def test_memory_is_not_taken_before_it_is_written() -> None:
    buffer = ParameterBuffer(SIZE_BYTES)
    assert os.fstat(buffer.descriptor).st_blocks == 0
    buffer.memory[0] = 1
    assert 0 < os.fstat(buffer.descriptor).st_blocks * 512 < SIZE_BYTES
    buffer.close()


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.ENOSPC])
def test_where_memory_without_a_name_is_refused_the_buffer_is_a_temporary_file(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "memfd_create", refused_with(number), raising=False)
    buffer = ParameterBuffer(SIZE_BYTES)
    buffer.memory[-1] = 7
    assert os.pread(buffer.descriptor, 1, SIZE_BYTES - 1) == b"\x07"
    monkeypatch.setattr(os, "posix_fallocate", refused_with(errno.ENOSPC), raising=False)
    with pytest.raises(StoreError, match=r"No space left on device\); free space there, or name another .* TMPDIR$"):
        ParameterBuffer(SIZE_BYTES)
    buffer.close()
