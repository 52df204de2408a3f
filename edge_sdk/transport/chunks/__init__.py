"""Frames that are too long for one message: they are split into chunks, and put together again in bounded memory.

May import `transport.base`, `protocol` and `errors`.
"""
