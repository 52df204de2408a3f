"""What `edge-sdk new` writes for each kind of samples: made-up data, and a model that learns from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectKind:
    """The parts of app.py and federation.toml that differ from kind to kind."""

    shape: tuple[int, ...]
    """That of one made-up sample."""
    recorded: str
    """Says what a sample's shape means."""
    made_up: str
    """Says what the made-up samples are."""
    samples: str
    """The lines that make x (count, *SHAPE) of rng and y."""
    declared: str = ""
    """The arguments that declare the kind."""
    constants: str = ""
    """Lines before SHAPE."""
    numpy: str = "edge_sdk.NumpyModel(classes, input_shape, seed=seed{preprocess})"
    net: str = (
        "nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), 64), nn.ReLU(), nn.Linear(64, classes))"
    )

    @property
    def settings(self) -> str:
        """The lines of [data] that declare the kind."""
        return "".join(f"{each.replace('=', ' = ')}\n" for each in self.declared.split(", ") if each)

    def model(self, runtime: str) -> tuple[str, str]:
        """Return the imports of app.py, and the body of its function `model`."""
        preprocess = ", preprocess=PREPROCESS" if self.declared else ""
        if runtime == "onnx":
            return "", '    return edge_sdk.OnnxModel("model.onnx", classes, seed=seed, input_shape=input_shape)'
        if runtime == "numpy":
            return "", f"    return {self.numpy.format(preprocess=preprocess)}"
        lines = (
            "torch.manual_seed(seed)",
            f"net = {self.net}",
            f"return edge_sdk.TorchModel(net, classes, input_shape=input_shape{preprocess})",
        )
        return "import torch\nfrom torch import nn\n", "\n".join(f"    {line}" for line in lines)


_PATTERNS = """\
    patterns = np.random.default_rng(0).uniform(0, 1, (CLASSES, *SHAPE))
    x = patterns[y] + rng.normal(0, 0.4, (count, *SHAPE))"""
_RHYTHMS = """\
    turns = (1 + y)[:, None] / 2 * np.linspace(0, 1, SHAPE[0]) + rng.uniform(0, 1, (count, 1))  # (n, t)
    x = np.sin(2 * np.pi * turns)[:, :, None] + rng.normal(0, 0.3, (count, *SHAPE))"""
_WORDS = """\
    of_class = rng.random((count, *SHAPE)) < 0.3
    x = np.where(of_class, 21 + 20 * y[:, None], 1) + rng.integers(0, 20, (count, *SHAPE))  # ids; 0 is padding"""
_SEQUENCES = "edge_sdk.SequenceModel(classes, input_shape, seed=seed{preprocess})"

UNDECLARED = ProjectKind(
    shape=(64,),
    recorded="(d,), (h, w) or (h, w, c)",
    made_up="a pattern for each class, with noise",
    samples=_PATTERNS,
)
"""Samples for a model that somebody brings."""


def project_kinds(classes: int) -> Mapping[str, ProjectKind]:
    """Return the values of `--kind`, for this many classes."""
    words = max(2000, 20 * (classes + 2))
    return {
        "table": replace(UNDECLARED, recorded="(d,), the columns of a row", declared='kind="vector"'),
        "picture": replace(UNDECLARED, shape=(12, 12), recorded="(h, w) or (h, w, c)", declared='kind="picture"'),
        "series": ProjectKind(
            shape=(64, 3),
            recorded="(t, d), steps and sensors",
            made_up="a rhythm for each class, with noise",
            samples=_RHYTHMS,
            declared='kind="series"',
            numpy=_SEQUENCES,
        ),
        "text": ProjectKind(
            shape=(32,),
            recorded="(t,), the ids of its tokens; edge_sdk.hashed_words makes them",
            made_up="words that are frequent in each class",
            samples=_WORDS,
            declared=f'kind="tokens", vocabulary={words}',
            numpy=_SEQUENCES,
            net=f"nn.Sequential(nn.EmbeddingBag({words}, 32, padding_idx=0), nn.Linear(32, classes))",
        ),
    }
