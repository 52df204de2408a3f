"""The Agent, which takes part in a federation for an app: a participant with a real clock and a thread."""

from __future__ import annotations

import atexit
import logging
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from edge_sdk.agent_arguments import check_kinds, check_names, check_options, check_places, check_sensors
from edge_sdk.arrays import Floats
from edge_sdk.callbacks import Callbacks
from edge_sdk.data import LocalData, Raw
from edge_sdk.device.exchange import OngoingExchange, RoundReport
from edge_sdk.device.held_alone import hold_alone, let_go
from edge_sdk.device.link.link_notices import LinkNotices
from edge_sdk.device.link.recent_lines import RecentLines, round_lines
from edge_sdk.device.link.security import DeviceSecurity
from edge_sdk.device.participant import Participant
from edge_sdk.device.standing import AgentStanding, AgentStatus
from edge_sdk.device.store import Store
from edge_sdk.device.training.app_model import ModelOrigin, OnNewModel, check_on_new_model
from edge_sdk.device.training.data_supply import DataSupply, OwnData
from edge_sdk.device.training.learner import WorkSlices
from edge_sdk.errors import EdgeError, Refused, UsageError
from edge_sdk.given_arrays import PictureLayout, channels_last, given_array
from edge_sdk.identity.folder import ABOUT, Identity, open_identity
from edge_sdk.identity.signatures import Role
from edge_sdk.models.base import Model, serving_copy
from edge_sdk.models.checks import check_logits
from edge_sdk.models.exporting import export
from edge_sdk.objectives import softmax
from edge_sdk.policy.conditions import Objection
from edge_sdk.policy.energy import PowerMeter, TrainingCost
from edge_sdk.policy.gate import PAUSED, PauseReport, TrainingGate, training_gate
from edge_sdk.policy.policy import Policy
from edge_sdk.policy.priority import limit_threads, lower_priority
from edge_sdk.policy.sensors import Sensors
from edge_sdk.privacy.release import Guarantee
from edge_sdk.protocol.frames.schema import one_line
from edge_sdk.public_set.fetch import MAX_PUBLIC_BYTES
from edge_sdk.public_set.samples import PublicSet
from edge_sdk.serving.deployment import MAX_DROP, Deployment, check_max_drop
from edge_sdk.state_folder import StatePlaces, lasting
from edge_sdk.transport.base import Disconnected, Transport, TransportEvent
from edge_sdk.transport.mqtt import pace as pacing
from edge_sdk.transport.mqtt.tls import NO_FILES, OF_DEVICE, TlsFiles

log = logging.getLogger(__name__)

POLL_S = 0.1
"""Poll interval in seconds; `stop` takes effect within it or after the current batch."""

INSTANCE_BYTES = 8
AT_EXIT_S = 2.0
"""Seconds that the program's exit waits for a running agent."""


API = (
    *("predict", "export", "rollback", "on_round", "on_update", "on_link", "on_refusal", "on_error", "callback_errors"),
    *("start", "stop", "leave", "pause", "resume", "run", "running", "status", "over", "missed_the_end"),
)
"""The names that an app uses; the other public ones are for the framework, which also drives simulated devices."""


class _ListsApi(type):
    """Lets help() and dir() list the API of a class."""

    def __dir__(cls) -> list[str]:
        return ["__init__", *API]


