"""The common part of every runtime's optimiser: its moments, constants and stored form."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import StoreError, UsageError
from edge_sdk.objectives import Optim

BETA1 = 0.9
BETA2 = 0.999
EPSILON = 1e-8
"""Adam's constants (Kingma and Ba 2015), as in torch."""

_KINDS = ("sgd", "adam")


def moment_count(optim: Optim) -> int:
    """Return the number of running moments per parameter: 0, 1 or 2.  Raises UsageError for an unknown kind."""
    if optim.kind not in _KINDS:
        raise UsageError(f"optimiser {optim.kind!r}: known are {', '.join(_KINDS)}")
    if optim.kind == "adam":
        return 2
    return 1 if optim.momentum else 0


def adam_scales(optim: Optim, steps: int) -> tuple[float, float]:
    """Return (step size, divisor of the second moment's root): the bias corrections after `steps` steps."""
    return optim.learning_rate / (1 - BETA1**steps), float((1 - BETA2**steps) ** 0.5)


def pack_optim(optim: Optim) -> NDArray[np.float64]:
    """Pack the settings for storage beside the moments: (3,)."""
    return np.array([_KINDS.index(optim.kind), optim.learning_rate, optim.momentum], np.float64)


def unpack_optim(packed: NDArray[Any]) -> Optim:
    """Return what pack_optim stored.  Raises StoreError for anything else."""
    if packed.shape != (3,) or packed.dtype != np.float64 or packed[0] not in range(len(_KINDS)):
        raise StoreError("saved model state holds no known optimiser: remove the state folder")
    return Optim(kind=_KINDS[int(packed[0])], learning_rate=float(packed[1]), momentum=float(packed[2]))
