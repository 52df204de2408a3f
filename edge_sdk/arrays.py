"""Names for the types of numpy arrays that the project computes with.

A name says the type of the elements; the comment at each use says the shape, such as `# (n, d)`.  This module is
neutral: it imports numpy alone, and every package may import it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
"""f4: samples, logits, features and weights."""
Doubles: TypeAlias = NDArray[np.float64]
"""f8: sums and other intermediate results that need more digits than f4 has."""
Ints: TypeAlias = NDArray[np.int64]
"""i8: labels, class ids and indices."""
AnyArray: TypeAlias = "NDArray[Any]"
"""An array of any type and shape."""
