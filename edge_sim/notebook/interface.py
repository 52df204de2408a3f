"""`edge_sim.run`, `compare` and `sweep`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from coordinator.config import load_toml, to_toml
from coordinator.record.observer import ObserverGroup, RunObserver
from coordinator.record.round_result import RoundResult
from coordinator.record.run_record import RunRecord
from coordinator.results.report.run_files import write_run
from edge_sdk.at_rest.files import make_private_folder, replace_durably
from edge_sdk.errors import UsageError
from edge_sdk.given_arrays import PictureLayout
from edge_sdk.models.base import Model
from edge_sim.config import settings as config_settings
from edge_sim.config.settings import AUTO, Config
from edge_sim.models.given_functions import check_sendable
from edge_sim.notebook.given import GivenData, GivenModels, declared_in, functions_of, with_models, write_data
from edge_sim.notebook.outcomes import ComparisonResult, SimulationResult, SweepResult, outcome_of
from edge_sim.runs.run_folder import remove_checkpoint
from edge_sim.runs.runner import ObserverFor, VirtualRun, check_taken_part, run
from edge_sim.studies.axes import axes_of, given_methods, given_seeds
from edge_sim.studies.planned_runs import compare, with_setting
from edge_sim.studies.search import search_of
from edge_sim.studies.sweep import sweep


@dataclass(frozen=True, slots=True)
class RoundNews:
    """The argument of `on_round`."""

    round: int
    of: int
    part: str
    """Empty for the federation, or `alone` while the devices train alone for the comparison."""
    accuracy: Mapping[str, float]
    """The accuracy of each device, by its id, in the last round that all measured devices have measured."""
    measured: int
    """The number of that round, or 0 before the first."""
    result: RoundResult
    """The round's bytes, seconds, joules and contributors.  Its accuracies may come later and are not included."""


@dataclass(frozen=True, slots=True)
class DeviceNews:
    """The argument of `on_device`."""

    device: str
    part: str
    count: int
    """How many of the `expected` devices have joined so far, or 0 if this one was turned away."""
    expected: int
    refusal: str = ""
    """Why it was turned away, or empty if it joined."""


class CallbackObserver(RunObserver):
    """Calls functions on the events of one part of a run."""

    def __init__(
        self,
        part: str,
        on_round: Callable[[RoundNews], object] | None,
        on_device: Callable[[DeviceNews], object] | None,
    ) -> None:
        self._part, self._on_round, self._on_device = part, on_round, on_device

    def joined(self, device: str, count: int, expected: int) -> None:
        """Call `on_device`."""
        if self._on_device is not None:
            self._on_device(DeviceNews(device, self._part, count, expected))

    def turned_away(self, device: str, message: str) -> None:
        """Call `on_device`."""
        if self._on_device is not None:
            self._on_device(DeviceNews(device, self._part, 0, 0, message))

    def round_done(self, result: RoundResult, of: int, record: RunRecord) -> None:
        """Call `on_round`."""
        if self._on_round is not None:
            measured, accuracy = record.newest_accuracies()
            self._on_round(RoundNews(result.round, of, self._part, accuracy, measured, result))


ConfigSource: TypeAlias = Config | Mapping[str, Any] | str | Path
"""A TOML file, its tables, or a parsed Config."""
DATA, NAME = "data.npz", "study"
"""The file for data given as arrays, and the name of a federation whose tables give none."""


def run_federation(
    config: ConfigSource,
    *,
    models: GivenModels | None = None,
    data: GivenData | None = None,
    settings: Mapping[str, Any] | None = None,
    on_round: Callable[[RoundNews], object] | None = None,
    on_device: Callable[[DeviceNews], object] | None = None,
    broker: str = "memory",
    out: str | Path | None = None,
    resume: bool = False,
    keep_models: bool = False,
    observer: ObserverFor = lambda _label: None,
    **options: Any,
) -> SimulationResult:
    """Run a federation and return its result.

    config: a TOML file, its tables (they need no name), or a parsed Config.
    settings: values that replace those of `config`, by key, such as {"train.learning_rate": 0.01}.
    models: functions (classes, input_shape, seed) that return a torch.nn.Module or a Model.  Give one for all devices,
    several that take turns, or a mapping from the model names of [[fleet]] rows.
    data: arrays (x_train, y_train, x_test, y_test), a mapping of these names, or a training and a test torch data set.

    on_round: called with RoundNews after each round.
    on_device: called with DeviceNews as devices join.
    observer: returns a RunObserver for a part of the run, or None.

    broker: `memory` (virtual time, one thread, bit-for-bit reproducible), or real processes in real time: `embedded`,
    `embedded:amqtt`, `embedded:mosquitto` or `mqtt://HOST[:PORT]`.
    out: the run directory, for the files that `edge-sdk simulate` writes.  No other run may use it at the same time.
    keep_models: whether to write the models of `trained` there, too.
    resume: whether to continue the run in `out`.
    options: quarantine and trace, as of `edge-sdk simulate`.

    Raises UsageError for unsuitable arguments, StoreError if the disk fails, and RunFailed if the run has no result.
    If no device could take part, RunFailed names the refusals.
    """
    if keep_models and out is None:
        raise UsageError("keep_models: needs out, the folder to keep them in")
    if models is not None and broker != "memory":
        check_sendable(functions_of(models))
    trained: dict[str, Model] = {}

    def keep(virtual: VirtualRun) -> None:
        trained.update({device.kit.id: model for device, model in virtual.models()})

    def observed(label: str) -> RunObserver:
        given = observer(label)
        return ObserverGroup(CallbackObserver(label, on_round, on_device), *([given] if given is not None else []))

    with _ready(config, models, data, settings, out) as (parsed, folder):
        result = run(parsed, broker=broker, out=out, resume=resume, observer=observed, finished=keep, **options)
        if out is not None:
            write_run(result, to_toml(parsed.tables), folder)
            if result.completed and broker == "memory":
                remove_checkpoint(folder)
            if keep_models:
                _write_models(trained, folder / "models")
        check_taken_part(result)
    return outcome_of(result, folder if out is not None else None, trained)


