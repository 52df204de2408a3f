"""The remote engine: shares of the devices on worker processes or Ray actors, and the messages between.

May import `engines`, `engines.stack`, `edge_sim.fleet.fleet`, `config` and edge_sdk.
"""
