"""The operator's side of a running federation: its devices, their logs, and commands to its coordinator.

May import `protocol`, `transport` and `errors`; only the command line imports it.
"""
