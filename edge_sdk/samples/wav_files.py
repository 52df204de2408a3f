"""WAV files as series (t, channels).  The standard library reads them, also those whose header it refuses by itself."""

from __future__ import annotations

import io
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.errors import UsageError

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_ASKED = "PCM of 8 to 32 bits, or floats"


def read_wavs(files: Sequence[Path], rate: int | None) -> list[Floats]:
    """Return the samples of WAV files, each f4 (t, channels): PCM in -1..1, floats as they are.

    rate: in Hz, or None for that of the first file.  Raises UsageError for a file that is neither, ends early, has
    another rate or another number of channels, or no samples.
    """
    found: list[Floats] = []
    expected = f"rate={rate}"
    for path in files:
        values, own = _read(path)
        if rate is None:
            rate, expected = own, f"{path.name} has {own:,} Hz"
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
        content, floats = _as_pcm(path.read_bytes())
        with wave.open(io.BytesIO(content), "rb") as file:
            channels, width, rate, frames, *_ = file.getparams()
            raw = np.frombuffer(file.readframes(frames), np.uint8)
    except (OSError, EOFError, wave.Error) as error:
        raise UsageError(f"{path}: not a readable WAV file of {_ASKED}: {str(error) or 'it ends early'}") from None
    if len(raw) != frames * channels * width:
        there = len(raw) // (channels * width)
        raise UsageError(f"{path}: ends early: its header says {frames:,} samples, and {there:,} are there")
    if floats:
        return _floats(path, raw.view(f"<f{width}").reshape(-1, channels)), rate
    whole = raw.reshape(-1, channels, width)
    if width == 1:  # from 0 to 255
        return (whole[:, :, 0].astype(np.float32) - np.float32(128)) / np.float32(128), rate
    filled = np.zeros((*whole.shape[:2], 4), np.uint8)
    filled[:, :, 4 - width :] = whole  # the highest bytes come last
    values: Floats = (filled.view("<i4")[:, :, 0] / 2.0**31).astype(np.float32)
    return values, rate


def _floats(path: Path, values: np.ndarray[tuple[int, int], np.dtype[np.floating]]) -> Floats:
    found: Floats = values.astype(np.float32)
    if not np.isfinite(found).all():
        raise UsageError(f"{path}: holds NaN or Inf at {int((~np.isfinite(found)).any(axis=1).argmax()):,}")
    return found


def _as_pcm(content: bytes) -> tuple[bytes, bool]:
    """Return a file whose header says PCM, as the module wave wants it, and whether its samples are floats.

    Recorders write more than 16 bits, and floats, with an extensible header, which Python reads from 3.12 on.  Raises
    wave.Error for floats of another width than 4 and 8 bytes.
    """
    at = content.find(b"fmt ", 12, 4096)
    if content[:4] != b"RIFF" or at < 0 or at + 24 > len(content):
        return content, False
    tag, bits = (int.from_bytes(content[at + place : at + place + 2], "little") for place in (8, 22))
    if tag == _EXTENSIBLE:
        tag = int.from_bytes(content[at + 32 : at + 34], "little")
    if tag not in (_PCM, _FLOAT):
        return content, False  # wave says which it is
    if tag == _FLOAT and bits not in (32, 64):
        raise wave.Error(f"floats of {bits} bits")
    return content[: at + 8] + b"\x01\x00" + content[at + 10 :], tag == _FLOAT
