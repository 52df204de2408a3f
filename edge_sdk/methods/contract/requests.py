"""The requests of methods: a device serves them one by one on its model.

A request describes work (train on these samples with this objective; return logits), and its docstring describes the
answer.  A handler serves it.  Handlers are registered in the entry-point group `edge_sdk.requests` under the name of
the request's class; those of this module's requests are in edge_sdk/device (handlers.py, evaluation.py).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from edge_sdk.arrays import Doubles, Floats, Ints
from edge_sdk.errors import UsageError
from edge_sdk.objectives import Coupling, Objective, Optim, Term
from edge_sdk.objectives.optim import Part
from edge_sdk.privacy.release import Guarantee
from edge_sdk.protocol import registry
from edge_sdk.protocol.knowledge import ClassRows

REQUESTS = "edge_sdk.requests"
"""The entry-point group of handlers, each under the name of the class of requests that it serves."""


@dataclass(frozen=True, slots=True, eq=False)
class Private:
    """Mini-batches of the device's own data, by index."""

    indices: Ints  # (steps, b)


@dataclass(frozen=True, slots=True, eq=False)
class Public:
    """Mini-batches of the public set, by index."""

    indices: Ints  # (steps, b)


Source: TypeAlias = Private | Public
MeasuredModel: TypeAlias = Literal["personal", "global", "active"]
"""A model whose accuracies are reported: `personal` is the device's own, and `global` the one that all devices share.
If the global model is the mean over all cached devices (FedKF), `active` is the mean over the devices of a round."""


ModelRole: TypeAlias = Literal["own", "proxy"]
"""Which model a request is about: the device's own, or the proxy beside it, whose weights are shared."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """Work that a method requests from its device, as a frozen dataclass."""

    of: ModelRole = "own"
    computes: ClassVar[bool] = False
    """Whether it computes on the device's samples and, except for a Fit, leaves the model unchanged: a simulation
    may serve it in another process.  Other requests are served in the device's process."""


@dataclass(frozen=True, slots=True)
class Handler:
    """The function that serves the requests of one class."""

    request: type[Request]
    serve: Callable[[Any, Any, Any], Generator[None, None, Any]]
    """(workbench, request, job) -> the work, which pauses between batches and returns the answer."""


