"""Bodies made by hand to cost much more than they weigh, and what decoding may spend on each.

The budget: 50 ms and 20 ms for each MiB of the frame; three times its size and 1 MiB of memory.
"""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
from protocol_mutations import Raw, pack
from protocol_samples import FRAMES, WIDE, body_of, seal

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.frames.codec import decode

MILLION = 1_000_000
MEBIBYTE = 2**20


def message(name: str, **fields: Any) -> bytes:
    """The body of a sample with some of its fields replaced, or added."""
    tag, known = msgpack.unpackb(body_of(FRAMES[name]))
    return pack([tag, {**known, **fields}])


def tensor(dtype: Any, shape: Any, raw: Any, *scales: Any) -> bytes:
    """An upload whose logits are this tensor; with scales, quantised."""
    payload = {"values": [dtype, shape, raw, *scales], "batch": bytes(8)}
    return message("upload-logits", knowledge={"logits": ["logits", payload]})


def unknown(raw: bytes) -> bytes:
    """An upload with a field of a later version, which is skipped, not ignored."""
    return message("upload-closing", later=Raw(raw))


def tree(leaf: bytes, levels: int) -> bytes:
    """64 lists of 64 lists of ... of leaves: wide without one wide list."""
    for _ in range(levels):
        leaf = b"\xdc\x00\x40" + leaf * 64
    return leaf


def _nested() -> Iterator[tuple[str, bytes]]:
    for depth in (9, 100, 1023, 1025, 100_000, MILLION):
        yield f"{depth} lists deep", unknown(b"\x91" * depth + b"\xc0")
        yield f"{depth} maps deep", unknown(b"\x81\xa1k" * depth + b"\xc0")
    yield "a million lists deep and open", b"\x91" * MILLION
    yield "a thousand lists of 64 deep", unknown((b"\xdc\x00\x40" + b"\xa2\xce\xb1" * 63) * 1000 + b"\xc0")


def _forged() -> Iterator[tuple[str, bytes]]:
    for lead, width in (
        (0xC4, 1),
        (0xC5, 2),
        (0xC6, 4),
        (0xD9, 1),
        (0xDA, 2),
        (0xDB, 4),
        (0xDC, 2),
        (0xDD, 4),
        (0xDE, 2),
        (0xDF, 4),
    ):
        yield f"lead {lead:#x} with its longest length", unknown(bytes([lead]) + b"\xff" * width)
        yield f"lead {lead:#x} as the whole body", bytes([lead]) + b"\xff" * width
        yield f"lead {lead:#x} cut in its length", unknown(bytes([lead]) + b"\xff" * (width - 1))


def _wide() -> Iterator[tuple[str, bytes]]:
    for name, leaf in (("maps", b"\x80"), ("lists", b"\x90"), ("nils", b"\xc0"), ("floats", b"\xca\x3f\x80\x00\x00")):
        yield f"a million {name}", unknown(b"\xdd" + struct.pack(">I", MILLION) + leaf * MILLION)
        yield f"262,144 {name} as a tree", unknown(tree(leaf, 3))
        yield f"4,096 {name} as a tree", unknown(tree(leaf, 2))
    yield "a map of 65", unknown(b"\xde\x00\x41" + b"".join(b"\xa2" + f"{i:02}".encode() + b"\xc0" for i in range(65)))
    yield "a million keys", unknown(b"\xdf" + struct.pack(">I", MILLION) + b"\x01\xc0" * MILLION)
    yield "wide characters, a tree of them", unknown(tree(b"\xa2\xce\xb1", 3))
    yield "65 capabilities", message("hello", capabilities=["predict"] * 65)
    yield "no versions", message("hello", versions=[])
    yield "65 metrics", message("upload-closing", metrics={f"m{i}": 1.0 for i in range(65)})


