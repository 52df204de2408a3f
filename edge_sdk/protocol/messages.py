"""The messages, each a frozen dataclass.

Who sends what:

device       Hello  Upload  Bye  DeviceStatus  PublicRequest
coordinator  Welcome  Assign  Receipt  Refusal  CoordinatorStatus  PublicBlock
operator     Control
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from edge_sdk.protocol.encodings import ENCODINGS, FLAT, PLAIN
from edge_sdk.protocol.frozen_dict import FrozenDict
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.schema import LATER, Blob, Count, Digest, Id, Integer, Items, Line, Packed, Real, Text, wire

PROTOCOL_VERSION = 1

Word = Annotated[str, Text(64, r"[a-z][a-z0-9_.-]*")]
Scalar: TypeAlias = bool | int | float | str
Seconds = Annotated[float, Real(0.0, 1e9)]
Epoch = Annotated[int, Integer(0, 2**63 - 1)]
Sha256 = Annotated[bytes, Blob(32, 32)]
Words = Annotated[tuple[Word, ...], Items()]
Knowledge = Annotated[Mapping[Word, Payload], Items()]
MAX_CLASS_COUNTS = 32768
"""Classes whose sample counts fit into a Hello; of a federation with more, devices leave the counts out."""

PUBLIC_BLOCK_BYTES = 60 * 1024
"""With header and fields a block's frame stays below 64 KiB, which every broker takes as one message."""
MAX_BLOCKS_ASKED = 16
"""Blocks that one request may ask for: what a device takes in at once."""


@wire("public-set")
@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSetSpec:
    """The public set by its content: every device must hold these very samples."""

    sha256: Sha256
    count: Annotated[int, Integer(1, 2**32 - 1)]


@wire("train")
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """How a device trains between exchanges, whatever the method."""

    optimiser: Annotated[str, Text(16, "sgd|adam")] = "adam"
    """Its moments stay with the device from round to round, until a method overwrites weights."""
    learning_rate: Annotated[float, Real(0.0, 1e3)] = 1e-3
    """The same in every round."""
    momentum: Annotated[float, Real(0.0, 1.0)] = 0.0
    """Of sgd."""
    batch_size: Annotated[int, Integer(1, 65536)] = 32
    """Samples of a mini-batch; of a device with fewer, all."""
    local_steps: Annotated[int, Integer(0, 10**6)] = 5
    """Mini-batches of private data per round."""
    local_epochs: Annotated[int, Integer(0, 10**6)] = field(default=0, metadata=LATER)
    """Passes over the private data per round, in place of local_steps; 0: local_steps says how much."""
    evaluate_every: Annotated[int, Integer(1, 10**6)] = 1
    """Rounds between two evaluations on the device; the last round is always evaluated."""


Encoded = Annotated[str, Text(16, "|".join(ENCODINGS))]
EncodedFlat = Annotated[str, Text(16, "|".join(FLAT))]


@wire("encoding")
@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingSpec:
    """How the floats of each payload kind travel, in both directions; a field for each kind of this package."""

    logits: Encoded = PLAIN
    logit_gradients: Encoded = PLAIN
    class_rows: Encoded = PLAIN
    hyper_knowledge: Encoded = PLAIN
    weights: EncodedFlat = PLAIN
    others: Annotated[Mapping[Word, Encoded], Items()] = field(default_factory=FrozenDict, metadata=LATER)
    """Of the kinds that other packages register, by tag; those that are missing travel in f32."""


@wire("spec")
@dataclass(frozen=True, slots=True, kw_only=True)
class FederationSpec:
    """All that a device must know of a federation; sent once, at join."""

    federation: Id
    method: Word
    params: Annotated[Mapping[Word, Scalar], Items()] = field(default_factory=FrozenDict)
    contract: Digest
    """Digest of what the method exchanges, and of its parameters: both sides must agree."""
    classes: Annotated[int, Integer(2, 65535)]
    rounds: Annotated[int, Integer(1, 10**9)]
    seed: Annotated[int, Integer(0, 2**32 - 1)] = 0
    train: TrainSpec = field(default_factory=TrainSpec)
    public: PublicSetSpec | None = None
    feature_dim: Count = 0
    encoding: EncodingSpec = field(default=EncodingSpec(), metadata=LATER)


