"""`edge-sdk init`: writes a federation's file with every key, its meaning, allowed values and default."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import inspect
import itertools
import json
import math
import re
import shlex
import sys
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from coordinator.config import PublicTable
from coordinator.federation_table import FederationTable
from coordinator.results.writers.alerts import AlertsTable
from coordinator.serving.intake.canary import GuardTable
from edge_sdk.at_rest.files import unwritable
from edge_sdk.errors import UsageError, meant
from edge_sdk.methods.contract.base import Method
from edge_sdk.methods.contract.registry import load_method, method_names, needed_parameters
from edge_sdk.protocol.encodings import ENCODINGS
from edge_sdk.protocol.frames.schema import ID, Integer, Real, Text
from edge_sdk.protocol.messages import EncodingSpec, TrainSpec
from edge_sdk.protocol.topics import is_id
from edge_sdk.reductions.influence import RobustTable
from edge_sim.config.scenario import ScenarioTable
from edge_sim.config.settings import DataTable, FaultsTable, FleetRow, PartitionTable, RunTable

WIDTH = 110
"""Maximum length of a comment line."""
ABOUT: Mapping[str, str] = {
    "federation": "The devices, the method and the length of the run.",
    "method": "Parameters of the method.",
    "train": "How a device trains between exchanges, under any method.",
    "public": "The public set of a deployment; a simulation takes one from its data (data.public).",
    "encoding": "Bytes per number on the wire, for each kind of knowledge; docs/reference/encodings.md.",
    "robust": "Limits on the influence of one device; docs/how-to/hostile-devices.md.",
    "alerts": "What the coordinator says, and sends to a webhook; docs/how-to/does-it-help.md.",
    "guard": "Samples on which the coordinator tries each global model; docs/how-to/does-it-help.md.",
    "data": "The data of the simulated devices; docs/reference/data.md.",
    "partition": "The division of samples among devices.",
    "fleet": "A group of equal devices; write [[fleet]] once for each group. docs/reference/models.md and boards.md.",
    "faults": "Faults of single messages.",
    "scenario": "Faults of the broker and the coordinator; docs/reference/scenarios.md.",
    "run": "How the simulation computes; docs/how-to/speed.md.",
}
FEATURES, WITH_WIDTH = 64, "resnet"
"""Default width of features in a new file, and a family of models with a width switch."""
CLASSES = 10
"""Number of classes in the data of a new file's first run."""
SIMULATED = "Only edge-sdk simulate, compare and sweep read the following sections; a coordinator ignores them."


def command(args: argparse.Namespace) -> int:
    """Write the file, or print it for `-`."""
    if args.method not in method_names():
        raise UsageError(
            f"--method {args.method}: no such method; {meant(args.method, method_names())}see edge-sdk methods"
        )
    if not is_id(args.name):
        raise UsageError(f"--name {args.name!r}: use a-z, 0-9 and -, at most {ID.most} of them")
    method = load_method(args.method)
    if needed_parameters(method):
        needed = ", ".join(f"method.{key}" for key in needed_parameters(method))
        raise UsageError(f"--method {args.method}: it needs {needed}, which has no default: write the file by hand")
    text = commented(method(), name=args.name, devices=args.devices, rounds=args.rounds)
    if str(args.file) == "-":
        sys.stdout.write(text)
        return 0
    try:
        with args.file.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{args.file}: already exists; give another name, or remove it") from None
    except OSError as error:
        raise unwritable(error, f"{args.file}: cannot be written ({error.strerror}); give another name") from None
    sys.stdout.write(f"wrote {args.file}; try it with: edge-sdk simulate {shlex.quote(str(args.file))}\n")
    return 0


