"""Model families by name: the models that simulated devices run."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_sdk.data import Preprocess, Raw
from edge_sdk.errors import EdgeError, ModelError, UsageError
from edge_sdk.loading import load_function
from edge_sdk.models.base import Model, ModelSpec
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.models.sequence_model import SequenceModel
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.sample_kind import SERIES, SampleKind, net_shape
from edge_sim.models.model_types import HeadKind, InputShape, ModelFile
from edge_sim.models.numpy_extractors import Extractor, FrozenNumpyModel, RandomFilters, RandomLayer

NUMBERS = ("vector", "picture", "series")
"""The kinds that dense layers take."""


@dataclass(frozen=True, slots=True)
class Family:
    """The facts about a model family that need no model."""

    description: str
    runtime: str
    """numpy, torch or onnx."""
    parameters: int
    """Trainable scalars for ten classes of 32 x 32 pixels in colour, of 128 x 9 for series, of 64 of 5,000 tokens;
    other inputs: docs/reference/models.md."""
    extra: str = ""
    """The extra of the package that the family needs beside its runtime's, or empty."""
    takes: tuple[str, ...] = ("picture",)
    """The declared kinds of samples that it is for; those that are not declared are pictures and vectors."""
    hidden: tuple[int, ...] = ()
    """The widths of its hidden layers, if it is dense: where torch is not installed, numpy trains it."""


_SEQUENCES: dict[str, tuple[tuple[str, str, int], ...]] = {
    "series": (
        ("cnn", "two 1-d convolutions (16, 32) with GroupNorm", 3_754),
        ("cnn-wide", "three 1-d convolutions (32, 64, 64) with GroupNorm and a hidden layer of 64", 37_450),
        ("gru", "a GRU of 32 with LayerNorm", 4_522),
        ("lstm", "an LSTM of 64 with LayerNorm", 19_978),
        ("transformer", "two blocks of a transformer's encoder, width 32, 4 heads", 21_898),
    ),
    "text": (
        ("bag", "fastText: the mean of the words' vectors (32), a hidden layer of 64", 162_762),
        ("cnn", "words' vectors (32), two 1-d convolutions (16, 32) with GroupNorm", 165_594),
        ("cnn-wide", "words' vectors (32), three 1-d convolutions (32, 64, 64), a hidden layer of 64", 201_130),
        ("gru", "words' vectors (32), a GRU of 32 with LayerNorm", 166_730),
        ("lstm", "words' vectors (32), an LSTM of 64 with LayerNorm", 185_866),
        ("transformer", "words' vectors (32), two blocks of a transformer's encoder, 4 heads", 180_586),
    ),
}
"""Families for series and for texts: name, description and trainable scalars."""

