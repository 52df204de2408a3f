"""How a sample becomes the input of an .onnx file: rank, layout, type and batch as the file declares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge_sdk.arrays import Floats
from edge_sdk.errors import ModelError
from edge_sdk.models.checks import check_samples
from edge_sdk.models.onnx_file.graph import Graph, inside, numbers
from edge_sdk.models.onnx_file.tensors import KIND_OF
from edge_sdk.models.onnx_file.wire import text_in

Layout: TypeAlias = Literal["auto", "NCHW", "NHWC"]
"""The order of a picture's axes in the file; auto: by the axis that has the size 1, 3 or 4."""
Adapter: TypeAlias = Callable[[Floats], "Mapping[str, NDArray[Any]] | NDArray[Any]"]
"""Turns one sample (1, c, h, w) into the inputs of a file, by their names; an array is the only input."""

LAYOUTS = ("auto", "NCHW", "NHWC")
TYPES: Mapping[str, str] = {
    "tensor(float)": "f4",
    "tensor(float16)": "f2",
    "tensor(double)": "f8",
    "tensor(uint8)": "u1",
    "tensor(int8)": "i1",
    "tensor(uint16)": "u2",
    "tensor(int16)": "i2",
    "tensor(int32)": "i4",
    "tensor(int64)": "i8",
}


@dataclass(frozen=True, slots=True)
class Port:
    """An input as the file declares it."""

    name: str
    type: str
    shape: tuple[int | str | None, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.type} {list(self.shape)}"


def ports_of(graph: Graph) -> list[Port]:
    """Return the inputs that a file declares, as ONNX Runtime names their types."""
    return [Port(name, *_declared(raw)) for name, raw in graph.inputs.items()]


def _declared(raw: memoryview | bytes) -> tuple[str, tuple[int | str | None, ...]]:
    """Return the type and the shape of a ValueInfoProto."""
    kind, sizes = 0, list[int | str | None]()
    for tensor in [tensor for each in inside(raw, 2) for tensor in inside(each, 1)]:
        kind = (numbers(tensor, 1) or [0])[0]
        for size in [size for shape in inside(tensor, 2) for size in inside(shape, 1)]:
            fixed = numbers(size, 1)
            sizes.append(fixed[0] if fixed else text_in(size, 2) or None)
    known = [text for text, dtype in TYPES.items() if KIND_OF.get(np.dtype(dtype)) == kind]
    return known[0] if known else f"type {kind}", tuple(sizes)


