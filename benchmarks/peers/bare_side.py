"""The bare sequential loop: one process, one thread, one module, no framework.

python bare_side.py TASK.npz mlp|cnn
"""

from __future__ import annotations

import sys

import torch
from side import ROUNDS, Log, Task, net, train
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def main() -> None:
    """All rounds of FedAvg."""
    torch.set_num_threads(1)
    task, log, model = Task.read(sys.argv[1]), Log(()), net(sys.argv[2])
    parameters = list(model.parameters())
    mean = parameters_to_vector(parameters).detach().clone()
    everybody = sum(len(y) for _, y in task.devices)
    for _ in range(ROUNDS):
        total = torch.zeros_like(mean)
        for samples in task.devices:
            with torch.no_grad():
                vector_to_parameters(mean.clone(), parameters)  # they become views: training must not reach the mean
            train(model, samples)
            total += parameters_to_vector(parameters).detach() * (len(samples[1]) / everybody)
        mean = total
        log.round_done()
    with torch.no_grad():
        vector_to_parameters(mean, parameters)
    log.tell(model, task.test)


if __name__ == "__main__":
    main()
