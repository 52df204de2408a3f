"""The model that an app's predict() uses: a copy that training never touches, and what decides when it is replaced.

May import the device's rooms (device, policy, models, data, public_set); of the rooms nothing imports it but the agent.
Neither coordinators nor simulations serve.
"""
