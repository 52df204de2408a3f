"""The common part of every runtime's optimiser: its moments, constants and stored form."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sdk.errors import StoreError, UsageError
from edge_sdk.objectives import Optim

EPSILON = 1e-8
"""Adam's epsilon (Kingma and Ba 2015), as in torch."""
CLIP_EPSILON = 1e-6
"""Added to a gradient's norm that clipping divides by, as in torch.nn.utils.clip_grad_norm_."""

PLAIN_STEP = Optim(kind="sgd", learning_rate=1.0)
"""A step that changes the weights by minus the gradient."""

_KINDS = ("sgd", "adam")
_USUAL_BETAS = (Optim().beta1, Optim().beta2)


def moment_count(optim: Optim) -> int:
    """Return the number of running moments per parameter: 0, 1 or 2.  Raises UsageError for an unknown kind."""
    if optim.kind not in _KINDS:
        raise UsageError(f"optimiser {optim.kind!r}: known are {', '.join(_KINDS)}")
    if optim.kind == "adam":
        return 2
    return 1 if optim.momentum else 0


def adam_scales(optim: Optim, steps: int) -> tuple[float, float]:
    """Return (step size, divisor of the second moment's root): the bias corrections after `steps` steps."""
    return optim.learning_rate / (1 - optim.beta1**steps), float((1 - optim.beta2**steps) ** 0.5)


def pack_optim(optim: Optim) -> NDArray[np.float64]:
    """Pack for storage what the moments were made with: (3,), or (5,) with other betas than the usual ones.

    Decay and clipping are not stored: moments do not depend on them.
    """
    betas = (optim.beta1, optim.beta2)
    more = () if betas == _USUAL_BETAS else betas
    return np.array([_KINDS.index(optim.kind), optim.learning_rate, optim.momentum, *more], np.float64)


def unpack_optim(packed: NDArray[Any]) -> Optim:
    """Return what pack_optim stored.  Raises StoreError for anything else."""
    if packed.shape not in ((3,), (5,)) or packed.dtype != np.float64 or packed[0] not in range(len(_KINDS)):
        raise StoreError("saved model state holds no known optimiser: remove FEDERATION.db in the state folder")
    kind, learning_rate, momentum, *betas = packed.tolist()
    beta1, beta2 = betas or _USUAL_BETAS
    return Optim(kind=_KINDS[int(kind)], learning_rate=learning_rate, momentum=momentum, beta1=beta1, beta2=beta2)
