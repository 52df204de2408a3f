"""`edge-sdk inspect`: describes an .onnx file, where it would be split, and the methods that it could take part in."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from edge_sdk.errors import ModelError, UsageError
from edge_sdk.methods.contract.base import Method
from edge_sdk.methods.contract.registry import load_method, method_fault, method_names, needed_parameters
from edge_sdk.models.base import ModelSpec
from edge_sdk.models.onnx_file.ending import chosen_endings
from edge_sdk.models.onnx_file.graph import Graph, read_graph
from edge_sdk.models.onnx_file.inputs import Layout, Port
from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel
from edge_sdk.models.onnx_runtime.onnx_session import OnnxSession, open_session
from edge_sdk.models.onnx_runtime.onnx_split import Opens, scores_of, sure_ending


def command(args: argparse.Namespace) -> int:
    """Describe a file; raise UsageError, in one line, for an unusable one."""
    file: Path = args.file
    if not file.is_file():
        raise UsageError(f"{file}: {'is a folder: give an .onnx file' if file.is_dir() else 'no such file'}")
    shape = tuple(args.input_shape) if args.input_shape else None
    try:
        found = inspected(file, args.classes, features=args.features, output=args.output, input_shape=shape,
                          layout=args.layout)  # fmt: skip
    except ModelError as error:
        raise UsageError(_as_options(str(error))) from error
    sys.stdout.write((json.dumps(found, indent=2) if args.json else _text(found)) + "\n")
    return 0


def _as_options(line: str) -> str:
    """Return a line about arguments of OnnxModel with the options of this command in their place."""
    return re.sub(r"\bclasses=(\d)", r"--classes \1", line.replace("input_shape=(c, h, w)", "--input-shape C,H,W"))


def inspected(
    file: Path,
    classes: int | None,
    *,
    features: str | None = None,
    output: str | None = None,
    input_shape: tuple[int, ...] | None = None,
    layout: Layout = "auto",
) -> dict[str, Any]:
    """Return the report of `edge-sdk inspect`.  Raises ModelError for a file that is not a model, or does not run.

    classes: of the federation, by default those of the file, or the width of its output.
    """
    graph = read_graph(file, file.name)
    known = classes
    if classes is None:
        opens = partial(OnnxSession, name=graph.name, input_shape=input_shape, layout=layout)
        known = _classes(graph, features, output, opens)
    model = OnnxModel(
        file, known, features=features, output=output, input_shape=input_shape, layout=layout, name=file.name
    )
    spec, inputs = model.spec, model.split.session.inputs
    whole = _whole(file, model, input_shape=input_shape, layout=layout)
    ports = [
        Port(each.name, each.type, tuple(each.shape)) for each in open_session(graph, graph.content()).get_inputs()
    ]
    return {
        "file": str(file),
        "bytes": file.stat().st_size,
        "opsets": {domain or "ai.onnx": version for domain, version in graph.opsets.items()},
        "description": graph.description,
        "inputs": [str(port) for port in ports],
        "outputs": [*graph.outputs],
        "sample_shape": list(inputs.sample_shape or ()),
        "layout": inputs.layout,
        "batch": _batch(ports[0], unbatched=inputs.unbatched),
        "samples_per_run": inputs.batch,
        "split_at": model.split.features,
        "head_starts": model.split.how,
        "remark": model.split.remark(),
        "cut": model.split.cut,
        "features": spec.feature_dim,
        "classes": spec.classes,
        "classes_known": classes is not None or model.split.how == "layer" or bool(model.split.place.then),
        "class_labels": [*model.split.labels],
        "parameters": graph.parameters(),
        "trained_parameters": spec.parameters,
        "training_all": {"remark": whole} if isinstance(whole, str) else _training_all(whole),
        "capabilities": sorted(spec.capabilities),
        "methods": {
            name: part_in(load_method(name)(), spec, spec if isinstance(whole, str) else whole.spec)
            for name in method_names()
            if not _untellable(name)
        },
    }


def _whole(file: Path, model: OnnxModel, *, input_shape: tuple[int, ...] | None, layout: Layout) -> OnnxModel | str:
    """Return the model with all layers that can learn, or the reason if none can."""
    split = model.split
    features = None if split.how == "layer" else split.features
    try:
        return OnnxModel(file, model.spec.classes, features=features, output=split.output, input_shape=input_shape,
                         layout=layout, name=file.name, train="all")  # fmt: skip
    except ModelError as error:
        return str(error).removeprefix(f"{file.name}: ")


def _training_all(all_: OnnxModel) -> dict[str, Any]:
    """Return what learns with train="all"."""
    body = all_.learning
    if body is None:
        return {}
    names = all_.weight_names()
    own = [name for name in names if _EXPORTERS_OWN.match(name)]
    return {
        "remark": body.report.remark(),
        "layers": body.report.layers,
        "learning_layers": body.report.learning,
        "parameters": all_.spec.parameters,
        "bytes_of_a_batch_of_8": all_.memory_bytes(8),
        "names": len(names),
        "names_of_the_exporter": own,
    }


_EXPORTERS_OWN = re.compile(r"onnx::|val_\d+$|rows$|cosine-rows$|scale$|/")
"""Names that the exporter gives to weights that it has changed: no torch net has them."""
_OF_NEW_HEADS = frozenset({"rows", "cosine-rows", "scale"})
"""Names in a head that does not have the form of the file's last layer: another export changes nothing."""


