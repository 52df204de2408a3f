"""The first prototypes of FedNH: directions for K classes in d dimensions, as far apart as possible.

They are K unit vectors whose smallest distance is as large as possible.  Up to K = d + 1 that is the regular simplex,
with all cosines -1 / (K - 1).  Up to K = 2 d nothing is better than right angles (Rankin 1955), which axes and their
opposites have.  In the plane equal angles are best.  Larger sets are found by descent.  Each set is turned at random.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edge_sdk.arrays import Doubles
from edge_sdk.errors import UsageError

STEPS = 400
"""The number of descent steps; 100 classes in 32 dimensions take half a second."""
RATE = 0.5
SHARPNESS = 4.0, 64.0
"""The sharpness of the log-sum-exp that approximates the largest cosine, at the first and at the last step."""


def first_prototypes(classes: int, width: int, how: str, rng: np.random.Generator) -> Doubles:
    """Return unit rows (K, d); how: `simplex`, `cross-polytope`, `optimised`, or `auto` for the best possible.

    Raises UsageError if the chosen form does not exist for this number of classes.
    """
    found = [make for name, (fits, make) in _WAYS.items() if how in ("auto", name) and fits(classes, width)]
    if not found:
        raise UsageError(
            f"method.initial: {how} gives no {classes} different directions in {width} features; "
            'use "auto", or more features: federation.feature_dim'
        )
    return found[0](classes, width, rng)


def _simplex(classes: int, width: int, rng: np.random.Generator) -> Doubles:
    """Return the corners of I - 1/K in the K - 1 dimensions that they span, turned into d."""
    if classes == 1:
        return _unit(rng.normal(size=(1, width)))
    corners, lengths, _ = np.linalg.svd(np.eye(classes) - 1 / classes)
    within = corners[:, :-1] * lengths[:-1]  # (k, k - 1)
    return _unit(within @ _frame(width, classes - 1, rng).T)


def _cross_polytope(classes: int, width: int, rng: np.random.Generator) -> Doubles:
    """Return the axes of a random frame, then their opposites."""
    axes = _frame(width, width, rng).T
    return np.concatenate([axes, -axes])[:classes]


def _equal_angles(classes: int, _width: int, rng: np.random.Generator) -> Doubles:
    angles = rng.uniform(0, 2 * np.pi) + 2 * np.pi * np.arange(classes) / classes
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _optimised(classes: int, width: int, rng: np.random.Generator) -> Doubles:
    """Descend on the log-sum-exp of all cosines, each row on its sphere; it approaches the largest cosine alone."""
    rows = _unit(rng.normal(size=(classes, width)))
    for step in range(STEPS if classes > 1 else 0):
        done = step / STEPS
        sharpness = SHARPNESS[0] * (SHARPNESS[1] / SHARPNESS[0]) ** done
        cosines = rows @ rows.T
        np.fill_diagonal(cosines, -np.inf)
        pulls = np.exp(sharpness * (cosines - cosines.max(axis=1, keepdims=True)))  # (k, k): who is near, by row
        pulls /= pulls.sum(axis=1, keepdims=True)
        rows = _unit(rows - RATE * (1 - done) * (pulls @ rows))
    return rows


def _frame(width: int, count: int, rng: np.random.Generator) -> Doubles:
    """Draw orthonormal columns (d, count), uniformly from all of them."""
    q, r = np.linalg.qr(rng.normal(size=(width, count)))
    turned: Doubles = q * np.sign(np.diagonal(r))
    return turned


def _unit(rows: Doubles) -> Doubles:
    unit: Doubles = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def _in_the_plane(fallback: Callable[[int, int, np.random.Generator], Doubles]) -> _Make:
    return lambda classes, width, rng: (_equal_angles if width == 2 else fallback)(classes, width, rng)


_Make = Callable[[int, int, np.random.Generator], Doubles]
_WAYS: dict[str, tuple[Callable[[int, int], bool], _Make]] = {
    "simplex": (lambda classes, width: classes <= width + 1, _simplex),
    "cross-polytope": (lambda classes, width: classes <= 2 * width, _cross_polytope),
    "optimised": (lambda _classes, width: width > 1, _in_the_plane(_optimised)),
}
"""The forms, best first: whether one exists for this number of classes and features, and the function that makes it."""
