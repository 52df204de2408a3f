"""A source for data sets of the Hugging Face Hub, which flwr-datasets names: those in this machine's cache alone.

The library `datasets` reads them; flwr-datasets rests on it, and shares its cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from edge_sdk.arrays import Ints
from edge_sdk.class_names import class_ids, listed
from edge_sdk.data import Raw, Samples
from edge_sdk.errors import MissingExtra, UsageError
from edge_sdk.given_arrays import CHANNELS_LAST, PictureLayout, picture_bytes, stacked_pictures
from edge_sdk.sample_kind import SampleKind, arguments, as_held
from edge_sdk.samples.texts import TEXT_LENGTH, ids_of_words
from edge_sim.data.draw import hold_out as held_out
from edge_sim.data.sources.base import SourceData
from edge_sim.data.sources.folder import REMEDY

TEST_SPLITS = ("test", "validation", "valid")
"""Names of the part that becomes the test.  The first existing one is used."""


class Columns(NamedTuple):
    """The columns that the user named.  None lets the reader find them."""

    label: str | None = None
    user: str | None = None
    layout: PictureLayout | None = None
    """The order of the axes of samples of numbers."""
    kind: SampleKind | None = None
    """The declared kind of samples."""
    text: str | None = None
    """The column with texts."""
    length: int = TEXT_LENGTH
    """How many words of a text are kept."""

    @property
    def takes_texts(self) -> bool:
        """Whether samples may be texts, whose words become ids."""
        return self.kind is not None and self.kind.name == "tokens"


def read_hub(
    name: str, subset: str | None, columns: Columns, size: tuple[int, int] | None, *, hold_out: tuple[float, int]
) -> SourceData:
    """Read a data set that is cached: pictures u1 (n, h, w) or (n, h, w, 3), or numbers f4 (n, ...).

    size: height and width to which pictures are resized.  hold_out: share that becomes the test if the source has no
    test, and a seed.  Nothing is downloaded.  Raises UsageError, MissingExtra without the library `datasets`.
    """
    parts = _load(name, subset)
    where = f"data.dataset: {name}"
    if "train" not in parts:
        raise UsageError(f"{where}: has no part train; there are {', '.join(parts)}")
    test_name = next((each for each in TEST_SPLITS if each in parts), None)
    label, samples = _find_columns(parts["train"], columns, where)
    used = [parts["train"], *([parts[test_name]] if test_name else [])]
    x = _samples([value for part in used for value in part[samples]], size, f"{where}: {samples}", columns)
    layout = CHANNELS_LAST if x.dtype == np.uint8 else columns.layout
    x, remark = as_held(x, columns.kind, layout, f"{name}: {samples}")
    names = getattr(parts["train"].features[label], "names", None) or ()  # of a ClassLabel
    y, names = _labels([value for part in used for value in part[label]], names, f"{where}: {label}")
    count = len(parts["train"])
    train, test = np.arange(count), np.arange(count, len(y))
    if test_name is None:
        fraction, seed = hold_out
        train, test = held_out(y, fraction, np.random.default_rng([seed, 1]))
    users = np.array([str(each) for each in parts["train"][columns.user]]) if columns.user else None
    return SourceData(
        name=name,
        train=Samples(x[train], y[train], (), CHANNELS_LAST, *arguments(columns.kind)),
        test=Samples(x[test], y[test], (), CHANNELS_LAST, *arguments(columns.kind)),
        scale=1 / 255 if x.dtype == np.uint8 else 1.0,
        class_names=names,
        users=users[train] if users is not None else None,
        remark=remark,
    )


def _load(name: str, subset: str | None) -> Mapping[str, Any]:
    """The parts of a data set by name.  Raises UsageError where it is not cached, or has several subsets."""
    try:
        import datasets
    except ImportError:
        raise MissingExtra("datasets", "flwr", 'source = "hugging-face"') from None
    try:
        with _offline_and_quiet():
            found: Mapping[str, Any] = datasets.load_dataset(name, subset)
    except Exception as error:  # noqa: BLE001  # a missing or damaged cache makes the library raise a dozen kinds
        why = str(error).strip().splitlines() or [type(error).__name__]
        named = ", ".join(repr(each) for each in (name, subset) if each is not None)
        get = f'python -c "import datasets; datasets.load_dataset({named})"'
        raise UsageError(
            f"data.dataset: {name}: not in this machine's cache, and nothing is downloaded here ({why[0]}); "
            f"once, with a network: {get}"
        ) from None
    return found


@contextmanager
def _offline_and_quiet() -> Iterator[None]:
    """Keep the library from using the network, independently of its settings at import, and from writing lines."""
    import datasets
    import huggingface_hub

    places = (datasets.config, huggingface_hub.constants)
    before = [place.HF_HUB_OFFLINE for place in places]
    verbosity = datasets.logging.get_verbosity()
    for place in places:
        place.HF_HUB_OFFLINE = True
    datasets.logging.set_verbosity_error()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value


def _find_columns(part: Any, columns: Columns, where: str) -> tuple[str, str]:
    """The columns of labels and of samples.  Raises UsageError where they are not clear."""
    kinds = {column: type(feature).__name__ for column, feature in part.features.items()}
    named = {"label_column": columns.label, "user_column": columns.user, "text_column": columns.text}
    for key, column in named.items():
        if column is not None and column not in kinds:
            raise UsageError(f"{where}: data.{key}: {column}: no such column; there are {', '.join(kinds)}")
    labels = [columns.label] if columns.label else [each for each, kind in kinds.items() if kind == "ClassLabel"]
    if not columns.label and not labels and "label" in kinds:
        labels = ["label"]
    if len(labels) != 1:
        found = f"are {', '.join(labels)}" if labels else f"is none among {', '.join(kinds)}"
        raise UsageError(f"{where}: which column has the classes? there {found}; name it with data.label_column")
    others = [column for column in kinds if column not in (labels[0], columns.user)]
    pictures = [column for column in others if kinds[column] == "Image"]
    samples = pictures or [column for column in others if isinstance(part[0][column], Sequence | np.ndarray)]
    texts = [column for column in samples if isinstance(part[0][column], str)]
    samples = [column for column in samples if column not in texts] or (texts if columns.takes_texts else [])
    samples = [columns.text] if columns.text else samples
    if len(samples) != 1:
        found = ", ".join(samples) or "none"
        remedy = "" if columns.takes_texts or not texts else f'; kind = "tokens" takes the texts of {listed(texts)}'
        remedy = "; name it with data.text_column" if len(samples) > 1 and samples == texts else remedy
        held = "of texts or ids" if columns.takes_texts else "of pictures, or one of numbers"
        raise UsageError(f"{where}: expected one column {held}; found {found}{remedy}")
    return labels[0], samples[0]


def _samples(values: Sequence[Any], size: tuple[int, int] | None, where: str, columns: Columns) -> Raw:
    kind = columns.kind
    if kind is not None and any(isinstance(each, str) for each in values):
        of, length = kind.vocabulary, columns.length
        return np.array([ids_of_words(text, of, length, f"{where}: sample {i}") for i, text in enumerate(values)])
    if kind is not None and kind.parts:
        return kind.given(values, where)
    if hasattr(values[0], "convert"):  # a picture of Pillow
        names = [f"{where}, sample {number}" for number in range(len(values))]
        pictures = [picture_bytes(value, size, name) for value, name in zip(values, names, strict=True)]
        return stacked_pictures(pictures, names, remedy=REMEDY)
    try:
        found = np.array(values, np.float32)
    except (ValueError, TypeError):
        raise UsageError(f"{where}: expected as many numbers in each sample") from None
    if not np.isfinite(found).all():
        raise UsageError(f"{where}: holds values that are not finite")
    return found


def _labels(values: Sequence[Any], names: Sequence[str], where: str) -> tuple[Ints, tuple[str, ...]]:
    expected = "expected a class, a whole number from 0 or a name, of every sample, "
    found, known = class_ids(values, names, where=where, expected=expected)
    if found.min() < 0:
        raise UsageError(f"{where}: {expected}found {found.min()}")
    return found.astype(np.int64), known
