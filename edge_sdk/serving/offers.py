"""Model files that the team offers to a device: fetched, compared on the device's own held-out samples, and then used.

The owner allows them (`accepts_models`).  A file is data, and never code.  It is used only if its SHA-256 is that of
the offer, if it fits the federation and the device's samples, and if it is not worse than the model that the app
predicts with.  A device changes its model between two exchanges, as if it were started with another app.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from edge_sdk.at_rest.files import make_private_folder
from edge_sdk.device.context import DeviceContext
from edge_sdk.device.link.uplink import Uplink
from edge_sdk.device.training.workbench import joint_capabilities, joint_terms
from edge_sdk.durable import as_store_error
from edge_sdk.errors import EdgeError, ModelError, RemoteProtocolError, StoreError
from edge_sdk.models.base import Model, Served
from edge_sdk.models.checks import check_logits
from edge_sdk.protocol.frames.leaves import one_line
from edge_sdk.protocol.messages import PublicBlock
from edge_sdk.protocol.model_offers import ModelOffer, OfferAnswer
from edge_sdk.public_set.transfer import FileTransfer
from edge_sdk.reductions.sign_test import Right, is_worse
from edge_sdk.serving.brought import Brought, BroughtModels, answer_to, has_new_head, model_from_file, take_head
from edge_sdk.serving.deployment import Deployment
from edge_sdk.serving.guard import HeldOut, compared_on, held_out_of, right_on

PRIVATE = 0o600
"""Only the owner's user reads the files of its device."""
MAX_TRIES = 2
"""How often a file may arrive damaged before the device gives it up."""


