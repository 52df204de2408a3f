"""Models whose parameters lie in the rows of a buffer: they are the same models as before."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402  # behind the line that skips all of this

from edge_sdk.errors import StoreError  # noqa: E402
from edge_sdk.models.base import lent_weights  # noqa: E402
from edge_sdk.models.torch_model import TorchModel  # noqa: E402
from edge_sim.engines.stack.torch_parameter_buffer import ParameterBuffer, move_into_row, row_bytes  # noqa: E402
from edge_sim.engines.torch_exact import unite  # noqa: E402

pytestmark = pytest.mark.torch


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
    move_into_row(settled, buffer.memory, fresh=True)
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


class WithAView(nn.Module):
    """A net whose buffer is part of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("first", self.layer.weight.data[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x.flatten(1)) + self.first.sum()
        return found


def in_another_order() -> nn.Sequential:
    net = nn.Sequential(nn.Conv2d(4, 16, 2), nn.Flatten(), nn.Linear(16, 3))
    return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # known to torch, not to its types


@pytest.mark.parametrize(
    ("net", "shape", "united"),
    [
        (in_one_piece, (1, 2, 2), True),
        (with_gaps, (1, 2, 2), False),
        (with_a_frozen_layer, (1, 2, 2), True),
        (WithAView, (1, 2, 2), False),
        (in_another_order, (4, 2, 2), False),
    ],
)
def test_exact_unites_parameters_only_where_that_changes_nothing(
    net: Callable[[], nn.Module], shape: tuple[int, int, int], united: bool
) -> None:
    model = TorchModel(net(), 3, input_shape=shape)
    before, places = model.state_bytes(), [p.data_ptr() for p in model.trained]
    strides = [p.stride() for p in model.trained]
    unite(model)
    assert (model.flat is not None) == united
    assert united or places == [p.data_ptr() for p in model.trained]
    assert strides == [p.stride() for p in model.trained]
    assert model.state_bytes() == before
    values = np.arange(model.spec.parameters, dtype=np.float32)
    model.set_weights(values)
    np.testing.assert_array_equal(np.concatenate([p.detach().numpy().ravel() for p in model.trained]), values)


@pytest.mark.parametrize("united", [True, False])
def test_lent_weights_are_read_only_and_a_view_of_parameters_in_one_piece(united: bool) -> None:
    model = TorchModel(in_one_piece(), 3, input_shape=(1, 2, 2))
    if united:
        unite(model)
    lent = lent_weights(model)
    np.testing.assert_array_equal(lent, model.weights())
    assert any(np.shares_memory(lent, p.detach().numpy()) for p in model.trained) == united
    with pytest.raises(ValueError, match="read-only"):
        lent[0] = 1.0
    model.set_weights(np.zeros_like(lent))  # the model may still write
    assert not model.weights().any()


def test_a_disk_without_room_is_told_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A write to a mapped page without room would end the process with SIGBUS."""
    monkeypatch.setattr(os, "posix_fallocate", refused_with(errno.ENOSPC), raising=False)
    with pytest.raises(StoreError, match=rf"^{tmp_path}: no room for 0.1 MB .*TMPDIR, or raise run.memory_bytes"):
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
    other = ParameterBuffer(0, descriptor=os.dup(buffer.descriptor))
    buffer.memory[-1] = 7
    assert other.memory[-1] == 7
    assert len(other.memory) == SIZE_BYTES
    monkeypatch.setattr(os, "posix_fallocate", refused_with(errno.ENOSPC), raising=False)
    with pytest.raises(StoreError, match=r"No space left on device\); free space there, or name another .* TMPDIR$"):
        ParameterBuffer(SIZE_BYTES)
    for each in (buffer, other):
        each.close()
