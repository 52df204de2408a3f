"""The messages of operators and labs: commands and questions to a coordinator, its answers, logs, runs on boards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

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
from edge_sdk.protocol.model_offers import MAX_BLOCKS_ASKED, OfferedFile, Sha256

MAX_SETTINGS_BYTES = 60 * 1024
"""The maximum size of a run's settings for a board of a lab."""
MAX_LOG_LINES = 64
"""The maximum number of log lines in one answer: 64 KiB if each has 256 characters of four bytes."""
DEVICES_PER_PAGE, MAX_FIGURES = 16, 16
"""The maximum number of devices in one answer to an operator, and of figures per device: 120 KiB at full length."""


@wire("log-request")
@dataclass(frozen=True, slots=True, kw_only=True)
class LogRequest:
    """The coordinator requests a device's last log lines for an operator."""

    federation: Id
    device: Id
    request: Digest
    """The id of the operator's request."""
    lines: Annotated[int, Integer(1, MAX_LOG_LINES)] = MAX_LOG_LINES
    """The maximum number of lines to send."""


@wire("log-lines")
@dataclass(frozen=True, slots=True, kw_only=True)
class LogLines:
    """The last lines that a device has printed."""

    federation: Id
    device: Id
    request: Digest
    """The id in the LogRequest."""
    lines: Annotated[tuple[Line, ...], Items(0, MAX_LOG_LINES)] = ()
    """The lines, oldest first."""


@wire("control")
@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """An operator's command to a running coordinator.  Sent again, with the same `request`, until it is answered."""

    federation: Id
    operation: Annotated[str, Text(16, "drain|pause|resume|revoke|forget|rollout|rollback")]
    """`drain` stops the run, or takes a device out, at the end of the round; `resume` reverts that.  `rollout` offers a
    model file to devices, and `rollback` takes it back."""
    device: Id | None = None
    """The device concerned, or None for the whole run."""
    operator: Id | None = field(default=None, metadata=LATER)
    """The name under which the operator's program listens for the answer; without it the command is ignored."""
    request: Digest | None = field(default=None, metadata=LATER)
    """The id of this command: a repeated one gets the same answer, and is not carried out again."""
    run: Digest | None = field(default=None, metadata=LATER)
    """The id of the run that it is for, as in CoordinatorStatus; required together with signatures."""
    file: OfferedFile | None = field(default=None, metadata=LATER)
    """For `rollout`: the model file, whose missing blocks the answer names."""
    share: Annotated[float, Real(0.0, 1.0)] = field(default=0.0, metadata=LATER)
    """For `rollout`: the share of the devices that are offered the file."""
    board: Line = field(default="", metadata=LATER)
    """For `rollout`: only devices with this board, or empty for all."""
    asks_cost: bool = field(default=False, metadata=LATER)
    """For `rollout`: only asks what it would cost; nothing begins."""


@wire("inquiry")
@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """An operator's question to a running coordinator, which changes nothing.  Sent again until it is answered."""

    federation: Id
    about: Annotated[str, Text(16, "devices|logs|rollout")]
    operator: Id
    """The name under which the operator's program listens for the answer."""
    request: Digest
    """The id of this question."""
    device: Id | None = None
    """For `logs` the device; for `devices` the last one of the previous page."""
    lines: Annotated[int, Integer(1, MAX_LOG_LINES)] = MAX_LOG_LINES
    """For `logs`: the maximum number of lines to send."""


@wire("device-entry")
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEntry:
    """One device, as the coordinator sees it."""

    device: Id
    state: Word
    """Its activity: training, waiting, fetching, withheld, declined, absent, expected, left, refused, paused, revoked,
    draining or drained; a later coordinator may have other words."""
    why: Annotated[str, Text(512)] = ""
    """Why it is not training."""
    here_s: Seconds | None = None
    """Seconds since it joined, without a break, or None while it is absent."""
    seen_s: Seconds | None = None
    """Seconds since its last frame, or None if none came since the coordinator was started."""
    number: Count | None = None
    board: Line = ""
    model: Line = ""
    runtime: Line = ""
    sdk: Line = ""
    round: Count = 0
    """The last round in which its upload counted, from 1, or 0 if none since the coordinator was started."""
    figures: Annotated[Mapping[Word, float], Items(0, MAX_FIGURES)] = field(default_factory=FrozenDict)
    """The device's last reported figures by name, such as `accuracy` (a share) or `temperature_c`."""


@wire("control-answer")
@dataclass(frozen=True, slots=True, kw_only=True)
class ControlAnswer:
    """The coordinator's answer to an operator's command."""

    federation: Id
    operator: Id
    request: Digest
    """The id in the Control or the Inquiry."""
    done: bool
    """Whether the command was carried out, now or earlier; otherwise `text` holds the reason."""
    text: Annotated[str, Text(1024)] = ""
    run: Annotated[str, Text(256)] = ""
    """For `devices`: the state of the run."""
    devices: Annotated[tuple[DeviceEntry, ...], Items(0, DEVICES_PER_PAGE)] = ()
    """For `devices`: one page, sorted by id."""
    more: bool = False
    """Whether there are further pages."""
    lines: Annotated[tuple[Line, ...], Items(0, MAX_LOG_LINES)] = ()
    """For `logs`: the lines, oldest first.  For `rollout`: its state."""
    wanted: Annotated[tuple[int, ...], Packed(MAX_BLOCKS_ASKED)] = field(default=(), metadata=LATER)
    """For a Control `rollout`: the indices of blocks to send before it begins."""


@wire("lab-run")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabRun:
    """A lab's desk asks one board to take part in a run.  Sent again until the board confirms."""

    federation: Id
    """The name of the lab."""
    device: Id
    run: Digest
    """The id of this run; the board starts fresh with each new one."""
    settings: Annotated[bytes, Blob(2, MAX_SETTINGS_BYTES)]
    """The tables of the run's TOML as JSON; from them and its number the board builds its device.  No code travels."""


@wire("lab-hello")
@dataclass(frozen=True, slots=True, kw_only=True)
class LabHello:
    """A board of a lab announces itself and its state; sent again every few seconds."""

    federation: Id
    """The name of the lab."""
    device: Id
    number: Annotated[int, Integer(0, 10**6)]
    """Its device number in each run."""
    state: Annotated[str, Text(16, "idle|building|running|done|refused")]
    run: Digest | None = None
    """Its current or last run, if any."""
    why: Annotated[str, Text(512)] = ""
    """Why it refused the run, or how its run ended."""
    host: Line = ""
    sdk: Line = ""
    data_sha256: Sha256 | None = None
    """The hash of the board's data set for this run."""
    figures: Annotated[Mapping[Word, float], Items(0, MAX_FIGURES)] = field(default_factory=FrozenDict)
    """The run's cost on the board so far: `steps`, `flops`."""
