"""Shows an agent in Home Assistant, and lets it be paused there, by MQTT discovery.

Each entity has a retained message at `homeassistant/COMPONENT/NODE/OBJECT/config`, as Home Assistant's page on MQTT
discovery describes.  The device itself publishes nothing else there, and its federation's broker may be another one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

from edge_sdk.agent.agent import Agent
from edge_sdk.errors import UsageError
from edge_sdk.protocol.topics import is_id
from edge_sdk.transport.base import Connected, Incoming, Transport, Will
from edge_sdk.transport.mqtt.tls import NO_FILES, TlsFiles
from edge_sdk.version import __version__

PREFIX = "homeassistant"
"""Home Assistant's default prefix of discovery."""
LOOK_EVERY_S = 1.0
"""Seconds between two looks at the agent; a state that is unchanged is not sent again."""
ON, OFF = "ON", "OFF"
ONLINE, OFFLINE = b"online", b"offline"


class HomeAssistant:
    """Shows one agent: its state with the reason, its round, and a switch that pauses training.

    Use it as a context around the agent's life, or call `start` and `stop`.
    """

    def __init__(
        self,
        agent: Agent,
        broker: str,
        *,
        tls: TlsFiles = NO_FILES,
        prefix: str = PREFIX,
        transport: Transport | None = None,
    ) -> None:
        """broker: the URL of Home Assistant's broker.  prefix: of discovery.  transport: in place of one to `broker`.

        Raises UsageError for an invalid broker address, and for a prefix that cannot be a topic.
        """
        if not all(is_id(word) for word in prefix.split("/")):
            raise UsageError(f"prefix {prefix!r}: expected words of a-z, 0-9 and - with / between them")
        context = agent.participant.context
        self._agent, self._prefix = agent, prefix
        self._node, self._name = f"{context.federation}-{context.device}", context.device
        self._federation, self._topic = context.federation, f"edge-sdk/{context.federation}/{context.device}"
        self._transport = transport or _transport_to(broker, f"{self._node}-ha", tls)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._shown: dict[str, Any] = {}

    def discovery(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield topic and content of each entity's message."""
        common: dict[str, Any] = {
            "availability_topic": f"{self._topic}/available",
            "state_topic": f"{self._topic}/state",
            "device": {
                "identifiers": [f"edge-sdk-{self._node}"],
                "name": f"{self._name} ({self._federation})",
                "manufacturer": "edge-sdk",
                "sw_version": __version__,
            },
            "origin": {"name": "edge-sdk", "sw_version": __version__},
        }
        own: dict[tuple[str, str], dict[str, Any]] = {
            ("sensor", "state"): {
                "name": "Learning",
                "value_template": "{{ value_json.state }}",
                "json_attributes_topic": f"{self._topic}/state",
            },
            ("sensor", "round"): {"name": "Round", "value_template": "{{ value_json.round }}"},
            ("switch", "training"): {
                "name": "Training",
                "value_template": "{{ value_json.training }}",
                "command_topic": f"{self._topic}/training/set",
                "payload_on": ON,
                "payload_off": OFF,
            },
        }
        for (component, thing), entity in own.items():
            unique = {"unique_id": f"edge-sdk-{self._node}-{thing}"}
            yield f"{self._prefix}/{component}/{self._node}/{thing}/config", {**common, **entity, **unique}

    def start(self) -> None:
        """Connect, and show the agent until `stop`."""
        commands = (f"{self._topic}/training/set", f"{self._prefix}/status")
        self._transport.connect(commands, Will(f"{self._topic}/available", OFFLINE))
        self._over.clear()
        self._thread = threading.Thread(target=self._run, name=f"home-assistant-{self._name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Show the device as unavailable, and disconnect; its entities stay in Home Assistant."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> HomeAssistant:  # noqa: PYI034  # Self needs Python 3.11
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        linked = False
        while not self._over.is_set():
            event = self._transport.poll(LOOK_EVERY_S)
            back = isinstance(event, Incoming) and event.topic == f"{self._prefix}/status" and event.frame == ONLINE
            if isinstance(event, Connected) or back:  # Home Assistant has started again
                linked = True
                self._introduce()
            elif isinstance(event, Incoming) and event.topic == f"{self._topic}/training/set":
                self._obey(event.frame)
            if isinstance(event, Incoming):
                event.acknowledge()
            if linked:
                self._show()
        self._send("available", OFFLINE)
        self._transport.close()

    def _introduce(self) -> None:
        for topic, content in self.discovery():
            self._transport.send(topic, json.dumps(content).encode(), retain=True)
        self._send("available", ONLINE)
        self._shown = {}

    def _obey(self, command: bytes) -> None:
        if command == ON.encode():
            self._agent.resume()
        elif command == OFF.encode():
            self._agent.pause()

    def _show(self) -> None:
        status = self._agent.status().to_json()
        found = {**status, "training": OFF if self._agent.paused else ON}
        if found != self._shown:
            self._shown = found
            self._send("state", json.dumps(found).encode())

    def _send(self, what: str, content: bytes) -> None:
        self._transport.send(f"{self._topic}/{what}", content, retain=True)


def _transport_to(broker: str, client_id: str, tls: TlsFiles) -> Transport:
    from edge_sdk.transport.mqtt.transport import MqttTransport  # paho is imported only for a broker

    return MqttTransport(broker, client_id, tls=tls, clean=True, seed=0)
