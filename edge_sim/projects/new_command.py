"""`edge-sdk new`: creates a project's folder, with data and a model for its kind of samples, from four answers."""

from __future__ import annotations

import argparse
import getpass
import re
import shlex
import shutil
import string
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO, TypeVar

from edge_sdk.at_rest.files import unwritable
from edge_sdk.errors import ModelError, UsageError
from edge_sdk.protocol.frames.schema import ID
from edge_sdk.protocol.topics import is_id
from edge_sdk.tools.install import unit
from edge_sdk.transport.mqtt.url import PASSWORD_VARIABLE, parse_broker_url, without_password

T = TypeVar("T")
TEMPLATES = Path(__file__).parent / "templates"
FILES = {
    "app.py": "app.py.txt",
    "prepare.py": "prepare.py.txt",
    "federation.toml": "federation.toml.txt",
    "test_app.py": "test_app.py.txt",
    "README.md": "README.md.txt",
    "systemd/coordinator.service": "coordinator.service.txt",
}
"""The files of a project, each with its template."""
MODELS = ("numpy", "torch", "onnx")
MOST_CLASSES, MOST_DEVICES = 1000, 1000
"""Limits above which generating data would take minutes; users can edit the project's files."""


@dataclass(frozen=True, kw_only=True)
class ProjectAnswers:
    """The answers that define a project."""

    folder: Path
    name: str
    """The federation's name."""
    model: str
    """One of MODELS."""
    classes: int
    devices: int
    broker: str
    onnx: Path | None = None
    """The user's .onnx file, if there is one."""
    shape: tuple[int, ...] = ()
    """The shape of one raw sample, or empty for that of the kind."""
    kind: str = "table"
    """As of `--kind`, or empty for an .onnx file, whose kind is not declared."""


def command(args: argparse.Namespace) -> int:
    """Make the project and print the next steps."""
    answers = asked(args, sys.stdin if sys.stdin.isatty() else None)
    make_project(answers)
    sys.stdout.write(
        f"made {answers.folder}: app.py, prepare.py, federation.toml, test_app.py, systemd/coordinator.service\n"
        f"\nNext:\n  cd {shlex.quote(str(answers.folder))}\n"
        "  python prepare.py            made-up data, to run before you add yours\n"
        "  python -m unittest           your app, and a federation of it in memory\n"
        "  then read README.md\n"
    )
    return 0


def asked(args: argparse.Namespace, stream: TextIO | None) -> ProjectAnswers:
    """Return the answers: from the options, else from `stream`, else by default.

    stream: terminal of a person who can answer, or None.  Raises UsageError for invalid answers.
    """
    folder: Path = args.folder
    _check_folder(folder)
    if args.onnx is not None and not args.onnx.is_file():
        raise UsageError(f"--onnx {args.onnx}: no such file")
    if args.onnx is not None and args.model not in (None, "onnx"):
        raise UsageError(f"--model {args.model}: has no effect with --onnx, which brings the model; leave it out")
    own_name = re.sub(r"[^a-z0-9-]+", "-", folder.absolute().name.lower()).strip("-")[: ID.most] or "my-app"
    if args.onnx is not None and args.kind is not None:
        raise UsageError(f"--kind {args.kind}: has no effect with --onnx, whose samples have the shape of the file")
    shape, classes = _of_file(args.onnx, args.classes) if args.onnx is not None else ((), args.classes)
    name = _answer(stream, "Name of the federation", args.name, own_name, _read_name)
    model = "onnx" if args.onnx else _answer(stream, "Runtime of your model: numpy, torch", args.model, "numpy", _model)
    known = _answer(stream, "How many classes", classes, 10, _count(2, MOST_CLASSES))
    devices = _answer(stream, "How many devices", args.devices, 4, _count(2, MOST_DEVICES))
    _check_broker(args.broker)
    return ProjectAnswers(
        folder=folder,
        name=name,
        model=model,
        classes=known,
        devices=devices,
        broker=args.broker,
        onnx=args.onnx,
        shape=shape,
        kind="" if args.onnx is not None else args.kind or "table",
    )


def _check_broker(url: str) -> None:
    """Raise UsageError for an invalid broker URL, or one with a password, which the project's files would reveal."""
    parse_broker_url(url)
    if without_password(url) != url:
        raise UsageError(
            f"--broker: the project's files are readable by others, so they must not hold a password; give "
            f"{without_password(url)}, and set {PASSWORD_VARIABLE}=... where the coordinator and the devices run"
        )