def commented(method: Method[Any], *, name: str, devices: int, rounds: int) -> str:
    """Return the text: keys for a first run are set, all others are commented out at their default."""
    given: dict[str, dict[str, Any]] = {
        "federation": {"name": name, "method": method.name, "rounds": rounds, "devices": devices},
        "fleet": {"count": devices},
    }
    if method.same_width:
        given["federation"]["feature_dim"] = FEATURES
    if "width" in method.needs:
        given["fleet"]["model"] = WITH_WIDTH
    if devices * PartitionTable().classes_per_device < CLASSES:
        given["partition"] = {"classes_per_device": math.ceil(CLASSES / devices)}
    shared: dict[str, type] = {
        "federation": FederationTable,
        f"method.{method.name}": method.params_type,
        "train": TrainSpec,
        "public": PublicTable,
        "encoding": EncodingSpec,
        "robust": RobustTable,
        "alerts": AlertsTable,
        "guard": GuardTable,
    }
    simulated: dict[str, type] = {
        "data": DataTable,
        "partition": PartitionTable,
        "fleet": FleetRow,
        "faults": FaultsTable,
        "scenario": ScenarioTable,
        "run": RunTable,
    }
    parts = ["# A federation's file, by `edge-sdk init`.  A commented-out key shows its default."]
    parts += [_section(section, table, given.get(section, {})) for section, table in shared.items()]
    parts += [_comment(SIMULATED)]
    parts += [_section(section, table, given.get(section, {})) for section, table in simulated.items()]
    return "\n\n".join(parts) + "\n"


def _section(section: str, table: type, given: Mapping[str, Any]) -> str:
    """Return a section with all of its keys; it is commented out if a required key has no value."""
    header = "[[fleet]]" if section == "fleet" else f"[{section}]"
    needs = any(_needed(field) and field.name not in given for field in dataclasses.fields(table))
    lines = [_comment(ABOUT[section.split(".", maxsplit=1)[0]]), f"# {header}" if needs else header]
    hints = typing.get_type_hints(table, include_extras=True)
    for field in dataclasses.fields(table):
        if (section, field.name) != ("encoding", "others"):  # kinds of other packages are keys of [encoding] themselves
            lines += _key(table, field, hints[field.name], given)
    return "\n".join(lines)


def _key(table: type, field: dataclasses.Field[Any], hint: Any, given: Mapping[str, Any]) -> Iterator[str]:
    told = words(table, field.name)
    may = ", ".join(ENCODINGS) if table is EncodingSpec else allowed_values(hint)
    said = " ".join(filter(None, [told, f"Allowed: {may}." if may not in ("", "text") else ""]))
    if said:
        yield _comment(said)
    if field.name in given:
        yield f"{field.name} = {_value(given[field.name])}"
        return
    default = None if _needed(field) else _default(field)
    yield f"# {field.name} = {'' if default is None else _value(default)}".rstrip()


def _needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _value(value: Any) -> str:
    """Write a value as TOML, which equals JSON for numbers, booleans, strings and lists."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def _comment(text: str) -> str:
    return "\n".join(f"# {line}" for line in textwrap.wrap(text, WIDTH))


# -- Documentation of a dataclass's fields, from its source: their docstrings and allowed values ----------------------


def words(table: type, name: str) -> str:
    """Return a field's docstring, which may be in a base class, on one line, or empty."""
    return next((found[name] for found in map(_words_of, table.__mro__[:-1]) if name in found), "")


@functools.cache
def _words_of(table: type) -> dict[str, str]:
    """Return the docstrings of the fields that a class itself defines."""
    (defined,) = ast.parse(textwrap.dedent(inspect.getsource(table))).body
    body = defined.body if isinstance(defined, ast.ClassDef) else []
    found = {}
    for field, after in itertools.pairwise(body):
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            found[field.target.id] = " ".join(ast.literal_eval(after.value).split())  # type: ignore[attr-defined]  # is_text
    return found


def allowed_values(hint: Any) -> str:
    """Describe the values that an annotation allows, or return empty."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _rule(args[1]) or allowed_values(args[0])
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in args)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(filter(None, (allowed_values(each) for each in args if each is not types.NoneType)))
    if origin is tuple:
        return f"a list of {allowed_values(args[0])}"
    return {bool: "true, false", str: "text"}.get(hint, "")


def _rule(rule: object) -> str:
    if isinstance(rule, Integer | Real):
        return f"{_number(rule.low)} to {_number(rule.high)}"
    if isinstance(rule, Text) and re.fullmatch(r"[a-z0-9|-]+", rule.pattern):
        return ", ".join(f"`{word}`" for word in rule.pattern.split("|"))
    return "text" if isinstance(rule, Text) else ""


def _number(value: float) -> str:
    """Write a number; long ones as powers of ten or of two."""
    for base, least in ((10, 5), (2, 20)):
        for less, said in ((0, ""), (1, " - 1")):
            exponent = round(math.log(value + less, base)) if value > 0 else 0
            if abs(exponent) >= least and math.isclose(value + less, float(base) ** exponent, rel_tol=1e-12):
                return f"{base}^{exponent}{said}"
    return f"{value:g}"
