"""The device's half of flower_side.py, in a module of its own so that Ray's workers import it once."""

from __future__ import annotations

from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from side import Task, net, train
from torch import nn

APP = ClientApp()


@lru_cache(maxsize=1)
def kept(path: str, name: str) -> tuple[Task, nn.Sequential]:
    """Read and built once in each worker."""
    torch.set_num_threads(1)
    return Task.read(path), net(name)


@APP.train()
def train_one(message: Message, context: Context) -> Message:
    """One device-round."""
    config = message.content["config"]
    task, model = kept(str(config["task"]), str(config["net"]))
    samples = task.devices[int(context.node_config["partition-id"])]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(model, samples)
    metrics = MetricRecord({"num-examples": len(samples[1])})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)
