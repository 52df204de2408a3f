"""The simulated devices: samples, model, board and link of each, and checks that the boards can run the job.

May import `edge_sim.config.settings`, `data`, `models`, the coordinator and edge_sdk.
"""
