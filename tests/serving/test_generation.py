"""A coordinator without an end resumes with other settings: a new generation, with the devices and the history."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.config import Federation, federation, read_settings
from coordinator.ledger import Ledger, Row
from coordinator.record import saved_record
from coordinator.record.observer import RunObserver
from coordinator.rounds import RoundPhase
from coordinator.serving.equipment import Equipment, ready_method
from coordinator.serving.server import Server
from edge_sdk.errors import UsageError
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import codec, storage
from edge_sdk.protocol.messages import Hello
from edge_sdk.transport.memory.hub import Hub
from edge_sim.clock.clock import VirtualClock


class Listener(RunObserver):
    """Notes what a coordinator says."""

    def __init__(self, notes: list[str]) -> None:
        self._notes = notes

    def noted(self, message: str) -> None:
        self._notes.append(message)


def started(
    path: Path, notes: list[str], *, rounds: object = "forever", method: str = "fedproto", rate: float = 0.01
) -> Server:
    tables = {
        "federation": {
            "name": "alive",
            "method": method,
            "rounds": rounds,
            "devices": 2,
            "classes": 3,
            "feature_dim": 4,
            "roster": ["a", "b"],
        },
        "train": {"learning_rate": rate},
    }
    ready = federation(read_settings(tables, Path("f.toml")))
    ledger = Ledger(path / "ledger.db")
    try:
        return made(ready, ledger, notes)
    except BaseException:
        ledger.close()
        raise


def made(ready: Federation, ledger: Ledger, notes: list[str]) -> Server:
    return Server(
        spec=ready.spec,
        policy=ready.policy,
        method=ready_method(ready.spec, Equipment(nets=lambda: (), public=lambda: None)),
        transport=Hub(VirtualClock()).link("coordinator"),
        ledger=ledger,
        roster=ready.roster,
        observer=Listener(notes),
    )


@pytest.fixture
def lived(tmp_path: Path) -> Path:
    """A run folder after four rounds, with an upload of the fifth."""
    server = started(tmp_path, [])
    hello = codec.encode(Hello(federation="alive", device="a", classes=3, feature_dim=4, samples=5))
    server.ledger.enrol("a", 0, hello)
    server.ledger.checkpoint(
        4, b"", {**saved_record.to_json(server.record), "skips": 7, "canary": {"about": "x", "levels": []}}
    )
    server.ledger.commit([Row(ExchangeId(4, 0), "a", b"frame")])
    server.ledger.close()
    return tmp_path


def test_other_settings_begin_a_generation(lived: Path) -> None:
    run = Ledger(lived / "ledger.db")
    before = run.run
    run.close()
    _state_of(lived)
    notes: list[str] = []
    server = started(lived, notes, rate=0.005)
    assert any(
        line.startswith("a new generation: train.learning_rate 0.01 becomes 0.005; the coordinator's state is carried")
        for line in notes
    )
    assert server.ledger.run != before
    assert not server.ledger.has(ExchangeId(4, 0), "a")
    assert (server.rounds.phase, server.rounds.place) == (RoundPhase.GATHERING, ExchangeId(4, 0))
    assert server.record.skips == 7
    assert server.record.canary  # the same model, so the same levels
    assert [*server.numbers] == ["a"]
    server.ledger.close()


def test_another_method_begins_with_a_state_of_its_own(lived: Path) -> None:
    notes: list[str] = []
    server = started(lived, notes, method="fedhkd")
    assert any("method 'fedproto' becomes 'fedhkd'" in line and "starts with a new state" in line for line in notes)
    assert server.method.name == "fedhkd"
    assert server.record.canary == {}
    assert server.record.skips == 7
    server.ledger.close()


def test_the_same_settings_are_no_generation(lived: Path) -> None:
    _state_of(lived)
    notes: list[str] = []
    ledger = Ledger(lived / "ledger.db")
    ledger._db.execute("DELETE FROM uploads")  # that frame is none
    ledger.close()
    started(lived, notes).ledger.close()
    assert not [line for line in notes if "generation" in line]


def test_a_study_is_never_changed(tmp_path: Path) -> None:
    started(tmp_path, [], rounds=5).ledger.close()
    with pytest.raises(UsageError, match="belongs to another configuration"):
        started(tmp_path, [], rounds=6)
    with pytest.raises(UsageError, match="belongs to another configuration"):
        started(tmp_path, [], rounds="forever")


def _state_of(folder: Path) -> None:
    """Put a real state of the method into the checkpoint."""
    fresh = started(folder / "other", [])
    state = storage.serialise(fresh.method_state)
    fresh.ledger.close()
    ledger = Ledger(folder / "ledger.db")
    ledger.checkpoint(4, state, {**ledger.last_checkpoint().record})
    ledger.commit([Row(ExchangeId(4, 0), "a", b"frame")])
    ledger.close()
