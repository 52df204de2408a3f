"""Comparisons of methods and sweeps over settings: planned and finished runs, tables and pictures.

May import `edge_sim.runs`, `fleet`, `config` and `coordinator.report`.
"""
