"""FedSSA: devices with any extractor average the rows of their last layers, class by class.

Yi et al., "FedSSA: Semantic Similarity-based Aggregation for Efficient Model-Heterogeneous Personalized Federated
Learning", IJCAI 2024, Algorithm 1.

    receive   row s of the last layer <- (global + mu^t own) / (1 + mu^t), for the classes s held     equation 4
              mu^t = mu_0 cos(pi t / (2 T_stable)) until T_stable, then 0                             equations 5 and 6
    train     CE(y, f(x)), all of the model
    share     the rows of those classes
    reduce    the mean of each class's rows over its holders                                          equation 3

Equation 4 lacks the division, and multiplies the rows by 1 + mu^t in every round; it is there as fusion = "literal".
Rows of other classes, unless takes = "all", and the extractor stay the device's own.  A class without uploads in a
round keeps its row; the paper does not cover this case.  Round 0 begins with a random header, the same for all devices,
drawn from the federation's seed, or without one if the feature width is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, cast

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.base import Caching, Down, Exchange, Method, OnDevice, Slot, Stage, Up
from edge_sdk.methods.contract.description import Range, SlotAge
from edge_sdk.methods.contract.last_layer import every_class, random_rows
from edge_sdk.methods.contract.requests import ReadHead, Report, WriteHead
from edge_sdk.objectives import NORM_FLOOR
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Count, Items, Packed, wire
from edge_sdk.protocol.knowledge import ClassRows, Payload, Weights
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.reductions import MOST, Bag, Change, SlotSum, carried_over, changed

MOST_INFLATION = 10.0
"""The growth of the rows above which `literal` gets a warning; beyond it probabilities are useless."""
_HEADER_STREAM = 0x68656164
"""Separates this draw from the draws of devices, whose seeds end in their number."""
_LAYOUT = bytes(16)
"""The layout of the tables that slots add up; there is only one layout."""


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedSSA; the paper does not state its mu0 and t_stable, so these are its code's."""

    mu0: Annotated[float, Range(0, 1)] = 0.5
    """mu_0: the share of a device's own rows at the start; 0 replaces them in every round."""
    t_stable: Annotated[int, Range(1, 10**9)] = 2
    """T_stable: rounds after which a device's own rows no longer count (code: 2 for different models, 45 for equal)."""
    fusion: Literal["convex", "literal"] = "convex"
    """`convex`: (global + mu own) / (1 + mu).  `literal`: global + mu own, eq. 4, which inflates the rows."""
    weighting: Literal["uniform", "samples"] = "uniform"
    """The mean over holders: `uniform`, eq. 3, or by their `samples` of the class."""
    takes: Literal["seen", "all"] = "seen"
    """Which received rows a device takes in: those of the classes that it has `seen`, or `all`.  With mu0 = 0, `all`
    is case A of the paper's Table 3, and `seen` case B."""
    down: Literal["seen", "all"] = "seen"
    """Which rows are sent to a device: those of the classes that it sent before, or `all`, as in Algorithm 1, in one
    frame for all devices.  A device that sent nothing yet gets every trained row."""
    bias: bool = True
    """Whether rows have their bias as last column.  If false it stays on the device, and heads without bias take
    part."""
    cached: bool = False
    """Whether the mean covers the newest rows of every device ever seen, as in the paper's code, not those of one
    round."""
    max_slot_age: SlotAge = 0
    """With `cached`: rounds after which the rows of an absent device no longer count; 0 keeps them."""

    def __post_init__(self) -> None:
        if self.takes == "all" and self.down != "all":
            raise ValueError(f"down: expected all where takes is all, found {self.down!r}")


@wire("fedssa-state")
@dataclass(frozen=True, slots=True)
class DeviceState:
    """C_k: the classes that this device joined with; empty before its first exchange."""

    classes: Annotated[tuple[int, ...], Packed(65535)] = ()


ClassSet = Annotated[tuple[int, ...], Packed(65535)]


