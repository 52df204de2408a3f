"""What counts as diverged, and what the bench makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sdk.data import LocalData, Samples
from edge_sdk.device.training import divergence
from edge_sdk.device.training.workbench import Workbench
from edge_sdk.errors import Diverged
from edge_sdk.methods.contract.job import Job
from edge_sdk.methods.contract.requests import Fit, Private
from edge_sdk.models.base import FitReport
from edge_sdk.models.numpy_model import NumpyModel
from edge_sdk.objectives import CrossEntropy, Optim
from edge_sdk.protocol.knowledge import MAX_MAGNITUDE, ClassRows, Weights
from edge_sdk.protocol.messages import FederationSpec


def weights(*values: float) -> dict[str, Weights]:
    return {"weights": Weights(values=np.array(values, np.float32), layout=bytes(16))}


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -float("inf")])
def test_a_loss_that_is_no_number(loss: float) -> None:
    divergence.check_loss(FitReport(steps=1, loss=3.0), 0)
    with pytest.raises(Diverged, match=f"the loss was {loss:g} in step 5"):
        divergence.check_loss(FitReport(steps=1, loss=loss), 4)


def test_knowledge_up_to_what_is_legal() -> None:
    divergence.check_knowledge(weights(-MAX_MAGNITUDE, MAX_MAGNITUDE))
    rows = ClassRows(
        classes=np.array([1], np.int32), rows=np.array([[0.5]], np.float32), counts=np.array([2_000_000], np.int32)
    )
    divergence.check_knowledge({"rows": rows})  # a count is no measure of divergence
    for wrong in (float("nan"), float("inf"), -float("inf"), 1.1 * MAX_MAGNITUDE, -1.1 * MAX_MAGNITUDE):
        with pytest.raises(Diverged, match="weights hold numbers from"):
            divergence.check_knowledge(weights(0.0, wrong, 1.0))


@pytest.mark.parametrize("capability", ["weights", "head-rows"])
def test_a_fit_that_leaves_nan_behind_with_a_finite_loss(capability: str) -> None:
    model = NumpyModel(2, (1, 1, 2), seed=1)
    object.__setattr__(model.spec, "capabilities", frozenset({"predict", "logit-gradients", capability}))
    x = np.array([[0.1, 0.2], [0.3, 0.1]], np.float32).reshape(2, 1, 2)
    bench = Workbench(model, LocalData(train=Samples(x, np.array([0, 1]))))
    spec = FederationSpec(federation="lab", method="local", contract=bytes(16), classes=2, rounds=1)
    job = Job(spec=spec, number=0, round=0, exchange=0, closing=False, samples=2, learns=True)
    fit = Fit(source=Private(np.array([[0, 1]])), objective=(CrossEntropy(),), optim=Optim())
    for _ in bench.serve(fit, job):
        pass
    healthy = model.fit

    def poisoned(*arguments: object) -> FitReport:
        report = healthy(*arguments)  # type: ignore[arg-type]  # passed on as they came
        model.set_head_rows(np.array([0]), np.full((1, 3), np.nan, np.float32))
        return report

    model.fit = poisoned  # type: ignore[method-assign]  # a model that goes wrong
    with pytest.raises(Diverged, match="hold numbers from nan"):
        for _ in bench.serve(fit, job):
            pass
