"""Devices that join and leave: answers all their messages except uploads, and turns them into events of the rounds."""

from __future__ import annotations

import re

from coordinator import rounds
from coordinator.record import remarks
from coordinator.serving.devices import admission
from coordinator.serving.devices.admission import RefusalReason, taken_out, waits
from coordinator.serving.intake.signatures import counts_again, newer
from coordinator.serving.operators.device_report import DeviceReport
from coordinator.serving.public_set_server import PublicSetServer
from coordinator.serving.run_context import RunContext
from coordinator.serving.sender import Sender
from edge_sdk.errors import RemoteProtocolError, StoreError
from edge_sdk.protocol.entry_guard import legible
from edge_sdk.protocol.frames.codec import Envelope, Stamp
from edge_sdk.protocol.messages import FEW_NEW_SAMPLES, FOREVER, Bye, DeviceStatus, Hello, PublicRequest
from edge_sdk.terminal import LineBudget
from edge_sdk.version import __version__

MOST_ON_PROBATION = 16
"""Maximum number of devices on probation beyond the free seats."""


class Seats:
    """Open enrolment: without a roster, any device may join until all seats are taken.

    A newcomer is on probation until its first upload counts.  It is welcomed and invited, but has no seat yet, so
    devices that only say Hello cannot keep others out.
    """

    def __init__(self, context: RunContext) -> None:
        self._context, self._registry, self._record = context, context.registry, context.record
        self._count = max(context.policy.expected, context.policy.most_devices)

    def on_probation(self, device: str) -> bool:
        """Whether a device has no seat yet: it is not on a roster and has not uploaded."""
        if self._registry.place_on_roster(device) is not None or device in self._context.rounds.folded:
            return False
        answered = self._record.contributed[device] or self._record.sums["withheld"][device]
        return not answered and all(
            each.device != device for each in [*self._context.refused, *self._context.unwritten]
        )

    def refusal(self, device: str) -> RefusalReason | None:
        """Why a newcomer may not join, or None if a seat is left or a device on probation may give up its place."""
        seated = sum(not self.on_probation(each) for each in self._here())
        if seated < self._count:
            return None
        return RefusalReason(
            "full",
            f"{device}: all {self._count} seats of this federation are taken",
            "raise federation.most_devices, or name the devices in federation.roster; a device that will not come back "
            "gives up its seat by edge-sdk forget",
        )

    @property
    def crowded(self) -> bool:
        """Whether a new device must displace one on probation."""
        return len(self._here()) >= self._count + MOST_ON_PROBATION

    def to_displace(self) -> str | None:
        """The device on probation to displace: one that was invited and stayed silent, or None."""
        away = self._context.rounds.away
        return next((each for each in self._registry.numbers if each in away and self.on_probation(each)), None)

    def _here(self) -> list[str]:
        return [each for each in self._registry.numbers if each not in self._record.left]


NOBODYS = b"\0"
"""An id that no instance has: the Refusal of a Hello without instance must not stop a device that has one."""


