"""FedCache: each sample learns from the cached logits of the samples of all devices that resemble it most.

Wu, Sun, Wang, Liu, Xu, Wang, Jiang, Gao and Lu, "FedCache: A Knowledge Cache-driven Federated Learning Architecture
for Personalized Edge Intelligence", IEEE TMC 2024 (arXiv:2308.07816), Algorithms 1 and 2.

    share     once: a code and the label of each private sample; in each round the logits of all of them
    reduce    the cache keeps the newest logits of every sample; the R most similar codes of a sample's label, of all
              devices, are its relatives (cosine, exact search)
    down      for each sample of the device the mean of its relatives' cached logits, r
    train     CE(y, f(x)) + beta KL(softmax(r / T) || softmax(f / T))

A code is a random projection of the sample, the same on all devices.  Devices do not wait for each other: logits of an
absent device remain in the cache.

The cache on the coordinator holds samples device after device, in the order of device numbers, and a device's samples
in its own order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats, Ints
from edge_sdk.methods.contract.base import Down, Exchange, Method, OnDevice, Slot, Stage, Up
from edge_sdk.methods.contract.description import Range
from edge_sdk.methods.contract.requests import EncodeSamples, OwnLogits
from edge_sdk.objectives import CrossEntropy, Distill, Objective
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Blob, Count, Counts, Matrix, wire
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import FederationSpec, Hello
from edge_sdk.protocol.sample_knowledge import VERSION_BYTES, SampleCodes, SampleLogits
from edge_sdk.reductions import Bag

NONE = -1
"""Marks a missing relative, because a label has too few samples."""
_AT_ONCE = 1024
"""Samples whose similarities are in memory at the same time."""


@wire("fedcache-cache")
@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The samples of m devices, N together."""

    devices: Counts  # (m,) device numbers, ascending
    sizes: Counts  # (m,) samples of each device
    inputs: Counts  # (m,) numbers in a sample
    versions: Annotated[bytes, Blob(0, VERSION_BYTES * 10**6)]
    """The version of each device's samples, one after the other."""
    labels: Counts  # (N,)
    codes: Matrix  # (N, h)
    logits: Matrix  # (N, k)
    relatives: Counts  # (N R,) indices of samples, or NONE


@dataclass(frozen=True, slots=True)
class _Device:
    """One device's part of the cache."""

    codes: SampleCodes
    logits: Floats  # (n, k)


def after_round(cache: Cache | None, uploads: Bag, count: int) -> Cache | None:
    """Return the cache with the newest logits of a round.  count: R.

    Logits for samples whose codes never arrived are left out.
    """
    devices, encoded = {} if cache is None else _devices(cache), uploads.payloads(SampleCodes, "codes")
    changed = False
    for number, logits in uploads.payloads(SampleLogits, "logits").items():
        before = devices.get(number)
        codes = encoded.get(number, None if before is None else before.codes)
        if codes is None or codes.version != logits.version or len(codes.labels) != len(logits.values):
            continue
        changed |= number in encoded
        devices[number] = _Device(codes, logits.values)
    if not devices:
        return cache
    order = sorted(devices)
    parts = [devices[number] for number in order]
    found = Cache(
        devices=np.array(order, np.int32),
        sizes=np.array([len(each.logits) for each in parts], np.int32),
        inputs=np.array([each.codes.inputs for each in parts], np.int32),
        versions=b"".join(each.codes.version for each in parts),
        labels=np.concatenate([each.codes.labels for each in parts]),
        codes=np.concatenate([each.codes.codes for each in parts]).astype(np.float32),
        logits=np.concatenate([each.logits for each in parts]).astype(np.float32),
        relatives=np.empty(0, np.int32) if cache is None else cache.relatives,
    )
    if not changed:
        return found
    inputs = np.repeat(found.inputs, found.sizes)
    return replace(found, relatives=related(found.codes, found.labels, inputs, count).reshape(-1))