FAMILIES: dict[str, Family] = {
    "softmax": Family("softmax regression on the pixels", "numpy", 30_730, takes=NUMBERS),
    "mlp": Family("one hidden layer of 64", "torch", 197_322, takes=NUMBERS, hidden=(64,)),
    "mlp-wide": Family("two hidden layers of 128", "torch", 411_146, takes=NUMBERS, hidden=(128, 128)),
    "cnn": Family("two convolutions (16, 32)", "torch", 25_578),
    "cnn-wide": Family("two convolutions (32, 64) and a hidden layer of 128", "torch", 545_098),
    "resnet": Family("two residual blocks (16, 32) with GroupNorm", "torch", 19_946),
    "lenet5": Family("LeNet-5: two convolutions (6, 16), hidden layers of 120 and 84", "torch", 62_006),
    "fedssa-cnn-1": Family("FedSSA's CNN-1: convolutions (16, 32), hidden layers of 2000 and 500", "torch", 2_621_558),
    "fedssa-cnn-2": Family("FedSSA's CNN-2: convolutions (16, 16), hidden layers of 2000 and 500", "torch", 1_815_142),
    "fedssa-cnn-3": Family("FedSSA's CNN-3: convolutions (16, 32), hidden layers of 1000 and 500", "torch", 1_320_558),
    "fedssa-cnn-4": Family("FedSSA's CNN-4: convolutions (16, 32), hidden layers of 800 and 500", "torch", 1_060_358),
    "fedssa-cnn-5": Family("FedSSA's CNN-5: convolutions (16, 32), hidden layers of 500 and 500", "torch", 670_058),
    "fednh-cnn": Family("FedNH's CNN: convolutions (64, 64), hidden layers of 384 and 192", "torch", 797_962),
    "resnet8": Family("ResNet-8: three residual blocks (64, 128, 256) with GroupNorm", "torch", 1_226_826),
    "wresnet-10-1": Family("wide ResNet, 10 layers, width 1, with GroupNorm", "torch", 77_850),
    "wresnet-10-2": Family("wide ResNet, 10 layers, width 2, with GroupNorm", "torch", 303_706),
    "wresnet-16-1": Family("wide ResNet, 16 layers, width 1, with GroupNorm", "torch", 175_066),
    "mobilenet-v3-small": Family("MobileNetV3-small with GroupNorm", "torch", 1_528_106, "vision"),
    "shufflenet-v2": Family("ShuffleNetV2 at width 1 with GroupNorm", "torch", 1_263_854, "vision"),
    "resnet18": Family("ResNet-18 with GroupNorm, and a small stem for small pictures", "torch", 11_173_962, "vision"),
    "resnet34": Family("ResNet-34 with GroupNorm, and a small stem for small pictures", "torch", 21_282_122, "vision"),
    **{
        f"{kind}-{name}": Family(description, "torch", parameters, takes=takes)
        for kind, takes in (("series", SERIES), ("text", ("tokens",)))
        for name, description, parameters in _SEQUENCES[kind]
    },
    "numpy-series": Family("256 fixed random convolutions, trainable head", "numpy", 2_570, takes=SERIES),
    "numpy-text": Family(
        "words and pairs of words in 4,096 buckets, trainable head", "numpy", 40_970, takes=("tokens",)
    ),
    "numpy-random": Family("one frozen random layer of 128, trainable head", "numpy", 1_290, takes=NUMBERS),
    "numpy-filters": Family("frozen random 3 x 3 filters, trainable head", "numpy", 2_570),
    "onnx-random": Family("frozen random filters, trainable head", "onnx", 5_130),
    "onnx-kmeans": Family("frozen k-means filters of the public samples, trainable head", "onnx", 5_130),
    "onnx-teacher": Family("a finished classifier from a file: teaches, does not learn", "onnx", 0),
}

GROUPS: dict[str, str] = {
    "series-4": "series-cnn,series-gru,series-lstm,series-transformer",
    "text-4": "text-bag,text-cnn,text-gru,text-transformer",
}
"""Lists of families of different architecture and size, by name: for the rule group:NAME."""

BODIES: dict[str, Callable[[InputShape, int], Extractor]] = {
    "numpy-random": RandomLayer,
    "numpy-filters": RandomFilters,
}
"""The frozen bodies of families that need numpy alone."""
SHOWN = 8
"""Number of families that an error message names."""


def check_family(name: str) -> None:
    """Raise UsageError unless `name` is a family or a MODULE:FACTORY that imports."""
    if ":" in name:
        _factory(name)
    elif name not in FAMILIES:
        near = difflib.get_close_matches(name, FAMILIES)
        hint = f"; near to it: {', '.join(near)}" if near else ""
        raise UsageError(
            f"no model family {name!r}; known are {', '.join([*FAMILIES][:SHOWN])} and {len(FAMILIES) - SHOWN} more "
            f"(docs/reference/models.md), or MODULE:FACTORY of your own{hint}"
        )


