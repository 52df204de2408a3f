"""How a device joins a run: its Hello, its checks of a Welcome, and the Refusals that it obeys."""

from __future__ import annotations

import logging
from collections.abc import Callable

from edge_sdk.class_names import why_not_alike
from edge_sdk.device import membership, recovery
from edge_sdk.device.context import DeviceContext
from edge_sdk.device.link.incoming_frames import IncomingFrames
from edge_sdk.device.session import TAKING_PART, SessionPhase, SessionState
from edge_sdk.device.training.app_model import ModelOrigin, Wish, choose_model, origin_of
from edge_sdk.device.training.learner import Learner
from edge_sdk.device.training.public_supply import PublicSupply
from edge_sdk.errors import Refused, StoreError
from edge_sdk.protocol.encodings import DEFAULT_ENCODING, ENCODINGS
from edge_sdk.protocol.entry_guard import legible
from edge_sdk.protocol.messages import FederationSpec, Hello, Refusal, Welcome
from edge_sdk.protocol.topics import device_subscriptions
from edge_sdk.version import __version__


class Joining:
    """Puts a learner into the device's context, for a Welcome or for the state of an earlier start."""

    def __init__(
        self,
        context: DeviceContext,
        incoming: IncomingFrames,
        supply: PublicSupply,
        *,
        keeps_origin: bool,
    ) -> None:
        """keeps_origin: whether the store keeps digests of the model that the state began with."""
        self._context, self._incoming, self._supply = context, incoming, supply
        self.origin = origin_of(context.bench).to_bytes() if keeps_origin else b""
        """The digests of the app's model that the state began with, or empty if they are not kept."""

    # -- a Welcome ---------------------------------------------------------------------------------------------------

    def enter_run(self, welcome: Welcome, frame: bytes) -> None:
        """Join a run from its round 0.  Raises StoreError if the disk fails; the next Welcome then tries again.

        Raises RemoteProtocolError if this device cannot join.
        """
        before = self._context.learner
        try:
            self._context.store.enter_run(frame, self._join(welcome).snapshot(0), self.origin)
        except StoreError:
            self._context.learner = before
            raise

    def objection(self, welcome: Welcome) -> Refused | None:
        """Return why this device leaves the federation that it has joined, or None if it stays."""
        return (
            self._beyond_budget()
            or self._other_classes(welcome.spec)
            or self._supply.check_size(welcome.public_bytes)
            or self._too_small_batches()
        )

    def _join(self, welcome: Welcome) -> Learner:
        context = self._context
        has_proxy = context.bench.proxy is not None
        with legible():
            joined = membership.join(
                welcome, context.bench.shared, shares_weights=context.shares_weights, has_proxy=has_proxy
            )
        self._incoming.accept_up_to(joined.limits)
        context.learner = learner = Learner(joined, context.data, secret=context.secret)
        self._supply.require(joined.public)
        return learner

    def _beyond_budget(self) -> Refused | None:
        """Return a refusal if the federation would reveal more than the device's privacy budget allows."""
        budget, joined = self._context.bench.budget, self._context.membership
        if budget is None or joined is None:
            return None
        return budget.refusal(joined.method.name, joined.method.guarantee if joined.method.releases else None)

    def _other_classes(self, spec: FederationSpec) -> Refused | None:
        """Return a refusal if the federation's classes have other names, or another order, than the device's own."""
        why = why_not_alike(self._context.bench.data.train.class_names, spec.class_names, spec.classes)
        order = ", ".join(map(repr, spec.class_names)) or "the names of all classes in the federation's order"
        remedy = f"give Samples(x, y, class_names=[{order}]), or a SampleStore with classes=[...] in this order"
        return Refused("classes", why, remedy) if why else None

    def _too_small_batches(self) -> Refused | None:
        """Return a refusal if the federation's mini-batches are too small for the device's model.

        A store counts with its capacity, because it may still fill.
        """
        bench, joined = self._context.bench, self._context.membership
        model, samples = bench.model.spec, bench.capacity or len(bench.samples)
        if joined is None or not samples:
            return None
        size = min(samples, joined.spec.train.batch_size)
        if size >= model.least_batch or not joined.method.learnt_by(model.capabilities, model.terms):
            return None
        return Refused(
            "batch",
            f"model {model.name!r} has BatchNorm, which cannot train on mini-batches of {size}",
            "use GroupNorm, or give this device more samples and the federation a larger train.batch_size",
        )

    # -- a restart ---------------------------------------------------------------------------------------------------

    def restore(self, on_new_model: Wish | None) -> bool:
        """Return to the run that this device was in before a restart; returns False if it was in none.

        on_new_model: what to do if the app brings another model than its state began with.  None keeps the state.
        `Work.abandon` then restores the model, and `restored_session` gives the session.
        """
        welcome = recovery.last_welcome(self._context.store)
        if welcome is None:
            return False
        learner = self._join(welcome)
        if on_new_model is not None:
            self._compare_models(learner, on_new_model)
        return True

    def restored_session(self) -> SessionState:
        """Return the session of a device that resumes its run."""
        joined = self._context.membership
        if joined is None:
            return SessionState()
        state = SessionState(epoch=joined.welcome.epoch, run=joined.welcome.run)
        return recovery.restored_session(state, SessionPhase.JOINING, joined, self._context.store)

    def _compare_models(self, learner: Learner, wish: Wish) -> None:
        """If the app brings another model than its state began with, choose between that model and the state."""
        store = self._context.store
        brought, before, start = self.origin, store.origin(), store.round_start()
        if start is None or before in (b"", brought):  # b"": the state is older than its digests
            return
        origins = ModelOrigin.from_bytes(before), ModelOrigin.from_bytes(brought)
        choice = choose_model(self._context.bench, start.model, *origins, wish)
        if choice.adopt:
            store.adopt(recovery.start_with_new_model(learner, store), brought)
        else:
            self.origin = before  # the next start compares again
        if choice.line:
            self._context.warn_early(choice.line)


