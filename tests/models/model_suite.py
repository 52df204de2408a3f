"""What every Model must do; a runtime's test class inherits this and says how to make one."""

from __future__ import annotations

import numpy as np
import pytest
from loss_terms import HEAD_TERMS, head_terms, logit_terms

from edge_sdk.errors import ModelError, StoreError, Unsupported, UsageError
from edge_sdk.models.base import Batches, Model, pack_arrays, serving_copy, unpack_arrays
from edge_sdk.objectives import (
    ClassContrast,
    ClassTarget,
    CrossEntropy,
    Distill,
    HeadMatch,
    HeadProximal,
    LogitGradient,
    ModelContrast,
    Objective,
    Optim,
    PrototypeDistance,
    PrototypePull,
    Proximal,
    Seen,
    logit_gradient,
    objective_loss,
)

CLASSES = 4
SHAPE = (1, 6, 6)
SAMPLES = 40
BATCH = 8

ADAM = Optim(learning_rate=0.01)
OPTIMS = {
    "sgd": Optim(kind="sgd", learning_rate=0.1),
    "momentum": Optim(kind="sgd", learning_rate=0.05, momentum=0.9),
    "adam": ADAM,
}
RECIPES = {
    **OPTIMS,
    "decay": Optim(kind="sgd", learning_rate=0.1, weight_decay=0.3),
    "decay of all": Optim(kind="sgd", learning_rate=0.05, momentum=0.9, weight_decay=0.3, decay_all=True),
    "clipped": Optim(kind="sgd", learning_rate=0.1, clip_norm=0.3),
    "all at once": Optim(learning_rate=0.01, beta1=0.5, beta2=0.9, weight_decay=0.1, decay_all=True, clip_norm=0.3),
}
"""With decay, clipping and other betas, too."""


