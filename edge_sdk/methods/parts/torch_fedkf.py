"""FedKF's data-free distillation: a generator that looks for samples on which a frozen teacher is sure and balanced.

    c5   generator   one step of Adam on L_IE + lambda_1 L_CE + lambda_2 L_A, through the teacher; FedKF eq. 1 to 4
    c6   model       its loss has gamma KL(teacher(x_G) || f(x_G)), x_G made of the same noise and held constant; eq. 5

The teacher has the model's own layers: it is asked with its weights in their place, and no second net is held.
Both answer as in inference, so samples that are made up touch no running statistics.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from edge_sdk.arrays import Floats
from edge_sdk.errors import ModelError, StoreError
from edge_sdk.methods.parts.fedkf_term import LEAST_SHARE, DataFree
from edge_sdk.models.base import Batches
from edge_sdk.models.torch_nets.torch_anatomy import Tapped, count_cost
from edge_sdk.models.torch_nets.torch_arrays import to_tensor
from edge_sdk.models.torch_nets.torch_device import seeded
from edge_sdk.models.torch_nets.torch_forms import Host, Loss, Pass, StatefulForm
from edge_sdk.models.torch_training.torch_optim import TorchOptimiser
from edge_sdk.objectives import Optim, needed

LEAST_SIDE = 4
"""The minimum side of a picture in pixels."""
WIDTHS: Mapping[str, tuple[int, int, int]] = {"board": (16, 16, 8), "paper": (128, 128, 64)}
"""The channels of a generator's three maps, by its size."""
_SLOPE = 0.2
_NORM_FLOOR = 0.8
"""Added under the root in the last two normalisations, as in the code of FedKF and DAFL."""


def is_picture(shape: tuple[int, ...]) -> bool:
    """Return whether samples of (c, h, w) are pictures that a generator can make."""
    return len(shape) == 3 and min(shape[1:]) >= LEAST_SIDE


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes that define a generator."""

    size: str
    """A key of WIDTHS."""
    noise_dim: int
    shape: tuple[int, int, int]  # (c, h, w)


class Generator(nn.Module):
    """Noise (b, z) -> pictures (b, c, h, w) in [0, 1]: a linear layer, then a map whose sides are doubled twice.

    The paper takes DCGAN's generator (Radford, Metz and Chintala, ICLR 2016, arXiv:1511.06434).  Its code has that of
    DAFL (Chen et al., ICCV 2019, arXiv:1904.01186), a DCGAN with upsampling, and this is `paper`, with a sigmoid at its
    end: 8.42 M parameters for 32 x 32 in colour and 1000 numbers of noise.  `board` is the same with an eighth of the
    channels.  The generator always normalises by the batch that it makes, and keeps no running statistics.
    """

    def __init__(self, plan: Plan) -> None:
        """Build the layers.  Raises ModelError for samples that are not pictures."""
        super().__init__()
        if not is_picture(plan.shape):
            raise ModelError(
                f"samples of shape {plan.shape}: a generator makes up pictures (c, h, w) of at least "
                f"{LEAST_SIDE} x {LEAST_SIDE}; choose a method without one, such as fedavg with cached = true"
            )
        channels, self._height, self._width = plan.shape
        rows, columns = -(-self._height // 4), -(-self._width // 4)
        first, second, third = WIDTHS[plan.size]
        self.layers = nn.Sequential(
            nn.Linear(plan.noise_dim, first * rows * columns),
            nn.Unflatten(1, (first, rows, columns)),
            nn.Upsample(scale_factor=2),
            nn.BatchNorm2d(first, track_running_stats=False),
            nn.Conv2d(first, second, 3, padding=1),
            nn.BatchNorm2d(second, _NORM_FLOOR, track_running_stats=False),
            nn.LeakyReLU(_SLOPE),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(second, third, 3, padding=1),
            nn.BatchNorm2d(third, _NORM_FLOOR, track_running_stats=False),
            nn.LeakyReLU(_SLOPE),
            nn.Conv2d(third, channels, 3, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, noise: Tensor) -> Tensor:
        """Generate pictures: (b, z) -> (b, c, h, w)."""
        out: Tensor = self.layers(noise)
        return out[:, :, : self._height, : self._width]


def parameter_count(generator: nn.Module) -> int:
    """Return the number of trainable scalars."""
    return sum(p.numel() for p in generator.parameters())


def range_of(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Return the minimum and maximum of each channel: (n, c, h, w) -> (c, 1, 1), (c, 1, 1)."""
    dims = (0, 2, 3)
    return torch.amin(samples, dims)[:, None, None], torch.amax(samples, dims)[:, None, None]


