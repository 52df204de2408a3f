"""Helpers around MqttTransport."""

from __future__ import annotations

import socket

from paho.mqtt.client import Client

from edge_sdk.transport.mqtt.transport import MqttTransport


def client(transport: MqttTransport) -> Client:
    """The MQTT client of the present connection: what stands between the transport and the network."""
    link = transport._link
    assert link is not None
    return link._client


def cut(transport: MqttTransport) -> None:
    """Break the TCP connection without a word of MQTT."""
    client(transport).socket().shutdown(socket.SHUT_RDWR)
