"""Builds the fleet of a config: devices with samples, model, board and link, and the coordinator's federation."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from coordinator.config import Federation
from coordinator.config import federation as read_federation
from coordinator.federation_table import names_fit
from coordinator.serving.equipment import Equipment
from edge_sdk.arrays import Ints
from edge_sdk.at_rest.files import make_private_folder, write_private
from edge_sdk.boards.profiles import load_board, load_link
from edge_sdk.data import Augment, LocalData, Preprocess, Samples
from edge_sdk.errors import EdgeError, UsageError
from edge_sdk.given_arrays import CHANNELS_LAST
from edge_sdk.loading import error_text
from edge_sdk.methods.contract.registry import METHODS, method_of
from edge_sdk.models.base import Model
from edge_sdk.privacy.release import Guarantee
from edge_sdk.protocol import registry
from edge_sdk.protocol.messages import FederationSpec
from edge_sdk.public_set.samples import PublicSet
from edge_sdk.sample_kind import arguments
from edge_sim.config import device_conditions
from edge_sim.config.device_conditions import IDEAL_CONDITIONS, DeviceConditions
from edge_sim.config.scenario import QUIET, ScenarioTable
from edge_sim.config.settings import CPU, Config, FleetRow
from edge_sim.data.datasets import Dataset, dataset_of
from edge_sim.data.held_samples import CopiedSamples, Held, IndexedSamples, PartSizes, SharedPreprocess
from edge_sim.data.partition import check_before_data, partition, read_partition, write_partition
from edge_sim.fleet.hardware import Hardware
from edge_sim.models import families
from edge_sim.models.model_types import HeadKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """The description of one device and its model, as plain values for another process."""

    id: str
    number: int
    family: str
    board: str
    link: str
    seed: int
    classes: int
    raw_shape: tuple[int, ...]
    scale: float
    size: tuple[int, int] | None
    feature_dim: int = 0
    head: HeadKind = "linear"
    device: str = CPU
    """Where a torch model computes: cpu or cuda:N."""
    proxy: str = ""
    """The family of the proxy beside the device's own model; or empty."""
    proxy_seed: int = 0
    proxy_features: int = 0
    """The width of the proxy's features, or 0 for that of its family."""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    """Normalisation of scaled samples for each channel, or empty."""
    kind: str | None = None
    vocabulary: int | None = None
    """The declared kind of samples, and how many ids of tokens there are."""
    privacy: tuple[float, ...] = ()
    """epsilon and delta of the device's privacy budget, or empty."""

    @property
    def budget(self) -> Guarantee | None:
        """The device's privacy budget, if it has one."""
        return Guarantee(*self.privacy) if self.privacy else None

    @property
    def needs_torch(self) -> bool:
        """Whether this device loads torch; over a broker, other devices run in processes without torch."""
        return any(families.runtime(family) == "torch" for family in (self.family, self.proxy) if family)

    @property
    def brought(self) -> tuple[str, ...]:
        """MODULE:FACTORY of its models, if they are the user's own."""
        return tuple(family for family in (self.family, self.proxy) if ":" in family)

    @property
    def secret(self) -> bytes:
        """The seed of the device's noise; not secret in a simulation, because runs must repeat."""
        return hashlib.sha256(f"noise/{self.seed}/{self.number}".encode()).digest()

    @property
    def board_name(self) -> str:
        """Name of the board's profile; `board` may be the path of a file."""
        return load_board(self.board).name

    @property
    def link_name(self) -> str:
        """Name of the link's profile; `link` may be the path of a file."""
        return load_link(self.link).name

    @property
    def preprocess(self) -> Preprocess:
        """Preprocessing from this run's raw samples to the inputs of this device's model."""
        return SharedPreprocess(
            size=self.size,
            scale=self.scale,
            mean=self.mean or 0.0,
            std=self.std or 1.0,
            kind=self.kind,
            vocabulary=self.vocabulary,
        )

    def model(self, public: PublicSet | None) -> Model:
        """Build a new model, the same for the same kit; extractors may be fitted on the public samples."""
        return self._built(self.family, self.seed, public, self.feature_dim, self.head)

    def proxy_model(self, public: PublicSet | None) -> Model | None:
        """Build a new proxy, the same for the same kit, or None."""
        return self._built(self.proxy, self.proxy_seed, public, self.proxy_features, "linear") if self.proxy else None

    def _built(self, family: str, seed: int, public: PublicSet | None, feature_dim: int, head: HeadKind) -> Model:
        return families.build_model(
            family,
            classes=self.classes,
            raw_shape=self.raw_shape,
            preprocess=self.preprocess,
            seed=seed,
            public=public.samples if public else None,
            feature_dim=feature_dim,
            head=head,
            device=self.device,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Device:
    """One simulated device."""

    kit: Kit
    held: Held
    public: PublicSet | None
    conditions: DeviceConditions = IDEAL_CONDITIONS

    @property
    def data(self) -> LocalData:
        """A copy of its samples."""
        return self.held.data()

    def write(self, folder: Path) -> None:
        """Write everything that a device process needs into a folder."""
        make_private_folder(folder)
        arrays: dict[str, Any] = {}
        data = self.data
        for part in PartSizes._fields:
            samples: Samples | None = getattr(data, part)
            if samples is not None:
                arrays |= {f"x_{part}": samples.x, f"y_{part}": samples.y}
        if self.public is not None:
            arrays |= {"public": self.public.samples}
        with write_private(folder / "data.npz") as file:
            np.savez(file, **arrays)
        plain = {"kit": asdict(self.kit), "augment": data.augment and asdict(data.augment)}
        (folder / "kit.json").write_text(json.dumps(plain), encoding="utf-8")


def read_device(folder: Path) -> Device:
    """Read what Device.write has written."""
    plain = json.loads((folder / "kit.json").read_text(encoding="utf-8"))
    values: dict[str, Any] = {
        key: tuple(each) if isinstance(each, list) else each for key, each in plain["kit"].items()
    }
    kit = Kit(**values)
    augment = Augment(**plain["augment"]) if plain["augment"] else None
    with np.load(folder / "data.npz", allow_pickle=False) as arrays:
        parts = [part for part in PartSizes._fields if f"x_{part}" in arrays.files]
        held = {
            part: Samples(arrays[f"x_{part}"], arrays[f"y_{part}"], (), CHANNELS_LAST, kit.kind, kit.vocabulary)
            for part in parts
        }
        data = LocalData(train=held.pop("train"), augment=augment, **held)
        public = PublicSet(arrays["public"], CHANNELS_LAST) if "public" in arrays.files else None
    return Device(kit=kit, held=CopiedSamples(data), public=public)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fleet:
    """All devices of a run, their data set, and the federation that they take part in."""

    dataset: Dataset
    devices: tuple[Device, ...]
    parts: tuple[Ints, ...]
    """Indices of the private samples that each device holds, before data.split divides them."""
    federation: Federation
    scenario: ScenarioTable = QUIET

    @property
    def measured(self) -> tuple[str, ...]:
        """The ids of the devices that are measured, if these are not all; else empty."""
        return self.federation.policy.closed_with

    @property
    def measured_numbers(self) -> dict[str, int]:
        """The numbers of the devices that are measured, by id, in their order."""
        measured = frozenset(self.measured or (each.kit.id for each in self.devices))
        return {each.kit.id: each.kit.number for each in self.devices if each.kit.id in measured}

    @property
    def device(self) -> str:
        """The torch device of all models: cpu or cuda:N."""
        return self.devices[0].kit.device

    @property
    def equipment(self) -> Equipment:
        """Equipment for methods that run the devices' models on the coordinator: one model of each architecture."""
        return Equipment(nets=self.nets, public=lambda: self.dataset.public)

    @property
    def brought(self) -> list[str]:
        """MODULE:FACTORY of all models that are the user's own."""
        return sorted({name for device in self.devices for name in device.kit.brought})

    def nets(self) -> list[Model]:
        """Build one model of each architecture in the fleet."""
        kinds = {(kit.family, kit.size, kit.feature_dim): kit for kit in (device.kit for device in self.devices)}
        return [kit.model(self.dataset.public) for kit in kinds.values()]


def build_fleet(config: Config) -> Fleet:
    """Load, split and partition the data, and read the federation.  Raises UsageError, which names the file."""
    with _naming(config.file):
        check_before_data(config)
        if config.run.device != CPU:
            from edge_sdk.models.torch_nets.torch_device import check_device  # torch only if a GPU is used

            check_device(config.run.device, "run.device")
        dataset = dataset_of(config)
        federation = _federation(config, dataset)
        parts = tuple(sample_division(config, dataset))
        held = [IndexedSamples(dataset, part, config.data.split, number) for number, part in enumerate(parts)]
        return Fleet(
            dataset=dataset,
            devices=_devices(config, dataset, federation.spec, dict(enumerate(held))),
            parts=parts,
            federation=federation,
            scenario=config.scenario,
        )


def build_device(config: Config, number: int) -> tuple[Device, Dataset]:
    """Build only one device of the fleet, equal to that of `build_fleet`.  Raises UsageError."""
    with _naming(config.file):
        dataset = dataset_of(config)
        spec = _federation(config, dataset).spec
        part = sample_division(config, dataset)[number]
        row = config.rows[number]
        kit = _kit(config, dataset, row, number, _wanted(spec))
        held = IndexedSamples(dataset, part, config.data.split, number)
        return Device(kit=kit, held=held, public=dataset.public, conditions=row), dataset


def rebuilt(fleet: Fleet, config: Config, numbers: Collection[int] | None = None) -> Fleet:
    """Return the fleet under another config, reusing its loaded and partitioned data.

    config: with the same [data], [partition], seed, classes and number of devices.  numbers: of the only devices to
    build, or None for all.  Raises UsageError.
    """
    with _naming(config.file):
        federation = _federation(config, fleet.dataset)
        held = {device.kit.number: device.held for device in fleet.devices}
        held = held if numbers is None else {number: held[number] for number in numbers}
        devices = _devices(config, fleet.dataset, federation.spec, held)
        return dataclasses.replace(fleet, devices=devices, federation=federation, scenario=config.scenario)


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Add the file's name to every UsageError inside the context."""
    try:
        yield
    except UsageError as error:
        if str(file) in str(error):
            raise
        raise UsageError(f"{file}: {error}") from None


def _federation(config: Config, dataset: Dataset) -> Federation:
    """Read the coordinator's side of the run.  Raises UsageError, also if its method lacks something."""
    federation = read_federation(
        dataclasses.replace(config, public=None),  # that file is for a deployment: no device here holds its set
        classes=dataset.classes,
        class_names=dataset.class_names if names_fit(dataset.class_names) else (),  # else reports have numbers
        public=dataset.public.spec if dataset.public else None,
    )
    method = method_of(federation.spec)
    try:
        method.begin(federation.spec)  # fails early if the method lacks something
    except Exception as error:
        if isinstance(error, EdgeError) or registry.is_own(METHODS, method.name):
            raise
        raise UsageError(f"method {method.name}: begin() failed with {error_text(error)}") from error
    policy = dataclasses.replace(federation.policy, closed_with=_measured(config))
    return dataclasses.replace(federation, roster=config.ids, policy=policy)


def _measured(config: Config) -> tuple[str, ...]:
    """Return the ids of the devices that are measured, in the order of their numbers, or empty for all."""
    count, devices = config.run.measured_of(len(config.ids)), len(config.ids)
    if count == devices:
        return ()
    drawn = np.random.default_rng([config.federation.seed, 10]).choice(devices, count, replace=False)
    return tuple(config.ids[number] for number in sorted(drawn.tolist()))


def _devices(config: Config, dataset: Dataset, spec: FederationSpec, held: Mapping[int, Held]) -> tuple[Device, ...]:
    """Return devices.  held: the samples of each, by its number."""
    wanted, rows = _wanted(spec), config.rows
    return tuple(
        Device(
            kit=_kit(config, dataset, rows[number], number, wanted),
            held=own,
            public=dataset.public,
            conditions=rows[number],
        )
        for number, own in held.items()
    )


def export_partition(config: Config, fleet: Fleet) -> None:
    """Write the fleet's partition to the file of [partition] export, if set.  Raises UsageError."""
    if config.partition.export:
        path = config.file.parent / config.partition.export
        write_partition(path, fleet.dataset, config.ids, fleet.parts)


def sample_division(config: Config, dataset: Dataset) -> list[Ints]:
    """Return the indices of the private samples of each device, from a file or drawn.  Raises UsageError."""
    table = config.partition
    if table.file:
        return read_partition(config.file.parent / table.file, dataset, config.ids, table.min_samples)
    return partition(
        table, dataset.private.y, len(config.ids), dataset.classes, config.federation.seed, users=dataset.users
    )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Requirements of a method on the models."""

    head: HeadKind
    proxy: str
    """The family of the proxy beside each device's own model; or empty."""
    proxy_features: int
    """The width of its features, or 0 for that of its family."""
    privacy: tuple[float, ...]
    """epsilon and delta of each device's privacy budget for one release, or empty without a guarantee."""


def _wanted(spec: FederationSpec) -> _Wanted:
    method = method_of(spec)
    needs, guarantee = method.needs, method.guarantee
    proxy = str(spec.params.get("proxy", "")) if "proxy" in needs else ""
    width, spliced = 0, getattr(method.params, "proxy_features", None)
    if proxy:
        _check_proxy(proxy)
    if proxy and spliced is not None and families.chooses_width(proxy):
        width = spliced or spec.feature_dim
    elif spliced:
        raise UsageError(f"method.proxy_features: the models of {proxy} have features of their own width; leave it out")
    privacy = (guarantee.epsilon, guarantee.delta) if guarantee is not None else ()
    return _Wanted("cosine" if "cosine-head" in needs else "linear", proxy, width, privacy)


def _check_proxy(family: str) -> None:
    """Raise UsageError if a family cannot serve as proxy."""
    try:
        families.check_family(family)
    except UsageError as error:
        raise UsageError(f"method.proxy: {error}") from None
    if families.runtime(family) == "onnx":
        raise UsageError(f"method.proxy: the models of {family} share no weights; choose one of numpy or torch")


@lru_cache(maxsize=4096)
def _seed(seed: int, purpose: int, start: int) -> int:
    """Return the seed of a model's first weights: one for all devices that start equal."""
    return int(np.random.default_rng([seed, purpose, start]).integers(2**31))


def _kit(config: Config, dataset: Dataset, row: FleetRow, number: int, wanted: _Wanted) -> Kit:
    profile, start = load_board(row.board), 0 if config.federation.start == "equal" else number
    model = device_conditions.model_of(row.model, profile, number, config.federation.seed)
    families.check_takes(model, dataset.kind)
    if row.feature_dim and not families.chooses_width(model):
        raise UsageError(f"fleet.feature_dim: the models of {model} have features of their own width; leave it out")
    kind, vocabulary = arguments(dataset.kind)
    return Kit(
        id=config.ids[number],
        number=number,
        family=model,
        board=row.board,
        link=row.link or profile.link,
        seed=_seed(config.federation.seed, 4, start),
        classes=dataset.classes,
        raw_shape=dataset.raw_shape,
        scale=dataset.scale,
        size=(row.size[0], row.size[1]) if row.size else None,
        feature_dim=row.feature_dim or config.federation.feature_dim,
        head=wanted.head,
        device=config.run.device,
        proxy=wanted.proxy,
        proxy_seed=_seed(config.federation.seed, 9, start),
        proxy_features=wanted.proxy_features,
        mean=dataset.scaling.mean,
        std=dataset.scaling.std,
        kind=kind,
        vocabulary=vocabulary,
        privacy=wanted.privacy,
    )


def hardware(device: Device) -> Hardware:
    """Return a device's board and link, cold and with a full battery."""
    conditions = device.conditions
    return Hardware(
        load_board(device.kit.board),
        load_link(device.kit.link),
        battery_wh=conditions.battery_wh,
        charge_w=conditions.charge_w,
    )
