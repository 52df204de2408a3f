"""FedAlign's loss term: the last block changes its feature maps at a quarter of its width as it does at its full width.

Mendieta et al. 2022, section 4.  The torch form is in torch_fedalign.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.objectives import On, Seen, Term, needed

CONSTANTS = "a term on the last block's widths needs the Lipschitz constants at both, and the cross-entropy"
LEAST_GAP = 1e-12
"""A lower limit for the mean square of the gaps, by which the term is divided."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Alignment(Term):
    """(CE / L, a constant) L, L the mean over b of (lambda_sub - lambda_full)^2; lambda_full is a constant.

    lambda: the Lipschitz constant of the last block, as seen by one sample: the largest singular value of
    F_in F_out^T / (h w), of its input and output feature maps.  Only a runtime that can run a block at a share of its
    width can minimise it.  Its value and its slope are functions of `Seen.own`: the cross-entropy (1,), lambda_sub
    (b,) and lambda_full (b,).
    """

    name: ClassVar[str] = "alignment"
    on: ClassVar[On] = "own"
    width: float = 0.25
    """omega, the share of the inner channels at which lambda_sub is taken."""
    weight: float = 1.0

    def value(self, seen: Seen) -> float:
        """Return weight CE / L L."""
        ce, gaps = self._gaps(seen)
        mean = float(np.mean(gaps**2))
        return float(self.weight * ce / max(mean, LEAST_GAP) * mean)

    def slope(self, seen: Seen) -> Floats:
        """Return the slope at lambda_sub: (b,)."""
        ce, gaps = self._gaps(seen)
        factor = ce / max(float(np.mean(gaps**2)), LEAST_GAP)
        out: Floats = gaps * np.float32(self.weight * factor * 2 / len(gaps))
        return out

    def _gaps(self, seen: Seen) -> tuple[float, Floats]:
        ce, sub, full = needed(seen.own, CONSTANTS)
        return float(ce[0]), sub - full