class Inputs:
    """Makes the inputs of a file from one sample."""

    def __init__(
        self,
        ports: Sequence[Port],
        *,
        name: str,
        input_shape: tuple[int, ...] | None,
        layout: Layout,
        adapter: Adapter | None,
    ) -> None:
        """Raises ModelError where samples cannot become what the file declares."""
        self._name = name
        self._types = {port.name: _dtype(port, name) for port in ports}
        self._adapter = adapter
        self.layout = ""
        """NCHW or NHWC where the file takes pictures; else empty."""
        self.batch = 1
        """The samples of one run, as the file fixes them."""
        self.sample_shape: tuple[int, int, int] | None = None
        """(c, h, w) of one sample, or None if the adapter decides."""
        if layout not in LAYOUTS:
            raise ModelError(f"{name}: layout {layout!r}: expected {', '.join(LAYOUTS)}")
        if adapter is not None:
            self.sample_shape = _chw(input_shape, name)
            return
        found = "; ".join(map(str, ports))
        if len(ports) != 1:
            raise ModelError(
                f"{name}: the file has {len(ports)} inputs ({found}): pass adapter=, which makes them of one sample"
            )
        (self._port,) = ports
        self._set_shape(self._port, input_shape, layout)

    @property
    def whole(self) -> bool:
        """Whether the file takes whole numbers."""
        return any(dtype.kind in "iu" for dtype in self._types.values())

    @property
    def unbatched(self) -> bool:
        """Whether the file takes one sample without an axis for the batch."""
        return self._adapter is None and len(self._port.shape) == 1 and isinstance(self._port.shape[0], int)

    @property
    def most(self) -> int:
        """The number of samples that `feed` takes at once, or 0 for any number."""
        return int(self._adapter is not None or self.unbatched)

    @property
    def picture_port(self) -> str:
        """The name of the input if it takes pictures as they are, and any number of them; else empty."""
        plain = self._adapter is None and bool(self.layout) and not self.unbatched and self.batch == 1
        return self._port.name if plain and self._types[self._port.name] == np.float32 else ""

    def back(self, slopes: Floats) -> Floats:
        """Return slopes of `picture_port` as those of samples: (n, c, h, w), a copy."""
        out: Floats = (slopes.transpose(0, 3, 1, 2) if self.layout == "NHWC" else slopes).copy()
        return out

    def check(self, x: Floats) -> None:
        """Raise ModelError for samples (n, c, h, w) that the file cannot take."""
        if self.sample_shape is None:
            return
        flat = self.sample_shape[:2] == (1, 1) or x.shape[1:3] == (1, 1)
        if flat and self._adapter is None and not self.layout and prod(x.shape[1:]) == prod(self.sample_shape):
            return  # a flat input takes pictures, too, and a series takes flat samples
        check_samples(self._name, x, self.sample_shape)

    def feed(self, x: Floats) -> dict[str, NDArray[Any]]:
        """Return the inputs for samples x: (n, c, h, w), as many as `most`; one fills the batch that a file fixes."""
        if self._adapter is not None:
            try:
                made = self._adapter(x)
            except Exception as error:  # an adapter of the app's may raise anything
                text = " ".join(str(error).split())
                raise ModelError(f"{self._name}: the adapter failed with {type(error).__name__}: {text}") from error
            named = made if isinstance(made, Mapping) else {next(iter(self._types)): made}
            if not {*self._types} <= {*named}:
                raise ModelError(
                    f"{self._name}: the adapter gives {', '.join(named)}, the file takes {', '.join(self._types)}"
                )
            return {each: self._cast(np.asarray(named[each]), each) for each in self._types}
        sample = x.transpose(0, 2, 3, 1) if self.layout == "NHWC" else x
        shaped = sample.reshape(self._shape if self.unbatched else (len(x), *self._shape[1:]))
        if self.batch > 1:
            shaped = np.repeat(shaped, self.batch, axis=0)
        return {self._port.name: self._cast(shaped, self._port.name)}

    def _cast(self, values: NDArray[Any], name: str) -> NDArray[Any]:
        dtype = self._types[name]
        if dtype.kind in "iu" and values.dtype.kind == "f":
            limits, whole = np.iinfo(dtype), np.rint(values)
            if values.size and (
                np.abs(whole - values).max() > 0 or not limits.min <= whole.min() <= whole.max() <= limits.max
            ):
                raise ModelError(
                    f"{self._name}: the file takes {dtype} from {limits.min} to {limits.max}, the samples hold other "
                    "numbers: leave scaling and resizing out of preprocess, or pass adapter="
                )
            values = whole
        cast: NDArray[Any] = values.astype(dtype, copy=False)
        return cast

    def _set_shape(self, port: Port, given: tuple[int, ...] | None, layout: Layout) -> None:
        """Find how the file's axes follow from (c, h, w)."""
        if not port.shape:
            if given is None:
                raise ModelError(f"{self._name}: the file leaves its input shape open: pass input_shape=(c, h, w)")
            port = self._port = Port(port.name, port.type, ("n", *given))
        first, sizes = port.shape[0], port.shape[1:]
        if len(port.shape) == 1 and isinstance(first, int):
            first, sizes = 1, port.shape
        self.batch = first if isinstance(first, int) else 1
        if self.batch < 1:
            raise ModelError(f"{self._name}: the file takes batches of {self.batch}: export it with a dynamic batch")
        pictures = len(sizes) == 3
        self.layout = _layout(sizes, layout) if pictures else ""
        order = (2, 0, 1) if self.layout == "NHWC" else (0, 1, 2)
        declared = tuple(sizes[i] for i in order) if pictures else sizes
        sample = _filled(declared, given, self._name, self._port)
        self.sample_shape = _chw(sample if len(sample) <= 3 else (1, 1, prod(sample)), self._name)
        own = tuple(sample[order.index(i)] for i in range(3)) if pictures else sample
        self._shape = own if self.unbatched else (1, *own)


def _layout(sizes: Sequence[int | str | None], wanted: Layout) -> str:
    if wanted != "auto":
        return wanted
    first, _, last = sizes
    return "NHWC" if last in (1, 3, 4) and first not in (1, 3) and isinstance(first, int) else "NCHW"


def _dtype(port: Port, name: str) -> np.dtype[Any]:
    if port.type not in TYPES:
        raise ModelError(f"{name}: input {port} is of a type that samples cannot have: expected {', '.join(TYPES)}")
    return np.dtype(TYPES[port.type])


def _chw(shape: tuple[int, ...] | None, name: str) -> tuple[int, int, int] | None:
    """Return (c, h, w) of a shape with at most three axes: (d,) is (1, 1, d), and (t, d) is (1, t, d)."""
    if shape is None:
        return None
    if not 0 <= len(shape) <= 3:
        raise ModelError(f"{name}: input_shape {shape}: expected (c, h, w), (t, d) or (d,)")
    c, h, w = (1,) * (3 - len(shape)) + tuple(shape)
    return c, h, w


def _filled(
    declared: tuple[int | str | None, ...], given: tuple[int, ...] | None, name: str, port: Port
) -> tuple[int, ...]:
    """Return the sizes of one sample: the file's own, or the caller's where the file leaves them open."""
    fixed = tuple(size for size in declared if isinstance(size, int) and size > 0)
    if given is None:
        if len(fixed) < len(declared):
            shown = ", ".join(str(size) for size in port.shape)
            raise ModelError(f"{name}: the file leaves its input size open ({shown}): pass input_shape=(c, h, w)")
        return fixed
    short = tuple(given)
    while len(short) > len(declared) and short[0] == 1:  # (1, 1, d) for a file that takes (n, d)
        short = short[1:]
    if len(declared) == 1 and len(short) > 1:
        short = (prod(short),)
    if len(short) != len(declared) or any(
        isinstance(size, int) and size > 0 and size != own for size, own in zip(declared, short, strict=True)
    ):
        raise ModelError(f"{name}: takes samples of shape {declared}, but input_shape is {given}")
    return short