class Agent(Participant, metaclass=_ListsApi):
    """Takes part in one federation for an app: trains the app's model on its data, and exchanges knowledge.

    federation: its name.  broker: an mqtt:// or mqtts:// address, or any Transport; by default the identity's broker.
    tls: certificates for an mqtts:// address.  cloud_safe: whether to publish no faster than hosted brokers allow.
    identity: the id of this device, or a folder whose name is the id.  With a folder made by `edge-sdk enroll` frames
    are signed, the coordinator's frames must be signed, and certificates come from the folder.  model: any
    `edge_sdk.models.base.Model`.  data: the device's own data, or a SampleStore that the app keeps filling; each round
    trains on its contents at the start of the round.

    public: the public set, for methods that need one; by default it is fetched from the coordinator once.
    public_cache: a folder for fetched sets; by default `public` in the folder `state`, or a temporary one without
    `state`.  With a Store as `state` nothing is fetched unless a folder is given.  max_public_bytes: larger sets are
    not fetched.

    state: a folder for everything that must survive a power cut, or any Store, or None to keep it in memory.  board:
    the name of the device's board, for reports.  disclose_classes: whether the Hello holds the number of samples of
    each class; uploads of some methods reveal it in any case, see `edge-sdk methods NAME` and the line at the start.
    privacy: the maximum privacy loss of one training record over all releases; its ledger is `privacy.db` in the
    folder `state`, which is then required, or in memory beside a Store.  The device takes part only in methods that
    release sums with noise.  share_weights: whether all weights of the model may leave the device, for methods that
    average them.  proxy: a second model, for methods that train one beside the device's own; only its weights are then
    shared.

    max_drop: a new model is not served if its accuracy on the device's own held-out samples, or on `test`, falls by
    more than this fraction, and by more than chance explains; None serves every new model.
    on_new_model: the choice if the app brings another model than the one with which the folder `state` began: "better"
    continues with the better of both on held-out samples, "adopt" with the app's, "keep" with the learnt state, and
    "error" raises UsageError.  A state learnt under another extractor or architecture cannot be kept.

    policy: when to train, and at what cost; None trains always and meters nothing.  sensors: the policy's readings, by
    default from Linux's files.  meter: an external power meter.

    sends_logs: whether operators of the federation may read the last lines that `edge-sdk device` prints: news and
    accuracies.
    stay: whether the agent waits after the end of a run, or after a refusal that may pass, and joins the next run by
    itself, until it is stopped; otherwise it ends, and says so.
    quarantine: whether a damaged file in `state` is set aside, and the device joins as a new one, in place of Damaged.
    secret: the seed of noise, for simulations, whose noise must repeat; by default the one in `state`.  clock: returns
    the time in seconds.

    Callbacks run in the agent's thread, and should be short.  Their errors are logged and counted in
    `callback_errors`, and change nothing else.  A round in which the model or its samples raise an error is withheld.

    A model that learns and a SampleStore serve one agent of a process at a time, until it is stopped or ends.

    A Store that is given stays open when the agent stops; a file in `state` is closed, and opened again by `start`.
    """

    def __init__(
        self,
        *,
        federation: str,
        broker: str | Transport | None = None,
        tls: TlsFiles | None = None,
        cloud_safe: bool = False,
        identity: str | Path,
        model: Model,
        data: OwnData,
        public: PublicSet | None = None,
        state: str | Path | Store | None = None,
        board: str = "",
        disclose_classes: bool = False,
        privacy: Guarantee | None = None,
        public_cache: str | Path | None = None,
        max_public_bytes: int = MAX_PUBLIC_BYTES,
        share_weights: bool = False,
        secret: bytes = b"",
        quarantine: bool = False,
        proxy: Model | None = None,
        max_drop: float | None = MAX_DROP,
        on_new_model: OnNewModel = "better",
        policy: Policy | None = None,
        sensors: Sensors | None = None,
        meter: PowerMeter | None = None,
        sends_logs: bool = True,
        stay: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_places(federation, identity, broker, state, public_cache)
        own = _enrolled(identity)
        device = own.name if own else Path(identity).name
        check_names(identity, device, federation)
        check_kinds(model, data, proxy)
        check_options(public=public, policy=policy, privacy=privacy, meter=meter, tls=tls, board=board, secret=secret)
        check_options(
            disclose_classes=disclose_classes,
            share_weights=share_weights,
            sends_logs=sends_logs,
            stay=stay,
            cloud_safe=cloud_safe,
            quarantine=quarantine,
            max_public_bytes=max_public_bytes,
            clock=clock,
        )
        check_sensors(sensors)
        check_on_new_model(on_new_model)
        check_max_drop(max_drop)
        places = StatePlaces(state, federation, device)
        ledger = places.ledger(privacy)
        supply = DataSupply(model, data, public, discloses_classes=disclose_classes, proxy=proxy, budget=ledger)
        self._clock, self._recent, self._sends_logs = clock, RecentLines(), sends_logs and privacy is None
        self._callbacks, self._link_notices = Callbacks(device), LinkNotices(device)
        self._stopping, self._awake = threading.Event(), threading.Event()
        self._standing = AgentStanding(stays=stay, news=self.on_news, stopping=self._stopping, wall=time.time)
        self._awake.set()
        self._leaving: str | None = None
        self._policy = policy or Policy()
        self._gate: TrainingGate | None = None
        if policy is not None or meter is not None:
            self._gate = training_gate(self._policy, sensors, meter, board, self._warn)
        self._pauses = PauseReport()
        self._objection: Objection | None = None
        """Why training is paused now, or None."""
        self._trained = 0
        """The exchange of the last computed batch, numbered like `begun`."""
        self._thread: threading.Thread | None = None
        self._life, self._active, self._ended = threading.Lock(), False, False
        self._process = os.getpid()
        self.error: Exception | None = None
        """The error that ended the background thread, if any."""
        transport = _transport(
            *_reached_by(own, broker, tls), f"{federation}-{device}", cloud_safe=cloud_safe, chunk_file=places.chunks
        )
        early = list[str]()
        self._open_store = places.opener(quarantine=quarantine, tell=early.append)
        self._closes_store = places.folder is not None
        self._alone, self._name = _held_alone(model, proxy, data), f"the agent of {device} in {federation}"
        store = self._opened_alone()  # after all checks; later failures close it
        try:
            super().__init__(
                federation=federation,
                device=device,
                data=supply,
                transport=transport,
                store=store,
                board=board,
                fetches_public=public_cache is not None or places.keeps_public,
                public_cache=places.public(public_cache),
                max_public_bytes=max_public_bytes,
                share_weights=share_weights,
                secret=secret,
                on_new_model=on_new_model if self._closes_store else None,
                security=DeviceSecurity(own, federation) if own else None,
            )
            early += self._early_news
            self._early_news = early  # the opener appends to this list at later starts, too
            self._deployment = self._deployed(places.served, max_drop)
        except BaseException:
            let_go(self)
            if self._closes_store:
                store.close()
            raise
        self._retry_spread = random.Random(f"{federation}{device}{self.store.boot_epoch}")  # noqa: S311  # spreads retries

    def _deployed(self, folder: Path | None, max_drop: float | None) -> Deployment:
        """Return the copy of the model that `predict` uses."""
        origin, alone = ModelOrigin.from_bytes(self.model_origin), self.store.saved_round() is None
        found = Deployment(
            self.bench,
            folder,
            max_drop,
            self._warn,
            notify_classes=self._warn_of_classes,
            origin=origin,
            alone=alone,
            clock=self._clock,
        )
        if found.fault:  # queued: the app registers its callbacks after this
            log.warning("%s: %s", self.device, found.fault)
            self._early_news.append(found.fault)
        return found

    def __dir__(self) -> list[str]:
        return [*API, "error"]

    # -- for the app ------------------------------------------------------------------------------------------------

    def predict(self, raw: Raw, layout: PictureLayout | None = None) -> Floats:
        """Return the class probabilities, f4 (n, k), of raw samples (n, ...): an array, a tensor, a frame of pandas.

        layout: "NCHW" or "NHWC", the order of the axes of pictures; by default inferred from the device's own data.

        May be called from any thread, and never waits for training: it uses a copy of the model, which is replaced
        after each round.  Raises UsageError for samples that the model cannot take, or with NaN or Inf, and ModelError
        for a model that does not give a number for each of its classes.
        """
        known = self.bench.data.train.x
        samples = _numbers(raw, layout, known.shape[1:] if len(known) else None)
        try:
            spec = self.bench.model.spec
            logits = self._deployment.served().logits(spec.preprocess(samples))
            check_logits(spec, logits, len(samples))
            return softmax(logits)
        except Exception as error:
            if samples.shape[1:] == known.shape[1:]:
                raise
            own = f"; the device's own data are (n, {', '.join(map(str, known.shape[1:]))})"
            raise UsageError(
                f"predict: the model cannot take samples of shape {samples.shape}: {one_line(str(error))}"
                f"{own if len(known) else ''}"
            ) from error

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the columns of `predict`: the federation's, once it is joined, or those of the device's data."""
        federation = self._learner.membership.spec.class_names if self._learner is not None else ()
        return federation or self.bench.data.train.class_names

    def export(self, path: str | Path) -> Path:
        """Write the model that predict() uses as an .onnx file, and return its path.

        Its input is raw samples after `model.spec.preprocess`.  Raises Unsupported for a model without an ONNX form,
        MissingExtra if a package for the export is not installed, StoreError if the disk fails.
        """
        x = self.bench.model.spec.preprocess(self.bench.data.train.x[:1])
        return export(serving_copy(self._deployment.served()), path, x)

    def rollback(self, steps: int = 1) -> int:
        """Let predict() use the model that was served before, or the one before that, until `resume` is called.

        steps: 1 or 2.  This deletes the models served since.  Training continues.  Returns the number of rounds that
        the model has learned in, 0 for the app's own.  Raises UsageError if no such model is kept, StoreError if it
        cannot be read.
        """
        return self._deployment.rollback(steps)

    @property
    def running(self) -> bool:
        """Whether the background thread is running."""
        return self._thread is not None and self._thread.is_alive()

    def on_round(self, callback: Callable[[RoundReport], None]) -> None:
        """Register a callback that is called after the last exchange of each round."""
        self._callbacks.add("on_round", callback)

    def on_update(self, callback: Callable[[RoundReport], None]) -> None:
        """Register a callback that is called after each exchange, when the model may have changed."""
        self._callbacks.add("on_update", callback)

    def on_link(self, callback: Callable[[str], None]) -> None:
        """Register a callback for news in one line: broker or coordinator are found or lost, or the disk fails.

        Without a callback, an agent that does not reach its broker or coordinator logs a warning.
        """
        self._callbacks.add("on_link", callback)

    def on_refusal(self, callback: Callable[[Refused], None]) -> None:
        """Register a callback that is called when this device cannot take part, with the reason."""
        self._callbacks.add("on_refusal", callback)

    def on_error(self, callback: Callable[[Exception], None]) -> None:
        """Register a callback that is called when the background thread ends with another error."""
        self._callbacks.add("on_error", callback)

    @property
    def callback_errors(self) -> Mapping[str, int]:
        """The number of errors in callbacks of each kind: on_round, on_update, on_link, on_refusal, on_error."""
        return self._callbacks.errors

    # -- start and stop ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take part in a background thread; after a stop, or an end of any kind, continue from the stored state.

        When the program ends, the agent is stopped.  Raises UsageError if the agent is running, and StoreError if its
        state cannot be opened again.
        """
        self._begin()
        self._thread = threading.Thread(target=self._run_in_thread, name=f"agent-{self.device}", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._end()
            raise
        atexit.register(self._stop_at_exit)

    def stop(self, timeout_s: float | None = 10.0) -> None:
        """Stop after the batch being computed, and wait for that, at most `timeout_s` seconds.

        The state is kept; a later start continues from it.  If the agent does not run, its state is closed.
        """
        self._check_process()
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        with self._life:
            if not self._active:
                self._close_store()

    def leave(self, reason: str = "") -> None:
        """Stop, and announce to the coordinator that this device will not come back."""
        self._leaving = reason
        self.stop()

    def pause(self) -> None:
        """Stop training until `resume` is called; the connection stays up, and rounds may pass without this device."""
        self._awake.clear()

    def resume(self) -> None:
        """Continue training, and serve new models again after a rollback."""
        self._deployment.resume()
        self._awake.set()

    def status(self) -> AgentStatus:
        """Return what the agent is doing, since when, why not more, and what comes next; `to_json` of it is plain.

        May be called from any thread.
        """
        return self._standing.status(self.session)

    def run(self) -> None:
        """Take part in this thread, until the federation is over or `stop` is called.

        Raises Refused, RunFailed or StoreError, and UsageError if the agent is running.
        """
        self._begin()
        self._live()

    def _live(self) -> None:
        """Take part in a run, and if the agent stays, in the following ones."""
        while True:
            error: EdgeError | None = None
            try:
                self._drive()
            except EdgeError as ended:
                error = ended
            if self._standing.ended(error, asked=self._stopping.is_set()):
                self._begin(again=True)
            elif error is None or self._stopping.is_set():
                return
            else:
                raise error

    def _begin(self, *, again: bool = False) -> None:
        """Claim the right to run and open the store; again: for the next run, after a wait."""
        self._check_process()
        with self._life:
            if self._active or (self._standing.waiting and not again):
                ending = "is still finishing its last batch" if self._stopping.is_set() else "is running"
                raise UsageError(f"the agent of {self.device} {ending}; it can be started again when it has ended")
            if self._ended:
                self.store = self._opened_alone()
                if not self._closes_store:
                    self.store.boot_epoch += 1
            self._active = True
        if not again:
            self._stopping.clear()
            self._leaving, self.error = None, None

    def _opened_alone(self) -> Store:
        """Reserve model and data for this agent, and open the store.  Raises UsageError if another agent has them."""
        hold_alone(self, self._name, self._alone)
        try:
            return self._open_store()
        except BaseException:
            let_go(self)
            raise

    def _drive(self) -> None:
        with ExitStack() as at_end:  # runs all of these in reverse order, even if one raises
            at_end.callback(self._end)
            at_end.callback(self.transport.close)
            at_end.callback(lambda: self.sign_off(self._leaving))
            if self._ended:
                self.reopen(self.store)
                self._ended = False
            self.instance = secrets.token_bytes(INSTANCE_BYTES)
            self._deployment.begin(fresh=self.store.saved_round() is None)
            self.connect()
            lower_priority(self._policy.nice)  # after connect(), so that the socket's thread keeps its priority
            limit_threads(self._policy.threads)
            while not self.over and not self._stopping.is_set():
                self._standing.look(self.session, self._objection.text if self._objection else "")
                busy = self._may_compute()
                event = self.transport.poll(0.0 if busy else self._poll_timeout_s())
                if event is not None:
                    self.handle(event, self._clock())
                self.tick(self._clock())
                self.check_store(self._clock())
                if busy:
                    self._compute()
        self.raise_if_failed()

    def _may_compute(self) -> bool:
        """Whether a batch may be computed now; if not for a while, the reason is announced to the coordinator."""
        if not self.computing and self.declined is None:
            return False
        now_s, round_ = self._clock(), max(0, self.session.exchange_id.round)
        found = PAUSED if not self._awake.is_set() else self._deployment.objection
        if found is None and self._gate is not None:
            found = self._gate.objection(now_s, round_)
        if found is not None and self._gate is not None:
            self._gate.rest(now_s)
        if found is not None and self._objection is None:
            self.on_news(f"training pauses: {found.text}")
        elif found is None and self._objection is not None:
            self.on_news("training resumes")
        self._objection = found
        self.decline(self._pauses.to_tell(found, now_s, fresh=self.begun != self._trained))
        return self.computing and found is None

    def _compute(self) -> None:
        try:
            if not self._compute_batch():
                return
        except Exception as error:  # noqa: BLE001  # the app's model and samples may raise anything; it is logged
            self.fail_work(error, self._clock())
        self.finish_work(self._clock())

    def _compute_batch(self) -> bool:
        """Compute a batch; returns whether the exchange is computed."""
        self._trained = self.begun
        if self._gate is None:
            return self.work_slice()
        self._gate.begin(self._clock())
        try:
            return self.work_slice()
        finally:
            self._gate.end(self._clock())
            if not self.computing:
                self._gate.rest(self._clock())

    def cost(self) -> TrainingCost:
        """Return the cost of training since the last call."""
        return TrainingCost() if self._gate is None else self._gate.take_cost()

    def _warn(self, line: str) -> None:
        log.warning("%s: %s", self.device, line)
        self.on_news(line)

    def _warn_of_classes(self, line: str) -> None:
        log.warning("%s: %s", self.device, line)
        self.on_class_news(line)

    def _end(self) -> None:
        with self._life:
            self._active = False
            self._close_store()
        atexit.unregister(self._stop_at_exit)

    def _close_store(self) -> None:
        self._ended = True
        let_go(self)
        self.data.save()
        if self._closes_store:
            self.store.close()

    def _stop_at_exit(self) -> None:
        if os.getpid() == self._process:
            self.stop(AT_EXIT_S)

    def _check_process(self) -> None:
        """Raise UsageError in a forked child, because the parent still uses this connection and this state."""
        if os.getpid() != self._process:
            raise UsageError(
                f"the agent of {self.device} belongs to process {self._process}, which forked this one: make the Agent "
                "after the fork, with an identity and a state folder of its own"
            )

    def on_exchange(self, report: RoundReport) -> None:
        """Serve the new model, and call the app's callbacks for exchanges and rounds."""
        if report.withheld:
            self._deployment.drop()
        self._deployment.settle()
        for line in round_lines(report):
            self._recent.add(line)
        self._callbacks.call("on_update", report)
        if report.closing or self.is_last(report.exchange):
            self._callbacks.call("on_round", report)

    def handle(self, event: TransportEvent, now_s: float) -> None:
        """Process an event of the transport; without callbacks for news, a link that is down is logged."""
        if isinstance(event, Disconnected):
            known = event.final or event.taken_over  # the base class logs these two
            if not known and not self._callbacks.has("on_link"):
                self._link_notices.lost(event.reason, now_s)
        super().handle(event, now_s)

    def on_unanswered(self, line: str) -> None:
        """Report that no coordinator answers, in the log if the app has no callback for news."""
        if not self._callbacks.has("on_link"):
            log.warning("%s: %s", self.device, line)
        super().on_unanswered(line)

    def examine(self, work: OngoingExchange, slices: WorkSlices) -> WorkSlices:
        """Measure the model before it joins, and judge the one that each round leaves."""
        self._deployment.drop()
        yield from self._deployment.measure_joining()
        result = yield from slices
        work.joining = self._deployment.joining
        if self.completes_personal(work.assign) and work.learner.learns:
            work.not_served = yield from self._deployment.judge(work.assign.round + (not work.assign.closing))
        return result

    def on_news(self, line: str) -> None:
        """Call the app's callbacks for news."""
        self._recent.add(line)
        self._standing.heard(line)
        self._callbacks.call("on_link", line)

    def on_class_news(self, line: str) -> None:
        """Call the app's callbacks; operators may read the line only if the owner discloses classes."""
        if self.bench.discloses_classes:
            self.on_news(line)
        else:
            self._callbacks.call("on_link", line)

    def last_lines(self) -> Sequence[str] | None:
        """Return the last lines of news and of accuracies, or None if the owner withholds them from operators."""
        return self._recent.lines if self._sends_logs else None

    def _run_in_thread(self) -> None:
        try:
            self._live()
        except Refused as refusal:
            self.error = refusal
            log.error("agent %s cannot take part: %s", self.device, refusal)  # noqa: TRY400  # says what to do
            self._callbacks.call("on_refusal", refusal)
        except EdgeError as error:  # its message says what to do; a traceback would not help
            self.error = error
            log.error("agent %s stopped: %s", self.device, error)  # noqa: TRY400
            self._callbacks.call("on_error", error)
        except BaseException as error:  # sys.exit() in a thread would end it without a word
            self.error = error if isinstance(error, Exception) else _ended_by(error)
            log.exception("agent %s stopped", self.device)
            self._callbacks.call("on_error", self.error)

    def _poll_timeout_s(self) -> float:
        due_s = self.next_due_s()
        if due_s is None:
            return POLL_S
        spread_s = self._retry_spread.uniform(0.0, 0.1)  # so that many devices do not send at the same moment
        return min(POLL_S, max(0.0, due_s - self._clock() + spread_s))


class SimulatedId(str):
    """The id of a simulated device, which leaves alone the folder of a board that has the same id."""

    __slots__ = ()


def _enrolled(identity: str | Path) -> Identity | None:
    """Open the identity if it is a folder made by `edge-sdk enroll`; return None for a plain id."""
    if isinstance(identity, SimulatedId):
        return None
    folder = lasting(Path(identity))
    return open_identity(folder, Role.DEVICE) if (folder / ABOUT).exists() else None


def _reached_by(
    own: Identity | None, broker: str | Transport | None, tls: TlsFiles | None
) -> tuple[str | Transport, TlsFiles | None]:
    """Return the broker and its certificates: the given ones, or else the identity's."""
    if own is None:
        if broker is None:
            raise UsageError("broker: give its address, or an identity folder that edge-sdk enroll made")
        return broker, tls
    broker = own.broker if broker is None else broker
    if tls is None and isinstance(broker, str) and broker.startswith("mqtts:"):
        tls = TlsFiles(own.authority, own.certificate, own.tls_key, OF_DEVICE)
    return broker, tls


def _ended_by(error: BaseException) -> EdgeError:
    """Wrap a BaseException that is not an Exception, such as a model's SystemExit, for the app."""
    found = EdgeError(
        f"{one_line(repr(error))} ended the agent's thread: let a model and its samples raise an Exception, and end "
        "the agent with agent.stop()"
    )
    found.__cause__ = error
    return found


def _numbers(raw: object, layout: PictureLayout | None, own: tuple[int, ...] | None) -> Raw:
    """Return samples as one array, with channels last; own: the shape of the device's own samples, if it has any.

    Raises UsageError for rows of several lengths, NaN, Inf, and values that are not numbers.
    """
    found: Raw = given_array(raw, "predict")
    if found.dtype.kind not in "biuf" or not found.ndim:
        raise UsageError(f"predict: expected an array of numbers (n, ...), found {found.dtype} {found.shape}")
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise UsageError("predict: the samples hold NaN or Inf; clean them first")
    if layout is None and found.shape[1:] == own:
        return found
    return channels_last(found, layout, "predict")[0]


def _held_alone(model: Model, proxy: Model | None, data: OwnData) -> Mapping[str, object]:
    """Return the objects, by argument name, that only one agent may use: models that learn, and a sample store."""
    found: dict[str, object] = {"model": model} if model.spec.terms else {}
    if proxy is not None:
        found["proxy"] = proxy
    nets = {f"{argument}.net": getattr(learns, "net", None) for argument, learns in found.items()}
    found |= {argument: net for argument, net in nets.items() if net is not None}  # two models may wrap one net
    return found if isinstance(data, LocalData) else {**found, "data": data}


def _transport(
    broker: str | Transport, tls: TlsFiles | None, client_id: str, *, cloud_safe: bool, chunk_file: Path | None
) -> Transport:
    if not isinstance(broker, str):
        if tls is not None or cloud_safe:
            raise UsageError(
                "tls and cloud_safe need a broker's address, but broker is a transport: set them on the transport"
            )
        return broker
    from edge_sdk.transport.mqtt.transport import MqttTransport

    pace = pacing.cloud_safe() if cloud_safe else None
    seed = random.SystemRandom().getrandbits(32)
    return MqttTransport(broker, client_id, tls=tls or NO_FILES, seed=seed, pace=pace, chunk_file=chunk_file)
