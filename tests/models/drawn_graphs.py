"""Random graphs of the operators that can be differentiated, each beside the same function in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as nnf
from torch import Tensor

from edge_sdk.models.onnx_file.graph import Graph, port, tensor_port
from edge_sdk.models.onnx_file.node import Node, node
from edge_sdk.models.onnx_file.tensors import Constant, tensor_of

OPSET, IR = 23, 11
LEAST_MARGIN = 1e-4
"""How near a number may come to where a slope jumps: single precision must not see it on the other side."""
Both: TypeAlias = "tuple[Tensor, Tensor]"
"""A tensor in double and in single precision."""


class Drawn:
    """A graph that grows by operators; torch computes each at once, in double and in single precision."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Node] = []
        self.constants: dict[str, Constant] = {}
        self.weights: dict[str, Both] = {}
        shape = (2, *[(4,), (4, 5), (3, 5, 6), (4, 6, 5), (2, 8)][int(self.rng.integers(5))])
        self.x = self.rng.normal(size=shape).astype(np.float32)
        self.margin = 1.0
        self.name = "x"
        self.value: Both = torch.from_numpy(self.x).double(), torch.from_numpy(self.x)
        self.before: list[tuple[str, Both]] = []

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value[0].shape)

    @property
    def rank(self) -> int:
        return len(self.shape)

    def pick(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def weight(self, *shape: int, low: float | None = None) -> tuple[str, Both]:
        """A new weight that learns; low: at least this far from 0, and positive."""
        values = self.rng.normal(0, 0.7, shape).astype(np.float32)
        if low is not None:
            values = np.abs(values) + np.float32(low)
        name = f"w{len(self.weights)}"
        self.constants[name] = Constant(name, tensor_of(name, values), None)
        one = torch.from_numpy(values.astype(np.float64)).requires_grad_()
        self.weights[name] = one, torch.from_numpy(values.copy()).requires_grad_()
        return name, self.weights[name]

    def fixed(self, values: Any) -> str:
        """A constant that does not learn."""
        name = f"c{len(self.constants)}"
        self.constants[name] = Constant(name, tensor_of(name, np.asarray(values)), None)
        return name

    def whole(self, *numbers: int) -> str:
        return self.fixed(np.array(numbers, np.int64))

    def apply(
        self, operator: str, more: Sequence[str], function: Callable[..., Tensor], *given: Both, **attributes: Any
    ) -> None:
        """Append an operator on the present tensor and more inputs; function: the same in torch."""
        output = f"t{len(self.nodes)}"
        self.nodes.append(node(operator, [self.name, *more], output, **attributes))
        self.before.append((self.name, self.value))
        pair = [function(self.value[at], *(each[at] for each in given)) for at in (0, 1)]
        self.name, self.value = output, (pair[0], pair[1])

    def near(self, *places: float) -> None:
        """Note how near the present numbers are to places where a slope jumps."""
        for place in places:
            self.margin = min(self.margin, float((self.value[0].detach() - place).abs().min()))

    def graph(self) -> Graph:
        port_x = tensor_port("x", self.x.shape, self.x.dtype)
        return Graph(tuple(self.nodes), dict(self.constants), {"x": port_x}, {self.name: port(self.name)},
                     {"": OPSET}, IR, name="drawn")  # fmt: skip

    def gradients(self, slope: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """What torch gives for each weight: in double and in single precision."""
        found = []
        for at, kind in ((0, np.float64), (1, np.float32)):
            given = [each[at] for each in self.weights.values()]
            slopes = torch.autograd.grad(self.value[at], given, torch.from_numpy(slope.astype(kind)), allow_unused=True)
            zeros = [torch.zeros_like(w) if s is None else s for w, s in zip(given, slopes, strict=True)]
            found.append(dict(zip(self.weights, (each.numpy() for each in zeros), strict=True)))
        return found[0], found[1]


# -- operators ------------------------------------------------------------------------------------------------------


def _plain(
    operator: str, function: Callable[[Tensor], Tensor], *kinks: float, **attributes: Any
) -> Callable[[Drawn], None]:
    def draw(to: Drawn) -> None:
        to.near(*kinks)
        to.apply(operator, [], function, **attributes)

    return draw


def leaky(to: Drawn) -> None:
    alpha = float(to.pick(0.01, 0.2))
    to.near(0)
    to.apply("LeakyRelu", [], lambda x: nnf.leaky_relu(x, alpha), alpha=alpha)


def elu(to: Drawn) -> None:
    alpha = float(to.pick(1.0, 0.5))
    to.near(0)
    to.apply("Elu", [], lambda x: nnf.elu(x, alpha), alpha=alpha)


def hard_sigmoid(to: Drawn) -> None:
    alpha = float(to.pick(0.2, 0.25))
    to.near(-0.5 / alpha, 0.5 / alpha)
    to.apply("HardSigmoid", [], lambda x: (x * alpha + 0.5).clamp(0, 1), alpha=alpha)


def gelu(to: Drawn) -> None:
    kind = to.pick("none", "tanh")
    to.apply("Gelu", [], lambda x: nnf.gelu(x, approximate=kind), approximate=kind)


def clip(to: Drawn) -> None:
    low, high = to.pick((-1.0, 1.5), (0.0, 6.0))
    to.near(low, high)
    to.apply("Clip", [to.fixed(np.float32(low)), to.fixed(np.float32(high))], lambda x: x.clamp(low, high))


def positive(to: Drawn) -> None:
    """x^2 + 0.5, of which a root, a logarithm or a reciprocal exists."""
    to.apply("Pow", [to.fixed(np.float32(2))], lambda x: x**2)
    to.apply("Add", [to.fixed(np.float32(0.5))], lambda x: x + 0.5)
    operator, function = to.pick(("Sqrt", torch.sqrt), ("Log", torch.log), ("Reciprocal", torch.reciprocal))
    to.apply(operator, [], function)


def small_exp(to: Drawn) -> None:
    to.apply("Tanh", [], torch.tanh)
    to.apply("Exp", [], torch.exp)


def power(to: Drawn) -> None:
    to.apply("Tanh", [], torch.tanh)
    to.apply("Pow", [to.fixed(np.float32(3))], lambda x: x**3)


def with_weight(to: Drawn) -> None:
    """A weight of some shape that is broadcast, on either side."""
    shape = [size if to.pick(1, 0) else 1 for size in to.shape]
    shape = shape[to.pick(0, 0, to.rank - 1) :]
    operator = to.pick("Add", "Sub", "Mul", "Div")
    name, values = to.weight(*shape, low=0.5 if operator == "Div" else None)
    function = {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div}[operator]
    to.apply(operator, [name], function, values)


def from_weight(to: Drawn) -> None:
    """A weight less the tensor, so that the second input has a slope."""
    name, values = to.weight(*to.shape)
    to.nodes.append(node("Sub", [name, to.name], f"t{len(to.nodes)}"))
    to.name, to.value = f"t{len(to.nodes) - 1}", (values[0] - to.value[0], values[1] - to.value[1])


def with_earlier(to: Drawn) -> None:
    """An earlier tensor of the same shape, as in a residual net."""
    alike = [each for each in to.before if each[1][0].shape == to.value[0].shape and each[0] != "x"]
    if not alike:
        return with_weight(to)
    name, values = alike[int(to.rng.integers(len(alike)))]
    operator = to.pick("Add", "Mul", "Concat")
    if operator == "Concat":
        axis = int(to.rng.integers(1, to.rank))
        return to.apply("Concat", [name], lambda a, b: torch.cat([a, b], axis), values, axis=axis)
    return to.apply(operator, [name], torch.add if operator == "Add" else torch.mul, values)


def gemm(to: Drawn) -> None:
    if to.rank != 2:
        to.apply("Flatten", [], lambda x: x.flatten(1), axis=1)
    d, k = to.shape[1], int(to.rng.integers(1, 5))
    turned, alpha, beta = to.pick(0, 1), float(to.pick(1.0, 0.5)), float(to.pick(1.0, 2.0))
    w, w_values = to.weight(*((k, d) if turned else (d, k)))
    b, b_values = to.weight(*to.pick((k,), (1, k), (1,)))
    to.apply("Gemm", [w, b], lambda x, v, c: alpha * x @ (v.T if turned else v) + beta * c, w_values, b_values,
             transB=turned, alpha=alpha, beta=beta)  # fmt: skip


def matmul(to: Drawn) -> None:
    name, values = to.weight(to.shape[-1], int(to.rng.integers(1, 5)))
    to.apply("MatMul", [name], torch.matmul, values)


def attention(to: Drawn) -> None:
    """A tensor times an earlier one of the same shape, transposed."""
    if to.rank < 3:
        return matmul(to)
    with_weight(to)
    name, values, order = to.name, to.value, [*range(to.rank - 2), to.rank - 1, to.rank - 2]
    to.apply("Transpose", [], lambda x: x.permute(order), perm=order)
    to.nodes.append(node("MatMul", [name, to.name], f"t{len(to.nodes)}"))
    to.name, to.value = f"t{len(to.nodes) - 1}", (values[0] @ to.value[0], values[1] @ to.value[1])
    return to.apply("Softmax", [], lambda x: x.softmax(-1), axis=-1)


def fused_attention(to: Drawn) -> None:
    """Attention as one operator, by heads of the tensor itself and of its products with weights."""
    if to.rank not in (3, 4):
        return attention(to)
    with_weight(to)
    w, first = to.weight(*to.shape[1:])
    k, key = f"t{len(to.nodes)}", (to.value[0] * first[0], to.value[1] * first[1])
    to.nodes.append(node("Mul", [to.name, w], k))
    heads = to.pick(*[each for each in (1, 2, 3) if not to.shape[-1] % each])
    causal, s = to.pick(0, 1), to.shape[-2]
    chosen = to.rng.random((s, s)) < 0.7
    chosen[:, 0] = True  # each row has something to weigh
    mask = to.pick(None, chosen, to.rng.normal(size=(s, s)).astype(np.float32))
    more: dict[str, Any] = {"scale": float(to.pick(0.5, 1.0))} if to.pick(0, 1) else {}
    told = {"is_causal": causal, **more, **({"q_num_heads": heads, "kv_num_heads": heads} if to.rank == 3 else {})}

    def run(x: Tensor, y: Tensor) -> Tensor:
        wide = [each.unflatten(-1, (heads, -1)).transpose(1, 2) if x.dim() == 3 else each for each in (x, y, x)]
        bias = torch.zeros(s, s, dtype=x.dtype)
        if mask is not None:
            given = torch.from_numpy(mask)
            bias = bias.masked_fill(~given, -torch.inf) if mask.dtype == np.bool_ else bias + given.to(x.dtype)
        bias = bias.masked_fill(torch.ones(s, s).tril() == 0, -torch.inf) if causal else bias
        found = nnf.scaled_dot_product_attention(*wide, attn_mask=bias, scale=more.get("scale"))
        return found.transpose(1, 2).flatten(2) if x.dim() == 3 else found

    return to.apply("Attention", [k, to.name, *([] if mask is None else [to.fixed(mask)])], run, key, **told)


def conv(to: Drawn) -> None:
    if to.rank not in (3, 4):
        return gemm(to)
    c, space = to.shape[1], to.shape[2:]
    group = to.pick(*[each for each in (1, 1, 2, 3, 4) if c % each == 0])
    o = group * int(to.rng.integers(1, 4))
    kernel = [int(to.rng.integers(1, min(3, size) + 1)) for size in space]
    dilations = [to.pick(1, 1, 2) if (k - 1) * 2 < size else 1 for k, size in zip(kernel, space, strict=True)]
    strides = [to.pick(1, 1, 2, 3) for _ in space]
    pads = [int(to.rng.integers(0, k)) for k in kernel]
    w, w_values = to.weight(o, c // group, *kernel)
    b, b_values = to.weight(o)
    function = nnf.conv1d if len(space) == 1 else nnf.conv2d

    def run(x: Tensor, v: Tensor, e: Tensor) -> Tensor:
        return function(x, v, e, strides, pads, dilations, group)

    return to.apply("Conv", [w, b], run, w_values, b_values, strides=strides, pads=[*pads, *pads],
                    dilations=dilations, group=group)  # fmt: skip


def by_channel(to: Drawn) -> None:
    """A convolution of each channel on its own."""
    if to.rank not in (3, 4):
        return gemm(to)
    c, space = to.shape[1], to.shape[2:]
    kernel = [int(to.rng.integers(1, min(5, size) + 1)) for size in space]
    strides = [to.pick(1, 1, 2) for _ in space]
    dilations = [to.pick(1, 1, 2) if (k - 1) * 2 < size else 1 for k, size in zip(kernel, space, strict=True)]
    pads = [int(to.rng.integers(0, k)) for k in kernel]
    w, w_values = to.weight(c, 1, *kernel)
    more = [to.weight(c)] if to.pick(0, 1) else []
    function = nnf.conv1d if len(space) == 1 else nnf.conv2d

    def run(x: Tensor, v: Tensor, *bias: Tensor) -> Tensor:
        return function(x, v, *(bias or [None]), strides, pads, dilations, c)

    return to.apply("Conv", [w, *(name for name, _ in more)], run, w_values, *(values for _, values in more),
                    strides=strides, pads=[*pads, *pads], dilations=dilations, group=c)  # fmt: skip


def conv_transpose(to: Drawn) -> None:
    if to.rank not in (3, 4):
        return gemm(to)
    c, space = to.shape[1], to.shape[2:]
    group = to.pick(*[each for each in (1, 1, 2, 4) if c % each == 0])
    kernel = [int(to.rng.integers(1, 4)) for _ in space]
    strides = [to.pick(1, 1, 2) for _ in space]
    more = [int(to.rng.integers(0, s)) for s in strides]
    pads = [int(to.rng.integers(0, k)) if n > 2 else 0 for k, n in zip(kernel, space, strict=True)]
    w, w_values = to.weight(c, to.pick(1, 2), *kernel)
    b, b_values = to.weight(w_values[0].shape[1] * group)
    function = nnf.conv_transpose1d if len(space) == 1 else nnf.conv_transpose2d

    def run(x: Tensor, v: Tensor, e: Tensor) -> Tensor:
        return function(x, v, e, strides, pads, more, group)

    return to.apply("ConvTranspose", [w, b], run, w_values, b_values, strides=strides, pads=[*pads, *pads],
                    output_padding=more, group=group)  # fmt: skip


def gathered_at(to: Drawn) -> None:
    """Some places of the first two axes, one of them twice; a sample may be left out."""
    places = to.rng.integers(0, to.shape[1], (2, 3, 1))
    places = np.concatenate([np.tile(np.arange(2)[:, None, None], (1, 3, 1)), places], axis=2)
    at = torch.from_numpy(places)
    to.apply("GatherND", [to.fixed(places)], lambda x: x[at[..., 0], at[..., 1]])


def conv_norm(to: Drawn) -> None:
    """A norm behind a convolution, as it is folded into its weights."""
    to.pick(conv, by_channel)(to)
    if to.rank > 2:
        batch_norm(to)


def relu_pool(to: Drawn) -> None:
    """A pool behind a Relu, which change places; windows that lie side by side, and others."""
    to.near(0)
    _distinct(to)
    to.apply("Relu", [], torch.relu)
    if to.rank not in (3, 4):
        return
    kernel = [int(to.rng.integers(1, min(3, size) + 1)) for size in to.shape[2:]]
    strides = to.pick(kernel, kernel, [1] * len(kernel))
    function = nnf.max_pool1d if len(kernel) == 1 else nnf.max_pool2d
    to.apply("MaxPool", [], lambda x: function(x, kernel, strides), kernel_shape=kernel, strides=strides)


def pool(to: Drawn) -> None:
    if to.rank not in (3, 4):
        return with_weight(to)
    space = to.shape[2:]
    kernel = [int(to.rng.integers(1, min(3, size) + 1)) for size in space]
    strides = [to.pick(1, 2, 3) for _ in space]
    pads = [int(to.rng.integers(0, k // 2 + 1)) for k in kernel]
    flat = len(space) == 1
    operator = to.pick("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
    if operator == "GlobalAveragePool":
        return to.apply(operator, [], lambda x: x.mean([*range(2, x.dim())], keepdim=True))
    if operator == "GlobalMaxPool":
        _distinct(to)
        return to.apply(operator, [], lambda x: x.amax([*range(2, x.dim())], keepdim=True))
    if operator == "MaxPool":
        _distinct(to)
        function = nnf.max_pool1d if flat else nnf.max_pool2d
        return to.apply(operator, [], lambda x: function(x, kernel, strides, pads), kernel_shape=kernel,
                        strides=strides, pads=[*pads, *pads])  # fmt: skip
    whole = bool(to.pick(0, 1))
    function = nnf.avg_pool1d if flat else nnf.avg_pool2d
    return to.apply(operator, [], lambda x: function(x, kernel, strides, pads, count_include_pad=whole),
                    kernel_shape=kernel, strides=strides, pads=[*pads, *pads],
                    count_include_pad=int(whole))  # fmt: skip


def _distinct(to: Drawn) -> None:
    """Note how near two numbers are that a maximum may have to choose from."""
    ordered = to.value[0].detach().flatten().sort().values.diff()
    apart = ordered[ordered > 0]
    to.margin = min(
        to.margin, float(apart.min()) if len(apart) == len(ordered) and len(apart) else 1.0 if not len(ordered) else 0.0
    )


def batch_norm(to: Drawn) -> None:
    c = to.shape[1]
    name, values = to.weight(c)
    bias, more = to.weight(c)
    mean, variance = to.rng.normal(size=c).astype(np.float32), to.rng.uniform(0.5, 2, c).astype(np.float32)
    held = [torch.from_numpy(each).reshape(-1, *[1] * (to.rank - 2)) for each in (mean, variance)]

    def run(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        """In plain arithmetic: torch's own kernel gives wrong slopes where x and its slope lie differently in memory."""
        m, v = (each.to(x.dtype) for each in held)
        w, b = (each.reshape(-1, *[1] * (x.dim() - 2)) for each in (w, b))
        return (x - m) / (v + 1e-3).sqrt() * w + b

    to.apply("BatchNormalization", [name, bias, to.fixed(mean), to.fixed(variance)], run, values, more, epsilon=1e-3)


def norm(to: Drawn) -> None:
    if to.rank < 3:
        name, values = to.weight(to.shape[-1])
        bias, more = to.weight(to.shape[-1])
        return to.apply("LayerNormalization", [name, bias],
                        lambda x, w, b: nnf.layer_norm(x, x.shape[-1:], w, b, 1e-2), values, more,
                        axis=-1, epsilon=1e-2)  # fmt: skip
    c = to.shape[1]
    operator = to.pick("BatchNormalization", "InstanceNormalization", "GroupNormalization")
    if operator == "BatchNormalization":
        return batch_norm(to)
    name, values = to.weight(c)
    bias, more = to.weight(c)
    if operator == "InstanceNormalization":
        if np.prod(to.shape[2:]) < 2:
            return with_weight(to)
        return to.apply(operator, [name, bias], lambda x, w, b: nnf.instance_norm(x, weight=w, bias=b, eps=1e-2),
                        values, more, epsilon=1e-2)  # fmt: skip
    groups = to.pick(*[each for each in (1, 2, 4) if c % each == 0])
    return to.apply(operator, [name, bias], lambda x, w, b: nnf.group_norm(x, groups, w, b, 1e-2), values, more,
                    num_groups=groups, epsilon=1e-2)  # fmt: skip


def turned(to: Drawn) -> None:
    order = [0, *(1 + to.rng.permutation(to.rank - 1)).tolist()]
    to.apply("Transpose", [], lambda x: x.permute(order), perm=order)


def reshaped(to: Drawn) -> None:
    if to.rank == 2 and to.shape[1] % 2 == 0:
        shape = (to.shape[0], 2, to.shape[1] // 2)
        return to.apply("Reshape", [to.whole(*shape)], lambda x: x.reshape(shape))
    if to.pick(0, 1):
        axis = int(to.rng.integers(1, to.rank + 1))
        to.apply("Unsqueeze", [to.whole(axis)], lambda x: x.unsqueeze(axis))
        return to.apply("Squeeze", [to.whole(axis)], lambda x: x.squeeze(axis))
    return to.apply("Reshape", [to.whole(0, -1)], lambda x: x.reshape(len(x), -1))


def sliced(to: Drawn) -> None:
    axis = int(to.rng.integers(1, to.rank))
    size = to.shape[axis]
    begin = int(to.rng.integers(0, size))
    step = to.pick(1, 1, 2)
    end = to.pick(size, 2**31)
    index = (*[slice(None)] * axis, slice(begin, None, step))
    to.apply("Slice", [to.whole(begin), to.whole(end), to.whole(axis), to.whole(step)], lambda x: x[index])


def split(to: Drawn) -> None:
    """Both parts, of which one is used twice."""
    axis = int(to.rng.integers(1, to.rank))
    size = to.shape[axis]
    if size % 2:
        return sliced(to)
    first, second = f"t{len(to.nodes)}", f"t{len(to.nodes)}b"
    made = node("Split", [to.name, to.whole(size // 2, size // 2)], first, axis=axis)
    to.nodes.append(made.giving((first, second)))
    parts = [each.split(size // 2, axis) for each in to.value]
    to.name, to.value = first, (parts[0][0], parts[1][0])
    return to.apply("Mul", [second], torch.mul, (parts[0][1], parts[1][1]))


def padded(to: Drawn) -> None:
    widths = [(0, 0), *[(int(to.rng.integers(0, 2)), int(to.rng.integers(0, 3))) for _ in to.shape[1:]]]
    flat = [n for pair in reversed(widths) for n in pair]
    to.apply("Pad", [to.whole(*[a for a, _ in widths], *[b for _, b in widths])], lambda x: nnf.pad(x, flat))


def gathered(to: Drawn) -> None:
    axis = int(to.rng.integers(1, to.rank))
    index = to.rng.integers(-to.shape[axis], to.shape[axis], 3)
    at = torch.from_numpy(index % to.shape[axis])
    to.apply("Gather", [to.fixed(index.astype(np.int64))], lambda x: x.index_select(axis, at), axis=axis)


def expanded(to: Drawn) -> None:
    name, values = to.weight(*to.shape[:1], *[1] * (to.rank - 1))
    shape = to.shape
    to.nodes.append(node("Expand", [name, to.whole(*shape)], f"t{len(to.nodes)}"))
    to.apply("Add", [f"t{len(to.nodes) - 1}"], lambda x, v: x + v.expand(shape), values)


def where(to: Drawn) -> None:
    chosen = to.rng.random(to.shape) < 0.5
    name, values = to.weight(*to.shape)
    condition = torch.from_numpy(chosen)
    output = f"t{len(to.nodes)}"
    to.nodes.append(node("Where", [to.fixed(chosen), to.name, name], output))
    pair = [torch.where(condition, to.value[at], values[at]) for at in (0, 1)]
    to.name, to.value = output, (pair[0], pair[1])


def reduced(to: Drawn) -> None:
    if to.rank < 3:
        return with_weight(to)
    axis, keep = int(to.rng.integers(1, to.rank)), to.pick(0, 1)
    operator, function = to.pick(("ReduceMean", torch.mean), ("ReduceSum", torch.sum))
    return to.apply(operator, [to.whole(axis)], lambda x: function(x, axis, keepdim=bool(keep)), keepdims=keep)


def extreme(to: Drawn) -> None:
    if to.rank < 3:
        return with_weight(to)
    _distinct(to)
    axis, keep = int(to.rng.integers(1, to.rank)), to.pick(0, 1)
    operator, function = to.pick(("ReduceMax", torch.amax), ("ReduceMin", torch.amin))
    return to.apply(operator, [to.whole(axis)], lambda x: function(x, axis, keepdim=bool(keep)), keepdims=keep)


def softmax(to: Drawn) -> None:
    axis = to.pick(1, -1)
    operator, function = to.pick(("Softmax", torch.softmax), ("LogSoftmax", torch.log_softmax))
    to.apply(operator, [], lambda x: function(x, axis), axis=axis)


OPERATORS: dict[str, Callable[[Drawn], None]] = {
    "relu": _plain("Relu", torch.relu, 0),
    "sigmoid": _plain("Sigmoid", torch.sigmoid),
    "tanh": _plain("Tanh", torch.tanh),
    "hard swish": _plain("HardSwish", nnf.hardswish, -3, 3),
    "erf": _plain("Erf", torch.erf),
    "softplus": _plain("Softplus", nnf.softplus),
    "abs": _plain("Abs", torch.abs, 0),
    "neg": _plain("Neg", torch.neg),
    "identity": _plain("Identity", lambda x: x * 1),
    "dropout": _plain("Dropout", lambda x: x * 1),
    "cast": _plain("Cast", lambda x: x * 1, to=1),
    "leaky": leaky,
    "elu": elu,
    "hard sigmoid": hard_sigmoid,
    "gelu": gelu,
    "clip": clip,
    "positive": positive,
    "exp": small_exp,
    "power": power,
    "with weight": with_weight,
    "from weight": from_weight,
    "with earlier": with_earlier,
    "gemm": gemm,
    "matmul": matmul,
    "attention": attention,
    "fused attention": fused_attention,
    "conv": conv,
    "conv transpose": conv_transpose,
    "gathered at": gathered_at,
    "by channel": by_channel,
    "conv norm": conv_norm,
    "relu pool": relu_pool,
    "pool": pool,
    "norm": norm,
    "turned": turned,
    "reshaped": reshaped,
    "sliced": sliced,
    "split": split,
    "padded": padded,
    "gathered": gathered,
    "expanded": expanded,
    "where": where,
    "reduced": reduced,
    "extreme": extreme,
    "softmax": softmax,
}


def drawn(names: Sequence[str], seed: int) -> Drawn:
    """A graph that begins with a weight of the samples' shape, and goes on with these operators."""
    to = Drawn(seed)
    name, values = to.weight(*to.shape)
    to.apply("Mul", [name], torch.mul, values)
    for each in names:
        OPERATORS[each](to)
    return to
