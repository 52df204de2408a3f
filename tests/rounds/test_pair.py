"""Both machines together: what is sent is what counts, and every run ends, whatever the link and the power do."""

from __future__ import annotations

import pytest
from pair import Pair, Weather, made

from coordinator.rounds import RoundPhase, RoundPolicy
from edge_sdk.device import session
from edge_sdk.protocol.exchange_id import ExchangeId

SUN = Weather()
RAIN = Weather(drop=0.2, duplicate=0.2, delay_s=3.0, cuts=3)
STORM = Weather(drop=0.3, duplicate=0.3, delay_s=8.0, cuts=4, device_crashes=3, coordinator_crashes=3)
PLACES = (ExchangeId(0, 0), ExchangeId(0, 1), ExchangeId(1, 0), ExchangeId(1, 1), ExchangeId(2, 0))


def policy(expected: int = 3, quorum: int = 3, patience: int = 30) -> RoundPolicy:
    return RoundPolicy(
        expected=expected, quorum=quorum, rounds=2, exchanges=2, deadline_s=30.0, retry_s=5.0, patience=patience
    )


def ran(weather: Weather, seed: int, rules: RoundPolicy) -> Pair:
    pair = Pair(rules, weather, seed)
    pair.run()
    return pair


def everything(place: ExchangeId, names: str = "abc") -> list[bytes]:
    return [made(name, (place.round, place.exchange)) for name in names]


def test_over_a_good_link_each_message_goes_once():
    pair = ran(SUN, 0, policy())
    assert pair.coordinator.model.state.phase is RoundPhase.DONE
    assert {place: sorted(frames) for place, frames in pair.coordinator.folded.items()} == {
        place: everything(place) for place in PLACES
    }
    assert all(device.state.phase is session.SessionPhase.DONE for device in pair.devices.values())
    assert all(device.begun == len(PLACES) for device in pair.devices.values())
    assert all(device.receipts == set(device.outbox) for device in pair.devices.values())


@pytest.mark.parametrize("weather", [RAIN, STORM], ids=["rain", "storm"])
def test_when_nobody_may_be_left_out_nobody_is(weather):
    """With a quorum of all, whatever is lost, doubled, reordered or killed: the sums are those of a good link."""
    for seed in range(100):
        pair = ran(weather, seed, policy())
        assert pair.coordinator.model.state.phase is RoundPhase.DONE, seed
        for place in PLACES:
            assert "".join(pair.coordinator.model.reduced.get(place, "abc")) == "abc", (seed, place)
            counted = pair.coordinator.folded.get(place, [])  # a restart finds others in the ledger
            assert len(counted) == len(set(counted)), (seed, place)
            assert set(counted) <= set(everything(place)), (seed, place)
        assert all(device.state.reason == "" for device in pair.devices.values()), seed


@pytest.mark.parametrize("weather", [RAIN, STORM], ids=["rain", "storm"])
def test_when_some_may_be_left_out_the_run_ends_and_counts_only_what_was_sent(weather):
    ends = set()
    for seed in range(100):
        pair = ran(weather, seed, policy(expected=4, quorum=2, patience=1))
        ends.add(pair.coordinator.model.state.phase)
        for place, frames in pair.coordinator.folded.items():
            assert set(frames) <= set(everything(place, "abcd")), (seed, place)
        for place, contributors in pair.coordinator.model.reduced.items():
            assert len(contributors) >= 2, (seed, place)
        for device in pair.devices.values():
            assert device.outbox == {place: made(device.name, place) for place in device.outbox}, seed
    assert RoundPhase.DONE in ends
