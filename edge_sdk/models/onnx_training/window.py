"""How a convolution or a pool moves over its input."""

from __future__ import annotations

from edge_sdk.models.onnx_file.node import Node
from edge_sdk.models.onnx_training.emitter import Shape

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