class OfferedModels:
    """Handles the offers to one device.  `tick` is called in each turn of the device's loop."""

    def __init__(self, context: DeviceContext, uplink: Uplink, deployment: Deployment, brought: BroughtModels) -> None:
        """brought: where the files lie, and which is in use."""
        self._context, self._uplink, self._deployment, self._brought = context, uplink, deployment, brought
        self._offer: ModelOffer | None = None
        """The offer at work."""
        self._work: Generator[None, None, OfferAnswer | None] | None = None
        self._transfer: FileTransfer | None = None
        self.answer = brought.index.answer
        """The answer to the last offer, for the Hello."""
        self._tells, self._now_s, self._idle = False, 0.0, False
        self.busy = False
        """Whether `tick` has something to compute at once."""
        self.changed = False
        """Whether the device is to begin again, with another model."""

    # -- frames in ----------------------------------------------------------------------------------------------------

    def offered(self, offer: ModelOffer) -> None:
        """Take an offer, or answer it.  Raises RemoteProtocolError for one that is older than the last answer."""
        last = self.answer if self.answer is not None and self.answer.run == self._context.run else None
        if last is not None and offer.number < last.number:
            raise RemoteProtocolError("replayed", f"offer {offer.number} of a model, but {last.number} was answered")
        if last is not None and offer.number == last.number:
            self._tells = True
        elif self._offer is None or offer.number > self._offer.number:
            self._offer, self._transfer = offer, None
            self._work = self._returned(offer) if offer.back else self._taken(offer)

    def receive(self, block: PublicBlock, now_s: float) -> bool:
        """Store a block; returns False if it is not of the offered file.  Raises RemoteProtocolError."""
        if self._transfer is None or block.sha256 != self._transfer.sha256:
            return False
        try:
            self._transfer.receive(block, now_s)
        except StoreError as error:
            self._refuse(error)
        return True

    def tick(self, now_s: float, *, idle: bool) -> bool:
        """Do what is due; returns whether the next Hello has news.

        idle: whether no exchange has changed the model since the last stored one.
        """
        self._now_s, self._idle = now_s, idle
        if self._work is not None:
            try:
                next(self._work)
            except StopIteration as end:
                if end.value is not None:
                    self._note(end.value)
            except Exception as error:  # noqa: BLE001  # a file of others may make a runtime raise anything
                self._refuse(error)
        tells, self._tells = self._tells, False
        return tells

    # -- what becomes of an offer -------------------------------------------------------------------------------------

    def _taken(self, offer: ModelOffer) -> Generator[None, None, OfferAnswer | None]:
        """Fetch a file, try it and use it; returns the answer, or None once the device has changed its model."""
        file = Brought(offer.file.sha256.hex(), name=offer.file.name)
        if self._brought.index.now.file == file.file:
            known = self.answer
            same = known is not None and known.sha256 == offer.file.sha256 and known.state == "running"
            return replace(known, number=offer.number, run=offer.run) if known and same else answer_to(offer, "running")
        self._context.owner.news(f"offered the model {file.name}, {offer.file.total_bytes:,} bytes: fetching it")
        content = yield from self._fetched(offer, self._brought.path(file.file))
        yield from self._until_idle()
        self.busy = True
        classes = self._context.bench.model.spec.classes
        if offer.file.classes not in (0, classes):
            raise ModelError(f"{file.name} has {offer.file.classes} classes, the model of this device {classes}")
        candidate = model_from_file(content, self._context.bench.model, file.name)
        self._check_fits(candidate)
        answer, has_others_head = yield from self._tried(candidate, offer)
        self.busy = False
        if answer.state != "running":
            self._context.warn(f"keeps its model, {file.name} is worse: {answer.why}")
            return answer
        yield from self._until_idle()
        state = candidate.state_bytes() if has_others_head else b""
        self._brought.use(file, state, self._context.bench.model.state_bytes(), answer)
        self._context.owner.news(f"learns with the model {file.name} from now on, in place of the one before")
        self._work, self.changed = None, True
        return None

    def _returned(self, offer: ModelOffer) -> Generator[None, None, OfferAnswer | None]:
        """Go back to the model before a file; returns the answer, or None once the device has changed its model."""
        answer = answer_to(offer, "returned")
        if self._brought.index.now.file != offer.file.sha256.hex():
            return answer
        yield  # an exchange that is being computed is given up
        self._brought.back(answer)
        self._context.owner.news(f"goes back to the model that it had before {offer.file.name}")
        self._work, self.changed = None, True
        return None

    def _until_idle(self) -> Generator[None, None, None]:
        while not self._idle:
            yield

    def _fetched(self, offer: ModelOffer, path: Path) -> Generator[None, None, bytes]:
        """Return the content of an offered file, from the disk or block by block from the coordinator.

        Raises StoreError if the disk cannot take it, ModelError if it is not what its hash says.
        """
        with as_store_error(path):
            make_private_folder(path.parent.parent)
            make_private_folder(path.parent)
            if path.exists() and _is(offer, content := path.read_bytes()):
                return content
        file = offer.file
        transfer = FileTransfer(path.with_suffix(".part"), file.sha256, file.total_bytes, "offered model")
        self._transfer = transfer
        with as_store_error(path):
            transfer.path.chmod(PRIVATE)
        for _ in range(MAX_TRIES):
            while not transfer.requests.complete:
                linked = self._context.session.linked
                if linked and (blocks := transfer.requests.next_requests(self._now_s)):
                    self._uplink.request_blocks(file.sha256, blocks)
                yield
            transfer.finish()
            with as_store_error(path):
                if _is(offer, content := transfer.path.read_bytes()):
                    transfer.path.replace(path)
                    return content
            transfer.begin_again()
        raise ModelError(f"the file that arrived is not {file.sha256.hex()[:16]}, {MAX_TRIES} times")

    def _check_fits(self, model: Model) -> None:
        """Raise ModelError for a model that the federation, or the device's samples, do not fit."""
        bench, joined, spec = self._context.bench, self._context.membership, model.spec
        if len(bench.samples):
            check_logits(spec, model.logits(bench.samples[:1]), 1)
        if joined is None:
            return
        method, proxy = joined.method, None if bench.proxy is None else bench.proxy.model.spec
        able = joint_capabilities(spec, proxy) | ({"sample-codes"} if bench.shares_codes else frozenset())
        terms = joint_terms(spec, proxy)
        if not (method.learnt_by(able, terms) or method.taught_by(able)):
            lacking = sorted(method.needs - able) or sorted(method.terms - terms)
            raise ModelError(f"{spec.name}: {method.name} needs {', '.join(lacking)}, which it cannot do")
        if method.same_width and spec.feature_dim != joined.spec.feature_dim:
            raise ModelError(
                f"{spec.name}: its last layer takes {spec.feature_dim} features, the federation has "
                f"{joined.spec.feature_dim}"
            )

    def _tried(self, model: Model, offer: ModelOffer) -> Generator[None, None, tuple[OfferAnswer, bool]]:
        """Compare a model with the served one; returns the answer, and whether it took over the device's last layer.

        That layer is taken over where it is the better one on the held-out samples, or the only one.
        """
        bench, max_drop = self._context.bench, self._deployment.max_drop
        parts = () if max_drop is None else compared_on(held_out_of(bench))
        before = yield from _rights(self._deployment.served(), parts)
        rights, others = (yield from _rights(model, parts)), False
        own = model.head_rows() if "head-rows" in model.spec.capabilities else None
        if take_head(model, bench.model):
            with_others = yield from _rights(model, parts)
            others = has_new_head(model) or _count(with_others) > _count(rights)
            if others:
                rights = with_others
            elif own is not None:
                model.set_head_rows(np.arange(model.spec.classes), own)
        if has_new_head(model) and (offer.file.classes or not others):
            raise ModelError(
                f"{model.spec.name}: it has no last layer of {model.spec.classes} classes, and that of this device "
                f"takes {bench.model.spec.feature_dim} features, not {model.spec.feature_dim}"
            )
        faults = [
            f"accuracy {right.mean():.1%} on {part.words}, that of the served model is {mark.mean():.1%}"
            for part, mark, right in zip(parts, before, rights, strict=True)
            if max_drop is not None and is_worse(mark, right, max_drop)
        ]
        counts = {}
        if parts and bench.budget is None:
            mark, right = before[0], rights[0]
            counts = {"samples": len(mark), "lost": int((mark & ~right).sum()), "won": int((right & ~mark).sum())}
        return answer_to(offer, "worse" if faults else "running", one_line("; ".join(faults)), **counts), others

    def _note(self, answer: OfferAnswer) -> None:
        """Keep the answer to the present offer, and report it."""
        offer, self._offer = self._offer, None
        self._work = self._transfer = None
        self.answer, self._tells, self.busy = answer, True, False
        if offer is not None:
            try:
                self._brought.note(answer)
            except StoreError as error:
                self._context.note_disk_fault(error, "the answer to the offered model is kept in memory")

    def _refuse(self, error: Exception) -> None:
        if self._offer is not None:
            why = one_line(str(error) if isinstance(error, EdgeError) else f"{type(error).__name__}: {error}")
            self._context.warn(f"refuses the model {self._offer.file.name}: {why}")
            self._note(answer_to(self._offer, "refused", why))


def _is(offer: ModelOffer, content: bytes) -> bool:
    return hashlib.sha256(content).digest() == offer.file.sha256


def _rights(model: Served, parts: Sequence[HeldOut]) -> Generator[None, None, list[Right]]:
    """Return which samples of each part a model classifies correctly, with a pause after each batch."""
    found = list[Right]()
    for part in parts:
        right = yield from right_on(model, part)
        found.append(right)
    return found


def _count(rights: Sequence[Right]) -> int:
    return sum(int(right.sum()) for right in rights)
