"""The devices that a coordinator knows, what they declared, and the stamp of each one's last Hello."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

from coordinator.serving.devices import admission
from edge_sdk.errors import RemoteProtocolError
from edge_sdk.methods.contract.base import Method, Registered
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Stamp
from edge_sdk.protocol.messages import FederationSpec, Hello, Upload


class DeviceRegistry:
    """The known devices by their ids.  The rules of admission are in admission.py."""

    def __init__(
        self,
        spec: FederationSpec,
        method: Method[Any],
        roster: tuple[str, ...],
        *,
        serving: bool,
        run: Callable[[], bytes] | None = None,
    ) -> None:
        """roster: sorted, or empty if any device may join.  serving: whether devices can fetch the public set here.

        run: returns the run that a Hello must name, or None if it need not name any.
        """
        self._spec, self._method, self._roster, self._serving, self._run = spec, method, roster, serving, run
        self._places = {device: place for place, device in enumerate(roster)}
        self.hellos: dict[str, Hello] = {}
        """The Hello of each device that takes part."""
        self.numbers: dict[str, int] = {}
        """The number of each device that takes part, or that is still fetching the public set."""
        self.samples: dict[str, int] = {}
        """The number of samples that each of these devices declared, or 0 if it did not."""
        self.identities = Identities()
        """Detects two processes that use one id."""
        self._registered: Registered | None = None
        """The last result of `registered`, while it is valid."""
        self._stamps: dict[str, Stamp] = {}
        """The stamp of each known device's last Hello, refused ones included."""
        self._statuses: dict[str, Stamp] = {}
        """The stamp of each device's newest status about whether it takes part."""

    # -- admission --------------------------------------------------------------------------------------------------

    def refusal(self, hello: Hello) -> admission.RefusalReason | None:
        """Why this device may not take part, or None if it may.

        Where the configuration fixes no architecture, all devices must have that of the first admitted device.
        """
        first = next(iter(self.hellos.values()), None)
        return admission.refusal(hello, self._spec, self._method, self._places.keys(), first, serving=self._serving)

    def fetches(self, hello: Hello) -> bool:
        """Whether the device lacks the public set, and will fetch it before it takes part."""
        return admission.fetches(hello, self._spec, self._method)

    def is_unbound(self, hello: Hello) -> bool:
        """Whether a Hello must name this run but does not: it may be a recording from an earlier run."""
        return self._run is not None and hello.run != self._run()

    def place_on_roster(self, device: str) -> int | None:
        """The place of a device on the roster, counted from 0, or None if it is not on one."""
        return self._places.get(device)

    def enter(self, hello: Hello, number: int) -> None:
        """Register a device that may take part, or update it after another Hello."""
        self.numbers[hello.device], self.samples[hello.device] = number, hello.samples
        self._registered = None

    def take_in(self, hello: Hello) -> bool:
        """Let a device take part from now on; returns whether it is new."""
        new = hello.device not in self.hellos
        self.hellos[hello.device] = hello
        self._registered = None
        return new

    def forget(self, device: str) -> None:
        """Forget a device, as if it had never joined."""
        for known in (self.hellos, self.numbers, self.samples, self._stamps, self._statuses):
            known.pop(device, None)
        self.identities.forget(device)
        self._registered = None

    def follow(self, upload: Upload) -> None:
        """Update the number of a device's samples, if its data change."""
        hello = self.hellos.get(upload.device)
        if hello is not None and hello.capacity:
            self.hellos[upload.device] = now = admission.at_upload(hello, upload)
            self.samples[upload.device] = now.samples
            self._registered = None

    def restore(self, enrolled: Mapping[str, tuple[int, bytes]]) -> None:
        """Restore the devices after a restart; enrolled: (number, last Hello frame) by device, from the ledger."""
        for number, frame in enrolled.values():
            envelope = codec.decode(frame)
            hello = envelope.message
            if isinstance(hello, Hello):
                self.identities.contested_by(hello, envelope.stamp)
                self.greeted(hello.device, envelope.stamp)
                self.enter(hello, number)
                if not (self.fetches(hello) or admission.waits(hello) or self.is_unbound(hello)):
                    self.take_in(hello)

    # -- who is here ------------------------------------------------------------------------------------------------

    @property
    def registered(self) -> Registered:
        """The devices that have joined, as a method sees them."""
        if self._registered is None:
            layouts = {self.numbers[name]: _hex(hello.layout) for name, hello in self.hellos.items() if hello.layout}
            samples = sum(self.samples[name] for name in self.numbers)
            self._registered = Registered(len(self.numbers), samples, layouts)
        return self._registered

    @property
    def open_to_all(self) -> bool:
        """Whether any device may join, because there is no roster."""
        return not self._roster

    def known(self, device: str) -> bool:
        """Whether a device has joined, or is on the roster."""
        return device in self.numbers or device in self._places

    def anybody_learns(self, devices: Collection[str]) -> bool:
        """Whether any of these can train under the method."""
        return any(admission.learns(self.hellos[device], self._method) for device in devices)

    def may_train_alone(self, device: str) -> bool:
        """Whether a device can be in a control group: it trains, and its SDK knows that task."""
        hello = self.hellos[device]
        return hello.trains_alone and admission.learns(hello, self._method)

    # -- lives of a device ------------------------------------------------------------------------------------------

    def greeted(self, device: str, stamp: Stamp) -> None:
        """Note that a device sent a Hello, in a frame with this stamp."""
        self._stamps[device] = _shared(stamp)

    def last_hello(self, device: str) -> Stamp | None:
        """Return the stamp of a device's last Hello, or None if it sent none."""
        return self._stamps.get(device)

    def check_news(self, device: str, stamp: Stamp) -> None:
        """Raise RemoteProtocolError if a frame is older than its device's last Hello, that is late or replayed."""
        last = self._stamps.get(device, Stamp())
        if (stamp.boot_epoch, stamp.sequence) <= (last.boot_epoch, last.sequence):
            raise RemoteProtocolError("replayed", f"{device} has said hello since")

    def lives(self, device: str, boot_epoch: int) -> bool:
        """Whether the device's last Hello has this boot epoch, so that a status of that epoch is current."""
        last = self._stamps.get(device)
        return last is not None and last.boot_epoch == boot_epoch

    def newest_status(self, device: str, stamp: Stamp) -> bool:
        """Note a status, and return whether it is newer than those before, and not of an earlier start of the device.

        A device that starts announces its status before it sends Hello.
        """
        hello, last = self._stamps.get(device, Stamp()), self._statuses.get(device, Stamp())
        newer = (stamp.boot_epoch, stamp.sequence) > (last.boot_epoch, last.sequence)
        if not newer or stamp.boot_epoch < hello.boot_epoch:
            return False
        self._statuses[device] = _shared(stamp)
        return True


