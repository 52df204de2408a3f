"""Whatever bytes come in, decode returns an Envelope or raises RemoteProtocolError: never anything else, never NaN or
Inf, never an array or a map that can be written to; and whatever goes out comes in as it was.

EDGE_MUTATIONS=100000 in the environment sets the number of mutants.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import protocol_mutations
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from properties import examples

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.frames.codec import CONTROL_LIMITS, Limits, Stamp, decode, encode
from edge_sdk.protocol.frames.leaves import PRINTABLE, Blob, Integer, Packed, Real, Tensor, Text
from edge_sdk.protocol.frames.quantised import CODE_MOST, SCALE_MOST, Coded, Quantised
from edge_sdk.protocol.frames.schema import Items
from edge_sdk.protocol.knowledge import Payload, kinds
from edge_sdk.protocol.messages import Message

MUTANTS = int(os.environ.get("EDGE_MUTATIONS", "20000"))


@pytest.mark.timeout(60 + MUTANTS // 500)
def test_no_mutant_escapes_or_gets_through_spoilt():
    ends = protocol_mutations.run(seed=1, count=MUTANTS)
    assert ends.total() == MUTANTS
    # The engine has teeth only if it reaches every check, and leaves some frames legal.
    assert set(ends) == protocol_mutations.KINDS | {"accepted"}
    assert min(ends.values()) >= MUTANTS // 500
    assert MUTANTS // 20 <= ends["accepted"] <= MUTANTS // 4


def test_no_mutant_escapes_from_the_pure_python_msgpack():
    """Boards without a wheel of msgpack run its fallback, which recurses and copies where the C code does not."""
    script = (
        "import msgpack, protocol_mutations as m;"
        "assert msgpack.unpackb.__module__ == 'msgpack.fallback';"
        "print(sorted(m.run(seed=2, count=4000).items()))"
    )
    here = str(Path(__file__).parent)
    environment = {**os.environ, "MSGPACK_PUREPYTHON": "1", "PYTHONPATH": here}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # The very same end for every mutant: no board is more lenient than another.
    assert done.stdout.strip() == str(sorted(protocol_mutations.run(seed=2, count=4000).items()))


def test_the_engine_is_seeded():
    first, again, other = (list(protocol_mutations.mutants(seed, 200)) for seed in (5, 5, 6))
    assert first == again != other


# -- round trips ----------------------------------------------------------------------------------------------------


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Every legal value of a field, from its annotation alone."""
    origin, args = typing.get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        rule = args[1]
        return several(args[0], rule.least) if isinstance(rule, Items) else ruled(rule)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values(arg) for arg in args])
    if annotation is Payload:
        return st.one_of([objects(kind) for kind in kinds().values()])
    if dataclasses.is_dataclass(annotation):
        return objects(annotation)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        type(None): st.none(),
        bool: st.booleans(),
        int: ruled(Integer(-(2**63))),
        float: ruled(Real()),
        str: ruled(Text()),
    }
    return simple[annotation]


def several(container: Any, least: int) -> st.SearchStrategy[Any]:
    args = get_args(container)
    if issubclass(typing.get_origin(container), Mapping):
        return st.dictionaries(values(args[0]), values(args[1]), min_size=least, max_size=4)
    return st.lists(values(args[0]), min_size=least, max_size=4).map(tuple)


def ruled(rule: Any) -> st.SearchStrategy[Any]:
    match rule:
        case Integer(low, high):
            return st.integers(low, high)
        case Real(low, high):
            return st.floats(
                None if low == -np.inf else low, None if high == np.inf else high, allow_nan=False, allow_infinity=False
            )
        case Text(most, pattern) if pattern == PRINTABLE:
            return st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=most)
        case Text(most, pattern):
            return st.from_regex(re.compile(pattern), fullmatch=True).filter(lambda text: len(text) <= most)
        case Blob(least, most):
            return st.binary(min_size=least, max_size=most)
        case Packed(most):
            return st.lists(st.integers(0, 2**32 - 1), max_size=min(most, 20)).map(tuple)
        case Coded(ndim):
            return st.one_of(ruled(Tensor(("f4", "f2"), ndim)), quantised(ndim))
        case Tensor(dtypes, ndim):
            shapes = array_shapes(min_dims=ndim, max_dims=ndim, max_side=4)
            return st.sampled_from(dtypes).flatmap(
                lambda code: arrays(
                    code, shapes, elements={"allow_nan": False, "allow_infinity": False} if code[0] == "f" else None
                )
            )
    raise AssertionError(f"no strategy for {rule}")


def quantised(ndim: int) -> st.SearchStrategy[Quantised]:
    shapes = array_shapes(min_dims=ndim, max_dims=ndim, max_side=4)
    codes = arrays(np.int8, shapes, elements=st.integers(-CODE_MOST, CODE_MOST))

    def scaled(each: np.ndarray) -> st.SearchStrategy[Quantised]:
        counts = st.sampled_from((1, len(each)) if ndim > 1 else (1,))
        legal = st.floats(0, SCALE_MOST, width=32)
        return st.builds(Quantised, st.just(each), counts.flatmap(lambda n: arrays(np.float32, n, elements=legal)))

    return codes.flatmap(scaled)


def objects(cls: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = {field.name: values(hints[field.name]) for field in dataclasses.fields(cls)}
    return st.builds(cls, **fields)


def scalar_types(message: Any) -> dict[str, type]:
    spec = getattr(message, "spec", None)
    return {name: type(value) for name, value in spec.params.items()} if spec else {}


STAMPS = st.builds(Stamp, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.binary(min_size=16, max_size=16))


@pytest.mark.parametrize("cls", get_args(Message), ids=lambda cls: cls.__name__)
def test_what_is_sent_is_what_arrives(cls):
    @settings(examples(100), suppress_health_check=list(HealthCheck))
    @given(message=objects(cls), stamp=STAMPS)
    def check(message, stamp):
        frame = encode(message, stamp)
        envelope = decode(frame, CONTROL_LIMITS)
        assert envelope.message == message
        assert envelope.stamp == stamp
        assert scalar_types(envelope.message) == scalar_types(message)  # 1, 1.0 and True are equal, and not the same
        protocol_mutations.check_clean(envelope.message)
        assert encode(envelope.message, envelope.stamp) == frame

    check()


def test_a_legal_frame_is_refused_under_limits_that_are_too_small():
    for frame in protocol_mutations.CORPUS:
        with pytest.raises(RemoteProtocolError, match="at most") as caught:
            decode(frame, Limits(frame_bytes=len(frame) - 1))
        assert caught.value.kind == "limit"
