"""The messages between devices and their coordinator, each a frozen dataclass.

The messages by sender; operator_messages.py has those of the last three lines, and model_offers.py ModelOffer:

device       Hello  Upload  Bye  DeviceStatus  PublicRequest
coordinator  Welcome  Assign  Receipt  Refusal  CoordinatorStatus  PublicBlock  ModelOffer
for an operator      LogRequest  LogLines  ControlAnswer
operator             Control  Inquiry, and PublicBlock
lab                  LabRun  LabHello
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from edge_sdk.protocol.encodings import DEFAULT_ENCODING, ENCODINGS, FLAT_ENCODINGS
from edge_sdk.protocol.frames.leaves import BELOW_1
from edge_sdk.protocol.frames.records import FrozenDict
from edge_sdk.protocol.frames.schema import (
    LATER,
    Blob,
    Count,
    Digest,
    Id,
    Integer,
    Items,
    Line,
    Packed,
    Real,
    Seconds,
    Text,
    Word,
    wire,
)
from edge_sdk.protocol.knowledge import Payload
from edge_sdk.protocol.model_offers import MAX_BLOCKS_ASKED, ModelOffer, OfferAnswer, Sha256
from edge_sdk.protocol.operator_messages import Control, ControlAnswer, Inquiry, LabHello, LabRun, LogLines, LogRequest

PROTOCOL_VERSION = 1

Scalar: TypeAlias = bool | int | float | str
Epoch = Annotated[int, Integer(0, 2**63 - 1)]
Words = Annotated[tuple[Word, ...], Items()]
ClassNames = Annotated[tuple[Annotated[str, Text(64)], ...], Items(0, 1000)]
"""Together at most MOST_NAMES_BYTES, so that a Welcome holds them."""
MOST_NAMES_BYTES = 64 * 1024
WireKnowledge = Annotated[Mapping[Word, Payload], Items()]
MAX_CLASS_COUNTS = 32768
"""The maximum number of classes whose sample counts fit into a Hello; with more, devices omit the counts."""

OF_CLASS, MOST_CLASS_FIGURES = "class.", 64
"""The begin of a metric's name that is the accuracy on held-out samples of one class; the most classes that have one.
"""
FOREVER = 10**9
"""The number of rounds of a federation without an end: the maximum of the field, so that older devices take part.
"""
FEW_NEW_SAMPLES = "few-new-samples"
"""The word with which a device declines rounds until enough samples have come (FederationSpec.min_new_samples)."""
PUBLIC_BLOCK_BYTES = 60 * 1024
"""The frame of a block, with header and fields, is below 64 KiB, which every broker accepts as one message."""
MAX_SUCCESSION_BYTES = 1024
"""Eight changes of a coordinator's signing key: a device that was away for more enrols again."""


@wire("public-set")
@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSetSpec:
    """Identifies the public set by its content; every device must hold exactly these samples."""

    sha256: Sha256
    """The hash of dtype, shape and bytes."""
    count: Annotated[int, Integer(1, 2**32 - 1)]