def _batch(port: Port, *, unbatched: bool) -> str:
    """Return the batch that a file declares: a number, any, or none without a batch axis."""
    if unbatched:
        return "none"
    return str(port.shape[0]) if port.shape and isinstance(port.shape[0], int) else "any"


def part_in(method: Method[Any], spec: ModelSpec, whole: ModelSpec) -> dict[str, str]:
    """Return a model's part in a method (learns, teaches or none) and a remark; whole: of train="all", or the same."""
    if method.learnt_by(spec.capabilities, spec.terms):
        idle = sorted(method.terms & spec.inert_terms)
        notes = [
            f"federation.feature_dim must be {spec.feature_dim}" if method.same_width else "",
            "needs a public set" if method.needs_public_set else "",
            f"{', '.join(idle)} would train the frozen body, and has no effect" if idle else "",
        ]
        return {"part": "learns", "note": "; ".join(filter(None, notes))}
    lacking = sorted(method.needs - spec.capabilities) or sorted(method.terms - spec.terms)
    if method.taught_by(spec.capabilities):
        return {"part": "teaches", "note": f"to learn, it lacks {', '.join(lacking)}"}
    still = sorted(method.needs - whole.capabilities) or sorted(method.terms - whole.terms)
    remedies = ['train="all" lets its body learn'] if still != lacking else []
    remedies += [text for ability, text in _REMEDIES.items() if ability in still]
    torch = [ability for ability in still if ability not in _REMEDIES]
    remedies += [f"for {', '.join(torch)} it takes a torch net"] if torch else []
    return {"part": "none", "note": f"lacks {', '.join(lacking)}: {'; '.join(remedies)}"}


_REMEDIES: Mapping[str, str] = {
    "sample-codes": "its owner allows it, App(share_sample_codes=True)",
    "proxy": "give the app a second model, App(proxy=...); NumpyModel(..., hidden=(64,)) needs no torch",
    "cosine-head": 'build it with head="cosine"',
    "weights": "its body is frozen",
    "guidance-gradients": "its body is frozen",
    "width": "a file does not say how its last block is computed at a share of its width: take a torch net that does",
    "data-free": "it generates pictures of at least 4 x 4, through a net whose operators can all be differentiated",
}
"""What to do about what a model lacks."""


def _classes(graph: Graph, features: str | None, output: str | None, opens: Opens) -> int | None:
    """Return the width of a file's scores, or None if its last linear layer reveals the classes."""
    ending = sure_ending(graph, chosen_endings(graph, output, None), None, opens)
    if ending.layer is not None and features in (None, ending.layer.features):
        return None
    width = scores_of(graph, ending, opens)[0].width
    return 2 if width == 1 and ending.cut == "Sigmoid" else width


def _text(found: Mapping[str, Any]) -> str:
    """Return the description as lines."""
    sizes = ", ".join(map(str, found["sample_shape"]))
    batch = {"any": "any batch", "none": "no axis for a batch"}.get(found["batch"], f"batches of {found['batch']}")
    if found["samples_per_run"] > 1:
        batch += f", so that one sample costs {found['samples_per_run']}: export it with a dynamic batch"
    opsets = ", ".join(f"{domain} {version}" for domain, version in found["opsets"].items())
    layout = f", the file takes {found['layout']}" if found["layout"] else ""
    lines = {
        "file": f"{found['file']}: {found['bytes']:,} bytes, opset {opsets}",
        "about": found["description"],
        "input": f"{'; '.join(found['inputs'])}; {batch}",
        "sample": f"({sizes}) as preprocess makes it{layout}",
        "output": ", ".join(found["outputs"]),
        "split": found["remark"],
        "features": str(found["features"]),
        "classes": str(found["classes"]) + ("" if found["classes_known"] else " (its width; give --classes)"),
        "parameters": f"{found['parameters']:,} in the file, {found['trained_parameters']:,} trained in the head",
        "can": ", ".join(found["capabilities"]),
        **_training_lines(found["training_all"]),
    }
    wide = max(map(len, found["methods"]))
    parts = [
        f"  {name:{wide}}  {'-' if row['part'] == 'none' else row['part']:7}  {row['note']}".rstrip()
        for name, row in found["methods"].items()
    ]
    return "\n".join([*(f"{key:10}  {text}" for key, text in lines.items() if text), "takes part in", *parts])


def _training_lines(found: Mapping[str, Any]) -> dict[str, str]:
    """Describe train="all" in lines."""
    if "layers" not in found:
        return {'train="all"': found["remark"]}
    own = found["names_of_the_exporter"]
    averages = "weights have the names of the net that was exported: they average with the net"
    if own and not {*own} - _OF_NEW_HEADS:
        averages = (
            f"the last layer is no torch Linear with a bias ({own[0]}): they average with equal files, not with the "
            "torch net"
        )
    elif own:
        averages = (
            f"{len(own)} of {found['names']} weights have an exporter's names ({own[0]}): they average with equal "
            "files, not with the torch net; export it with do_constant_folding=False, or dynamo=True and optimize=False"
        )
    mib = found["bytes_of_a_batch_of_8"] / 2**20
    return {
        'train="all"': f"{found['remark']}; {found['parameters']:,} parameters; about {mib:,.0f} MiB for batches of 8",
        "layout": averages,
    }


def _untellable(name: str) -> bool:
    """Whether a method cannot be judged: it requires parameters, or does not load."""
    return bool(method_fault(name) or needed_parameters(load_method(name)))
