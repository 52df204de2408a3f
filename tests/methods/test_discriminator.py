"""What must hold of the discriminator whatever the numbers."""

from __future__ import annotations

import numpy as np
import pytest
from method_specs import spec_of

from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.fedal import FedAL, clip
from edge_sdk.models.base import Batches
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.objectives import LogitGradient, Optim, softmax
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import PublicLogits
from edge_sdk.reductions import Contribution

torch = pytest.importorskip("torch")
discriminator = pytest.importorskip("edge_sdk.methods.parts.torch_fedal")

pytestmark = pytest.mark.torch

CLASSES, DEVICES, SAMPLES = 5, 4, 6
SLOTS = np.array([0, 2, 3])


def how(rate: float = 0.05, optimiser: str = "sgd") -> object:
    return discriminator.DiscriminatorTraining(temperature=2.0, rate=rate, optimiser=optimiser, device="cpu")


def some_logits(seed: int = 0, samples: int = SAMPLES) -> np.ndarray:
    return (3 * np.random.default_rng(seed).normal(size=(len(SLOTS), samples, CLASSES))).astype(np.float32)


def fresh(seed: int = 1) -> object:
    return discriminator.DiscriminatorState(discriminator.initial_discriminator(CLASSES, DEVICES, seed))


def u(state, f: np.ndarray) -> np.ndarray:  # (n, b)
    """U_n of each sample alone, by a step of length 0."""
    return np.array(
        [
            [
                discriminator.iterate(state, f[n : n + 1, b : b + 1], SLOTS[n : n + 1], how(0.0)).mean_u
                for b in range(f.shape[1])
            ]
            for n in range(len(f))
        ]
    )


def test_shapes_are_those_of_the_paper() -> None:
    shapes = [w.shape for w in discriminator.initial_discriminator(10, 20, 0)]
    assert shapes == [(32, 10), (32,), (265, 32), (265,), (20, 265), (20,)]


