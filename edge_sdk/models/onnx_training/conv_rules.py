"""The backward pass of convolutions, and how a convolution or a pool moves over its input."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

from edge_sdk.arrays import Floats
from edge_sdk.models.onnx_file.node import Node
from edge_sdk.models.onnx_training.emitter import Emitter, Shape
from edge_sdk.models.onnx_training.rules import NotDifferentiable, Slopes, first, rule

Sizes = tuple[int, ...]


class KernelWindow:
    """How a convolution or a pool moves over its input: sizes for each axis of space."""

    def __init__(self, node: Node, size: Shape, kernel: Sizes, output: Shape) -> None:
        """size, output: of the axes of space."""
        rank = len(size)
        self.size, self.kernel, self.output = size, kernel, output
        self.strides = node.ints("strides", [1] * rank)
        self.dilations = node.ints("dilations", [1] * rank)
        pads = node.ints("pads", [0] * 2 * rank)
        self.before, self.after = pads[:rank], pads[rank:]
        auto = node.text("auto_pad")
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            total = [max(0, need - own) for need, own in zip(self.reach, size, strict=True)]
            less, more = tuple(n // 2 for n in total), tuple(n - n // 2 for n in total)
            self.before, self.after = (less, more) if auto == "SAME_UPPER" else (more, less)

    @property
    def reach(self) -> Sizes:
        """The padded input that all windows together cover."""
        return tuple(
            (n - 1) * stride + (k - 1) * dilation + 1
            for n, stride, k, dilation in zip(self.output, self.strides, self.kernel, self.dilations, strict=True)
        )

    @property
    def left_over(self) -> Sizes:
        """Input behind the last window, on each axis; below 0: padding behind it that is used."""
        padded = (b + n + a for b, n, a in zip(self.before, self.size, self.after, strict=True))
        return tuple(n - reach for n, reach in zip(padded, self.reach, strict=True))

    @property
    def single(self) -> bool:
        """Whether a kernel of one place meets each input once."""
        return {*self.kernel, *self.strides} == {1} and not any((*self.before, *self.after))

    @property
    def tiles(self) -> bool:
        """Whether windows lie side by side, each number in one at most."""
        inside = not any((*self.before, *self.after)) and set(self.dilations) == {1}
        return inside and self.strides == self.kernel and all(left >= 0 for left in self.left_over)


_FEW_PLACES = 64
"""The maximum number of places for one product over all samples; with more, each sample has a product of its own."""


@rule("Conv")
def _conv(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    x, w = node.inputs[:2]
    slope = first(slopes)
    window = KernelWindow(node, to.shape(x)[2:], to.shape(w)[2:], to.shape(slope)[2:])
    group = int(node.number("group", 1))
    found: list[str | None] = [
        conv_input(to, slope, w, to.shape(x), window, group) if x in to.trained else None,
        _conv_weight(to, slope, x, to.shape(w), window, group) if w in to.trained else None,
    ]
    if len(node.inputs) > 2:
        space = range(2, len(to.shape(slope)))
        found.append(to.sum(slope, [0, *space]) if node.inputs[2] in to.trained else None)
    return found


@rule("ConvTranspose")
def _conv_transpose(to: Emitter, node: Node, slopes: Sequence[str | None]) -> Slopes:
    """Exchange the parts of input and output of the convolution that it turns round."""
    x, w = node.inputs[:2]
    slope, group = first(slopes), int(node.number("group", 1))
    if node.text("auto_pad") not in ("", "NOTSET", "VALID") or node.ints("output_shape"):
        raise NotDifferentiable("ConvTranspose with padding by the size of its output")
    window = KernelWindow(node, to.shape(slope)[2:], to.shape(w)[2:], to.shape(x)[2:])
    found: list[str | None] = [None] * len(node.inputs)
    if x in to.trained:
        how = {"strides": window.strides, "dilations": window.dilations, "pads": (*window.before, *window.after)}
        found[0] = to.emit("Conv", [slope, w], to.shape(x), **how, group=group)
    if w in to.trained:
        found[1] = _conv_weight(to, x, slope, to.shape(w), window, group)
    if len(node.inputs) > 2 and node.inputs[2] in to.trained:
        found[2] = to.sum(slope, [0, *range(2, len(to.shape(slope)))])
    return found


def conv_input(to: Emitter, slope: str, w: str, shape: Shape, window: KernelWindow, group: int) -> str:  # noqa: PLR0917
    """Emit the slope of a convolution's input (n, c, ...): a transposed convolution with the same weights."""
    if window.single and group == 1:
        n, o = to.shape(slope)[:2]
        turned = to.transpose(to.reshape(w, (o, shape[1])), [1, 0])  # (c, o)
        rows = to.reshape(slope, (n, o, prod(window.size)))
        return to.reshape(to.product(turned, rows), shape)
    return to.emit(
        "ConvTranspose",
        [slope, w],
        shape,
        strides=window.strides,
        dilations=window.dilations,
        pads=(*window.before, *window.after),
        output_padding=window.left_over,
        group=group,
    )


