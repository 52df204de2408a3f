"""The total cost of a large fleet: only boards on which something happened are read again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_sim.fleet.hardware import DeviceCost, Hardware


class FleetTotals:
    """Columns with the figures of all boards, from which the sum over them follows with the bits of a loop."""

    def __init__(self, boards: Sequence[Hardware]) -> None:
        """boards: in the order in which they are added up."""
        self._boards, self._flops, self._total_flops = boards, [0] * len(boards), 0
        self._columns = np.zeros((len(boards), 5))  # computed, busy until, on before, on since, on the air: s
        self._watts = np.array([(b.board.idle_w, b.board.busy_w - b.board.idle_w, b.link.radio_w) for b in boards])
        self._changed = list(range(len(boards)))
        for place, board in enumerate(boards):
            board.watch(self._changed, place)

    def total(self, now_s: float) -> DeviceCost:
        """Return the sums of seconds of computing, joules and FLOPs over all boards so far."""
        for place in self._changed:
            board = self._boards[place]
            self._columns[place], flops = board.figures()
            self._total_flops += flops - self._flops[place]
            self._flops[place] = flops
            board.watch(self._changed, place)
        self._changed.clear()
        computed_s, busy_until_s, on_s, since_s, air_s = self._columns.T
        busy_s = computed_s - np.maximum(0.0, busy_until_s - now_s)
        all_on_s = np.where(np.isnan(since_s), on_s, on_s + (now_s - since_s))
        idle_w, more_w, radio_w = self._watts.T
        used_j = idle_w * all_on_s + more_w * busy_s + radio_w * air_s
        return DeviceCost(sum(busy_s.tolist()), sum(used_j.tolist()), self._total_flops)  # as a loop adds them up
