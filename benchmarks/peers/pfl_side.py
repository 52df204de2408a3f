"""pfl's simulation: one process, one thread.

python pfl_side.py TASK.npz mlp|cnn
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from side import BATCH, RATE, ROUNDS, SEED, Log, Task, net
from torch import Tensor, nn


class Net(nn.Module):
    """A net with the two functions that pfl requires of a module."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        """Logits (n, k) of x (n, 1, 8, 8)."""
        return self.layers(x)  # (n, k)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of one mini-batch."""
        return nn.functional.cross_entropy(self(x), y)

    def metrics(self, _x: Tensor, y: Tensor) -> dict[str, Any]:
        """Nothing to compute: the timed rounds evaluate nothing, and pfl's first one as little as it lets us."""
        return {"samples": Weighted(len(y), len(y))}


class Rounds(TrainingProcessCallback):
    """Notes when each round is done."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        """Implement TrainingProcessCallback: note the time."""
        self._log.round_done()
        return False, Metrics()


def run(  # what differs between two simulations
    model: Net, users: FederatedDataset, noted: Rounds, *, rounds: int, participants: int, batch: int, rate: float
) -> None:
    """All rounds of FedAvg with SGD, one epoch on each participant."""
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=participants,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=users, val_data=users, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0)),
        NNTrainHyperParams(local_batch_size=batch, local_num_epochs=1, local_learning_rate=rate),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[noted],
    )


def main() -> None:
    """Compute the rounds of the common task."""
    torch.set_num_threads(1)
    np.random.seed(SEED)  # noqa: NPY002  # pfl draws from the global generator
    task, log, model = Task.read(sys.argv[1]), Log(("pfl",)), Net(net(sys.argv[2]))
    everybody = {number: Dataset(list(samples)) for number, samples in enumerate(task.devices)}
    users = FederatedDataset(everybody.__getitem__, get_user_sampler("minimize_reuse", list(everybody)))
    run(model, users, Rounds(log), rounds=ROUNDS, participants=len(everybody), batch=BATCH, rate=RATE)
    log.tell(model, task.test)


if __name__ == "__main__":
    main()
