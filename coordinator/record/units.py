"""Numbers formatted with readable units, and text from devices made safe to print."""

from __future__ import annotations

from collections.abc import Mapping

from edge_sdk.protocol.messages import FOREVER

_BYTE_STEP = 1000
_PRECISE_BELOW = 99.95
"""Numbers below this have one decimal, others none; 99.95 is the first that would round to 100.0."""


def human_bytes(count: float) -> str:
    """A number of bytes in decimal units: 0 B, 999 B, 1.5 kB, 240 kB, 3.2 GB."""
    if count < _BYTE_STEP:
        return f"{count:.0f} B"
    value = float(count)
    for unit in ("kB", "MB", "GB", "TB"):
        value /= _BYTE_STEP
        if round(value) < _BYTE_STEP:
            return f"{value:.1f} {unit}" if value < _PRECISE_BELOW else f"{value:.0f} {unit}"
    return f"{value:.0f} TB"


def human_flops(count: float) -> str:
    """Floating-point operations: 999 FLOP, 1.5 GFLOP."""
    value = float(count)
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"):
        if round(value) < _BYTE_STEP:
            return f"{value:.1f} {unit}" if value < _PRECISE_BELOW and unit != "FLOP" else f"{value:.0f} {unit}"
        value /= _BYTE_STEP
    return f"{value:.1f} PFLOP"


def human_joules(count: float) -> str:
    """Energy: 12 J, 1.5 kJ, 3.2 MJ."""
    value = float(count)
    for unit in ("J", "kJ", "MJ"):
        if round(value) < _BYTE_STEP:
            return f"{value:.1f} {unit}" if value < _PRECISE_BELOW and unit != "J" else f"{value:.0f} {unit}"
        value /= _BYTE_STEP
    return f"{value:.1f} GJ"


def of_rounds(round_: int, rounds: int) -> str:
    """Which round it is, from 1: `3 of 20`, or `3` where rounds have no end."""
    return str(round_) if rounds == FOREVER else f"{round_} of {rounds}"


def human_seconds(seconds: float) -> str:
    """A duration: 0.42 s, 12.3 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 1:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def duration_unit(most_s: float) -> tuple[str, float]:
    """The largest unit that fits at least twice into `most_s`, and its seconds."""
    larger = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0))
    return next(((unit, unit_s) for unit, unit_s in larger if most_s >= 2 * unit_s), ("s", 1.0))


def percent(fraction: float) -> str:
    """A fraction as a percentage with one decimal: 0.8831 -> 88.3 %."""
    return f"{100 * fraction:.1f} %"


def printable(text: str) -> str:
    """Text from a device, safe to print: control characters, which could steer the terminal, become question marks."""
    return "".join(character if character.isprintable() else "?" for character in text)


def by_reason(counts: Mapping[str, int]) -> str:
    """Counts by the word of a reason, such as `charging 1; temperature 3`."""
    return "; ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
