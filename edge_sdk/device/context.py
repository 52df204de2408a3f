"""The parts of one device that its handlers share: each of them receives this one object."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from edge_sdk.device.link.security import DeviceSecurity
from edge_sdk.device.membership import Membership
from edge_sdk.device.owner import Examiner, Offers, Outgoing, Owner
from edge_sdk.device.session import SessionState
from edge_sdk.device.store import Store
from edge_sdk.device.training.data_supply import DataSupply
from edge_sdk.device.training.learner import Learner, ServeRequest
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import StoreError
from edge_sdk.policy.gate import TrainingGate
from edge_sdk.protocol.frames.codec import CommonKnowledge
from edge_sdk.public_set.fetch import MAX_PUBLIC_BYTES
from edge_sdk.terminal import LineBudget
from edge_sdk.transport.base import Transport

log = logging.getLogger(__name__)

DISK_AGAIN_S = 5.0
"""Seconds after which a write that failed is tried again."""


@dataclass(frozen=True, slots=True)
class PublicFolder:
    """Where a device keeps the public sets that it fetches."""

    folder: Path | None
    """None for a temporary folder."""
    max_bytes: int = MAX_PUBLIC_BYTES
    """Larger sets are not fetched."""


@dataclass(kw_only=True, eq=False)
class DeviceContext:
    """The names, the parts and the state of one device in one federation."""

    federation: str
    device: str
    """The id of the device."""
    transport: Transport
    store: Store
    """A restart replaces it."""
    data: DataSupply
    """The device's own data, with the model and the public set on their workbench."""
    board: str = ""
    owner: Owner = field(default_factory=Owner)
    security: DeviceSecurity | None = None
    """Signs outgoing frames and checks incoming ones, or None for plain frames."""
    allows_weights: bool = False
    """Whether the owner lets weights leave the device."""
    secret: bytes = b""
    """The seed of noise, or empty to use the store's."""
    fetches: PublicFolder | None = None
    """Where fetched public sets are kept, or None if this device fetches none, such as with a set of its owner."""
    gate: TrainingGate | None = None
    """Meters training, or None if nothing is metered."""
    outgoing: Outgoing | None = None
    """Alters what the device sends, or None for an honest device."""
    examiner: Examiner | None = None
    """Measures the models, or None.  Set once the participant exists, because it needs the restored model."""
    offers: Offers | None = None
    """Handles offered model files, or None if the owner accepts none."""
    common_knowledge: CommonKnowledge | None = None
    """Decoded knowledge shared by all simulated devices of this process, or None outside a simulation."""
    instance: bytes | None = None
    """Random bytes of this start, which distinguish two devices with one id, or None in simulations."""
    early_news: list[str] = field(default_factory=list)
    """Lines for the owner, kept until the app has had time to register callbacks."""

    shares_weights: bool = field(init=False)
    """Whether weights leave this device.  With a proxy they are the proxy's, and never those of its own model."""
    serve: ServeRequest = field(init=False)
    """Carries out requests; a simulator replaces it to serve many devices at once."""
    session: SessionState = field(init=False, default_factory=SessionState)
    learner: Learner | None = field(init=False, default=None)
    """None before the first Welcome; each run of the federation gets a new one."""
    now_s: float = field(init=False, default=0.0)
    """The time of the last call from outside."""

    def __post_init__(self) -> None:
        """Serve requests on the device's own workbench, and give the owner the news of its data."""
        has_weights = "weights" in self.bench.model.spec.capabilities
        self.shares_weights = self.bench.proxy is not None or (self.allows_weights and has_weights)
        self.serve = self.bench.serve
        self.fetches = self.fetches if self.bench.public is None else None
        self.secret = self.secret or self.store.secret
        self._disk_faults = LineBudget(first=1)
        self.data.tell(self.owner.news, self.owner.class_news)

    @property
    def bench(self) -> Workbench:
        """The model, the data and the public set of this device."""
        return self.data.bench

    @property
    def membership(self) -> Membership | None:
        """The federation's settings, or None before the first Welcome."""
        return None if self.learner is None else self.learner.membership

    @property
    def run(self) -> bytes | None:
        """The id of the run that this device is in, or None before its first Welcome."""
        return None if self.learner is None else self.learner.membership.welcome.run

    def warn(self, line: str) -> None:
        """Log a line, and give it to the owner."""
        log.warning("%s: %s", self.device, line)
        self.owner.news(line)

    def warn_early(self, line: str) -> None:
        """Log a line, and keep it for the owner until the app has had time to register callbacks."""
        log.warning("%s: %s", self.device, line)
        self.early_news.append(line)

    def note_disk_fault(self, error: StoreError, then: str = "nothing is learnt until it can be saved") -> None:
        """Report a disk fault in one line, and then once a minute with a count.  then: its consequence."""
        if line := self._disk_faults.line(f"{error}; {then}", self.now_s):
            self.warn(line)

    def check_store(self) -> None:
        """Write the state file again if it was deleted, and report that.  Raises StoreError."""
        if line := self.store.check():
            self.warn(line)
