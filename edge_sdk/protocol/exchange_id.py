"""Identifies an exchange of a run by its round and its place within the round."""

from __future__ import annotations

from typing import NamedTuple


class ExchangeId(NamedTuple):
    """The number of a round and the number of an exchange in it, both counted from 0.

    Ids are ordered: an exchange with a smaller id comes earlier in the run.  In a run of `rounds` rounds the closing
    exchange has the id (rounds, 0).
    """

    round: int
    exchange: int


FIRST = ExchangeId(0, 0)
"""The exchange with which a run begins."""
