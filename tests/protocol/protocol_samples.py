"""One valid message of every kind, with every field filled in and every kind of payload carried somewhere."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np

from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Limits, Stamp
from edge_sdk.protocol.frames.quantised import Quantised
from edge_sdk.protocol.knowledge import (
    ClassRows,
    HyperKnowledge,
    LogitGradients,
    PublicFeatures,
    PublicLogits,
    Scalars,
    Weights,
)
from edge_sdk.protocol.low_rank import LowRank
from edge_sdk.protocol.messages import (
    Assign,
    Bye,
    CoordinatorStatus,
    DeviceStatus,
    EncodingSpec,
    FederationSpec,
    Hello,
    Message,
    PublicBlock,
    PublicRequest,
    PublicSetSpec,
    Receipt,
    Refusal,
    TrainSpec,
    Upload,
    Welcome,
)
from edge_sdk.protocol.model_offers import ModelOffer, OfferAnswer, OfferedFile
from edge_sdk.protocol.operator_messages import (
    Control,
    ControlAnswer,
    DeviceEntry,
    Inquiry,
    LabHello,
    LabRun,
    LogLines,
    LogRequest,
)
from edge_sdk.protocol.sample_knowledge import SampleCodes, SampleLogits

STAMP = Stamp(boot_epoch=3, sequence=41, key_id=bytes(range(16)))
WIDE = Limits(frame_bytes=16 * 2**20, tensor_bytes=16 * 2**20)
"""Limits that keep nothing out, so that what is refused is refused for its content."""

ADDRESS = {"federation": "lab", "device": "cam-07"}
BATCH = bytes.fromhex("0123456789abcdef")
VALUES = np.arange(-6, 6, dtype=np.float32).reshape(4, 3) / 4  # (4, 3)
CLASSES = np.array([0, 2], np.int32)
COUNTS = np.array([5, 70000], np.int32)

LOGITS = PublicLogits(values=VALUES, batch=BATCH)
PAYLOADS = {
    "logits": LOGITS,
    "logits-f2": PublicLogits(values=VALUES.astype(np.float16), batch=BATCH, contributors=12),
    "logit-gradients": LogitGradients(values=-VALUES, batch=BATCH),
    "class-rows": ClassRows(classes=CLASSES, rows=VALUES[:2], counts=COUNTS),
    "hyper-knowledge": HyperKnowledge(
        classes=CLASSES,
        features=VALUES[:2],
        soft=np.array([[0.5, 0.25, 0.25], [0, 0, 1]], np.float32),
        counts=COUNTS,
    ),
    "public-features": PublicFeatures(values=VALUES, batch=BATCH),
    "scalars": Scalars(values=np.array([0.125, -3.0], np.float32)),
    "weights": Weights(values=VALUES.reshape(-1), layout=bytes(range(16))),
    "low-rank": LowRank(
        heights=np.array([2, 2], np.int32),
        widths=np.array([5, 1], np.int32),
        ranks=np.array([1, 0], np.int32),
        values=VALUES.reshape(-1)[:10],
        layout=bytes(range(16)),
    ),
    "sample-codes": SampleCodes(
        codes=VALUES, labels=np.arange(len(VALUES), dtype=np.int32) % 2, inputs=784, version=bytes(range(16))
    ),
    "sample-logits": SampleLogits(values=VALUES, version=bytes(range(16))),
}

CODED = {
    "logits-int8-row": PublicLogits(
        values=Quantised(np.array([[-127, 0, 64], [1, 2, 127]], np.int8), np.array([0.03125, 0], np.float32)),
        batch=BATCH,
    ),
    "class-rows-int8-tensor": ClassRows(
        classes=CLASSES,
        rows=Quantised(np.array([[-127, 0, 64], [1, 2, 127]], np.int8), np.array([0.5], np.float32)),
        counts=COUNTS,
    ),
    "weights-int8-tensor": Weights(
        values=Quantised(np.array([-127, 0, 64, 127], np.int8), np.array([0.25], np.float32)), layout=bytes(range(16))
    ),
}
"""As they travel where the federation's encoding is int8; `logits-f2` is what f16 makes."""

SPEC = FederationSpec(
    federation="lab",
    method="fedal",
    params={"tau": 5, "temperature": 1.5, "target": "all", "flag": True},
    contract=bytes(range(16)),
    classes=3,
    rounds=100,
    seed=7,
    train=TrainSpec(optimiser="sgd", learning_rate=0.05, momentum=0.9, batch_size=16, local_steps=3, evaluate_every=10),
    public=PublicSetSpec(sha256=bytes(range(32)), count=1000),
    feature_dim=64,
)

MODEL = OfferedFile(sha256=bytes(range(32)), total_bytes=61443, name="model.onnx", classes=3)

