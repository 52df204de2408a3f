"""A payload kind of another package travels, is limited, encoded and checked as ours are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from protocol_samples import ADDRESS, LOGITS, MESSAGES, SPEC

from coordinator.config import read_settings
from edge_sdk.errors import LocalProtocolError, RemoteProtocolError, UsageError
from edge_sdk.protocol.frames.codec import CONTROL_LIMITS, decode, encode
from edge_sdk.protocol.frames.schema import Matrix, wire
from edge_sdk.protocol.knowledge import EXAMPLE_SIZES, PAYLOADS, Expect, Payload, Slot, kinds, unfit
from edge_sdk.protocol.messages import EncodingSpec, Upload
from edge_sdk.protocol.transforms import Coding, encodings_in_use, missing_encodings
from edge_sdk.protocol.wires import Exchange, check_roles, frame_limits
from edge_sim.projects import methods_command

Register = Callable[[str, Mapping[str, str]], None]


@wire("test-confusion")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Confusion(Payload):
    """How often each class is taken for each other."""

    coded: ClassVar[tuple[str, ...]] = ("shares",)
    encodings: ClassVar[tuple[str, ...]] = ("f32", "f16")
    shares: Matrix  # (k, k)

    def check(self, expect: Expect) -> None:
        """Raise RemoteProtocolError unless there is a row and a column for each class."""
        if self.shares.shape != (expect.classes, expect.classes):
            raise unfit(f"Confusion: shape {self.shares.shape}")

    @classmethod
    def most_bytes(cls, expect: Expect) -> tuple[int, ...]:
        """K K."""
        return (4 * expect.classes**2,)


@wire("test-other")
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Other(Confusion):
    """Registered nowhere."""


SHARES = np.random.default_rng(0).dirichlet(np.ones(3), 3).astype(np.float32)
EXPECT = Expect(classes=3)
SLOTS = {"confusion": Slot(Confusion)}


EXCHANGES = (Exchange(up=SLOTS), Exchange())


def upload(payload: Payload) -> Upload:
    return Upload(**ADDRESS, round=1, exchange=0, knowledge={"confusion": payload})


@pytest.fixture
def installed(register: Register) -> None:
    register(PAYLOADS, {"test-confusion": f"{__name__}:Confusion"})


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("encoding", ["f32", "f16"])
def test_it_travels(encoding: str) -> None:
    assert kinds()["test-confusion"] is Confusion
    spec = replace(SPEC, params={}, encoding=EncodingSpec(others={"test-confusion": encoding}))
    ours = Coding(decode(encode(replace(MESSAGES["welcome"], spec=spec))).message.spec.encoding)
    sent = ours.apply({"confusion": Confusion(shares=SHARES)})
    limits = frame_limits((Exchange(up=SLOTS),), EXPECT)
    received = ours.received(decode(encode(upload(sent["confusion"])), limits).message, "knowledge").knowledge
    check_roles(received, SLOTS, EXPECT)
    np.testing.assert_allclose(received["confusion"].shares, SHARES, rtol=0 if encoding == "f32" else 2**-11)
    assert encodings_in_use(spec, EXCHANGES) == {"test-confusion": encoding}
    assert missing_encodings(spec, EXCHANGES, ()) == ([] if encoding == "f32" else ["f16"])


@pytest.mark.usefixtures("installed")
def test_its_size_bounds_a_frame() -> None:
    wide = Expect(classes=1000)
    limits = frame_limits((Exchange(up=SLOTS),), wide)
    assert limits.tensor_bytes == 4_000_000
    assert limits.frame_bytes == 4_000_000 + CONTROL_LIMITS.frame_bytes
    largest = Confusion(shares=np.ones((1000, 1000), np.float32))
    check_roles(decode(encode(upload(largest)), limits).message.knowledge, SLOTS, wide)
    with pytest.raises(RemoteProtocolError, match="at most"):
        decode(encode(upload(Confusion(shares=np.ones((1000, 1001), np.float32)))), limits)
    with pytest.raises(RemoteProtocolError, match="shape"):
        check_roles({"confusion": Confusion(shares=SHARES)}, SLOTS, wide)
    assert methods_command.in_bytes(methods_command.scalars([Slot(Confusion)])) == 4 * EXAMPLE_SIZES.classes**2


@pytest.mark.usefixtures("installed")
def test_the_settings_know_its_encoding() -> None:
    def encodings(table: dict[str, object]) -> EncodingSpec:
        tables = {"federation": {"name": "lab", "rounds": 1, "devices": 1}, "encoding": table}
        return read_settings(tables, Path("lab.toml")).encoding

    read = encodings({"test_confusion": "f16", "logits": "int8-row"})
    assert read == EncodingSpec(logits="int8-row", others={"test-confusion": "f16"})
    with pytest.raises(UsageError, match="did you mean test_confusion"):
        encodings({"test_confusions": "f16"})
    with pytest.raises(UsageError, match="'f15'"):
        encodings({"test_confusion": "f15"})
    with pytest.raises(UsageError, match="unknown key"):
        encodings({"others": {"test-confusion": "f16"}})


def test_what_is_not_registered_neither_leaves_nor_arrives(register: Register) -> None:
    with pytest.raises(LocalProtocolError, match=r"Other .*not registered .*edge_sdk\.payloads"):
        encode(upload(Other(shares=SHARES)))
    register(PAYLOADS, {"test-other": f"{__name__}:Other"})
    frame = encode(upload(Other(shares=SHARES)))
    register(PAYLOADS, {"test-other": "another_package:Other"})
    with pytest.raises(RemoteProtocolError, match=r"'test-other' .*twice"):
        decode(frame)
    with pytest.raises(UsageError, match="registered twice"):
        kinds()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_package:Kind", "no_such_package:Kind does not load"),
        (f"{__name__}:Expect", "is not a Payload with @wire"),
        (f"{__name__}:Other", "is not a Payload with @wire"),
    ],
)
def test_a_broken_kind_is_one_clear_line_and_spoils_no_other(register: Register, value: str, message: str) -> None:
    register(PAYLOADS, {"test-broken": value})
    with pytest.raises(UsageError, match=message) as caught:
        kinds()
    assert "\n" not in str(caught.value)
    assert decode(encode(upload(LOGITS))).message.knowledge["confusion"] == LOGITS
