"""Data sets for simulation: private training samples, a public part without labels, and a test of all classes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Ints
from edge_sdk.class_names import empty_classes, listed, name_of
from edge_sdk.data import Augment, Raw, Samples
from edge_sdk.errors import UsageError
from edge_sdk.given_arrays import CHANNELS_LAST, PictureLayout, public_taken
from edge_sdk.public_set.samples import PublicSet
from edge_sdk.sample_kind import BY_LAST_AXIS, RAGGED, SERIES, SampleKind, steps_there
from edge_sdk.samples.csv_files import CsvColumns
from edge_sim.config.settings import Config, DataTable, Normalise
from edge_sim.data.draw import draw_equally, draw_evenly
from edge_sim.data.sources import digits, hub, leaf, npz
from edge_sim.data.sources import folder as files
from edge_sim.data.sources.base import SourceData

OF_KINDS = ("npz", "csv", "folder", "leaf", "hugging-face")
"""Sources of samples that may be of any kind."""
READ_BY = {
    "label_column": ("csv", "hugging-face"),
    "user_column": ("csv", "hugging-face"),
    "series_column": ("csv",),
    "text_column": ("csv", "hugging-face"),
    "ignored_columns": ("csv",),
    "rate": ("folder",),
    "length": ("csv", "folder", "leaf", "hugging-face"),
}
"""Keys of [data], and the sources that read them."""
MOST_PUBLIC = 400
"""The most samples that become the public set where the settings do not say how many."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dataset:
    """One data set, divided into private samples, a public part and a test."""

    name: str
    private: Samples
    rows: Ints  # (n,)
    """Indices of the private samples among the training samples of the source."""
    source_samples: int
    """Number of training samples of the source."""
    users: NDArray[Any] | None  # (n,)
    """User who recorded each private sample, or None if unknown."""
    public: PublicSet | None
    public_labels: Ints | None  # (m,)
    """Labels of the public samples, which no device is given; plots use them."""
    test: Samples
    classes: int
    class_names: tuple[str, ...]
    """The names of the classes in their order; empty without names."""
    scale: float
    """Factor that brings raw values to about [0, 1]."""
    kind: SampleKind | None
    """The declared kind of samples, or None if none is declared."""
    scaling: Scaling
    """The mean and deviation that bring scaled values to unit scale."""
    augment: Augment | None
    """Random changes of private training pictures."""
    sha256: str
    seed: int
    """The seed of all draws made here."""
    taken: str = ""
    """A line about the layout of the source's samples, or empty."""
    drawn: dict[tuple[int, tuple[float, ...], int], tuple[Ints, Sequence[Ints]]] = field(default_factory=dict)
    """The rows and the parts of the devices that drew theirs last, by the identity of the rows, split and number."""

    @property
    def public_taken(self) -> str:
        """Describe how many samples the public set takes from the devices; empty if it takes none."""
        if self.public is None:
            return ""
        return public_taken(len(self.public.samples), len(self.private))

    @property
    def remark(self) -> str:
        """Return the layout of samples, and warnings of classes without a holder and of inputs far from unit scale.

        Empty in the usual case.
        """
        unheld = np.setdiff1d(self.test.y, self.private.y)
        names = listed([name_of(int(label), self.class_names) for label in unheld])
        lacks = f"no device has a training sample of class {names}, which the test measures" if len(unheld) else ""
        tokens = self.kind is not None and self.kind.name == "tokens"
        far = "" if self.scaling.mean or tokens else far_from_unit_scale(self.private.x, self.scale, self.kind)
        return "; ".join(filter(None, (self.taken, lacks, far)))

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """Shape of one raw sample: (d,), (h, w) or (h, w, c)."""
        return tuple(self.private.x.shape[1:])


def dataset_of(config: Config) -> Dataset:
    """Load and divide the data set of a simulation.  Raises UsageError or MissingExtra."""
    federation, table = config.federation, config.data
    if not config.takes_public:
        table = replace(table, public=0)
    return load_dataset(table, federation.seed, config.file.parent, federation.classes, federation.class_names)


