"""No frame costs more than 50 ms + 20 ms per MiB of processor time, or 3 times its size + 1 MiB of memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from protocol_bombs import BOMBS, HEAVY, overspent, refuse
from protocol_samples import WIDE, seal

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.protocol.frames.codec import CONTROL_LIMITS, decode


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_and_costs_little(name):
    frame = seal(BOMBS[name])
    assert refuse(frame) in ("limit", "msgpack", "schema", "tensor", "nonfinite")
    assert overspent(frame) == []


@pytest.mark.parametrize("name", [name for name in BOMBS if name.startswith("shape")])
def test_an_impossible_shape_is_seen_before_numpy_sees_it(name):
    assert refuse(seal(BOMBS[name])) == "tensor"


@pytest.mark.parametrize("name", [name for name in BOMBS if name.startswith(("extension", "timestamp"))])
def test_an_extension_is_seen_before_msgpack_sees_it(name):
    with pytest.raises(RemoteProtocolError, match="an extension type"):
        decode(seal(BOMBS[name]), WIDE)


@pytest.mark.parametrize("name", HEAVY)
def test_the_heaviest_legal_load_stays_within_the_budget(name):
    frame = seal(HEAVY[name])
    assert refuse(frame) is None
    assert overspent(frame) == []


def test_the_pure_python_msgpack_meets_them_just_the_same():
    script = "import msgpack, protocol_bombs as b; assert msgpack.unpackb.__module__ == 'msgpack.fallback'; print(b.faults())"
    environment = {**os.environ, "MSGPACK_PUREPYTHON": "1", "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_a_decoder_deep_in_the_stack_still_answers():
    """Where the interpreter's own stack is nearly used up, a bomb is refused like anywhere else."""
    frame = seal(BOMBS["1025 lists deep"])

    def at_depth(left: int) -> str | None:
        return at_depth(left - 1) if left else refuse(frame)

    assert at_depth(sys.getrecursionlimit() - 300) == "limit"


def test_the_heaviest_hello_is_a_control_message():
    assert len(decode(seal(HEAVY["the sample counts of 32,768 classes"]), CONTROL_LIMITS).message.class_counts) == 32768
