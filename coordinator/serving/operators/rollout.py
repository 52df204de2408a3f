"""A new model for the fleet: an operator's file is offered to a share of the devices, stage by stage.

A stage is kept if the devices' guards and their held-out samples agree; otherwise its devices go back automatically.
The ledger has the orders, and the Hellos in it the outcomes, so that a restart continues a rollout.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from coordinator.serving.public_set_server import BlockServer
from coordinator.serving.run_context import RunContext
from coordinator.serving.sender import Sender
from edge_sdk.at_rest.files import make_private_folder
from edge_sdk.durable import as_store_error
from edge_sdk.errors import RemoteProtocolError, StoreError
from edge_sdk.methods.contract.base import Method
from edge_sdk.protocol.messages import Hello, PublicBlock, PublicRequest
from edge_sdk.protocol.model_offers import MAX_BLOCKS_ASKED, ModelOffer, OfferAnswer, OfferedFile
from edge_sdk.protocol.operator_messages import Control
from edge_sdk.public_set.transfer import FileTransfer
from edge_sdk.reductions.sign_test import CHANCE, at_least

OFFER_AGAIN_S = 30.0
"""Seconds after which an unanswered offer is sent again."""
LOOK_EVERY_S = 0.5
"""Seconds between two checks of the devices' answers."""
MOST_WORSE = 0.1
"""A stage is taken back if the guards of more than this share of its devices find the file worse."""
MAX_DROP = 0.02
"""It is also taken back if accuracy on the held-out samples of all its devices falls by more than this, beyond
chance."""
KEPT_ROLLOUTS = 8
"""The last rollouts that are kept, so that a device that was away goes back, too."""
WRITES = 6
"""The maximum that a device writes to its flash, in file sizes: the file, and model states with their moments."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One file, and the progress of its rollout."""

    sha256: str
    total_bytes: int
    name: str
    classes: int
    number: int
    """The number of the last offer; the offers of a run are numbered upwards."""
    share: float
    board: str = ""
    devices: tuple[str, ...] = ()
    """The devices that are offered the file, sorted."""
    verdict: str = ""
    """kept or back; empty while the stage is open."""

    @property
    def file(self) -> OfferedFile:
        """The file, as messages name it."""
        return OfferedFile(
            sha256=bytes.fromhex(self.sha256), total_bytes=self.total_bytes, name=self.name, classes=self.classes
        )


