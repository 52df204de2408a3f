"""FedGen: FedAvg, and a generator of features by label on the coordinator, from which devices' heads learn.

Zhu, Hong and Zhou, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML 2021
(arXiv:2105.10056).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edge_sdk.protocol.contracts import ranges, sharing
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.protocol.wires import Contract, Exchange, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class FedGenParams:
    """Hyper-parameters of FedGen; those of the generator are its authors' code's, for MNIST."""

    alpha: float = 1.0
    """Weight of the cross-entropy on generated features.  0: FedAvg, with a generator that nobody uses."""
    samples_per_class: int = 8
    """Features that the generator makes of each class for a round."""
    diversity: float = 1.0
    """eta, of the generator's term that keeps features of a label apart."""
    hidden: int = 256
    """Width of the generator's hidden layer."""
    noise_dim: int = 32
    """Numbers that it starts from beside the label."""
    generator_steps: int = 50
    """Steps of Adam in each round."""
    generator_batch: int = 128
    """Labels in each."""
    generator_rate: float = 3e-4
    """Its learning rate."""
    weighting: str = "samples"
    """The mean over devices: by their `samples` or `uniform`."""
    start: str = "first"
    """Round 0: `first`, the lowest-numbered contributor's model is everybody's start; `equal`: all start alike."""

    def __post_init__(self) -> None:
        ranges.real("alpha", self.alpha, 0, 1000, paper="1, its code 10 that decays")
        ranges.whole("samples_per_class", self.samples_per_class, 1, 1000)
        ranges.real("diversity", self.diversity, 0, 1000, paper="1")
        ranges.whole("hidden", self.hidden, 1, 65536, paper="256")
        ranges.whole("noise_dim", self.noise_dim, 1, 4096, paper="32")
        ranges.whole("generator_steps", self.generator_steps, 0, 100_000, paper="50")
        ranges.whole("generator_batch", self.generator_batch, 2, 65536, paper="128")
        ranges.real("generator_rate", self.generator_rate, 0, 10, paper="0.0003")
        sharing.check_mean(self.weighting, self.start)


def _down(params: FedGenParams) -> Mapping[str, Slot]:
    return {**sharing.DOWN, "generated": Slot(ClassRows, optional=True, times=params.samples_per_class)}


_UP = {
    **sharing.ROUND.up,
    "header": Slot(ClassRows, extra_columns=1),
    "others": Slot(ClassRows, optional=True, extra_columns=1, remainder=True),
}

FEDGEN: Contract[FedGenParams] = Contract(
    name="fedgen",
    title="FedGen: weights, and features that a generator makes of the labels",
    citation="Zhu et al. 2021, ICML, arXiv:2105.10056",
    params=FedGenParams,
    exchanges=lambda params: (Exchange(down=_down(params), up=_UP),),
    closing=lambda _params: sharing.CLOSING,
    needs=frozenset({"predict", "logit-gradients", "head-rows", "weights"}),
    terms=frozenset({"cross-entropy", "head-labels"}),
    same_width=True,
    shares_weights=True,
    discloses=f"{sharing.DISCLOSES}; which classes the device holds, and how many samples of each",
)
