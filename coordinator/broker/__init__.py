"""A broker of our own for demos and tests: mosquitto where it is installed, amqtt otherwise, as a child process.

May import `edge_sdk.errors`; only commands and the simulator import it.
"""
