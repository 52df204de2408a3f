"""Models whose parameters lie in the rows of a buffer: they are the same models as before."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402  # behind the line that skips all of this

from edge_sdk.models.torch_model import TorchModel  # noqa: E402
from edge_sim.engines.stack.torch_parameter_buffer import ParameterBuffer, move_into_row, row_bytes  # noqa: E402

pytestmark = pytest.mark.torch


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
