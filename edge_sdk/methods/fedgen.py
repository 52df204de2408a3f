"""FedGen (client half): Zhu, Hong and Zhou 2021, ICML, arXiv:2105.10056, equation 5 and Algorithm 1.

train    CE(y, f(x)) + alpha CE(y', G(h'))        h': features that the generator made of the labels y'
share    w, and the rows of the last layer: those of classes held, which say with their counts how many samples there
         are, and apart from them the others
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from edge_sdk.methods.base import Job, Stage
from edge_sdk.methods.fedavg import FedAvgClient
from edge_sdk.methods.requests import Private, ReadHead
from edge_sdk.objectives import CrossEntropy, Floats, HeadLabels, Objective
from edge_sdk.protocol.contracts.fedgen import FEDGEN, FedGenParams
from edge_sdk.protocol.knowledge import ClassRows, Payload


def told_labels(params: FedGenParams, down: Mapping[str, Payload], _source: Private) -> Stage[Objective]:
    """With the round's generated features, all of them at each step; in round 0 there are none."""
    yield from ()
    if "generated" not in down or params.alpha == 0:
        return (CrossEntropy(),)
    made = cast("ClassRows", down["generated"])  # (m, n d)
    features = made.rows.astype(np.float32).reshape(len(made.classes) * params.samples_per_class, -1)  # (m n, d)
    labels = np.repeat(made.classes.astype(np.int64), params.samples_per_class)  # (m n,)
    return (CrossEntropy(), HeadLabels(features=features, labels=labels, weight=params.alpha))


def last_layer(_params: FedGenParams, job: Job) -> Stage[Mapping[str, Payload]]:
    """Its rows in two parts: a class without samples cannot say so by a count."""
    rows: Floats = yield ReadHead()  # (k, d + 1)
    counts = np.array(job.class_counts, np.int32)  # (k,)
    held, others = np.flatnonzero(counts), np.flatnonzero(counts == 0)
    parts = {"header": (held, counts[held]), "others": (others, np.ones(len(others), np.int32))}
    return {
        role: ClassRows(classes=classes.astype(np.int32), rows=rows[classes], counts=weights)
        for role, (classes, weights) in parts.items()
        if len(classes)
    }


METHOD = FedAvgClient(FEDGEN, told_labels, last_layer)
