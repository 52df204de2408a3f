"""`edge-sdk replay`: repeats a recorded run on the coordinator or on one of its devices.

May import `edge_sim.fleet.fleet`, `config`, `engines`, the coordinator and edge_sdk.
"""