def make_project(answers: ProjectAnswers) -> None:
    """Write all files.  Raises UsageError, or StoreError where the disk refuses."""
    values = _values(answers)
    try:
        for file, template in FILES.items():
            target = answers.folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            text = string.Template((TEMPLATES / template).read_text(encoding="utf-8")).substitute(values)
            target.write_text(text, encoding="utf-8")
        if answers.onnx is not None:
            shutil.copyfile(answers.onnx, answers.folder / "model.onnx")
    except OSError as error:
        raise unwritable(
            error, f"{answers.folder}: cannot be written ({error.strerror}); name another folder"
        ) from None


def _values(answers: ProjectAnswers) -> Mapping[str, object]:
    """Return the values for the templates."""
    kind = project_kinds(answers.classes).get(answers.kind, UNDECLARED)
    imports, body = kind.model(answers.model)
    shape = answers.shape or kind.shape
    inputs = shape if answers.kind in ("series", "text", "table") else _input_shape(shape)
    axes = {"series": "(steps, sensors)", "text": "(tokens,)", "table": "(columns,)"}
    extra = {"numpy": "", "torch": "[torch]", "onnx": "[onnx]"}[answers.model]
    return {
        "name": answers.name,
        "broker": answers.broker,
        "classes": answers.classes,
        "devices": answers.devices,
        "quorum": max(1, answers.devices - 1),
        "held_each": max(1, (answers.classes + 1) // 2),
        "method": "fedmd",
        "shape": str(shape),
        "recorded": kind.recorded,
        "made_up": kind.made_up,
        "samples": kind.samples,
        "declared": f", {kind.declared}" if kind.declared else "",
        "settings": kind.settings,
        "preprocess": f"PREPROCESS = edge_sdk.Preprocess({kind.declared})\n" if kind.declared else "",
        "input_shape": str(inputs),
        "input_axes": axes.get(answers.kind, "(channels, height, width)"),
        "model_import": imports,
        "model_body": body,
        "install": f"pip install 'edge-sdk{extra}'" if extra else "pip install edge-sdk",
        "user": getpass.getuser(),
        "password_variable": PASSWORD_VARIABLE,
        **_unit_values(answers),
    }


def _unit_values(answers: ProjectAnswers) -> Mapping[str, str]:
    """Return the values for the coordinator's unit, quoted for systemd."""
    folder, python = answers.folder.absolute(), Path(sys.executable)
    return {
        "unit_folder": unit.literal(str(folder)),
        "unit_python": unit.quoted_word(str(python)),
        "unit_broker": unit.quoted_word(answers.broker),
        "unit_ending": "\n".join(unit.ending()),
        "unit_private_tmp": "".join(f"{line}\n" for line in unit.private_tmp(folder, python)),
    }


def _input_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the (c, h, w) that preprocess makes of raw samples (d,), (h, w) or (h, w, c)."""
    if len(shape) == 1:
        return (1, 1, shape[0])
    return (1, shape[0], shape[1]) if len(shape) == 2 else (shape[2], shape[0], shape[1])


def _of_file(file: Path, classes: int | None) -> tuple[tuple[int, ...], int]:
    """Return the shape of raw samples and the classes of an .onnx file.  Raises UsageError."""
    from edge_sdk.tools.onnx_inspect import inspected  # onnxruntime is imported only for a file

    try:
        found = inspected(file, classes)
    except ModelError as error:
        raise UsageError(f"--onnx: {error}") from error
    sizes: list[int] = found["sample_shape"]
    if len(sizes) != 3:
        raise UsageError(f"--onnx {file}: it does not fix the shape of a sample; make the project without --onnx")
    channels, height, width = sizes
    if channels == 1:
        return ((width,) if height == 1 else (height, width)), found["classes"]
    return (height, width, channels), found["classes"]


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: is a file; name a new folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder}: is not empty; name a new folder")


def _answer(stream: TextIO | None, question: str, given: object, default: object, read: Callable[[str], T]) -> T:
    """Return the given option, else a person's answer, else the default."""
    if given is not None:
        return read(str(given))
    while stream is not None:
        sys.stdout.write(f"{question} [{default}]: ")
        sys.stdout.flush()
        line = stream.readline()
        if not line:
            raise UsageError("no answer; give the options instead: edge-sdk new --help")
        try:
            return read(line.strip() or str(default))
        except UsageError as error:
            sys.stdout.write(f"{error}\n")
    return read(str(default))


def _read_name(text: str) -> str:
    if not is_id(text):
        raise UsageError(f"{text!r}: use a-z, 0-9 and -, at most {ID.most} of them")
    return text


def _model(text: str) -> str:
    if text == "onnx":
        raise UsageError("for an .onnx file give it: --onnx FILE")
    if text not in MODELS:
        raise UsageError(f"{text!r}: expected numpy or torch, or give --onnx FILE")
    return text


def _count(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise UsageError(f"{text!r}: expected a whole number from {least} to {most}")
        return int(text)

    return read


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectKind:
    """The parts of app.py and federation.toml that differ from kind to kind."""

    shape: tuple[int, ...]
    """That of one made-up sample."""
    recorded: str
    """Says what a sample's shape means."""
    made_up: str
    """Says what the made-up samples are."""
    samples: str
    """The lines that make x (count, *SHAPE) of rng and y."""
    declared: str = ""
    """The arguments that declare the kind."""
    constants: str = ""
    """Lines before SHAPE."""
    numpy: str = "edge_sdk.NumpyModel(classes, input_shape, seed=seed{preprocess})"
    net: str = (
        "nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), 64), nn.ReLU(), nn.Linear(64, classes))"
    )

    @property
    def settings(self) -> str:
        """The lines of [data] that declare the kind."""
        return "".join(f"{each.replace('=', ' = ')}\n" for each in self.declared.split(", ") if each)

    def model(self, runtime: str) -> tuple[str, str]:
        """Return the imports of app.py, and the body of its function `model`."""
        preprocess = ", preprocess=PREPROCESS" if self.declared else ""
        if runtime == "onnx":
            return "", '    return edge_sdk.OnnxModel("model.onnx", classes, seed=seed, input_shape=input_shape)'
        if runtime == "numpy":
            return "", f"    return {self.numpy.format(preprocess=preprocess)}"
        lines = (
            "torch.manual_seed(seed)",
            f"net = {self.net}",
            f"return edge_sdk.TorchModel(net, classes, input_shape=input_shape{preprocess})",
        )
        return "import torch\nfrom torch import nn\n", "\n".join(f"    {line}" for line in lines)


_PATTERNS = """\
    patterns = np.random.default_rng(0).uniform(0, 1, (CLASSES, *SHAPE))
    x = patterns[y] + rng.normal(0, 0.4, (count, *SHAPE))"""
_RHYTHMS = """\
    turns = (1 + y)[:, None] / 2 * np.linspace(0, 1, SHAPE[0]) + rng.uniform(0, 1, (count, 1))  # (n, t)
    x = np.sin(2 * np.pi * turns)[:, :, None] + rng.normal(0, 0.3, (count, *SHAPE))"""
_WORDS = """\
    of_class = rng.random((count, *SHAPE)) < 0.3
    x = np.where(of_class, 21 + 20 * y[:, None], 1) + rng.integers(0, 20, (count, *SHAPE))  # ids; 0 is padding"""
_SEQUENCES = "edge_sdk.SequenceModel(classes, input_shape, seed=seed{preprocess})"

UNDECLARED = ProjectKind(
    shape=(64,),
    recorded="(d,), (h, w) or (h, w, c)",
    made_up="a pattern for each class, with noise",
    samples=_PATTERNS,
)
"""Samples for a model that the user brings."""


def project_kinds(classes: int) -> Mapping[str, ProjectKind]:
    """Return the values of `--kind`, for this many classes."""
    words = max(2000, 20 * (classes + 2))
    return {
        "table": replace(UNDECLARED, recorded="(d,), the columns of a row", declared='kind="vector"'),
        "picture": replace(UNDECLARED, shape=(12, 12), recorded="(h, w) or (h, w, c)", declared='kind="picture"'),
        "series": ProjectKind(
            shape=(64, 3),
            recorded="(t, d), steps and sensors",
            made_up="a rhythm for each class, with noise",
            samples=_RHYTHMS,
            declared='kind="series"',
            numpy=_SEQUENCES,
        ),
        "text": ProjectKind(
            shape=(32,),
            recorded="(t,), the ids of its tokens; edge_sdk.hashed_words makes them",
            made_up="words that are frequent in each class",
            samples=_WORDS,
            declared=f'kind="tokens", vocabulary={words}',
            numpy=_SEQUENCES,
            net=f"nn.Sequential(nn.EmbeddingBag({words}, 32, padding_idx=0), nn.Linear(32, classes))",
        ),
    }
