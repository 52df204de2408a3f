"""Reads federations from TOML: every key is checked, and each mistake is reported in one line."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from coordinator.federation_table import (
    MAX_STALENESS,
    FederationTable,
    check_buffered_method,
    read_pace,
    rounds_of,
    unfit_for_control,
)
from coordinator.record.units import of_rounds
from coordinator.rounds import RoundPolicy
from coordinator.rounds.pace import NO_LIMIT, RoundPace
from edge_sdk import toml
from edge_sdk.at_rest.foreign import read_foreign
from edge_sdk.errors import UsageError, meant
from edge_sdk.given_arrays import PictureLayout
from edge_sdk.methods.contract.base import Method
from edge_sdk.methods.contract.description import has_start
from edge_sdk.methods.contract.registry import begins_alike, load_method, method_names
from edge_sdk.objectives import schedule_of
from edge_sdk.protocol import registry, toml_table
from edge_sdk.protocol.encodings import ENCODINGS
from edge_sdk.protocol.frames.records import FrozenDict
from edge_sdk.protocol.frames.schema import Integer, Text
from edge_sdk.protocol.knowledge import PAYLOADS
from edge_sdk.protocol.messages import (
    FOREVER,
    EncodingSpec,
    FederationSpec,
    PublicSetSpec,
    Scalar,
    TrainSpec,
)
from edge_sdk.protocol.toml_table import allowed, to_table
from edge_sdk.protocol.transforms import OWN_FIELD, setting_of, unfit_encoding
from edge_sdk.public_set.samples import PublicSet
from edge_sdk.reductions.influence import PAPER, RobustTable
from edge_sdk.sample_kind import KINDS, MOST_VOCABULARY

T = TypeVar("T")
TomlTable = dict[str, Any]

SECTIONS = ("federation", "method", "train", "public", "encoding", "robust", "alerts", "guard")
SIMULATION = ("data", "partition", "fleet", "faults", "scenario", "run")
"""Sections that only the simulator reads; a coordinator ignores them, so that one file serves both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicTable:
    """The section [public]: the public set of a deployment, an npz file with one array."""

    path: str
    """The path of the npz file, relative to the TOML file."""
    serve: bool = True
    """Whether devices that lack the set may fetch it from the coordinator."""
    layout: Annotated[str, Text(4, "NCHW|NHWC")] | None = None
    """Order of the axes of its pictures: NCHW, channels first, or NHWC; default: inferred from their sizes."""
    kind: Annotated[str, Text(13, "|".join(KINDS))] | None = None
    """What its samples are: picture, vector, series, ragged-series or tokens; needed for tokens that are stored as
    whole numbers."""
    vocabulary: Annotated[int, Integer(2, MOST_VOCABULARY)] | None = None
    """How many ids there are, of tokens."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings in a federation's file that coordinator and simulator share."""

    file: Path
    """The TOML file; paths in it are relative to its folder."""
    federation: FederationTable
    method: Mapping[str, Any]
    """The section [method] as written in the file; `chosen_method` reads it for the method of the run."""
    train: TrainSpec
    encoding: EncodingSpec
    public: PublicTable | None
    robust: RobustTable

    @property
    def tables(self) -> TomlTable:
        """The TOML tables that read back as these settings; values at their defaults are left out."""
        found = {
            "federation": _federation_table(self.federation),
            "method": self.method,
            "train": to_table(self.train, defaults=True),
            "public": to_table(self.public) if self.public is not None else {},
            "encoding": _encoding_table(self.encoding),
            "robust": to_table(self.robust),
        }
        return {name: dict(table) for name, table in found.items() if table}


def _federation_table(table: FederationTable) -> dict[str, Any]:
    """The table [federation] that reads back as this one."""
    found = to_table(table, defaults=True)
    return {**found, "rounds": "forever"} if table.rounds == FOREVER else found


@dataclass(frozen=True, slots=True)
class Federation:
    """A federation ready to run: its specification, the policy of its rounds, its roster, its limits."""

    spec: FederationSpec
    policy: RoundPolicy
    roster: tuple[str, ...]
    robust: RobustTable = PAPER
    pace: RoundPace = NO_LIMIT


