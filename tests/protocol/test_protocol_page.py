"""docs/reference/protocol.md says what the code does: every tag, field, type, default, limit, topic and refusal word."""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import msgpack
import numpy as np
import pytest
from protocol_mutations import KINDS as REFUSALS

from coordinator.serving import public_set_server
from edge_sdk import errors
from edge_sdk.device import session
from edge_sdk.device.link import uplink
from edge_sdk.methods.contract.base import CAPABILITIES, Method, Slot
from edge_sdk.methods.contract.registry import load_method, method_names
from edge_sdk.protocol import knowledge, low_rank, messages, model_offers, operator_messages, sample_knowledge, topics
from edge_sdk.protocol.encodings import ENCODINGS
from edge_sdk.protocol.frames import codec, scan, schema
from edge_sdk.protocol.frames.leaves import PRINTABLE, Blob, Integer, Packed, Real, Tensor, Text
from edge_sdk.protocol.frames.quantised import Coded, coded
from edge_sdk.protocol.frames.schema import ID, TAGS, Items
from edge_sdk.public_set import transfer
from edge_sdk.transport import chunks
from edge_sdk.transport.mqtt import send_queue

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/protocol.md").read_text()
HOMES = {each.__name__ for each in (messages, operator_messages, model_offers, knowledge, low_rank, sample_knowledge)}
TRAVELLING = {tag: cls for tag, cls in TAGS.items() if cls.__module__ in HOMES}
WORD = typing.get_args(schema.Word)[1]


def type_of(annotation: Any) -> str:
    """The words of the page for an annotation."""
    origin, args = typing.get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        rule = args[1]
        if isinstance(rule, Items):
            return f"{container_of(args[0])}, {rule.least} to {rule.most} of them"
        return rule_of(rule)
    if annotation == messages.Payload:
        return "payload"
    if annotation == messages.Scalar:
        return "boolean, integer, number or line"
    if origin in (typing.Union, types.UnionType):
        return f"{type_of(args[0])}, or nil"
    if dataclasses.is_dataclass(annotation):
        return f"`{schema.tag_of(annotation)}`"
    return {bool: "boolean", float: "number"}[annotation]


def container_of(annotation: Any) -> str:
    args = get_args(annotation)
    if issubclass(typing.get_origin(annotation), Mapping):
        return f"map of {type_of(args[0])} to {type_of(args[1])}"
    return f"list of {type_of(args[0])}"


def power(number: int) -> str:
    """2^n and 2^n - 1 as such."""
    for shown, value in ((f"2^{n.bit_length() - 1}", n) for n in (number, number + 1) if n > 1000 and n & (n - 1) == 0):
        return shown if value == number else f"{shown}-1"
    return f"{number}"


def rule_of(rule: Any) -> str:
    match rule:
        case Integer(low, high):
            return f"integer, {low} to {power(high)}"
        case Real(low, high):
            return "number" if math.isinf(high) else f"number, {low:g} to {high:g}"
        case Text() if rule == ID:
            return "id"
        case Text() if rule == WORD:
            return "word"
        case Text(256, pattern) if pattern == PRINTABLE:
            return "line"
        case Text(most, pattern) if pattern == PRINTABLE:
            return f"text of at most {most}"
        case Text(_, pattern):
            return "one of " + ", ".join(f"`{word}`" for word in pattern.split("|"))
        case Blob(least, most):
            return f"{most} bytes" if least == most else f"bytes, {least} to {most}"
        case Packed(most):
            return f"packed u4, at most {most} of them"
        case Tensor(dtypes, ndim):
            return f"tensor {' or '.join(dtypes)}, {ndim}-d"
        case Coded(ndim):
            return f"coded, {ndim}-d"
    raise AssertionError(f"no words for {rule}")


