"""FedHKD's noise: it cannot be predicted without the device's secret, and is the same for the same values.

The secret and the values determine the noise.  So a round that is computed again after a crash uploads the same bits,
and nobody can average the noise away.  Different values get different noise, in every round.
"""

from __future__ import annotations

import hashlib

import numpy as np

from edge_sdk.arrays import Doubles
from edge_sdk.methods.job import SECRET_BYTES

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
