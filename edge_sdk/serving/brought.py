"""The model that a device begins with: the app's, or a file that it was offered; a power cut leaves one of them whole.

The index file names the model, and is replaced at once: this is the moment at which a device changes its model.  Files
that it names are durable before; files that it no longer names are deleted after.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_sdk.at_rest.digests import checked_json, json_with_digest
from edge_sdk.at_rest.files import make_private_folder, replace_durably, sync_folder, write_synced
from edge_sdk.device.training.app_model import FrozenPart
from edge_sdk.durable import as_store_error
from edge_sdk.errors import Damaged, EdgeError, MissingExtra, StoreError
from edge_sdk.models.base import Model
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.protocol.model_offers import ModelOffer, OfferAnswer


def model_from_file(file: bytes, like: Model, name: str) -> Model:
    """Return the model in a file, with the classes, the preprocessing and the kind of head of `like`.

    Where `like` is an OnnxModel, the same part learns, otherwise all layers.  Devices of the numpy runtime, and those
    without ONNX Runtime, compute it in numpy.  Raises ModelError for a file that cannot be used so.
    """
    spec = like.spec
    options: dict[str, Any] = {
        "name": name,
        "preprocess": spec.preprocess,
        "head": "cosine" if "cosine-head" in spec.capabilities else "linear",
        "train": getattr(like, "train", "all"),
    }
    if spec.runtime != "numpy":
        try:
            from edge_sdk.models.onnx_runtime.onnx_model import OnnxModel

            return OnnxModel(file, spec.classes, **options)
        except MissingExtra:
            pass
    return NumpyModel.from_onnx(file, spec.classes, **options)


def has_new_head(model: Model) -> bool:
    """Return whether the last layer of a model from a file is drawn at random, as the file has none of its classes."""
    split = getattr(model, "split", None)
    return split.how == "new" if split is not None else bool(getattr(model, "has_new_head", False))


def take_head(model: Model, of: Model) -> bool:
    """Give a model the last layer of another one; returns False where widths or classes do not allow that."""
    able = all("head-rows" in each.spec.capabilities for each in (model, of))
    shapes = [(each.spec.classes, each.spec.feature_dim) for each in (model, of)]
    if not able or shapes[0] != shapes[1]:
        return False
    model.set_head_rows(np.arange(model.spec.classes), of.head_rows())
    return True


_INDEX = "index.json"
_LOST = "the model that was rolled out"


@dataclass(frozen=True, slots=True)
class Brought:
    """A model with which a device begins to learn; all texts are SHA-256 digests in hexadecimal digits."""

    file: str = ""
    """The .onnx file, or empty for the app's model."""
    state: str = ""
    """The state that it begins with, or empty for its own."""
    name: str = ""
    """The name of the file where it came from."""


APPS = Brought()


@dataclass(frozen=True, slots=True)
class BroughtIndex:
    """What the index file says."""

    now: Brought = APPS
    before: Brought | None = None
    """The model that `now` replaced, with what it had learnt, or None if no model is kept."""
    answer: OfferAnswer | None = None
    """The answer to the last offer."""
    frozen: str = ""
    """The SHA-256 of the fixed part of the app's model: an app that brings another one is not overruled."""


