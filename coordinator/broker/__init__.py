"""A local broker for demos and tests: mosquitto if it is installed, amqtt otherwise, as a child process.

This package may import `edge_sdk.errors`; only commands and the simulator import it.
"""
