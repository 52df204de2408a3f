"""An interrupt in the midst of a simulation."""

from __future__ import annotations

import pytest

from edge_sim.clock.clock import VirtualClock


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
