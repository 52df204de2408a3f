"""Models that train untraced, which only affects speed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from edge_sdk.device.training.workbench import Workbench

Untraced: TypeAlias = frozenset[tuple[str, str]]
"""Names of models, each with the reason."""
NONE: Untraced = frozenset()


def untraced_of(benches: Iterable[Workbench]) -> Untraced:
    """Return the untraced models and proxies of these workbenches."""
    own = list(benches)
    models = [bench.model for bench in [*own, *filter(None, (bench.proxy for bench in own))]]
    return frozenset((model.spec.name, why) for model in models for why in getattr(model, "untraced", ()))