log = logging.getLogger(__name__)

_PREFIX = "generator."
_ABOUT, _NET, _OPTIM = f"{_PREFIX}about", f"{_PREFIX}net.", f"{_PREFIX}optim."
_RATE = f"{_PREFIX}rate"
_SIZES = tuple(sorted(WIDTHS))


class Maker:
    """A generator with its optimiser."""

    def __init__(self, plan: Plan, rate: float, seed: int, device: torch.device) -> None:
        """Make a new generator from the seed.  Raises ModelError for samples that are not pictures."""
        self.plan, self.device = plan, device
        with seeded(seed):
            self.net = Generator(plan).to(device)
        self.parameters = list(self.net.parameters())
        self.optimiser = TorchOptimiser(Optim(kind="adam", learning_rate=rate), self.parameters)
        _, cost = count_cost(self.net, torch.zeros((1, plan.noise_dim), device=device))
        self.flops_per_sample = cost.flops

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything that a restart needs."""
        about = [_SIZES.index(self.plan.size), self.plan.noise_dim, *self.plan.shape]
        net = {_NET + name: p.detach().cpu().numpy() for name, p in self.net.named_parameters()}
        moments = {_OPTIM + name: values for name, values in self.optimiser.arrays().items()}
        rate = np.array(self.optimiser.optim.learning_rate)
        return {_ABOUT: np.array(about, np.int64), _RATE: rate, **net, **moments}

    @classmethod
    def like(cls, arrays: Mapping[str, NDArray[Any]], device: torch.device) -> Maker:
        """Make a generator of the kind that gave these arrays, without their values.  Raises StoreError."""
        try:
            size, noise_dim, channels, height, width = (int(each) for each in arrays[_ABOUT])
            plan = Plan(_SIZES[size], noise_dim, (channels, height, width))
            return cls(plan, float(arrays[_RATE]), 0, device)
        except (ValueError, IndexError, KeyError, TypeError, RuntimeError) as error:
            raise StoreError("saved generator does not read: remove FEDERATION.db in the state folder") from error

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over the arrays of an equal generator."""
        with torch.no_grad():
            for name, parameter in self.net.named_parameters():
                parameter.copy_(torch.from_numpy(arrays[_NET + name]))
        ours = {name.removeprefix(_OPTIM): each for name, each in arrays.items() if name.startswith(_OPTIM)}
        self.optimiser.load(ours)


