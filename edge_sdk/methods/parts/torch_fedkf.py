"""FedKF's data-free distillation: a generator that looks for samples on which a frozen teacher is sure and balanced.

    c5   generator   one step of Adam on L_IE + lambda_1 L_CE + lambda_2 L_A, through the teacher; FedKF eq. 1 to 4
    c6   model       its loss has gamma KL(teacher(x_G) || f(x_G)), x_G made of the same noise and held constant; eq. 5

The teacher uses the model's own layers with its weights in place of theirs, which saves a second net in memory.  Both
run as in inference, so generated samples change no running statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as nnf
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from edge_sdk.arrays import Floats
from edge_sdk.errors import StoreError
from edge_sdk.methods.parts.fedkf_term import (
    LEAKY,
    LEAST_SHARE,
    NORM_FLOORS,
    WIDTHS,
    DataFree,
    Plan,
    drawn_noise,
    extra_flops_of,
    first_weights,
    is_picture,
    looks_of,
    noise_draws,
    warn_of_size,
)
from edge_sdk.models.base import Batches
from edge_sdk.models.torch_nets.torch_anatomy import Tapped, count_cost
from edge_sdk.models.torch_nets.torch_arrays import array_of, to_tensor
from edge_sdk.models.torch_nets.torch_device import seeded
from edge_sdk.models.torch_nets.torch_forms import Host, Loss, Pass, StatefulForm
from edge_sdk.models.torch_training.torch_optim import TorchOptimiser
from edge_sdk.objectives import Optim, needed


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
        plan.check()
        channels, self._height, self._width = plan.shape
        first, second, third = WIDTHS[plan.size]
        _, rows, columns = plan.first_map
        floors = NORM_FLOORS
        self.layers = nn.Sequential(
            nn.Linear(plan.noise_dim, first * rows * columns),
            nn.Unflatten(1, (first, rows, columns)),
            nn.Upsample(scale_factor=2),
            nn.BatchNorm2d(first, floors[0], track_running_stats=False),
            nn.Conv2d(first, second, 3, padding=1),
            nn.BatchNorm2d(second, floors[1], track_running_stats=False),
            nn.LeakyReLU(LEAKY),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(second, third, 3, padding=1),
            nn.BatchNorm2d(third, floors[2], track_running_stats=False),
            nn.LeakyReLU(LEAKY),
            nn.Conv2d(third, channels, 3, padding=1),
            nn.Sigmoid(),
        )

    def forward(self, noise: Tensor) -> Tensor:
        """Generate pictures: (b, z) -> (b, c, h, w)."""
        out: Tensor = self.layers(noise)
        return out[:, :, : self._height, : self._width]


def range_of(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Return the minimum and maximum of each channel: (n, c, h, w) -> (c, 1, 1), (c, 1, 1)."""
    dims = (0, 2, 3)
    return torch.amin(samples, dims)[:, None, None], torch.amax(samples, dims)[:, None, None]


_PREFIX = "generator."
_ABOUT, _NET, _OPTIM = f"{_PREFIX}about", f"{_PREFIX}net.", f"{_PREFIX}optim."
_RATE = f"{_PREFIX}rate"
_SIZES = tuple(sorted(WIDTHS))


class Maker:
    """A generator with its optimiser."""

    def __init__(self, plan: Plan, rate: float, seed: int, device: torch.device) -> None:
        """Make a new generator from the seed.  Raises ModelError for samples that are not pictures."""
        self.plan, self.device = plan, device
        with seeded(seed):  # torch's own draws, which are overwritten, must not move its generator
            self.net = Generator(plan)
        drawn = {name: torch.from_numpy(values) for name, values in first_weights(plan, seed).items()}
        self.net.load_state_dict(drawn)
        self.net.to(device)
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
            raise StoreError("the saved generator cannot be read: remove FEDERATION.db in the state folder") from error

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
        draws = noise_draws(batches.seed)

        def imitate(done: Pass, _step: int) -> Tensor:
            if self._net.training:
                self._net.eval()  # after the real batch, which needs training mode
            noise = drawn_noise(draws, term.samples or len(done.logits), term.noise_dim)
            return term.weight * divergence(*self.step(term, maker, to_tensor(noise, self._device)))

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
            warn_of_size(plan, sum(p.numel() for _, p in self._named))
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
        return {"generator_loss": loss.item(), **looks_of(array_of(logits))}

    def extra_flops(self, term: DataFree, batch: int) -> int:
        """Count what `extra_flops_of` lists."""
        generator = self.maker.flops_per_sample if self.maker else 0
        return extra_flops_of(term, batch, generator, self.host.anatomy.cost.flops)

    def _made(self, maker: Maker, noise: Tensor) -> Tensor:
        """Return samples in the value range of the device's own: (b, z) -> (b, c, h, w)."""
        out: Tensor = self._low + (self._high - self._low) * maker.net(noise)
        return out

    def _ask(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the teacher's logits and features: (b, c, h, w) -> (b, k), (b, d)."""
        answer: tuple[Tensor, Tensor] = functional_call(self._tapped, self._teacher, (x,))
        return answer


def divergence(teacher: Tensor, own: Tensor) -> Tensor:
    """Return KL(softmax(teacher) || softmax(own)), the mean over rows: (b, k), (b, k) -> a scalar."""
    given, said = nnf.log_softmax(teacher, dim=-1), nnf.log_softmax(own, dim=-1)
    return nnf.kl_div(said, given, reduction="batchmean", log_target=True)


def generator_loss(term: DataFree, logits: Tensor, features: Tensor) -> Tensor:
    """Compute DataFree.generator_loss in torch: logits (b, k), features (b, d) -> a scalar."""
    shares = nnf.softmax(logits, dim=-1).mean(dim=0)  # (k,)
    entropy = (shares * shares.clamp_min(LEAST_SHARE).log()).sum()
    balance = entropy if term.raw else 1 + entropy / float(np.log(max(logits.shape[1], 2)))
    certain = nnf.cross_entropy(logits, logits.argmax(dim=-1))
    active = -features.abs().sum(dim=-1).mean() / (1 if term.raw else features.shape[1])
    return balance + term.certain * certain + term.active * active