def compare_methods(
    config: ConfigSource,
    methods: Sequence[str] | str,
    *,
    seeds: Sequence[int] | int | str = (),
    out: str | Path | None = None,
    models: GivenModels | None = None,
    data: GivenData | None = None,
    settings: Mapping[str, Any] | None = None,
    metric: str = "mean",
    observer: ObserverFor = lambda _label: None,
) -> ComparisonResult:
    """Run the same federation under several methods, and compare them, as `edge-sdk compare` does.

    methods, seeds: lists, or text as on the command line: "fedal,fedmd" and "0,1,2".
    metric: the accuracy to compare, as of `edge-sdk compare`.
    out: the folder, by default runs/NAME-compare.  Finished runs in it are not run again.

    The other arguments are those of `run`.
    """
    with _ready(config, models, data, settings, out, study="-compare") as (parsed, folder):
        numbers = given_seeds(seeds) or (parsed.federation.seed,)
        found = compare(parsed, given_methods(methods), numbers, folder, observer, metric=metric)
    return ComparisonResult(found.lines, found.baseline, found.metric, folder)


def sweep_settings(
    config: ConfigSource,
    over: Mapping[str, Sequence[Any]] | Sequence[str] | str,
    *,
    trials: int | None = None,
    prune: bool = False,
    methods: Sequence[str] | str = (),
    seeds: Sequence[int] | int | str = (),
    out: str | Path | None = None,
    models: GivenModels | None = None,
    data: GivenData | None = None,
    settings: Mapping[str, Any] | None = None,
    observer: ObserverFor = lambda _label: None,
) -> SweepResult:
    """Run a grid of settings, let every method choose on the validation part, and compare, as `edge-sdk sweep` does.

    over: keys and their values, the base value first, or "0.001..0.1" for a range.  Or one or several texts as on the
    command line: "train.learning_rate=0.01,0.05".
    trials: try only this number of settings for each method, which Optuna proposes (TPE).
    prune: whether to end runs that are below the median of earlier ones.
    methods, seeds: as of `compare`.
    out: the folder, by default runs/NAME-sweep.

    The other arguments are those of `run`.
    """
    search = search_of(trials, prune=prune)
    with _ready(config, models, data, settings, out, study="-sweep") as (parsed, folder):
        chosen = given_methods(methods) or (parsed.federation.method,)
        numbers = given_seeds(seeds) or (parsed.federation.seed,)
        found = sweep(parsed, axes_of(over), chosen, numbers, folder, search=search, observer=observer)
    return SweepResult(found.axes, found.conditions, found.search, folder)


@contextmanager
def _ready(
    config: ConfigSource,
    models: GivenModels | None,
    data: GivenData | None,
    changes: Mapping[str, Any] | None,
    out: str | Path | None,
    *,
    study: str = "",
) -> Iterator[tuple[Config, Path]]:
    """The config with models and data in it, and the folder of the run or study, which holds the data.

    study: the end of the default folder's name.  Without it, as for a run, the default is a temporary folder, which
    lasts as long as the context.
    """
    tables, file = _tables(config)
    tables = with_setting(tables, changes or {})
    if models is not None:
        tables = with_models(tables, models)
    if data is not None:
        tables["data"] = {**declared_in(data), **tables.get("data", {}), "source": "npz", "path": DATA}
    parsed = config_settings.parse(tables, file)
    in_doubt = parsed.run.processes == AUTO and parsed.run.cluster is None  # stays in one process where it must
    if models is not None and not parsed.run.one_process and not in_doubt:
        check_sendable(functions_of(models))
    with tempfile.TemporaryDirectory() as temporary:
        default = Path("runs") / f"{parsed.federation.name}{study}" if study else Path(temporary)
        folder = default if out is None else Path(out)
        if data is not None:
            layout = cast("PictureLayout | None", parsed.data.layout)
            layout = write_data(data, folder / DATA, layout, parsed.data.declared)
            path = {"path": str((folder / DATA).resolve())}
            tables["data"] = {**tables["data"], **path, **({"layout": layout} if layout else {})}
            parsed = config_settings.parse(tables, file)
        yield parsed, folder


def _tables(config: ConfigSource) -> tuple[dict[str, Any], Path]:
    if isinstance(config, Config):
        return config.tables, config.file
    if isinstance(config, Mapping):
        tables = {**config}
        if isinstance(tables.get("federation"), Mapping):
            tables["federation"] = {"name": NAME, **tables["federation"]}
        return tables, Path("config")
    return load_toml(Path(config)), Path(config)


def _write_models(trained: Mapping[str, Model], folder: Path) -> None:
    """Write each model's state, for its `load_state`."""
    make_private_folder(folder)
    for device, model in trained.items():
        replace_durably(folder / f"{device}.state", model.state_bytes())
