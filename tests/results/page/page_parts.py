"""States of the page for tests."""

from __future__ import annotations

from coordinator.results.page.values import PageState, device_row


def a_state(devices=("device-0", "device-1"), word="training", **head) -> PageState:
    """A state with these devices."""
    rows = {name: device_row(id=name, state=word, why="", round=1, bytes_up=10, bytes_down=20) for name in devices}
    known = {"state": "running", "text": "fedavg, round 2 of 5", "federation": "lab", "method": "fedavg", "seed": 0}
    known |= {"part": "", "where": "runs/lab", "clock": "none", "now_s": 0.0, "round": 1, "rounds": 5}
    known |= {"here": len(rows), "expected": len(rows), "accuracy": 0.5, "bytes_up": 20, "bytes_down": 40}
    ledger = {"bytes_up": 20, "bytes_down": 40, "updates": {"accepted": 2}, "refused_frames": []}
    ledger |= {"refused_devices": [], "warnings": []}
    return PageState(head=known | head, devices=rows, ledger=ledger)
