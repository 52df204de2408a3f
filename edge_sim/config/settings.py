"""The settings of a simulated federation: those of coordinator/config.py, and the data, the fleet and its faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, time, timedelta, timezone
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, overload

from coordinator.config import Settings, chosen_method, load_toml, read_section, read_settings
from coordinator.federation_table import FederationTable, read_pace
from edge_sdk.boards.profiles import SUFFIX, load_board, load_link
from edge_sdk.errors import UsageError
from edge_sdk.protocol.frames.schema import Count, Integer, Items, Real, Text
from edge_sdk.protocol.messages import FOREVER
from edge_sdk.protocol.toml_table import to_table
from edge_sdk.reductions.influence import PAPER
from edge_sdk.sample_kind import KINDS, MOST_VOCABULARY, SampleKind, declared_kind
from edge_sdk.samples.texts import TEXT_LENGTH
from edge_sdk.transport.memory.hub import Faults
from edge_sim.config import device_conditions, run_keys
from edge_sim.config.device_conditions import DAY_S, IDEAL_CONDITIONS, DeviceConditions, read_window
from edge_sim.config.scenario import ScenarioTable

Share = Annotated[float, Real(0.0, 1.0)]
Seed = Annotated[int, Integer(0, 2**32 - 1)]
Side = Annotated[int, Integer(1, 4096)]
"""Height or width in pixels."""
SampleCount = Annotated[int, Integer(1, 10**9)]
"""Number of samples."""
CPU = "cpu"
"""The default torch device."""
AUTO = "auto"
MEASURED_ALL, MEASURED = 1000, 200
"""Up to this many devices are all measured; of more, this many are: the mean of 200 accuracies that differ by 10 points
from device to device is known to 1.4 points."""
Auto = Annotated[str, Text(4, AUTO)]
IN_STUDIES: Mapping[str, Any] = {"count_factor": 0.0, "hold_out_rounds": 0}
"""Keys of [robust] in a simulation by default, where a method shall be what its paper says."""
MOST_PROCESSES = 256


MOST_CHANNELS = 65536
"""Channels, columns or sensors that may be given a number each."""
_Numbers = Annotated[tuple[Annotated[float, Real(-1e9, 1e9)], ...], Items(1, MOST_CHANNELS)]
_Deviations = Annotated[tuple[Annotated[float, Real(1e-9, 1e9)], ...], Items(1, MOST_CHANNELS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalise:
    """Normalisation of inputs to unit scale, with one number for each channel, column or sensor, or one for all."""

    mean: _Numbers
    """Subtracted from values that `scale` has brought to about [0, 1]."""
    std: _Deviations
    """Divides the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AugmentTable:
    """Random changes of private training pictures (edge_sdk.Augment)."""

    crop_pixels: Annotated[int, Integer(0, 64)] = 0
    """Black padding on each side; a window of the old size is then cut out."""
    flip: bool = False
    """Whether half of the pictures are mirrored left to right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTable:
    """The section [data]; paths are relative to the TOML file."""

    source: Annotated[
        str,
        Text(
            16, "digits|drawn-digits|npz|csv|folder|leaf|hugging-face|mnist|fashion-mnist|emnist|svhn|cifar10|cifar100"
        ),
    ] = "digits"
    """Where the samples come from."""
    path: str | None = None
    """The npz file; the CSV file, or a folder with train.csv and test.csv; the folder with one sub-folder for each
    class; or LEAF's folder with train/ and test/."""
    root: str | None = None
    """Folder with the files of a torchvision data set, which its loaders call root."""
    dataset: Annotated[str, Text(200)] | None = None
    """Name of a data set on the Hugging Face Hub, for flwr-datasets, such as ylecun/mnist (hugging-face)."""
    subset: Annotated[str, Text(200)] | None = None
    """The subset of that data set, if it has several (hugging-face)."""
    label_column: Annotated[str, Text(200)] | None = None
    """The column with the classes; default: label in csv, the only one that could be in hugging-face."""
    user_column: Annotated[str, Text(200)] | None = None
    """The column that names who recorded a sample, for partition.kind = "user" (csv, hugging-face)."""
    series_column: Annotated[str, Text(200)] | None = None
    """The column that identifies a series; each row is a step (csv)."""
    text_column: Annotated[str, Text(200)] | None = None
    """The column with texts, whose words become ids of tokens (csv, hugging-face)."""
    ignored_columns: tuple[Annotated[str, Text(200)], ...] = ()
    """Columns to leave out (csv)."""
    length: Annotated[int, Integer(1, 65536)] = TEXT_LENGTH
    """How many words of a text are kept (tokens of csv, folder, hugging-face)."""
    rate: Annotated[int, Integer(1, 10**7)] | None = None
    """Rate of all .wav files in Hz (folder); default: that of the first."""
    emnist_split: Annotated[str, Text(16, "balanced|byclass|bymerge|letters|digits|mnist")] = "balanced"
    """One of EMNIST's six splits."""
    image_size: tuple[Side, ...] | None = None
    """Height and width to which pictures of a folder or of the Hub are resized when they are read, needed if sizes
    differ; of leaf, the shape of its flat samples."""
    layout: Annotated[str, Text(4, "NCHW|NHWC")] | None = None
    """Order of the axes of pictures (npz, leaf, numbers of hugging-face): NCHW, channels first, or NHWC; default:
    inferred from their sizes."""
    kind: Annotated[str, Text(13, "|".join(KINDS))] | None = None
    """What a sample is (npz, csv, folder, leaf, hugging-face): picture, vector, series (t, d), ragged-series of several
    lengths, or tokens, ids (t,) that are neither scaled nor normalised; default: vectors (csv), else told by
    their shape, pictures or vectors."""
    vocabulary: Annotated[int, Integer(2, MOST_VOCABULARY)] | None = None
    """How many ids of tokens there are: 0..vocabulary-1 (tokens)."""
    train_samples: SampleCount | None = None
    """Number of training samples to keep, each class in proportion; default: all."""
    test_samples: SampleCount | None = None
    """Number of test samples to keep, each class in proportion; default: all."""
    balance_test: bool = False
    """Keep equally many test samples of each class: as many as the rarest class has."""
    public: Count | None = None
    """Number of samples that are taken out of the training part as the public set; their labels are not used.  Default:
    0 where no method of the run or study needs such a set, else a third of them, at most 400."""
    test_fraction: Annotated[float, Real(0.01, 0.9)] = 0.2
    """Share of the samples used as test, for digits and for a folder without train/ and test/."""
    split: tuple[Annotated[float, Real(0.0, 1e6)], ...] = (1.0, 0.0, 0.0)
    """Shares of each device's own samples for training, validation and test."""
    scale: Annotated[float, Real(1e-9, 1e9)] | None = None
    """Factor that brings raw values to about [0, 1]; default by data set and dtype."""
    normalise: Annotated[str, Text(8, "none|fit")] | Normalise = "none"
    """Normalisation of each channel: with given numbers, or with those of the training samples."""
    augment: AugmentTable | None = None
    """Random changes of private training pictures; default: none."""
    seed: Seed | None = None
    """Seed of the draws of this section; default: the federation's."""

    @property
    def declared(self) -> SampleKind | None:
        """The declared kind of samples, or None if none is declared; rows of a CSV file are vectors by default.

        Raises UsageError without a vocabulary.
        """
        usual = "vector" if self.source == "csv" else None
        return declared_kind(self.kind or usual, self.vocabulary, "data")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTable:
    """The section [partition]."""

    kind: Annotated[
        str,
        Text(
            32,
            "classes_per_device|iid|dirichlet|dirichlet-per-device|dirichlet-equal|shards|quantity_skew|user",
        ),
    ] = "classes_per_device"
    """How the private samples are divided among the devices."""
    classes_per_device: Annotated[int, Integer(1, 65535)] = 3
    """Number of classes that each device holds (classes_per_device)."""
    alpha: Annotated[float, Real(1e-3, 1e6)] = 0.5
    """Concentration of the Dirichlet distribution: of each class over devices (dirichlet), of each device's mix of
    classes (dirichlet-per-device, dirichlet-equal), or of sizes (quantity_skew)."""
    shards_per_device: Annotated[int, Integer(1, 65535)] = 2
    """Number of pieces of the class-sorted samples that each device gets (shards)."""
    min_samples: SampleCount = 4
    """Minimum number of samples of a device."""
    seed: Seed | None = None
    """Seed of the partition; default: the federation's."""
    file: str | None = None
    """File from which to read the partition instead of drawing it; relative to the TOML file."""
    export: str | None = None
    """File to which the run writes the partition at its start; relative to the TOML file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRow(DeviceConditions):
    """One [[fleet]] row: a group of equal devices."""

    count: Annotated[int, Integer(1, 10**6)] = 1
    """Number of devices in this row; of the only row the default is `federation.devices`."""
    model: Annotated[str, Text(1000)] = "mlp"
    """A family (see edge_sim.models), MODULE:FACTORY, or a rule that picks one for each device: board, board:LIST,
    random:LIST or cycle:LIST (edge_sim/config/device_conditions.py)."""
    board: Annotated[str, Text(4096)] = "rpi4"
    """Name of a board profile, or the path of a .toml file with one; relative to the TOML file."""
    link: Annotated[str, Text(4096)] | None = None
    """Name of a link profile, or the path of a .toml file with one; default: the board's link."""
    size: tuple[Side, ...] | None = None
    """Height and width to which these devices resize samples."""
    feature_dim: Annotated[int, Integer(1, 65536)] | None = None
    """Width of the models' features; default: the federation's, if the family allows a choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultsTable:
    """The section [faults], for the memory broker."""

    drop: Annotated[float, Real(0.0, 0.95)] = 0.0
    """Probability that a frame is lost; above 0.95 hardly any frame arrives, and a run would not end."""
    duplicate: Share = 0.0
    """Probability that a frame arrives twice."""
    delay: Share = 0.0
    """Probability that a frame is delayed."""
    delay_s: Annotated[float, Real(0.0, 1e6)] = 1.0
    """Longest delay of a frame; delayed frames arrive out of order."""
    disconnect: Annotated[float, Real(0.0, 0.5)] = 0.0
    """Probability that the receiver loses its link instead; above 0.5 links rarely last, and a run would not end."""
    disconnect_s: Annotated[float, Real(0.1, 1e6)] = 5.0
    """Time until a lost link is back; at 0 repeated losses could keep the clock from advancing."""
    seed: Seed = 0
    """Seed of the draws of these faults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTable:
    """The section [run]."""

    standalone: Annotated[str, Text(16, "matched|every-round|off")] = "matched"
    """Also train every device alone, as a comparison: `matched` (or true): in the rounds in which `participants` draws
    it, with the same private steps; `every-round`: in all rounds; `off` (or false): not at all."""
    measured: Annotated[int, Integer(2, 2**31 - 1)] | Annotated[str, Text(4, "auto|all")] = AUTO
    """How many devices are measured, drawn at random: `all`, a number, or auto: all of up to 1,000, and 200 of more.
    Only these devices train alone for comparison then, and take part in the closing exchange."""
    processes: Annotated[int, Integer(1, MOST_PROCESSES)] | Auto | None = None
    """Number of processes that hold the devices in memory, including the coordinator's: 1 (the default), more,
    or auto: one for each core of this machine or the cluster, if that is faster.  See docs/how-to/speed.md."""
    stack: bool | Auto = False
    """Whether to compute devices with equal nets as one stack; auto: if a calibration finds it faster."""
    stacked: tuple[str, ...] | None = None
    """The models to stack, by their names in reports; default: all that can be stacked."""
    cluster: Annotated[str, Text(256)] | None = None
    """The Ray on which to start the processes: ray://HOST:PORT, HOST:PORT, auto, or local for a Ray of this run only;
    default: processes of this machine.  See docs/how-to/scale-out.md."""
    ray_fold: bool = False
    """Whether to add up uploads on the cluster, too, as partial aggregates."""
    broker_processes: Annotated[int, Integer(1, 64)] = 2
    """Number of processes that the torch devices share over a real broker; each other device has its own process."""
    memory_bytes: Annotated[int, Integer(1, 2**50, " (bytes)")] | None = None
    """Size above which the models' weights and moments lie in a file on disk; default: always in memory."""
    device: Annotated[str, Text(16, "cpu|cuda:[0-9]{1,3}")] = CPU
    """Where torch models compute: cpu, or cuda:N for a GPU."""

    def measured_of(self, devices: int) -> int:
        """Return how many of these devices are measured."""
        if isinstance(self.measured, int):
            return min(self.measured, devices)
        return MEASURED if self.measured == AUTO and devices > MEASURED_ALL else devices

    @property
    def one_process(self) -> bool:
        """Whether this process holds all devices."""
        return self.processes == 1 or (self.processes is None and self.cluster is None)

    def check(self, where: str) -> None:
        """Raise UsageError for settings that cannot be combined."""
        if self.cluster is not None and self.processes == 1:
            raise UsageError(f'{where}.processes: 1 leaves nothing to a cluster; give 2 or more, or "{AUTO}"')
        if self.device != CPU and not (self.one_process or (self.processes == AUTO and self.cluster is None)):
            raise UsageError(
                f"{where}.processes: a GPU belongs to one process, and the device is {self.device}; leave processes "
                "out, and stack = true computes many devices there at once"
            )
        if self.device != CPU and self.memory_bytes is not None:
            raise UsageError(f"{where}.memory_bytes: weights lie on {self.device}, never in a file; leave it out")


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """All settings of a simulation.  Paths are absolute, so that a copy in another folder has the same meaning."""

    data: DataTable
    partition: PartitionTable
    fleet: tuple[FleetRow, ...]
    faults: Faults
    faults_seed: int
    scenario: ScenarioTable
    run: RunTable
    remarks: tuple[str, ...] = ()
    """Lines for the user about keys in an older form."""

    @property
    def tables(self) -> dict[str, Any]:
        """The resolved TOML: tables that `parse` reads back as this config.

        [federation], [train], [data] and the fleet's boards and models name their defaults, too, so that a run can be
        repeated after a default changes; other values at their defaults are left out.
        """
        own = {
            "data": to_table(self.data, defaults=True),
            "partition": to_table(self.partition),
            "faults": to_table(FaultsTable(**asdict(self.faults), seed=self.faults_seed)),
            "scenario": to_table(self.scenario),
            "run": to_table(self.run),
            "robust": {**to_table(self.robust), **{key: getattr(self.robust, key) for key in IN_STUDIES}},
        }
        fleet = [{"count": row.count, "board": row.board, "model": row.model, **to_table(row)} for row in self.fleet]
        return {**super().tables, **{name: table for name, table in own.items() if table}, "fleet": fleet}

    @property
    def takes_public(self) -> bool:
        """Whether the training samples give a public set.  Raises UsageError for a method that does not load."""
        if self.data.public is not None:
            return self.data.public > 0
        method = chosen_method(self)
        return method.needs_public_set or method.runs_nets  # on the coordinator, and on public samples

    @cached_property
    def rows(self) -> tuple[FleetRow, ...]:
        """One row for each device of the fleet."""
        return tuple(row for row in self.fleet for _ in range(row.count))

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The device ids in the order of the rows; sorting them keeps that order."""
        width = max(2, len(str(len(self.rows) - 1)))
        return tuple(f"device-{i:0{width}d}" for i in range(len(self.rows)))


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read and check a file.  Raises UsageError, whose one line names the file, the key and allowed values."""
    file = Path(path)
    return parse(load_toml(file, overrides), file)


