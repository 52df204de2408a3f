"""FedKF: devices learn from their own data, and without data from a teacher, the mean of everybody's newest weights.

Zhou et al., "Handling Data Heterogeneity in Federated Learning via Knowledge Fusion", IEEE Internet of Things Journal
2023 (arXiv:2207.11447).
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_sdk.protocol.contracts import ranges, sharing
from edge_sdk.protocol.knowledge import Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.wires import Contract, Exchange, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class FedKFParams:
    """Hyper-parameters of FedKF."""

    gamma: float = 1.0
    """gamma, of the teacher's predictions on samples that are made up.  0: FedAvg with slots."""
    certain: float = 0.1
    """lambda_1: the generator looks for samples on which the teacher is sure."""
    active: float = 0.1
    """lambda_2: and for samples that give large features."""
    raw_loss: bool = False
    """The generator's loss with sums over classes and features as in the paper; else in its code's scale-free form."""
    adversarial: bool = False
    """Whether the generator also looks for samples on which device and teacher differ, as the code does for CIFAR."""
    generator: str = "board"
    """`board`: an eighth of the channels of the `paper`'s."""
    noise_dim: int = 32
    """Numbers that a sample is made of; the paper's code takes 1000 for CIFAR and 100 for EMNIST."""
    generator_rate: float = 0.001
    """Learning rate of the generator's Adam."""
    warm: bool = True
    """Whether a device's generator goes on from round to round, as in the code; the paper's begins anew in each."""
    weighting: str = "samples"
    """Both means: by their `samples` or `uniform`."""
    start: str = "first"
    """Round 0: `first`, the lowest-numbered contributor's model is everybody's start; `equal`: all start alike."""
    max_slot_age: int = 0
    """Rounds after which the upload of a device that stays away no longer counts; 0: never."""

    def __post_init__(self) -> None:
        ranges.real("gamma", self.gamma, 0, 1000, paper="1, and 0.001 for CIFAR-10 with alpha = 1")
        ranges.real("certain", self.certain, 0, 1000, paper="0.1 or 0.01")
        ranges.real("active", self.active, 0, 1000, paper="0.1")
        ranges.choice("generator", self.generator, "board", "paper")
        ranges.whole("noise_dim", self.noise_dim, 1, 4096, paper="1000 or 100")
        ranges.real("generator_rate", self.generator_rate, 1e-6, 1, paper="0.001")
        sharing.check_mean(self.weighting, self.start)
        sharing.check_slots(self.max_slot_age)


_DOWN = {**sharing.DOWN, "teacher": Slot(Weights, optional=True)}


def _warnings(params: FedKFParams, _spec: FederationSpec) -> tuple[str, ...]:
    if params.generator != "paper":
        return ()
    linear = 128 * (params.noise_dim + 1)
    text = (
        f"method.generator = paper: on each device a generator of {linear:,} weights for every 16 pixels, and 222,000 "
        "more, which can cost more than the model; board has an eighth of its channels (W7)"
    )
    return (text,)


FEDKF: Contract[FedKFParams] = Contract(
    name="fedkf",
    title="FedKF: FedAvg, with the mean of everybody's newest weights as teacher, on samples that devices make up",
    citation="Zhou et al. 2023, IEEE IoT Journal, arXiv:2207.11447",
    params=FedKFParams,
    exchanges=lambda _params: (Exchange(down=_DOWN, up=sharing.ROUND.up),),
    closing=lambda _params: sharing.CLOSING,
    needs=frozenset({"predict", "logit-gradients", "features", "weights"}),
    terms=frozenset({"cross-entropy", "data-free"}),
    shares_weights=True,
    caching=lambda params: sharing.slots(params.start, params.max_slot_age),
    discloses=sharing.DISCLOSES,
    warnings=_warnings,
    cautions=("W7: a generator with more weights than the model; refused without pictures",),
)
