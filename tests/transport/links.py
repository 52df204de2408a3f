"""Helpers around MqttTransport."""

from __future__ import annotations

import socket

from edge_sdk.transport.mqtt.transport import MqttTransport


def cut(transport: MqttTransport) -> None:
    """Break the TCP connection without a word of MQTT."""
    link = transport._link
    assert link is not None
    link._client.socket().shutdown(socket.SHUT_RDWR)