@lru_cache(maxsize=64)
def _shared(stamp: Stamp) -> Stamp:
    """Return a stamp; those of a fleet's first frames are alike, and in memory once."""
    return stamp


@lru_cache(maxsize=64)
def _hex(layout: bytes) -> str:
    """Return a layout as text; the devices of a kind share it."""
    return layout.hex()


# Which process speaks for each device: Hellos reveal two processes that use one identity at the same time.
#
# Each start of a device draws an instance id.  A restart brings a new one, and the old one never returns.  So an old
# instance that says Hello after a newer one shows that both are alive.

MOST_INSTANCES = 16
"""Instances kept of one device: its newest ones."""


class Identities:
    """The instances of each device, in the order in which they came, each with the stamp of its last Hello."""

    def __init__(self) -> None:
        self._instances: dict[str, dict[bytes, Stamp]] = {}
        self._speaking: dict[str, bytes] = {}
        self._later: dict[str, dict[bytes, None]] = {}
        """The instances that came while an earlier one was alive."""

    def contested_by(self, hello: Hello, stamp: Stamp) -> bool:
        """Note a Hello; returns whether it shows that a later instance took the place of one that is still alive.

        The earlier instance keeps the identity, and the later ones are `intruders` from now on.
        """
        device, instance = hello.device, hello.instance
        if not instance or self.intrudes(hello):
            return False
        known = self._instances.setdefault(device, {})
        before = known.get(instance)
        if before is not None and (stamp.boot_epoch, stamp.sequence) <= (before.boot_epoch, before.sequence):
            return False  # the broker delivered it twice
        alive = before is not None and self._speaking.get(device, instance) != instance
        if alive:
            order = list(known)
            later = order[order.index(instance) + 1 :]
            self._later.setdefault(device, {}).update(dict.fromkeys(later))
            self._trim(self._later[device])
        known[instance] = stamp
        self._trim(known)
        self._speaking[device] = instance
        return alive

    def is_other(self, hello: Hello) -> bool:
        """Whether a Hello comes from another start of the device than its last one."""
        speaking = self._speaking.get(hello.device)
        return bool(hello.instance) and speaking is not None and hello.instance != speaking

    def forget(self, device: str) -> None:
        """Forget all instances of a device."""
        self._instances.pop(device, None)
        self._speaking.pop(device, None)
        self._later.pop(device, None)

    def intruders(self, device: str) -> tuple[bytes, ...]:
        """Return the instances of a device that came while an earlier one was alive, oldest first."""
        return tuple(self._later.get(device, {}))

    def intrudes(self, hello: Hello) -> bool:
        """Whether this instance came while an earlier one was alive."""
        return hello.instance in self._later.get(hello.device, {})

    @staticmethod
    def _trim(instances: dict[bytes, Stamp] | dict[bytes, None]) -> None:
        while len(instances) > MOST_INSTANCES:
            del instances[next(iter(instances))]
