"""Ctrl-C waits for the end of an event, and not for longer."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fleets
import pytest

from edge_sdk.durable import transaction
from edge_sim.clock.checkpoint import held_back
from edge_sim.runs.runner import run


def test_the_first_waits_and_the_second_does_not() -> None:
    before = signal.getsignal(signal.SIGINT)
    with held_back() as check:
        check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_are_left_alone() -> None:
    seen = []

    def elsewhere() -> None:
        with held_back() as check:
            check()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


def test_in_the_midst_of_a_commit_it_loses_nothing(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes inside a transaction of the ledger; what is kept resumes to the very end of the whole run."""
    tables = fleets.tables(pictures, "fedproto", feature_dim=fleets.WIDTH)
    whole = run(tables)
    left = [6]

    @contextmanager
    def interrupted(*arguments: Any) -> Iterator[None]:
        with transaction(*arguments):
            left[0] -= 1
            if left[0] == 0:
                signal.raise_signal(signal.SIGINT)
            yield

    monkeypatch.setattr("edge_sdk.durable.transaction", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tables, out=tmp_path / "run")
    again = run(tables, out=tmp_path / "run", resume=True)
    assert again.completed
    assert [device.accuracy for device in again.devices] == [device.accuracy for device in whole.devices]