def load_toml(path: Path, overrides: Sequence[str] = ()) -> TomlTable:
    """The tables of a file, with `section.key=VALUE` overrides.  Raises UsageError."""
    try:
        text = read_foreign(path).decode("utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: is a folder; name a federation's TOML file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not a TOML file, because it is not UTF-8 text ({error.reason})") from None
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
    """Read values separated by commas as TOML; a value that is not TOML is a word: 0.1,0.5 or rpi4,x86 or 1,auto."""
    try:
        values: list[Any] = toml.loads(f"values = [{text}]", text)["values"]
    except UsageError:
        return [_value_or_word(word.strip()) for word in text.split(",")]
    return values


def _value_or_word(text: str) -> Any:
    try:
        return toml.loads(f"value = {text}", text)["value"]
    except UsageError:
        return text


def read_settings(tables: Mapping[str, Any], file: Path) -> Settings:
    """Read the sections that coordinator and simulator share.

    Raises UsageError naming file, key and allowed values.
    """
    known = (*SECTIONS, *SIMULATION)
    for name in tables:
        if name not in known:
            near = meant(name, known)
            raise UsageError(f"{file}: unknown section [{name}]; {near}known are {', '.join(sorted(known))}")
    if "federation" not in tables:
        raise UsageError(f"{file}: the section [federation] is missing")
    federation = read_section(FederationTable, _with_count(tables["federation"]), "federation", file)
    federation.check(f"{file}: federation")
    method = tables.get("method", {})
    if not isinstance(method, dict):
        raise UsageError(f"{file}: [method] must be a table")
    return Settings(
        file=file,
        federation=federation,
        method=method,
        train=read_section(TrainSpec, tables.get("train", {}), "train", file),
        encoding=_encodings(tables.get("encoding", {}), file),
        public=read_section(PublicTable, tables["public"], "public", file) if "public" in tables else None,
        robust=read_section(RobustTable, tables.get("robust", {}), "robust", file),
    )


def _with_count(table: Any) -> Any:
    """Return the table [federation] with numbers where it has a word for its rounds, or a share of the devices."""
    if isinstance(table, dict) and "rounds" in table:
        table = {**table, "rounds": rounds_of(table["rounds"])}
    share, devices = (
        (table.get(key) for key in ("participants", "devices")) if isinstance(table, dict) else (None, None)
    )
    if isinstance(share, float) and isinstance(devices, int) and 0 < share <= 1:
        return {**table, "participants": max(1, round(share * devices))}
    return table


def read_section(cls: type[T], table: Any, section: str, file: Path) -> T:
    """Read a section as its dataclass.  Raises UsageError naming file, key, allowed and found value."""
    if not isinstance(table, dict):
        raise UsageError(f"{file}: [{section}] must be a table")
    return toml_table.read_table(cls, table, f"{file}: {section}.")


def federation(
    settings: Settings,
    *,
    classes: int | None = None,
    class_names: tuple[str, ...] = (),
    public: PublicSetSpec | None = None,
) -> Federation:
    """The federation that settings describe; classes, their names and public: from the data set, if there is one.

    Raises UsageError.
    """
    file, table = settings.file, settings.federation
    if table.roster and len(set(table.roster)) != table.devices:
        raise UsageError(
            f"{file}: federation.roster: expected {table.devices} different ids, one for each device, "
            f"found {len(set(table.roster))}"
        )
    names = class_names or table.class_names
    known_classes = classes if classes is not None else table.classes or len(names) or None
    if known_classes is None:
        raise UsageError(f"{file}: federation.classes: missing; without a data set it cannot be inferred")
    _check_schedule(settings)
    method = chosen_method(settings)
    own_loss = settings.train.class_weights != "none" or settings.train.label_noise_q > 0
    if own_loss and method.global_of == "proxy":
        raise UsageError(
            f"{file}: train.class_weights, train.label_noise_q: have no effect under {method.name}, which trains two "
            "models on losses of its own; leave them out"
        )
    if table.control and (no_control := unfit_for_control(method)):
        raise UsageError(f"{file}: federation.control: {no_control}; leave it out")
    misfit = method.misfit(table.devices)
    if misfit:
        raise UsageError(f"{file}: method.{misfit}")
    check_buffered_method(method, table, settings.robust, f"{file}: federation")
    if public is None and (own := public_set(settings)) is not None:
        public = own.spec
    if (method.needs_public_set or method.runs_nets) and public is None:
        raise UsageError(
            f"{file}: {method.name} needs a public set: give [public] path = FILE.npz, "
            "or in a simulation data.public = COUNT"
        )
    if method.same_width and not table.feature_dim:
        raise UsageError(
            f"{file}: federation.feature_dim: missing; {method.name} averages rows of features, which all models must "
            "give in one width, such as feature_dim = 64"
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
        class_names=names,
        buffered=table.buffer is not None,
        min_new_samples=table.min_new_samples,
    )
    _check_robust(settings.robust, method, public, known_classes, file)
    unfit = unfit_encoding(spec, method.every_exchange)
    if unfit:
        raise UsageError(f"{file}: {unfit}")
    pace = read_pace(table, f"{file}: federation")
    policy = _policy(table, pace, method)
    return Federation(spec, policy, tuple(sorted(table.roster)), settings.robust, pace)


