"""The engines that compute for simulated devices: one by one, in stacks (`stack/`), or on workers (`remote/`).

May import `edge_sim.fleet.fleet`, `config`, `models` and edge_sdk; nothing of the virtual clock.
"""
