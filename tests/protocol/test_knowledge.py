"""No payload reaches arithmetic that does not fit: worked examples of each way not to fit, and of what does."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from payload_bytes import payload_bytes
from properties import examples
from protocol_samples import ADDRESS, BATCH, CLASSES, COUNTS, PAYLOADS, VALUES

from edge_sdk.errors import LocalProtocolError, RemoteProtocolError
from edge_sdk.objectives import log_softmax
from edge_sdk.protocol.frames.codec import decode, encode
from edge_sdk.protocol.knowledge import (
    MAX_MAGNITUDE,
    ClassRows,
    Expect,
    LogitGradients,
    PublicLogits,
    Weights,
    kinds,
)
from edge_sdk.protocol.messages import Assign

EXPECT = Expect(classes=3, rows=4, feature_dim=3, weight_count=12, batch=BATCH)
ROWS = PAYLOADS["class-rows"]
HYPER = PAYLOADS["hyper-knowledge"]


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def refused(payload, expect: Expect = EXPECT) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        payload.check(expect)
    assert caught.value.kind == "knowledge"
    assert str(caught.value).startswith(type(payload).__name__)
    return str(caught.value)


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_what_fits_passes(payload):
    payload.check(EXPECT)


# -- logits and gradients -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [PublicLogits, LogitGradients])
@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (4, 2), (4, 4), (3, 4), (1, 12), (12, 1)])
def test_another_shape_is_refused(kind, shape):
    text = refused(kind(values=np.zeros(shape, np.float32), batch=BATCH))
    assert f"{shape}, expected (4, 3)" in text


@pytest.mark.parametrize("kind", [PublicLogits, LogitGradients])
def test_another_batch_is_refused_and_both_are_named(kind):
    text = refused(kind(values=VALUES, batch=bytes.fromhex("fedcba9876543210")))
    assert "fedcba9876543210" in text
    assert "0123456789abcdef" in text
    kind(values=VALUES, batch=bytes(8)).check(replace(EXPECT, batch=b""))


@pytest.mark.parametrize("kind", [PublicLogits, LogitGradients])
@pytest.mark.parametrize("value", [1.1e6, -1.1e6, 3e38, -3e38, np.inf, np.nan])
def test_numbers_that_ruin_what_is_computed_from_them_are_refused(kind, value):
    values = VALUES.copy()
    values[2, 1] = value
    assert "ran away" in refused(kind(values=values, batch=BATCH))


def test_the_largest_magnitude_is_harmless():
    """Logits at the bound give a finite loss at the lowest legal temperature; at f4's own bound they would not."""
    row = np.array([[MAX_MAGNITUDE, -MAX_MAGNITUDE, 0]], np.float32)
    PublicLogits(values=row, batch=BATCH).check(replace(EXPECT, rows=1))
    assert np.isfinite(log_softmax(row, 0.01)).all()
    with np.errstate(over="ignore", invalid="ignore"):
        assert not np.isfinite(log_softmax(row * np.float32(3e32), 0.01)).all()


def test_contributors_are_a_claim_that_can_be_bounded():
    logits = replace(PAYLOADS["logits"], contributors=10)
    logits.check(EXPECT)
    logits.check(replace(EXPECT, contributors=10))
    assert "10 contributors, " in refused(logits, replace(EXPECT, contributors=9))
    assert "2 contributors, " in refused(replace(logits, contributors=2), replace(EXPECT, contributors=1))
    refused(replace(logits, contributors=0))


# -- classes and counts ---------------------------------------------------------------------------------------------

BAD_CLASSES = {
    "unsorted": ids(2, 0),
    "repeated": ids(1, 1),
    "negative": ids(-1, 2),
    "beyond the last": ids(0, 3),
    "far beyond": ids(0, 2**31 - 1),
    # The difference of these two wraps around to +1 in i4, and both ends alone look right.
    "ascending only by overflow": ids(2**31 - 1, -(2**31)),
}
BAD_COUNTS = {"zero": ids(5, 0), "negative": ids(5, -1), "most negative": ids(5, -(2**31))}


