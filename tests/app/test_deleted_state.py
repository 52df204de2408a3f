"""State that is deleted while a device runs, and public sets of devices that keep none."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from federated_apps import CLASSES, Slow, agent_of, federation, samples_of, wait_for

from coordinator.rounds import RoundPhase
from edge_sdk.device.store import FinishedExchange, RoundStart, SqliteStore
from edge_sdk.errors import StoreError
from edge_sdk.transport.memory.hub import Hub

DONE = FinishedExchange(0, 0, b"assign", b"upload")
START = RoundStart(0, b"model", b"method")


def filled(path: Path) -> SqliteStore:
    store = SqliteStore(path)
    store.enter_run(b"welcome", START)
    store.save(DONE)
    return store


def test_a_deleted_file_is_written_again(tmp_path: Path) -> None:
    store = filled(tmp_path / "state" / "app.db")
    assert store.check() == ""
    shutil.rmtree(tmp_path / "state")
    assert "deleted" in store.check()
    assert store.check() == ""
    later = FinishedExchange(0, 1, b"assign", b"upload")
    store.save(later)
    secret, epoch = store.secret, store.boot_epoch
    store.close()
    again = SqliteStore(tmp_path / "state" / "app.db")
    assert (again.welcome(), again.round_start(), again.finished()) == (b"welcome", START, (DONE, later))
    assert (again.secret, again.boot_epoch) == (secret, epoch + 1)
    again.close()


def test_what_was_deleted_is_kept_until_it_can_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    store = filled(folder / "app.db")
    shutil.rmtree(folder)
    folder.touch()  # no folder can be made there
    for _ in range(2):
        with pytest.raises(StoreError):
            store.check()
    folder.unlink()
    assert "deleted" in store.check()
    assert store.finished() == (DONE,)
    store.close()


def test_another_file_in_its_place_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    store = filled(path)
    path.unlink()
    path.write_bytes(b"")
    with pytest.raises(StoreError, match=r"app\.db: another file"):
        store.check()
    assert path.read_bytes() == b""


def test_an_app_hears_of_it_and_nothing_is_lost(serve, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hub = Hub()
    server = federation(hub, devices=1, rounds=4, local_steps=3)
    serve(server)
    agent = agent_of(hub, "left", model=Slow(CLASSES, (1, 1, 8), seed=1), state=tmp_path / "state")
    news: list[str] = []
    agent.on_link(news.append)
    with caplog.at_level(logging.WARNING):
        agent.start()
        wait_for(lambda: len(server.record.rounds) >= 1 and agent.participant.work.busy)
        shutil.rmtree(tmp_path / "state")
        wait_for(lambda: len(server.record.rounds) >= 2 and agent.participant.work.busy)
        agent.stop()
    assert sum("deleted" in line for line in news) == 1
    assert sum("deleted" in record.getMessage() for record in caplog.records) == 1
    again = agent_of(hub, "left", state=tmp_path / "state")
    assert again.participant.context.session.exchange_id.round >= 1
    again.start()
    wait_for(lambda: not again.running)
    assert again.error is None
    assert server.rounds.phase is RoundPhase.DONE
    assert server.record.updates["accepted"] == 5
    assert np.isfinite(again.predict(samples_of().x)).all()


def test_a_change_of_the_working_directory_moves_nothing(
    serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hub, here, there = Hub(), tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    monkeypatch.chdir(here)
    server = federation(hub, devices=1, rounds=3)
    agent = agent_of(hub, "left", state="state", public_cache="public")
    monkeypatch.chdir(there)
    serve(server)
    agent.run()
    assert not list(there.iterdir())
    assert not caplog.records
    monkeypatch.chdir(here)
    again = agent_of(hub, "left", state="state")
    assert again.participant.context.session.exchange_id.round == 3
    np.testing.assert_array_equal(again.predict(samples_of().x), agent.predict(samples_of().x))