@wire("fedssa-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The global header."""

    header: ClassRows | None  # (m, d + 1)
    rounds: Count
    """The number of rounds.  After the last one, the header is not needed: the result is each device's trained
    model."""
    slots: SlotSum | None = None
    """The slots with `cached`: for each class the weighted sum of its rows, and the sum of the weights."""
    seen: Annotated[Mapping[str, ClassSet], Items(0, 2**20)] = field(default_factory=dict)
    """With `down` = seen: the classes of the rows that each device brought, by its number."""


class FedSSA(Method[Params]):
    """Exchanges the rows of the classes that a device holds."""

    name = "fedssa"
    title = "FedSSA: the last layer's rows of the classes that a device holds, averaged by class"
    citation = "Yi et al. 2024, IJCAI, FedSSA"
    needs = frozenset({"predict", "logit-gradients", "head-rows"})
    same_width = True
    means = frozenset({"header"})
    holders_wanted = 3
    discloses = "which classes the device holds, its last layer's rows of them, and with weighting by samples how many"
    cautions = (f"W11: literal fusion that blows rows up more than {MOST_INFLATION:g} times",)
    device_state = DeviceState

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        params = self.params
        rows = Slot(ClassRows, extra_columns=int(params.bias))
        down = {"header": replace(rows, optional=True, personal=params.down == "seen")}
        self.exchanges = (Exchange(down=down, up={"header": rows}),)
        self.caching = Caching(first_round=0, max_age=params.max_slot_age) if params.cached else None
        self.robust = frozenset() if params.cached else frozenset({"rows"})
        if not params.bias:
            self.needs = (self.needs - {"head-rows"}) | {"head-weights"}

    def warnings(self, spec: FederationSpec) -> tuple[str, ...]:
        """Return warning W11."""
        factor = inflation(self.params, spec.rounds) if self.params.fusion == "literal" else 1.0
        if factor <= MOST_INFLATION:
            return ()
        return (f'W11: header rows will be inflated by a factor of up to {factor:.2g}; use fusion = "convex"',)

    def receive(self, device: OnDevice[DeviceState]) -> Stage[None]:
        """Fuse the rows of the classes held, or all received rows; other rows keep the local value.

        Raises UsageError if the data has other classes than when the device joined (W16).
        """
        held, joined_with = tuple(device.job.classes.tolist()), device.state.classes
        if joined_with and joined_with != held:
            raise UsageError(
                f"this device joined with samples of classes {list(joined_with)} and now holds {list(held)}: "
                "remove FEDERATION.db in its state folder to join again"
            )
        device.state = DeviceState(held)
        header = self.received_header(device, held)
        if header is None:
            return
        own: Floats = yield ReadHead(self.params.bias)  # (k, d + 1), or (k, d)
        taken = header if self.params.takes == "all" else rows_of_classes(header, held)
        classes = taken.classes.astype(np.int64)
        if len(classes):
            before = own[classes]
            if device.job.instruments:
                yield Report(header_instruments(taken.rows, before, self.params, device.job.round))
            yield WriteHead(classes, fused(taken.rows, before, self.params, device.job.round))

    def received_header(self, device: OnDevice[DeviceState], held: Sequence[int]) -> ClassRows | None:
        """Return the received header; rows that no device has trained yet are the drawn ones."""
        header, spec = device.received(ClassRows, "header"), device.job.spec
        if self.params.down == "all" or not spec.feature_dim:
            return header
        if header is not None and set(held) <= set(header.classes.tolist()):
            return header  # a device ignores rows of other classes
        drawn = random_header(spec, bias=self.params.bias)
        return drawn if header is None else carried_over(drawn, header)

    def share(self, device: OnDevice[DeviceState]) -> Stage[Up]:
        """Send the rows of the classes held, with numbers of samples only if the weighting needs them."""
        held = device.job.classes
        rows: Floats = yield ReadHead(self.params.bias)
        by_samples = self.params.weighting == "samples"
        counts = np.array(device.job.class_counts)[held] if by_samples else np.ones(len(held))
        return {"header": ClassRows(classes=held.astype(np.int32), rows=rows[held], counts=counts.astype(np.int32))}

    def begin(self, spec: FederationSpec) -> State:
        """Start with a random header of all classes."""
        header = random_header(spec, bias=self.params.bias) if spec.feature_dim else None
        return State(header=header, rounds=spec.rounds)

    def down(self, state: State, at: ExchangeId) -> Down:
        """Send the rows of all classes, as in Algorithm 1; each device uses those of its own classes."""
        return {"header": state.header} if self.params.down == "all" and at.round < state.rounds else {}

    def down_to(self, state: State, at: ExchangeId, number: int) -> Down:
        """Send the rows of the classes that this device sent, or of all classes that any device sent."""
        if self.params.down == "all" or at.round == state.rounds or state.header is None:
            return {}
        classes = state.seen.get(str(number)) or sorted(set().union(*state.seen.values()))
        return {"header": rows_of_classes(state.header, classes) if classes else None}

    def shown(self, state: State, at: ExchangeId) -> Up:
        """Return the header of all classes, also of those that a device does not get."""
        return {} if state.header is None else {"header": state.header}

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: Bag) -> State:
        """Compute the mean over the holders of each class; with `cached`, over the newest rows of all past holders."""
        if self.params.down == "seen":
            state = replace(state, seen=seen_after(state.seen, uploads))
        if not self.params.cached:
            now = self.combining.rows(list(uploads.payloads(ClassRows, "header").values()))
            return state if now is None else replace(state, header=carried_over(state.header, now))
        slots = slots_after(state.slots, uploads, spec.classes)
        return replace(state, header=carried_over(state.header, mean_of_slots(slots, spec.classes)), slots=slots)