class MembershipHandler:
    """Answers devices that join, leave or fetch the public set, and keeps the registry of devices."""

    def __init__(
        self, context: RunContext, sender: Sender, report: DeviceReport, public_server: PublicSetServer | None
    ) -> None:
        self._context, self._sender, self._report, self._public_server = context, sender, report, public_server
        self._registry, self._ledger, self._record = context.registry, context.ledger, context.record
        self._orders, self._signed = context.orders, context.security is not None  # signed stamps can be trusted
        self._expected, self._seats = context.policy.expected, Seats(context)
        self._run = context.ledger.run
        """The run's id, read once: each Welcome has it."""
        self._strangers, self._disk_faults = LineBudget(), LineBudget(first=1)
        self._stored: dict[str, tuple[Hello, int]] = {}
        """By device: its newest Hello in the ledger, and the start (boot epoch) in which it said that."""
        self._few_told = set[str]()
        """The devices whose wait for new samples was logged."""

    def take(self, envelope: Envelope, frame: bytes, came_bytes: int, now_s: float) -> rounds.RoundEvent | None:
        """Handle a decoded message other than an upload; returns the event for the rounds, or None.

        frame: as the ledger keeps it.  came_bytes: its size on arrival.

        Raises RemoteProtocolError for a message that the coordinator does not accept, StoreError if the disk fails.
        """
        message = envelope.message
        if isinstance(message, Hello):
            if self._signed:
                self._check_newest(message, envelope.stamp)
            return self._greet(message, envelope.stamp, frame, now_s, came_bytes=came_bytes)
        if isinstance(message, PublicRequest):
            self._serve(message, came_bytes, now_s)
            return None
        if isinstance(message, Bye):
            self._registry.check_news(message.device, envelope.stamp)
            return self._bye(message, now_s)
        if isinstance(message, DeviceStatus):
            if message.state == "ready":
                return self._consent(message, envelope.stamp, now_s)
            return rounds.Lost(message.device) if self._registry.lives(message.device, message.boot) else None
        raise RemoteProtocolError("topic", f"a {type(message).__name__} is not for the coordinator")

    def _greet(
        self, hello: Hello, stamp: Stamp, frame: bytes, now_s: float, *, came_bytes: int
    ) -> rounds.RoundEvent | None:
        """Answer a Hello.  For a stranger that may not join, only the refusal is kept."""
        device, refusal = hello.device, self._refusal(hello)
        if not self._registry.known(device):
            refusal = refusal or self._seats.refusal(device)
            if refusal is not None:
                return self._turn_away(device, refusal, now_s, hello.instance)
            takes_seat = self._seats.crowded and not self._registry.is_unbound(hello)
            displaced = self._seats.to_displace() if takes_seat else ""
            if displaced is None:
                self._say(f"{device} waits: too many devices are on probation", now_s)
                return None  # it will send Hello again
            if displaced:
                self._displace(displaced)
            self._registry.greeted(device, stamp)
            self._registry.identities.contested_by(hello, stamp)
            return self._admit(hello, stamp, frame, now_s, came_bytes=came_bytes, instead_of=displaced)
        if refusal is not None and not self._signed and device in self._registry.hellos and not self._barred(device):
            # possibly forged: the device takes part, so it is fit; a genuine one sends Hello again
            instance = NOBODYS if self._registry.hellos[device].instance else None
            self._sender.refuse(device, refusal, hello.instance or instance)
            self._say(f"{refusal.message}; an earlier Hello was accepted, so the device still takes part", now_s)
            return None
        if self._is_intruder(hello, stamp):
            return None
        self._registry.greeted(device, stamp)
        if refusal is not None:
            return self._turn_away(device, refusal, now_s, hello.instance)
        return self._admit(hello, stamp, frame, now_s, came_bytes=came_bytes)

    def _refusal(self, hello: Hello) -> RefusalReason | None:
        device = hello.device
        refusal = taken_out(device, hello.federation) if self._barred(device) else None
        with legible():
            return refusal or version_refusal(hello) or self._registry.refusal(hello)

    def _barred(self, device: str) -> bool:
        """Whether an operator has taken a device out and it has finished its round."""
        return device in self._orders.drained and device not in self._context.rounds.draining

    def _displace(self, device: str) -> None:
        """Forget a device on probation; another one takes its place.  Raises StoreError."""
        self._ledger.forget(device)
        self._stored.pop(device, None)  # strangers must not fill the memory
        self._registry.forget(device)
        self._record.displaced(device)
        self._report.forgot(device)

    def _say(self, line: str, now_s: float) -> None:
        """Log a line about strangers, within a limited number of lines."""
        told = self._strangers.line(line, now_s)
        if told is not None:
            self._context.note(told)

    def _admit(
        self, hello: Hello, stamp: Stamp, frame: bytes, now_s: float, *, came_bytes: int, instead_of: str = ""
    ) -> rounds.RoundEvent | None:
        """Welcome a device.  instead_of: a device that gave up its place, or empty."""
        device = hello.device
        if device in self._orders.forgotten:
            self._orders.let_in(device)
        number = self._enrolled(hello, stamp, frame)
        self._record.admitted(device, came_bytes)
        if self._context.spec.rounds == FOREVER:
            self._record.is_kind(device, board=hello.board, model=hello.model)
        fetching = self._registry.fetches(hello)
        if fetching and device not in self._registry.numbers:
            self._context.note(f"{device} fetches the public set")
        elif waits(hello) and device not in self._registry.numbers:
            self._context.note(f"{device} has no labelled samples yet, and takes part once it has some")
        unbound = self._registry.is_unbound(hello)
        if not unbound:
            self._registry.enter(hello, number)
        self._sender.welcome(device, number, self._run, self._public_server.total_bytes if self._public_server else 0)
        if self._context.queue.over:  # the device does not know that the run is over
            self._sender.announce_run()
        if unbound:
            return None  # it takes part once its Hello names the run, which it learns from the Welcome
        if fetching:
            return None  # it takes part once its Hello names the set
        if waits(hello):
            return rounds.Lost(device)  # likewise; if it took part before, the round must not wait for it
        self._take_in(hello, now_s)
        return rounds.Joined(device, now_s, instead_of)

    def _enrolled(self, hello: Hello, stamp: Stamp, frame: bytes) -> int:
        """Store a device, and return its number.

        A Hello that only repeats the stored one is not written: a write takes a sync of the disk, and thousands of
        waiting devices repeat their Hellos faster than the disk syncs.  A lab writes each, because it recognises
        replays by the stored stamp.
        """
        device, said, number = hello.device, (hello, stamp.boot_epoch), self._ledger.number_of(hello.device)
        if number is None or self._signed or self._stored.get(device) != said:
            number = self._ledger.enrol(device, self._registry.place_on_roster(device), frame)
            self._stored[device] = said
        return number

    def _check_newest(self, hello: Hello, stamp: Stamp) -> None:
        """Raise RemoteProtocolError for a signed Hello that is not newer than the device's last one.

        A device restored from a backup, or a copy, reuses a start that another process has counted, and learns that it
        must enrol again.  The Refusal names the instance of this Hello, so that a replayed Hello stops no other device.
        """
        device, last = hello.device, self._registry.last_hello(hello.device)
        repeats = counts_again(stamp, last) and self._registry.identities.is_other(hello)
        if newer(stamp, last) and not repeats:
            return
        if (repeats or (last is not None and stamp.boot_epoch < last.boot_epoch)) and hello.instance is not None:
            self._sender.refuse(device, admission.restored(device), hello.instance)
        raise RemoteProtocolError("replayed", f"a Hello of {device} that is not its newest")

    def revoke(self, device: str, now_s: float) -> rounds.RoundEvent:
        """Take a device out at once and notify it; returns the event for the rounds."""
        hello = self._registry.hellos.get(device)
        self._sender.refuse(device, admission.revoked(device), hello.instance if hello else None)
        self._context.note(f"{device} was revoked: its messages no longer count")
        return rounds.Left(device, now_s)

    def _is_intruder(self, hello: Hello, stamp: Stamp) -> bool:
        """Whether another device with this id came first; if so, this one is refused."""
        device, identities = hello.device, self._registry.identities
        if identities.contested_by(hello, stamp):
            if device not in self._record.contested:
                self._context.note(remarks.contested(device))
            self._record.contested[device] += 1
            # the first one is connected now; it never sees this refusal if the broker keeps one connection per id
            self._sender.refuse(device, admission.identity_taken(device), identities.intruders(device)[-1])
        if not identities.intrudes(hello):
            return False
        self._sender.refuse(device, admission.identity_taken(device), hello.instance)
        return True

    def refuse_plain(self, hello: Hello, now_s: float) -> rounds.DeviceRefused | None:
        """Refuse a device that sends plain frames in a lab that encrypts."""
        return self._turn_away(hello.device, admission.unencrypted(hello.device), now_s, hello.instance)

    def unreadable(self, device: str, reason: str, now_s: float) -> None:
        """Refuse a device whose Hello has another frame version; the answer shows it ours.

        reason: of the codec, which calls the coordinator "this side".
        """
        fault, _, side = reason.partition(": upgrade ")
        older = "coordinator" if side == "this side" else "device"
        fault = fault.replace("this side", "this coordinator")
        refusal = RefusalReason("version", f"{device}: {fault}", f"upgrade the {older}'s edge-sdk")
        self._turn_away(device, refusal, now_s)

    def _turn_away(
        self, device: str, refusal: RefusalReason, now_s: float, instance: bytes | None = None
    ) -> rounds.DeviceRefused | None:
        known = device in self._record.refused_devices
        note = {"device": device, "reason": refusal.reason, "message": refusal.message, "remedy": refusal.remedy}
        self._record.refused_device(device, note)
        self._sender.refuse(device, refusal, instance)
        line = f"{refusal.message}; {refusal.remedy}"
        told = line if self._registry.known(device) else self._strangers.line(line, now_s)
        if not known and told is not None:
            self._context.observer.turned_away(device, told)
        # without a roster, another device, or this one once it is fixed, may still join
        return rounds.DeviceRefused(device) if self._registry.place_on_roster(device) is not None else None

    def _take_in(self, hello: Hello, now_s: float) -> None:
        before = self._registry.hellos.get(hello.device)
        if self._registry.take_in(hello):
            self._say_who_came(hello, now_s)
        remark = version_remark(hello)
        if remark and (before is None or before.sdk != hello.sdk):  # a device may come back upgraded
            self._context.note(remark)

    def _say_who_came(self, hello: Hello, now_s: float) -> None:
        """Log that a new device takes part."""
        count = len(self._registry.hellos)
        if count == 1:
            for warning in self._context.warnings.first_joined(hello, self._ledger.free_bytes):
                self._context.note(warning)
        if count <= self._expected:
            self._context.observer.joined(hello.device, count, self._expected)
        else:
            self._say(f"{hello.device} joined, beyond the {self._expected} expected", now_s)

    def _serve(self, request: PublicRequest, came_bytes: int, now_s: float) -> None:
        if request.device not in self._registry.numbers:
            self._sender.ask_for_hello(request.device)
            raise RemoteProtocolError("knowledge", f"{request.device} has not joined")
        if self._public_server is None:
            raise RemoteProtocolError("knowledge", "no public set is served here")
        self._record.came(request.device, came_bytes, "public set")
        try:
            for block in self._public_server.blocks(request, now_s):
                self._sender.send(request.device, block)
        except StoreError as error:
            if line := self._disk_faults.line(str(error), now_s):
                self._context.note(line)  # the device will ask again

    def _consent(self, status: DeviceStatus, stamp: Stamp, now_s: float) -> rounds.Declined | rounds.Willing | None:
        """Note whether a device computes its assignments; returns None if that is unchanged or the status is old."""
        device, reasons = status.device, self._record.declining
        changes = bool(status.declines) or device in reasons
        if not changes or device not in self._registry.numbers or not self._registry.newest_status(device, stamp):
            return None
        if not status.declines:
            if reasons.pop(device)[0] != FEW_NEW_SAMPLES:
                self._context.note(f"{device} takes part again")
            return None if device in self._orders.paused else rounds.Willing(device, now_s)
        few, before = status.declines == FEW_NEW_SAMPLES, reasons.get(device, ("", ""))[0]
        if before != status.declines and not (few and device in self._few_told):
            self._context.note(f"{device} declined: {status.why or status.declines}")
        if few:  # happens between all rounds, so only the first time is logged
            self._few_told.add(device)
        reasons[device] = status.declines, status.why
        return rounds.Declined(device, status.declines_round, now_s)

    def _bye(self, bye: Bye, now_s: float) -> rounds.Left | None:
        if bye.device not in self._registry.numbers:
            return None  # the device never joined
        if self._seats.on_probation(bye.device):
            self._say(remarks.left(bye.device, bye.reason), now_s)
            self._displace(bye.device)
            return rounds.Left(bye.device, now_s, replaceable=True)
        self._context.note(remarks.left(bye.device, bye.reason))
        self._record.left[bye.device] = bye.reason
        self._record.declining.pop(bye.device, None)
        return rounds.Left(bye.device, now_s)


