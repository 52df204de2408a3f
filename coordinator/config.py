"""Federations as TOML: checked key by key, with one clear line for each mistake."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import Annotated, Any, TypeVar

from coordinator.rounds import Policy
from edge_sdk.errors import RemoteProtocolError, UsageError
from edge_sdk.methods.base import Method
from edge_sdk.methods.registry import load_method, method_names
from edge_sdk.protocol import schema
from edge_sdk.protocol.encodings import ENCODINGS
from edge_sdk.protocol.messages import EncodingSpec, FederationSpec, PublicSetSpec, Scalar, TrainSpec, Word
from edge_sdk.protocol.schema import Count, Id, Real, Text, Whole
from edge_sdk.protocol.transforms import unfit_encoding
from edge_sdk.public import PublicSet

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
Plain = dict[str, Any]

SECTIONS = ("federation", "method", "train", "public", "encoding")
SIMULATION = ("data", "partition", "fleet", "faults", "scenario", "run")
"""Read by the simulator alone; a coordinator lets them stand, so that one file serves both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationTable:
    """The section [federation]."""

    name: Id
    """Stands in topics and folders: small letters, digits and hyphens."""
    method: Word = "fedmd"
    """One that `edge-sdk methods` lists, or your own."""
    rounds: Annotated[int, Whole(1, 10**9)]
    """After which a closing exchange brings everybody the result."""
    devices: Annotated[int, Whole(1, 10**6)]
    """How many devices the run is made for."""
    quorum: Annotated[int, Whole(1, 10**6)] | None = None
    """Fewest uploads that an exchange may close with; default: all devices, or all participants."""
    participants: Annotated[int, Whole(1, 10**6)] | None = None
    """Answers that a round is content with, of devices drawn for it; default: it asks everybody."""
    over_selection: bool = False
    """Ask more devices than that, as many as the measured share of answers demands; the first answers count."""
    classes: Annotated[int, Whole(2, 65535)] | None = None
    """Needed where no data set tells."""
    seed: Annotated[int, Whole(0, 2**32 - 1)] = 0
    """Of all that is drawn: the same file gives the same run."""
    roster: tuple[Id, ...] = ()
    """Device ids that may join; empty: whoever comes."""
    deadline_s: Annotated[float, Real(0.001, 1e7)] = 60.0
    """After which an exchange closes with a quorum."""
    retry_s: Annotated[float, Real(0.001, 1e6)] = 5.0
    """First wait before a silent device is invited again; doubles up to the deadline."""
    join_grace_s: Annotated[float, Real(0.0, 1e6)] = 5.0
    """Wait for the rest once a quorum has joined."""
    patience: Annotated[int, Whole(0, 1000)] = 3
    """Deadlines that an exchange may miss its quorum before the run ends."""
    feature_dim: Count = 0
    """Width of the features of every model; needed by methods that trade rows of them."""
    nets: Annotated[str, Text(200)] | None = None
    """MODULE:FACTORY that returns a model of each architecture, for methods that run them on the coordinator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicTable:
    """The section [public]: the public set of a deployment, an npz file with one array."""

    path: str
    """The file; relative to the TOML file."""
    serve: bool = True
    """Whether devices that lack the set may fetch it from the coordinator."""


@dataclass(frozen=True, slots=True)
class Federation:
    """A federation that is ready to run: what devices are told, and when to go on."""

    spec: FederationSpec
    policy: Policy
    roster: tuple[str, ...]
    nets: str | None = None
    """Where the coordinator finds the devices' architectures."""


def load_toml(path: Path, overrides: Sequence[str] = ()) -> Plain:
    """The tables of a file, with `section.key=VALUE` overrides.  Raises UsageError."""
    try:
        tables: Plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not valid TOML: {error}") from None
    for override in overrides:
        _override(tables, override)
    return tables


def _override(tables: Plain, override: str) -> None:
    """Set one value, as in `federation.rounds=20` or `method.fedal.tau=3`."""
    name, equals, text = override.partition("=")
    *sections, key = name.strip().split(".")
    if not (equals and sections and all(sections) and key):
        raise UsageError(f"--set {override}: expected section.key=VALUE, such as federation.rounds=20")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    table: Any = tables
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise UsageError(f"--set {override}: {section} is not a table")
    table[key] = value


