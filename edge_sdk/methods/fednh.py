"""FedNH: the last layer is a set of class prototypes, spread evenly at first, that no device trains.

Dai, Chen, Li, Heinecke, Sun and Xu, "Tackling Data Heterogeneity in Federated Learning with Class Prototypes", AAAI
2023 (arXiv:2212.02758), Algorithm 1.

    receive   the prototypes W as last layer; the body, where bodies are shared
    train     CE(y, s W r) with r = f / |f|: the body, and s if it is trained, never W      equations 2 and 3
    share     the mean r of each class, as in inference after training; the body
    reduce    the plain mean of bodies; W_c <- the direction of rho W_c + (1 - rho) times the devices' mean of class c,
              for each class c                                                              equation 4 and line 9

The global model is the mean body under the new prototypes, the personal one a device's body after its training.  Where
bodies stay on their devices there is no global model, and each device's own body is measured under the new prototypes.

The first prototypes are K unit vectors in d dimensions whose smallest distance is as large as possible.  Up to
K = d + 1 that is the regular simplex, with all cosines -1 / (K - 1).  Up to K = 2 d nothing is better than right angles
(Rankin 1955), which axes and their opposites have.  In the plane equal angles are best.  Larger sets are found by
descent.  Each set is turned at random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Doubles, Floats, Ints
from edge_sdk.errors import RemoteProtocolError, UsageError
from edge_sdk.methods.contract.averaging import BODY_DOWN, BODY_UP, Averaging
from edge_sdk.methods.contract.base import Down, Exchange, OnDevice, Slot, Stage, Up, as_sent
from edge_sdk.methods.contract.description import Range, Start
from edge_sdk.methods.contract.last_layer import every_class
from edge_sdk.methods.contract.requests import ClassMeans, SetScale, WriteHead
from edge_sdk.objectives import CrossEntropy
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import wire
from edge_sdk.protocol.knowledge import ClassRows, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions import MixedSum, mean_over_holders

STEPS = 400
"""The number of descent steps; 100 classes in 32 dimensions take half a second."""
RATE = 0.5
SHARPNESS = 4.0, 64.0
"""The sharpness of the log-sum-exp that approximates the largest cosine, at the first and at the last step."""


def first_prototypes(classes: int, width: int, how: str, rng: np.random.Generator) -> Doubles:
    """Return unit rows (K, d); how: `simplex`, `cross-polytope`, `optimised`, or `auto` for the best possible.

    Raises UsageError if the chosen form does not exist for this number of classes.
    """
    found = [make for name, (fits, make) in _WAYS.items() if how in ("auto", name) and fits(classes, width)]
    if not found:
        raise UsageError(
            f"method.initial: {how} cannot give {classes} different directions in {width} features; "
            'use "auto", or more features: federation.feature_dim'
        )
    return found[0](classes, width, rng)


def _simplex(classes: int, width: int, rng: np.random.Generator) -> Doubles:
    """Return the corners of I - 1/K in the K - 1 dimensions that they span, turned into d."""
    if classes == 1:
        return _unit(rng.normal(size=(1, width)))
    corners, lengths, _ = np.linalg.svd(np.eye(classes) - 1 / classes)
    within = corners[:, :-1] * lengths[:-1]  # (k, k - 1)
    return _unit(within @ _frame(width, classes - 1, rng).T)


def _cross_polytope(classes: int, width: int, rng: np.random.Generator) -> Doubles:
    """Return the axes of a random frame, then their opposites."""
    axes = _frame(width, width, rng).T
    return np.concatenate([axes, -axes])[:classes]


def _equal_angles(classes: int, _width: int, rng: np.random.Generator) -> Doubles:
    angles = rng.uniform(0, 2 * np.pi) + 2 * np.pi * np.arange(classes) / classes
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _optimised(classes: int, width: int, rng: np.random.Generator) -> Doubles:
    """Descend on the log-sum-exp of all cosines, each row on its sphere; it approaches the largest cosine alone."""
    rows = _unit(rng.normal(size=(classes, width)))
    for step in range(STEPS if classes > 1 else 0):
        done = step / STEPS
        sharpness = SHARPNESS[0] * (SHARPNESS[1] / SHARPNESS[0]) ** done
        cosines = rows @ rows.T
        np.fill_diagonal(cosines, -np.inf)
        pulls = np.exp(sharpness * (cosines - cosines.max(axis=1, keepdims=True)))  # (k, k): who is near, by row
        pulls /= pulls.sum(axis=1, keepdims=True)
        rows = _unit(rows - RATE * (1 - done) * (pulls @ rows))
    return rows


def _frame(width: int, count: int, rng: np.random.Generator) -> Doubles:
    """Draw orthonormal columns (d, count), uniformly from all of them."""
    q, r = np.linalg.qr(rng.normal(size=(width, count)))
    turned: Doubles = q * np.sign(np.diagonal(r))
    return turned


def _unit(rows: Doubles) -> Doubles:
    unit: Doubles = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def _in_the_plane(fallback: Callable[[int, int, np.random.Generator], Doubles]) -> _Make:
    return lambda classes, width, rng: (_equal_angles if width == 2 else fallback)(classes, width, rng)


_Make = Callable[[int, int, np.random.Generator], Doubles]
_WAYS: dict[str, tuple[Callable[[int, int], bool], _Make]] = {
    "simplex": (lambda classes, width: classes <= width + 1, _simplex),
    "cross-polytope": (lambda classes, width: classes <= 2 * width, _cross_polytope),
    "optimised": (lambda _classes, width: width > 1, _in_the_plane(_optimised)),
}
"""The forms, best first: whether one exists for this number of classes and features, and the function that makes it."""


UNIT_WITHIN = 0.05
"""The allowed distance of a prototype's length from 1; the coarsest encoding changes it by less."""
LEAST = 1e-9
"""The minimum length of a sum of directions.  A shorter sum has cancelled out, and has no direction."""
CLOSE = 0.9
"""The cosine of two prototypes above which there is a warning.  They begin at right angles or further apart."""
SAFE_SCALE = 5.0
"""The scale up to which SGD without a gradient clip gets no warning."""
_STREAM = 0x70726F746F
"""Separates the draw of prototypes from the draws of devices, whose seeds end in their number."""
_TOLD = (
    "which classes the device holds, the mean direction of their features, and with the default update the number of "
    "samples of each"
)


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedNH; the defaults are the paper's, but for the update and the warm rounds.

    These come from a sweep (docs/results/fednh-scale.md): a scale of 20 from the start can ruin training by SGD.
    """

    rho: Annotated[float, Range(0, 1, paper="0.9")] = 0.9
    """rho, the share of the old prototype in the new one."""
    initial: Literal["auto", "simplex", "cross-polytope", "optimised"] = "auto"
    """How the first prototypes are made: `simplex`, all equally far apart, for K <= d + 1; `cross-polytope`, at
    right angles or opposite, for K <= 2 d; `optimised`, found by descent; `auto`: the first of these that is
    possible."""
    update: Literal["counts", "paper"] = "counts"
    """The target of the update: `counts`, the direction of the holders' means weighted by samples, as in the
    authors' code; `paper`, the sum of the means over all devices of the round, holders or not (equation 4)."""
    scale: Annotated[float, Range(1e-3, 1e3, paper="30, or trains it")] = 20.0
    """s, the scale of the cosines; the paper names 30."""
    train_scale: bool = True
    """Whether s is trained with the body, as in the paper's experiments."""
    warm_rounds: Annotated[int, Range(0, paper="0")] = 10
    """Rounds in which s rises from 1 to `scale`, by the same factor in each; after them it is trained, or stays."""
    share_body: bool = True
    """Whether bodies travel.  If false, only prototypes travel, and devices may have any architecture."""
    start: Start = "first"
    """Round 0: with `first` all start from the lowest-numbered contributor's body, with `equal` from equal weights."""