def samples(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.random((SAMPLES, *SHAPE), np.float32), rng.integers(0, CLASSES, SAMPLES)


def batches(steps: int, *, seed: int = 0, stochastic: bool = False) -> Batches:
    x, y = samples()
    indices = np.random.default_rng(seed).integers(0, SAMPLES, (steps, BATCH))
    return Batches(inputs=x, labels=y, indices=indices, stochastic=stochastic, seed=seed)


def objectives(steps: int) -> dict[str, Objective]:
    """One objective per term, with weights and temperatures that are not 1, and all of them together."""
    single = logit_terms(np.random.default_rng(5), steps, BATCH, CLASSES)
    return {**{name: (term,) for name, term in single.items()}, "all": tuple(single.values())}


def pull(model: Model, weight: float = 2.0) -> PrototypePull:
    """Prototypes of all classes but one, of the model's own width."""
    classes = np.arange(CLASSES - 1)
    rows = np.random.default_rng(8).normal(size=(len(classes), model.spec.feature_dim)).astype(np.float32)
    return PrototypePull(classes=classes, rows=rows, weight=weight)


class ModelSuite:
    """Inherited once per runtime and architecture."""

    def make(self, seed: int = 0) -> Model:
        raise NotImplementedError

    @pytest.fixture
    def model(self) -> Model:
        return self.make()

    def test_shapes_and_types(self, model: Model) -> None:
        x, _ = samples()
        k, d = model.spec.classes, model.spec.feature_dim
        assert model.logits(x).shape == (SAMPLES, k)
        assert model.features(x).shape == (SAMPLES, d)
        assert model.head_rows().shape == (k, d + 1)
        assert model.logits(x[:0]).shape == (0, k)
        assert {a.dtype for a in (model.logits(x), model.features(x), model.head_rows())} == {np.dtype("f4")}
        assert model.spec.flops_per_sample >= 2 * k * d

    def test_logits_are_the_head_of_the_features(self, model: Model) -> None:
        x, _ = samples()
        f, rows = model.features(x), model.head_rows()
        np.testing.assert_allclose(model.head(f), model.logits(x), atol=1e-5)
        np.testing.assert_allclose(f @ rows[:, :-1].T + rows[:, -1], model.logits(x), atol=1e-5)

    @pytest.mark.parametrize("name", objectives(1))
    def test_each_term_steps_down_the_reference_gradient(self, name: str) -> None:
        """A step on a term equals a step on the numpy reference's gradient of that term, fed in as a LogitGradient."""
        work, objective = batches(1), objectives(1)[name]
        by_term, by_gradient = self.make(), self.make()
        index = work.indices[0]
        logits, labels = by_term.logits(work.inputs[index]), work.labels[index]
        gradient = logit_gradient(objective, Seen(logits, labels, 0)) * BATCH
        small = Optim(kind="sgd", learning_rate=0.005)
        report = by_term.fit(work, objective, small)
        by_gradient.fit(work, (LogitGradient(gradient=gradient[None]),), small)
        assert report.loss == pytest.approx(objective_loss(objective, Seen(logits, labels, 0)), abs=1e-5)
        np.testing.assert_allclose(by_term.head_rows(), by_gradient.head_rows(), atol=1e-5)
        np.testing.assert_allclose(by_term.logits(work.inputs), by_gradient.logits(work.inputs), atol=1e-5)
        assert objective_loss(objective, Seen(by_term.logits(work.inputs[index]), labels, 0)) < report.loss

    def test_a_pull_counts_as_the_reference_says(self, model: Model) -> None:
        work = batches(1)
        index, term = work.indices[0], pull(model)
        logits, labels = model.logits(work.inputs[index]), work.labels[index]
        features = model.features(work.inputs[index])
        expected = objective_loss((CrossEntropy(), term), Seen(logits, labels, 0, features))
        assert model.fit(work, (CrossEntropy(), term), ADAM).loss == pytest.approx(expected, abs=1e-5)

    def test_the_terms_of_hyper_knowledge_count_as_the_reference_says(self, model: Model) -> None:
        work, rng = batches(1), np.random.default_rng(5)
        index, rows = work.indices[0], rng.normal(size=(2, model.spec.feature_dim)).astype(np.float32)
        head = HeadMatch(features=rows, soft=rng.dirichlet(np.ones(CLASSES), 2).astype(np.float32), weight=2.0)
        near = PrototypeDistance(classes=np.array([0, 2]), rows=rows, weight=0.5)
        logits, labels = model.logits(work.inputs[index]), work.labels[index]
        features = model.features(work.inputs[index])
        expected = objective_loss((CrossEntropy(), head, near), Seen(logits, labels, 0, features, head=model.head))
        assert model.fit(work, (CrossEntropy(), head, near), ADAM).loss == pytest.approx(expected, abs=1e-5)

    def test_terms_of_contrast_count_as_the_reference_says(self, model: Model) -> None:
        work, rng = batches(2), np.random.default_rng(5)
        near, away = rng.normal(size=(2, 2, BATCH, model.spec.feature_dim)).astype(np.float32)
        models = ModelContrast(near=near, away=away, temperature=0.3, weight=2.0)
        classes = ClassContrast(temperature=0.5, weight=0.5)
        index = work.indices[-1]
        first = Batches(inputs=work.inputs, labels=work.labels, indices=work.indices[:1], stochastic=False)
        model.fit(first, (CrossEntropy(), models.at(slice(0, 1)), classes), ADAM)
        logits, labels = model.logits(work.inputs[index]), work.labels[index]
        seen = Seen(logits, labels, 0, model.features(work.inputs[index]))
        objective = (CrossEntropy(), models.at(slice(1, 2)), classes)
        second = Batches(inputs=work.inputs, labels=work.labels, indices=work.indices[1:], stochastic=False)
        assert model.fit(second, objective, ADAM).loss == pytest.approx(objective_loss(objective, seen), abs=1e-5)

    @pytest.mark.parametrize("kind", HEAD_TERMS)
    def test_a_term_on_the_head_moves_the_head_as_the_reference_says(self, kind: str) -> None:
        """And nothing else: one step of sgd down the reference's gradient, rows with the bias as last column."""
        model = self.make()
        term = head_terms(np.random.default_rng(5), CLASSES, model.spec.feature_dim)[kind]
        before, slopes, asked = model.head_rows(), term.slope(Seen(head=model.head)), term.asks()
        features = model.features(batches(1).inputs)
        expected = before - 0.5 * slopes.T @ np.hstack([asked, np.ones((len(asked), 1), np.float32)])
        loss = model.fit(batches(1), (term,), Optim(kind="sgd", learning_rate=0.5)).loss
        assert loss == pytest.approx(term.value(Seen(head=lambda f: f @ before[:, :-1].T + before[:, -1])), rel=1e-4)
        if isinstance(term, HeadProximal):
            np.testing.assert_allclose(expected, before - 0.05 * (before - term.rows), atol=1e-5)
        np.testing.assert_allclose(model.head_rows(), expected, atol=1e-5)
        np.testing.assert_array_equal(model.features(batches(1).inputs), features)

    def test_a_pull_moves_the_extractor_or_is_declared_inert(self) -> None:
        """It never moves the head; where the extractor is frozen, it moves nothing at all, and the spec says so."""
        pulled, plain = self.make(), self.make()
        work, small = batches(1), Optim(kind="sgd", learning_rate=0.01)
        term, index = pull(pulled), work.indices[0]
        pulled.fit(work, (CrossEntropy(), term), small)
        plain.fit(work, (CrossEntropy(),), small)
        np.testing.assert_allclose(pulled.head_rows(), plain.head_rows(), atol=1e-7)
        if term.name in pulled.spec.inert_terms:
            assert pulled.state_bytes() == plain.state_bytes()
            with pytest.raises(ModelError, match="nothing to minimise"):
                pulled.fit(work, (term,), small)
            return
        left, was = (
            term.value(Seen(np.zeros((BATCH, CLASSES)), work.labels[index], 0, m.features(work.inputs[index])))
            for m in (pulled, plain)
        )
        assert left < was

    def test_refuses_targets_that_are_no_rows_of_logits(self, model: Model) -> None:
        term = ClassTarget(classes=np.array([0]), rows=np.zeros((1, CLASSES + 1), np.float32))
        with pytest.raises(ModelError, match=r"targets .*\(1, 5\) .*width 4"):
            model.fit(batches(1), (CrossEntropy(), term), ADAM)

    def test_refuses_prototypes_of_another_width(self, model: Model) -> None:
        for rows in (np.zeros((2, model.spec.feature_dim + 1), np.float32), np.zeros((3, model.spec.feature_dim))):
            with pytest.raises(ModelError, match=r"prototypes .*shape .*features of width"):
                model.fit(batches(1), (CrossEntropy(), PrototypePull(classes=np.array([0, 1]), rows=rows)), ADAM)

    @pytest.mark.parametrize("optim", OPTIMS.values(), ids=OPTIMS)
    def test_learns_its_training_samples(self, model: Model, optim: Optim) -> None:
        work = batches(60, stochastic=True)
        before = objective_loss((CrossEntropy(),), Seen(model.logits(work.inputs), work.labels, 0))
        model.fit(work, (CrossEntropy(),), optim)
        assert objective_loss((CrossEntropy(),), Seen(model.logits(work.inputs), work.labels, 0)) < before - 0.02

    def test_same_seed_same_bits(self) -> None:
        one, two, other = self.make(3), self.make(3), self.make(4)
        for model in (one, two, other):
            model.fit(batches(3, stochastic=True), (CrossEntropy(),), ADAM)
        assert one.state_bytes() == two.state_bytes() != other.state_bytes()

    def test_fit_does_not_depend_on_how_steps_are_cut(self) -> None:
        whole, cut = self.make(), self.make()
        work = batches(4)
        whole.fit(work, (CrossEntropy(),), ADAM)
        for step in range(4):
            part = Batches(inputs=work.inputs, labels=work.labels, indices=work.indices[[step]], stochastic=False)
            cut.fit(part, (CrossEntropy(),), ADAM)
        assert whole.state_bytes() == cut.state_bytes()

    @pytest.mark.parametrize("optim", OPTIMS.values(), ids=OPTIMS)
    def test_a_fit_of_one_part_holds_the_other_and_its_moments(self, optim: Optim) -> None:
        """Two fits of one part, one of the other between them: the part is as if there had been no other."""
        model, x = self.make(), samples()[0]
        model.fit(batches(2), (CrossEntropy(),), optim, "head")
        rows, features = model.head_rows(), model.features(x)
        np.testing.assert_array_equal(features, self.make().features(x))
        assert (rows != self.make().head_rows()).any()
        model.fit(batches(2), (CrossEntropy(weight=0.0),), optim, "body")
        held, alone = unpack_arrays(model.state_bytes()), self.make()
        alone.fit(batches(2), (CrossEntropy(),), optim, "head")
        of_head = [name for name, array in unpack_arrays(alone.state_bytes()).items() if array.any()]
        for name in of_head:
            if name in held and not name.endswith("steps"):
                np.testing.assert_array_equal(held[name], unpack_arrays(alone.state_bytes())[name])
        directions = [each / np.linalg.norm(each) for each in (model.head_rows(), rows)]
        np.testing.assert_allclose(*directions, atol=1e-6)

    @pytest.mark.parametrize("optim", RECIPES.values(), ids=RECIPES)
    def test_resumes_to_the_bit(self, optim: Optim) -> None:
        straight, resumed = self.make(1), self.make(2)
        straight.fit(batches(3), (CrossEntropy(),), optim)
        resumed.load_state(straight.state_bytes())
        assert resumed.state_bytes() == straight.state_bytes()
        for model in (straight, resumed):
            model.fit(batches(3, seed=1), (CrossEntropy(),), optim)
        assert resumed.state_bytes() == straight.state_bytes()

    def test_a_serving_copy_stays_as_it_was_taken(self) -> None:
        model, (x, _) = self.make(), samples()
        model.fit(batches(3), (CrossEntropy(),), ADAM)
        served, before = serving_copy(model), model.logits(x)
        model.fit(batches(10), (CrossEntropy(),), ADAM)
        np.testing.assert_array_equal(served.logits(x), before)
        assert not np.allclose(model.logits(x), before)

    def test_a_serving_copy_is_stored_and_restored(self) -> None:
        model, (x, _) = self.make(), samples()
        older = serving_copy(model)
        stored, before = older.state_bytes(), older.logits(x)
        model.fit(batches(10), (CrossEntropy(),), ADAM)
        newer = serving_copy(serving_copy(model))
        newer.load_state(stored)
        np.testing.assert_array_equal(newer.logits(x), before)

    def test_a_state_without_moments_forgets_them(self) -> None:
        fresh, used = self.make(), self.make()
        used.fit(batches(2), (CrossEntropy(),), ADAM)
        used.load_state(fresh.state_bytes())
        assert used.state_bytes() == fresh.state_bytes()

    @pytest.mark.parametrize("damage", ["missing", "extra", "shape", "dtype", "optimiser", "noise"])
    def test_refuses_a_state_that_does_not_fit(self, model: Model, damage: str) -> None:
        model.fit(batches(1), (CrossEntropy(),), ADAM)
        before = model.state_bytes()
        arrays = unpack_arrays(before)
        name = next(iter(arrays))
        if damage == "missing":
            del arrays[name]
        elif damage == "extra":
            arrays["stranger"] = np.zeros(2, np.float32)
        elif damage == "shape":
            arrays[name] = arrays[name][..., :-1]
        elif damage == "dtype":
            arrays[name] = arrays[name].astype(np.float64)
        elif damage == "optimiser":
            arrays["optim"] = np.array([7.0, 0.1, 0.0])
        with pytest.raises(StoreError, match=r"emove FEDERATION\.db in the state folder"):
            model.load_state(b"\xc1noise" if damage == "noise" else pack_arrays(arrays))
        assert model.state_bytes() == before

    def test_moments_live_on_until_the_optimiser_changes(self) -> None:
        """Two fits with equal settings are one; other settings start new moments, as for a fresh model."""
        kept, fresh = self.make(), self.make()
        kept.fit(batches(3), (CrossEntropy(),), ADAM)
        fresh.load_state(kept.state_bytes())
        fresh.fit(batches(1), (CrossEntropy(),), OPTIMS["sgd"])
        kept.fit(batches(1), (CrossEntropy(),), OPTIMS["sgd"])
        assert kept.state_bytes() == fresh.state_bytes()
        assert unpack_arrays(kept.state_bytes())["steps"].max() == 1

    def test_head_rows_are_replaced_one_by_one(self, model: Model) -> None:
        old = model.head_rows()
        new = np.random.default_rng(0).normal(size=(2, old.shape[1])).astype(np.float32)
        model.set_head_rows(np.array([3, 0]), new)
        expected = old.copy()
        expected[[3, 0]] = new
        np.testing.assert_array_equal(model.head_rows(), expected)
        x, _ = samples()
        np.testing.assert_allclose(model.logits(x)[:, 3], model.features(x) @ new[0, :-1] + new[0, -1], atol=1e-4)

    def test_replacing_head_rows_resets_the_moments(self) -> None:
        used, fresh = self.make(), self.make()
        used.fit(batches(3), (CrossEntropy(),), ADAM)
        fresh.load_state(used.state_bytes())
        fresh.fit(batches(0), (CrossEntropy(),), OPTIMS["sgd"])  # another optimiser: no moments of Adam are left
        for model in (used, fresh):
            model.set_head_rows(np.array([1]), np.ones((1, model.spec.feature_dim + 1), np.float32))
            model.fit(batches(2), (CrossEntropy(),), ADAM)
        assert used.state_bytes() == fresh.state_bytes()

    @pytest.mark.parametrize(
        ("classes", "wrong"), [([0, 1], (1, 0)), ([0], (1, 1)), ([CLASSES], (1, 0)), ([-1], (1, 0))]
    )
    def test_refuses_head_rows_that_do_not_fit(self, model: Model, classes: list[int], wrong: tuple[int, int]) -> None:
        rows = np.zeros((wrong[0], model.spec.feature_dim + 1 + wrong[1]), np.float32)
        with pytest.raises(ModelError, match="head rows"):
            model.set_head_rows(np.array(classes), rows)

    def test_answers_are_copies(self, model: Model) -> None:
        x, _ = samples()
        first = model.logits(x)
        for answer in (model.head_rows(), model.features(x), model.logits(x)):
            answer[...] = 1e6
        np.testing.assert_array_equal(model.logits(x), first)
        np.testing.assert_array_equal(x, samples()[0])

    def test_takes_read_only_samples_and_knowledge(self, model: Model) -> None:
        work, objective = batches(1), objectives(1)["all"]
        arrays = (work.inputs, work.labels, work.indices, objective[2].logits, objective[4].gradient)
        for array in arrays:
            array.setflags(write=False)
        model.fit(work, objective, ADAM)
        assert model.logits(work.inputs).shape == (SAMPLES, CLASSES)

    def test_refuses_knowledge_of_other_batches(self, model: Model) -> None:
        before = model.state_bytes()
        short = Distill(logits=np.zeros((1, BATCH, CLASSES), np.float32))
        with pytest.raises(ModelError, match=r"\(1, 8, 4\), .*batches.*\(2, 8, 4\)"):
            model.fit(batches(2), (short,), ADAM)
        with pytest.raises(ModelError, match="nothing to minimise"):
            model.fit(batches(2), (), ADAM)
        with pytest.raises(UsageError, match="optimiser 'lion'"):
            model.fit(batches(2), (CrossEntropy(),), Optim(kind="lion"))
        assert model.state_bytes() == before

    def test_refuses_samples_of_another_shape(self, model: Model) -> None:
        x = np.zeros((3, 1, 4, 9), np.float32)  # as many numbers as a sample of the right shape
        work = Batches(inputs=x, labels=np.zeros(3, np.int64), indices=np.array([[0, 1]]))
        for ask in (model.logits, model.features, lambda _: model.fit(work, (CrossEntropy(),), ADAM)):
            with pytest.raises(ModelError, match=r"\(1, 6, 6\), found.*\(1, 4, 9\)"):
                ask(x)

    def test_cross_entropy_needs_labels(self, model: Model) -> None:
        work = batches(1)
        unlabelled = Batches(inputs=work.inputs, labels=None, indices=work.indices, stochastic=False)
        with pytest.raises(ValueError, match="needs labels"):
            model.fit(unlabelled, (CrossEntropy(),), ADAM)

    def test_a_fit_of_no_steps_changes_nothing(self, model: Model) -> None:
        x, before = samples()[0], model.head_rows()
        report = model.fit(batches(0), (CrossEntropy(),), ADAM)
        assert (report.steps, report.loss) == (0, 0.0)
        np.testing.assert_array_equal(model.head_rows(), before)
        assert np.isfinite(model.logits(x)).all()


class WeightSuite:
    """For models with the capability `weights`; to be inherited beside ModelSuite."""

    def test_weights_round_trip(self) -> None:
        one, two = self.make(1), self.make(2)
        x, _ = samples()
        values = one.weights()
        assert values.shape == (one.spec.parameters,)
        two.set_weights(values)
        np.testing.assert_array_equal(two.logits(x), one.logits(x))
        values[...] = 0
        np.testing.assert_array_equal(two.weights(), one.weights())

    def test_setting_weights_resets_the_moments(self) -> None:
        used, fresh = self.make(1), self.make(2)
        start = used.weights()
        used.fit(batches(3), (CrossEntropy(),), ADAM)
        for model in (used, fresh):
            model.set_weights(start)
            model.fit(batches(2), (CrossEntropy(),), ADAM)
        np.testing.assert_array_equal(used.weights(), fresh.weights())

    def test_takes_read_only_weights_and_keeps_no_hold_of_them(self, model: Model) -> None:
        values = model.weights() + 1
        values.setflags(write=False)
        model.set_weights(values)
        model.fit(batches(2), (CrossEntropy(),), ADAM)
        assert not np.array_equal(model.weights(), values)
        np.testing.assert_array_equal(values, self.make().weights() + 1)

    def test_equal_architectures_have_one_layout(self) -> None:
        one, other = self.make(1), self.make(2)
        assert len(one.spec.layout) == 16
        assert one.spec.layout == other.spec.layout

    @pytest.mark.parametrize("optim", [OPTIMS["sgd"], OPTIMS["adam"]], ids=["sgd", "adam"])
    def test_the_proximal_term_pulls_back_as_the_reference_says(self, optim: Optim) -> None:
        """Its loss beside that of the logits; and one step of sgd differs by rate * mu * (w - anchor)."""
        held, free = self.make(), self.make()
        rng = np.random.default_rng(3)
        anchor = held.weights() + rng.normal(0, 0.1, held.spec.parameters).astype(np.float32)
        anchor.setflags(write=False)
        work, term, before = batches(1), Proximal(anchor=anchor, weight=2.0), held.weights()
        by_hand = free.fit(work, (CrossEntropy(),), optim).loss + float(((before - anchor) ** 2).sum())
        assert held.fit(work, (CrossEntropy(), term), optim).loss == pytest.approx(by_hand, rel=1e-4)
        if optim.kind == "sgd":
            expected = free.weights() - 0.1 * 2.0 * (before - anchor)
            np.testing.assert_allclose(held.weights(), expected, atol=1e-5)
        for _ in range(20):
            held.fit(work, (term,), optim)
        assert np.abs(held.weights() - anchor).max() < np.abs(before - anchor).max()

    def test_refuses_an_anchor_of_another_model(self, model: Model) -> None:
        with pytest.raises(ModelError, match="weights of shape"):
            model.fit(batches(1), (Proximal(anchor=np.zeros(3, np.float32)),), ADAM)

    def test_refuses_weights_of_another_model(self, model: Model) -> None:
        with pytest.raises(ModelError, match="weights of shape"):
            model.set_weights(np.zeros(model.spec.parameters + 1, np.float32))


def check_unsupported(model: Model, capability: str) -> None:
    """Every method that needs a capability refuses with its name."""
    x, _ = samples()
    rows = np.zeros((1, model.spec.feature_dim + 1), np.float32)
    calls = {
        "features": [lambda: model.features(x)],
        "head-rows": [model.head_rows, lambda: model.set_head_rows(np.array([0]), rows)],
        "weights": [model.weights, lambda: model.set_weights(np.zeros(model.spec.parameters, np.float32))],
        "logit-gradients": [lambda: model.fit(batches(1), (CrossEntropy(),), ADAM)],
    }
    assert capability not in model.spec.capabilities
    for call in calls[capability]:
        with pytest.raises(Unsupported, match=model.spec.name):
            call()