class RolloutDesk:
    """Takes operators' orders about a model for the fleet, and offers it to devices."""

    def __init__(self, context: RunContext, sender: Sender, method: Method[Any], folder: Path | None) -> None:
        """folder: for the files, or None to roll out nothing, as in a simulation or with a trace."""
        self._context, self._sender, self._method, self._folder = context, sender, method, folder
        self._rollouts = tuple(
            Rollout(**{**each, "devices": tuple(each["devices"])}) for each in context.orders.rollouts
        )
        """The last rollouts; the present one is the last of them."""
        self._coming: FileTransfer | None = None
        """The file that an operator sends."""
        self._server: BlockServer | None = None
        self._sent_s: dict[tuple[str, int], float] = {}
        """When each offer was last sent to each device."""
        self._look_again_s = -math.inf

    @property
    def _now(self) -> Rollout | None:
        return self._rollouts[-1] if self._rollouts else None

    def close(self) -> None:
        """Close the file that is served."""
        if self._server is not None:
            self._server.close()

    # -- operators ----------------------------------------------------------------------------------------------------

    def ordered(self, control: Control) -> tuple[bool, str, tuple[int, ...]]:
        """Carry out `rollout` or `rollback`; returns whether, a line about it, and the blocks that are missing.

        Raises StoreError.
        """
        if self._now is not None:
            self._judge(self._now)
        now, file = self._now, control.file
        if control.operation == "rollback":
            if now is None:
                return False, "no rollout can be taken back", ()
            if now.verdict != "back":
                self._take_back(now, "an operator takes it back")
            return True, self.lines()[0], ()
        if file is None or self._folder is None:
            return False, "this coordinator rolls out no models: it was started with --trace, or is a simulation", ()
        fault = self._objection(file, control)
        if fault:
            return False, fault, ()
        same = now is not None and now.sha256 == file.sha256.hex() and now.verdict != "back"
        devices = tuple(sorted({*self._drawn(file, control), *(now.devices if same and now else ())}))
        cost = self._cost(file, devices)
        if control.asks_cost:
            return True, cost, ()
        if missing := self._missing(file, self._folder):
            return True, cost, missing
        begun = Rollout(
            file.sha256.hex(),
            file.total_bytes,
            file.name,
            file.classes,
            1 + max((each.number for each in self._rollouts), default=0),
            control.share,
            control.board,
            devices,
        )
        self._keep((*(self._rollouts[:-1] if same else self._rollouts), begun))
        self._context.note(f"an operator rolls out {file.name} ({begun.sha256[:16]}): {cost}")
        return True, cost, ()

    def _objection(self, file: OfferedFile, control: Control) -> str:
        """Return why a file cannot be rolled out in this way, or empty if it can."""
        now, classes = self._now, self._context.spec.classes
        if file.classes not in (0, classes):
            return f"{file.name} has {file.classes} classes, the federation {classes}"
        if self._method.shares_weights:
            return (
                f"{self._method.name} combines the weights of all devices, and a stage would mix with the others. "
                f"All change at once: ship {file.name} with the app (Agent(model=...)), stop the coordinator and start "
                "it with another --out; devices join the new run, and the file is where they start"
            )
        if not 0 < control.share <= 1:
            return f"a share of {control.share:.0%}: give one from 1 % to 100 %"
        if now is not None and now.verdict != "back":
            if now.sha256 != file.sha256.hex() and not (now.verdict == "kept" and now.share == 1):
                return f"{now.name} comes first: {self._state(now)}; take it to 100%, or back (edge-sdk rollout --back)"
            if now.sha256 == file.sha256.hex() and control.share < now.share:
                return (
                    f"{now.name} is at {now.share:.0%}, and a stage only grows; edge-sdk rollout --back takes it back"
                )
            if now.sha256 == file.sha256.hex() and control.share > now.share and now.verdict != "kept":
                return f"the stage of {now.share:.0%} is still open: {self._state(now)}"
        if not self._drawn(file, control):
            here = self._context.registry.hellos
            boards = ", ".join(sorted({hello.board for hello in here.values() if hello.board})) or "none"
            of = f" with the board {control.board!r} (there are: {boards})" if control.board else ""
            accepting = sum(hello.accepts_models for hello in here.values())
            return (
                f"none of {len(here)} devices{of} can be offered it: the owners of {accepting} allow models, by "
                "Agent(accepts_models=True)"
            )
        return ""

    def _drawn(self, file: OfferedFile, control: Control) -> Sequence[str]:
        """Draw devices: a hash of federation, file and device decides, so that a larger share holds the smaller one."""

        def rank(device: str) -> bytes:
            return hashlib.sha256(f"{self._context.spec.federation} {file.sha256.hex()} {device}".encode()).digest()

        def may(hello: Hello) -> bool:
            return hello.accepts_models and control.board.casefold() in ("", hello.board.casefold())

        pool = sorted((name for name, hello in self._context.registry.hellos.items() if may(hello)), key=rank)
        return pool[: max(1, math.floor(control.share * len(pool) + 0.5))]

    def _cost(self, file: OfferedFile, devices: Sequence[str]) -> str:
        hellos, size = self._context.registry.hellos, file.total_bytes
        closed = sum(not hello.accepts_models for hello in hellos.values())
        owners = f"; the owners of {closed} allow no model" if closed else ""
        return (
            f"{file.name} to {len(devices)} of {len(hellos)} devices{owners}; {size:,} bytes to each, "
            f"{size * len(devices):,} in all; each writes about {size:,} bytes to its flash, up to {WRITES * size:,} "
            "where all layers learn"
        )

    def _missing(self, file: OfferedFile, folder: Path) -> tuple[int, ...]:
        """Return the next blocks that an operator has to send, or none for a whole file.  Raises StoreError."""
        path = folder / f"{file.sha256.hex()}.onnx"
        if path.exists():
            return ()
        if self._coming is None or self._coming.sha256 != file.sha256:
            with as_store_error(folder):
                make_private_folder(folder)
                for stale in folder.glob("*.part"):
                    if stale.stem != path.stem:
                        stale.unlink()
            self._coming = FileTransfer(path.with_suffix(".part"), file.sha256, file.total_bytes, "model file")
        missing = self._coming.missing()[:MAX_BLOCKS_ASKED]
        if not missing:
            self._coming.finish()
            with as_store_error(path):
                if hashlib.sha256(self._coming.path.read_bytes()).digest() == file.sha256:
                    self._coming.path.replace(path)
                    self._coming = None
                    return ()
            self._coming.begin_again()
            missing = self._coming.missing()[:MAX_BLOCKS_ASKED]
        return missing

    def take_block(self, block: PublicBlock, now_s: float) -> None:
        """Take a block of the file that an operator sends.  Raises RemoteProtocolError, StoreError."""
        if self._coming is None:
            raise RemoteProtocolError("knowledge", "a block of a file that is not awaited")
        self._coming.receive(block, now_s)

    def lines(self) -> list[str]:
        """Return the state of the last rollouts, newest first, and why devices of the present one do not run it."""
        now = self._now
        if now is None:
            return ["no model was rolled out in this run"]
        found = [f"{now.name} ({now.sha256[:16]}), {self._state(now)}"]
        for device, answer in self._answers(now).items():
            if answer.state in ("worse", "refused"):
                found.append(f"{device}: {answer.state}: {answer.why}")
        earlier = reversed(self._rollouts[:-1])
        return found + [f"before: {each.name}, {each.verdict or 'open'} at {each.share:.0%}" for each in earlier]

    # -- devices ------------------------------------------------------------------------------------------------------

    def serve(self, request: PublicRequest, came_bytes: int, now_s: float) -> bool:
        """Send the blocks of an offered file; returns False for a request that is about something else.

        Raises RemoteProtocolError for a device that was not offered the file.
        """
        now = self._now
        if now is None or self._folder is None or request.sha256 != now.file.sha256:
            return False
        if request.device not in now.devices or now.verdict == "back":
            raise RemoteProtocolError("knowledge", f"{request.device} asks for a model that it was not offered")
        self._context.record.came(request.device, came_bytes, "other")
        with suppress(StoreError):  # the device will ask again
            if self._server is None or self._server.sha256 != request.sha256:
                self._server = self._opened(now, self._folder)
            for block in self._server.blocks(request, now_s):
                self._sender.send(request.device, block, counted_as="other")
        return True

    def _opened(self, now: Rollout, folder: Path) -> BlockServer:
        self.close()
        path = folder / f"{now.sha256}.onnx"
        with as_store_error(path):
            return BlockServer(path.open("rb"), now.file.sha256, now.total_bytes, folder=folder, what="model")

    def joined(self, device: str) -> None:
        """Note that a device said Hello: it may have lost an offer."""
        self._sent_s = {key: at_s for key, at_s in self._sent_s.items() if key[0] != device}

    def tick(self, now_s: float) -> None:
        """Send offers that are due, and judge the stage."""
        if now_s < self._look_again_s:
            return
        self._look_again_s = now_s + LOOK_EVERY_S
        for each in self._rollouts:
            if each == self._now or each.verdict == "back":
                self._offer(each, now_s)
        if self._now is not None:
            self._judge(self._now)

    def _offer(self, rollout: Rollout, now_s: float) -> None:
        """Offer a file to the devices of its stage that have not answered, or let them go back."""
        hellos, answers = self._context.registry.hellos, self._answers(rollout)
        for device in rollout.devices:
            again = now_s >= self._sent_s.get((device, rollout.number), -math.inf) + OFFER_AGAIN_S
            if again and device not in answers and device in hellos and hellos[device].accepts_models:
                self._sent_s[device, rollout.number] = now_s
                offer = ModelOffer(
                    federation=self._context.spec.federation,
                    device=device,
                    file=rollout.file,
                    number=rollout.number,
                    back=rollout.verdict == "back",
                    run=self._context.ledger.run,
                )
                self._sender.send(device, offer)

    def _answer(self, rollout: Rollout, hello: Hello) -> OfferAnswer | None:
        """Return a device's last answer about this file in this run."""
        answer = hello.offer
        fits = answer is not None and (answer.sha256.hex(), answer.run) == (rollout.sha256, self._context.ledger.run)
        return answer if fits else None

    def _answers(self, rollout: Rollout) -> Mapping[str, OfferAnswer]:
        """Return the answers to the last offer of a rollout, by device."""
        hellos = self._context.registry.hellos
        found = {name: self._answer(rollout, hellos[name]) for name in rollout.devices if name in hellos}
        return {name: each for name, each in found.items() if each is not None and each.number >= rollout.number}

    # -- the verdict --------------------------------------------------------------------------------------------------

    def _judge(self, now: Rollout) -> None:
        """Take a file back as soon as it is worse, also later; or keep a stage once its devices have answered."""
        answers = self._answers(now)
        if now.verdict == "back" or not answers:
            return
        states = [each.state for each in answers.values()]
        worse, (samples, lost, won) = states.count("worse"), _counts(answers)
        with suppress(StoreError):  # the next turn tries again
            if worse > MOST_WORSE * len(now.devices):
                self._take_back(now, f"the guards of {worse} of {len(now.devices)} devices find it worse")
            elif samples and (lost - won) / samples > MAX_DROP and at_least(lost, lost + won) < CHANCE:
                self._take_back(now, f"of {samples} held-out samples {lost - won} fewer are right")
            elif not now.verdict and not self._awaited(now) and "running" in states:
                kept = replace(now, verdict="kept")
                self._keep((*self._rollouts[:-1], kept))
                self._context.note(f"rollout of {now.name}: {self._state(kept)}")

    def _awaited(self, now: Rollout) -> list[str]:
        """Return the devices whose answers a verdict waits for: those that are here, and at least half of all."""
        here, answers = self._context.rounds, self._answers(now)
        silent = [each for each in now.devices if each not in answers]
        return silent if 2 * len(silent) > len(now.devices) else [e for e in silent if e in here.members - here.away]

    def _take_back(self, now: Rollout, why: str) -> None:
        """Let the devices of a rollout go back to their previous model.  Raises StoreError."""
        number = 1 + max(each.number for each in self._rollouts)
        self._keep((*self._rollouts[:-1], replace(now, verdict="back", number=number)))
        self._context.note(f"rollout of {now.name}: {why}; its devices go back to the model before")

    def _state(self, rollout: Rollout) -> str:
        answers = {name: each.state for name, each in self._answers(rollout).items()}
        if rollout.verdict == "back":
            hellos = self._context.registry.hellos
            last = {name: self._answer(rollout, hellos[name]) for name in rollout.devices if name in hellos}
            still = sum(each is not None and each.state == "running" for each in last.values())
            return f"taken back: {still} of {_devices(len(rollout.devices))} still run it"
        counts = ", ".join(
            f"{list(answers.values()).count(state)} {words}"
            for state, words in (("running", "run it"), ("worse", "found it worse"), ("refused", "refused it"))
            if state in answers.values()
        )
        waits = len(rollout.devices) - len(answers)
        told = [*filter(None, [counts, f"{waits} have not answered" if waits else ""])]
        samples, lost, won = _counts(self._answers(rollout))
        figures = f"; of {samples} held-out samples {won} more and {lost} fewer are right" if samples else ""
        board = f" of board {rollout.board}" if rollout.board else ""
        return (
            f"stage of {rollout.share:.0%}{board}, {rollout.verdict or 'open'}: of {_devices(len(rollout.devices))} "
            f"{', '.join(told)}{figures}"
        )

    def _keep(self, rollouts: tuple[Rollout, ...]) -> None:
        rollouts = rollouts[-KEPT_ROLLOUTS:]
        self._context.orders.keep_rollouts([asdict(each) for each in rollouts])
        self._rollouts = rollouts


def _counts(answers: Mapping[str, OfferAnswer]) -> tuple[int, int, int]:
    """Return the held-out samples of all devices, and how many of them were lost and won."""
    found = answers.values()
    return sum(each.samples for each in found), sum(each.lost for each in found), sum(each.won for each in found)


def _devices(count: int) -> str:
    return f"{count} device{'s' * (count != 1)}"