def _conv_weight(to: Emitter, slope: str, x: str, shape: Shape, window: KernelWindow, group: int) -> str:  # noqa: PLR0917
    """Emit the slope of a convolution's weights (o, i, ...)."""
    if window.single and group == 1:
        return _single_weight(to, slope, x, shape)
    if group == 1 or set(window.strides) == {1}:
        return _weight_by_columns(to, slope, x, shape, window, group)
    if shape[1] == 1 and to.shape(x)[1] == group == shape[0]:
        return _depthwise_weight(to, slope, x, shape, window)
    return _weight_by_convolution(to, slope, x, shape, window, group)


def _single_weight(to: Emitter, slope: str, x: str, shape: Shape) -> str:
    """Emit it for kernels of one place: a product of channels."""
    n, o, i, places = to.shape(x)[0], *shape[:2], prod(to.shape(x)[2:])
    left, right = to.reshape(slope, (n, o, places)), to.reshape(x, (n, i, places))
    if places > _FEW_PLACES:
        each = to.product(left, to.transpose(right, [0, 2, 1]))  # (n, o, i)
        return to.reshape(to.sum(each, [0]), shape)
    rows = [to.reshape(to.transpose(a, [1, 0, 2]), (c, n * places)) for a, c in ((left, o), (right, i))]
    if places == 1:
        return to.reshape(to.matrix(to.reshape(left, (n, o)), to.reshape(right, (n, i)), turn_a=True), shape)
    return to.reshape(to.matrix(rows[0], rows[1], turn_b=True), shape)


