"""FedNH: the last layer is a set of class prototypes, spread evenly at first, that no device trains.

Dai, Chen, Li, Heinecke, Sun and Xu, "Tackling Data Heterogeneity in Federated Learning with Class Prototypes", AAAI
2023 (arXiv:2212.02758).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edge_sdk.protocol.contracts import ranges, sharing
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.protocol.wires import Contract, Exchange, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class FedNHParams:
    """Hyper-parameters of FedNH; the defaults are the paper's, but for the update."""

    rho: float = 0.9
    """Of the old prototype in the new one."""
    initial: str = "auto"
    """The first prototypes: `simplex`, all equally far apart, for K <= d + 1; `cross-polytope`, at right angles or
    opposite, for K <= 2 d; `optimised`, found by descent; `auto`: the first of these that there is."""
    update: str = "counts"
    """What prototypes are drawn to: `counts`, the direction of the holders' means by their samples, as in the authors'
    code; `paper`, the sum of the means themselves over all devices of the round, holders or not (equation 4)."""
    scale: float = 20.0
    """s, of the cosines; the paper names 30."""
    train_scale: bool = True
    """Whether s is trained with the body, as in the paper's experiments."""
    share_body: bool = True
    """False: only prototypes travel, and devices may be of any architecture."""
    start: str = "first"
    """Round 0: `first`, the lowest-numbered contributor's body is everybody's start; `equal`: all start alike."""

    def __post_init__(self) -> None:
        ranges.real("rho", self.rho, 0, 1, paper="0.9")
        ranges.choice("initial", self.initial, "auto", "simplex", "cross-polytope", "optimised")
        ranges.choice("update", self.update, "counts", "paper")
        ranges.real("scale", self.scale, 1e-3, 1e3, paper="30, or trains it")
        ranges.choice("start", self.start, "first", "equal")


def _down(params: FedNHParams) -> Mapping[str, Slot]:
    body = sharing.BODY_DOWN if params.share_body else {}
    return {"prototypes": Slot(ClassRows), **body}


def _up(params: FedNHParams) -> Mapping[str, Slot]:
    body = sharing.BODY_UP if params.share_body else {}
    return {"means": Slot(ClassRows), **body}


_NEEDS = frozenset({"predict", "logit-gradients", "features", "head-rows", "cosine-head"})
_TOLD = (
    "which classes the device holds, the mean direction of their features, and with the default update the number of "
    "samples of each"
)


def _variant(params: FedNHParams) -> Mapping[str, Any]:
    """Without bodies no owner need let weights leave, and no two devices need be of one architecture."""
    return {} if params.share_body else {"needs": _NEEDS, "shares_weights": False, "discloses": _TOLD}


def _warnings(params: FedNHParams, spec: FederationSpec) -> tuple[str, ...]:
    k, d = spec.classes, spec.feature_dim
    if k <= d + 1 or params.initial != "auto":
        return ()
    how = "at right angles or opposite" if k <= 2 * d else "spread by descent" if d > 2 else "at equal angles"
    return (f"W9: {k} prototypes cannot all be equally far apart in {d} features; they start {how}",)


FEDNH: Contract[FedNHParams] = Contract(
    name="fednh",
    title="FedNH: bodies are averaged under a head of class prototypes that only the coordinator moves",
    citation="Dai et al. 2023, AAAI, arXiv:2212.02758",
    params=FedNHParams,
    exchanges=lambda params: (Exchange(down=_down(params), up=_up(params)),),
    closing=lambda params: Exchange(down=_down(params)),
    needs=_NEEDS | {"weights"},
    terms=frozenset({"cross-entropy"}),
    same_width=True,
    holders_wanted=1,
    shares_weights=True,
    discloses=f"all weights in front of the last layer; {_TOLD}",
    warnings=_warnings,
    cautions=("W9: more classes than features + 1",),
    variant=_variant,
)
