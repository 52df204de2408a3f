"""Which process speaks for each device: two that use one identity at the same time are told apart by their Hellos.

Each start of a device draws an instance id.  A restart brings a new one, and the old one never speaks again.  So an
instance that says Hello after another has taken its place shows that both are alive.
"""

from __future__ import annotations

from edge_sdk.protocol.codec import Stamp
from edge_sdk.protocol.messages import Hello

MOST_INSTANCES = 16
"""The most instances that are kept of one device: its newest ones."""


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
            return False  # delivered once more
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
        """Whether a Hello is of another instance than the device's last one; each start has an instance of its own."""
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
