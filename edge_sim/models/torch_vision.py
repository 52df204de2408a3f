"""The import of torchvision for any build of torch; all modules take torchvision from here.

A wheel of torchvision that was built for CUDA cannot load its compiled operators into a torch for the CPU; it notes
that, continues, and then fails while describing two of them that nobody defined ("operator torchvision::nms does not
exist").  Neither its nets nor its loaders of data sets need these.  So they are declared here, without code behind
them, but only where the compiled ones do not load: declaring an operator twice ends the process.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec

from edge_sdk.errors import MissingExtra

try:
    import torch
except ImportError:
    raise MissingExtra("torch", "vision", "torchvision") from None

UNDEFINED = ("nms", "qnms")
SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def operators_load(folder: str) -> bool:
    """Whether torchvision's compiled operators, if there are any, load into this torch."""
    compiled = PathFinder.find_spec("_C", [folder])
    if compiled is None or compiled.origin is None:
        return False
    try:
        torch.ops.load_library(compiled.origin)  # type: ignore[no-untyped-call]  # torch gives no types here
    except OSError:
        return False
    return True


def _declare() -> torch.library.Library:
    """Declare the operators; the declarations last as long as the returned library."""
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]  # nor here
    for name in UNDEFINED:
        library.define(name + SIGNATURE)  # type: ignore[no-untyped-call]  # nor here
    return library


_found = find_spec("torchvision")
if _found is None or not _found.submodule_search_locations:
    raise MissingExtra("torchvision", "vision", "this data set or model family")
if "torchvision" not in sys.modules and not operators_load(_found.submodule_search_locations[0]):
    DECLARED = _declare()

from torchvision import datasets, models  # noqa: E402  # only now

__all__ = ["datasets", "models"]
