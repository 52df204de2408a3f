"""The public set: raw unlabelled samples that every device holds, named by their content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edge_sdk.data import Raw
from edge_sdk.errors import UsageError
from edge_sdk.objectives import Ints
from edge_sdk.protocol.messages import FederationSpec, PublicSetSpec

_PUBLIC_STREAM = 0x7075626C
"""Keeps these draws apart from those of devices, whose seeds end in their number."""


@dataclass(frozen=True, eq=False)
class PublicSet:
    """Raw samples (n, ...) of type u1 or f4, and the hash of dtype, shape and bytes."""

    samples: Raw
    spec: PublicSetSpec = field(init=False)

    def __post_init__(self) -> None:
        head = f"{self.samples.dtype.str}{self.samples.shape}".encode()
        digest = hashlib.sha256(head + np.ascontiguousarray(self.samples).tobytes()).digest()
        object.__setattr__(self, "spec", PublicSetSpec(sha256=digest, count=len(self.samples)))

    def __len__(self) -> int:
        return len(self.samples)

    @classmethod
    def load(cls, path: str | Path) -> PublicSet:
        """From an npz file: its one array, or the one called `public`.  Raises UsageError."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                name = "public" if "public" in arrays.files else (arrays.files[0] if len(arrays.files) == 1 else None)
                if name is None:
                    raise UsageError(
                        f"{path}: expected one array or one called public, found {', '.join(arrays.files)}"
                    )
                return cls(arrays[name])
        except FileNotFoundError:
            raise UsageError(f"{path}: no such file; the public set is the same file on every device") from None
        except (OSError, ValueError, AttributeError) as error:
            raise UsageError(f"{path}: not a readable npz file: {error}") from None


def batch_indices(spec: FederationSpec, round_: int, iteration: int, size: int) -> Ints:
    """Which public samples an exchange is about: (size,), the same on every device and on the coordinator."""
    if spec.public is None:
        raise ValueError("this federation has no public set")
    rng = np.random.default_rng([spec.seed, round_, iteration, _PUBLIC_STREAM])
    return rng.choice(spec.public.count, size=size, replace=size > spec.public.count)


def batch_digest(spec: FederationSpec, indices: Ints) -> bytes:
    """A name for a batch, 8 bytes: equal only for the same samples in the same order (warning W6 of FedAL)."""
    if spec.public is None:
        raise ValueError("this federation has no public set")
    return hashlib.sha256(spec.public.sha256 + indices.astype("<i8").tobytes()).digest()[:8]
