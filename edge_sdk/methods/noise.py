"""Noise that nobody can predict who lacks the device's secret, and that comes out the same when it is drawn again.

It is drawn from the secret and from what it is added to.  A round that is computed again after a crash releases the
same bits, so that nobody can average the noise away; other values get other noise, whatever their round is called.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

SECRET_BYTES = 32
_DOMAIN = b"edge-sdk noise 1"


def gaussian(secret: bytes, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard normal numbers in the shape of `values`: SHAKE-256 as a stream, Box and Muller's transform.

    Raises ValueError for a secret of less than 32 bytes.
    """
    if len(secret) < SECRET_BYTES:
        raise ValueError(f"noise needs a secret of {SECRET_BYTES} bytes, found {len(secret)}")
    shape = repr(values.shape).encode()
    key = hashlib.sha256(_DOMAIN + secret).digest()
    stream = hashlib.shake_256(key + shape + values.astype("<f8").tobytes())
    words = np.frombuffer(stream.digest(16 * values.size), "<u8").reshape(2, -1)  # (2, n)
    uniform = ((words >> np.uint64(11)) + 0.5) * 2.0**-53  # in (0, 1), never 0
    normal: NDArray[np.float64] = np.sqrt(-2 * np.log(uniform[0])) * np.cos(2 * np.pi * uniform[1])
    return normal.reshape(values.shape)
