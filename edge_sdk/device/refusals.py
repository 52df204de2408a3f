"""Which Refusal a device obeys: without signatures, anyone can send a Hello in this device's name."""

from __future__ import annotations

import logging
from collections.abc import Callable

from edge_sdk.device.context import DeviceContext
from edge_sdk.device.link.incoming_frames import IncomingFrames
from edge_sdk.device.session import TAKING_PART, SessionPhase
from edge_sdk.errors import Refused
from edge_sdk.protocol.messages import Refusal

log = logging.getLogger(__name__)

IDENTITY = "identity"
"""The reason of a refusal because another device has the same id."""
OWN_IDENTITY = "give each device its own identity (identity=, --id), and never a copied state folder"
DOUBT_S = 5.0
"""How long a device that takes part waits for a Welcome after it asks again."""


def own_identity_taken(reason: str) -> Refused:
    """Return the refusal with which a device ends whose id another one uses."""
    return Refused(IDENTITY, reason, OWN_IDENTITY)


class Refusals:
    """Judges Refusals.

    A device that takes part without keys asks the coordinator again, and obeys only if another Refusal answers.
    """

    def __init__(self, context: DeviceContext, incoming: IncomingFrames, ask: Callable[[], None]) -> None:
        """ask: sends a Hello, if the link is up."""
        self._context, self._incoming, self._ask = context, incoming, ask
        self._again: Refusal | None = None
        """The Refusal that arrived after asking again."""
        self.due_s: float | None = None
        """When to call `settled`, in seconds, or None if nothing is in doubt."""

    def received(self, refusal: Refusal, now_s: float) -> Refused | None:
        """Return the refusal to end with, or None if this one answers another start, another device, or is doubted."""
        context = self._context
        phase, own = context.session.phase, context.instance
        if context.security is not None and (refusal.instance is None or refusal.instance != own):
            # stale (an earlier start), not ours, or a reply to a frame the coordinator could not read
            joining = phase is SessionPhase.JOINING
            if refusal.reason == "encryption" or (refusal.reason == "signature" and joining):
                self._incoming.tell_once(refusal.reason, f"{refusal.message}; {refusal.remedy}")
            return None
        if refusal.instance not in (None, own):
            line = f"another device uses this identity, too, and was refused; {OWN_IDENTITY}"
            if self._incoming.tell_once(IDENTITY, line):
                log.warning("%s: %s", context.device, line)
            return None
        if context.security is None and phase in TAKING_PART:
            self._doubt(refusal, now_s, names_start=refusal.instance is not None or own is None)
            return None
        return self._obeyed(refusal)

    def welcomed(self) -> None:
        """Forget the Refusal in doubt, because the coordinator accepts this device."""
        self.due_s = self._again = None

    def settled(self, now_s: float, *, over: bool = False) -> Refused | None:
        """Return the refusal to end with once the wait or the run is over; without any answer, ask again."""
        if self.due_s is None or not (over or now_s >= self.due_s):
            return None
        if self._again is not None:
            return self._obeyed(self._again)
        if not over:
            self._ask_again(now_s)
        return None

    def _doubt(self, refusal: Refusal, now_s: float, *, names_start: bool) -> None:
        """Ask again after a first Refusal; keep a second one that names this start of the device.

        names_start: whether it does.  Others answer frames that the coordinator could not read, which anyone may have
        sent: a reason to ask, not to leave.
        """
        if self.due_s is None:
            self._ask_again(now_s)
        elif names_start:
            self._again = refusal

    def _ask_again(self, now_s: float) -> None:
        self.due_s = now_s + DOUBT_S
        self._ask()

    def _obeyed(self, refusal: Refusal) -> Refused:
        self.welcomed()
        context, remedy = self._context, refusal.remedy
        if context.allows_weights and not context.shares_weights and "share_weights" in remedy:
            remedy += f" (it is set, but {context.bench.model.spec.name} has no weights that can be shared)"
        return Refused(refusal.reason, refusal.message, remedy)
