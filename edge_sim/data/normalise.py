"""The numbers that inputs of a data set are brought to unit scale with, and a warning where they need some."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge_sdk.data import Raw
from edge_sdk.errors import UsageError
from edge_sim.config.settings import Normalise

_IDS = '; ids of tokens, for a net with an Embedding, are right as they are: keep normalise = "none"'
_PART = 4096
"""Samples that are summed at a time."""
FAR = 2.0
"""A channel is far from unit scale where its mean is more than this many standard deviations from 0."""
LEAST_STD, MOST_STD = 0.1, 10.0
"""Likewise where its standard deviation is outside of these."""
LOOKED_AT = 2000
"""Samples from which a warning is found."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """What is subtracted from scaled values in each channel, and what they are then divided by; empty: neither."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


def scaling_of(normalise: str | Normalise, raw: Raw, scale: float) -> Scaling:
    """Return the numbers of a [data] section; raw: the training samples that the devices hold, all together.

    Raises UsageError where the given numbers are not one for each channel.
    """
    if normalise == "none":
        return Scaling()
    if isinstance(normalise, str):
        return statistics(raw, scale)
    channels = _channels(raw)
    for key in ("mean", "std"):
        if (found := len(getattr(normalise, key))) not in (1, channels):
            raise UsageError(
                f"data.normalise.{key}: expected 1 or {channels} numbers, as many as channels, found {found}"
            )
    return Scaling(normalise.mean, normalise.std)


def statistics(raw: Raw, scale: float) -> Scaling:
    """Return mean and standard deviation of each channel of scaled samples; a constant channel is divided by 1."""
    sums, squares, channels = 0.0, 0.0, _channels(raw)
    for start in range(0, len(raw), _PART):
        part = raw[start : start + _PART].reshape(-1, channels).astype(np.float64) * scale
        sums, squares = sums + part.sum(axis=0), squares + (part**2).sum(axis=0)
    count = raw.size // channels
    mean = np.reshape(sums / count, channels)
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    std[std < 1e-6] = 1
    return Scaling(tuple(mean.tolist()), tuple(std.tolist()))


def far_from_unit_scale(raw: Raw, scale: float) -> str:
    """Return a warning where scaled samples are far from mean 0 and standard deviation 1; empty: they are not."""
    found = statistics(raw[:: max(1, len(raw) // LOOKED_AT)], scale)
    far = [
        (mean, std)
        for mean, std in zip(found.mean, found.std, strict=True)
        if abs(mean) > FAR * std or not LEAST_STD <= std <= MOST_STD
    ]
    if not far:
        return ""
    mean, std = far[0]
    ids = bool((raw >= 0).all() and (raw == np.rint(raw)).all()) and scale == 1
    return (
        f"data.normalise: a channel has mean {mean:.3g} and standard deviation {std:.3g}, far from 0 and 1, and many "
        'models learn slowly from such; normalise = "fit" brings them there'
        f"{_IDS if ids else ''}"
    )


def _channels(raw: Raw) -> int:
    return raw.shape[3] if raw.ndim == 4 else 1
