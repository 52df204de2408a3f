"""The models that were served last, kept for `rollback`, across restarts if there is a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edge_sdk.at_rest.digests import checked_json, json_with_digest
from edge_sdk.at_rest.files import make_private_folder, replace_durably, write_synced
from edge_sdk.data import is_whole
from edge_sdk.device.training.app_model import ModelOrigin
from edge_sdk.errors import Damaged, StoreError, UsageError

KEPT = 3
"""The served model and the two before it."""
_INDEX = "index.json"
UNKNOWN = ModelOrigin(b"", b"")
LOST_INDEX = "the way back to models served earlier"


def has_served(folder: Path) -> bool:
    """Whether a device has served models from this folder: its state was written before."""
    return (folder / _INDEX).exists()


@dataclass(frozen=True, slots=True)
class Version:
    """One model that was served."""

    number: int
    """Counts all served models from 0."""
    rounds_done: int
    """The number of rounds that the model has learned in, 0 for the app's own."""
    sha256: str


@dataclass(frozen=True, slots=True)
class Index:
    """The index file beside the models."""

    versions: tuple[Version, ...] = ()
    """The served one is the last."""
    held: bool = False
    """Whether the owner went back to an older model, and holds it until `resume`."""
    joining: Mapping[str, float] | None = None
    """The figures of the model before it joined, or None if not measured."""
    origin: str = ""
    """The SHA-256 of the origin of the app's model, from which all versions were learnt."""
    frozen: str = ""
    """The SHA-256 of that model's fixed part, without which states do not fit; empty if not recorded."""


class Versions:
    """The last few served models, each in a file of its own, and an index; without a folder they are in memory.

    If the disk fails, only `rollback` after a restart is lost, which `notify` receives.
    """

    def __init__(
        self, folder: Path | None, notify: Callable[[str], None], origin: ModelOrigin = UNKNOWN, *, alone: bool = False
    ) -> None:
        """Read the index; ignore a damaged one, and one of models learnt from another model of the app.

        origin: the app's model.  alone: whether the device's state, which would record the initial weights, is
        missing.  Other weights then count as the same model, because an app may draw them at each start.
        """
        self.folder, self._notify = folder, notify
        self._states: dict[int, bytes] = {}
        self.index = Index()
        self.fault = ""
        """Why earlier models were lost, in one line, or empty if they were not."""
        if folder is not None and (folder / _INDEX).exists():
            try:
                self.index = _read(folder / _INDEX)
            except OSError as error:
                self.fault = f"{folder / _INDEX}: {error.strerror or error}; earlier models are forgotten"
            except StoreError as error:
                self.fault = str(error)
        mine = hashlib.sha256(origin.to_bytes()).hexdigest()
        frozen = hashlib.sha256(origin.frozen).hexdigest()
        if self.index.origin != mine:
            same = alone and self.index.frozen == frozen
            if alone and not same and any(each.rounds_done for each in self.index.versions):
                self.fault = f"{folder}: its models were learnt on another extractor of the app; they are dropped"
            self.index = replace(self.index if same else Index(), origin=mine)
        self.index = replace(self.index, frozen=frozen)

    def add(self, rounds_done: int, state: bytes, *, keeps_own: bool = False) -> None:
        """Keep a model as the served one, and drop the oldest beyond KEPT; keeps_own: except the app's own."""
        number = self.index.versions[-1].number + 1 if self.index.versions else 0
        version = Version(number, rounds_done, hashlib.sha256(state).hexdigest())
        self._states[number] = state
        *before, last = (*self.index.versions, version)[-KEPT:]
        own = [each for each in self.index.versions[:1] if keeps_own and not each.rounds_done and each not in before]
        self._keep(replace(self.index, versions=(*own, *before, last)))

    def back(self, steps: int) -> Version:
        """Return the version that was served `steps` before this one.  Raises UsageError if it is not kept."""
        found = self.index.versions
        if not is_whole(steps) or not 1 <= steps < KEPT:
            raise UsageError(f"rollback({steps!r}): give 1 or {KEPT - 1}: the last {KEPT - 1} served models are kept")
        if steps >= len(found):
            raise UsageError(f"rollback({steps}): {max(0, len(found) - 1)} earlier models are kept so far")
        return found[-1 - steps]

    def state(self, version: Version) -> bytes:
        """Return the state of a model.  Raises StoreError if it cannot be read, or is damaged."""
        if version.number in self._states:
            return self._states[version.number]
        file = self._file(version.number)
        try:
            found = file.read_bytes()
        except OSError as error:
            raise StoreError(f"{file}: {error.strerror or error}; another version may still be there") from error
        if hashlib.sha256(found).hexdigest() != version.sha256:
            raise Damaged(file, "its digest differs", "one model that was served", "another version may still be whole")
        return found

    def return_to(self, version: Version) -> None:
        """Forget all later versions, and hold this one."""
        kept = tuple(each for each in self.index.versions if each.number <= version.number)
        self._keep(replace(self.index, versions=kept, held=True))

    def release(self) -> None:
        """Let newer versions be served again."""
        if self.index.held:
            self._keep(replace(self.index, held=False))

    def joined_with(self, figures: Mapping[str, float]) -> None:
        """Keep the figures of the model before it joined."""
        self._keep(replace(self.index, joining=dict(figures)))

    def measure_joining_again(self) -> None:
        """Forget the figures of the model before it joined, because another one joins."""
        self._keep(replace(self.index, joining=None))

    def forget(self) -> None:
        """Forget everything."""
        nothing = Index(origin=self.index.origin, frozen=self.index.frozen)
        if self.index != nothing or (self.folder is not None and has_served(self.folder)):
            self._keep(nothing)

    def _keep(self, index: Index) -> None:
        """Write new models, then the index that names them, then remove old models; without a folder, write nothing.

        In this order a power cut leaves an index whose models all exist, with only one sync of the folder.
        """
        self.index = index
        numbers = {version.number for version in index.versions}
        self._states = {number: state for number, state in self._states.items() if number in numbers}
        if self.folder is None:
            return
        try:
            make_private_folder(self.folder.parent)
            make_private_folder(self.folder)
            for number, state in [*self._states.items()]:
                write_synced(self._file(number), state)
                del self._states[number]  # from now on it is read from the file
            replace_durably(self.folder / _INDEX, json_with_digest(asdict(index)))
            names = {_INDEX, *(self._file(number).name for number in numbers)}
            for file in self.folder.iterdir():  # older models, and files half written before a power cut
                if file.name not in names:
                    file.unlink()
        except OSError as error:
            self._notify(f"{self.folder}: {error.strerror or error}; rollback() may not survive a restart")

    def _file(self, number: int) -> Path:
        return (self.folder or Path()) / f"{number}.model"


def _read(path: Path) -> Index:
    """Read the index.  Raises OSError, Damaged."""
    try:
        plain: dict[str, Any] = checked_json(path, path.read_bytes(), is_old=_is_old)
        versions = tuple(Version(**version) for version in plain["versions"])
        joining = None if plain["joining"] is None else {name: float(x) for name, x in plain["joining"].items()}
        return Index(versions, bool(plain["held"]), joining, plain.get("origin", ""), plain.get("frozen", ""))
    except (Damaged, TypeError, ValueError, AttributeError) as error:
        found = error.found if isinstance(error, Damaged) else "its values do not fit"
        raise Damaged(path, found, LOST_INDEX, "no action is needed") from error


def _is_old(plain: Any) -> bool:
    """Return whether this is an index from before there were digests."""
    return isinstance(plain, dict) and plain.keys() | {"origin", "frozen"} == {*Index.__dataclass_fields__}
