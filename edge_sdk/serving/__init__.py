"""The model that an app's predict() uses: a copy that training never touches, and the guard that decides on updates.

May import the device's rooms (device, policy, models, data, public_set); only the agent imports it, because
coordinators and simulations do not serve predictions.
"""
