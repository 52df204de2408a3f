"""Prototypes with differential privacy: devices release sums by class with noise, once for each version of their data.

Record-level Gaussian noise on clipped sums under a frozen extractor (mode A of docs/how-to/privacy.md); the noise is
calibrated after Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018.

    share     for all classes (a sum clip(R(x)) / C, c samples) + N(0, sigma^2), a^2 + c^2 = 1
    reduce    the sums of all devices; a class's prototype is its sum of features / its samples, both noised
    receive   the last layer becomes that of the nearest prototype: R(x) C^j - |C^j|^2 / 2

Nothing is trained.  A device with a privacy budget discloses no numbers of samples, and only figures of the test
samples.  Equal data give equal bytes in every round, so further rounds serve only late devices and changing data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from edge_sdk.methods.contract.base import Down, Exchange, Method, OnDevice, Slot, Stage, Up
from edge_sdk.methods.contract.description import Range
from edge_sdk.methods.contract.requests import Evaluate, Released, ReleaseSums, WriteHead
from edge_sdk.privacy.release import FROZEN, SHARES, Assumptions, Guarantee, head_of, means_of, merged, promised
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Blob, Count, wire
from edge_sdk.protocol.knowledge import MAX_MAGNITUDE, ClassRows, Payload
from edge_sdk.protocol.messages import FederationSpec, Hello, Scalar
from edge_sdk.reductions import MOST, Bag, carried_over


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters; each release costs `epsilon` at `delta` of the device's budget."""

    epsilon: Annotated[float, Range(0, 1e6)] = 8.0
    """epsilon of one release for one training record; 0 disables the noise, and with it the guarantee."""
    delta: Annotated[float, Range(1e-12, 0.1)] = 1e-5
    """delta of one release; far below one over the number of records."""
    clip: Annotated[float, Range(1e-3, 1e4)] = 4.0
    """C: the L2 norm to which features are shortened.  Choose it from public data: noise grows with it."""
    min_samples: Annotated[int, Range(1)] = 50
    """The samples, after noise and over all devices, that a class needs before its prototype is published."""
    most_samples: Annotated[int, Range(1, 10**5)] = 10**5
    """The maximum number of samples of a class that one device counts with."""
    without_guarantee: Literal["refuse", "tell"] = "refuse"
    """The answer to a device whose extractor is trained, or that has no budget, so that the guarantee does not hold:
    `refuse` it, or `tell`: admit it, and report that the run has no guarantee."""

    def __post_init__(self) -> None:
        if not self.epsilon and self.without_guarantee == "refuse":
            raise ValueError("without_guarantee: expected tell where epsilon = 0, found 'refuse'")


@wire("dp-prototypes-coordinator-state")
@dataclass(frozen=True, slots=True)
class State:
    """The prototypes of the classes that had enough samples."""

    prototypes: ClassRows | None = None


@wire("dp-prototypes-device-state")
@dataclass(frozen=True, slots=True)
class OnDisk:
    """The version of the data that was released last."""

    version: Annotated[bytes, Blob(0, 32)] = b""
    epoch: Count = 0
    """Unused; kept because stored states of devices have it."""


DOWN = {"prototypes": Slot(ClassRows, optional=True)}
HOLDS = Assumptions(frozen_extractor=True)