def read_values(text: str) -> list[Any]:
    """Values with commas between them, as TOML reads them; where it cannot, as words: 0.1,0.5 or rpi4,x86."""
    try:
        values: list[Any] = tomllib.loads(f"values = [{text}]")["values"]
    except tomllib.TOMLDecodeError:
        return [word.strip() for word in text.split(",")]
    return values


def check_sections(tables: Mapping[str, Any], known: Sequence[str], file: Path) -> None:
    """Raise UsageError for a section that nobody reads."""
    for name in tables:
        if name not in known:
            raise UsageError(f"{file}: unknown section [{name}]; known are {', '.join(sorted(known))}")


def read_table(cls: type[T], table: Any, section: str, file: Path) -> T:
    """A table as its dataclass.  Raises UsageError naming file, key and what is allowed."""
    if not isinstance(table, dict):
        raise UsageError(f"{file}: [{section}] must be a table")
    known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]  # only given dataclasses
    for key in table:
        if key not in known:
            raise UsageError(f"{file}: {section}.{key}: unknown key; allowed are {', '.join(sorted(known))}")
    try:
        return schema.from_plain(cls, table)
    except RemoteProtocolError as error:
        told = str(error).replace(cls.__name__, section, 1)
        raise UsageError(f"{file}: {told}{_found(told, section, table)}") from None


def _found(told: str, section: str, table: Mapping[str, Any]) -> str:
    """The value that an error is about, where it is a plain one and the error does not say what was found."""
    value = table.get(told.removeprefix(f"{section}.").partition(":")[0])
    return f", found {value!r}" if isinstance(value, (bool, int, float, str)) and ", found " not in told else ""


def federation(
    tables: Mapping[str, Any], file: Path, *, classes: int | None = None, public: PublicSetSpec | None = None
) -> Federation:
    """Read [federation], [method] and [train]; classes and public set come from the data where there is some."""
    check_sections(tables, (*SECTIONS, *SIMULATION), file)
    if "federation" not in tables:
        raise UsageError(f"{file}: the section [federation] is missing")
    table = read_table(FederationTable, tables["federation"], "federation", file)
    train = read_table(TrainSpec, tables.get("train", {}), "train", file)
    encoding = encodings(tables.get("encoding", {}), file)
    asked, word = (table.devices, "devices") if table.participants is None else (table.participants, "participants")
    if asked > table.devices:
        raise UsageError(
            f"{file}: federation.participants: expected at most the {table.devices} devices, found {asked}"
        )
    quorum = asked if table.quorum is None else table.quorum
    if quorum > asked:
        raise UsageError(f"{file}: federation.quorum: expected at most the {asked} {word}, found {quorum}")
    if table.over_selection and table.participants is None:
        raise UsageError(
            f"{file}: federation.over_selection: of no use without federation.participants, the answers wanted"
        )
    if table.roster and len(set(table.roster)) != table.devices:
        raise UsageError(
            f"{file}: federation.roster: expected {table.devices} different ids, one for each device, "
            f"found {len(set(table.roster))}"
        )
    known_classes = classes if classes is not None else table.classes
    if known_classes is None:
        raise UsageError(f"{file}: federation.classes: missing, and there is no data set here that would tell")
    method = chosen_method(table.method, tables.get("method", {}), file)
    misfit = method.misfit(table.devices)
    if misfit:
        raise UsageError(f"{file}: method.{misfit}")
    public = public or _public(tables, file)
    if (method.needs_public_set or method.runs_nets) and public is None:
        raise UsageError(
            f"{file}: {method.name} needs a public set: give [public] path = FILE.npz, "
            "or in a simulation data.public = COUNT"
        )
    if method.same_width and not table.feature_dim:
        raise UsageError(
            f"{file}: federation.feature_dim: missing; {method.name} averages rows of features, so all models must "
            "have as many, such as feature_dim = 64"
        )
    spec = FederationSpec(
        federation=table.name,
        method=table.method,
        params=method.table,
        contract=method.digest,
        classes=known_classes,
        rounds=table.rounds,
        seed=table.seed,
        train=train,
        public=public,
        feature_dim=table.feature_dim,
        encoding=encoding,
    )
    unfit = unfit_encoding(spec, method.every_exchange)
    if unfit:
        raise UsageError(f"{file}: {unfit}")
    policy = Policy(
        expected=table.devices,
        quorum=quorum,
        rounds=table.rounds,
        exchanges=len(method.exchanges),
        deadline_s=table.deadline_s,
        retry_s=table.retry_s,
        join_grace_s=table.join_grace_s,
        patience=table.patience,
        participants=table.participants or 0,
        over_select=table.over_selection,
        seed=table.seed,
    )
    return Federation(spec, policy, tuple(sorted(table.roster)), table.nets)


