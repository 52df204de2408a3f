"""The transports that carry frames between devices and the coordinator: MQTT, and a broker inside this process.

May import `protocol` and `errors`.
"""
