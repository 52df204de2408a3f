"""The in-process broker of simulations and tests: subscriptions, delivery, and faults drawn from a seed.

May import `transport.base`, `protocol` and `errors`.
"""