@wire("fednh-state")
@dataclass(frozen=True, slots=True)
class DeviceState:
    """Whether s was set.  After that it is the device's own, or comes with the body."""

    begun: bool = False


@wire("fednh-coordinator-state")
@dataclass(frozen=True, slots=True)
class State:
    """The body theta^t, None before the first round or if bodies are not shared, and the prototypes W^t, unit rows."""

    weights: Weights | None
    prototypes: ClassRows


class FedNH(Averaging[Params]):
    """Trains a body under a given head."""

    name = "fednh"
    title = "FedNH: bodies are averaged under a head of class prototypes that only the coordinator moves"
    citation = "Dai et al. 2023, AAAI, arXiv:2212.02758"
    needs = frozenset({"predict", "logit-gradients", "features", "head-rows", "cosine-head", "weights"})
    same_width = True
    holders_wanted = 1
    discloses = f"all weights in front of the last layer; {_TOLD}"
    cautions = (
        "W9: more classes than features + 1",
        "W21: prototypes that come close together",
        "W22: SGD with a large scale, without warm rounds or a gradient clip",
    )
    device_state = DeviceState
    reduction = MixedSum
    body = True
    weighting = "uniform"

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        shares = self.params.share_body
        down = {"prototypes": Slot(ClassRows), **(BODY_DOWN if shares else {})}
        self.exchanges = (Exchange(down=down, up={"means": Slot(ClassRows), **(BODY_UP if shares else {})}),)
        self.closing = Exchange(down=down)
        if not shares:  # weights need no permission, and architectures may differ
            self.needs, self.shares_weights, self.discloses = self.needs - {"weights"}, False, _TOLD
            self.global_model, self.personal_after = False, "arrival"

    def warnings(self, spec: FederationSpec) -> tuple[str, ...]:
        """Return warnings W9 and W22."""
        k, d, found = spec.classes, spec.feature_dim, []
        if k > d + 1 and self.params.initial == "auto":
            how = "at right angles or opposite" if k <= 2 * d else "spread by descent" if d > 2 else "at equal angles"
            found.append(f"W9: {k} prototypes cannot all be equally far apart in {d} features; they start {how}")
        train = spec.train
        bounded = train.optimiser != "sgd" or train.clip_norm or self.params.warm_rounds
        if not bounded and self.params.scale > SAFE_SCALE:
            found.append(
                f"W22: scale = {self.params.scale:g} multiplies every gradient, and nothing bounds it: set "
                "train.clip_norm = 10, as the authors' code does, or warm_rounds, or training may collapse"
            )
        return tuple(found)

    def receive(self, device: OnDevice[DeviceState]) -> Stage[None]:
        """Write the prototypes as last layer, and the body; set the scale unless it continues as trained."""
        params, round_ = self.params, device.job.round
        yield SetScale(self.scale_at(round_, begun=device.state.begun), trains=params.train_scale)
        prototypes = device.received(ClassRows, "prototypes")
        if prototypes is not None:
            yield WriteHead(*head_from_prototypes(prototypes))
        yield from super().receive(device)
        if 0 < round_ <= params.warm_rounds:  # the body brought the scale of the round before
            yield SetScale(self.scale_at(round_, begun=device.state.begun), trains=params.train_scale)

    def scale_at(self, round_: int, *, begun: bool) -> float | None:
        """Return s at the start of a round, or None to keep it.  begun: whether it was set on this device before."""
        params = self.params
        if round_ < params.warm_rounds:
            return warmed(params.scale, round_ / params.warm_rounds)
        keeps = params.train_scale and begun and (round_ > params.warm_rounds or not params.warm_rounds)
        return None if keeps else params.scale

    def course(self, state: State) -> tuple[str, ...]:
        """Return warning W21 if two prototypes have come close together."""
        rows = state.prototypes.rows.astype(np.float64)
        cosines = rows @ rows.T - 2 * np.eye(len(rows))
        if len(rows) < 2 or cosines.max() < CLOSE:
            return ()
        text = (
            f"W21: two prototypes have come closer than a cosine of {CLOSE}, and their classes are hardly distinct: "
            "lower method.scale or train.learning_rate, or set train.clip_norm = 10 as the authors' code does"
        )
        return (text,)

    def train(self, device: OnDevice[DeviceState]) -> Stage[None]:
        """Train the body alone."""
        yield from device.fit((CrossEntropy(),), part="body")

    def share(self, device: OnDevice[DeviceState]) -> Stage[Up]:
        """Send the class means, with sample counts only if they are used, and the body."""
        device.state = DeviceState(begun=True)
        means: ClassRows = yield ClassMeans()
        known = {"means": as_sent(means, "samples" if self.params.update == "counts" else "uniform")}
        return {**known, **(yield from super().share(device))} if self.params.share_body else known

    def begin(self, spec: FederationSpec) -> State:
        """Start without a body, with prototypes that are maximally apart.  Raises UsageError if that is impossible."""
        if not spec.feature_dim:
            raise UsageError("federation.feature_dim: missing; fednh spreads its prototypes in this many dimensions")
        rng = np.random.default_rng([spec.seed, _STREAM])
        return State(None, every_class(first_prototypes(spec.classes, spec.feature_dim, self.params.initial, rng)))

    def down(self, state: State, at: ExchangeId) -> Down:
        """Send the prototypes, and the body from the second round on."""
        return {"prototypes": state.prototypes, "weights": state.weights}

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: MixedSum) -> State:
        """Compute the mean body, and move the prototypes."""
        weights = self.mean(uploads.weights, state.weights) if self.params.share_body else None
        ups = list(uploads.rest.payloads(ClassRows, "means").values())
        classes, targets = (by_counts if self.params.update == "counts" else mean_of_all)(ups)
        rows = state.prototypes.rows.astype(np.float64)  # (k, d)
        rows[classes] = updated_prototypes(rows[classes], targets, self.params.rho)
        return State(weights, every_class(rows))

    def instruments(
        self, spec: FederationSpec, before: State, after: State, at: ExchangeId, uploads: MixedSum
    ) -> Mapping[str, float]:
        """Measure how far the prototypes turned, and how close two of them are."""
        return prototype_instruments(*(state.prototypes.rows.astype(np.float64) for state in (before, after)))


