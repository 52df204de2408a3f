"""The broker of simulations and tests, in this process: subscriptions, delivery, and faults that are drawn from a seed.

May import `transport.base`, `protocol` and `errors`.
"""
