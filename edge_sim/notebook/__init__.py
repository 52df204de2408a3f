"""The Python interface, for notebooks and scripts: run, compare and sweep with models and data as Python objects.

interface: the three functions.  given: models and data as files and names.  outcomes: their results; drawn: pictures.
May import `edge_sim.runs`, `studies`, `config`, `fleet`, `clock` and `coordinator.results.report`.
"""