def prototype_instruments(before: Doubles, after: Doubles) -> dict[str, float]:
    """Return the mean angle by which prototypes turned in a round, in degrees, and the largest cosine of two of them.

    before, after: unit rows of all classes (k, d).
    """
    turned = np.degrees(np.arccos(np.clip((before * after).sum(axis=1), -1, 1)))  # (k,)
    between = after @ after.T - 2 * np.eye(len(after))  # (k, k), below -1 on the diagonal
    return {"prototype_turn_degrees": float(turned.mean()), "prototype_cosine_max": float(between.max())}


def warmed(scale: float, done: float) -> float:
    """Return s when this share of its warm rounds is done: 1 at first, `scale` in the end."""
    return float(scale**done)


def head_from_prototypes(prototypes: ClassRows) -> tuple[Ints, Floats]:
    """Return classes and head rows without bias.  Raises RemoteProtocolError if a prototype's length is not 1 (W9)."""
    rows = prototypes.rows.astype(np.float32)  # (k, d)
    off = np.abs(np.linalg.norm(rows, axis=1) - 1).max()
    if not off <= UNIT_WITHIN:
        raise RemoteProtocolError("knowledge", f"prototypes: a length is off 1 by {off:.3g}: they must be directions")
    return prototypes.classes.astype(np.int64), np.hstack([rows, np.zeros((len(rows), 1), np.float32)])