def default_of(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        value = field.default
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        return "required"
    if dataclasses.is_dataclass(value):
        return "all defaults"
    if value is None or isinstance(value, bool):
        return {None: "nil", True: "true", False: "false"}[value]
    if isinstance(value, (str, bytes, tuple, Mapping)) and not value:
        return "empty"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else f"{value}"


def rows_of(cls: type) -> list[str]:
    """The beginnings of the rows that a class must have on the page."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return [f"| `{f.name}` | {type_of(hints[f.name])} | {default_of(f)} |" for f in dataclasses.fields(cls)]


def section(heading: str) -> str:
    """The text from a heading to the next."""
    found = re.search(rf"^###? {re.escape(heading)}$(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"the page has no section {heading!r}"
    return found[1]


@pytest.mark.parametrize("tag", TRAVELLING)
def test_every_class_has_its_table(tag):
    cls = TRAVELLING[tag]
    rows = [line for line in section(f"{cls.__name__} `{tag}`").splitlines() if line.startswith("| `")]
    assert [line[: len(row)] for line, row in zip(rows, rows_of(cls), strict=True)] == rows_of(cls)


def test_the_page_has_no_table_too_many():
    assert set(re.findall(r"^### \w+ `([a-z-]+)`$", PAGE, re.MULTILINE)) == set(TRAVELLING)


def test_the_limits_are_those_of_the_code():
    limits = {
        "levels of lists and maps": scan.MAX_DEPTH,
        "entries of a list or map": scan.MAX_ITEMS,
        "values in a body": scan.MAX_VALUES,
        "bytes of one text": scan.MAX_TEXT_BYTES,
        "bytes of all texts": scan.MAX_TEXTS_BYTES,
        "bytes of a control frame": codec.CONTROL_LIMITS.frame_bytes,
        "bytes of one tensor or packed list in it": codec.CONTROL_LIMITS.tensor_bytes,
        "magnitude of a number in a payload": int(knowledge.MAX_MAGNITUDE),
    }
    for name, value in limits.items():
        assert f"{name} | {value} |" in section("Limits")


def test_the_header_is_that_of_the_code():
    text = section("Frame")
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (.*?) \|", text, re.MULTILINE)
    at = 0
    for offset, size, _ in rows:
        assert int(offset) == at
        at += int(size)
    assert at == codec.HEADER_BYTES + codec.SIGNATURE_BYTES
    assert f"`{codec.MAGIC.decode()}`" in text


def test_the_types_of_tensors_are_those_of_the_code():
    assert ", ".join(f"`{code}`" for code in schema.DTYPES) in section("Values")


def test_the_encodings_are_those_of_the_code():
    x = np.array([[1, -0.5, 0.25], [0, 0, 100]], np.float32)
    shown = re.findall(r"^\| `([a-z0-9-]+)` \| `([0-9a-f ]+)` \|$", section("Encodings"), re.MULTILINE)
    assert [name for name, _ in shown] == list(ENCODINGS)
    encode, decode = coded(Coded(2))
    for name, raw in shown:
        encoding = ENCODINGS[name]
        assert bytes.fromhex(raw) == msgpack.packb(encode(encoding.encode(x), name))
        assert abs(encoding.decoded(decode(msgpack.unpackb(bytes.fromhex(raw)), name)) - x).max() <= 0.4


def test_the_words_are_those_of_the_code():
    documented = set(re.findall(r"^\| `([a-z]+)` \|", section("Refusal words"), re.MULTILINE))
    assert documented == errors.REFUSAL_WORDS > REFUSALS


def test_the_topics_are_those_of_the_code():
    for line in re.findall(r"^    (fl/v1\S+)", topics.__doc__ or "", re.MULTILINE):
        assert f"`{line}`" in section("Topics")
    shown = re.findall(r"^\| (\w+) \| (\w+) \| `(\S+)` \|", section("Topics"), re.MULTILINE)
    assert set(shown) >= set(topics.ACCESS_RULES)


def test_the_kinds_are_those_of_the_code():
    documented = dict(re.findall(r"^\| `(hello|upd|bye|get|log)` \| (\w+) \|$", section("Connection"), re.MULTILINE))
    assert documented == {kind: cls.__name__ for cls, kind in uplink.KINDS.items()}
    for pattern in topics.device_subscriptions("a", "b"):
        generic = pattern.replace("/a/", "/{fed}/").replace("/b/", "/{device}/")
        assert f"    {generic}\n" in section("Connection")


def test_the_waits_are_those_of_the_code():
    text = section("What a device does")
    waits = [(float(first), float(most)) for first, most in re.findall(r"again after (\d+), .*?\.\.\. (\d+) s", text)]
    assert waits == [
        (session.HELLO_FIRST_S, session.HELLO_MOST_S),
        (session.RESEND_FIRST_S, session.RESEND_MOST_S),
    ]
    assert f"heard for {session.IDLE_HELLO_S:g} s" in text


def test_long_frames_travel_as_the_code_sends_them():
    text = section("Long frames")
    rows = [(int(at), int(size)) for at, size in re.findall(r"^\| (\d+) \| (\d+) \|", text, re.MULTILINE)]
    assert [at for at, _ in rows] == [sum(size for _, size in rows[:n]) for n in range(len(rows))]
    assert sum(size for _, size in rows) == chunks.HEADER_BYTES
    assert text.lstrip().startswith(f"A frame longer than {chunks.CHUNK_BYTES // 1024} KiB")
    assert f"at least {chunks.MIN_CHUNK_BYTES}" in text
    assert f"ranges, at most {chunks.MAX_RANGES}" in text
    assert f"{send_queue.MAX_CHUNKS_IN_FLIGHT} chunks unacknowledged" in text
    assert f"{send_queue.MAX_IN_FLIGHT} messages in all" in text
    assert f"came for {chunks.FIRST_REQUEST_S:g} s" in text
    assert f"chunk for {chunks.GIVE_UP_S:g} s" in text
    assert f"than {chunks.IGNORE_COMPLETE_S:g} s ago" in " ".join(text.split())
    assert f"{send_queue.MAX_SENT_AGE_S:g} s is long" in text


def test_the_example_of_long_frames():
    [example] = re.findall(r"^```\n(.*?)```", section("Long frames"), re.MULTILINE | re.DOTALL)
    header, want = (bytes.fromhex(line) for line in example.splitlines())
    frame = bytes(20_000)
    shape = chunks.ChunkLayout(chunks.set_id(frame), len(frame), chunks.MIN_CHUNK_BYTES)
    assert chunks.pack_chunk(shape, 1, frame) == header + frame[chunks.MIN_CHUNK_BYTES :]
    assert chunks.unpack_packet(want) == chunks.ChunkRequest(shape, ((0, 0),))


def test_how_the_public_set_is_fetched_is_what_the_code_does():
    text = " ".join(section("Fetching it").split())
    assert f"blocks of {messages.PUBLIC_BLOCK_BYTES} bytes" in text
    assert f"most {transfer.WINDOW} of them" in text
    assert transfer.TIMEOUT_GAPS == 4
    assert f"for {transfer.FIRST_TIMEOUT_S:g} s, or" in text
    assert f"doubling to {transfer.LONGEST_TIMEOUT_S:g} s" in text
    assert f"than {public_set_server.SETS_AT_ONCE} whole sets" in text
    assert f"and {model_offers.MAX_BLOCKS_ASKED} blocks" in text
    assert f"{public_set_server.REFILL_PER_S:g} blocks a second" in text


def test_the_bytes_on_the_page_are_the_golden_ones():
    found = re.findall(r"\(`(tests/protocol/golden/[\w-]+\.hex)`\).*?```hex\n(.*?)```", PAGE, re.DOTALL)
    assert found
    for path, shown in found:
        assert shown == (ROOT / path).read_text()
        assert codec.decode(bytes.fromhex(shown))


def test_the_capabilities_are_those_of_the_code():
    assert (
        tuple(re.findall(r"^\| `([a-z-]+)` \|", section("Methods").split("capability")[1], re.MULTILINE))
        == CAPABILITIES
    )


def roles(slots: Mapping[str, Slot]) -> str:
    """As the page lists what travels one way."""
    words = {
        role: ", ".join(word for word, said in (("personal", slot.personal), ("optional", slot.optional)) if said)
        for role, slot in sorted(slots.items())
    }
    return "; ".join(f"{role}: `{schema.tag_of(slots[role].kind)}` {said}".strip() for role, said in words.items())


def exchanges(method: Method[Any]) -> list[str]:
    """The rows of a method: equal exchanges in one, the closing one last."""
    rows = [(roles(row.down), roles(row.up)) for row in method.every_exchange]
    spans: list[list[int]] = []
    for place in range(len(rows) - 1):
        if spans and rows[spans[-1][0]] == rows[place]:
            spans[-1].append(place)
        else:
            spans.append([place])
    named = [(f"{span[0]}" if len(span) == 1 else f"{span[0]} to {span[-1]}", rows[span[0]]) for span in spans]
    cells = [(f"`{method.name}`", place, down, up) for place, (down, up) in [*named, ("closing", rows[-1])]]
    return ["".join(f"| {cell} " if cell else "| " for cell in row) + "|" for row in cells]


@pytest.mark.parametrize("name", sorted(name for name in method_names() if "edge_sdk" in load_method(name).__module__))
def test_what_a_method_exchanges_is_what_it_says(name):
    documented = [line for line in section("Methods").splitlines() if line.startswith(f"| `{name}` |")]
    assert documented == exchanges(load_method(name)())


def test_the_patterns_are_those_of_the_code():
    assert f"`{ID.pattern}`, at most {ID.most}" in section("Values")
    assert f"`{WORD.pattern}`, at most {WORD.most}" in section("Values")
