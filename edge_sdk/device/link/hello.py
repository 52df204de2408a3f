"""The Hello with which a device asks to take part, within the limits that the owner sets."""

from __future__ import annotations

from edge_sdk.device.context import DeviceContext
from edge_sdk.protocol.encodings import DEFAULT_ENCODING, ENCODINGS
from edge_sdk.protocol.messages import Hello
from edge_sdk.protocol.topics import device_subscriptions
from edge_sdk.version import __version__

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
        f"name is {context.device!r}; and no other device may be connected under this identity"
    )