def _policy(table: FederationTable, pace: RoundPace, method: Method[Any]) -> RoundPolicy:
    return RoundPolicy(
        expected=table.devices,
        most_devices=table.most_devices or 0,
        quorum=table.asked if table.quorum is None else table.quorum,
        rounds=table.rounds,
        exchanges=len(method.exchanges),
        deadline_s=table.deadline_s,
        retry_s=table.retry_s,
        join_grace_s=table.join_grace_s,
        patience=table.patience,
        participants=table.participants or 0,
        over_select=table.over_selection,
        stop_at_bytes=table.stop_at_bytes or 0,
        stop_at_accuracy=table.stop_at_accuracy or 0.0,
        seed=table.seed,
        control=table.control,
        control_rounds=table.control_rounds,
        paced=table.rounds == FOREVER or not pace.unlimited,
        forever=table.rounds == FOREVER,
        buffer=table.buffer or 0,
        busy=table.busy or 0,
        max_staleness=_max_staleness(table),
        first_ageing=0 if begins_alike(method) else 1,
    )


def _max_staleness(table: FederationTable) -> int:
    if table.buffer is None:
        return 0
    return MAX_STALENESS if table.max_staleness is None else table.max_staleness


def _check_robust(
    table: RobustTable, method: Method[Any], public: PublicSetSpec | None, classes: int, file: Path
) -> None:
    """Raise UsageError for a way to combine uploads that the method does not use, or that lacks its labels."""
    wanted = {"rows": table.rows != "mean", "logits": table.logits != "mean", "min_group": table.min_group > 1}
    for key, asked in wanted.items():
        if asked and ("rows" if key == "min_group" else key) not in method.robust:
            why = f"{method.name} leaves no choice of how {'logits' if key == 'logits' else 'class rows'} are combined"
            raise UsageError(f"{file}: robust.{key}: {why}; leave it out")
    if table.logits == "root-gate" and not any(label >= 0 for label in table.labels):
        raise UsageError(f'{file}: robust.labels: robust.logits = "root-gate" needs the labels of some public samples')
    if table.labels and table.logits != "root-gate":
        raise UsageError(f'{file}: robust.labels: has no effect without robust.logits = "root-gate"; leave it out')
    if table.labels and max(table.labels) >= classes:
        raise UsageError(
            f"{file}: robust.labels: expected classes from 0 to {classes - 1}, or -1, found {max(table.labels)}"
        )
    if public is not None and len(table.labels) > public.count:
        found = len(table.labels)
        raise UsageError(
            f"{file}: robust.labels: expected at most one for each of {public.count} samples, found {found}"
        )


def _check_schedule(settings: Settings) -> None:
    """Raise UsageError for a schedule that lacks a setting, or whose learning rate is zero before the last round."""
    train, where, rounds = settings.train, f"{settings.file}: train.", settings.federation.rounds
    for key, schedules in {"factor": ("step", "exponential"), "every_rounds": ("step",)}.items():
        if train.schedule in schedules and getattr(train, f"schedule_{key}") is None:
            raise UsageError(f"{where}schedule_{key}: missing, and schedule = {train.schedule!r} has no default for it")
    if train.schedule != "constant" and train.schedule_floor > train.learning_rate:
        raise UsageError(
            f"{where}schedule_floor: expected at most the learning_rate, {train.learning_rate:.10g}, "
            f"found {train.schedule_floor:.10g}"
        )
    if train.schedule == "cosine" and rounds == FOREVER and train.schedule_rounds is None:
        raise UsageError(f"{where}schedule_rounds: missing; without an end of the rounds, cosine needs their number")
    zero = schedule_of(train, rounds).first_zero(rounds) if train.learning_rate else None
    if zero is not None:
        raise UsageError(
            f"{where}schedule: {train.schedule!r} gives a learning rate of 0 from round {of_rounds(zero, rounds)} on; "
            "raise schedule_floor, or let it fall more slowly"
        )


