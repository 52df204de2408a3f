"""WAV files of PCM as series (t, channels), by the standard library."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.errors import UsageError


def read_wavs(files: Sequence[Path], rate: int | None) -> list[Floats]:
    """Return the samples of WAV files, each f4 (t, channels) in -1..1.

    rate: in Hz, or None for that of the first file.  Raises UsageError for a file that is not PCM, has another rate or
    another number of channels, or no samples.
    """
    found: list[Floats] = []
    expected = f"rate={rate}" if rate is not None else f"{files[0].name} has {_read(files[0])[1]:,} Hz"
    for path in files:
        values, own = _read(path)
        rate = own if rate is None else rate
        if own != rate:
            raise UsageError(f"{path}: has a rate of {own:,} Hz, but {expected}: convert one of them")
        if found and values.shape[1] != found[0].shape[1]:
            raise UsageError(f"{path}: has {values.shape[1]} channels, but {files[0].name} has {found[0].shape[1]}")
        if not len(values):
            raise UsageError(f"{path}: has no samples: leave it out")
        found.append(values)
    return found


def _read(path: Path) -> tuple[Floats, int]:
    """Return samples and the rate in Hz."""
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate, frames, *_ = file.getparams()
            raw = np.frombuffer(file.readframes(frames), np.uint8)
    except (OSError, EOFError, wave.Error) as error:
        raise UsageError(f"{path}: not a readable WAV file of PCM: {error or 'it ends early'}") from None
    whole = raw[: len(raw) // (channels * width) * channels * width].reshape(-1, channels, width)
    if width == 1:  # from 0 to 255
        return (whole[:, :, 0].astype(np.float32) - np.float32(128)) / np.float32(128), rate
    filled = np.zeros((*whole.shape[:2], 4), np.uint8)
    filled[:, :, 4 - width :] = whole  # the highest bytes come last
    values: Floats = (filled.view("<i4")[:, :, 0] / 2.0**31).astype(np.float32)
    return values, rate