def mean_of_all(ups: Sequence[ClassRows]) -> tuple[NDArray[np.int32], Doubles]:
    """Compute the target of equation 4 with alpha = 1 / |S|, S all devices of the round, holders of the class or not.

    Returns classes (m,), and the sum of their means over the number of uploads (m, d).
    """
    mean = mean_over_holders([as_sent(up, "uniform") for up in ups])  # counts are now numbers of holders
    return mean.classes, mean.rows * (mean.counts / len(ups))[:, None]


def by_counts(ups: Sequence[ClassRows]) -> tuple[NDArray[np.int32], Doubles]:
    """Compute the update of the authors' code: classes (m,), directions of holders' directions by samples (m, d)."""
    directed = [replace(up, rows=directions(up.rows.astype(np.float64)).astype(np.float32)) for up in ups]
    mean = mean_over_holders(directed)
    return mean.classes, directions(mean.rows.astype(np.float64))


def updated_prototypes(before: Doubles, targets: Doubles, rho: float) -> Doubles:
    """Return the direction of rho W + (1 - rho) target for each row (m, d); W itself if that sum has no direction."""
    after = directions(rho * before + (1 - rho) * targets)
    there = (targets != 0).any(axis=1) & (after != 0).any(axis=1)  # (m,)
    return np.where(there[:, None], after, before)


def directions(rows: Doubles) -> Doubles:
    """Divide each row (m, d) by its length; return zeros for a row that is almost zero."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Doubles = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > LEAST)
    return unit
