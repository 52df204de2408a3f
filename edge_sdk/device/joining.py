"""How a device joins a run: what a Welcome asks of it, what it refuses, and how it returns after a restart."""

from __future__ import annotations

from edge_sdk.class_names import why_not_alike
from edge_sdk.device import membership, recovery
from edge_sdk.device.context import DeviceContext
from edge_sdk.device.link.incoming_frames import IncomingFrames
from edge_sdk.device.session import SessionPhase, SessionState
from edge_sdk.device.training.app_model import ModelOrigin, Wish, choose_model, origin_of
from edge_sdk.device.training.learner import Learner
from edge_sdk.device.training.public_supply import PublicSupply
from edge_sdk.errors import Refused, StoreError
from edge_sdk.protocol.entry_guard import legible
from edge_sdk.protocol.messages import FederationSpec, Welcome


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
        """Return the session with which a device that was in a run begins again."""
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
