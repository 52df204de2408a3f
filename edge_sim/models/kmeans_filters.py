"""Convolution filters learned without labels: scikit-learn's k-means over small patches of images.

Coates and Ng, "Learning Feature Representations with K-means", 2012; Coates, Ng and Lee, "An Analysis of Single-Layer
Networks in Unsupervised Feature Learning", 2011, for the triangle activation.
"""

from __future__ import annotations

import warnings
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from edge_sdk.arrays import Floats
from edge_sdk.errors import MissingExtra, UsageError

_Doubles: TypeAlias = NDArray[np.float64]

_PATCHES = 5000
"""Number of patches that are clustered: enough for some dozens of centres, which more patches change little."""
_ITERATIONS = 15
_FLAT = 0.1
"""Patches with at most this share of the largest contrast are background and left out; they would form a centre."""


def kmeans_filters(images: Floats, filters: int, size: int, seed: int) -> tuple[Floats, Floats]:
    """Return weights (filters, c, size, size) and biases (filters,) of a convolution for images (n, c, h, w).

    Its outputs are triangle activations.  Raises UsageError for images with too few patches that have contrast, and
    MissingExtra without scikit-learn.
    """
    rng = np.random.default_rng(seed)
    patches, contrast = _normalised_patches(images, size, rng)  # (m, c * size * size)
    if len(patches) < filters:
        raise UsageError(f"{len(images)} images have {len(patches)} patches with contrast, {filters} filters need more")
    centres = _centres(patches, filters, seed)  # (filters, c * size * size)
    weights, biases = triangle(centres)
    shape = (filters, images.shape[1], size, size)
    return (weights / contrast).reshape(shape).astype(np.float32), biases.astype(np.float32)


def triangle(centres: _Doubles) -> tuple[_Doubles, _Doubles]:
    """Return weights (k, d) and biases (k,) of the triangle activation of centres (k, d), without its ReLU.

    The triangle keeps how much nearer a centre is to a patch x than the centres are on average.  In squared distances
    |x|^2 cancels, and a linear layer computes it:

        (mean_j |x - c_j|^2 - |x - c_k|^2) / 2 = x . (c_k - mean_j c_j) - (|c_k|^2 - mean_j |c_j|^2) / 2
    """
    square = (centres**2).sum(axis=1)  # (k,)
    return centres - centres.mean(axis=0), -(square - square.mean()) / 2


def _centres(patches: _Doubles, count: int, seed: int) -> _Doubles:
    """Return `count` cluster centres (count, d) of patches (m, d), the same for the same seed.

    It runs on one thread: with several, the order of sums, and so the last bits, would depend on the machine.
    """
    try:
        from sklearn.cluster import KMeans  # heavy, and only needed here
        from sklearn.exceptions import ConvergenceWarning  # likewise
        from threadpoolctl import threadpool_limits  # comes with scikit-learn
    except ImportError:
        raise MissingExtra("scikit-learn", "sim", "filters by k-means") from None
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer patches differ than there are centres: harmless
        found = KMeans(count, n_init=1, max_iter=_ITERATIONS, random_state=seed).fit(patches)
    centres: _Doubles = found.cluster_centers_
    return centres


def _normalised_patches(images: Floats, size: int, rng: np.random.Generator) -> tuple[_Doubles, float]:
    """Return patches (m, c * size * size) with mean 0 and contrast 1, as f8, and their contrast before, on average."""
    margin = size // 2
    padded = np.pad(images, ((0, 0), (0, 0), (margin, margin), (margin, margin)))
    windows = sliding_window_view(padded, (size, size), axis=(2, 3))  # (n, c, h, w, size, size)
    n, _, h, w = windows.shape[:4]
    some = rng.choice(n * h * w, min(n * h * w, _PATCHES), replace=False)
    at = np.unravel_index(some, (n, h, w))
    patches: _Doubles = windows[at[0], :, at[1], at[2]].reshape(len(some), -1).astype(np.float64)
    patches -= patches.mean(axis=1, keepdims=True)
    contrast = patches.std(axis=1)
    sharp = contrast > _FLAT * contrast.max()
    return patches[sharp] / contrast[sharp, None], float(contrast[sharp].mean()) if sharp.any() else 1.0
