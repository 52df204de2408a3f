"""Comparisons of methods and sweeps over settings: their runs, tables and pictures.

May import `edge_sim.runs`, `fleet`, `config` and `coordinator.results.report`.
"""