def test_weights_follow_the_seed() -> None:
    one, same, other = (discriminator.initial_discriminator(CLASSES, DEVICES, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not np.array_equal(one[0], other[0])


@pytest.mark.parametrize("seed", range(5))
def test_gradients_sum_to_zero_over_the_classes(seed: int) -> None:
    gradients = discriminator.iterate(fresh(seed), some_logits(seed), SLOTS, how()).gradients
    assert np.abs(gradients).max() > 1e-4
    assert gradients.sum(axis=-1) == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("seed", range(5))
def test_a_step_of_the_discriminator_raises_the_mean_of_u(seed: int, optimiser: str) -> None:
    before, f = fresh(seed), some_logits(seed)
    outcome = discriminator.iterate(before, f, SLOTS, how(1e-3, optimiser))
    assert outcome.mean_u > u(before, f).mean()
    assert outcome.mean_u == pytest.approx(u(outcome.state, f).mean(), abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_a_step_of_a_device_on_u_alone_lowers_its_u(seed: int) -> None:
    """With a model that is trained, not only with logits that are moved."""
    models = [NumpyModel(CLASSES, (1, 2, 2), seed=n) for n in range(len(SLOTS))]
    x = np.random.default_rng(seed).normal(size=(SAMPLES, 1, 2, 2)).astype(np.float32)
    f = np.stack([model.logits(x) for model in models])
    outcome = discriminator.iterate(fresh(seed), f, SLOTS, how())
    batch = Batches(inputs=x, labels=None, indices=np.arange(SAMPLES)[None], stochastic=False)
    for model, gradient in zip(models, outcome.gradients, strict=True):
        model.fit(batch, (LogitGradient(gradient=gradient[None]),), Optim(kind="sgd", learning_rate=0.1))
    moved = np.stack([model.logits(x) for model in models])
    assert (u(outcome.state, moved).mean(axis=1) < u(outcome.state, f).mean(axis=1)).all()


def test_gradients_are_those_of_each_sample_divided_by_nothing() -> None:
    """Twice the samples, each of them double: the same discriminator step, and the same gradient for each sample."""
    f = some_logits()
    once = discriminator.iterate(fresh(), f, SLOTS, how())
    twice = discriminator.iterate(fresh(), np.concatenate([f, f], axis=1), SLOTS, how())
    assert twice.gradients[:, :SAMPLES] == pytest.approx(once.gradients, abs=1e-7)
    assert twice.gradients[:, SAMPLES:] == pytest.approx(once.gradients, abs=1e-7)


def test_a_gradient_does_not_shrink_with_the_number_of_devices() -> None:
    f = some_logits()
    alone = discriminator.iterate(fresh(), f[:1], SLOTS[:1], how(rate=0.0)).gradients
    together = discriminator.iterate(fresh(), f, SLOTS, how(rate=0.0)).gradients
    assert together[:1] == pytest.approx(alone, abs=1e-7)


def test_gradients_are_the_slopes_of_u_at_the_new_weights() -> None:
    f = some_logits()
    outcome = discriminator.iterate(fresh(), f, SLOTS, how(rate=0.5))
    step = 1e-2
    for n, b, k in [(0, 0, 0), (1, 3, 4), (2, 5, 2)]:
        up, down = f.copy(), f.copy()
        up[n, b, k] += step
        down[n, b, k] -= step
        slope = (u(outcome.state, up)[n, b] - u(outcome.state, down)[n, b]) / (2 * step)
        assert outcome.gradients[n, b, k] == pytest.approx(slope, abs=2e-4)


def test_adam_is_torchs() -> None:
    f = torch.tensor(some_logits())
    state = fresh()
    reference = [torch.tensor(w, requires_grad=True) for w in state.weights]
    optimiser = torch.optim.Adam(reference, lr=0.01)
    for _ in range(5):
        state = discriminator.iterate(state, f.numpy(), SLOTS, how(0.01, "adam")).state
        optimiser.zero_grad()
        hidden = torch.softmax(f / 2, dim=-1)
        for i in (0, 2, 4):
            hidden = hidden.relu() if i else hidden
            hidden = hidden @ reference[i].T + reference[i + 1]
        (-torch.log_softmax(hidden, dim=-1)[range(len(f)), :, SLOTS].mean()).backward()
        optimiser.step()
    assert state.steps == 5
    for ours, theirs in zip(state.weights, reference, strict=True):
        assert ours == pytest.approx(theirs.detach().numpy(), abs=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_gpu_computes_what_a_cpu_does(optimiser: str) -> None:
    state, f = fresh(), some_logits(3)
    on_cpu, on_gpu = (
        discriminator.iterate(
            state,
            f,
            SLOTS,
            discriminator.DiscriminatorTraining(temperature=2.0, rate=0.05, optimiser=optimiser, device=device),
        )
        for device in ("cpu", "cuda:0")
    )
    np.testing.assert_allclose(on_gpu.gradients, on_cpu.gradients, atol=1e-4)
    for gpu, cpu in zip(on_gpu.state.weights, on_cpu.state.weights, strict=True):
        np.testing.assert_allclose(gpu, cpu, atol=1e-4)


def test_torch_has_as_many_threads_as_before() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        discriminator.iterate(fresh(), some_logits(), SLOTS, how())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_clip_shortens_each_sample_by_itself() -> None:
    gradients = np.array([[[3.0, -4.0], [0.3, -0.4]], [[0.0, 0.0], [-6.0, 8.0]]], np.float32)
    clipped = clip(gradients, 1.0)
    assert clipped == pytest.approx(np.array([[[0.6, -0.8], [0.3, -0.4]], [[0.0, 0.0], [-0.6, 0.8]]]), abs=1e-6)
    assert np.array_equal(clip(gradients, 0), gradients)


# -- the coordinator half around it -----------------------------------------------------------------------------------


def finished(numbers: tuple[int, ...], **params: object) -> tuple[FedAL, object]:
    spec = spec_of("fedal", classes=CLASSES, public_batch=SAMPLES, **params)
    method = method_of(spec)
    bag = method.zero()
    for i, number in enumerate(numbers):
        logits = PublicLogits(values=some_logits()[i], batch=bytes(8))
        bag = method.add(bag, Contribution(number=number, samples=1, knowledge={"logits": logits}))
    return method, method.finish(spec, method.begin(spec), ExchangeId(0, 0), bag)


def test_one_contributor_alone_gets_no_mean() -> None:
    method, state = finished((2,))
    assert set(method.personal(state, ExchangeId(0, 1), 2)) == {"adversarial"}


def test_one_contributor_under_target_all_gets_its_own_mean() -> None:
    method, state = finished((2,), target="all")
    assert np.array_equal(method.personal(state, ExchangeId(0, 1), 2)["mean"].values, some_logits()[0])


def test_target_all_is_the_same_for_everybody() -> None:
    method, state = finished((0, 2, 3), target="all")
    means = [method.personal(state, ExchangeId(0, 1), number)["mean"] for number in (0, 2, 3)]
    assert all(mean.values == pytest.approx(some_logits().mean(axis=0), abs=1e-6) for mean in means)
    assert {mean.contributors for mean in means} == {3}


def test_a_device_that_missed_the_iteration_gets_nothing() -> None:
    method, state = finished((0, 2))
    assert method.personal(state, ExchangeId(0, 1), 3) == {}


def test_the_last_exchange_of_a_round_clears_the_feedback_and_keeps_the_discriminator() -> None:
    spec = spec_of("fedal", classes=CLASSES, public_batch=SAMPLES, tau=2)
    method, state = finished((0, 2), tau=2)
    bag = method.add(method.zero(), Contribution(number=0, samples=1, knowledge={}))
    after = method.finish(spec, state, ExchangeId(0, 2), bag)
    assert method.personal(after, ExchangeId(1, 1), 0) == {}
    assert all(np.array_equal(a, b) for a, b in zip(after.discriminator, state.discriminator, strict=True))
    assert after.mean_u == state.mean_u


def test_nothing_goes_down_before_the_first_iteration() -> None:
    method, state = finished((0, 2))
    assert method.personal(state, ExchangeId(0, 0), 0) == {}


def test_without_the_adversarial_term_there_is_no_discriminator() -> None:
    method, state = finished((0, 2), adversarial=0.0)
    assert state.discriminator == ()
    assert set(method.personal(state, ExchangeId(0, 1), 0)) == {"mean"}


def test_slots_belong_to_numbers_not_to_places_in_the_batch() -> None:
    """Device 3 is told apart as number 3, whoever else takes part."""
    method, state = finished((0, 2, 3), discriminator_rate=0.0)
    gradients = [method.personal(state, ExchangeId(0, 1), number)["adversarial"].values for number in (0, 2, 3)]
    method, state = finished((3, 2, 0), discriminator_rate=0.0)
    swapped = [method.personal(state, ExchangeId(0, 1), number)["adversarial"].values for number in (3, 2, 0)]
    assert not np.allclose(gradients[0], swapped[0])
    assert gradients[1] == pytest.approx(swapped[1], abs=1e-7)


def test_more_devices_than_slots_end_the_run_with_what_to_do() -> None:
    from edge_sdk.errors import RunFailed

    with pytest.raises(RunFailed, match="4 slots; raise max_devices"):
        finished((0, 4), max_devices=4)


# -- outputs in use -------------------------------------------------------------------------------------------------


def brought(spec, state, numbers: list[int], f: np.ndarray, exchange: int = 0):
    method = method_of(spec)
    bag = method.zero()
    for number, values in zip(numbers, f, strict=True):
        logits = PublicLogits(values=values, batch=bytes(8))
        bag = method.add(bag, Contribution(number=number, samples=1, knowledge={"logits": logits}))
    return method.finish(spec, state, ExchangeId(0, exchange), bag)


def test_outputs_of_devices_that_never_came_take_no_part() -> None:
    """Room for 4 devices or for 40: as long as 3 have come, their gradients are the same but for rounding."""
    f = some_logits()
    small = fresh()
    wide = discriminator.DiscriminatorState(
        (*small.weights[:-2], np.tile(small.weights[-2], (10, 1)), np.tile(small.weights[-1], 10))
    )
    masked = [discriminator.iterate(state, f, SLOTS, how(0.5), SLOTS) for state in (small, wide)]
    np.testing.assert_allclose(masked[0].gradients, masked[1].gradients, rtol=0, atol=1e-7)
    assert masked[0].mean_u > discriminator.iterate(small, f, SLOTS, how(0.5)).mean_u
    unused = np.setdiff1d(np.arange(40), SLOTS)
    np.testing.assert_array_equal(masked[1].state.weights[-1][unused], wide.weights[-1][unused])


def test_a_device_that_was_seen_keeps_its_output() -> None:
    spec = spec_of("fedal", classes=CLASSES, public_batch=SAMPLES, max_devices=8)
    method = method_of(spec)
    state = brought(spec, method.begin(spec), [1, 5], some_logits()[:2])
    assert state.seen == (1, 5)
    state = brought(spec, state, [5, 7], some_logits()[1:], exchange=1)
    assert state.seen == (1, 5, 7)


@pytest.mark.parametrize("adversarial", [1.0, 0.25])
def test_the_ratio_of_the_norms_is_held(adversarial: float) -> None:
    params = {"held_ratio": 0.3, "adversarial": adversarial, "temperature": 2.0, "gradient_clip": 0.0}
    spec = spec_of("fedal", classes=CLASSES, public_batch=SAMPLES, max_devices=8, **params)
    method, f = method_of(spec), some_logits()
    state = brought(spec, method.begin(spec), [0, 1, 2], f)
    for number in range(3):
        down = method.personal(state, ExchangeId(0, 1), number)
        own = softmax(f[number] / 2) - softmax(down["mean"].values / 2)
        kl = np.linalg.norm(own / 2)
        assert adversarial * np.linalg.norm(down["adversarial"].values) == pytest.approx(0.3 * kl, rel=1e-4)
    alone = brought(spec, method.begin(spec), [0], f[:1])  # no target to hold the ratio to
    assert np.isfinite(method.personal(alone, ExchangeId(0, 1), 0)["adversarial"].values).all()


# -- parameters -----------------------------------------------------------------------------------------------------


def test_the_preset_fills_in_what_a_table_does_not_say() -> None:
    paper = FedAL.read({"preset": "paper", "discriminator_rate": 0.5})
    assert (paper.discriminator_optimiser, paper.gradient_clip, paper.held_ratio) == ("sgd", 0.0, 0.0)
    assert paper.discriminator_rate == 0.5
    assert FedAL(paper).table == FedAL(FedAL.read(FedAL(paper).table)).table


def test_layers_and_rate_are_parameters() -> None:
    spec = spec_of("fedal", classes=CLASSES, public_batch=SAMPLES, max_devices=8, discriminator_layers="7", rounds=4)
    method = method_of(spec)
    assert [layer.size for layer in method.begin(spec).discriminator] == [7 * CLASSES, 7, 8 * 7, 8]
    falling = FedAL.read({"discriminator_schedule": "exponential", "discriminator_factor": 0.5})
    rates = [falling.rate(spec, round_) for round_ in range(3)]
    assert rates == pytest.approx([falling.discriminator_rate * 0.5**round_ for round_ in range(3)])


@pytest.mark.parametrize("layers", ["0", "32,", "a", "1,2,3,4,5", "99999"])
def test_impossible_layers_are_refused(layers: str) -> None:
    with pytest.raises(UsageError, match=r"^method\.discriminator_layers: expected"):
        FedAL.read({"discriminator_layers": layers})
