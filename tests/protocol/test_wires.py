"""What may stand in an exchange: roles, their slots, and how large a frame may be."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from payload_bytes import payload_bytes
from protocol_samples import ADDRESS, BATCH, PAYLOADS, SPEC, VALUES

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.methods.contract.registry import load_method, method_names
from edge_sdk.methods.fedmd import FedMD
from edge_sdk.protocol.frames.codec import CONTROL_LIMITS, HEADER_BYTES, decode, encode
from edge_sdk.protocol.knowledge import (
    ClassRows,
    Expect,
    HyperKnowledge,
    PublicFeatures,
    PublicLogits,
    Scalars,
    Slot,
    Weights,
    kinds,
)
from edge_sdk.protocol.low_rank import MAX_ARRAYS, LowRank
from edge_sdk.protocol.messages import Upload
from edge_sdk.protocol.sample_knowledge import SampleCodes, SampleLogits
from edge_sdk.protocol.wires import Exchange, check_roles, expectation, frame_limits

# -- roles ----------------------------------------------------------------------------------------------------------

EXPECT = Expect(classes=3, rows=4, batch=BATCH)
SLOTS = {"logits": Slot(PublicLogits), "rows": Slot(ClassRows, optional=True)}


def role_refused(given) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        check_roles(given, SLOTS, EXPECT)
    assert caught.value.kind == "knowledge"
    return str(caught.value)


def test_the_roles_of_an_exchange():
    check_roles({"logits": PAYLOADS["logits"]}, SLOTS, EXPECT)
    check_roles({"logits": PAYLOADS["logits"], "rows": PAYLOADS["class-rows"]}, SLOTS, EXPECT)
    assert role_refused({}) == "role 'logits' is missing"
    assert role_refused({"rows": PAYLOADS["class-rows"]}) == "role 'logits' is missing"
    assert "role 'more'" in role_refused({"logits": PAYLOADS["logits"], "more": PAYLOADS["logits"]})
    assert re.match("logits: .*PublicLogits, .*LogitGradients$", role_refused({"logits": PAYLOADS["logit-gradients"]}))
    assert "(2, 3), expected (4, 3)" in role_refused({"logits": PublicLogits(values=VALUES[:2], batch=BATCH)})


def test_a_slot_states_its_own_rows():
    check_roles({"x": PAYLOADS["logits"]}, {"x": Slot(PublicLogits, rows=4)}, replace(EXPECT, rows=99))
    with pytest.raises(RemoteProtocolError, match=r"expected \(5, 3\)"):
        check_roles({"x": PAYLOADS["logits"]}, {"x": Slot(PublicLogits, rows=5)}, EXPECT)


def test_a_slot_may_be_wider_than_the_features():
    """PAYLOADS["class-rows"] has 3 columns: header rows of 2 features with their bias."""
    slots = {"header": Slot(ClassRows, extra_columns=1)}
    given = {"header": PAYLOADS["class-rows"]}
    check_roles(given, slots, replace(EXPECT, feature_dim=2))
    check_roles(given, slots, EXPECT)  # no width is agreed on
    with pytest.raises(RemoteProtocolError, match="width 3, expected 4"):
        check_roles(given, slots, replace(EXPECT, feature_dim=3))


def test_a_wider_slot_has_a_larger_frame():
    wide, narrow = (
        frame_limits((Exchange(up={"x": Slot(ClassRows, extra_columns=extra)}),), SIZES) for extra in (1, 0)
    )
    assert wide.tensor_bytes - narrow.tensor_bytes == 4 * SIZES.classes == wide.frame_bytes - narrow.frame_bytes


def test_what_a_spec_fixes_is_expected():
    assert expectation(SPEC) == Expect(classes=3, feature_dim=64)


# -- limits ---------------------------------------------------------------------------------------------------------

NUMBERS, CODE = 1_000_000, 64
SIZES = Expect(classes=100, rows=2048, feature_dim=512, weight_count=1_000_000)


def filled(kind: type, rows_more: int = 0):
    """The largest payload that fits SIZES, or one with so many rows more."""
    classes = 100 + (rows_more if kind in (ClassRows, HyperKnowledge) else 0)
    ids, counts = np.arange(classes, dtype=np.int32), np.full(classes, 2**31 - 1, np.int32)
    if kind is Weights:
        return Weights(values=np.ones(1_000_000 + rows_more, np.float32), layout=bytes(16))
    if kind is LowRank:
        shapes = np.ones(MAX_ARRAYS + rows_more, np.int32)
        shapes[0] = 1_000_000 - MAX_ARRAYS + 1
        values = np.ones(1_000_000 + rows_more, np.float32)
        return LowRank(
            heights=shapes, widths=np.ones_like(shapes), ranks=np.zeros_like(shapes), values=values, layout=bytes(16)
        )
    if kind is ClassRows:
        return ClassRows(classes=ids, rows=np.ones((classes, 512), np.float32), counts=counts)
    if kind is HyperKnowledge:
        soft = np.full((classes, 100), 0.01, np.float32)
        return HyperKnowledge(classes=ids, features=np.ones((classes, 512), np.float32), soft=soft, counts=counts)
    if kind is PublicFeatures:
        return PublicFeatures(values=np.ones((2048 + rows_more, 512), np.float32), batch=bytes(32))
    if kind is Scalars:
        return Scalars(values=np.ones(NUMBERS + rows_more, np.float32))
    if kind is SampleCodes:
        count = 2048 + rows_more
        codes, labels = np.ones((count, CODE), np.float32), np.zeros(count, np.int32)
        return SampleCodes(codes=codes, labels=labels, inputs=784, version=bytes(16))
    values = np.ones((2048 + rows_more, 100), np.float32)
    return (
        SampleLogits(values=values, version=bytes(16)) if kind is SampleLogits else kind(values=values, batch=bytes(32))
    )


def slot_of(kind: type) -> Slot:
    """A slot that the largest payload fits."""
    return Slot(kind, numbers=CODE if kind is SampleCodes else NUMBERS, samples=2048)


def upload(**knowledge) -> bytes:
    metrics = {f"{'m' * 62}{i:02}": 1e300 for i in range(64)}
    return encode(Upload(**ADDRESS, round=2**32 - 1, exchange=1, knowledge=knowledge, metrics=metrics))


@pytest.mark.parametrize("kind", tuple(kinds().values()), ids=lambda kind: kind.__name__)
def test_the_largest_payload_passes_and_one_row_more_does_not(kind):
    slots = {"x": slot_of(kind)}
    limits = frame_limits((Exchange(up=slots), Exchange()), SIZES)
    largest = decode(upload(x=filled(kind)), limits).message
    check_roles(largest.knowledge, slots, SIZES)
    with pytest.raises(RemoteProtocolError) as caught:
        decode(upload(x=filled(kind, 1)), limits)
    assert caught.value.kind == "limit"


@pytest.mark.parametrize("kind", tuple(kinds().values()), ids=lambda kind: kind.__name__)
def test_a_frame_may_be_larger_by_exactly_its_tensors(kind):
    limits = frame_limits((Exchange(down={"x": slot_of(kind)}),), SIZES)
    assert limits.frame_bytes - CONTROL_LIMITS.frame_bytes == payload_bytes(filled(kind))


def test_the_largest_of_many_exchanges_counts():
    logits, weights = Slot(PublicLogits), Slot(Weights)
    rows = (Exchange(up={"x": logits}), Exchange(down={"a": weights, "b": weights}, up={"x": logits}))
    limits = frame_limits(rows, SIZES)
    assert limits.tensor_bytes == 4_000_000
    assert limits.frame_bytes == 8_000_000 + CONTROL_LIMITS.frame_bytes
    frame = upload(a=filled(Weights), b=filled(Weights))
    assert len(decode(frame, limits).message.knowledge) == 2
    with pytest.raises(RemoteProtocolError, match="at most"):
        decode(upload(a=filled(Weights), b=filled(Weights), c=filled(Weights)), limits)


@pytest.mark.parametrize("name", method_names())
def test_control_messages_pass_under_the_limits_of_any_method(name):
    limits = frame_limits(load_method(name)().every_exchange, expectation(SPEC))
    assert limits.frame_bytes >= CONTROL_LIMITS.frame_bytes
    assert limits.tensor_bytes >= CONTROL_LIMITS.tensor_bytes
    assert frame_limits((), SIZES) == CONTROL_LIMITS


def test_a_small_payload_with_a_row_too_many_is_refused_by_its_check():
    rows = FedMD().exchanges
    slots, limits = rows[0].up, frame_limits(rows, expectation(SPEC))
    logits = PublicLogits(values=np.ones((33, 3), np.float32), batch=BATCH)
    arrived = decode(upload(logits=logits), limits).message.knowledge
    with pytest.raises(RemoteProtocolError, match=r"\(33, 3\), .*\(32, 3\)"):
        check_roles(arrived, slots, expectation(SPEC))


def test_everything_but_tensors_fits_beside_them():
    """64 roles with the longest names and 64 metrics stay within what a frame has beside its tensors."""
    tiny = {f"{'r' * 62}{i:02}": PublicLogits(values=np.ones((1, 2), np.float32), batch=bytes(32)) for i in range(64)}
    assert len(upload(**tiny)) - 64 * 8 < CONTROL_LIMITS.frame_bytes - HEADER_BYTES
