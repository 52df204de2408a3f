"""A body under a head that is trained in numpy: what models from files and with random bodies share."""

from __future__ import annotations

from collections.abc import Callable

from edge_sdk.arrays import Floats, Ints
from edge_sdk.data import Preprocess
from edge_sdk.models.base import ModelSpec
from edge_sdk.models.feature_cache import FeatureCache
from edge_sdk.models.linear_head import LinearHead
from edge_sdk.models.numpy_model import BY_SLOPE, HeadModel
from edge_sdk.models.trained_body import Arrangement, TrainedBody, with_body
from edge_sdk.objectives import names_on


class BodyModel(HeadModel):
    """A function from samples to features, under a trainable head; it remembers the features that a frozen one gave."""

    def __init__(
        self,
        body: Callable[[Floats], Floats] | TrainedBody,
        head: LinearHead,
        *,
        name: str,
        runtime: str,
        classes: int,
        width: int,
        preprocess: Preprocess | None,
        flops: int,
        note: str,
        arrangement: Arrangement | None = None,
    ) -> None:
        """Set body: (n, c, h, w) -> (n, width), row by row; flops: floating-point operations of the body per sample.

        arrangement: of the weights of a body that learns, and of the head's.
        """
        spec = ModelSpec(
            name=name,
            runtime=runtime,
            classes=classes,
            feature_dim=width,
            capabilities=head.abilities | {"predict", "logit-gradients", "features", "head-rows", "head-weights"},
            terms=names_on(*BY_SLOPE),
            inert_terms=names_on("features"),
            preprocess=preprocess or Preprocess(),
            parameters=head.values().size,
            flops_per_sample=flops + 2 * width * classes,
            activation_bytes_per_sample=4 * (width + classes),
            calls_per_pass=2,
            note=note,
        )
        self._cache: FeatureCache | None = None
        """None in a copy for serving: what it is asked about comes once, and from several threads."""
        if callable(body):
            super().__init__(spec, head)
            self._function = body
            self._cache = FeatureCache(body, width)
            return
        if arrangement is None:
            raise ValueError("a body that learns needs an arrangement of the weights")
        super().__init__(with_body(spec, body, arrangement), head, body, arrangement)
        self._function = body.rows

    def separate(self) -> None:
        """Take weights of its own; a frozen body stays shared."""
        super().separate()
        self._cache = None
        if self._body is not None:
            self._function = self._body.rows

    def feature_rows(self, x: Floats, index: Ints) -> Floats:
        """Return the body's output for some samples: x (n, c, h, w), index (m,) -> (m, d), a copy."""
        return self._function(x[index]) if self._cache is None else self._cache.rows(x, index)
