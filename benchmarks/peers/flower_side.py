"""Flower's simulation on Ray: one CPU for each client, all cores of the machine.

python flower_side.py TASK.npz mlp|cnn
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

import torch
from flower_client import APP
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from side import ROUNDS, Log, Task, net


class Counting(FedAvg):
    """Counts the devices that a round's mean lacks."""

    def __init__(self, log: Log, devices: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_available_nodes=devices)
        self._log, self._devices = log, devices

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Count the missing replies, then aggregate as FedAvg does."""
        told = list(replies)
        self._log.lost += self._devices - sum(not reply.has_error() for reply in told)
        return super().aggregate_train(server_round, told)


def main() -> None:
    """All rounds of FedAvg."""
    torch.set_num_threads(1)
    path, name = sys.argv[1:]
    task, log, model = Task.read(path), Log(("flwr", "ray")), net(name)
    server = ServerApp()

    def round_done(number: int, arrays: ArrayRecord) -> None:
        if number:  # 0: before the first round
            log.round_done()
        if number == ROUNDS:
            model.load_state_dict(arrays.to_torch_state_dict())

    @server.main()
    def serve(grid: Grid, _context: Context) -> None:
        Counting(log, len(task.devices)).start(
            grid,
            ArrayRecord(model.state_dict()),
            num_rounds=ROUNDS,
            train_config=ConfigRecord({"task": path, "net": name}),
            evaluate_fn=round_done,
        )

    cpus = {"init_args": {"num_cpus": os.cpu_count()}, "client_resources": {"num_cpus": 1, "num_gpus": 0}}
    run_simulation(server, APP, len(task.devices), backend_config=cpus)
    log.tell(model, task.test)


if __name__ == "__main__":
    main()
