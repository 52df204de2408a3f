"""The client loop of an app: a participant, a real clock, a thread."""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from edge_sdk.data import LocalData, Raw
from edge_sdk.device.exchange import RoundReport
from edge_sdk.device.participant import Participant
from edge_sdk.device.store import MemoryStore, SqliteStore, Store
from edge_sdk.errors import EdgeError, Refused, UsageError
from edge_sdk.models.base import Model, ModelSpec
from edge_sdk.objectives import Floats, softmax
from edge_sdk.protocol.schema import one_line
from edge_sdk.public_set.fetch import MAX_PUBLIC_BYTES
from edge_sdk.public_set.samples import PublicSet
from edge_sdk.transport.base import Transport
from edge_sdk.transport.mqtt import pace as pacing
from edge_sdk.transport.mqtt.tls import NO_FILES, TlsFiles

log = logging.getLogger(__name__)

POLL_S = 0.1
"""Longest sleep of the loop: a stop is noticed within it, or at the next batch."""

DEVICE_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,35}")

T = TypeVar("T")


class Agent(Participant):
    """A device's part in one federation, in an app.

    broker: an mqtt:// or mqtts:// address, or any Transport.  tls: certificates for an mqtts:// address.
    cloud_safe: publish no faster than hosted brokers allow.  identity: this device's id, or a folder that is named
    like it.  state: a folder for what must survive a power cut (or any Store); None keeps it in memory.  model: any
    `edge_sdk.models.base.Model`.  public: the public set, for methods that need one; None: it is fetched from the
    coordinator, once, into public_cache, by default the folder `public` in state.  One larger than max_public_bytes
    is not.  secret: for simulations, where noise must repeat; b"": the one that state keeps.  Callbacks run in the
    agent's thread, and should be short.
    """

    def __init__(
        self,
        *,
        federation: str,
        broker: str | Transport,
        tls: TlsFiles | None = None,
        cloud_safe: bool = False,
        identity: str | Path,
        model: Model,
        data: LocalData,
        public: PublicSet | None = None,
        state: str | Path | Store | None = None,
        board: str = "",
        disclose_classes: bool = False,
        public_cache: str | Path | None = None,
        max_public_bytes: int = MAX_PUBLIC_BYTES,
        share_weights: bool = False,
        secret: bytes = b"",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        device = Path(identity).name
        if not DEVICE_ID.fullmatch(device):
            raise UsageError(f"identity {str(identity)!r}: use a-z, 0-9 and -, at most 36 of them")
        if not DEVICE_ID.fullmatch(federation):
            raise UsageError(f"federation {federation!r}: use a-z, 0-9 and -, at most 36 of them")
        _check_kinds(model, data, public)
        self._clock = clock
        self._on_round: list[Callable[[RoundReport], None]] = []
        self._on_update: list[Callable[[RoundReport], None]] = []
        self._on_link: list[Callable[[str], None]] = []
        self._on_refusal: list[Callable[[Refused], None]] = []
        self._on_error: list[Callable[[Exception], None]] = []
        self._stopping, self._awake = threading.Event(), threading.Event()
        self._awake.set()
        self._leaving: str | None = None
        self._thread: threading.Thread | None = None
        self.error: Exception | None = None
        super().__init__(
            federation=federation,
            device=device,
            model=model,
            data=data,
            public=public,
            transport=_transport(broker, f"{federation}-{device}", tls, cloud_safe=cloud_safe),
            store=_store(state, federation),
            board=board,
            disclose_classes=disclose_classes,
            public_cache=_cache(public_cache, state),
            max_public_bytes=max_public_bytes,
            share_weights=share_weights,
            secret=secret,
        )
        self._jitter = random.Random(f"{federation}{device}{self.store.boot_epoch}")  # noqa: S311  # spreads retries

    # -- what an app may ask ----------------------------------------------------------------------------------------

    def predict(self, raw: Raw) -> Floats:
        """Class probabilities (n, k) of raw samples (n, ...), from any thread, also while the model is training.

        Always of one consistent model: between two batches.  Raises UsageError for samples that it cannot take.
        """
        samples = np.asarray(raw)
        x = self.bench.model.spec.preprocess(samples)
        try:
            with self.model_lock:
                return softmax(self.bench.model.logits(x))
        except Exception as error:
            known = self.bench.data.train.x
            if samples.shape[1:] == known.shape[1:]:
                raise
            raise UsageError(
                f"predict: the model cannot take samples of shape {samples.shape}: {one_line(str(error))}; those of "
                f"the device's own data are (n, {', '.join(map(str, known.shape[1:]))})"
            ) from error

    @property
    def running(self) -> bool:
        """Whether the background thread is at it."""
        return self._thread is not None and self._thread.is_alive()

    def on_round(self, callback: Callable[[RoundReport], None]) -> None:
        """Call back after the last exchange of each round."""
        self._on_round.append(callback)

    def on_update(self, callback: Callable[[RoundReport], None]) -> None:
        """Call back after each exchange, when the model may have changed."""
        self._on_update.append(callback)

    def on_link(self, callback: Callable[[str], None]) -> None:
        """Call back with a line when the broker or the coordinator is found or lost, or the disk refuses a round."""
        self._on_link.append(callback)

    def on_refusal(self, callback: Callable[[Refused], None]) -> None:
        """Call back when the coordinator will not have this device."""
        self._on_refusal.append(callback)

    def on_error(self, callback: Callable[[Exception], None]) -> None:
        """Call back when the background thread ends with an error."""
        self._on_error.append(callback)

    # -- start and stop ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take part from a background thread.  Once: raises UsageError when called again, after `stop` too."""
        if self._thread is not None or self._stopping.is_set():
            raise UsageError(
                f"the agent of {self.device} was started or stopped before: make a new Agent for each start"
            )
        self._thread = threading.Thread(target=self._run_in_thread, name=f"agent-{self.device}", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float | None = 10.0) -> None:
        """Stop between batches; the state is kept, and a later start of the app goes on from it."""
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def leave(self, reason: str = "") -> None:
        """Stop, and tell the coordinator that this device will not come back."""
        self._leaving = reason
        self.stop()

    def pause(self) -> None:
        """Compute nothing until `resume`; the link stays up, and the round may go on without us."""
        self._awake.clear()

    def resume(self) -> None:
        """Go on computing."""
        self._awake.set()

    def run(self) -> None:
        """Take part until it is over or `stop` is called.  Raises Refused, RunFailed or StoreError."""
        self.connect()
        try:
            while not self.over and not self._stopping.is_set():
                busy = self.computing and self._awake.is_set()
                event = self.transport.poll(0.0 if busy else self._patience_s())
                if event is not None:
                    self.handle(event, self._clock())
                self.tick(self._clock())
                if busy and self.work_slice():
                    self.finish_work(self._clock())
        finally:
            self.farewell(self._leaving)
            self.transport.close()
            self.store.close()
        self.raise_if_failed()

    def on_exchange(self, report: RoundReport) -> None:
        """See Participant."""
        for callback in self._on_update:
            callback(report)
        if report.closing or self.is_last(report.exchange):
            for callback in self._on_round:
                callback(report)

    def on_news(self, line: str) -> None:
        """See Participant."""
        _tell(self._on_link, line)

    def _run_in_thread(self) -> None:
        try:
            self.run()
        except Refused as refusal:
            self.error = refusal
            _tell(self._on_refusal, refusal)
        except EdgeError as error:  # says what happened and what to do: where in our code is of no help
            self.error = error
            log.error("agent %s stopped: %s", self.device, error)  # noqa: TRY400
            _tell(self._on_error, error)
        except Exception as error:
            self.error = error
            log.exception("agent %s stopped", self.device)
            _tell(self._on_error, error)

    def _patience_s(self) -> float:
        due_s = self.next_due_s()
        if due_s is None:
            return POLL_S
        spread_s = self._jitter.uniform(0.0, 0.1)  # a thousand devices that lost one broker do not come back as one
        return min(POLL_S, max(0.0, due_s - self._clock() + spread_s))


def _check_kinds(model: object, data: object, public: object) -> None:
    """What an app gives most easily in place of what is meant: a bare net, a pair of arrays, a path."""
    if not isinstance(getattr(model, "spec", None), ModelSpec):
        raise UsageError(
            f"model: found {type(model).__name__}, which has no spec: "
            "wrap it, as in edge_sdk.TorchModel(net, classes=10)"
        )
    if not isinstance(data, LocalData):
        raise UsageError(
            f"data: found {type(data).__name__}: give edge_sdk.LocalData(train=edge_sdk.Samples(x, y)) of numpy arrays"
        )
    if not isinstance(public, PublicSet | None):
        raise UsageError(
            f"public: found {type(public).__name__}: give edge_sdk.PublicSet.load(path), or None to fetch it"
        )


def _tell(callbacks: Sequence[Callable[[T], None]], what: T) -> None:
    for callback in callbacks:
        callback(what)


def _store(state: str | Path | Store | None, federation: str) -> Store:
    if state is None:
        return MemoryStore()
    return SqliteStore(Path(state) / f"{federation}.db") if isinstance(state, (str, Path)) else state


def _cache(folder: str | Path | None, state: str | Path | Store | None) -> Path | None:
    if folder is not None:
        return Path(folder)
    return Path(state) / "public" if isinstance(state, (str, Path)) else None


def _transport(broker: str | Transport, client_id: str, tls: TlsFiles | None, *, cloud_safe: bool) -> Transport:
    if not isinstance(broker, str):
        if tls is not None or cloud_safe:
            raise UsageError(
                "tls and cloud_safe are for a broker's address, and a transport is given; give those to it"
            )
        return broker
    from edge_sdk.transport.mqtt.transport import MqttTransport

    pace = pacing.cloud_safe() if cloud_safe else None
    seed = random.SystemRandom().getrandbits(32)
    return MqttTransport(broker, client_id, tls=tls or NO_FILES, seed=seed, pace=pace)
