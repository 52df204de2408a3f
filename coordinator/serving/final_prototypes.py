"""The prototypes at the end of a run: the rows by class that devices are sent."""

from __future__ import annotations

import numpy as np

from coordinator.record.insight import Insight
from coordinator.serving.server import Server
from edge_sdk.arrays import Floats
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import ByClass


def final_prototypes(server: Server) -> Insight:
    """An Insight with the rows of the first role that has any: prototypes, mean features or rows of last layers.

    Where each device is sent only some classes, the rows of all devices are put together.
    """
    # the last round, because some methods send no rows in the closing exchange
    at = ExchangeId(max(0, server.spec.rounds - 1), 0)
    method, state = server.method, server.method_state
    for role in sorted({role for row in method.every_exchange for role in row.down}):
        payloads = [method.common(state, at).get(role)]
        payloads += [method.personal(state, at, number).get(role) for number in sorted(server.numbers.values())]
        rows: dict[int, Floats] = {}
        for payload in payloads:
            if isinstance(payload, ByClass):
                rows = dict(zip(payload.classes.tolist(), payload.vectors.astype(np.float32), strict=True)) | rows
        if rows:
            classes = np.array(sorted(rows), np.int64)
            return Insight(prototype_classes=classes, prototypes=np.stack([rows[each] for each in classes]))
    return Insight()
