"""Convolution filters learned without labels: k-means over small patches of images.

Coates and Ng, "Learning Feature Representations with K-means", 2012; Coates, Ng and Lee, "An Analysis of Single-Layer
Networks in Unsupervised Feature Learning", 2011, for the triangle activation.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from edge_sdk.errors import UsageError
from edge_sdk.objectives import Floats

Doubles: TypeAlias = NDArray[np.float64]

_PATCHES = 5000
"""Enough for some dozens of centres; more changes the centres little."""
_ITERATIONS = 15
_FLAT = 0.1
"""Patches with less than this share of the largest contrast are background: they would all be one centre."""


def kmeans_filters(images: Floats, filters: int, size: int, seed: int) -> tuple[Floats, Floats]:
    """Weights (filters, c, size, size) and biases (filters,) of a convolution: see triangle.

    Images (n, c, h, w).  Raises UsageError where they hold too few patches that differ.
    """
    rng = np.random.default_rng(seed)
    patches, contrast = _normalised_patches(images, size, rng)  # (m, c * size * size)
    if len(patches) < filters:
        raise UsageError(f"{len(images)} images have {len(patches)} patches with contrast, {filters} filters need more")
    centres = lloyd(patches, filters, rng)  # (filters, c * size * size)
    weights, biases = triangle(centres)
    shape = (filters, images.shape[1], size, size)
    return (weights / contrast).reshape(shape).astype(np.float32), biases.astype(np.float32)


def triangle(centres: Doubles) -> tuple[Doubles, Doubles]:
    """Weights (k, d) and biases (k,) that give the triangle activation of centres (k, d), up to its ReLU.

    The triangle keeps how much nearer a centre is to a patch x than the centres are on average.  In squared distances
    |x|^2 cancels, and a linear layer computes it:

        (mean_j |x - c_j|^2 - |x - c_k|^2) / 2 = x . (c_k - mean_j c_j) - (|c_k|^2 - mean_j |c_j|^2) / 2
    """
    square = (centres**2).sum(axis=1)  # (k,)
    return centres - centres.mean(axis=0), -(square - square.mean()) / 2


def lloyd(points: Doubles, count: int, rng: np.random.Generator) -> Doubles:
    """`count` centres of points (m, d), by Lloyd's iterations; a centre that loses all its points starts anew."""
    centres = points[rng.choice(len(points), count, replace=False)]
    for _ in range(_ITERATIONS):
        nearest = ((centres**2).sum(axis=1) - 2 * points @ centres.T).argmin(axis=1)  # (m,)
        members = np.bincount(nearest, minlength=count)
        sums = np.eye(count)[nearest].T @ points  # (count, d)
        lost = members == 0
        centres = sums / np.maximum(members, 1)[:, None]
        centres[lost] = points[rng.choice(len(points), int(lost.sum()), replace=False)]
    return centres


def _normalised_patches(images: Floats, size: int, rng: np.random.Generator) -> tuple[Doubles, float]:
    """Patches without mean and with unit contrast, as f8, and the contrast that they had on average."""
    margin = size // 2
    padded = np.pad(images, ((0, 0), (0, 0), (margin, margin), (margin, margin)))
    windows = sliding_window_view(padded, (size, size), axis=(2, 3))  # (n, c, h, w, size, size)
    n, _, h, w = windows.shape[:4]
    some = rng.choice(n * h * w, min(n * h * w, _PATCHES), replace=False)
    at = np.unravel_index(some, (n, h, w))
    patches: Doubles = windows[at[0], :, at[1], at[2]].reshape(len(some), -1).astype(np.float64)
    patches -= patches.mean(axis=1, keepdims=True)
    contrast = patches.std(axis=1)
    sharp = contrast > _FLAT * contrast.max()
    return patches[sharp] / contrast[sharp, None], float(contrast[sharp].mean()) if sharp.any() else 1.0