def _encodings(table: Any, file: Path) -> EncodingSpec:
    """Read [encoding]; its keys are the payload kinds, including those of other packages.  Raises UsageError."""
    if not isinstance(table, Mapping):
        return read_section(EncodingSpec, table, "encoding", file)
    own = [field.name for field in dataclasses.fields(EncodingSpec) if field.name != "others"]
    others = {setting_of(tag): tag for tag in registry.names(PAYLOADS) if tag not in OWN_FIELD}
    for kind, name in table.items():
        if kind not in (*own, *others):
            raise UsageError(f"{file}: encoding.{kind}: unknown key; {allowed(kind, sorted([*own, *others]))}")
        if kind in others and name not in ENCODINGS:
            raise UsageError(f"{file}: encoding.{kind}: expected one of {', '.join(ENCODINGS)}, found {name!r}")
    ours = {kind: name for kind, name in table.items() if kind in own}
    theirs = FrozenDict({others[kind]: name for kind, name in table.items() if kind in others})
    return dataclasses.replace(read_section(EncodingSpec, ours, "encoding", file), others=theirs)


def _encoding_table(spec: EncodingSpec) -> dict[str, Any]:
    """The table that `_encodings` reads back."""
    table = to_table(spec)
    others = table.pop("others", {})
    return {**table, **{setting_of(tag): name for tag, name in others.items()}}


def chosen_method(settings: Settings) -> Method[Any]:
    """The method of the run with its parameters: the keys of [method] and of [method.NAME].

    Sub-tables of other methods are only checked, so that one file serves several methods.  Raises UsageError.
    """
    file, name, table = settings.file, settings.federation.method, settings.method
    flat: dict[str, Scalar] = {key: value for key, value in table.items() if not isinstance(value, dict)}
    known = method_names()
    for key, value in table.items():
        if isinstance(value, dict) and key not in known:
            raise UsageError(f"{file}: [method.{key}]: no such method; registered are {', '.join(known)}")
        if isinstance(value, dict) and key != name:
            _method(key, file).read(value, f"{file}: method.{key}.")
    own: dict[str, Scalar] = table[name] if isinstance(table.get(name), dict) else {}
    method = _method(name, file)
    for key in flat:
        if key in own:
            raise UsageError(f"{file}: method.{key}: is also set in [method.{name}]; keep only method.{name}.{key}")
    values, start = {**flat, **own}, settings.federation.start
    if start == "own" and values.get("start") == "equal":
        raise UsageError(f"{file}: method.start: 'equal' contradicts federation.start = 'own'; change one of them")
    if start == "equal" and has_start(method.params_type):
        values = {"start": start, **values}
    return method(method.read(values, f"{file}: method.", dict.fromkeys(own, f"{file}: method.{name}.")))


def _method(name: str, file: Path) -> type[Method[Any]]:
    """The method of this name.  Raises UsageError."""
    try:
        return load_method(name)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None


def public_set(settings: Settings) -> PublicSet | None:
    """The public set of a deployment, if it has one.  Raises UsageError."""
    if settings.public is None:
        return None
    layout = cast("PictureLayout | None", settings.public.layout)  # its pattern allows no other
    table = settings.public
    return PublicSet.load(settings.file.parent / table.path, layout, kind=table.kind, vocabulary=table.vocabulary)


def public_to_serve(settings: Settings) -> PublicSet | None:
    """The public set that devices may fetch, or None.  Raises UsageError."""
    return public_set(settings) if settings.public is not None and settings.public.serve else None


def to_toml(tables: Mapping[str, Any]) -> str:
    """Write tables as TOML that load_toml reads back.  None values are left out."""
    return toml.dumps(_without_none(tables))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value] if isinstance(value, (list, tuple)) else value
