"""MOON: FedAvg, with features drawn towards those of the mean and away from those of the device's former model.

Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021 (arXiv:2103.16257), Algorithm 1.

    train    CE(y, f(x)) + mu log(1 + exp((cos(z, z_former) - cos(z, z_mean)) / tau))    equations 3 and 4; z = R(x)

z_former: features by this device's last trained model; z_mean: by the received mean.  Both are requested before
training, on the coming batches, which saves a second model in memory.  In round 0 nothing was received, and the term is
left out.  The rest is FedAvg (averaging.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from edge_sdk.arrays import Floats
from edge_sdk.methods.contract.averaging import DISCLOSES, Averaging
from edge_sdk.methods.contract.base import OnDevice, Stage
from edge_sdk.methods.contract.description import Range, Start, Weighting
from edge_sdk.methods.contract.requests import Features
from edge_sdk.objectives import CrossEntropy, ModelContrast


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of MOON."""

    mu: Annotated[float, Range(0, 1000, paper="0.1 to 10")] = 1.0
    """mu, the weight of the contrast; the paper tunes it in 0.1 ... 10 and takes 5, 1 and 1.  0 gives FedAvg."""
    temperature: Annotated[float, Range(0.05, 100, paper="0.5")] = 0.5
    """tau, which divides the cosines."""
    weighting: Weighting = "samples"
    """The mean over devices: by their `samples` or `uniform`."""
    start: Start = "first"
    """Round 0: with `first` all start from the lowest-numbered contributor's model, with `equal` from equal weights."""


class Moon(Averaging[Params]):
    """FedAvg's round; it reads features from the former model before the mean overwrites it."""

    name = "moon"
    title = "MOON: FedAvg, with features that follow the mean and not the device's former model"
    citation = "Li et al. 2021, CVPR, arXiv:2103.16257"
    needs = frozenset({"predict", "logit-gradients", "features", "weights"})
    terms = frozenset({"cross-entropy", "model-contrast"})
    discloses = DISCLOSES

    def receive(self, device: OnDevice[Any]) -> Stage[None]:
        """Ask for the former features, then take over the mean."""
        job = device.job
        if "weights" in device.down and self.params.mu and job.local_steps and not job.closing:
            device.kept = yield Features(device.batches)  # (steps, b, d)
        yield from super().receive(device)

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Train on equation 4."""
        former: Floats | None = device.kept
        if former is None:
            yield from device.fit((CrossEntropy(),))
            return
        mean: Floats = yield Features(device.batches)  # (steps, b, d)
        params = self.params
        term = ModelContrast(near=mean, away=former, temperature=params.temperature, weight=params.mu)
        yield from device.fit((CrossEntropy(), term))