MESSAGES: dict[str, Message] = {
    "hello": Hello(
        **ADDRESS,
        versions=(1, 2),
        sdk="0.1.0",
        capabilities=("predict", "logit-gradients"),
        terms=("cross-entropy", "distill"),
        classes=3,
        feature_dim=64,
        samples=60,
        class_counts=(20, 0, 40),
        public_sha256=bytes(range(32)),
        model="cnn-small",
        runtime="torch",
        note="frozen up to layer 3",
        board="Raspberry Pi 4 · 4 GB",
    ),
    "hello-least": Hello(**ADDRESS, classes=3),
    "hello-inert": Hello(
        **ADDRESS, terms=("cross-entropy", "prototype-pull"), inert_terms=("prototype-pull",), classes=3
    ),
    "hello-encodings": Hello(**ADDRESS, encodings=("f16", "int8-row", "int8-tensor"), classes=3),
    "welcome": Welcome(**ADDRESS, number=4, version=1, epoch=2, run=bytes(range(16)), spec=SPEC),
    "welcome-encoding": Welcome(
        **ADDRESS,
        number=4,
        epoch=2,
        run=bytes(range(16)),
        spec=replace(SPEC, encoding=EncodingSpec(logits="int8-row", weights="f16")),
    ),
    "hello-fetching": Hello(**ADDRESS, classes=3, fetches_public=True),
    "welcome-serving": Welcome(
        **ADDRESS, number=4, version=1, epoch=2, run=bytes(range(16)), spec=SPEC, public_bytes=61443
    ),
    "public-request": PublicRequest(**ADDRESS, sha256=bytes(range(32)), blocks=(0, 1, 7)),
    "public-block": PublicBlock(
        **ADDRESS, sha256=bytes(range(32)), index=1, count=2, total_bytes=61443, data=b"\x00\x7f\xff"
    ),
    "assign": Assign(**ADDRESS, round=9, exchange=1, deadline_s=12.5, common={"mean": LOGITS}),
    "assign-personal": Assign(
        **ADDRESS,
        round=9,
        exchange=2,
        common={"mean": LOGITS},
        personal={"adversarial": PAYLOADS["logit-gradients"]},
    ),
    "assign-closing": Assign(**ADDRESS, round=100, exchange=0, closing=True),
    "receipt": Receipt(
        **ADDRESS, round=9, exchange=1, verdict="refused", reason="metrics only in the closing exchange"
    ),
    "refusal": Refusal(**ADDRESS, reason="capability", message="no logits", remedy="bring a model that gives logits"),
    "bye": Bye(**ADDRESS, reason="stopped by its owner"),
    "device-status": DeviceStatus(**ADDRESS, state="ready", boot=3),
    "device-status-declines": DeviceStatus(
        **ADDRESS, state="ready", boot=3, declines="time-budget", why="60 s are used up", declines_round=4
    ),
    "coordinator-status": CoordinatorStatus(federation="lab", state="failed", epoch=2, reason="quorum lost"),
    "control": Control(federation="lab", operation="revoke", device="cam-07"),
    "control-answered": Control(federation="lab", operation="drain", operator="desk-1", request=bytes(range(16))),
    "inquiry": Inquiry(federation="lab", about="logs", operator="desk-1", request=bytes(16), device="cam-07", lines=9),
    "control-rollout": Control(
        federation="lab", operation="rollout", operator="desk-1", request=bytes(range(16)), file=MODEL, share=0.1
    ),
    "model-offer": ModelOffer(**ADDRESS, file=MODEL, number=3, back=True, run=bytes(range(16))),
    "hello-offered": Hello(
        **ADDRESS,
        classes=3,
        accepts_models=True,
        offer=OfferAnswer(
            sha256=bytes(range(32)), number=3, state="running", samples=80, lost=2, won=9, run=bytes(range(16))
        ),
    ),
    "control-answer": ControlAnswer(
        federation="lab",
        operator="desk-1",
        request=bytes(range(16)),
        done=True,
        text="round 3 is finished",
        run="fedal, round 3 of 100",
        devices=(
            DeviceEntry(
                device="cam-07",
                state="waiting",
                why="others are awaited",
                here_s=12.5,
                seen_s=0.5,
                number=4,
                board="rpi4",
                model="cnn",
                runtime="torch",
                sdk="0.1.0",
                round=3,
                figures={"accuracy": 0.75},
            ),
            DeviceEntry(device="cam-08", state="expected"),
        ),
        more=True,
        lines=("one", "two"),
    ),
    "log-request": LogRequest(**ADDRESS, request=bytes(range(16)), lines=9),
    "log-lines": LogLines(**ADDRESS, request=bytes(range(16)), lines=("one", "two")),
    "lab-run": LabRun(**ADDRESS, run=bytes(range(16)), settings=b"{}"),
    "lab-hello": LabHello(
        **ADDRESS,
        number=7,
        state="running",
        run=bytes(range(16)),
        why="it is late",
        host="lab-pi-07",
        sdk="0.1.0",
        data_sha256=bytes(range(32)),
        figures={"steps": 12.0},
    ),
    "hello-logs": Hello(**ADDRESS, classes=3, sends_logs=True),
    **{
        f"upload-{kind}": Upload(
            **ADDRESS,
            round=9,
            exchange=1,
            knowledge={"logits": payload},
            samples=60,
            metrics={"accuracy": 0.75, "loss": 0.5},
            metrics_round=9,
        )
        for kind, payload in {**PAYLOADS, **CODED}.items()
    },
    "upload-withheld": Upload(**ADDRESS, round=9, exchange=1, samples=60, withheld="the loss was nan in step 3"),
    "upload-metered": Upload(
        **ADDRESS, round=9, exchange=1, busy_s=2.5, energy_j=11.25, joules_source="measured", temperature_c=61.5
    ),
    "upload-closing": Upload(**ADDRESS, round=100, exchange=0, closing=True, metrics={"accuracy": 1.0}),
}

FRAMES = {name: codec.encode(message, STAMP) for name, message in MESSAGES.items()}


def body_of(frame: bytes) -> bytes:
    """The body of an unsigned frame."""
    return frame[codec.HEADER_BYTES :]


def seal(
    body: bytes, *, version: int = codec.VERSION, flags: int = 0, reserved: int = 0, stamp: Stamp = STAMP
) -> bytes:
    """A frame around any bytes, with the length and the checksum right: what an attacker would send."""
    fields = (codec.MAGIC, version, flags, reserved, len(body))
    rest = (stamp.key_id, stamp.boot_epoch, stamp.sequence)
    crc = zlib.crc32(body, zlib.crc32(codec.HEADER.pack(*fields, 0, *rest)))
    return codec.HEADER.pack(*fields, crc, *rest) + body