def _weight_by_columns(  # noqa: PLR0917
    to: Emitter, slope: str, x: str, shape: Shape, window: KernelWindow, group: int
) -> str:
    """Emit it as a product of slopes with what each number of the kernel meets, channels in front."""
    n, space, o = to.shape(x)[0], [*range(2, len(shape))], shape[0]
    turned = to.padded(to.transpose(x, [1, 0, *space]), [0, 0, *window.before], [0, 0, *window.after])
    many = n * prod(window.output)
    met = [_met(to, turned, at, window) for at in product(*map(range, window.kernel))]
    columns = to.joined(met, 1)  # (g i, k n, ...)
    rows = to.transpose(slope, [1, 0, *space])  # (o, n, ...)
    if group == 1:
        whole = to.reshape(columns, (prod(shape[1:]), many))
        return to.reshape(to.matrix(to.reshape(rows, (o, many)), whole, turn_b=True), shape)
    columns = to.transpose(to.reshape(columns, (group, prod(shape[1:]), many)), [0, 2, 1])
    return to.reshape(to.product(to.reshape(rows, (group, o // group, many)), columns), shape)


def _met(to: Emitter, turned: str, at: Sequence[int], window: KernelWindow) -> str:
    """Emit what a number of the kernel meets of a padded input (c, n, ...), on the first axes of space."""
    begins = [place * d for place, d in zip(at, window.dilations, strict=False)]
    steps = window.strides[: len(begins)]
    ends = [b + (n - 1) * s + 1 for b, n, s in zip(begins, window.output, steps, strict=False)]
    return to.cut(turned, [*range(2, 2 + len(begins))], begins, ends, steps)


def _depthwise_weight(to: Emitter, slope: str, x: str, shape: Shape, window: KernelWindow) -> str:
    """Emit it for a kernel (c, 1, ..., l) per channel.

    For each channel, one product of matrices multiplies all slopes with the rows of the input that they come from.
    Then the products that belong to one number of the kernel are added up.
    """
    (n, c), k, p = to.shape(x)[:2], window.kernel[-1], window.output[-1]
    space = [*range(2, len(shape))]
    turned = to.padded(to.transpose(x, [1, 0, *space]), [0, 0, *window.before[:-1], 0], [0, 0, *window.after[:-1], 0])
    above, size = n * prod(window.output[:-1]), window.size[-1]
    rows = [_met(to, turned, at, window) for at in product(*map(range, window.kernel[:-1]))]
    met = to.joined([to.reshape(each, (c, above, size)) for each in rows], 2)  # (c, n ..., kernel rows * l)
    slopes = to.reshape(to.transpose(slope, [1, 0, *space]), (c, above, p))
    pairs = to.product(to.transpose(met, [0, 2, 1]), slopes)  # (c, kernel rows * l, p)
    many = prod(window.kernel[:-1])
    flat = to.reshape(pairs, (c * many, size * p))
    chosen = to.constant(selection(window, only_last=True))  # (k, l p)
    return to.reshape(to.matrix(flat, chosen, turn_b=True), (*shape[:-1], k))


def selection(window: KernelWindow, *, only_last: bool = False) -> Floats:
    """Return 1 where a number of the kernel multiplies an input for an output: (kernel, inputs * outputs)."""
    first_axis = len(window.kernel) - 1 if only_last else 0
    found = np.ones((1, 1, 1), np.float32)
    for axis in range(first_axis, len(window.kernel)):
        k, size, output = window.kernel[axis], window.size[axis], window.output[axis]
        met = np.arange(output) * window.strides[axis] - window.before[axis]
        met = met + np.arange(k)[:, None] * window.dilations[axis]  # (k, output)
        own = (np.arange(size)[None, :, None] == met[:, None]).astype(np.float32)  # (k, size, output)
        found = np.einsum("abc,xyz->axbycz", found, own).reshape(
            found.shape[0] * k, found.shape[1] * size, found.shape[2] * output
        )
    return found.reshape(len(found), -1)


def _weight_by_convolution(  # noqa: PLR0917
    to: Emitter, slope: str, x: str, shape: Shape, window: KernelWindow, group: int
) -> str:
    """Emit it as a convolution over batch and channels exchanged.

    Strides and dilations change places.  Where the last window ends before the input does, more comes out than the
    kernel has, and is cut off.
    """
    n, space = to.shape(x)[0], [*range(2, len(shape))]
    o, i = shape[:2]
    grouped = to.reshape(x, (n, group, i, *window.size))
    turned = to.transpose(grouped, [2, 1, 0, *(axis + 1 for axis in space)])
    inputs = to.reshape(turned, (i, group * n, *window.size))  # (i, g n, ...)
    kernel = to.transpose(slope, [1, 0, *space])  # (o, n, ...)
    more = tuple(left // dilation for left, dilation in zip(window.left_over, window.dilations, strict=True))
    found = to.emit(
        "Conv",
        [inputs, kernel],
        (i, o, *(k + m for k, m in zip(window.kernel, more, strict=True))),
        strides=window.dilations,
        dilations=window.strides,
        pads=(*window.before, *window.after),
        group=group,
    )
    for axis, k in zip(space, window.kernel, strict=True):
        found = to.sliced(found, axis, 0, k)
    return to.transpose(found, [1, 0, *space])
