"""Encodings: the bounds that are promised, to the last bit, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from edge_sdk.errors import LocalProtocolError, RemoteProtocolError
from edge_sdk.protocol.encodings import ENCODINGS, F16_MOST, FLAT_ENCODINGS
from edge_sdk.protocol.frames.quantised import CODE_MOST, SCALE_MOST, Coded, Quantised, coded

INT8_MOST = np.float32(CODE_MOST * SCALE_MOST)
TINY = float(np.float32(2.0**-149))
"""The smallest f4."""

MAGNITUDES = st.sampled_from([TINY, 1e-44, 1e-38, 1e-30, 1e-3, 1.0, 1e6, 1e30, float(INT8_MOST)])
UNIT = st.floats(-1, 1, width=32)


@st.composite
def floats(draw: st.DrawFn, ndim: int = 2) -> np.ndarray:
    """Finite f4 of any magnitude, zeros and constant rows among them."""
    shape = draw(array_shapes(min_dims=ndim, max_dims=ndim, max_side=6))
    drawn = draw(arrays(np.float64, shape, elements=st.one_of(st.sampled_from([0.0, 1.0, -1.0]), UNIT)))
    if draw(st.booleans()):
        drawn[...] = drawn[..., :1]
    x = (drawn * draw(MAGNITUDES)).astype(np.float32)
    return np.clip(x, -INT8_MOST, INT8_MOST)


def travelled(name: str, x: np.ndarray) -> np.ndarray:
    """What a receiver gets: through the wire form, too."""
    encoding = ENCODINGS[name]
    encode, decode = coded(Coded(x.ndim))
    received = encoding.decoded(decode(encode(encoding.encode(x), "x"), "x"))
    assert (received.dtype, received.shape) == (np.float32, x.shape)
    return received.astype(np.float64)


@given(floats())
def test_f32_is_exact(x):
    assert np.array_equal(travelled("f32", x), x)


@given(floats().map(lambda x: np.clip(x, -F16_MOST, F16_MOST)))
@example(np.array([[F16_MOST, -F16_MOST, 2.0**-14, 2.0**-25, 2.0**-26]], np.float32))
def test_f16_is_within_its_bound(x):
    bound = np.where(abs(x) >= 2.0**-14, 2.0**-11 * abs(x.astype(np.float64)), 2.0**-25)
    assert (abs(travelled("f16", x) - x) <= bound).all()


@given(floats())
@example(np.zeros((2, 3), np.float32))
@example(np.full((1, 1), TINY, np.float32))
@example(np.array([[127, 0.5, 1.5, -0.5, 126.5]], np.float32))  # ties
@example(np.array([[INT8_MOST, -INT8_MOST], [TINY, -3 * TINY]], np.float32))
def test_int8_is_within_half_a_scale(x):
    exact = x.astype(np.float64)
    for name, scales in (
        ("int8-row", ENCODINGS["int8-row"].encode(x).scales[:, None]),
        ("int8-tensor", ENCODINGS["int8-tensor"].encode(x).scales),
    ):
        assert (abs(travelled(name, x) - exact) <= scales.astype(np.float64) / 2).all()


@given(floats(ndim=1))
def test_a_flat_array_has_one_scale(x):
    quantised = ENCODINGS["int8-tensor"].encode(x)
    assert quantised.scales.shape == (1,)
    assert (abs(travelled("int8-tensor", x) - x) <= float(quantised.scales[0]) / 2).all()


@given(floats())
def test_a_scale_is_hardly_above_what_is_needed(x):
    """So that the bound means something: within 2^-16, or where f4 has no finer numbers."""
    largest = abs(x).max(axis=1).astype(np.float64)
    scales = ENCODINGS["int8-row"].encode(x).scales.astype(np.float64)
    assert (scales >= largest / CODE_MOST).all()
    assert (scales <= np.maximum(largest / CODE_MOST * (1 + 2.0**-16), TINY + largest / CODE_MOST)).all()
    assert ((scales == 0) == (largest == 0)).all()


@given(floats())
def test_code_times_scale_is_exact_in_f4(x):
    """So every receiver computes the same numbers."""
    quantised = ENCODINGS["int8-row"].encode(x)
    exact = quantised.codes.astype(np.float64) * quantised.scales[:, None].astype(np.float64)
    assert np.array_equal(travelled("int8-row", x), exact)


def test_rows_do_not_disturb_each_other():
    x = np.array([[1e-3, -1e-3], [1e5, 1]], np.float32)
    assert np.allclose(travelled("int8-row", x)[0], x[0], rtol=1e-4)
    assert (travelled("int8-tensor", x)[0] == 0).all()


def test_worked_numbers():
    quantised = ENCODINGS["int8-row"].encode(np.array([[127, 0.5, 1.5, -2.5], [0, 0, 0, 0]], np.float32))
    assert quantised == Quantised(np.array([[127, 0, 2, -2], [0, 0, 0, 0]], np.int8), np.array([1, 0], np.float32))


@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_the_layout_in_memory_does_not_matter(order):
    x = np.random.default_rng(0).normal(size=(300, 70)).astype(np.float32)
    laid = {"C": x, "F": np.asfortranarray(x), "strided": np.repeat(x, 2, axis=0)[::2]}[order]
    for encoding in ENCODINGS.values():
        assert np.array_equal(encoding.decode(encoding.encode(laid)), encoding.decode(encoding.encode(x)))


@pytest.mark.parametrize("name", ["f16", "int8-row", "int8-tensor"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_sent(name, bad):
    with pytest.raises(LocalProtocolError, match="NaN or Inf"):
        ENCODINGS[name].encode(np.array([[0, bad], [1, 2]], np.float32))


@pytest.mark.parametrize("number", [65505, 65519, 65520, -1e6])
def test_what_f16_cannot_hold_is_not_sent_as_infinity(number):
    with pytest.raises(LocalProtocolError, match=r"f16 .*65504: .*f32"):
        ENCODINGS["f16"].encode(np.array([[number]], np.float32))


def test_what_int8_cannot_hold_is_not_sent_as_infinity():
    with pytest.raises(LocalProtocolError, match="int8 holds at most"):
        ENCODINGS["int8-tensor"].encode(np.array([np.finfo(np.float32).max]))


def test_a_flat_array_has_no_rows():
    assert "int8-row" not in FLAT_ENCODINGS
    with pytest.raises(LocalProtocolError, match="no rows: choose int8-tensor"):
        ENCODINGS["int8-row"].encode(np.ones(3, np.float32))


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("came", ENCODINGS)
def test_another_encoding_than_the_federation_has_is_refused(name, came):
    value = ENCODINGS[came].encode(np.ones((2, 3), np.float32))
    if name == came:
        assert ENCODINGS[name].decoded(value) is not None
        return
    with pytest.raises(RemoteProtocolError, match=rf"found .*, the federation's encoding is {name}") as caught:
        ENCODINGS[name].decoded(value)
    assert caught.value.kind == "knowledge"


CODES, SCALES = [[1, -127]], bytes.fromhex("0000803f")


@pytest.mark.parametrize(
    ("plain", "kind", "message"),
    [
        (["i1", [1, 2], b"\x01\x81", SCALES, 0], "schema", "expected a tensor"),
        (["i1", [1, 2], b"\x01\x81"], "tensor", "dtype must be f4 or f2"),
        (["f4", [1, 2], bytes(8), SCALES], "tensor", "dtype must be i1"),
        (["i1", [2, 2], b"\x01\x81", SCALES], "tensor", "2 bytes"),
        (["i1", [2], b"\x01\x81", SCALES], "tensor", "2 dimensions"),
        (["i1", [1, 2], b"\x01\x80", SCALES], "tensor", "code -128"),
        (["i1", [1, 2], b"\x01\x81", SCALES * 2], "tensor", "2 scales, expected 1"),
        (["i1", [1, 2], b"\x01\x81", b""], "tensor", "scales: a dimension"),
        (["i1", [1, 2], b"\x01\x81", SCALES + b"\x00"], "tensor", "scales: .* 5 bytes"),
        (["i1", [1, 2], b"\x01\x81", 1.0], "tensor", "scales: expected bytes"),
        (["i1", [1, 2], b"\x01\x81", bytes.fromhex("000080bf")], "tensor", "a scale outside"),
        (["i1", [1, 2], b"\x01\x81", bytes.fromhex("0000807f")], "nonfinite", "scales: holds NaN or Inf"),
        (["i1", [1, 2], b"\x01\x81", bytes.fromhex("ffff7f7f")], "tensor", "a scale outside"),
    ],
)
def test_what_is_no_quantised_tensor_is_refused(plain, kind, message):
    with pytest.raises(RemoteProtocolError, match=message) as caught:
        coded(Coded(2))[1](plain, "x")
    assert caught.value.kind == kind


def test_what_must_not_arrive_must_not_leave():
    with pytest.raises(LocalProtocolError, match="code -128"):
        coded(Coded(1))[0](Quantised(np.array([-128], np.int8), np.ones(1, np.float32)), "x")


def test_what_arrives_cannot_be_changed():
    received = coded(Coded(2))[1](["i1", [1, 2], b"\x01\x81", SCALES], "x")
    for part in (received.codes, received.scales):
        with pytest.raises(ValueError, match="read-only"):
            part[0] = 0


def test_encoding_a_large_array_makes_no_large_copy():
    """8 bytes for each of 11 million weights would be 90 MB on a board that has 512."""
    import tracemalloc  # only here

    x = np.ones(4_000_000, np.float32)
    encoding = ENCODINGS["int8-tensor"]
    tracemalloc.start()
    quantised = encoding.encode(x)
    _, encode_peak = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    encoding.decode(quantised)
    _, decode_peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert encode_peak <= x.nbytes / 4 + 2**20
    assert decode_peak - before <= x.nbytes + 2**20


def test_the_bounds_are_written_where_people_look():
    page = (Path(__file__).parents[2] / "docs/reference/protocol.md").read_text()
    for bound in ("at most 2^-11 abs(x) from 2^-14 to 65504", "at most 2^-25 below", "at most scale / 2"):
        assert f"abs(x - x') {bound}" in page or f", {bound}" in page