log = logging.getLogger(__name__)

IDENTITY = "identity"
"""The reason of a refusal because another device has the same id."""
OWN_IDENTITY = "give each device its own identity (identity=, --id), and never a copied state folder"
DOUBT_S = 5.0
"""How long a device that takes part waits for a Welcome after it asks again."""


def own_identity_taken(reason: str) -> Refused:
    """Return the refusal that ends a device whose id another device uses."""
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
            line = f"another device with this identity was refused; {OWN_IDENTITY}"
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

        names_start: whether it names this start.  Other Refusals answer frames that the coordinator could not read.
        Anyone may have sent those, so this device asks again and does not leave.
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


HELLOS_BEFORE_NOTICE = 4
"""The number of unanswered Hellos, sent within some seconds, after which the owner is notified."""


def hello(context: DeviceContext) -> Hello:
    """Build the Hello of a device.

    It has class counts only if the bench discloses them, and with a privacy budget no numbers of samples at all.  It
    declares the proxy's weights, if there is a proxy.  With keys it names the run that the device is in.
    """
    bench, shares_weights = context.bench, context.shares_weights
    model, shared = bench.model.spec, bench.shared
    hidden = frozenset() if shares_weights else frozenset({"weights"})
    tells, waits = bench.budget is None, not len(bench.samples)
    return Hello(
        federation=context.federation,
        device=context.device,
        sdk=__version__,
        capabilities=tuple(sorted(bench.capabilities - hidden)),
        terms=tuple(sorted(bench.terms)),
        classes=model.classes,
        feature_dim=model.feature_dim,
        samples=len(bench.data.train) if tells else 0,
        class_counts=bench.disclosed_counts,
        public_sha256=bench.public.spec.sha256 if bench.public else None,
        model=model.name,
        runtime=model.runtime,
        note=model.note,
        board=context.board,
        inert_terms=tuple(sorted(model.inert_terms)),
        encodings=tuple(name for name in ENCODINGS if name != DEFAULT_ENCODING),
        fetches_public=context.fetches is not None,
        weight_count=shared.parameters if shares_weights else 0,
        layout=shared.layout if shares_weights else None,
        batch_norm=shared.batch_norm,
        test_samples=len(bench.data.local_test or ()) if tells else 0,
        instance=context.instance,
        sends_logs=context.owner.last_lines() is not None,
        capacity=bench.capacity if tells or waits else 0,
        run=context.run if context.security else None,
        trains_alone=True,
        accepts_models=context.offers is not None,
        offer=None if context.offers is None else context.offers.answer,
    )


def no_answer_notice(context: DeviceContext) -> str:
    """Return a hint for the owner when a device's Hellos get no answer."""
    who = f"no coordinator of {context.federation!r} answers: is it running"
    if context.security is not None:
        return f"{who}, with the --lab of this device's identity, and under this name?"
    topic = device_subscriptions(context.federation, context.device)[0]
    return (
        f"{who}, and under this name? "
        f"a broker with access rules must let this device publish, and read {topic}: the usual rules do if its user "
        f"name is {context.device!r}; no other device may use this identity"
    )
