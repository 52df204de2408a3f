"""The Agent, which takes part in a federation for an app.  It holds a participant and runs its loop in a thread."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from edge_sdk.agent.arguments import (
    check_kinds,
    check_names,
    check_options,
    check_places,
    check_sensors,
    enrolled,
    hold_alone,
    let_go,
    lone_parts,
    reached_by,
    transport_to,
)
from edge_sdk.agent.callbacks import AppOwner
from edge_sdk.agent.loop import AgentLoop
from edge_sdk.agent.state_folder import StatePlaces
from edge_sdk.arrays import Floats
from edge_sdk.data import Raw
from edge_sdk.device.context import DeviceContext, PublicFolder
from edge_sdk.device.exchange import RoundReport
from edge_sdk.device.link.security import DeviceSecurity
from edge_sdk.device.participant import Participant
from edge_sdk.device.standing import AgentStatus
from edge_sdk.device.store import Store
from edge_sdk.device.training.app_model import ModelOrigin, OnNewModel, Wish, check_on_new_model
from edge_sdk.device.training.data_supply import DataSupply, OwnData
from edge_sdk.errors import EdgeError, Refused, UsageError
from edge_sdk.given_arrays import PictureLayout, channels_last, given_array
from edge_sdk.models.base import Model, serving_copy
from edge_sdk.models.checks import check_logits
from edge_sdk.models.exporting import export
from edge_sdk.objectives import softmax
from edge_sdk.policy.energy import PowerMeter
from edge_sdk.policy.gate import TrainingGate, training_gate
from edge_sdk.policy.policy import Policy
from edge_sdk.policy.sensors import Sensors
from edge_sdk.privacy.release import Guarantee
from edge_sdk.protocol.frames.schema import one_line
from edge_sdk.public_set.fetch import MAX_PUBLIC_BYTES
from edge_sdk.public_set.samples import PublicSet
from edge_sdk.serving.brought import BroughtModels
from edge_sdk.serving.deployment import MAX_DROP, Deployment, check_max_drop
from edge_sdk.serving.offers import OfferedModels
from edge_sdk.transport.base import Transport
from edge_sdk.transport.mqtt.tls import TlsFiles

log = logging.getLogger(__name__)

AT_EXIT_S = 2.0
"""Seconds that the program's exit waits for a running agent."""


