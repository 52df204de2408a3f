"""Noise that is unpredictable without the device's secret, and the same each time it is drawn for the same values.

It follows from the secret and from the values that it is added to.  So a round that is computed again after a crash
uploads the same bits, and nobody can average the noise away.  Other values get other noise, in whatever round.
"""

from __future__ import annotations

import hashlib

import numpy as np

from edge_sdk.arrays import Doubles

SECRET_BYTES = 32
_DOMAIN = b"edge-sdk noise 1"


def gaussian(secret: bytes, values: Doubles) -> Doubles:
    """Return standard normal numbers in the shape of `values`, from a SHAKE-256 stream by Box and Muller's transform.

    Raises ValueError for a secret of less than 32 bytes.
    """
    if len(secret) < SECRET_BYTES:
        raise ValueError(f"noise needs a secret of {SECRET_BYTES} bytes, found {len(secret)}")
    shape = repr(values.shape).encode()
    key = hashlib.sha256(_DOMAIN + secret).digest()
    stream = hashlib.shake_256(key + shape + values.astype("<f8").tobytes())
    words = np.frombuffer(stream.digest(16 * values.size), "<u8").reshape(2, -1)  # (2, n)
    uniform = ((words >> np.uint64(11)) + 0.5) * 2.0**-53  # in (0, 1), never 0
    normal: Doubles = np.sqrt(-2 * np.log(uniform[0])) * np.cos(2 * np.pi * uniform[1])
    return normal.reshape(values.shape)
