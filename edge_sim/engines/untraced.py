"""The models that this process trains without a trace, of which only speed depends."""

from __future__ import annotations

import sys
from typing import TypeAlias

Untraced: TypeAlias = frozenset[tuple[str, str]]
"""Names of models, each with the reason."""
NONE: Untraced = frozenset()


def untraced_here() -> Untraced:
    """Return what was found in this process so far; torch is not loaded for it."""
    module = sys.modules.get("edge_sdk.models.torch_training.torch_traced")
    return NONE if module is None else frozenset(module.TRACES.refused)
