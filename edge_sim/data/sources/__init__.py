"""The sources of data sets: one file for each kind; each returns SourceData.

May import `edge_sim.data.draw`, `edge_sim.models` and the rooms of edge_sdk; `edge_sim.data` imports it.
"""