def public_count(given: int | None, samples: int) -> int:
    """The number of samples that become the public set, out of `samples`; given: data.public, or None for a share."""
    return min(MOST_PUBLIC, samples // 3) if given is None else given


def load_dataset(
    table: DataTable, seed: int, folder: Path, classes: int | None = None, class_names: tuple[str, ...] = ()
) -> Dataset:
    """Load and divide the data set that a [data] section names; paths are relative to `folder`.

    classes, class_names: those of the federation, if declared; default: as many as the labels need.
    Raises UsageError or MissingExtra.
    """
    seed = seed if table.seed is None else table.seed
    kind = table.declared
    _check_source(table)
    if kind is not None:
        _check_kind(table, kind)
    whole = _in_order(read_source(table, seed, folder), class_names)
    names = whole.class_names
    found = int(max(whole.train.y.max(), whole.test.y.max(), len(names) - 1)) + 1
    if names and found > len(names):
        raise UsageError(f"class_names: {len(names)} names, but {_where(whole, len(names))}")
    if classes is not None and found > classes:
        raise UsageError(f"federation.classes: {classes}, but {_where(whole, classes)}")
    if names:
        names += tuple(map(str, range(found, classes or found)))  # of classes that only the federation knows
    elif classes is None:
        _check_held(whole, found)
    kept = _some(whole.train.y, table.train_samples, np.random.default_rng([seed, 6]), "train_samples")
    balanced = np.arange(len(whole.test))
    if table.balance_test:
        balanced = draw_equally(whole.test.y, np.random.default_rng([seed, 8]))
    tested = balanced[
        _some(whole.test.y[balanced], table.test_samples, np.random.default_rng([seed, 7]), "test_samples")
    ]
    train, test = _at(whole.train, kept), _at(whole.test, tested)
    x, y = train.x, train.y
    public = public_count(table.public, len(y))
    if not public < len(y):
        raise UsageError(
            f"data.public: expected fewer than the {len(y)} training samples, found {public}; "
            "leave some for the devices"
        )
    augment = Augment(**asdict(table.augment)) if table.augment else None
    if misfit := augment.misfit(x.shape[1:], kind.name if kind else None) if augment else "":
        raise UsageError(f"data.augment: {misfit}")
    order = np.random.default_rng([seed, 2]).permutation(len(y))
    chosen, rest = np.sort(order[:public]), np.sort(order[public:])
    scale = whole.scale if table.scale is None else table.scale
    private = _at(train, rest)
    return Dataset(
        name=whole.name,
        private=private,
        rows=kept[rest],
        source_samples=len(whole.train),
        users=whole.users[kept][rest] if whole.users is not None else None,
        public=PublicSet(x[chosen], CHANNELS_LAST) if public else None,
        public_labels=y[chosen] if public else None,
        test=test,
        classes=classes or found,
        class_names=names,
        scale=scale,
        kind=kind,
        scaling=scaling_of(table.normalise, private.x, scale, kind),
        augment=augment,
        sha256=_sha256(x, y, test.x, test.y),
        seed=seed,
        taken=whole.remark,
    )


def _check_source(table: DataTable) -> None:
    """Raise UsageError for keys that the source does not read, and for columns that it lacks."""
    usual = DataTable()
    for key, sources in READ_BY.items():
        if getattr(table, key) != getattr(usual, key) and table.source not in sources:
            raise UsageError(f"data.{key}: has no effect with source = {table.source!r}; it is of {', '.join(sources)}")
    if table.source == "csv" and (table.kind in SERIES) != (table.series_column is not None):
        remedy = f'kind = "{table.kind}" needs it, the column that identifies a series'
        if table.series_column is not None:
            remedy = 'needs kind = "series" or "ragged-series"'
        raise UsageError(f"data.series_column: {remedy}")
    if table.text_column is not None and table.kind != "tokens":
        raise UsageError('data.text_column: needs kind = "tokens" and vocabulary')


def _check_kind(table: DataTable, kind: SampleKind) -> None:
    """Raise UsageError for settings that samples of a declared kind do not have."""
    if kind.name != "picture" and table.source not in OF_KINDS:
        raise UsageError(f'data.kind: {table.source} has pictures: kind = "{kind.name}" is of {", ".join(OF_KINDS)}')
    if kind.name == "tokens" and (table.scale not in (None, 1) or table.normalise != "none"):
        raise UsageError("data.scale, data.normalise: ids of tokens reach a model as they are: leave them out")


def read_source(table: DataTable, seed: int, folder: Path) -> SourceData:
    """Read everything that the source of a [data] section holds.  Raises UsageError or MissingExtra."""
    if table.source == "digits":
        return digits.read_digits(table.test_fraction, seed)
    if table.source == "drawn-digits":
        return digits.read_drawn_digits(table.test_fraction, seed)
    layout = cast("PictureLayout | None", table.layout)  # its pattern allows no other
    kind = table.declared
    if table.source == "npz":
        return npz.read_npz(folder / (table.path or ""), layout, kind)
    if table.source == "csv":
        of_csv = CsvColumns(
            label=table.label_column or "label",
            series=table.series_column,
            text=table.text_column,
            user=table.user_column,
            ignored=table.ignored_columns,
        )
        path, held_out = folder / (table.path or ""), (table.test_fraction, seed)
        return files.read_csv_tables(path, of_csv, kind, table.length, hold_out=held_out)
    if table.source == "folder":
        size = (table.image_size[0], table.image_size[1]) if table.image_size else None
        form = files.FileOptions(size, table.rate, table.length)
        return files.read_folder(folder / (table.path or ""), form, table.test_fraction, seed, kind)
    if table.source == "leaf":
        shape = (table.image_size[0], table.image_size[1]) if table.image_size else None
        return leaf.read_leaf(folder / (table.path or ""), shape, layout, kind, table.length)
    if table.source == "hugging-face":
        size = (table.image_size[0], table.image_size[1]) if table.image_size else None
        columns = hub.Columns(table.label_column, table.user_column, layout, kind, table.text_column, table.length)
        return hub.read_hub(table.dataset or "", table.subset, columns, size, hold_out=(table.test_fraction, seed))
    from edge_sim.data.sources import torch_sources

    return torch_sources.read_torchvision(table.source, folder / (table.root or ""), table.emnist_split)


def _in_order(whole: SourceData, names: tuple[str, ...]) -> SourceData:
    """Return the data with the classes in this order, or with these names where they had none.  Raises UsageError."""
    own = whole.class_names
    if not names or own == names:
        return whole
    if not own:
        return replace(whole, class_names=names)
    if strange := [name for name in own if name not in names]:
        raise UsageError(f"federation.class_names: lacks {strange[0]!r}, a class of {whole.name}")
    places = np.array([names.index(name) for name in own])
    train, test = (
        Samples(part.x, places[part.y], (), CHANNELS_LAST, part.kind, part.vocabulary)
        for part in (whole.train, whole.test)
    )
    return replace(whole, train=train, test=test, class_names=names)


def _check_held(whole: SourceData, classes: int) -> None:
    """Raise UsageError if classes have no sample, although federation.classes does not declare this."""
    empty = empty_classes(classes, whole.train.y, whole.test.y)
    if not len(empty):
        return
    held = listed(np.unique(np.concatenate([whole.train.y, whole.test.y])).tolist())
    write = "y - 1" if empty.tolist() == [0] else "np.searchsorted(np.unique(y_train), y)"
    raise UsageError(
        f"data: {whole.name} has the labels {held}, and no sample of class {listed(empty.tolist())}: number the "
        f"classes from 0 without gaps (y = {write}, for training and test), give the names of classes as labels, or, "
        f"if these classes are meant to be there, set federation.classes = {classes}"
    )


def _where(whole: SourceData, classes: int) -> str:
    """Describe the first label that is not in 0..classes-1."""
    array, y = ("y_train", whole.train.y) if int(whole.train.y.max()) >= classes else ("y_test", whole.test.y)
    row = int(np.flatnonzero(y >= classes)[0])
    return f"{array} of {whole.name} has label {y[row]} at sample {row}; expected 0 to {classes - 1}"


def _some(y: Ints, count: int | None, rng: np.random.Generator, key: str) -> Ints:
    """Draw indices of `count` samples, each class in proportion, or all indices if `count` is None."""
    if count is None:
        return np.arange(len(y))
    if count > len(y):
        raise UsageError(f"data.{key}: expected at most the {len(y)} that the source has, found {count}")
    return draw_evenly(y, count, rng)


def _at(samples: Samples, rows: Ints) -> Samples:
    """Return some of the samples, at ascending indices; all of them without a copy."""
    return samples if len(rows) == len(samples) else samples.at(rows)


def _sha256(*arrays: NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).reshape(-1).data)
    return digest.hexdigest()