class Agent:
    """Takes part in one federation for an app: trains the app's model on its data, and exchanges knowledge.

    federation: the federation's name.
    broker: an mqtt:// or mqtts:// address, or any Transport.  By default the identity's broker.
    tls: certificates for an mqtts:// address.
    cloud_safe: whether to publish no faster than hosted brokers allow.
    identity: the id of this device, or a folder whose name is the id.  With a folder made by `edge-sdk enroll`, the
    device signs its frames, accepts only signed frames of the coordinator, and takes its certificates from the folder.
    model: any `edge_sdk.models.base.Model`.
    data: the device's own data, or a SampleStore that the app keeps filling.  Each round trains on the store's contents
    at the start of the round.

    public: the public set, for methods that need one.  By default the device fetches it from the coordinator once.
    public_cache: a folder for fetched sets.  By default `public` in the folder `state`, or a temporary folder without
    `state`.  If `state` is a Store, sets are fetched only with a `public_cache`.
    max_public_bytes: larger sets are not fetched.

    state: a folder for everything that must survive a power cut, or any Store, or None to keep it in memory.
    quarantine: whether to set a damaged file in `state` aside and join as a new device.  Otherwise Damaged is raised.
    board: the name of the device's board, for reports.

    disclose_classes: whether to send the coordinator the number of samples of each class.  Uploads of some methods
    reveal it in any case: see `edge-sdk methods NAME`, and the line that the device prints at the start.
    privacy: the maximum privacy loss of one training record over all releases.  The device then takes part only in
    methods that release sums with noise.  It needs a `state`, and keeps its ledger in `privacy.db` in that folder, or
    in memory beside a Store.
    share_weights: whether all weights of the model may leave the device, for methods that average them.
    share_sample_codes: whether a code and the label of each single training sample may leave the device, for methods
    that relate samples of devices to each other (fedcache).
    proxy: a second model, for methods that train one beside the device's own.  Only its weights are then shared.
    sends_logs: whether operators of the federation may read the last lines that `edge-sdk device` prints: news and
    accuracies.

    max_drop: how far the accuracy on the device's own held-out samples, or on `test`, may fall with a new model, as a
    fraction.  A model that loses more, and more than chance explains, is not served.  None serves every new model.
    on_new_model: which model to use if the app brings another one than the folder `state` began with.  "better" takes
    the better of both on held-out samples, "adopt" the app's, "keep" the learnt state, and "error" raises UsageError.
    A state learnt under another extractor or architecture cannot be kept.
    accepts_models: whether the team may roll out another model to this device: an .onnx file, never code.  The file is
    kept in the folder `state`, and used only if it is not worse on the held-out samples.

    policy: when to train, and at what cost.  By default always, without metering.
    sensors: the readings that the policy needs, by default from Linux's files.
    meter: an external power meter.

    stay: whether to wait after the end of a run, or after a temporary refusal, and to join the next run automatically,
    until the agent is stopped.  Otherwise the agent ends.
    secret: the seed of noise, for simulations, whose noise must repeat.  By default the one in `state`.
    clock: returns the time in seconds.

    Raises UsageError for an unsuitable argument, ModelError if the model does not fit the data, and StoreError if the
    state cannot be opened.

    Callbacks run in the agent's thread, and should be short.  Their errors are logged, counted in `callback_errors`,
    and otherwise ignored.  If the model or its samples raise an error, the device uploads nothing in that round.

    A model that learns and a SampleStore belong to one running agent of a process at a time.

    When the agent stops, it closes a file in `state`, which `start` opens again.  A Store that the app gave stays open.
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
        share_sample_codes: bool = False,
        secret: bytes = b"",
        quarantine: bool = False,
        proxy: Model | None = None,
        max_drop: float | None = MAX_DROP,
        on_new_model: OnNewModel = "better",
        accepts_models: bool = False,
        policy: Policy | None = None,
        sensors: Sensors | None = None,
        meter: PowerMeter | None = None,
        sends_logs: bool = True,
        stay: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_places(federation, identity, broker, state, public_cache)
        own = enrolled(identity)
        device = own.name if own else Path(identity).name
        check_names(identity, device, federation)
        check_kinds(model, data, proxy)
        check_options(public=public, policy=policy, privacy=privacy, meter=meter, tls=tls, board=board, secret=secret)
        check_options(
            disclose_classes=disclose_classes,
            share_weights=share_weights,
            share_sample_codes=share_sample_codes,
            sends_logs=sends_logs,
            stay=stay,
            accepts_models=accepts_models,
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
        if accepts_models and places.offered is None:
            raise UsageError("accepts_models: a model that is rolled out is kept on the disk: give state=FOLDER")
        brought = BroughtModels(places.offered, model) if accepts_models and places.offered is not None else None
        discloses = disclose_classes and ledger is None
        self._owner = owner = AppOwner(device, discloses_classes=discloses, sends_logs=sends_logs and privacy is None)
        self._callbacks = owner.callbacks
        gate: TrainingGate | None = None
        if policy is not None or meter is not None:
            gate = training_gate(policy or Policy(), sensors, meter, board, owner.warn)
        self._thread: threading.Thread | None = None
        self._life, self._active, self._ended = threading.Lock(), False, False
        self._process = os.getpid()
        self.error: Exception | None = None
        """The error that ended the background thread, if any."""
        transport = transport_to(
            *reached_by(own, broker, tls), f"{federation}-{device}", cloud_safe=cloud_safe, chunk_file=places.chunks
        )
        fetches: PublicFolder | None = None
        if public_cache is not None or places.keeps_public:
            fetches = PublicFolder(places.public(public_cache), max_public_bytes)
        early = list[str]()  # the opener appends to this list at later starts, too
        self._open_store = places.opener(quarantine=quarantine, tell=early.append)
        self._closes_store = places.folder is not None
        self._alone, self._name = lone_parts(model, proxy, data), f"the agent of {device} in {federation}"
        security = DeviceSecurity(own, federation) if own else None

        self._supplies = partial(
            DataSupply, data=data, public=public, discloses_classes=disclose_classes, proxy=proxy, budget=ledger
        )
        self._contexts = partial(
            DeviceContext,
            federation=federation,
            device=device,
            board=board,
            transport=transport,
            owner=owner,
            security=security,
            allows_weights=share_weights,
            secret=secret,
            fetches=fetches,
            gate=gate,
            early_news=early,
        )
        self._brought, self._apps_model, self._shares_codes = brought, model, share_sample_codes
        self._on_new_model: OnNewModel | None = on_new_model if self._closes_store else None
        self._deployments = partial(self._deployed, places.served, max_drop, clock)
        supply = self._supply()  # before the state is opened: what does not fit leaves it free
        store = self._opened_alone()  # after all checks; later failures close it
        try:
            self._assemble(store, supply)
        except BaseException:
            let_go(self)
            if self._closes_store:
                store.close()
            raise
        self._loop = AgentLoop(self.participant, self._deployment, policy or Policy(), clock, stays=stay)

    def _supply(self) -> DataSupply:
        """Check the data against the model that the device begins with: the app's, or one that was rolled out."""
        supply = self._supplies(self._apps_model if self._brought is None else self._brought.model())
        supply.bench.shares_codes = self._shares_codes
        return supply

    def _assemble(self, store: Store, supply: DataSupply) -> None:
        """Make the parts around the model and its data."""
        brought = self._brought
        self._context = context = self._contexts(store=store, data=supply)
        if brought is not None and brought.fault:
            context.warn_early(brought.fault)
            brought.fault = ""
        wish: Wish | None = "rollout" if brought is not None and brought.governs else self._on_new_model
        self.participant = Participant(context, wish)
        """The device's part in the federation, which a simulator drives in place of `run`."""
        self._deployment = context.examiner = self._deployments()
        if brought is not None:
            context.offers = OfferedModels(context, self.participant.uplink, self._deployment, brought)

    def _deployed(self, folder: Path | None, max_drop: float | None, clock: Callable[[], float]) -> Deployment:
        """Return the copy of the model that `predict` uses."""
        context = self.participant.context
        found = Deployment(
            context.bench,
            folder,
            max_drop,
            self._owner.warn,
            notify_classes=self._owner.warn_of_classes,
            origin=ModelOrigin.from_bytes(self.participant.joining.origin),
            alone=context.store.saved_round() is None,
            clock=clock,
        )
        if found.fault:
            context.warn_early(found.fault)
        return found

    # -- for the app ------------------------------------------------------------------------------------------------

    def predict(self, raw: Raw, layout: PictureLayout | None = None) -> Floats:
        """Return the class probabilities of raw samples, as f4 (n, k).

        raw: samples (n, ...), as an array, a tensor or a pandas frame.
        layout: "NCHW" or "NHWC", the order of the axes of pictures.  By default inferred from the device's own data.

        May be called from any thread, and never waits for training: it uses a copy of the model, which is replaced
        after each round.

        Raises UsageError for samples that the model cannot take, or with NaN or Inf.  Raises ModelError if the model
        does not return one number for each class.
        """
        known = self._context.bench.data.train.x
        spec = self._context.bench.model.spec
        if (kind := spec.preprocess.declared) is not None and kind.parts:
            raw, _ = kind.held(kind.given(raw, "predict"), None, "predict")  # pads those of several lengths
        samples = _numbers(raw, layout, known.shape[1:] if len(known) else None)
        try:
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
        """The names of the columns of `predict`: the federation's after joining, before that those of `data`."""
        joined = self._context.membership
        return (joined.spec.class_names if joined is not None else ()) or self._context.bench.data.train.class_names

    def export(self, path: str | Path) -> Path:
        """Write the model that predict() uses as an .onnx file, and return its path.

        The file takes samples after `model.spec.preprocess`.

        Raises Unsupported for a model without an ONNX form, MissingExtra if a package for the export is not installed,
        and StoreError if the disk fails.
        """
        x = self._context.bench.model.spec.preprocess(self._context.bench.data.train.x[:1])
        return export(serving_copy(self._deployment.served()), path, x)

    def rollback(self, steps: int = 1) -> int:
        """Let predict() use an earlier model until `resume` is called, and delete the models served since.

        steps: 1 for the model that was served before the present one, 2 for the one before that.

        Training continues.  Returns the number of rounds that the earlier model has learned in, 0 for the app's own.

        Raises UsageError if no such model is kept, and StoreError if it cannot be read.
        """
        return self._deployment.rollback(steps)

    @property
    def over(self) -> bool:
        """Whether this device's part in the run has ended, successfully or not."""
        return self.participant.over

    @property
    def missed_the_end(self) -> bool:
        """Whether the run succeeded without this device's closing exchange."""
        return self.participant.missed_the_end

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
        """Register a callback for one-line news, such as: broker or coordinator found or lost, or the disk fails.

        Without a callback, an agent that does not reach its broker or coordinator logs a warning.
        """
        self._callbacks.add("on_link", callback)

    def on_refusal(self, callback: Callable[[Refused], None]) -> None:
        """Register a callback that is called with the reason when this device cannot take part."""
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
        """Take part in a background thread.

        After a stop, or an end of any kind, the agent continues from the stored state.  The end of the program stops
        it.  Raises UsageError if the agent is running, and StoreError if its state cannot be opened again.
        """
        self._begin()
        self._thread = threading.Thread(target=self._run_in_thread, name=f"agent-{self._context.device}", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self._end()
            raise
        atexit.register(self._stop_at_exit)

    def stop(self, timeout_s: float | None = 10.0) -> None:
        """Stop after the current batch, and wait for that, at most `timeout_s` seconds.

        The state is kept, and a later start continues from it.  If the agent is not running, its state is closed.
        """
        self._check_process()
        self._loop.stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        with self._life:
            if not self._active:
                self._close_store()

    def leave(self, reason: str = "") -> None:
        """Stop, and announce to the coordinator that this device will not come back."""
        self._loop.leaving = reason
        self.stop()

    def pause(self) -> None:
        """Pause training until `resume` is called.  The connection stays up; rounds may pass without this device."""
        self._loop.awake.clear()

    def resume(self) -> None:
        """Continue training, and serve new models again after a rollback."""
        self._deployment.resume()
        self._loop.awake.set()

    @property
    def paused(self) -> bool:
        """Whether the app has paused training."""
        return not self._loop.awake.is_set()

    def status(self) -> AgentStatus:
        """Return what the agent is doing and since when, why it does not train, and what comes next.

        May be called from any thread.
        """
        found = self._loop.standing.status(self._context.session, self._owner.last_news)
        return self._owner.measured.told_in(found, self.class_names)

    def run(self) -> None:
        """Take part in this thread, until the federation is over or `stop` is called.

        Raises UsageError if the agent is running, Refused if this device cannot take part, RunFailed if the federation
        ends without a result, and StoreError if the disk fails.
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
            changes = self._loop.changes_model and error is None and not self._loop.stopping.is_set()
            if changes or self._loop.standing.ended(error, asked=self._loop.stopping.is_set()):
                self._begin(again=True)
            elif error is None or self._loop.stopping.is_set():
                return
            else:
                raise error

    def _begin(self, *, again: bool = False) -> None:
        """Claim the right to run and open the store; again: whether this is the next run, after a wait."""
        self._check_process()
        with self._life:
            if self._active or (self._loop.standing.waiting and not again):
                ending = "is still finishing its last batch" if self._loop.stopping.is_set() else "is running"
                raise UsageError(
                    f"the agent of {self._context.device} {ending}; it can be started again when it has ended"
                )
            if self._ended and self._loop.changes_model:
                self._change_model()
            elif self._ended:
                self._context.store = self._opened_alone()
                if not self._closes_store:
                    self._context.store.boot_epoch += 1
            self._active = True
        if not again:
            self._loop.stopping.clear()
            self._loop.leaving, self.error = None, None

    def _change_model(self) -> None:
        """Begin with the model that the index of offered models names now.  Raises StoreError."""
        store = self._opened_alone()
        try:
            self._assemble(store, self._supply())
        except BaseException:
            let_go(self)
            store.close()
            raise
        self._loop.use(self.participant, self._deployment)
        self._ended = False

    def _opened_alone(self) -> Store:
        """Reserve model and data for this agent, and open the store.  Raises UsageError if another agent has them."""
        hold_alone(self, self._name, self._alone)
        try:
            return self._open_store()
        except BaseException:
            let_go(self)
            raise

    def _drive(self) -> None:
        again, self._ended = self._ended, False
        try:
            self._loop.run(again=again)
        finally:
            self._end()

    def _end(self) -> None:
        with self._life:
            self._active = False
            self._close_store()
        atexit.unregister(self._stop_at_exit)

    def _close_store(self) -> None:
        self._ended = True
        let_go(self)
        self._context.data.save()
        if self._closes_store:
            self._context.store.close()

    def _stop_at_exit(self) -> None:
        if os.getpid() == self._process:
            self.stop(AT_EXIT_S)

    def _check_process(self) -> None:
        """Raise UsageError in a forked child, because the parent still uses this connection and this state."""
        if os.getpid() != self._process:
            raise UsageError(
                f"{self._name} belongs to process {self._process}, which forked this one: make the Agent after the "
                "fork, with an identity and a state folder of its own"
            )

    def _run_in_thread(self) -> None:
        try:
            self._live()
        except Refused as refusal:
            self.error = refusal
            log.error("agent %s cannot take part: %s", self._context.device, refusal)  # noqa: TRY400  # says what to do
            self._callbacks.call("on_refusal", refusal)
        except EdgeError as error:  # its message says what to do; a traceback would not help
            self.error = error
            log.error("agent %s stopped: %s", self._context.device, error)  # noqa: TRY400
            self._callbacks.call("on_error", error)
        except BaseException as error:  # sys.exit() in a thread would end it without a word
            self.error = error if isinstance(error, Exception) else _ended_by(error)
            log.exception("agent %s stopped", self._context.device)
            self._callbacks.call("on_error", self.error)


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