def _devices(cache: Cache) -> dict[int, _Device]:
    found: dict[int, _Device] = {}
    ends = np.cumsum(cache.sizes)
    for at, number in enumerate(cache.devices.tolist()):
        part = slice(int(ends[at] - cache.sizes[at]), int(ends[at]))
        version = cache.versions[VERSION_BYTES * at : VERSION_BYTES * (at + 1)]
        codes = SampleCodes(
            codes=cache.codes[part], labels=cache.labels[part], inputs=int(cache.inputs[at]), version=version
        )
        found[number] = _Device(codes, cache.logits[part])
    return found


def taught(cache: Cache, number: int) -> SampleLogits | None:
    """Return for each sample of a device the mean of its relatives' logits, or None for a device without codes.

    A sample without relatives gets its own cached logits.
    """
    (found,) = np.nonzero(cache.devices == number)
    if not len(found):
        return None
    at = int(found[0])
    begin = int(cache.sizes[:at].sum())
    own = np.arange(begin, begin + int(cache.sizes[at]))
    relatives = cache.relatives.reshape(len(cache.labels), -1)[own]  # (n, R)
    there = relatives != NONE
    sums = np.where(there[..., None], cache.logits.astype(np.float64)[relatives], 0).sum(axis=1)  # (n, k)
    counts = there.sum(axis=1, keepdims=True)  # (n, 1)
    values = np.where(counts > 0, sums / np.maximum(counts, 1), cache.logits[own]).astype(np.float32)
    return SampleLogits(values=values, version=cache.versions[VERSION_BYTES * at : VERSION_BYTES * (at + 1)])


def share_of_others(cache: Cache) -> float:
    """Return the share of relatives that are samples of another device, or 0 without relatives."""
    owner = np.repeat(cache.devices, cache.sizes)  # (N,)
    relatives = cache.relatives.reshape(len(owner), -1)
    there = relatives != NONE
    if not there.any():
        return 0.0
    return float((owner[relatives] != owner[:, None])[there].mean())


def related(codes: Floats, labels: NDArray[np.int32], inputs: NDArray[np.int32], count: int) -> NDArray[np.int32]:
    """Return for each sample the `count` others of its label and input size whose codes have the largest cosine.

    codes (N, h); labels, inputs (N,) -> (N, count), nearest first, NONE where there are fewer.  Of equal cosines the
    earlier sample is nearer.
    """
    lengths = np.sqrt((codes.astype(np.float64) ** 2).sum(axis=1, keepdims=True))
    unit = codes / np.maximum(lengths, np.finfo(np.float64).tiny)  # (N, h)
    found = np.full((len(codes), count), NONE, np.int32)
    groups = np.unique(np.stack([labels, inputs], axis=1), axis=0, return_inverse=True)[1].reshape(-1)
    for group in range(groups.max() + 1):
        members = np.flatnonzero(groups == group)
        most = min(count, len(members) - 1)
        for begin in range(0, len(members) if most else 0, _AT_ONCE):
            rows = members[begin : begin + _AT_ONCE]
            cosines = unit[rows] @ unit[members].T  # (b, g)
            cosines[np.arange(len(rows)), begin + np.arange(len(rows))] = -np.inf
            nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :most]
            found[rows, :most] = members[nearest]
    return found


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedCache; the defaults are those of the authors' code, but for the code."""

    relatives: Annotated[int, Range(1, 1000, paper="16")] = 16
    """R, the number of samples from whose cached logits a sample learns."""
    distill_weight: Annotated[float, Range(0, 1000, paper="1.5")] = 1.5
    """beta, the weight of the KL term.  0 gives training alone, with an unused cache."""
    temperature: Annotated[float, Range(0.01, 100)] = 1.0
    """T, of the KL term."""
    code_size: Annotated[int, Range(1, 4096)] = 64
    """h, the numbers in the code of a sample."""
    max_samples: Annotated[int, Range(1, 2**20)] = 1000
    """The maximum number of training samples of a device; one with more is refused."""


