"""Federations as TOML: checked key by key, with one clear line for each mistake."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from coordinator.rounds import Policy
from edge_sdk import toml
from edge_sdk.errors import UsageError
from edge_sdk.methods.base import Method
from edge_sdk.methods.registry import load_method, method_names
from edge_sdk.protocol import registry, toml_table
from edge_sdk.protocol.encodings import ENCODINGS
from edge_sdk.protocol.frozen_dict import FrozenDict
from edge_sdk.protocol.knowledge import PAYLOADS
from edge_sdk.protocol.messages import EncodingSpec, FederationSpec, PublicSetSpec, Scalar, TrainSpec, Word
from edge_sdk.protocol.schema import Count, Id, Integer, Real, Text
from edge_sdk.protocol.toml_table import allowed, to_table
from edge_sdk.protocol.transforms import OWN_FIELD, setting_of, unfit_encoding
from edge_sdk.public_set.samples import PublicSet

T = TypeVar("T")
TomlTable = dict[str, Any]

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
    rounds: Annotated[int, Integer(1, 10**9)]
    """After which a closing exchange brings everybody the result."""
    devices: Annotated[int, Integer(1, 10**6)]
    """How many devices the run is made for."""
    quorum: Annotated[int, Integer(1, 10**6)] | None = None
    """Fewest uploads that an exchange may close with; default: all devices, or all participants."""
    participants: Annotated[int, Integer(1, 10**6)] | None = None
    """Answers that a round is content with, of devices drawn for it; default: it asks everybody."""
    over_selection: bool = False
    """Ask more devices than that, as many as the measured share of answers demands; the first answers count."""
    classes: Annotated[int, Integer(2, 65535)] | None = None
    """Needed where no data set tells."""
    seed: Annotated[int, Integer(0, 2**32 - 1)] = 0
    """Of all that is drawn: the same file gives the same run."""
    roster: tuple[Id, ...] = ()
    """Device ids that may join; empty: whoever comes."""
    deadline_s: Annotated[float, Real(0.001, 1e7)] = 60.0
    """After which an exchange closes with a quorum."""
    retry_s: Annotated[float, Real(0.001, 1e6)] = 5.0
    """First wait before a silent device is invited again; doubles up to the deadline."""
    join_grace_s: Annotated[float, Real(0.0, 1e6)] = 5.0
    """Wait for the rest once a quorum has joined."""
    patience: Annotated[int, Integer(0, 1000)] = 3
    """Deadlines that an exchange may miss its quorum before the run ends."""
    feature_dim: Count = 0
    """Width of the features of every model; needed by methods that trade rows of them."""
    nets: Annotated[str, Text(200)] | None = None
    """MODULE:FACTORY that returns a model of each architecture, for methods that run them on the coordinator."""

    @property
    def asked(self) -> int:
        """How many devices answer in a round."""
        return self.devices if self.participants is None else self.participants

    def check(self, where: str) -> None:
        """Raise UsageError, naming `where` and the key, for values that do not go together."""
        if self.asked > self.devices:
            raise UsageError(
                f"{where}.participants: expected at most the {self.devices} devices, found {self.participants}"
            )
        if self.quorum is not None and self.quorum > self.asked:
            word = "devices" if self.participants is None else "participants"
            raise UsageError(f"{where}.quorum: expected at most the {self.asked} {word}, found {self.quorum}")
        if self.over_selection and self.participants is None:
            raise UsageError(f"{where}.over_selection: of no use without federation.participants, the answers wanted")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicTable:
    """The section [public]: the public set of a deployment, an npz file with one array."""

    path: str
    """The file; relative to the TOML file."""
    serve: bool = True
    """Whether devices that lack the set may fetch it from the coordinator."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a federation's file says to coordinator and simulator alike."""

    file: Path
    """Paths in it are relative to its folder."""
    federation: FederationTable
    method: Mapping[str, Any]
    """The section [method] as it stands there: `parameters` reads it, for the method that is run."""
    train: TrainSpec
    encoding: EncodingSpec
    public: PublicTable | None

    @property
    def tables(self) -> TomlTable:
        """The tables that are read back as these settings; values at their defaults are left out."""
        found = {
            "federation": to_table(self.federation),
            "method": self.method,
            "train": to_table(self.train),
            "public": to_table(self.public) if self.public is not None else {},
            "encoding": _encoding_table(self.encoding),
        }
        return {name: dict(table) for name, table in found.items() if table}


@dataclass(frozen=True, slots=True)
class Federation:
    """A federation that is ready to run: what devices are told, and when to go on."""

    spec: FederationSpec
    policy: Policy
    roster: tuple[str, ...]


