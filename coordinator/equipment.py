"""What a coordinator brings for a method that runs the devices' models itself: their nets, and the public samples."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from coordinator.methods.base import CoordinatorMethod
from edge_sdk.errors import EdgeError, UsageError
from edge_sdk.loading import described, load_function
from edge_sdk.models.base import Model
from edge_sdk.protocol.wires import load_registered
from edge_sdk.public_set.samples import PublicSet


@dataclass(frozen=True, kw_only=True, eq=False)
class Equipment:
    """Asked for only by methods that need it."""

    nets: Callable[[], Iterable[Model]]
    """One model of each architecture; their weights are overwritten."""
    public: Callable[[], PublicSet | None]

    @functools.cached_property
    def by_layout(self) -> dict[bytes, Model]:
        """The nets by the layout of their weights."""
        return {net.spec.layout: net for net in self.nets() if net.spec.layout}

    @functools.cached_property
    def samples(self) -> PublicSet:
        """The public set.  Raises UsageError where there is none."""
        found = self.public()
        if found is None:
            raise UsageError("this method trains on public samples on the coordinator: give [public] path = FILE.npz")
        return found


@runtime_checkable
class Equipped(Protocol):
    """A method that needs equipment."""

    def with_equipment(self, equipment: Equipment) -> CoordinatorMethod[Any, Any]:
        """The method that uses it."""


def ready_method(name: str, equipment: Equipment) -> CoordinatorMethod[Any, Any]:
    """The coordinator half that is registered under a name, with its equipment if it asks for some."""
    method: CoordinatorMethod[Any, Any] = load_registered("coordinator.methods", name)
    return method.with_equipment(equipment) if isinstance(method, Equipped) else method


def load_nets(factory: str | None) -> list[Model]:
    """What MODULE:FACTORY returns.  Raises UsageError with what is wrong."""
    if factory is None:
        raise UsageError(
            "federation.nets: missing; this method runs the devices' models on the coordinator: give "
            'nets = "MODULE:FACTORY", a function that returns one edge_sdk model of each architecture'
        )
    make = load_function(factory, "federation.nets: ", example="my_app:nets")
    try:
        found = list(make())
    except EdgeError:
        raise
    except Exception as error:
        raise UsageError(f"federation.nets: {factory!r}: the factory failed with {described(error)}") from error
    if not all(hasattr(net, "spec") for net in found):
        raise UsageError(f"federation.nets: {factory!r}: expected a list of edge_sdk models, found {found!r}")
    return found
