"""FedSSA: devices with any extractor average the rows of their last layers, class by class.

Yi et al., "FedSSA: Semantic Similarity-based Aggregation for Efficient Model-Heterogeneous Personalized Federated
Learning", IJCAI 2024.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from edge_sdk.protocol.contracts import ranges, sharing
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.wires import Caching, Contract, Exchange, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class FedSSAParams:
    """Hyper-parameters of FedSSA; the paper tunes mu0 and t_stable without telling, so these are its code's."""

    mu0: float = 0.5
    """mu_0: the share of a device's own rows at the start; 0: they are replaced in every round."""
    t_stable: int = 2
    """T_stable: rounds after which a device's own rows count no more (code: 2 for different models, 45 for equal)."""
    fusion: str = "convex"
    """`convex`: (global + mu own) / (1 + mu).  `literal`: global + mu own, eq. 4, which inflates the rows."""
    weighting: str = "uniform"
    """The mean over holders: `uniform`, eq. 3, or by their `samples` of the class."""
    takes: str = "seen"
    """Which of the rows that come down a device takes in: those of the classes that it has `seen`, or `all`.  With
    mu0 = 0, `all` is case A of the paper's Table 3, and `seen` case B."""
    cached: bool = False
    """Whether the mean goes over the newest rows of every device ever seen, not over a round's alone, as in the paper's
    code."""
    max_slot_age: int = 0
    """With `cached`: rounds after which the rows of a device that stays away no longer count; 0: never."""

    def __post_init__(self) -> None:
        ranges.real("mu0", self.mu0, 0, 1)
        ranges.whole("t_stable", self.t_stable, 1, 10**9)
        ranges.choice("fusion", self.fusion, "convex", "literal")
        ranges.choice("weighting", self.weighting, "uniform", "samples")
        ranges.choice("takes", self.takes, "seen", "all")
        sharing.check_slots(self.max_slot_age)

    def mu(self, round_: int) -> float:
        """mu^t = mu_0 cos(pi t / (2 T_stable)) until T_stable, then 0; t is the federation's round."""
        return self.mu0 * math.cos(math.pi * round_ / (2 * self.t_stable)) if round_ < self.t_stable else 0.0


MOST_INFLATION = 10.0
"""Growth of the rows above which `literal` is worth a warning: probabilities are useless from about there on."""


def inflation(params: FedSSAParams, rounds: int) -> float:
    """The product of 1 + mu^t: by how much literal fusion blows rows up, where training does not undo it."""
    return math.exp(sum(math.log1p(params.mu(t)) for t in range(min(rounds, params.t_stable))))


def _warnings(params: FedSSAParams, spec: FederationSpec) -> tuple[str, ...]:
    factor = inflation(params, spec.rounds) if params.fusion == "literal" else 1.0
    if factor <= MOST_INFLATION:
        return ()
    return (f'W11: header rows will be inflated by a factor of up to {factor:.2g}; use fusion = "convex"',)


FEDSSA: Contract[FedSSAParams] = Contract(
    name="fedssa",
    title="FedSSA: the last layer's rows of the classes that a device holds, averaged by class",
    citation="Yi et al. 2024, IJCAI, FedSSA",
    params=FedSSAParams,
    exchanges=lambda _params: (
        Exchange(
            down={"header": Slot(ClassRows, optional=True, extra_columns=1)},
            up={"header": Slot(ClassRows, extra_columns=1)},
        ),
    ),
    closing=lambda _params: Exchange(),
    needs=frozenset({"predict", "logit-gradients", "head-rows"}),
    terms=frozenset({"cross-entropy"}),
    same_width=True,
    holders_wanted=3,
    caching=lambda params: Caching(first_round=0, max_age=params.max_slot_age) if params.cached else None,
    discloses="which classes the device holds, its last layer's rows of them, and with weighting by samples how many",
    warnings=_warnings,
    cautions=(f"W11: literal fusion that blows rows up more than {MOST_INFLATION:g} times",),
)
