"""What a device stores for a restart, and what it makes of it: starts of rounds, uploads that lack a receipt."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import fleets
import pytest

from edge_sdk.device.store import FinishedExchange, MemoryStore, RoundStart
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.messages import Assign, Upload

SLOW_S = 10.0
"""An exchange takes this long on every device."""


@dataclass
class Recorder(MemoryStore):
    """Notes each exchange that is saved, and whether the start of a round is saved with it."""

    saved: list[tuple[int, int, bool]] = field(default_factory=list)

    def save(self, done: FinishedExchange, start: RoundStart | None = None) -> None:
        self.saved.append((done.round, done.exchange, start is not None))
        super().save(done, start)


@pytest.mark.torch
def test_a_round_s_start_is_saved_once_a_round(pictures: Path) -> None:
    """FedAL with two iterations: three exchanges a round, then the closing one."""
    stores = {f"device-{number:02}": Recorder() for number in range(6)}
    run = fleets.Run(fleets.built(pictures, "fedal", rounds=2), stores=stores).finished()
    exchanges = run.server.rounds.policy.exchanges
    assert exchanges == 3
    first = [(0, exchange, False) for exchange in range(exchanges)]  # its start was saved with the Welcome
    second = [(1, exchange, exchange == 0) for exchange in range(exchanges)]
    for store in stores.values():
        assert store.saved == [*first, *second, (2, 0, True)]


@pytest.mark.parametrize(("cut_s", "again"), [(12.0, 0), (10.013, 1)], ids=["with its receipt", "without"])
def test_after_a_restart_only_an_upload_without_a_receipt_is_pending(pictures: Path, cut_s: float, again: int) -> None:
    """The power fails after or before the receipt, while the round waits for the other devices."""
    run = fleets.Run(fleets.built(pictures))
    for number, device in enumerate(run.begun):
        run.slow_down(device, SLOW_S if number == 0 else 3 * SLOW_S)
    run.power_cut("device-00", at_s=cut_s, for_s=1.0)
    sent = run.tap()
    run.finished()
    assert run.devices[0].agent.store.boot_epoch == 2
    uploads = [each for each in sent if isinstance(each, Upload) and (each.device, each.round) == ("device-00", 0)]
    assert len(uploads) == 1 + again


@pytest.mark.parametrize(
    "wrong",
    [
        {"round": 1, "closing": True},
        {"round": 0, "closing": True},
        {"round": 3, "closing": False},
        {"round": 3, "exchange": 1, "closing": True},
    ],
    ids=str,
)
def test_an_assign_whose_closing_flag_contradicts_its_place_changes_nothing(
    pictures: Path, wrong: dict[str, int]
) -> None:
    """Else a device would take a round for the end, or the end for a round, and never do the real one."""
    clean, run = (fleets.Run(fleets.built(pictures)) for _ in range(2))
    for each in (clean, run):
        each.slow_down("device-00", SLOW_S)
    assign = Assign(**{"federation": "tiny", "device": "device-00", "exchange": 0, **wrong})  # type: ignore[arg-type]
    rogue = run.hub.link("rogue")
    rogue.connect([])
    run.clock.at(
        5.0, lambda: rogue.send(topics.down("tiny", "device-00", "task"), codec.encode(assign, codec.Stamp(1, 10_000)))
    )
    clean.finished()
    run.finished()
    assert run.devices[0].agent.refused_frames == {"knowledge": 1}
    assert run.model_bytes == clean.model_bytes
    assert run.coordinator_bytes == clean.coordinator_bytes