def encodings(table: Any, file: Path) -> EncodingSpec:
    """Read [encoding].  Raises UsageError, with the nearest name, for a kind or an encoding that there is not."""
    if isinstance(table, dict):
        kinds = [field.name for field in dataclasses.fields(EncodingSpec)]
        for kind, name in table.items():
            if kind not in kinds:
                raise UsageError(f"{file}: encoding.{kind}: no such payload kind; {_nearest(kind, kinds)}")
            if name not in ENCODINGS:
                raise UsageError(f"{file}: encoding.{kind}: no encoding {name!r}; {_nearest(name, list(ENCODINGS))}")
    return read_table(EncodingSpec, table, "encoding", file)


def _nearest(word: object, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(str(word), known, 1)
    return f"did you mean {close[0]}? known are {', '.join(known)}" if close else f"known are {', '.join(known)}"


def chosen_method(name: str, table: Mapping[str, Any], file: Path) -> Method[Any]:
    """A method under its parameters: the keys of [method] and those of [method.NAME].

    Sub-tables of other methods are left alone, so that one file serves several methods.
    """
    if not isinstance(table, dict):
        raise UsageError(f"{file}: [method] must be a table")
    flat: dict[str, Scalar] = {key: value for key, value in table.items() if not isinstance(value, dict)}
    known = method_names()
    for key, value in table.items():
        if isinstance(value, dict) and key not in known:
            raise UsageError(f"{file}: [method.{key}]: no such method; registered are {', '.join(known)}")
        if isinstance(value, dict) and key != name:
            _check_other(key, value, file)
    own: dict[str, Scalar] = table[name] if isinstance(table.get(name), dict) else {}
    for key in flat:
        if key in own:
            raise UsageError(f"{file}: method.{key}: stands in [method.{name}], too; set method.{name}.{key}")
    try:
        return load_method(name).under({**flat, **own})
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None


def _public(tables: Mapping[str, Any], file: Path) -> PublicSetSpec | None:
    found = public_set(tables, file)
    return None if found is None else found.spec


def _check_other(name: str, table: Mapping[str, Any], file: Path) -> None:
    """Raise UsageError for parameters that a method which is not run would not take either."""
    try:
        load_method(name).read(table)
    except UsageError as error:
        raise UsageError(f"{file}: [method.{name}]: {error}") from None


def public_to_serve(tables: Mapping[str, Any], file: Path) -> PublicSet | None:
    """The public set that devices may fetch; None: there is none, or it is not to be served.  Raises UsageError."""
    if "public" not in tables:
        return None
    table = read_table(PublicTable, tables["public"], "public", file)
    return public_set(tables, file) if table.serve else None


def public_set(tables: Mapping[str, Any], file: Path) -> PublicSet | None:
    """The public set of a deployment; None: there is none.  Raises UsageError."""
    if "public" not in tables:
        return None
    return PublicSet.load(file.parent / read_table(PublicTable, tables["public"], "public", file).path)


def to_toml(tables: Mapping[str, Any]) -> str:
    """Tables as text that load_toml reads back as they were, so that a run can be repeated from its directory."""
    return "\n".join(_lines("", tables))


def _lines(path: str, table: Mapping[str, Any]) -> list[str]:
    """The plain keys of a table, then its tables, each under a heading of its own; None is left out."""
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping) or _is_tables(value)}
    plain = {key: value for key, value in table.items() if key not in inner and value is not None}
    lines = [*(f"{_toml_key(key)} = {_toml_value(value)}" for key, value in plain.items()), *([""] if plain else [])]
    for key, value in inner.items():
        name = f"{path}{_toml_key(key)}"
        heading, rows = (f"[[{name}]]", value) if _is_tables(value) else (f"[{name}]", [value])
        lines += [line for row in rows for line in (heading, *_lines(f"{name}.", row))]
    return lines


def _is_tables(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(isinstance(row, Mapping) for row in value)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_value(key)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml_value(each) for each in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml_key(key)} = {_toml_value(each)}" for key, each in value.items()) + "}"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
