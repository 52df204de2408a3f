"""The Hello with which a device asks to take part, within the limits that the owner sets."""

from __future__ import annotations

from edge_sdk.device.training.workbench import Workbench
from edge_sdk.protocol.encodings import DEFAULT_ENCODING, ENCODINGS
from edge_sdk.protocol.messages import Hello
from edge_sdk.protocol.topics import device_subscriptions
from edge_sdk.version import __version__

MAX_DISCLOSED_CLASSES = 32768
"""A Hello has room for the sample counts of this many classes; a device with more classes sends none."""
HELLOS_BEFORE_NOTICE = 4
"""The number of unanswered Hellos, sent within some seconds, after which the owner is notified."""


def hello(
    bench: Workbench,
    *,
    federation: str,
    device: str,
    board: str,
    shares_weights: bool,
    fetches_public: bool,
    instance: bytes | None,
    sends_logs: bool,
    run: bytes | None,
) -> Hello:
    """Build the Hello of a device with this model and data.

    It has class counts only if the bench discloses them, and with a privacy budget no numbers of samples at all.  It
    declares the proxy's weights, if there is a proxy.  shares_weights: whether it declares weights.  run: the run that
    the device asks to take part in, or None for any.
    """
    model, shared = bench.model.spec, bench.shared
    hidden = frozenset() if shares_weights else frozenset({"weights"})
    tells, waits = bench.budget is None, not len(bench.samples)
    return Hello(
        federation=federation,
        device=device,
        sdk=__version__,
        capabilities=tuple(sorted(bench.capabilities - hidden)),
        terms=tuple(sorted(bench.terms)),
        classes=model.classes,
        feature_dim=model.feature_dim,
        samples=len(bench.data.train) if tells else 0,
        class_counts=disclosed_counts(bench),
        public_sha256=bench.public.spec.sha256 if bench.public else None,
        model=model.name,
        runtime=model.runtime,
        note=model.note,
        board=board,
        inert_terms=tuple(sorted(model.inert_terms)),
        encodings=tuple(name for name in ENCODINGS if name != DEFAULT_ENCODING),
        fetches_public=fetches_public,
        weight_count=shared.parameters if shares_weights else 0,
        layout=shared.layout if shares_weights else None,
        batch_norm=shared.batch_norm,
        test_samples=len(bench.data.local_test or ()) if tells else 0,
        instance=instance,
        sends_logs=sends_logs,
        capacity=bench.capacity if tells or waits else 0,
        run=run,
    )


def disclosed_counts(bench: Workbench) -> tuple[int, ...]:
    """Return the samples of each class if the owner discloses them, or else nothing."""
    return bench.class_counts if bench.discloses_classes and bench.model.spec.classes <= MAX_DISCLOSED_CLASSES else ()


def no_answer_notice(federation: str, device: str) -> str:
    """Return a hint for the owner when a device's Hellos get no answer."""
    topic = device_subscriptions(federation, device)[0]
    return (
        f"no coordinator of {federation!r} answers: is it running, and under this name? "
        f"a broker with access rules must let this device publish, and read {topic}: the usual rules do if its user "
        f"name is {device!r}; and no other device may be connected under this identity"
    )
