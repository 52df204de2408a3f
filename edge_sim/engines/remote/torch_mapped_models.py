"""Models whose weights and moments lie in memory that the simulation and its worker processes both map."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_sdk.models.base import Model
from edge_sdk.models.torch_model import TorchModel
from edge_sdk.objectives import Optim
from edge_sim.engines.base import DeviceRequest
from edge_sim.engines.remote.messages import WorkerSetup
from edge_sim.engines.stack.torch_parameter_buffer import (
    ParameterBuffer,
    move_back_into_row,
    move_into_row,
    move_moments_into_row,
    use_moments_in_row,
)

_NO_STEPS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserState:
    """What a row of the parameter buffer does not hold of a model's optimiser."""

    optim: Optim | None
    """None: the model has no optimiser."""
    steps: NDArray[np.int64]
    """Steps taken, of each parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedSetup:
    """What a worker process is given once, before the first request."""

    worker: WorkerSetup
    rows: Mapping[int, tuple[int, int]]
    """Where each device's row begins and ends in the parameter buffer, in bytes, by device number."""
    moments: int
    """Kinds of moments that a row has space for."""


class MappedModels:
    """A WorkerModels: a worker's model computes on the same memory as the simulation's."""

    def __init__(self, setup: MappedSetup, buffer: ParameterBuffer) -> None:
        self._rows = {number: buffer.memory[begin:end] for number, (begin, end) in setup.rows.items()}
        self._moments = setup.moments

    def attach(self, number: int, model: Model) -> None:
        """Implement WorkerModels."""
        move_into_row(_torch(model), self._rows[number], fresh=False)

    def load(self, number: int, model: Model, state: OptimiserState) -> None:
        """Implement WorkerModels."""
        use_moments_in_row(_torch(model), self._rows[number], state.optim, state.steps, self._moments)

    def save(self, number: int, asked: DeviceRequest) -> OptimiserState:
        """Implement WorkerModels."""
        move_back_into_row(_torch(asked.bench.model), self._rows[number])
        move_moments_into_row(_torch(asked.bench.model), self._rows[number])
        return optimiser_state(asked.bench.model)


def optimiser_state(model: Model) -> OptimiserState:
    """Return what is sent of a model's optimiser."""
    optimiser = model.optimiser if isinstance(model, TorchModel) else None
    if optimiser is None:
        return OptimiserState(optim=None, steps=_NO_STEPS)
    return OptimiserState(optim=optimiser.optim, steps=optimiser.steps)


def _torch(model: Model) -> TorchModel:
    if not isinstance(model, TorchModel):
        raise TypeError(f"{model.spec.name}: a worker process computes torch models only")
    return model
