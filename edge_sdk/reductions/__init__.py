"""Exact, mergeable sums of uploads, and means of them.

Any order and any split of the same uploads gives the same bits.  Pure numpy; imports protocol and errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_sdk.lazy import loaded_when_used

if TYPE_CHECKING:
    from edge_sdk.reductions.bag import Aggregate, Bag, Contribution, mean_in_order
    from edge_sdk.reductions.class_rows import MOST, carried_over, mean_over_holders, mean_over_others
    from edge_sdk.reductions.robust import PAPERS, Combining
    from edge_sdk.reductions.weighted_sum import Change, MixedSum, SlotSum, WeightedSum, changed

__all__ = [
    "MOST",
    "PAPERS",
    "Aggregate",
    "Bag",
    "Change",
    "Combining",
    "Contribution",
    "MixedSum",
    "SlotSum",
    "WeightedSum",
    "carried_over",
    "changed",
    "mean_in_order",
    "mean_over_holders",
    "mean_over_others",
]

_HOMES = {
    "Bag": "edge_sdk.reductions.bag",
    "mean_in_order": "edge_sdk.reductions.bag",
    "MOST": "edge_sdk.reductions.class_rows",
    "carried_over": "edge_sdk.reductions.class_rows",
    "mean_over_holders": "edge_sdk.reductions.class_rows",
    "mean_over_others": "edge_sdk.reductions.class_rows",
    "Aggregate": "edge_sdk.reductions.bag",
    "Contribution": "edge_sdk.reductions.bag",
    "MixedSum": "edge_sdk.reductions.weighted_sum",
    "PAPERS": "edge_sdk.reductions.robust",
    "Combining": "edge_sdk.reductions.robust",
    "Change": "edge_sdk.reductions.weighted_sum",
    "SlotSum": "edge_sdk.reductions.weighted_sum",
    "changed": "edge_sdk.reductions.weighted_sum",
    "WeightedSum": "edge_sdk.reductions.weighted_sum",
}
if not TYPE_CHECKING:  # a type checker would accept any name
    __getattr__ = loaded_when_used(__name__, _HOMES)
