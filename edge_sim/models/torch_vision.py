"""torchvision for any build of torch, and its nets, changed for a fleet; all modules take torchvision from here.

A wheel of torchvision that was built for CUDA cannot load its compiled operators into a torch for the CPU; it notes
that, continues, and then fails while describing two of them that nobody defined ("operator torchvision::nms does not
exist").  Neither its nets nor its loaders of data sets need these.  So they are declared here, without code behind
them, but only where the compiled ones do not load: declaring an operator twice ends the process.

The nets have GroupNorm, any number of channels, and a stem for small pictures.  They come without trained weights:
nothing is downloaded.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec

from torch import nn

from edge_sdk.errors import MissingExtra
from edge_sim.models.model_types import InputShape

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


SMALL = 64
"""Pictures less high or wide than this keep their resolution in the stem; torchvision's own stems are made for 224."""
RESNET_GROUPS = 2
"""Groups of every GroupNorm in a ResNet, as in FedNH."""
MOBILE_GROUPS = 8
"""Groups of a GroupNorm in the mobile nets; fewer where 8 does not divide the channels, as in layers of 58."""


def _resnet(make: Callable[..., nn.Module]) -> Callable[[int, InputShape], nn.Module]:
    """Return a builder of ResNet (He et al., 2016); small pictures get a 3 x 3 stem without a pool."""

    def build(classes: int, input_shape: InputShape) -> nn.Module:
        net = make(weights=None, num_classes=classes)
        if _is_small(input_shape):
            net.conv1 = nn.Conv2d(input_shape[0], 64, 3, padding=1, bias=False)
            net.maxpool = nn.Identity()
        else:
            net.conv1 = nn.Conv2d(input_shape[0], 64, 7, 2, padding=3, bias=False)
        return _with_group_norm(net, RESNET_GROUPS)

    return build


def _mobilenet(classes: int, input_shape: InputShape) -> nn.Module:
    """Build MobileNetV3-small (Howard et al., 2019); its stem does not halve small pictures."""
    net = models.mobilenet_v3_small(weights=None, num_classes=classes)
    net.features[0][0] = _stem(16, input_shape)
    return _with_group_norm(net, MOBILE_GROUPS)


def _shufflenet(classes: int, input_shape: InputShape) -> nn.Module:
    """Build ShuffleNetV2 at width 1 (Ma et al., 2018); its stem does not shrink small pictures."""
    net = models.shufflenet_v2_x1_0(weights=None, num_classes=classes)
    net.conv1[0] = _stem(24, input_shape)
    if _is_small(input_shape):
        net.maxpool = nn.Identity()
    return _with_group_norm(net, MOBILE_GROUPS)


def _is_small(input_shape: InputShape) -> bool:
    return min(input_shape[1:]) < SMALL


def _stem(channels: int, input_shape: InputShape) -> nn.Conv2d:
    return nn.Conv2d(input_shape[0], channels, 3, 1 if _is_small(input_shape) else 2, padding=1, bias=False)


def _with_group_norm(net: nn.Module, groups: int) -> nn.Module:
    """Replace every BatchNorm of a finished net, since not all builders accept another norm."""
    for parent in list(net.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.BatchNorm2d):
                channels = layer.num_features
                setattr(parent, name, nn.GroupNorm(math.gcd(groups, channels), channels))
    return net


NETS: dict[str, Callable[[int, InputShape], nn.Module]] = {
    "mobilenet-v3-small": _mobilenet,
    "shufflenet-v2": _shufflenet,
    "resnet18": _resnet(models.resnet18),
    "resnet34": _resnet(models.resnet34),
}