def parse(tables: Mapping[str, Any], file: Path) -> Config:
    """Check tables from a file or from Python.  Raises UsageError."""
    shared = read_settings(tables, file)
    federation = shared.federation
    fleet = _fleet(tables.get("fleet", [{}]), file, federation)
    counted = sum(row.count for row in fleet)
    if counted != federation.devices:
        raise UsageError(
            f"{file}: federation.devices: {federation.devices}, but the [[fleet]] counts add up to {counted}"
        )
    if federation.roster:
        raise UsageError(f"{file}: federation.roster: a simulated fleet names its own devices; leave it out")
    if federation.min_new_samples:
        raise UsageError(
            f"{file}: federation.min_new_samples: simulated devices get no new samples, so they would take part once; "
            "leave it out (edge-sdk simulate --set federation.min_new_samples=0)"
        )
    robust = tables.get("robust", {})
    scenario = read_section(ScenarioTable, tables.get("scenario", {}), "scenario", file)
    scenario.check(f"{file}: scenario")
    _check_hours(federation, fleet, scenario, file)
    faults = asdict(read_section(FaultsTable, tables.get("faults", {}), "faults", file))
    seed = faults.pop("seed")
    run, remarks = run_keys.current(tables.get("run", {}), f"{file}: run.")
    return Config(
        file=file,
        federation=replace(federation, start=federation.start or "equal"),
        method=shared.method,
        train=shared.train,
        encoding=shared.encoding,
        robust=replace(shared.robust, **{key: value for key, value in IN_STUDIES.items() if key not in robust}),
        public=shared.public and replace(shared.public, path=_absolute(shared.public.path, file)),
        data=_data(tables.get("data", {}), file),
        partition=_partition(tables.get("partition", {}), file),
        fleet=fleet,
        faults=Faults(**faults),
        faults_seed=seed,
        scenario=scenario,
        run=read_run_table(run, file),
        remarks=(*remarks, *_only_deployed(tables)),
    )


