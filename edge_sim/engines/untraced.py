"""The models that train without a trace, of which only speed depends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from edge_sdk.device.workbench import Workbench

Untraced: TypeAlias = frozenset[tuple[str, str]]
"""Names of models, each with the reason."""
NONE: Untraced = frozenset()


def untraced_of(benches: Iterable[Workbench]) -> Untraced:
    """Return what was found of the models of these workbenches, and of the proxies beside them."""
    own = list(benches)
    models = [bench.model for bench in [*own, *filter(None, (bench.proxy for bench in own))]]
    return frozenset((model.spec.name, why) for model in models for why in getattr(model, "untraced", ()))
