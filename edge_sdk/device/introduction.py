"""What a device tells of itself when it asks to be taken in, as far as its owner lets it."""

from __future__ import annotations

from edge_sdk.device.workbench import Workbench
from edge_sdk.protocol.encodings import ENCODINGS, PLAIN
from edge_sdk.protocol.messages import Hello
from edge_sdk.version import __version__

MAX_DISCLOSED_CLASSES = 32768
"""What a Hello has room for; a model with more classes keeps its counts to itself."""
HELLOS_BEFORE_WORD = 4
"""So many go unanswered, some seconds, before the owner hears that nobody is there."""


def hello(
    bench: Workbench,
    *,
    federation: str,
    device: str,
    board: str,
    shares_weights: bool,
    fetches_public: bool,
) -> Hello:
    """The hello of a device with this model and data; how many samples of each class, only where the bench may."""
    model = bench.model.spec
    kept = frozenset() if shares_weights else frozenset({"weights"})
    tells_counts = bench.discloses_classes and model.classes <= MAX_DISCLOSED_CLASSES
    return Hello(
        federation=federation,
        device=device,
        sdk=__version__,
        capabilities=tuple(sorted(model.capabilities - kept)),
        terms=tuple(sorted(model.terms)),
        classes=model.classes,
        feature_dim=model.feature_dim,
        samples=len(bench.data.train),
        class_counts=bench.class_counts if tells_counts else (),
        public_sha256=bench.public.spec.sha256 if bench.public else None,
        model=model.name,
        runtime=model.runtime,
        note=model.note,
        board=board,
        inert_terms=tuple(sorted(model.inert_terms)),
        encodings=tuple(name for name in ENCODINGS if name != PLAIN),
        fetches_public=fetches_public,
        weight_count=model.parameters if shares_weights else 0,
        layout=model.layout if shares_weights else None,
        batch_norm=model.batch_norm,
    )


def nobody_answers(federation: str, device: str) -> str:
    """What the owner should look at when hello after hello goes unanswered."""
    return (
        f"no coordinator of {federation!r} answers: is it running, and under this name? "
        f"a broker with rules lets us speak only if it knows us as {device!r}"
    )