def serves(request: type[Request]) -> Callable[[Callable[[Any, Any, Any], Any]], Handler]:
    """Make a function (bench, request, job) the handler of a class of requests.

    The function is a generator that pauses between batches, so that its caller can check for messages, and returns the
    answer; or a plain function, if the answer takes no time.
    """

    def make(function: Callable[[Any, Any, Any], Any]) -> Handler:
        if inspect.isgeneratorfunction(function):
            return Handler(request, function)

        def at_once(bench: Any, asked: Any, job: Any) -> Generator[None, None, Any]:
            yield from ()
            return function(bench, asked, job)

        return Handler(request, at_once)

    return make


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fit(Request):
    """Train: one optimiser step per row of the source.  Answered with a FitReport."""

    computes: ClassVar[bool] = True
    source: Source
    objective: Objective
    optim: Optim
    part: Part = "all"
    """The part of the model to train; the rest stays unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FitBoth(Request):
    """Train the device's own model and the proxy together.  Answered with the coupling after the last mini-batch.

    For each row of the source both models infer, then each takes one step on its own objective.
    """

    computes: ClassVar[bool] = True
    source: Source
    coupling: Coupling
    optim: Optim
    proxy_optim: Optim


@dataclass(frozen=True, slots=True)
class ReadSplice(Request):
    """Answered with the rows of the last WriteSplice, or None before the first: f4 (d, d_proxy + d + 1).

    Raises UsageError for a proxy whose features are wider than the own model's, or which preprocesses differently.
    """


@dataclass(frozen=True, slots=True, eq=False)
class WriteSplice(Request):
    """From now on the own model's last layer reads rows (g, f, 1): g are the proxy's features, f its own.

    Predictions and evaluations of the device then use both models.  Fit and FitBoth train each separately.
    """

    rows: Floats  # (d, d_proxy + d + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Logits(Request):
    """Answered with the logits of the source: f4 (steps, b, k)."""

    computes: ClassVar[bool] = True
    source: Source


@dataclass(frozen=True, slots=True, eq=False)
class Features(Request):
    """Answered with the features of the source, as in inference: f4 (steps, b, d)."""

    computes: ClassVar[bool] = True
    source: Source


@dataclass(frozen=True, slots=True)
class OwnLogits(Request):
    """Answered with the logits of all private samples, as in inference: f4 (n, k)."""

    computes: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeSamples(Request):
    """Answered with SampleCodes: a random projection of each private sample, with its label.

    The sample's mean is taken away, and it is scaled to length 1.  Raises UsageError unless the owner allows it.
    """

    size: int
    """The numbers in a code."""
    seed: int
    """That of the projection, which is the same on all devices."""


@dataclass(frozen=True, slots=True)
class ClassMeans(Request):
    """Answered with ClassRows: the mean of each class of the private data, as in inference, and its samples.

    rows: the quantity to average: `features` (m, d), or `probabilities` (m, k), the softmax of the logits.

    A class with one sample is left out if the model's feature of it is the sample itself.
    """

    computes: ClassVar[bool] = True
    rows: Literal["features", "probabilities"] = "features"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseSums(Request):
    """Answered with a Released: the sums of all private samples by class, with noise, once for each version of them.

    version: of the last answer, to reuse it once the budget is spent, and to detect an old ledger.
    """

    clip: float
    """The L2 norm to which features are shortened."""
    cost: Guarantee | None
    """The cost of a release from the device's budget, or None without noise."""
    insists: bool
    """Whether to raise UsageError if the guarantee does not hold."""
    version: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class Released:
    """The answer to ReleaseSums."""

    sums: Doubles  # (k, d + 1), as edge_sdk.privacy.release.merged takes them
    version: bytes
    """Names the version of the data."""


@dataclass(frozen=True, slots=True)
class HyperMeans(Request):
    """Answered with HyperKnowledge from one pass over the private data, as in inference.

    It has the mean feature and the mean prediction, softmax(head(feature) / temperature), of each class.
    """

    computes: ClassVar[bool] = True
    temperature: float
    clip: float = math.inf
    """Longer features are shortened to this L2 norm before means and predictions."""
    cube: bool = False
    """Whether instead each number of a feature is limited to the magnitude `clip`."""
    of_all: bool = False
    """Whether to include classes whose mean feature is a sample, for sums that get noise before they leave."""


@dataclass(frozen=True, slots=True)
class BoundedShare(Request):
    """Answered with the share of the private samples whose feature this bound of HyperMeans changes: a float."""

    computes: ClassVar[bool] = True
    clip: float
    cube: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class HeadGradients(Request):
    """Answered with ClassRows: the mean gradient of the cross-entropy of each class at a given last layer.

    It takes one pass over the private data, as in inference.  A row is the gradient of all rows of the last layer, side
    by side, each with the bias as last column: (m, k (d + 1)).
    """

    computes: ClassVar[bool] = True
    layer: Floats  # (k, d + 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GuidanceGradients(Request):
    """Answered with ClassRows: how the loss on the quiz, after one step on the study batch, changes with its vectors.

    The step is one of SGD on CE and the term.  The answer is the gradient of the quiz's CE with respect to the term's
    rows of the classes in the study batch (FedL2G).  The model stays unchanged, and is run in inference mode.
    """

    computes: ClassVar[bool] = True
    study: Ints  # (b,) indices of private samples
    quiz: Ints  # (q,)
    term: Term
    """The mean squared difference of features or logits from the row of their class."""
    rate: float
    of_what: Literal["features", "logits"]
    """The quantity that the term is a function of."""


