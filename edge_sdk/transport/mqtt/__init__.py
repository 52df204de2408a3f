"""The MQTT transport: a connection that is opened again when it breaks, its queues, TLS, broker limits and addresses.

May import `transport.base`, `transport.chunks`, `protocol` and `errors`; only transport.py and paho_*.py load paho.
"""
