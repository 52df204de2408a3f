"""Brokers and links for the transport tests."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator

import pytest
from certificates import Authority

from coordinator.broker.embedded import EmbeddedBroker


@pytest.fixture(params=["amqtt", "mosquitto"])
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    """A fresh broker, of each kind that is here."""
    if request.param == "mosquitto" and shutil.which("mosquitto") is None:
        pytest.skip("mosquitto is not on PATH")
    with EmbeddedBroker(request.param) as running:
        yield running


@pytest.fixture
def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that everybody trusts."""
    return Authority(tmp_path_factory.mktemp("tls") / "lab")


@pytest.fixture(scope="session")
def rogue(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """One that nobody knows."""
    return Authority(tmp_path_factory.mktemp("tls") / "rogue")