def load_toml(path: Path, overrides: Sequence[str] = ()) -> TomlTable:
    """The tables of a file, with `section.key=VALUE` overrides.  Raises UsageError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    tables = toml.loads(text, str(path))
    for override in overrides:
        _override(tables, override)
    return tables


def _override(tables: TomlTable, override: str) -> None:
    """Set one value, as in `federation.rounds=20` or `method.fedal.tau=3`."""
    name, equals, text = override.partition("=")
    *sections, key = name.strip().split(".")
    if not (equals and sections and all(sections) and key):
        raise UsageError(f"--set {override}: expected section.key=VALUE, such as federation.rounds=20")
    try:
        value = toml.loads(f"value = {text}", name)["value"]
    except UsageError:
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
        values: list[Any] = toml.loads(f"values = [{text}]", text)["values"]
    except UsageError:
        return [word.strip() for word in text.split(",")]
    return values


def read_settings(tables: Mapping[str, Any], file: Path) -> Settings:
    """The sections that coordinator and simulator share.  Raises UsageError naming file, key and what is allowed."""
    known = (*SECTIONS, *SIMULATION)
    for name in tables:
        if name not in known:
            raise UsageError(f"{file}: unknown section [{name}]; known are {', '.join(sorted(known))}")
    if "federation" not in tables:
        raise UsageError(f"{file}: the section [federation] is missing")
    federation = read_table(FederationTable, tables["federation"], "federation", file)
    federation.check(f"{file}: federation")
    method = tables.get("method", {})
    if not isinstance(method, dict):
        raise UsageError(f"{file}: [method] must be a table")
    return Settings(
        file=file,
        federation=federation,
        method=method,
        train=read_table(TrainSpec, tables.get("train", {}), "train", file),
        encoding=_encodings(tables.get("encoding", {}), file),
        public=read_table(PublicTable, tables["public"], "public", file) if "public" in tables else None,
    )


def read_table(cls: type[T], table: Any, section: str, file: Path) -> T:
    """A section as its dataclass.  Raises UsageError naming file, key, what is allowed and what was found."""
    if not isinstance(table, dict):
        raise UsageError(f"{file}: [{section}] must be a table")
    return toml_table.read_table(cls, table, f"{file}: {section}.")


def federation(settings: Settings, *, classes: int | None = None, public: PublicSetSpec | None = None) -> Federation:
    """The federation that settings describe; classes and public set come from the data where there is some.

    Raises UsageError.
    """
    file, table = settings.file, settings.federation
    if table.roster and len(set(table.roster)) != table.devices:
        raise UsageError(
            f"{file}: federation.roster: expected {table.devices} different ids, one for each device, "
            f"found {len(set(table.roster))}"
        )
    known_classes = classes if classes is not None else table.classes
    if known_classes is None:
        raise UsageError(f"{file}: federation.classes: missing, and there is no data set here that would tell")
    method = chosen_method(settings)
    misfit = method.misfit(table.devices)
    if misfit:
        raise UsageError(f"{file}: method.{misfit}")
    if public is None and (own := public_set(settings)) is not None:
        public = own.spec
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
        train=settings.train,
        public=public,
        feature_dim=table.feature_dim,
        encoding=settings.encoding,
    )
    unfit = unfit_encoding(spec, method.every_exchange)
    if unfit:
        raise UsageError(f"{file}: {unfit}")
    policy = Policy(
        expected=table.devices,
        quorum=table.asked if table.quorum is None else table.quorum,
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
    return Federation(spec, policy, tuple(sorted(table.roster)))


def _encodings(table: Any, file: Path) -> EncodingSpec:
    """Read [encoding], whose keys are the payload kinds, those of other packages included.  Raises UsageError."""
    if not isinstance(table, Mapping):
        return read_table(EncodingSpec, table, "encoding", file)
    own = [field.name for field in dataclasses.fields(EncodingSpec) if field.name != "others"]
    others = {setting_of(tag): tag for tag in registry.names(PAYLOADS) if tag not in OWN_FIELD}
    for kind, name in table.items():
        if kind not in (*own, *others):
            raise UsageError(f"{file}: encoding.{kind}: unknown key; {allowed(kind, sorted([*own, *others]))}")
        if kind in others and name not in ENCODINGS:
            raise UsageError(f"{file}: encoding.{kind}: expected one of {', '.join(ENCODINGS)}, found {name!r}")
    ours = {kind: name for kind, name in table.items() if kind in own}
    theirs = FrozenDict({others[kind]: name for kind, name in table.items() if kind in others})
    return dataclasses.replace(read_table(EncodingSpec, ours, "encoding", file), others=theirs)


def _encoding_table(spec: EncodingSpec) -> dict[str, Any]:
    """The table that `_encodings` reads back."""
    table = to_table(spec)
    others = table.pop("others", {})
    return {**table, **{setting_of(tag): name for tag, name in others.items()}}


def chosen_method(settings: Settings) -> Method[Any]:
    """The method that is run, under its parameters: the keys of [method] and those of [method.NAME].

    Sub-tables of other methods are only checked, so that one file serves several methods.  Raises UsageError.
    """
    file, name, table = settings.file, settings.federation.method, settings.method
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


def _check_other(name: str, table: Mapping[str, Any], file: Path) -> None:
    """Raise UsageError for parameters that a method which is not run would not take either."""
    try:
        load_method(name).read(table)
    except UsageError as error:
        raise UsageError(f"{file}: [method.{name}]: {error}") from None


def public_set(settings: Settings) -> PublicSet | None:
    """The public set of a deployment; None: there is none.  Raises UsageError."""
    return None if settings.public is None else PublicSet.load(settings.file.parent / settings.public.path)


def public_to_serve(settings: Settings) -> PublicSet | None:
    """The public set that devices may fetch; None: there is none, or it is not to be served.  Raises UsageError."""
    return public_set(settings) if settings.public is not None and settings.public.serve else None


def to_toml(tables: Mapping[str, Any]) -> str:
    """Tables as text that load_toml reads back as they were, so that a run can be repeated; None is left out."""
    return toml.dumps(_without_none(tables))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, (list, tuple)) else value
