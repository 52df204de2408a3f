"""The guarantee of FedHKD's noise: the exact (epsilon, delta)-differential privacy of a Gaussian mechanism.

The arithmetic is that of edge_sdk.privacy.accountant.
"""

from __future__ import annotations

import math

from edge_sdk.privacy.accountant import epsilon


def promise(mu: float, most: float, rounds: int, *, shares_weights: bool) -> str:
    """Describe the guarantee of noise of mu in each round at a delta of `most`, and its limits (W2)."""
    one, every = ((each, epsilon(most, each)) for each in (mu, mu * math.sqrt(rounds)))
    weights = "the weights leave without noise" if shares_weights else "so do figures that the device measures"
    return (
        "W2: the noise protects the hyper-knowledge tensor only, given the models that made it: "
        f"mu = {one[0]:.3g}, epsilon = {one[1]:.3g} at delta = {most:g} for one round, "
        f"mu = {every[0]:.3g}, epsilon = {every[1]:.3g} for all {rounds}; a round as a whole has no epsilon, for "
        f"models are trained on the same data without noise, and {weights}"
    )


def published_promise(sigma: float, width: int, most: float, rounds: int) -> str:
    """Describe the guarantee of the paper's noise on mean features of this width, and its limits (W2).

    A record moves a mean of n features by at most 2 zeta sqrt(d) / n; the noise has the deviation 2 zeta sigma / n.
    The paper leaves sqrt(d) out.
    """
    told = "mean predictions, counts and which classes pass leave without noise, so a round has no epsilon"
    if not width:
        return f"W2: published noise: {told}; set federation.feature_dim to see that of the mean features"
    mu = math.sqrt(width) / sigma
    one, every = epsilon(most, mu), epsilon(most, mu * math.sqrt(rounds))
    claimed = math.sqrt(2 * math.log(1.25 / most)) / sigma
    return (
        f"W2: published noise: the mean features of {width} numbers alone, given the models that made them, have "
        f"epsilon = {one:.3g} at delta = {most:g} for one round, {every:.3g} for all {rounds} (the paper's formula "
        f"says {claimed:.3g}); {told}"
    )
