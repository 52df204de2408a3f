"""A body under a head that is trained in numpy: what models from files and with random bodies share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edge_sdk.arrays import Floats, Ints
from edge_sdk.data import Preprocess
from edge_sdk.models.feature_cache import FeatureCache
from edge_sdk.models.linear_head import LinearHead
from edge_sdk.models.numpy_model import HeadModel, head_spec
from edge_sdk.models.trained_body import ArrangedBody, TrainedBody


class BodyModel(HeadModel):
    """A function from samples to features, under a trainable head; it remembers the features that a frozen one gave."""

    def __init__(
        self,
        body: Callable[[Floats], Floats] | ArrangedBody[TrainedBody],
        head: LinearHead,
        *,
        name: str,
        runtime: str,
        preprocess: Preprocess | None,
        flops: int,
        note: str,
    ) -> None:
        """Set body: (n, c, h, w) -> (n, width), row by row, or one that learns; flops: its operations per sample."""
        classes, width = head.rows.shape[0], head.rows.shape[1] - 1
        flops += 2 * width * classes
        spec = head_spec(name, runtime, head, preprocess, flops=flops, note=note, bytes_per_sample=4 * width, calls=2)
        spec = replace(spec, parameters=head.values().size)
        self._cache: FeatureCache | None = None
        """None in a copy for serving: what it is asked about comes once, and from several threads."""
        if isinstance(body, ArrangedBody):
            super().__init__(spec, head, body)
            self._function: Callable[[Floats], Floats] = body.body.rows
            return
        super().__init__(spec, head)
        self._function = body
        self._cache = FeatureCache(body, width)

    def separate(self) -> None:
        """Take weights of its own; a frozen body stays shared."""
        super().separate()
        self._cache = None
        if self._body is not None:
            self._function = self._body.rows

    def feature_rows(self, x: Floats, index: Ints) -> Floats:
        """Return the body's output for some samples: x (n, c, h, w), index (m,) -> (m, d), a copy."""
        return self._function(x[index]) if self._cache is None else self._cache.rows(x, index)
