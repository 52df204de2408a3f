"""FedML's single-process simulation: one process, one thread.

python fedml_side.py TASK.npz mlp|cnn
"""

from __future__ import annotations

import copy
import sys
from types import SimpleNamespace
from typing import Any

import torch
from side import BATCH, CLASSES, RATE, ROUNDS, Log, Task, batches, net

NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
try:
    import torchvision  # noqa: F401  # FedML imports it; nothing here calls it
except RuntimeError:  # its compiled part does not fit this build of torch: name the operators that it misses
    OPERATORS = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        OPERATORS.define(operator + NMS)

from fedml.core.mlops import MLOpsStore
from fedml.simulation.sp.fedavg.fedavg_api import FedAvgAPI


class Api(FedAvgAPI):  # type: ignore[misc]  # FedML ships no types
    """Notes when each round is done, where FedML would evaluate."""

    def __init__(self, log: Log, *of_fedml: Any) -> None:
        super().__init__(*of_fedml)
        self._log = log

    def train(self) -> None:
        """FedAvg from the first round on.

        FedML takes the live weights as the first mean, so that each device continues where the one before stopped.
        """
        trainer, live = self.model_trainer, self.model_trainer.get_model_params

        def first() -> dict[str, torch.Tensor]:
            trainer.get_model_params = live
            return copy.deepcopy(live())

        trainer.get_model_params = first
        super().train()

    def _local_test_on_all_clients(self, _round: int) -> None:
        self._log.round_done()


def main() -> None:
    """All rounds of FedAvg."""
    torch.set_num_threads(1)
    task, log, model = Task.read(sys.argv[1]), Log(("fedml",)), net(sys.argv[2])
    own = {number: batches(samples) for number, samples in enumerate(task.devices)}
    counts = {number: len(samples[1]) for number, samples in enumerate(task.devices)}
    total = sum(counts.values())
    dataset = [total, len(task.test[1]), None, None, counts, own, dict.fromkeys(own), CLASSES]
    settings = SimpleNamespace(
        client_num_in_total=len(own),
        client_num_per_round=len(own),
        comm_round=ROUNDS,
        epochs=1,
        batch_size=BATCH,
        learning_rate=RATE,
        client_optimizer="sgd",
        frequency_of_the_test=1,
        dataset="digits",
        model=sys.argv[2],
        using_mlops=False,
    )
    MLOpsStore.mlops_args = settings  # else it wants its platform on the network
    Api(log, settings, torch.device("cpu"), dataset, model).train()
    log.tell(model, task.test)


if __name__ == "__main__":
    main()