@pytest.mark.parametrize("payload", [ROWS, HYPER], ids=["class-rows", "hyper-knowledge"])
@pytest.mark.parametrize("name", BAD_CLASSES)
def test_impossible_classes_are_refused(payload, name):
    assert "class id" in refused(replace(payload, classes=BAD_CLASSES[name]))


@pytest.mark.parametrize("payload", [ROWS, HYPER], ids=["class-rows", "hyper-knowledge"])
@pytest.mark.parametrize("name", BAD_COUNTS)
def test_impossible_counts_are_refused(payload, name):
    assert "a count below 1" in refused(replace(payload, counts=BAD_COUNTS[name]))


@pytest.mark.parametrize("payload", [ROWS, HYPER], ids=["class-rows", "hyper-knowledge"])
def test_counts_are_bounded_by_what_was_declared(payload):
    """Finding 9: a count that nobody bounds is the cheapest attack; a sum of two i4 counts must not wrap, either."""
    payload.check(replace(EXPECT, samples=70005))
    assert re.search("70005 samples.* most 70004", refused(payload, replace(EXPECT, samples=70004)))
    huge = replace(payload, counts=ids(2**31 - 1, 2**31 - 1))
    assert "4294967294 samples together" in refused(huge, replace(EXPECT, samples=1000))


def test_the_weight_of_a_model_is_bounded_by_what_was_declared():
    weights = Weights(values=np.zeros(12, np.float32), layout=bytes(16), count=41)
    weights.check(replace(EXPECT, samples=41))
    assert re.search("41 samples.* most 40", refused(weights, replace(EXPECT, samples=40)))


def test_a_count_cannot_exceed_what_i4_holds():
    rows = replace(ROWS, counts=np.array([2**31, 1], np.int64))
    with pytest.raises(LocalProtocolError, match=r"counts: .*i4, .*<i8"):
        encode(Assign(**ADDRESS, round=0, exchange=0, common={"x": rows}))


@pytest.mark.parametrize("payload", [ROWS, HYPER], ids=["class-rows", "hyper-knowledge"])
@pytest.mark.parametrize(("classes", "counts"), [(ids(0), COUNTS), (CLASSES, ids(1)), (ids(0, 1, 2), ids(1, 1, 1))])
def test_lengths_that_differ_are_refused(payload, classes, counts):
    message = refused(replace(payload, classes=classes, counts=counts))
    assert re.findall(r"\d+", message) == [str(len(classes)), "2", str(len(counts))]


def test_no_classes_at_all_are_refused():
    empty = ClassRows(classes=ids(), rows=np.zeros((0, 3), np.float32), counts=ids())
    assert "0 classes" in refused(empty)


@pytest.mark.parametrize("payload", [ROWS, HYPER], ids=["class-rows", "hyper-knowledge"])
def test_another_width_is_refused(payload):
    assert "width 3, expected 64" in refused(payload, replace(EXPECT, feature_dim=64))
    payload.check(replace(EXPECT, feature_dim=0))


@pytest.mark.parametrize("field", ["rows", "features"])
def test_class_vectors_that_ran_away_are_refused(field):
    payload = ROWS if field == "rows" else HYPER
    assert "ran away" in refused(replace(payload, **{field: np.full((2, 3), -2e6, np.float32)}))


@examples(300)
@given(
    classes=st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-1, 4), min_size=1, max_size=4),
    counts=st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-1, 3), min_size=1, max_size=4),
)
def test_class_rows_pass_only_if_python_agrees(classes, counts):
    """The vectorised check against the plain definition, overflow and all."""
    payload = ClassRows(classes=ids(*classes), rows=np.zeros((len(classes), 3), np.float32), counts=ids(*counts))
    possible = (
        len(classes) == len(counts)
        and classes == sorted(set(classes))
        and all(0 <= each < 3 for each in classes)
        and all(each > 0 for each in counts)
    )
    try:
        payload.check(EXPECT)
    except RemoteProtocolError:
        assert not possible
    else:
        assert possible


