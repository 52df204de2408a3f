"""What simulated devices compute on: one by one, in stacks (`stack/`), or on workers and Ray (`remote/`).

May import `edge_sim.fleet.fleet`, `config`, `models` and edge_sdk; nothing of the virtual clock.
"""
