"""The protocol between devices and the coordinator, as pure values without I/O, clock or randomness.

May import `arrays`, `objectives` and `errors`.
"""