# -- Which versions of edge-sdk work together: the same major version; tested for at most one minor version apart ------
# Within a major version the protocol only gains additions (docs/reference/protocol.md, "Evolution").  A device that is
# further behind may take part, but this is untested.

_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})(\..*)?")


def version_refusal(hello: Hello, ours: str = __version__) -> RefusalReason | None:
    """The refusal of a device with another major version, or None if it has the same or does not name it."""
    found, own = _parsed(hello.sdk), _parsed(ours)
    if found is None or own is None or found[0] == own[0]:
        return None
    older = "device" if found[0] < own[0] else "coordinator"
    return RefusalReason(
        "version",
        f"{hello.device} has edge-sdk {hello.sdk}, this coordinator {ours}: another major version",
        f"upgrade the {older}'s edge-sdk",
    )


def version_remark(hello: Hello, ours: str = __version__) -> str:
    """A line about a device that is more than one minor version apart, or empty."""
    found, own = _parsed(hello.sdk), _parsed(ours)
    if found is None or own is None or abs(found[1] - own[1]) <= 1:
        return ""
    older = "device" if found[1] < own[1] else "coordinator"
    return (
        f"{hello.device} has edge-sdk {hello.sdk}, this coordinator {ours}: more than one minor version apart is not "
        f"tested; upgrade the {older}"
    )


def _parsed(version: str) -> tuple[int, int] | None:
    """Major and minor version, or None for a text of another form, which other implementations may send."""
    found = _VERSION.fullmatch(version)
    return (int(found[1]), int(found[2])) if found else None