@wire("train")
@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """How a device trains between exchanges, in every method."""

    optimiser: Annotated[str, Text(16, "sgd|adam")] = "adam"
    """The optimiser; a device keeps its moments from round to round, until a method overwrites weights."""
    learning_rate: Annotated[float, Real(0.0, 1e3)] = 1e-3
    """The learning rate of the first round, and of the others unless `schedule` changes it."""
    momentum: Annotated[float, Real(0.0, 1.0)] = 0.0
    """The momentum of sgd; adam does not use it."""
    batch_size: Annotated[int, Integer(1, 65536)] = 32
    """Samples in a mini-batch; a device with fewer samples uses all of them."""
    local_steps: Annotated[int, Integer(0, 10**6)] = 5
    """Mini-batches of private data per round."""
    local_epochs: Annotated[int, Integer(0, 10**6)] = field(default=0, metadata=LATER)
    """Passes over the private data per round, in place of local_steps; with 0, local_steps counts."""
    evaluate_every: Annotated[int, Integer(1, 10**6)] = 1
    """Rounds between two evaluations on the device; the last round is always evaluated."""
    instrument_every: Annotated[int, Integer(0, 10**6)] = field(default=10, metadata=LATER)
    """Rounds between two measurements of each loss term's contribution, or 0 for never.  Rounds 2 and the last are
    always measured."""
    schedule: Annotated[str, Text(16, "constant|step|exponential|cosine")] = field(default="constant", metadata=LATER)
    """How the learning rate changes from round to round: times schedule_factor after every schedule_every_rounds
    rounds (step) or after each round (exponential), or along half a cosine down to schedule_floor (cosine).
    Training in the closing exchange uses the rate of the last round."""
    schedule_factor: Annotated[float, Real(0.0, 1.0)] | None = field(default=None, metadata=LATER)
    """The factor of step and exponential, which require it."""
    schedule_every_rounds: Annotated[int, Integer(1, 10**9)] | None = field(default=None, metadata=LATER)
    """Rounds between two steps of step, which requires it."""
    schedule_rounds: Annotated[int, Integer(1, 10**9)] | None = field(default=None, metadata=LATER)
    """Rounds until cosine reaches the floor; default: all rounds of the federation."""
    schedule_floor: Annotated[float, Real(0.0, 1e3)] = field(default=0.0, metadata=LATER)
    """The minimum learning rate of a schedule."""
    weight_decay: Annotated[float, Real(0.0, 1e3)] = field(default=0.0, metadata=LATER)
    """The factor of each weight that is added to its gradient (L2)."""
    decay_all: bool = field(default=False, metadata=LATER)
    """Whether biases, normalisation parameters and the scale of a cosine head also decay."""
    clip_norm: Annotated[float, Real(0.0, 1e9)] = field(default=0.0, metadata=LATER)
    """The maximum L2 norm of the gradient over all trained parameters, before weight decay is added; 0 disables
    clipping."""
    class_weights: Annotated[str, Text(8, "none|balanced")] = field(default="none", metadata=LATER)
    """balanced: in the cross-entropy on labels, each class that a device holds weighs as much as every other."""
    label_noise_q: Annotated[float, Real(0.0, 1.0)] = field(default=0.0, metadata=LATER)
    """q of the generalised cross-entropy, which learns less from labels that are probably wrong, such as 0.7; 0 is the
    cross-entropy, 1 the mean absolute error."""
    beta1: Annotated[float, Real(0.0, BELOW_1)] = field(default=0.9, metadata=LATER)
    """The decay of adam's first moment."""
    beta2: Annotated[float, Real(0.0, BELOW_1)] = field(default=0.999, metadata=LATER)
    """The decay of adam's second moment."""

    def steps(self, samples: int) -> int:
        """Return the mini-batches of a round on a device with this many samples, from local_steps or local_epochs.

        All mini-batches have one size, so the last one of the last epoch may reach into another permutation.
        """
        if not self.local_epochs:
            return self.local_steps
        return -(-self.local_epochs * samples // min(self.batch_size, samples))


Encoded = Annotated[str, Text(16, "|".join(ENCODINGS))]
EncodedFlat = Annotated[str, Text(16, "|".join(FLAT_ENCODINGS))]


@wire("encoding")
@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingSpec:
    """How the floats of each payload kind travel, in both directions; a field for each kind of this package."""

    logits: Encoded = DEFAULT_ENCODING
    logit_gradients: Encoded = DEFAULT_ENCODING
    class_rows: Encoded = DEFAULT_ENCODING
    hyper_knowledge: Encoded = DEFAULT_ENCODING
    weights: EncodedFlat = DEFAULT_ENCODING
    others: Annotated[Mapping[Word, Encoded], Items()] = field(default_factory=FrozenDict, metadata=LATER)
    """The encodings of kinds that other packages register, by tag; a kind that is missing travels in f32."""


@wire("spec")
@dataclass(frozen=True, slots=True, kw_only=True)
class FederationSpec:
    """The settings of a federation that a device must know; sent once, at join."""

    federation: Id
    method: Word
    params: Annotated[Mapping[Word, Scalar], Items()] = field(default_factory=FrozenDict)
    contract: Digest
    """Digest of the method's exchanges and parameters, on which both sides must agree."""
    classes: Annotated[int, Integer(2, 65535)]
    rounds: Annotated[int, Integer(1, FOREVER)]
    seed: Annotated[int, Integer(0, 2**32 - 1)] = 0
    train: TrainSpec = field(default_factory=TrainSpec)
    public: PublicSetSpec | None = None
    feature_dim: Count = 0
    encoding: EncodingSpec = field(default=EncodingSpec(), metadata=LATER)
    class_names: ClassNames = field(default=(), metadata=LATER)
    """The names of the classes in their order, or empty if they have none."""
    buffered: bool = field(default=False, metadata=LATER)
    """Whether uploads of different rounds are combined: then all rounds have the public samples of the first one."""
    min_new_samples: Count = field(default=0, metadata=LATER)
    """A device declines a round unless this many samples came since its last training."""


@wire("hello")
@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A device asks to take part; sent again after each reconnect and for each new epoch of the coordinator."""

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
    """Samples per class; empty if the owner withholds them."""
    public_sha256: Sha256 | None = None
    model: Line = ""
    runtime: Line = ""
    note: Line = ""
    """A remark about the model for reports."""
    board: Line = ""
    inert_terms: Words = field(default=(), metadata=LATER)
    """The `terms` that the model accepts without effect, because the part that they would train is frozen."""
    encodings: Words = field(default=(), metadata=LATER)
    """The encodings other than f32 that the device can read and write."""
    fetches_public: bool = field(default=False, metadata=LATER)
    """Whether the device fetches a public set that it lacks from a coordinator that serves it."""
    weight_count: Count = field(default=0, metadata=LATER)
    """The number of weights that the device would share, or 0 if it shares none."""
    layout: Annotated[bytes, Blob(16, 16)] | None = field(default=None, metadata=LATER)
    """A hash of the order and the shapes of the weights: the same for the same architecture."""
    batch_norm: bool = field(default=False, metadata=LATER)
    """Whether the model keeps running statistics of batches, which are not weights and stay on the device."""
    test_samples: Count = field(default=0, metadata=LATER)
    """The number of samples of the device's own test part."""
    instance: Annotated[bytes, Blob(1, 16)] | None = field(default=None, metadata=LATER)
    """Random bytes of this start of the device, which distinguish two devices with one id."""
    sends_logs: bool = field(default=False, metadata=LATER)
    """Whether the device sends its last log lines to an operator on request."""
    capacity: Count = field(default=0, metadata=LATER)
    """The maximum number of samples in the device's store, or 0 if its data do not change.  While it has no samples it
    waits, and takes part once its Hello has some."""
    run: Digest | None = field(default=None, metadata=LATER)
    """The id of the run that the device asks to take part in, as in its Welcome, if it knows one.  Where signatures are
    required, a device is invited only after a Hello that names the run, because a replayed one cannot name it."""
    trains_alone: bool = field(default=False, metadata=LATER)
    """Whether the device knows `Assign.alone`, so that it can be in a control group."""
    accepts_models: bool = field(default=False, metadata=LATER)
    """Whether the owner lets the device learn with model files that it is offered."""
    offer: OfferAnswer | None = field(default=None, metadata=LATER)
    """The answer to the last offer, if there was one."""


@wire("welcome")
@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The coordinator accepts a device."""

    federation: Id
    device: Id
    number: Annotated[int, Integer(0, 2**31 - 1)]
    """The device's index in the sorted roster; part of its random seeds."""
    version: Annotated[int, Integer(1, 255)] = PROTOCOL_VERSION
    epoch: Epoch
    run: Digest
    """The id of this run of the federation; a later run begins at round 0 again."""
    spec: FederationSpec
    public_bytes: Annotated[int, Integer(0, 2**48)] = field(default=0, metadata=LATER)
    """Size of the public set that the coordinator serves, or 0 if it serves none."""


@wire("assign")
@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """One exchange to carry out.  Sent again until its upload arrives; a newer one replaces an older one."""

    federation: Id
    device: Id
    round: Count
    exchange: Count
    closing: bool = False
    """The last Assign of a run: the device uses its knowledge, evaluates, and uploads metrics only."""
    deadline_s: Seconds = 0.0
    """Seconds left when this was sent; only a hint for the device."""
    common: WireKnowledge = field(default_factory=FrozenDict)
    """Knowledge that every device gets, by role."""
    personal: WireKnowledge = field(default_factory=FrozenDict)
    """Knowledge for this device alone, by role."""
    run: Digest | None = field(default=None, metadata=LATER)
    """The id of the run, as in Welcome, or None in a simulation, and from coordinators older than this field."""
    after: Count | None = field(default=None, metadata=LATER)
    """The number of completed rounds, only in the closing Assign of a run that ends before its last round."""
    alone: bool = field(default=False, metadata=LATER)
    """The device is in the control group: it trains without knowledge of others, and uploads its figures only."""

    @property
    def down(self) -> dict[str, Payload]:
        """Common and personal knowledge together, by role."""
        return {**self.common, **self.personal}


@wire("upload")
@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """The answer of a device to an Assign."""

    federation: Id
    device: Id
    round: Count
    exchange: Count
    closing: bool = False
    knowledge: WireKnowledge = field(default_factory=FrozenDict)
    samples: Count = 0
    metrics: Annotated[Mapping[Word, float], Items()] = field(default_factory=FrozenDict)
    metrics_round: Count = 0
    """The number of completed rounds that `metrics` describe; 0 if there are no metrics.  They are of the global model,
    or of the device's own where the method has no global one."""
    withheld: Line = field(default="", metadata=LATER)
    """Why the device sends no knowledge although the exchange needs some: its training diverged or failed."""
    withheld_cause: Word = field(default="diverged", metadata=LATER)
    """The word for that reason: diverged, training-failed, no-samples or refused-knowledge; meaningless without one."""
    instruments: Annotated[Mapping[Word, float], Items()] = field(default_factory=FrozenDict, metadata=LATER)
    """The method's own figures in this round, by name, such as each loss term's share of the gradient."""
    personal_metrics: Annotated[Mapping[Word, float], Items()] = field(default_factory=FrozenDict, metadata=LATER)
    """The same figures of the device's own model, if the method also has a global one."""
    personal_round: Count = field(default=0, metadata=LATER)
    """The number of completed rounds that `personal_metrics` describe."""
    class_counts: Annotated[tuple[int, ...], Packed(MAX_CLASS_COUNTS)] = field(default=(), metadata=LATER)
    """Samples per class, if the device's data change and its Hello disclosed them; they replace those of the Hello."""
    busy_s: Seconds = field(default=0.0, metadata=LATER)
    """Seconds of training since the device's last upload, or 0 if not metered."""
    energy_j: Annotated[float, Real(0.0, 1e12)] = field(default=0.0, metadata=LATER)
    """Joules that the board drew in these seconds, or 0 if unknown."""
    joules_source: Annotated[str, Text(16, "measured|profile")] | None = field(default=None, metadata=LATER)
    """The source of the joules, if any: a meter or sensor, or the board's profile."""
    temperature_c: Annotated[float, Real(-273.15, 1000.0)] | None = field(default=None, metadata=LATER)
    """The temperature of the device's hottest zone, in degrees Celsius, if known."""
    joining_metrics: Annotated[Mapping[Word, float], Items()] = field(default_factory=FrozenDict, metadata=LATER)
    """The figures of `metrics` for the device's own model before its first round; empty if not measured."""
    not_served: Line = field(default="", metadata=LATER)
    """Why the device's app does not predict with this round's model: it is worse on held-out samples."""
    refused_frames: Annotated[Mapping[Word, Count], Items()] = field(default_factory=FrozenDict, metadata=LATER)
    """Frames that the device refused since its last upload, by the word for the fault."""
    run: Digest | None = field(default=None, metadata=LATER)
    """The id of the run, as in the Assign, or None if that has none, and from devices older than this field."""
    alone: bool = field(default=False, metadata=LATER)
    """The device trained alone, as the Assign asked: its figures are those of the control group."""


@wire("receipt")
@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The coordinator's answer to an Upload, sent once the upload is stored in the ledger, or refused."""

    federation: Id
    device: Id
    round: Count
    exchange: Count
    closing: bool = False
    verdict: Annotated[str, Text(16, "accepted|duplicate|late|refused")]
    reason: Line = ""
    run: Digest | None = field(default=None, metadata=LATER)
    """The id of the run, as in Welcome."""


@wire("refusal")
@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The coordinator refuses a device."""

    federation: Id
    device: Id
    reason: Word
    message: Annotated[str, Text(1024)]
    remedy: Annotated[str, Text(1024)] = ""
    instance: Annotated[bytes, Blob(1, 16)] | None = field(default=None, metadata=LATER)
    """The instance of the refused Hello, or None if all instances are meant; another instance ignores this."""


@wire("bye")
@dataclass(frozen=True, slots=True, kw_only=True)
class Bye:
    """A device leaves and will not come back."""

    federation: Id
    device: Id
    reason: Line = ""


@wire("device-status")
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """A device's status, retained; its will sets it to `lost`.  The coordinator uses it as a hint only."""

    federation: Id
    device: Id
    state: Annotated[str, Text(16, "ready|disconnected|lost")]
    boot: Epoch
    declines: Word | None = field(default=None, metadata=LATER)
    """The word for the reason why the device declines its assignments, or None if it computes them."""
    why: Line = field(default="", metadata=LATER)
    """The reason in a line for people."""
    declines_round: Count | None = field(default=None, metadata=LATER)
    """The only round that is declined, or None if this holds until the device's next status."""


@wire("coordinator-status")
@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStatus:
    """The coordinator's status, retained; its will sets it to `lost`.

    On another run, and on another epoch of the same run, devices send Hello again.
    """

    federation: Id
    state: Annotated[str, Text(16, "ready|finished|failed|lost")]
    epoch: Epoch
    reason: Line = ""
    run: Digest | None = field(default=None, metadata=LATER)
    """The id of the run, as in Welcome: the end of another run ends no device's session."""
    greet: bool = field(default=False, metadata=LATER)
    """Whether the device that receives this on its own topic should send a Hello, because it is unknown."""
    succession: Annotated[bytes, Blob(0, MAX_SUCCESSION_BYTES)] = field(default=b"", metadata=LATER)
    """How the coordinator's signing keys followed each other (edge_sdk/identity/signatures.py)."""


@wire("public-request")
@dataclass(frozen=True, slots=True, kw_only=True)
class PublicRequest:
    """A device requests blocks of the public set, or of a model file offered to it.  Sent again until they come."""

    federation: Id
    device: Id
    sha256: Sha256
    """The hash of the public set, as in the spec, or of the file."""
    blocks: Annotated[tuple[int, ...], Packed(MAX_BLOCKS_ASKED)]
    """The indices of the blocks, from 0."""


@wire("public-block")
@dataclass(frozen=True, slots=True, kw_only=True)
class PublicBlock:
    """One block of the public set or of a model file; each is PUBLIC_BLOCK_BYTES long, but the last may be shorter."""

    federation: Id
    device: Id
    """The device that requested it; from an operator, the operator."""
    sha256: Sha256
    index: Count
    count: Annotated[int, Integer(1, 2**32 - 1)]
    """The number of blocks of the whole set."""
    total_bytes: Annotated[int, Integer(1, 2**48)]
    """The size of the whole set."""
    data: Annotated[bytes, Blob(1, PUBLIC_BLOCK_BYTES)]


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
    | ModelOffer
    | LogRequest
    | LogLines
    | Control
    | Inquiry
    | ControlAnswer
    | LabRun
    | LabHello
)
