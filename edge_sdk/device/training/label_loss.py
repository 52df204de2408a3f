"""Applies [train] class_weights and label_noise_q: the cross-entropy of every method, on this device's own labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.requests import Fit, Request
from edge_sdk.objectives import CrossEntropy, LabelLoss, Term


def with_label_loss(request: Request, job: Job) -> Request:
    """Return the request of a method with the cross-entropy that the federation asks for."""
    train = job.spec.train
    if not isinstance(request, Fit) or (train.class_weights == "none" and not train.label_noise_q):
        return request
    counts = np.asarray(job.class_counts)  # (k,)
    weights = balanced(counts) if train.class_weights == "balanced" else np.ones(len(counts), np.float32)

    def asked(term: Term) -> Term:
        if type(term) is not CrossEntropy:
            return term
        return LabelLoss(class_weights=weights, q=train.label_noise_q, weight=term.weight)

    return replace(request, objective=tuple(asked(term) for term in request.objective))


def balanced(counts: np.ndarray) -> Floats:
    """Return the weights n / (m n_c) of m classes with n_c of n samples: f4 (k,); their mean over the samples is 1."""
    present = counts > 0
    found: Floats = np.where(present, counts.sum() / (max(1, present.sum()) * np.maximum(counts, 1)), 1)
    return found.astype(np.float32)
