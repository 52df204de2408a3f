"""Interrupts: in the midst of a simulation, and of processes."""

from __future__ import annotations

import signal

import pytest

from edge_sim.clock.clock import VirtualClock

CTRL_C = (130, -signal.SIGINT)
"""Exit codes of `python -m edge_sdk.cli` after Ctrl-C; a shell shows 130 for both.

Python ends by the signal itself if it came while a class was made, because dataclasses compile a text for that.
"""


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int, error: type[BaseException]) -> None:
    """Raise in the midst of a run, once."""
    left = [steps]
    step = VirtualClock.step

    def counted(clock: VirtualClock) -> bool:
        left[0] -= 1
        if left[0] == 0:
            raise error
        return step(clock)

    monkeypatch.setattr(VirtualClock, "step", counted)