def check_takes(name: str, kind: SampleKind | None) -> None:
    """Raise UsageError for a family that is not for samples of this kind; factories of users are not looked at."""
    takes = FAMILIES[name].takes if name in FAMILIES else ()
    if not takes or (kind.name in takes if kind else "picture" in takes):
        return
    fit = [each for each, family in FAMILIES.items() if kind and kind.name in family.takes]
    said = f"model {name!r} takes {' or '.join(takes)}"
    if kind is None:
        raise UsageError(f'{said}, and the samples are not declared so: write data.kind = "{takes[0]}"')
    raise UsageError(f"{said}, the samples are {kind}: choose one of {', '.join(fit)}, or a function of your own")


def runtime(name: str) -> str:
    """Return the runtime of a family: numpy, torch or onnx.

    Dense nets count as numpy where torch is not installed, and so does a MODULE:FACTORY, which may use torch.
    """
    check_family(name)
    if ":" in name or FAMILIES[name].hidden:
        return "torch" if importlib.util.find_spec("torch") is not None else "numpy"
    return FAMILIES[name].runtime


def chooses_width(name: str) -> bool:
    """Whether the models of a family can be built with any number of features."""
    return name in FAMILIES and (FAMILIES[name].runtime == "torch" or name in ("onnx-random", "onnx-kmeans"))


def build_model(
    name: str,
    *,
    classes: int,
    raw_shape: tuple[int, ...],
    preprocess: Preprocess,
    seed: int,
    extractor_path: ModelFile | None = None,
    public: Raw | None = None,
    feature_dim: int = 0,
    head: HeadKind = "linear",
    device: str = "cpu",
) -> Model:
    """Build a model of a family for raw samples of `raw_shape` ((d,), (h, w) or (h, w, c)), the same for the same seed.

    feature_dim: width of the features in front of the last layer, or 0 for the family's own.  Families that can choose
    it (`chooses_width`) take it; the others keep theirs, and a method that cares about it refuses them when they join.

    head: `cosine` for one that compares directions, as FedNH needs; a factory receives it if it takes `head`.
    device: of torch models, cpu or cuda:N; a factory whose models are torch's must take `device` for the latter.

    The onnx families read `extractor_path`; without one, onnx-random makes its filters from the seed and onnx-kmeans
    from the raw public samples (n, ...).  MODULE:FACTORY calls FACTORY(classes, input_shape, seed), which returns a
    Model and its own preprocessing in the model's spec; input_shape is then that of the raw samples, (c, h, w).  A
    factory that takes `preprocess`, too, is given the run's, and the shape that it makes.  Or it returns a torch net,
    which is made for the run's preprocessing and shape.

    Raises UsageError for an unknown name or a missing file, MissingExtra where the runtime is not installed.
    """
    check_family(name)
    check_takes(name, preprocess.declared)
    if ":" in name:
        return _own(name, classes, raw_shape, preprocess, seed=seed, head=head, device=device)
    shape = _input_shape(preprocess, raw_shape)
    kind = runtime(name)
    if name in BODIES:
        body = BODIES[name](shape, seed)
        return FrozenNumpyModel(body, classes, shape, seed=seed, preprocess=preprocess, name=name, head=head)
    if name in ("numpy-series", "numpy-text"):
        return SequenceModel(classes, shape, seed=seed, preprocess=preprocess, head=head)
    if kind == "numpy":
        hidden = FAMILIES[name].hidden
        widths = (*hidden, feature_dim) if hidden and feature_dim not in (0, hidden[-1]) else hidden
        return NumpyModel(classes, shape, seed=seed, preprocess=preprocess, name=name, head=head, hidden=widths)
    if kind == "torch":
        import edge_sdk.models.torch_nets.torch_model  # noqa: F401  # only now, and first: it names the missing extra
        from edge_sim.models.torch_families import torch_model  # torch loads only where a net is asked for

        return torch_model(name, classes, shape, preprocess, seed, feature_dim=feature_dim, head=head, device=device)
    if extractor_path is not None:
        return _onnx(name, classes, shape, preprocess=preprocess, seed=seed, file=extractor_path, head=head)
    file = _generated(name, shape, preprocess, seed=seed, public=public, feature_dim=feature_dim)
    return _onnx(name, classes, shape, preprocess=preprocess, seed=seed, file=file, head=head)