class DPPrototypes(Method[Params]):
    """All devices must have the same frozen extractor, made without their data."""

    name = "dp_prototypes"
    title = "DP prototypes: sums by class over a frozen extractor, with noise that hides each record"
    citation = "Balle and Wang 2018, ICML, arXiv:1805.06530 (the noise)"
    exchanges = (Exchange(down=DOWN, up={"sums": Slot(ClassRows, extra_columns=1)}),)
    closing = Exchange(down=DOWN)
    personal_after = "arrival"
    needs = frozenset({"predict", "features", "head-rows"})
    terms = frozenset()
    same_width = True
    releases = True
    device_state = OnDisk
    discloses = "sums of features and numbers of samples of every class, with noise unless epsilon is 0"
    cautions = ("W25: always, what the noise promises and on what that depends",)

    @property
    def guarantee(self) -> Guarantee | None:
        """The guarantee of one release, or None without noise."""
        return Guarantee(self.params.epsilon, self.params.delta) if self.params.epsilon else None

    def warnings(self, spec: FederationSpec) -> tuple[str, ...]:
        """Return warning W25: the guarantee for every admitted device."""
        if self.params.without_guarantee == "refuse":
            return (f"W25: {promised(HOLDS, self.guarantee)}",)
        why = "devices without one may take part" if self.guarantee else "there is no noise"
        return (f"W25: no formal guarantee: {why}",)

    def objection(self, hello: Hello) -> str:
        """Return why the guarantee does not hold for a device, if such devices are refused."""
        assumptions = assumed([hello])
        if self.params.without_guarantee == "tell" or assumptions == HOLDS:
            return ""
        return promised(assumptions, self.guarantee)

    def promise(self, hellos: Iterable[Hello]) -> Mapping[str, Scalar]:
        """Return what the run promises of one version of a device's data; a device's own budget bounds all versions.

        It has epsilon and delta only if all that they depend on holds for all devices.
        """
        assumptions, guarantee = assumed(hellos), self.guarantee
        told: dict[str, Scalar] = {"promise": promised(assumptions, guarantee)}
        if guarantee is None or assumptions != HOLDS:
            return {"mode": "C", **told}
        numbers = {"epsilon": guarantee.epsilon, "delta": guarantee.delta}
        about = {"unit": "training record", "neighbours": "one record there or not", "of": "one version of the data"}
        return {"mode": "A", **numbers, **about, **told}

    def receive(self, device: OnDevice[Any]) -> Stage[None]:
        """Write the nearest prototype into the last layer."""
        prototypes = device.received(ClassRows, "prototypes")
        if prototypes is not None:
            count = device.job.spec.classes
            classes, means = prototypes.classes.astype(np.int64), prototypes.rows.astype(np.float64)
            rows = head_of(classes, means, count, -MAX_MAGNITUDE)
            yield WriteHead(np.arange(count), rows.astype(np.float32))

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Do not train: the extractor is fixed, and the last layer holds the prototypes."""
        yield from ()

    def measure(self, device: OnDevice[Any]) -> Stage[None]:
        """Measure the prototypes, once they exist; a head that was trained here would reveal its records."""
        if device.received(ClassRows, "prototypes") is not None:
            yield from self.measure_personal(device)

    def measure_personal(self, device: OnDevice[Any]) -> Stage[None]:
        """Measure only on the test samples, independently of the classes that the device holds."""
        yield Evaluate(device.job.round, of_own_classes=False)

    def share(self, device: OnDevice[Any]) -> Stage[Up]:
        """Send the sums with noise; if the data did not change or the budget is spent, send the earlier ones again."""
        params, state = self.params, device.state
        insists = params.without_guarantee == "refuse"
        found: Released = yield ReleaseSums(
            clip=params.clip, cost=self.guarantee, insists=insists, version=state.version
        )
        device.state = OnDisk(found.version)
        classes = np.arange(len(found.sums), dtype=np.int32)
        rows = found.sums.clip(-MAX_MAGNITUDE, MAX_MAGNITUDE).astype(np.float32)
        return {"sums": ClassRows(classes=classes, rows=rows, counts=np.ones_like(classes))}

    def size_of(self, knowledge: Mapping[str, Payload]) -> float | None:
        """Return the largest row for each noised sample of its class.

        A row of n samples has a norm of SHARES[1] n to n before noise, so that of an honest device is far from an
        outlier, however many samples it has.  Where noise is larger than the samples, the row is measured by the noise.
        """
        sums = knowledge.get("sums")
        if not isinstance(sums, ClassRows):
            return None
        rows = sums.rows.astype(np.float64)  # (k, d + 1)
        noise = math.sqrt(rows.shape[1]) / self.guarantee.mu if self.guarantee else 1.0
        samples = np.maximum(rows[:, -1] / SHARES[1], noise)  # (k,)
        return float((np.linalg.norm(rows, axis=1) / samples).max())

    def begin(self, spec: FederationSpec) -> State:
        """Start without prototypes."""
        return State()

    def down(self, state: State, at: ExchangeId) -> Down:
        """Send the prototypes of all classes that have one."""
        return {"prototypes": state.prototypes}

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: Bag) -> State:
        """Add up the sums exactly, and divide; a class with too few samples keeps the prototype that it had."""
        ups = uploads.payloads(ClassRows, "sums").values()
        sums = merged(
            ((up.classes.astype(np.int64), up.rows.astype(np.float64)) for up in ups),
            spec.classes,
            float(self.params.most_samples),
        )
        classes, means, counts = means_of(sums, self.params.clip, self.params.min_samples)
        if not len(classes):
            return state
        now = ClassRows(
            classes=classes.astype(np.int32),
            rows=means.astype(np.float32),
            counts=np.clip(np.rint(counts), 1, MOST).astype(np.int32),
        )
        return State(carried_over(state.prototypes, now))


def assumed(hellos: Iterable[Hello]) -> Assumptions:
    """Return the assumptions that hold for all of these devices.  One with a budget discloses no numbers of samples."""
    frozen, private = True, True
    for hello in hellos:
        frozen &= FROZEN in hello.inert_terms
        private &= not (hello.samples or hello.class_counts or hello.capacity)
    return Assumptions(frozen_extractor=frozen, noised_counts=private, figures_withheld=private, once_per_data=private)