# -- probabilities --------------------------------------------------------------------------------------------------

BAD_SOFT = {
    "negative": [[1.2, -0.2, 0], [0, 0, 1]],
    "sum of a half": [[0.5, 0, 0], [0, 0, 1]],
    "sum of two": [[1, 1, 0], [0, 0, 1]],
    "logits": [[4.0, -1.0, 2.0], [0, 0, 1]],
    "all zero": [[0, 0, 0], [0, 0, 1]],
    "huge": [[3e38, -3e38, 1], [0, 0, 1]],
}


@pytest.mark.parametrize("name", BAD_SOFT)
def test_rows_off_the_simplex_are_refused(name):
    assert "probabilit" in refused(replace(HYPER, soft=np.array(BAD_SOFT[name], np.float32)))


@pytest.mark.parametrize("shape", [(2, 2), (2, 4), (1, 3), (3, 3)])
def test_soft_predictions_of_another_shape_are_refused(shape):
    soft = np.full(shape, 1 / shape[1], np.float32)
    assert f"{shape}, expected (2, 3)" in refused(replace(HYPER, soft=soft))


@pytest.mark.parametrize("classes", [3, 10, 1000])
def test_rounding_to_f2_stays_on_the_simplex(classes):
    logits = np.random.default_rng(classes).normal(0, 4, (2, classes))
    soft = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    payload = replace(HYPER, soft=soft.astype(np.float16))
    payload.check(replace(EXPECT, classes=classes))


# -- weights --------------------------------------------------------------------------------------------------------


def test_weights_are_counted_and_measured():
    weights = PAYLOADS["weights"]
    assert "Weights: 12, expected 13" in refused(weights, replace(EXPECT, weight_count=13))
    weights.check(replace(EXPECT, weight_count=0))
    assert "ran away" in refused(Weights(values=np.full(12, 1e7, np.float32), layout=bytes(16)))


# -- on the wire ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", tuple(kinds().values()))
@pytest.mark.parametrize("half", ["common", "personal"])
def test_every_kind_travels_down_to_all_or_to_one(kind, half):
    payload = next(each for each in PAYLOADS.values() if type(each) is kind)
    assign = Assign(**ADDRESS, round=1, exchange=0, **{half: {"role": payload}})
    arrived = decode(encode(assign)).message
    assert arrived == assign
    assert arrived.down == {"role": payload}
    arrived.down["role"].check(EXPECT)


def test_common_and_personal_knowledge_come_together():
    assign = Assign(**ADDRESS, round=1, exchange=0, common={"mean": ROWS}, personal={"own": HYPER})
    assert decode(encode(assign)).message.down == {"mean": ROWS, "own": HYPER}


def test_absent_classes_stay_absent():
    arrived = decode(encode(Assign(**ADDRESS, round=0, exchange=0, common={"x": ROWS}))).message.down["x"]
    assert arrived.classes.tolist() == [0, 2]
    assert arrived.rows.shape == (2, 3)


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_payloads_are_equal_when_their_numbers_are(payload):
    arrived = decode(encode(Assign(**ADDRESS, round=0, exchange=0, common={"x": payload}))).message.down["x"]
    assert arrived == payload
    assert arrived is not payload
    assert payload != "something else"
    field = next(name for name in ("values", "counts", "codes") if hasattr(payload, name))
    assert replace(payload, **{field: getattr(payload, field) + getattr(payload, field).dtype.type(1)}) != payload
    with pytest.raises(TypeError, match="unhashable"):
        hash(payload)


def test_equal_numbers_of_another_width_are_not_equal():
    assert PAYLOADS["logits"] != replace(PAYLOADS["logits"], values=VALUES.astype(np.float16))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("logits", 48),
        ("logits-f2", 24),
        ("class-rows", 2 * 4 + 24 + 2 * 4),
        ("hyper-knowledge", 8 + 24 + 24 + 8),
        ("weights", 48),
    ],
)
def test_the_size_of_a_payload_is_that_of_its_tensors(name, size):
    assert payload_bytes(PAYLOADS[name]) == size
