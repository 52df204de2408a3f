"""Who takes part: the devices that a coordinator knows, what they declared, and when each last said hello."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from coordinator.serving import admission
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.methods.base import Method
from edge_sdk.protocol import codec
from edge_sdk.protocol.codec import Stamp
from edge_sdk.protocol.messages import FederationSpec, Hello


class DeviceRegistry:
    """Everything by the id of a device.  Who may stand here is said in admission.py."""

    def __init__(self, spec: FederationSpec, method: Method[Any], roster: tuple[str, ...], *, serving: bool) -> None:
        """roster: sorted; empty: anybody may come.  serving: a device can fetch the public set here."""
        self._spec, self._method, self._roster, self._serving = spec, method, roster, serving
        self.hellos: dict[str, Hello] = {}
        """Of those who take part."""
        self.numbers: dict[str, int] = {}
        """Of them, and of those who fetch the public set first."""
        self.samples: dict[str, int] = {}
        """Declared by them; 0: not told."""
        self._stamps: dict[str, Stamp] = {}
        """Of each device's last Hello, also of one that was refused."""

    # -- who may come in --------------------------------------------------------------------------------------------

    def refusal(self, hello: Hello) -> admission.RefusalReason | None:
        """Why this device may not take part; None: it may.

        Whoever was taken in first is the one that all others must agree with on what none of them can know beforehand.
        """
        first = next(iter(self.hellos.values()), None)
        return admission.refusal(hello, self._spec, self._method, self._roster, first, serving=self._serving)

    def fetches(self, hello: Hello) -> bool:
        """Whether it lacks the public set, and will fetch it before it takes part."""
        return admission.fetches(hello, self._spec, self._method)

    def place_on_roster(self, device: str) -> int | None:
        """Counted from 0; None: it is not on it, or there is no roster."""
        return self._roster.index(device) if device in self._roster else None

    def enter(self, hello: Hello, number: int) -> None:
        """Note a device that may take part, or that has said hello again."""
        self.numbers[hello.device], self.samples[hello.device] = number, hello.samples

    def take_in(self, hello: Hello) -> bool:
        """It takes part from now on; whether it did not before."""
        new = hello.device not in self.hellos
        self.hellos[hello.device] = hello
        return new

    def restore(self, enrolled: Mapping[str, tuple[int, bytes]]) -> None:
        """After a restart: number and last Hello frame of each device that the ledger holds."""
        for number, frame in enrolled.values():
            envelope = codec.decode(frame)
            hello = envelope.message
            if isinstance(hello, Hello):
                self.greeted(hello.device, envelope.stamp)
                self.enter(hello, number)
                if not self.fetches(hello):
                    self.take_in(hello)

    # -- who is here ------------------------------------------------------------------------------------------------

    def known(self, device: str) -> bool:
        """Whether it is in, or was at least expected."""
        return device in self.numbers or device in self._roster

    def anybody_learns(self, devices: Collection[str]) -> bool:
        """Whether any of these can train under the method."""
        return any(admission.learns(self.hellos[device], self._method) for device in devices)

    # -- lives of a device ------------------------------------------------------------------------------------------

    def greeted(self, device: str, stamp: Stamp) -> None:
        """It said hello, in a frame with this stamp."""
        self._stamps[device] = stamp

    def check_news(self, device: str, stamp: Stamp) -> None:
        """Raise RemoteProtocolError for what a device sent before its last Hello: it came late, or was recorded."""
        last = self._stamps.get(device, Stamp())
        if (stamp.boot_epoch, stamp.sequence) <= (last.boot_epoch, last.sequence):
            raise RemoteProtocolError("replayed", f"{device} has said hello since")

    def lives(self, device: str, boot_epoch: int) -> bool:
        """Whether its last Hello is from this life, so that the end of it means something."""
        last = self._stamps.get(device)
        return last is not None and last.boot_epoch == boot_epoch