@dataclass(frozen=True, slots=True)
class ReadHead(Request):
    """Answered with the rows of the last layer, the bias as last column: f4 (k, d + 1), or (k, d) without it."""

    bias: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class WriteHead(Request):
    """Overwrite the rows of some classes.  Without a bias in `rows` the biases stay unchanged."""

    classes: Ints  # (m,)
    rows: Floats  # (m, d + 1), or (m, d)


@dataclass(frozen=True, slots=True)
class SetScale(Request):
    """Set the scale of a cosine head (None keeps it), and whether later fits that train the body change it."""

    value: float | None
    trains: bool


@dataclass(frozen=True, slots=True)
class ReadWeights(Request):
    """Answered with a copy of all trainable scalars as Weights, or of those in front of the last layer."""

    without_head: bool = False
    lent: bool = False
    """Whether the answer may be the model's own memory, read-only, after which only Evaluate and Report may follow."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadChange(Request):
    """Answered with LowRank: all trainable scalars minus `base`, each matrix cut to a share of its energy.

    Without a base the answer is the scalars themselves, uncut.
    """

    base: Floats | None  # (p,)
    energy: float


@dataclass(frozen=True, slots=True, eq=False)
class WriteWeights(Request):
    """Overwrite all trainable scalars, or those in front of the last layer, and reset the optimiser's moments."""

    values: Floats  # (p,)
    without_head: bool = False


@dataclass(frozen=True, slots=True)
class MeanLoss(Request):
    """Answered with the mean cross-entropy over all private samples as in inference: a float."""

    computes: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TermShares(Request):
    """Answered with the share of each loss term in the gradient, by name, after a fit, on its last mini-batch.

    A term's share is the norm of its gradient over the sum of all terms' norms.  It is measured after the fit, because
    a term that holds the model near its start has no gradient at the start.  The model stays unchanged.
    """

    computes: ClassVar[bool] = True
    fit: Fit | FitBoth


@dataclass(frozen=True, slots=True, eq=False)
class Report(Request):
    """Report values of the method by name, such as a coefficient of this round; they travel with the upload."""

    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class Evaluate(Request):
    """Measure the model as it is now.  The figures go into this exchange's upload, for the given number of rounds.

    `accuracy` is on the whole test set, and `local_accuracy` on its samples of classes that this device holds.  With
    prototypes there are two more, by the nearest prototype instead of by the head: `prototype_accuracy` on the samples
    of `local_accuracy`, with the prototypes of their classes, and `prototype_accuracy_all` on the whole test set, with
    all given prototypes.
    """

    computes: ClassVar[bool] = True
    rounds_done: int
    prototypes: ClassRows | None = None
    model: MeasuredModel = "personal"
    """The measured model."""
    predicts_by: Literal["head", "prototype"] = "head"
    """How the model predicts: by its head, or by the nearest of all given prototypes.  With prototypes `head_accuracy`
    is that of its head on the whole test set, and all other figures are by prototypes."""
    of_own_classes: bool = True
    """Whether figures may depend on the classes that this device holds, and on its held-out data.  If not, only
    `accuracy` is measured."""
    recorded: bool = True
    """Whether the figures go into the upload.  If not, they are only the answer, for an instrument, and not metered."""


def handler_of(kind: type[Request]) -> Handler:
    """Return the registered handler of a class of requests.  Raises UsageError, in one line, without a handler."""
    name = kind.__name__
    where = registry.value(REQUESTS, name)
    if not where:
        raise UsageError(f"the request {name} has no handler: register one in the entry points {REQUESTS}")
    found = registry.load_entry(REQUESTS, name, "request handler")
    if not isinstance(found, Handler) or found.request is not kind:
        raise UsageError(
            f"request handler {name!r}: {where} does not serve {kind.__module__}.{name}; "
            f"{registry.remedy(REQUESTS, name)}"
        )
    return found
