"""An agent in Home Assistant: discovery messages in the published form, its state, and the switch that pauses it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

import pytest
from federated_apps import agent_of, federation, wait_for

from edge_sdk import home_assistant
from edge_sdk.errors import UsageError
from edge_sdk.home_assistant import HomeAssistant
from edge_sdk.transport.base import Incoming
from edge_sdk.transport.memory.hub import Hub

TOPIC = re.compile(r"homeassistant/(sensor|switch)/([a-zA-Z0-9_-]+)/([a-zA-Z0-9_-]+)/config")
"""<discovery_prefix>/<component>/[<node_id>/]<object_id>/config, https://www.home-assistant.io/integrations/mqtt/"""
OF_BOTH = {"name", "unique_id", "state_topic", "value_template", "availability_topic", "device", "origin"}
KNOWN = {
    "sensor": {*OF_BOTH, "json_attributes_topic"},
    "switch": {*OF_BOTH, "command_topic", "payload_on", "payload_off"},
}
"""Keys of https://www.home-assistant.io/integrations/sensor.mqtt/ and switch.mqtt/ that are used here."""


class House:
    """Home Assistant's side of the broker."""

    def __init__(self, hub: Hub) -> None:
        self._link = hub.link("house")
        self._link.connect(("homeassistant/#", "edge-sdk/#"))
        self.newest: dict[str, bytes] = {}
        self.count = 0

    def look(self) -> dict[str, bytes]:
        while (event := self._link.poll(0.0)) is not None:
            if isinstance(event, Incoming):
                self.count += 1
                self.newest[event.topic] = event.frame
        return self.newest

    def state(self) -> dict:
        return json.loads(self.look().get("edge-sdk/app/one/state", b"{}"))

    def say(self, topic: str, content: bytes) -> None:
        self._link.send(topic, content)


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    monkeypatch.setattr(home_assistant, "LOOK_EVERY_S", 0.02)


def test_it_appears_with_its_state_and_can_be_paused(serve: Callable) -> None:
    hub, broker, over = Hub(), Hub(), list[bool]()
    server = federation(hub, devices=1, rounds=100_000)
    serve(server, lambda: "the test is over" if over else "")
    house = House(broker)
    agent = agent_of(hub, "one")
    agent.start()
    with HomeAssistant(agent, "", transport=broker.link("one-ha")):
        wait_for(lambda: house.state().get("round", 0) >= 2)
        configs = {topic: json.loads(content) for topic, content in house.look().items() if topic.endswith("/config")}
        assert len(configs) == 3
        for topic, config in configs.items():
            found = TOPIC.fullmatch(topic)
            assert found is not None
            assert found[2] == "app-one"
            assert OF_BOTH <= config.keys() <= KNOWN[found[1]]
            assert config["device"]["identifiers"] == ["edge-sdk-app-one"]
        assert len({config["unique_id"] for config in configs.values()}) == 3
        assert house.newest["edge-sdk/app/one/available"] == b"online"
        assert house.state()["training"] == "ON"
        switch = configs["homeassistant/switch/app-one/training/config"]
        house.say(switch["command_topic"], b"rubbish")
        house.say(switch["command_topic"], switch["payload_off"].encode())
        wait_for(lambda: house.state()["training"] == "OFF")
        assert agent.paused
        wait_for(lambda: "paused by its owner" in house.state()["why"])
        seen = house.count
        time.sleep(0.2)
        house.look()
        assert house.count == seen  # nothing changes, so nothing is sent
        house.say("homeassistant/status", b"online")  # it has started again
        wait_for(lambda: house.look() is not None and house.count >= seen + 5)
        house.say(switch["command_topic"], switch["payload_on"].encode())
        wait_for(lambda: house.state()["training"] == "ON" and not agent.paused)
    assert house.look()["edge-sdk/app/one/available"] == b"offline"
    agent.stop()
    over.append(True)


def test_a_prefix_that_is_no_topic_is_refused() -> None:
    agent = agent_of(Hub(), "one")
    for prefix in ("", "a/#", "home assistant", "/a"):
        with pytest.raises(UsageError, match="prefix"):
            HomeAssistant(agent, "mqtt://localhost", prefix=prefix)