def mu(params: Params, round_: int) -> float:
    """Return mu^t by equations 5 and 6; t is the federation's round."""
    if round_ >= params.t_stable:
        return 0.0
    return params.mu0 * math.cos(math.pi * round_ / (2 * params.t_stable))


def fused(shared: Floats, own: Floats, params: Params, round_: int) -> Floats:
    """Return the rows (m, d + 1) at the start of a round (equation 4).  Example: docs/reference/methods/fedssa.md."""
    share = mu(params, round_)
    scale = 1 + share if params.fusion == "convex" else 1.0
    return ((shared.astype(np.float64) + share * own) / scale).astype(np.float32)


def header_instruments(shared: Floats, own: Floats, params: Params, round_: int) -> dict[str, float]:
    """Return mu^t, and the mean cosine between the received rows and the device's own (m, d + 1)."""
    a, b = shared.astype(np.float64), own.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)  # (m,)
    return {
        "mu": mu(params, round_),
        "header_cosine": float(((a * b).sum(axis=1) / np.maximum(lengths, NORM_FLOOR)).mean()),
    }


def inflation(params: Params, rounds: int) -> float:
    """Return the product of 1 + mu^t: the growth of rows by literal fusion, if training does not undo it."""
    return math.exp(sum(math.log1p(mu(params, t)) for t in range(min(rounds, params.t_stable))))


def rows_of_classes(header: ClassRows, classes: Collection[int]) -> ClassRows:
    """Return the rows of these classes."""
    wanted = set(classes)
    there = [at for at, each in enumerate(header.classes.tolist()) if each in wanted]
    if len(there) == len(header.classes):
        return header
    return ClassRows(classes=header.classes[there], rows=header.rows[there], counts=header.counts[there])


def seen_after(seen: Mapping[str, tuple[int, ...]], uploads: Bag) -> dict[str, tuple[int, ...]]:
    """Return the classes that each device brought so far, by its number, ascending."""
    after = dict(seen)
    for number, rows in uploads.payloads(ClassRows, "header").items():
        after[str(number)] = tuple(sorted({*after.get(str(number), ()), *rows.classes.tolist()}))
    return after


def random_header(spec: FederationSpec, *, bias: bool = True) -> ClassRows:
    """Draw weights and bias from U(-1/sqrt d, 1/sqrt d), like the devices' own last layers.

    A device draws the same header as the coordinator, so that it need not be sent.
    """
    rows = random_rows(spec.classes, spec.feature_dim, np.random.default_rng([spec.seed, _HEADER_STREAM]))
    return every_class(rows if bias else rows[:, :-1].copy())


def slots_after(slots: SlotSum | None, uploads: Bag, classes: int) -> SlotSum:
    """Return the slots with the new rows, and without the rows that were replaced or that expired."""
    change = Change()
    for up in uploads:
        knowledge, before = (_as_table(each, classes) for each in (up.knowledge, up.before))
        change = change.add(replace(up, knowledge=knowledge, before=before))
    return changed(slots, change, _LAYOUT)


def _as_table(known: Up, classes: int) -> Mapping[str, Payload]:
    """Return rows of all classes, each times its weight, with the weight as one more column, flat, for the slots."""
    if not known:
        return {}
    header = cast("ClassRows", known["header"])
    table = np.zeros((classes, header.rows.shape[1] + 1))  # (k, d + 2)
    table[header.classes, :-1] = header.rows.astype(np.float64) * header.counts[:, None]
    table[header.classes, -1] = header.counts
    return {"weights": Weights(values=table.reshape(-1), layout=_LAYOUT)}  # f8, so products are exact


def mean_of_slots(slots: SlotSum, classes: int) -> ClassRows:
    """Return the mean row of each class that is in a slot."""
    coarse, fine = slots.sum().parts()
    table = (coarse + fine).reshape(classes, -1)  # (k, d + 2)
    held = np.flatnonzero(table[:, -1])
    weights = table[held, -1:]  # (m, 1)
    counts = np.minimum(weights[:, 0], MOST).astype(np.int32)
    rows = (table[held, :-1] / weights).astype(np.float32)
    return ClassRows(classes=held.astype(np.int32), rows=rows, counts=counts)
