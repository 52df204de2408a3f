"""A coordinator that dies between the last exchange of a round and the checkpoint goes on to the same bits."""

from __future__ import annotations

import pytest
from fleets import config

from coordinator.ledger import Ledger
from coordinator.rounds import RoundPhase
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.frames import storage
from edge_sim.clock.virtual_fleet import VirtualFleet
from edge_sim.fleet import fleet as fleets


class PowerCut(BaseException):
    """Not to be caught by anything."""


class Dies:
    """A method whose power fails while it finishes the last exchange of round 1."""

    def __init__(self, method, exchanges: int) -> None:
        self._method, self._last = method, exchanges - 1

    def __getattr__(self, name: str):
        return getattr(self._method, name)

    def finish(self, spec, state, at, aggregate):
        if (at.round, at.exchange) == (1, self._last):
            raise PowerCut
        return self._method.finish(spec, state, at, aggregate)


@pytest.mark.parametrize("method", ["fedmd", pytest.param("fedal", marks=pytest.mark.torch)])
def test_the_round_ends_after_the_restart(pictures, tmp_path, monkeypatch, method):
    setup = config(pictures, method)
    whole = VirtualFleet(fleets.build_fleet(setup), ledger=Ledger(None))
    whole.run()

    first = VirtualFleet(fleets.build_fleet(setup), ledger=Ledger(None))
    ledger, exchanges = first.server.ledger, first.server.rounds.policy.exchanges
    close = ledger.close_exchange  # as if somebody had been missing: the record is durable, the outcome is not
    monkeypatch.setattr(ledger, "close_exchange", lambda place, by, **_: close(place, by, now=True))
    first.server.reduction.method = Dies(first.server.method, exchanges)
    with pytest.raises(PowerCut):
        first.run()
    ledger.copy_to(tmp_path / "ledger.db")

    stores = {each.device.kit.id: each.agent.store for each in first.devices}
    second = VirtualFleet(fleets.build_fleet(setup), ledger=Ledger(None, tmp_path / "ledger.db"), stores=stores)
    assert second.server.rounds.place == ExchangeId(2, 0)
    second.run()
    assert second.server.rounds.phase is RoundPhase.DONE
    assert storage.serialise(second.server.method_state) == storage.serialise(whole.server.method_state)
    assert len(second.server.record.rounds) == len(whole.server.record.rounds) == 3
    for one, other in zip(second.devices, whole.devices, strict=True):
        assert (one.agent.bench.model.weights() == other.agent.bench.model.weights()).all()
