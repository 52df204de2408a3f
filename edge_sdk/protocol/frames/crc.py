"""The checksum CRC-32 of zlib.

The package isal, if installed, computes it sixteen times as fast as zlib.  For a frame with a model's weights the
checksum is most of the cost, because both sides compute it.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