@wire("hello")
@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A device asks to take part (again, after each reconnect and each new coordinator epoch)."""

    federation: Id
    device: Id
    versions: Annotated[tuple[Annotated[int, Integer(1, 255)], ...], Items(1)] = (PROTOCOL_VERSION,)
    """Protocol versions that this device speaks."""
    sdk: Line = ""
    capabilities: Words = ()
    terms: Words = ()
    classes: Annotated[int, Integer(1, 65535)]
    feature_dim: Count = 0
    samples: Count = 0
    class_counts: Annotated[tuple[int, ...], Packed(MAX_CLASS_COUNTS)] = ()
    """Samples per class; empty where the owner withholds it."""
    public_sha256: Sha256 | None = None
    model: Line = ""
    runtime: Line = ""
    note: Line = ""
    """What a report should say of the model."""
    board: Line = ""
    inert_terms: Words = field(default=(), metadata=LATER)
    """Those of `terms` that its model takes without effect: what they would train is frozen."""
    encodings: Words = field(default=(), metadata=LATER)
    """What it reads and writes besides f32."""
    fetches_public: bool = field(default=False, metadata=LATER)
    """It would fetch a public set that it lacks, from a coordinator that serves it."""
    weight_count: Count = field(default=0, metadata=LATER)
    """Scalars that it would share as weights; 0: none."""
    layout: Annotated[bytes, Blob(16, 16)] | None = field(default=None, metadata=LATER)
    """Names the order and the shapes of its weights: equal architectures have equal ones."""
    batch_norm: bool = field(default=False, metadata=LATER)
    """Whether its model keeps running statistics of batches, which are no weights and stay on the device."""


@wire("welcome")
@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The coordinator takes a device in."""

    federation: Id
    device: Id
    number: Annotated[int, Integer(0, 2**31 - 1)]
    """The device's place in the roster; part of its random seeds."""
    version: Annotated[int, Integer(1, 255)] = PROTOCOL_VERSION
    epoch: Epoch
    run: Digest
    """Names this run of the federation: a later one begins at round 0 again."""
    spec: FederationSpec
    public_bytes: Annotated[int, Integer(0, 2**48)] = field(default=0, metadata=LATER)
    """Size of the public set as the coordinator serves it; 0: it does not."""


@wire("assign")
@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """One exchange to carry out.  Sent again until its upload is in; a newer one supersedes an older."""

    federation: Id
    device: Id
    round: Count
    exchange: Count
    closing: bool = False
    """The last Assign of all: take in what `down` brings, evaluate, answer with metrics only."""
    deadline_s: Seconds = 0.0
    """Seconds that were left when this was sent; a hint, never a rule."""
    common: Knowledge = field(default_factory=FrozenDict)
    """Knowledge that every device gets, by role."""
    personal: Knowledge = field(default_factory=FrozenDict)
    """Knowledge for this device alone, by role."""

    @property
    def down(self) -> dict[str, Payload]:
        """Common and personal knowledge together."""
        return {**self.common, **self.personal}


@wire("upload")
@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """What a device gives back for one exchange."""

    federation: Id
    device: Id
    round: Count
    exchange: Count
    closing: bool = False
    knowledge: Knowledge = field(default_factory=FrozenDict)
    samples: Count = 0
    metrics: Annotated[Mapping[Word, float], Items()] = field(default_factory=FrozenDict)
    metrics_round: Count = 0
    """The number of completed rounds that `metrics` describe; 0 where there are none."""
    withheld: Line = field(default="", metadata=LATER)
    """Why there is no knowledge in it, though the exchange asked for some: what the device learned diverged."""


@wire("receipt")
@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The coordinator's answer to an Upload, sent once it stands in the ledger (or never will)."""

    federation: Id
    device: Id
    round: Count
    exchange: Count
    closing: bool = False
    verdict: Annotated[str, Text(16, "accepted|duplicate|late|refused")]
    reason: Line = ""


@wire("refusal")
@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The coordinator will not have this device."""

    federation: Id
    device: Id
    reason: Word
    message: Annotated[str, Text(1024)]
    remedy: Annotated[str, Text(1024)] = ""


@wire("bye")
@dataclass(frozen=True, slots=True, kw_only=True)
class Bye:
    """A device leaves for good."""

    federation: Id
    device: Id
    reason: Line = ""


@wire("device-status")
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """A device's retained birth, and as its will the retained `lost`.  A hint, never the truth."""

    federation: Id
    device: Id
    state: Annotated[str, Text(16, "ready|disconnected|lost")]
    boot: Epoch


@wire("coordinator-status")
@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatus:
    """The coordinator's retained birth; a new epoch makes devices say hello again."""

    federation: Id
    state: Annotated[str, Text(16, "ready|finished|failed|lost")]
    epoch: Epoch
    reason: Line = ""


@wire("public-request")
@dataclass(frozen=True, slots=True, kw_only=True)
class PublicRequest:
    """A device asks for blocks of the public set.  Asked again while they do not come."""

    federation: Id
    device: Id
    sha256: Sha256
    """Which public set; that of the spec."""
    blocks: Annotated[tuple[int, ...], Packed(MAX_BLOCKS_ASKED)]
    """Their indices, from 0."""


@wire("public-block")
@dataclass(frozen=True, slots=True, kw_only=True)
class PublicBlock:
    """One block of the public set: all are PUBLIC_BLOCK_BYTES long but the last, which is what is left."""

    federation: Id
    device: Id
    sha256: Sha256
    index: Count
    count: Annotated[int, Integer(1, 2**32 - 1)]
    """Blocks of the whole set."""
    total_bytes: Annotated[int, Integer(1, 2**48)]
    """Bytes of the whole set."""
    data: Annotated[bytes, Blob(1, PUBLIC_BLOCK_BYTES)]


@wire("control")
@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """An operator's word to a running coordinator; obeyed only with a valid signature."""

    federation: Id
    operation: Annotated[str, Text(16, "drain|pause|resume|revoke|forget")]
    device: Id | None = None


Message: TypeAlias = (
    Hello
    | Welcome
    | Assign
    | Upload
    | Receipt
    | Refusal
    | Bye
    | DeviceStatus
    | CoordinatorStatus
    | PublicRequest
    | PublicBlock
    | Control
)
