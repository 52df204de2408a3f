"""The MQTT transport: one connection that is opened again when it breaks, its send queue, TLS, limits and addresses.

May import `transport.base`, `transport.chunks`, `protocol` and `errors`; only transport.py imports paho.
"""