class Imitation(StatefulForm):
    """The form of DataFree for one model: generates samples, and computes the teacher's answers to them."""

    prefix = _PREFIX

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.maker: Maker | None = None
        """The generator in use."""
        tap = needed(host.anatomy.tap, "the net has no features")
        self._net, self._tapped, self._device = host.net, Tapped(host.net, tap), host.device
        self._named = [(f"net.{name}", p) for name, p in host.net.named_parameters() if p.requires_grad]
        self._term: DataFree | None = None
        self._last: tuple[Tensor, Tensor] | None = None
        """The generator's loss in the last step, and the teacher's logits for the samples made after it (b, k)."""
        self._inputs: Floats | None = None

    @staticmethod
    def can(host: Host) -> bool:
        """Return whether the net has features, and its samples are pictures, as far as that is known."""
        return host.anatomy.tap is not None and (host.input_shape is None or is_picture(host.input_shape))

    def loss(self, term: DataFree, batches: Batches) -> Loss:
        """Return weight KL(teacher || net) on generated samples, after a generator step."""
        maker = self.take_up(term, batches.inputs, batches.seed)
        draws = torch.Generator().manual_seed(batches.seed + 1)  # other numbers than those that seed a new generator

        def imitate(done: Pass, _step: int) -> Tensor:
            if self._net.training:
                self._net.eval()  # after the real batch, which needs training mode
            noise = torch.randn((term.samples or len(done.logits), term.noise_dim), generator=draws).to(self._device)
            return term.weight * divergence(*self.step(term, maker, noise))

        return imitate

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Return the generator's arrays, if it is to continue after a restart."""
        goes_on = self._term is None or self._term.warm
        return self.maker.arrays() if self.maker is not None and goes_on else {}

    def prepare(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Make a generator of the same size."""
        self.maker = Maker.like(arrays, self._device)

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Load the generator's arrays."""
        if self.maker is not None:
            self.maker.load(arrays)

    def take_up(self, term: DataFree, inputs: Floats, seed: int) -> Maker:
        """Prepare for this term and samples of this shape (n, c, h, w); return the generator to step."""
        if self._inputs is not inputs:
            self._inputs = inputs
            self._low, self._high = range_of(to_tensor(inputs, self._device))
        plan = Plan(term.generator, term.noise_dim, inputs.shape[1:])
        if self._term is not term:
            self._term = term
            parts = torch.split(to_tensor(term.teacher, self._device), [p.numel() for _, p in self._named])
            self._teacher = {name: part.view_as(p) for (name, p), part in zip(self._named, parts, strict=True)}
            if self.maker and (not term.warm or self.maker.plan != plan):
                self.maker = None
        if self.maker is None:
            self.maker = Maker(plan, term.rate, seed, self._device)
            self._compare(self.maker)
        return self.maker

    def step(self, term: DataFree, maker: Maker, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Take one generator step; return the logits of the teacher and, differentiable, of the net: (b, k), (b, k).

        noise (b, z).  The net must be in inference mode.
        """
        logits, features = self._ask(made := self._made(maker, noise))
        loss = generator_loss(term, logits, features)
        if term.adversarial:
            loss = loss - term.weight * divergence(logits, self._net(made))
        maker.optimiser.step(torch.autograd.grad(loss, maker.parameters))
        with torch.no_grad():
            made = self._made(maker, noise)
            logits, _ = self._ask(made)
        self._last = loss.detach(), logits
        own: Tensor = self._net(made)
        return logits, own

    def instruments(self) -> Mapping[str, float]:
        """Return the generator's loss, and how its samples look to the teacher: see `looks_of`."""
        if self._last is None:
            return {}
        loss, logits = self._last
        return {"generator_loss": loss.item(), **looks_of(logits)}

    def extra_flops(self, term: DataFree, batch: int) -> int:
        """Count the generator (forward, backward, forward), the teacher (the same) and the net."""
        generator = self.maker.flops_per_sample if self.maker else 0
        each = 4 * generator + (10 if term.adversarial else 7) * self.host.anatomy.cost.flops
        return (term.samples or batch) * each

    def _made(self, maker: Maker, noise: Tensor) -> Tensor:
        """Return samples in the value range of the device's own: (b, z) -> (b, c, h, w)."""
        out: Tensor = self._low + (self._high - self._low) * maker.net(noise)
        return out

    def _ask(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the teacher's logits and features: (b, c, h, w) -> (b, k), (b, d)."""
        answer: tuple[Tensor, Tensor] = functional_call(self._tapped, self._teacher, (x,))
        return answer

    def _compare(self, maker: Maker) -> None:
        own, made = sum(p.numel() for _, p in self._named), parameter_count(maker.net)
        if made > own:
            log.warning(
                "W7: the generator (%s, noise_dim %d) has %d weights, the model %d: it decides what a round costs",
                maker.plan.size,
                maker.plan.noise_dim,
                made,
                own,
            )


def divergence(teacher: Tensor, own: Tensor) -> Tensor:
    """Return KL(softmax(teacher) || softmax(own)), the mean over rows: (b, k), (b, k) -> a scalar."""
    given, said = nnf.log_softmax(teacher, dim=-1), nnf.log_softmax(own, dim=-1)
    return nnf.kl_div(said, given, reduction="batchmean", log_target=True)


def looks_of(logits: Tensor) -> dict[str, float]:
    """Return `generated_class_entropy` and `generated_certainty` of samples, given the teacher's logits (b, k).

    The entropy is that of the mean prediction, over log k: 1 if the samples are spread evenly over the classes, 0 if
    all are of one class.  The certainty is the mean of the largest probability of each sample.
    """
    shares = nnf.softmax(logits, dim=-1)  # (b, k)
    mean = shares.mean(dim=0)
    entropy = -(mean * mean.clamp_min(LEAST_SHARE).log()).sum() / float(np.log(max(logits.shape[1], 2)))
    return {"generated_class_entropy": entropy.item(), "generated_certainty": shares.amax(dim=-1).mean().item()}


def generator_loss(term: DataFree, logits: Tensor, features: Tensor) -> Tensor:
    """Compute DataFree.generator_loss in torch: logits (b, k), features (b, d) -> a scalar."""
    shares = nnf.softmax(logits, dim=-1).mean(dim=0)  # (k,)
    entropy = (shares * shares.clamp_min(LEAST_SHARE).log()).sum()
    balance = entropy if term.raw else 1 + entropy / float(np.log(max(logits.shape[1], 2)))
    certain = nnf.cross_entropy(logits, logits.argmax(dim=-1))
    active = -features.abs().sum(dim=-1).mean() / (1 if term.raw else features.shape[1])
    return balance + term.certain * certain + term.active * active