def _input_shape(preprocess: Preprocess, raw_shape: tuple[int, ...]) -> InputShape:
    _, c, h, w = preprocess(np.zeros((1, *raw_shape), np.float32)).shape
    return c, h, w


def _onnx(
    name: str,
    classes: int,
    shape: InputShape,
    *,
    preprocess: Preprocess,
    seed: int,
    file: ModelFile | bytes,
    head: HeadKind,
) -> Model:
    from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel, OnnxTeacher  # loads only where asked for

    if name == "onnx-teacher":
        return OnnxTeacher(file, classes, preprocess=preprocess, input_shape=shape, name=name)
    return OnnxModel(file, classes, seed=seed, preprocess=preprocess, input_shape=shape, name=name, head=head)


def _generated(
    name: str, shape: InputShape, preprocess: Preprocess, *, seed: int, public: Raw | None, feature_dim: int
) -> bytes:
    """Return the content of an .onnx file for a family that makes its own."""
    from edge_sim.models.onnx_extractors import kmeans_extractor, random_extractor  # needs onnx, too

    if name == "onnx-teacher":
        raise UsageError(f"{name} needs the file of a classifier; edge_sim.models.onnx_extractors.teacher makes one")
    if name == "onnx-random":
        return random_extractor(shape, seed, feature_dim=feature_dim)
    if public is None:
        raise UsageError(f"{name} learns its filters from public samples: give the run a public set, or a file")
    return kmeans_extractor(preprocess(public), seed, feature_dim=feature_dim)


def _own(
    name: str,
    classes: int,
    raw_shape: tuple[int, ...],
    preprocess: Preprocess,
    *,
    seed: int,
    head: HeadKind,
    device: str,
) -> Model:
    factory = _factory(name)
    offered: dict[str, Any] = {"preprocess": preprocess, "head": head, "device": device}
    taken = {key: offered[key] for key in inspect.signature(factory).parameters if key in offered}
    bare, kind = Preprocess(kind=preprocess.kind, vocabulary=preprocess.vocabulary), preprocess.declared
    shape = net_shape(kind, _input_shape(taken.get("preprocess", bare), raw_shape))
    run_shape = net_shape(kind, _input_shape(preprocess, raw_shape))

    def make(shape: tuple[int, ...]) -> Any:
        return factory(classes, shape, seed, **taken)

    try:
        model: Any = make(shape) if "torch" not in sys.modules else None
        if "torch" in sys.modules and not hasattr(model, "spec"):  # else no net of torch came out
            from edge_sim.models.torch_families import made_with_torch  # torch is loaded already

            model = made_with_torch(
                make,
                shape,
                run_shape,
                classes,
                seed,
                preprocess=preprocess,
                head=head,
                device=device,
                takes_device="device" in taken,
                name=name.partition(":")[2],
            )
    except ModelError as error:
        raise UsageError(str(error)) from error
    except EdgeError:
        raise
    except (Exception, SystemExit) as error:
        told = one_line(f"{type(error).__name__}: {error}")
        raise UsageError(f"model {name}: it failed when called with ({classes}, {shape}, {seed}): {told}") from error
    spec = getattr(model, "spec", None)
    if not isinstance(spec, ModelSpec):
        raise UsageError(f"{name} gave {type(model).__name__}, expected a Model or a torch.nn.Module")
    if spec.classes != classes:
        raise UsageError(f"{name} gave a {type(model).__name__} for {spec.classes} classes, expected {classes}")
    built: Model = model
    return built


def _factory(name: str) -> Callable[..., Any]:
    """Load MODULE:FACTORY."""
    return load_function(name, "model ", example="my_models:make")