@wire("fedcache-coordinator-state")
@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The cache, or None before the first round."""

    cache: Cache | None = None
    rounds: Count
    """The number of rounds.  After the last one, nothing is needed."""


class FedCache(Method[Params]):
    """Distils between related samples through a cache of logits on the coordinator."""

    name = "fedcache"
    title = "FedCache: a cache of logits by sample, from which similar samples of other devices learn"
    citation = "Wu et al. 2024, IEEE TMC, arXiv:2308.07816"
    needs = frozenset({"predict", "logit-gradients", "sample-codes"})
    terms = frozenset({"cross-entropy", "distill"})
    newest = frozenset({"codes", "logits"})
    discloses = (
        "a code of every single private sample, from which much of it can be reconstructed, its label, and in each "
        "round the logits for it"
    )

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(params)
        logits = Slot(SampleLogits, samples=self.params.max_samples)
        codes = Slot(SampleCodes, optional=True, samples=self.params.max_samples, numbers=self.params.code_size)
        relatives = Slot(SampleLogits, personal=True, optional=True, samples=self.params.max_samples)
        self.exchanges = (Exchange(down={"relatives": relatives}, up={"codes": codes, "logits": logits}),)

    def objection(self, hello: Hello) -> str:
        """Return why a device's samples do not fit the cache."""
        if hello.samples <= self.params.max_samples:
            return ""
        return (
            f"{hello.samples} training samples, and at most {self.params.max_samples} fit into a message; "
            "raise method.max_samples"
        )

    # -- on the device ----------------------------------------------------------------------------------------------

    def receive(self, device: OnDevice[Any]) -> Stage[None]:
        """Encode the samples, and keep the relatives' logits if they are for these samples."""
        codes: SampleCodes = yield EncodeSamples(size=self.params.code_size, seed=device.job.spec.seed)
        relatives = device.received(SampleLogits, "relatives")
        known = relatives is not None and relatives.version == codes.version
        device.kept = codes, relatives if known else None

    def train(self, device: OnDevice[Any]) -> Stage[None]:
        """Train with the relatives' logits, from the second round on."""
        _, relatives = device.kept
        yield from device.fit(loss(relatives, self.params, device.batches.indices))

    def share(self, device: OnDevice[Any]) -> Stage[Up]:
        """Send the logits of all private samples, and the codes unless the coordinator has those of these samples."""
        codes, relatives = device.kept
        logits: Floats = yield OwnLogits()  # (n, k)
        up: dict[str, Payload] = {"logits": SampleLogits(values=logits, version=codes.version)}
        return up if relatives is not None else {**up, "codes": codes}

    # -- on the coordinator -----------------------------------------------------------------------------------------

    def begin(self, spec: FederationSpec) -> State:
        """Start without a cache."""
        return State(rounds=spec.rounds)

    def down_to(self, state: State, at: ExchangeId, number: int) -> Down:
        """Send a device the mean of the relatives' logits for each of its samples, once its codes are known."""
        if state.cache is None or at.round == state.rounds:
            return {}
        return {"relatives": taught(state.cache, number)}

    def reduce(self, spec: FederationSpec, state: State, at: ExchangeId, uploads: Bag) -> State:
        """Put the newest logits into the cache; new codes change the relatives."""
        return State(cache=after_round(state.cache, uploads, self.params.relatives), rounds=state.rounds)

    def instruments(
        self, spec: FederationSpec, before: State, after: State, at: ExchangeId, uploads: Bag
    ) -> Mapping[str, float]:
        """Return the samples in the cache, and the share of relatives that are of other devices."""
        if after.cache is None:
            return {}
        return {
            "cached_samples": float(len(after.cache.labels)),
            "relatives_of_others": share_of_others(after.cache),
        }


def loss(relatives: SampleLogits | None, params: Params, batches: Ints) -> Objective:
    """Return the labels' loss and the KL term, each mini-batch with its samples' logits; batches: (steps, b)."""
    if relatives is None or params.distill_weight == 0:
        return (CrossEntropy(),)
    targets = np.asarray(relatives.values, np.float32)[batches]  # (steps, b, k)
    return (CrossEntropy(), Distill(logits=targets, temperature=params.temperature, weight=params.distill_weight))
