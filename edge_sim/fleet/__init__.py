"""The simulated devices: samples, model, board and link of each, and whether the boards can do the job.

May import `edge_sim.config.settings`, `data`, `models`, the coordinator and edge_sdk.
"""
