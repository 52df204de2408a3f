"""FedCache: each sample learns from the cached logits of the samples of all devices that resemble it most.

Wu, Sun, Wang, Liu, Xu, Wang, Jiang, Gao and Lu, "FedCache: A Knowledge Cache-driven Federated Learning Architecture
for Personalized Edge Intelligence", IEEE TMC 2024 (arXiv:2308.07816), Algorithms 1 and 2.

    share     once: a code and the label of each private sample; in each round the logits of all of them
    reduce    the cache keeps the newest logits of every sample; the R most similar codes of a sample's label, of all
              devices, are its relatives (cosine, exact search)
    down      for each sample of the device the mean of its relatives' cached logits, r
    train     CE(y, f(x)) + beta KL(softmax(r / T) || softmax(f / T))

A code is a random projection of the sample, the same on all devices.  Nothing waits for anybody: logits of a device
that stays away remain in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from edge_sdk.arrays import Floats, Ints
from edge_sdk.methods.contract.base import Down, Exchange, Method, OnDevice, Slot, Stage, Up
from edge_sdk.methods.contract.params import Range
from edge_sdk.methods.contract.requests import EncodeSamples, OwnLogits
from edge_sdk.methods.parts.fedcache_cache import Cache, after_round, share_of_others, taught
from edge_sdk.objectives import CrossEntropy, Distill, Objective
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames.schema import Count, wire
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.messages import FederationSpec, Hello
from edge_sdk.protocol.sample_knowledge import SampleCodes, SampleLogits
from edge_sdk.reductions import Bag


@dataclass(frozen=True, kw_only=True)
class Params:
    """Hyper-parameters of FedCache; the defaults are those of the authors' code, but for the code."""

    relatives: Annotated[int, Range(1, 1000, paper="16")] = 16
    """R, the samples whose cached logits a sample learns from."""
    distill_weight: Annotated[float, Range(0, 1000, paper="1.5")] = 1.5
    """beta, the weight of the KL term.  0: training alone, with a cache that nobody uses."""
    temperature: Annotated[float, Range(0.01, 100)] = 1.0
    """T, of the KL term."""
    code_size: Annotated[int, Range(1, 4096)] = 64
    """h, the numbers in the code of a sample."""
    max_samples: Annotated[int, Range(1, 2**20)] = 1000
    """The most training samples of a device; one with more is refused."""


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
