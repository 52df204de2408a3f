"""`edge-sdk replay`: a recorded run again, by the coordinator or by one of its devices.

May import `edge_sim.fleet.fleet`, `config`, `engines`, the coordinator and edge_sdk.
"""
