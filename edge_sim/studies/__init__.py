"""Comparisons of methods and sweeps over settings: planned runs, what is done already, tables and pictures.

May import `edge_sim.runs`, `fleet`, `config` and `coordinator.report`.
"""