_IDS = '; ids of tokens are right as they are: declare them with kind = "tokens" and vocabulary'
_PART = 4096
"""Samples that are summed at a time."""
FAR = 2.0
"""A channel is far from unit scale where its mean is more than this many standard deviations from 0."""
LEAST_STD, MOST_STD = 0.1, 10.0
"""Likewise where its standard deviation is outside of these."""
LOOKED_AT = 2000
"""Samples from which a warning is found."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """The mean that is subtracted from scaled values in each channel, and the divisor; empty for neither."""

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


def scaling_of(normalise: str | Normalise, raw: Raw, scale: float, kind: SampleKind | None = None) -> Scaling:
    """Return the numbers of a [data] section; raw: the training samples that the devices hold, all together.

    kind: the declared one.

    Raises UsageError where the given numbers are not one for each channel.
    """
    if normalise == "none":
        return Scaling()
    if isinstance(normalise, str):
        return statistics(raw, scale, kind)
    channels = _channels(raw, kind)
    for key in ("mean", "std"):
        if (found := len(getattr(normalise, key))) not in (1, channels):
            raise UsageError(
                f"data.normalise.{key}: expected 1 or {channels} numbers, as many as channels, found {found}"
            )
    return Scaling(normalise.mean, normalise.std)


def statistics(raw: Raw, scale: float, kind: SampleKind | None = None) -> Scaling:
    """Return mean and standard deviation of each channel of scaled samples; a constant channel is divided by 1."""
    sums, squares, count, channels = 0.0, 0.0, 0, _channels(raw, kind)
    for start in range(0, len(raw), _PART):
        part = raw[start : start + _PART]
        part = part[steps_there(part)] if kind is not None and kind.name == RAGGED else part.reshape(-1, channels)
        count, part = count + len(part), part.astype(np.float64) * scale
        sums, squares = sums + part.sum(axis=0), squares + (part**2).sum(axis=0)
    mean = np.reshape(sums / count, channels)
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    std[std < 1e-6] = 1
    return Scaling(tuple(mean.tolist()), tuple(std.tolist()))


def far_from_unit_scale(raw: Raw, scale: float, kind: SampleKind | None = None) -> str:
    """Return a warning if scaled samples are far from mean 0 and standard deviation 1, otherwise an empty text."""
    found = statistics(raw[:: max(1, len(raw) // LOOKED_AT)], scale, kind)
    far = [
        (mean, std)
        for mean, std in zip(found.mean, found.std, strict=True)
        if abs(mean) > FAR * std or not LEAST_STD <= std <= MOST_STD
    ]
    if not far:
        return ""
    mean, std = far[0]
    ids = kind is None and bool((raw >= 0).all() and (raw == np.rint(raw)).all()) and scale == 1
    return (
        f"data.normalise: a channel has mean {mean:.3g} and standard deviation {std:.3g}, far from 0 and 1, and many "
        'models learn slowly from such; normalise = "fit" brings them there'
        f"{_IDS if ids else ''}"
    )


def _channels(raw: Raw, kind: SampleKind | None) -> int:
    return raw.shape[-1] if raw.ndim == 4 or (kind is not None and kind.name in BY_LAST_AXIS) else 1
