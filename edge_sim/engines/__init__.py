"""The engines that compute for the simulated devices of a process: one by one, or in stacks (`stack/`).

May import `edge_sim.fleet.fleet`, `config`, `models` and edge_sdk; not the virtual clock.
"""
