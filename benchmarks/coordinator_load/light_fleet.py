"""Many devices in one thread, each with a connection of its own: they say hello, upload made-up logits, and wait.

A light device keeps the rules of a real one: it sends an upload again after each reconnect and after 4, 8 ... 60 s,
until the coordinator's receipt is here, and says hello again after 1, 2 ... 30 s.  It computes nothing, and it
reconnects at once, without the random pause of a real device: all together, which is the worst case.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from edge_sdk.device.session import HELLO_FIRST_S, HELLO_MOST_S, RESEND_FIRST_S, RESEND_MOST_S
from edge_sdk.methods.fedmd import FedMD
from edge_sdk.protocol import topics
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.frames.codec import Limits, Stamp
from edge_sdk.protocol.knowledge import Payload, PublicLogits
from edge_sdk.protocol.messages import Assign, FederationSpec, Hello, Message, Receipt, Upload, Welcome
from edge_sdk.protocol.public_batch import batch_digest, batch_indices

LIMITS = Limits(2**22, 2**22)
Place = tuple[int, int]


@dataclass(eq=False)
class LightDevice:
    """One connection, and what is not receipted yet."""

    fleet: LightFleet
    name: str
    client: Client = field(init=False)
    welcomed_s: float | None = None
    """When the last Welcome came, or None if none has on this connection."""
    waits: dict[Place, tuple[bytes, float, float]] = field(default_factory=dict)
    """By exchange: the frame of the upload, when it was sent first, and when to send it again."""
    resend_wait_s: float = RESEND_FIRST_S
    hello_due_s: float = 0.0
    """When to say hello again, unless a Welcome comes."""
    hello_wait_s: float = HELLO_FIRST_S
    online: bool = False

    def connect(self) -> None:
        """Open a connection; raises OSError while there is no broker."""
        self.client = Client(CallbackAPIVersion.VERSION2, self.name, protocol=MQTTProtocolVersion.MQTTv311)
        self.client.on_message = self._take
        self.client.on_connect = lambda *_: self._greet()
        self.welcomed_s = None
        self.client.connect("127.0.0.1", self.fleet.port, keepalive=60)

    def _greet(self) -> None:
        self.online = True
        self.hello_wait_s, self.resend_wait_s = HELLO_FIRST_S, RESEND_FIRST_S
        self.client.subscribe(topics.device_subscriptions(self.fleet.federation, self.name)[0], 1)
        self.say_hello()
        for place, (frame, first_s, _) in self.waits.items():
            self._send(place, frame, first_s)

    def say_hello(self) -> None:
        """Ask to be let in."""
        self.hello_due_s = time.monotonic() + self.hello_wait_s
        self.hello_wait_s = min(2 * self.hello_wait_s, HELLO_MOST_S)
        self.client.publish(topics.up(self.fleet.federation, self.name, "hello"), self.fleet.hello(self.name), qos=1)

    def _take(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        found: Message = codec.decode(bytes(message.payload), LIMITS).message
        if isinstance(found, Welcome):
            self.welcomed_s = time.monotonic()
            self.fleet.spec = found.spec
        elif isinstance(found, Assign):
            self._answer((found.round, found.exchange), closing=found.closing)
        elif isinstance(found, Receipt) and (waited := self.waits.pop((found.round, found.exchange), None)):
            self.fleet.receipted(self.name, (found.round, found.exchange), time.monotonic() - waited[1], found.verdict)

    def _answer(self, place: Place, *, closing: bool) -> None:
        if place in self.waits or self.fleet.has(self.name, place):
            return
        self.resend_wait_s = RESEND_FIRST_S
        self._send(place, self.fleet.upload(self.name, place, closing=closing), time.monotonic())

    def _send(self, place: Place, frame: bytes, first_s: float) -> None:
        self.waits[place] = frame, first_s, time.monotonic() + self.resend_wait_s
        self.client.publish(topics.up(self.fleet.federation, self.name, "upd"), frame, qos=1)

    def tick(self, now_s: float) -> None:
        """Say again what had no answer."""
        if self.welcomed_s is None and now_s > self.hello_due_s:
            self.say_hello()
        for place, (frame, first_s, due_s) in [*self.waits.items()]:
            if now_s > due_s:
                self.resend_wait_s = min(2 * self.resend_wait_s, RESEND_MOST_S)
                self._send(place, frame, first_s)


class LightFleet:
    """All devices of a benchmark, driven by `run_until`."""

    def __init__(self, port: int, federation: str, names: Sequence[str], *, classes: int, rows: int) -> None:
        """rows: public samples that each upload has logits for; 4 * rows * classes bytes."""
        self.port, self.federation, self.rows, self.classes = port, federation, rows, classes
        self.spec: FederationSpec | None = None
        self.public_sha256 = b""
        self.devices = [LightDevice(self, name) for name in names]
        self.waits_s: list[float] = []
        """Seconds from the first sending of each upload to its receipt."""
        self.done: dict[Place, set[str]] = {}
        """By exchange: the devices whose upload has its receipt."""
        self.verdicts: dict[str, int] = {}
        self.reconnects = 0
        self.first_upload_s = 0.0
        """When the first upload of all was sent (time.monotonic)."""
        self._selector = selectors.DefaultSelector()
        self._registered: dict[LightDevice, object] = {}

    # -- what devices say -------------------------------------------------------------------------------------------

    def hello(self, name: str) -> bytes:
        """Return the frame by which a device asks to be let in."""
        message = Hello(
            federation=self.federation,
            device=name,
            capabilities=tuple(sorted(FedMD().needs)),
            terms=tuple(sorted(FedMD().terms)),
            classes=self.classes,
            samples=100,
            public_sha256=self.public_sha256,
        )
        return codec.encode(message, Stamp(1, 1))

    def upload(self, name: str, place: Place, *, closing: bool) -> bytes:
        """Return the frame of an upload: made-up logits, or metrics alone in the closing exchange."""
        self.first_upload_s = self.first_upload_s or time.monotonic()
        knowledge: dict[str, Payload] = {}
        if not closing:
            assert self.spec is not None
            batch = batch_digest(self.spec, batch_indices(self.spec, *place, self.rows))
            rng = np.random.default_rng([place[0], int(name.rpartition("-")[2])])
            values = rng.normal(0, 5, (self.rows, self.classes)).astype(np.float32)
            knowledge = {"logits": PublicLogits(values=values, batch=batch)}
        upload = Upload(
            federation=self.federation,
            device=name,
            round=place[0],
            exchange=place[1],
            closing=closing,
            knowledge=knowledge,
            samples=100,
        )
        return codec.encode(upload, Stamp(1, 2))

    def has(self, name: str, place: Place) -> bool:
        """Whether a device has the receipt of its upload for an exchange."""
        return name in self.done.get(place, ())

    def receipted(self, name: str, place: Place, waited_s: float, verdict: str) -> None:
        """Note a receipt."""
        self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1
        self.done.setdefault(place, set()).add(name)
        self.waits_s.append(waited_s)

    # -- the loop ---------------------------------------------------------------------------------------------------

    def run_until(self, done: Callable[[], bool], patience_s: float) -> None:
        """Serve all connections until `done` returns True.  Raises TimeoutError."""
        end_s = next_tick_s = time.monotonic()
        end_s += patience_s
        while not done():
            now_s = time.monotonic()
            if now_s > end_s:
                raise TimeoutError(f"not done after {patience_s:.0f} s: {sum(d.online for d in self.devices)} online")
            if now_s >= next_tick_s:
                next_tick_s = now_s + 0.5
                self._connect_missing()
                for device in self.devices:
                    if device.online:
                        device.tick(now_s)
                        device.client.loop_misc()
                        if device.client.socket() is None:  # no selector reports a socket that its client has closed
                            self._drop(device)
            self._serve(0.02)

    def _connect_missing(self) -> None:
        for device in self.devices:
            if device not in self._registered:
                try:
                    device.connect()
                except OSError:
                    return  # no broker: it would refuse the others, too
                self._register(device)

    def _register(self, device: LightDevice) -> None:
        socket = device.client.socket()
        if socket is not None:
            self._selector.register(socket, selectors.EVENT_READ | selectors.EVENT_WRITE, device)
            self._registered[device] = socket

    def _serve(self, timeout_s: float) -> None:
        for key, events in self._selector.select(timeout_s):
            device: LightDevice = key.data
            if events & selectors.EVENT_READ:
                device.client.loop_read()
            if device.client.want_write():
                device.client.loop_write()
            if device.client.socket() is not key.fileobj:
                self._drop(device)
                continue
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if device.client.want_write() else 0)
            if wanted != key.events:
                self._selector.modify(key.fileobj, wanted, device)

    def _drop(self, device: LightDevice) -> None:
        """Forget a connection that the broker has ended; the next tick opens another one."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(self._registered[device])  # type: ignore[arg-type]  # a socket
        self._registered.pop(device, None)
        device.online, device.welcomed_s = False, None
        self.reconnects += 1

    @contextmanager
    def open(self) -> Iterator[LightFleet]:
        """Close all connections at the end."""
        try:
            yield self
        finally:
            for device in self._registered:
                with suppress(OSError, ValueError):
                    device.client.disconnect()
            self._selector.close()