class BroughtModels:
    """The files of offered models in a device's folder, and the index of the one in use."""

    def __init__(self, folder: Path, apps: Model) -> None:
        """apps: the app's model, as the app brings it."""
        self.folder, self._apps = folder, apps
        self.fault = ""
        """Why the device begins with the app's model although another one was in use, or empty."""
        self._frozen = hashlib.sha256(apps.frozen_digest() if isinstance(apps, FrozenPart) else b"").hexdigest()
        self.index = BroughtIndex(frozen=self._frozen)
        try:
            if (folder / _INDEX).exists():
                self.index = _read(folder / _INDEX)
        except (OSError, StoreError) as error:
            self.fault = str(error)
        if self.index.frozen != self._frozen:
            if self.index.now.file:
                self.fault = f"the app brings another model than the one that {self.index.now.name} replaced: it counts"
            self.index = replace(self.index, now=APPS, before=None, frozen=self._frozen)

    @property
    def governs(self) -> bool:
        """Whether the device begins with something else than what the app brings."""
        return self.index.now != APPS

    def model(self) -> Model:
        """Return the model to begin with: the app's, if the other one cannot be made."""
        try:
            return self._made(self.index.now)
        except EdgeError as error:
            self.fault = f"{self.index.now.name or 'the model from before'} is lost, the app's is used: {error}"
            self.index = replace(self.index, now=APPS, before=None)
            return self._apps

    def _made(self, brought: Brought) -> Model:
        model = model_from_file(self._content(brought.file), self._apps, brought.name) if brought.file else self._apps
        if brought.state:
            model.load_state(self._content(brought.state))
        return model

    def path(self, digest: str) -> Path:
        """Return the path of a whole file with this digest."""
        return self.folder / f"{digest}.bin"

    def _content(self, digest: str) -> bytes:
        path = self.path(digest)
        with as_store_error(path):
            content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise Damaged(path, "its digest differs", _LOST, "the team may roll it out again")
        return content

    def use(self, file: Brought, state: bytes, learnt: bytes, answer: OfferAnswer) -> None:
        """Change to a file that lies at `path`; it begins with `state`.  learnt: the state of the model before.

        Raises StoreError; then the device still has the model before.
        """
        before = replace(self.index.now, state=self._keep(learnt))
        self._write(replace(self.index, now=replace(file, state=self._keep(state)), before=before), answer)

    def back(self, answer: OfferAnswer) -> None:
        """Change back to the model before, as it was then.  Raises StoreError."""
        self._write(replace(self.index, now=self.index.before or APPS, before=None), answer)

    def note(self, answer: OfferAnswer) -> None:
        """Keep an answer, and the model that is in use.  Raises StoreError."""
        self._write(self.index, answer)

    def _keep(self, state: bytes) -> str:
        if not state:
            return ""
        digest = hashlib.sha256(state).hexdigest()
        path = self.path(digest)
        with as_store_error(path):
            if not path.exists() or path.read_bytes() != state:  # the index may name it already
                write_synced(path, state)
        return digest

    def _write(self, index: BroughtIndex, answer: OfferAnswer) -> None:
        index = replace(index, answer=answer)
        with as_store_error(self.folder):
            make_private_folder(self.folder.parent)
            make_private_folder(self.folder)
            sync_folder(self.folder)  # the files that the index names have their names first
            replace_durably(self.folder / _INDEX, json_with_digest(_plain(index)))
        self.index = index
        used = {digest for each in (index.now, index.before or APPS) for digest in (each.file, each.state)}
        with as_store_error(self.folder):
            for file in self.folder.iterdir():
                if file.name != _INDEX and file.stem not in used:
                    file.unlink()


def answer_to(offer: ModelOffer, state: str, why: str = "", **counts: int) -> OfferAnswer:
    """Return the answer to an offer."""
    return OfferAnswer(sha256=offer.file.sha256, number=offer.number, run=offer.run, state=state, why=why, **counts)


def _plain(index: BroughtIndex) -> dict[str, Any]:
    found = asdict(index)
    if index.answer is not None:
        found["answer"] |= {"sha256": index.answer.sha256.hex(), "run": index.answer.run.hex()}
    return found


def _read(path: Path) -> BroughtIndex:
    """Read the index.  Raises OSError, Damaged."""
    plain: dict[str, Any] = checked_json(path, path.read_bytes(), is_old=lambda _plain: False)
    answer, before = plain["answer"], plain["before"]
    if answer is not None:
        answer = OfferAnswer(**answer | {name: bytes.fromhex(answer[name]) for name in ("sha256", "run")})
    return BroughtIndex(Brought(**plain["now"]), None if before is None else Brought(**before), answer, plain["frozen"])
