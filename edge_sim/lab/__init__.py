"""Runs on the boards of a lab: the desk hands out settings, and each board builds its device from them and its number.

May import `edge_sim.fleet`, `config`, `engines`, `models`, `runs`, the coordinator and edge_sdk.
"""