def _texts() -> Iterator[tuple[str, bytes]]:
    yield "a text of 4,097", unknown(msgpack.packb("x" * 4097))
    yield "a text of a million", unknown(msgpack.packb("x" * MILLION))
    yield "texts of 256 KiB, wide in memory", unknown(b"\xdc\x00\x40" + msgpack.packb("\U0001f600" + "x" * 4092) * 64)
    yield "a reason of 257", message("receipt", reason="x" * 257)
    yield "a reason with an escape sequence", message("receipt", reason="\x1b[2J")
    yield "a reason with a line break", message("receipt", reason="fine\nERROR forged")
    for raw in (b"\xff", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80"):
        yield f"text {raw.hex()} that is not UTF-8", message("receipt", reason=Raw(bytes([0xA0 + len(raw)]) + raw))


def _keys() -> Iterator[tuple[str, bytes]]:
    for name, key in (
        ("nil", b"\xc0"),
        ("true", b"\xc3"),
        ("integer", b"\x01"),
        ("NaN", b"\xcb\x7f\xf8" + bytes(6)),
        ("list", b"\x90"),
        ("map", b"\x80"),
    ):
        yield f"a key that is {name}", unknown(b"\x81" + key + b"\xc0")
    yield "a key twice", unknown(b"\x82\xa1k\xc0\xa1k\xc0")
    yield "a field twice", body_of(FRAMES["bye"]).replace(b"\xa6reason", b"\xa6device")
    yield "a metric under raw bytes", message("upload-closing", metrics={b"accuracy": 1.0})
    yield "a role with a path in it", message("upload-closing", knowledge={"../../etc": ["logits", {}]})


def _extensions() -> Iterator[tuple[str, bytes]]:
    for i, size in enumerate((1, 2, 4, 8, 16)):
        yield f"extension of {size}", unknown(bytes([0xD4 + i, 5]) + bytes(size))
    yield "timestamp 32", unknown(b"\xd6\xff" + bytes(4))
    yield "timestamp 64 with too many nanoseconds", unknown(b"\xd7\xff" + b"\xff" * 8)
    yield "timestamp 96 that overflows", unknown(b"\xc7\x0c\xff" + b"\xff" * 12)
    yield "extension of 4 GiB", unknown(b"\xc9\xff\xff\xff\xff\x05")
    yield "the unused lead 0xc1", unknown(b"\xc1")


def _tensors() -> Iterator[tuple[str, bytes]]:
    raw = bytes(48)
    shapes: tuple[Any, ...] = (
        [0, 10**15],
        [10**15, 0],
        [2**63 - 1, 2],
        [2**32, 2**32],
        [-1, -12],
        [-1, 12],
        [True, 12],
        [12],
        [1, 1, 12],
        [],
        [12, 1.0],
        ["4", "3"],
        None,
        12,
        {"0": 12},
    )
    for shape in shapes:
        yield f"shape {shape}", tensor("f4", shape, raw)
    yield "shape without bytes", tensor("f4", [0, 0], b"")
    yield "shape of 10^15 over no bytes", tensor("f4", [0, 10**15], b"")
    for dtype in ("f8", "O", "object", ">f4", "<f4", "f4,f4", "V4", "M8[s]", "c8", "", None, 4, ["f4"]):
        yield f"dtype {dtype}", tensor(dtype, [4, 3], raw)
    yield "a text for bytes", tensor("f4", [4, 3], "x" * 48)
    yield "one byte too few", tensor("f4", [4, 3], raw[1:])
    yield "4 MiB and a NaN at the end", tensor("f4", [1024, 1024], bytes(4 * MEBIBYTE - 4) + b"\x00\x00\xc0\x7f")
    yield "4 MiB of f2 and an infinity", tensor("f2", [2048, 1024], bytes(4 * MEBIBYTE - 2) + b"\x00\x7c")
    yield "4 MiB of codes and a -128", tensor("i1", [4, MEBIBYTE], bytes(4 * MEBIBYTE - 1) + b"\x80", bytes(16))
    yield "4 MiB of codes and a scale too many", tensor("i1", [4, MEBIBYTE], bytes(4 * MEBIBYTE), bytes(20))
    yield "2 MiB of scales and a NaN", tensor("i1", [2**19, 1], bytes(2**19), bytes(2**21 - 4) + b"\x00\x00\xc0\x7f")
    yield "4 MiB of a wrong shape", tensor("f4", [1024, 1023], bytes(4 * MEBIBYTE))


def _numbers() -> Iterator[tuple[str, bytes]]:
    for name, raw in (
        ("2^64-1", b"\xcf" + b"\xff" * 8),
        ("2^32", b"\xcf\x00\x00\x00\x01" + bytes(4)),
        ("-2^63", b"\xd3\x80" + bytes(7)),
        ("-1", b"\xff"),
        ("true", b"\xc3"),
        ("1.0", b"\xcb\x3f\xf0" + bytes(6)),
        ("nil", b"\xc0"),
    ):
        yield f"{name} samples", message("upload-closing", samples=Raw(raw))
    for name, raw in (
        ("NaN", b"\xcb\x7f\xf8" + bytes(6)),
        ("Inf", b"\xca\x7f\x80\x00\x00"),
        ("-Inf", b"\xca\xff\x80\x00\x00"),
        ("true", b"\xc3"),
        ("a text", b"\xa11"),
    ):
        yield f"{name} as a metric", message("upload-closing", metrics={"accuracy": Raw(raw)})
    yield "an infinite deadline", message("assign", deadline_s=Raw(b"\xcb\x7f\xf0" + bytes(6)))
    yield (
        "no contributors",
        message(
            "upload-logits",
            knowledge={
                "logits": ["logits", {"values": ["f4", [1, 1], bytes(4)], "batch": bytes(8), "contributors": 0}]
            },
        ),
    )
    yield (
        "2^31 contributors",
        message(
            "upload-logits",
            knowledge={
                "logits": ["logits", {"values": ["f4", [1, 1], bytes(4)], "batch": bytes(8), "contributors": 2**31}]
            },
        ),
    )
    yield "class counts of 4 MiB", message("hello", class_counts=bytes(4 * MEBIBYTE))
    yield "class counts of 5 bytes", message("hello", class_counts=bytes(5))


def _ends() -> Iterator[tuple[str, bytes]]:
    whole = body_of(FRAMES["upload-logits"])
    yield "nothing", b""
    yield "nil", b"\xc0"
    yield "an empty list", b"\x90"
    yield "a tag alone", b"\x91\xa3bye"
    yield "one byte too many", whole + b"\xc0"
    yield "twice the message", whole + whole
    yield "one byte too few", whole[:-1]
    yield "a megabyte of zeros", bytes(MEBIBYTE)
    yield "a megabyte of 0xff", b"\xff" * MEBIBYTE
    yield "a megabyte of 0xc1", b"\xc1" * MEBIBYTE
    yield "a megabyte behind the message", whole + bytes(MEBIBYTE)
    yield (
        "8 MiB of bytes that nothing asks for, in a map of lists",
        unknown(b"\x81\xa1k\x91\xc6\x00\x80\x00\x00" + bytes(8 * MEBIBYTE) + b"\x01"),
    )


_GROUPS: tuple[Callable[[], Iterator[tuple[str, bytes]]], ...] = (
    _nested,
    _forged,
    _wide,
    _texts,
    _keys,
    _extensions,
    _tensors,
    _numbers,
    _ends,
)
BOMBS = {name: body for group in _GROUPS for name, body in group()}

HEAVY = {
    "as many maps as may be": unknown(b"\xdc\x00\x3c" + (b"\xdc\x00\x40" + b"\x80" * 64) * 60),
    "as many lists as may be": unknown(b"\xdc\x00\x3c" + (b"\xdc\x00\x40" + b"\x90" * 64) * 60),
    "wide characters, as many as may be": unknown(b"\xdc\x00\x3c" + (b"\xdc\x00\x40" + b"\xa2\xce\xb1" * 64) * 60),
    "texts wide in memory, as long as they may be": unknown(b"\xdc\x00\x1f" + pack("\U0001f600" + "x" * 4092) * 31),
    "the sample counts of 32,768 classes": message("hello", class_counts=b"\x00\x00\x01\x00" * 32768),
    "4 MiB of logits": tensor("f4", [1024, 1024], bytes(4 * MEBIBYTE)),
    "8 MiB of bytes in an unknown field": unknown(b"\xc6\x00\x80\x00\x00" + bytes(8 * MEBIBYTE)),
}
"""Legal, and as costly as a legal message can be."""


def refuse(frame: bytes) -> str | None:
    """The word under which a frame is refused; None: it was accepted."""
    try:
        decode(frame, WIDE)
    except RemoteProtocolError as error:
        return error.kind
    return None


def cpu_s(frame: bytes) -> float:
    """Processor time of one refusal, the best of three: what others run on this machine does not count."""
    times = []
    for _ in range(3):
        start = time.thread_time()
        refuse(frame)
        times.append(time.thread_time() - start)
    return min(times)


def peak_bytes(frame: bytes) -> int:
    """The most memory that one decoding holds at a time, beyond the frame."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        refuse(frame)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def overspent(frame: bytes) -> list[str]:
    """By how much decoding a frame breaks its budget of time or memory; empty: not at all."""
    refuse(frame)  # once without measuring: the first use of a class builds its codec
    found = []
    if (spent := cpu_s(frame)) > 0.050 + 0.020 * len(frame) / MEBIBYTE:
        found.append(f"{spent * 1e3:.0f} ms for {len(frame)} bytes")
    if (peak := peak_bytes(frame)) > 3 * len(frame) + MEBIBYTE:
        found.append(f"{peak} bytes of memory for {len(frame)}")
    return found


def faults() -> list[str]:
    """All that is wrong with how bombs and heavy loads are met."""
    frames = {name: seal(body) for name, body in (BOMBS | HEAVY).items()}
    costly = [f"{name}: {fault}" for name, frame in frames.items() for fault in overspent(frame)]
    wrong = [f"{name}: {refuse(frame)}" for name, frame in frames.items() if (refuse(frame) is None) != (name in HEAVY)]
    return costly + wrong
