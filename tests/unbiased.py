"""A net whose last layer has no bias, as a family for [[fleet]]: `unbiased:model`."""

from __future__ import annotations

import math

import torch
from torch import nn

from edge_sdk.data import Preprocess
from edge_sdk.models.torch_nets.torch_model import TorchModel


def model(classes: int, input_shape: tuple[int, int, int], seed: int, preprocess: Preprocess) -> TorchModel:
    """A linear map of the pixels."""
    torch.manual_seed(seed)
    width = math.prod(input_shape)
    net = nn.Sequential(nn.Flatten(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes, bias=False))
    return TorchModel(net, classes, name="unbiased", input_shape=input_shape, preprocess=preprocess)