def _only_deployed(tables: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each key that `edge-sdk coordinator` alone heeds."""
    for section, key in (("guard", "canary"), ("alerts", "webhook")):
        if isinstance(table := tables.get(section), Mapping) and key in table:
            yield f"{section}.{key}: has no effect in a simulation, only in edge-sdk coordinator"


def _check_hours(federation: FederationTable, fleet: tuple[FleetRow, ...], scenario: ScenarioTable, file: Path) -> None:
    """Raise UsageError if too few devices are ever on within the hours in which rounds open."""
    pace = read_pace(federation, f"{file}: federation")
    if pace.hours is None:
        return
    midnight, minutes = datetime.combine(scenario.date(), time(), timezone.utc), range(0, int(DAY_S), 60)
    local = [(midnight + timedelta(seconds=at_s)).astimezone(pace.tz) for at_s in minutes]
    opens = [at_s for at_s, each in zip(minutes, local, strict=True) if pace.hours.hold(each.hour * 60 + each.minute)]
    open_s = {at_s + later_s for at_s in opens for later_s in range(0, int(min(federation.deadline_s, DAY_S)), 60)}
    never = {
        row.available
        for row in fleet
        if row.available and not any(map(read_window(row.available, "fleet.available").holds, open_s))
    }
    reached = sum(row.count for row in fleet if row.available not in never)
    needed = federation.asked if federation.quorum is None else federation.quorum
    if reached < needed:
        theirs = ", ".join(sorted(filter(None, never)))
        raise UsageError(
            f"{file}: federation.window: no round that opens within {pace.hours} ({pace.zone}) can be filled: "
            f"{reached} of the {needed} devices needed are on then, others only within {theirs} "
            "(fleet.available, UTC); change one of them, or lower federation.quorum"
        )


def _fleet(rows: Any, file: Path, federation: FederationTable) -> tuple[FleetRow, ...]:
    if not isinstance(rows, list):
        raise UsageError(f"{file}: fleet: write [[fleet]], once for each kind of device")
    if len(rows) == 1 and isinstance(rows[0], Mapping):
        rows = [{"count": federation.devices, **rows[0]}]
    fleet = tuple(_with_files(read_section(FleetRow, row, f"fleet[{i}]", file), file) for i, row in enumerate(rows))
    for i, row in enumerate(fleet):
        _check_row(row, f"{file}: fleet[{i}]", federation.seed)
    return fleet


NEEDED_KEYS: Mapping[str, str | None] = {
    "digits": None,
    "drawn-digits": None,
    "npz": "path",
    "csv": "path",
    "folder": "path",
    "leaf": "path",
    "hugging-face": "dataset",
}
"""The key of [data] that a source needs; all others need `root`."""


def _data(plain: Any, file: Path) -> DataTable:
    table = read_section(DataTable, plain, "data", file)
    needed = NEEDED_KEYS.get(table.source, "root")
    if needed and not getattr(table, needed):
        what = {"npz": "file", "csv": "file", "hugging-face": "data set, such as ylecun/mnist"}.get(
            table.source, "folder"
        )
        raise UsageError(f'{file}: data.{needed}: missing; with source = "{table.source}" it names the {what}')
    if table.image_size is not None and len(table.image_size) != 2:
        raise UsageError(f"{file}: data.image_size: expected [height, width], found {list(table.image_size)}")
    if len(table.split) != 3 or table.split[0] <= 0:
        raise UsageError(
            f"{file}: data.split: expected [train, validation, test], such as [8, 1, 1], with some to train on; "
            f"found {list(table.split)}"
        )
    return replace(table, path=_absolute(table.path, file), root=_absolute(table.root, file))


def read_run_table(plain: Any, file: Path) -> RunTable:
    """Read a table [run] in today's keys.  Raises UsageError."""
    if isinstance(plain, Mapping) and isinstance(plain.get("standalone"), bool):
        plain = {**plain, "standalone": "matched" if plain["standalone"] else "off"}
    table = read_section(RunTable, plain, "run", file)
    table.check(f"{file}: run")
    return table


def _partition(plain: Any, file: Path) -> PartitionTable:
    table = read_section(PartitionTable, plain, "partition", file)
    if table.file is not None:
        for key in ("kind", "export"):
            if key in plain:
                raise UsageError(f"{file}: partition.{key}: has no effect beside partition.file; leave one of them out")
    return replace(table, file=_absolute(table.file, file), export=_absolute(table.export, file))


def _check_row(row: FleetRow, where: str, seed: int) -> None:
    """Raise UsageError if a row names a model, a profile or a function that does not exist."""
    if row.size is not None and len(row.size) != 2:
        raise UsageError(f"{where}.size: expected [height, width], found {list(row.size)}")
    _check_name(load_board, row.board, f"{where}.board")
    profile = load_board(row.board)
    _check_name(lambda rule: device_conditions.model_of(rule, profile, 0, seed), row.model, f"{where}.model")
    if row.link is not None:
        _check_name(load_link, row.link, f"{where}.link")
    if row.charge_w and not (profile.battery_wh if row.battery_wh is None else row.battery_wh):
        raise UsageError(
            f"{where}.charge_w: the device has no battery to charge; give it battery_wh, or leave charge_w out"
        )
    row.check(where)


def _check_name(check: Callable[[str], object], name: str, where: str) -> None:
    try:
        check(name)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def _with_files(row: FleetRow, file: Path) -> FleetRow:
    """Return a [[fleet]] row in which the paths of profile files are absolute."""
    own = {key: getattr(row, key) for key in ("board", "link") if str(getattr(row, key)).endswith(SUFFIX)}
    return replace(row, **{key: _absolute(path, file) for key, path in own.items()})


@overload
def _absolute(path: str, file: Path) -> str: ...
@overload
def _absolute(path: str | None, file: Path) -> str | None: ...
def _absolute(path: str | None, file: Path) -> str | None:
    """Return the absolute form of a path that is relative to a file."""
    return None if path is None else str((file.parent / path).resolve())


def troubled(config: Config) -> bool:
    """Whether the config has faults that need the memory broker."""
    trials = [field.name for field in fields(DeviceConditions)]
    worse = any(getattr(row, name) != getattr(IDEAL_CONDITIONS, name) for row in config.fleet for name in trials)
    return worse or config.scenario != ScenarioTable()


def alone(config: Config, *, every_round: bool = False) -> Config:
    """Return the config with the same devices, data, seeds and private steps, but no exchanges and faults.

    The same participants are drawn in each round; every_round: all devices train in all rounds.
    """
    drawn = None if every_round else config.federation.participants
    federation = replace(
        config.federation,
        method="local",
        participants=drawn,
        control=0.0,
        over_selection=False,
        quorum=None,
        stop_at_bytes=None,
        stop_at_accuracy=None,
    )
    return replace(
        config,
        federation=federation,
        method={},
        robust=replace(PAPER, **IN_STUDIES),
        fleet=tuple(replace(row, **asdict(IDEAL_CONDITIONS)) for row in config.fleet),
        faults=Faults(),
        faults_seed=0,
        scenario=config.scenario.times if federation.rounds == FOREVER else ScenarioTable(),
    )
