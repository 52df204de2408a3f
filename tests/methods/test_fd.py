"""FD and LG-FedAvg: what each half does in a round, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from method_specs import FakeDevice, first_step, job, rows_of, spec_of
from payload_bytes import payload_bytes

from edge_sdk.errors import RemoteProtocolError
from edge_sdk.methods.contract.registry import method_of
from edge_sdk.methods.fd import FD
from edge_sdk.objectives import ClassTarget
from edge_sdk.protocol.exchange_id import ExchangeId
from edge_sdk.protocol.knowledge import ClassRows
from edge_sdk.protocol.wires import check_roles, expectation
from edge_sdk.reductions import Contribution
from edge_sdk.reductions.class_rows import mean_over_others

SPEC = spec_of("fd", gamma=0.5)
MEANS = rows_of([0, 2], [[0.8, 0.1, 0.1], [0.2, 0.2, 0.6]], [4, 5])
TARGETS = rows_of([0], [[0.6, 0.4, 0.0]])


def reduced(role: str, spec, *ups: ClassRows, samples: tuple[int, ...] = (9, 9, 9)):
    method = method_of(spec)
    bag = method.zero()
    for number, rows in enumerate(ups):
        bag = method.add(bag, Contribution(number=number, samples=samples[number], knowledge={role: rows}))
    return method.finish(spec, method.begin(spec), ExchangeId(0, 0), bag)


# -- fd -------------------------------------------------------------------------------------------------------------


def test_the_targets_of_the_worked_number() -> None:
    """methods.md F.4: leave-one-out over three holders; a device that did not answer gets the mean of all."""
    ups = (rows_of([0], [[0.9, 0.1]]), rows_of([0], [[0.6, 0.4]]), rows_of([0], [[0.3, 0.7]]))
    state = reduced("predictions", SPEC, *ups)
    for number, expected in enumerate([[0.45, 0.55], [0.6, 0.4], [0.75, 0.25], [0.6, 0.4]]):
        (found,) = FD().personal(state, ExchangeId(1, 0), number).values()
        np.testing.assert_allclose(found.rows, [expected], atol=1e-7)
    assert FD().personal(state, ExchangeId(SPEC.rounds, 0), 0) == {}


def test_a_class_that_only_the_device_itself_holds_is_left_out() -> None:
    first, second = mean_over_others([rows_of([0, 1], [[1, 0], [0, 1]], [2, 2]), rows_of([0], [[0.5, 0.5]], [6])])
    assert first == rows_of([0], [[0.5, 0.5]], [6])
    assert second == rows_of([0], [[1, 0]], [2])
    assert mean_over_others([rows_of([1], [[1, 0]]), rows_of([0], [[1, 0]])]) == [None, None]


def test_an_exchange_of_fd() -> None:
    device = FakeDevice(means=MEANS)
    _, up = device.run(first_step({"targets": TARGETS}, job(SPEC, 1)))
    assert device.kinds == ["fit private: cross-entropy + class-target", "class means", "evaluate 2"]
    assert device.requests[1].rows == "probabilities"
    term = device.requests[0].objective[1]
    assert isinstance(term, ClassTarget)
    assert (term.classes.tolist(), term.weight) == ([0], 0.5)
    assert up == {"predictions": rows_of([0, 2], MEANS.rows, [1, 1])}  # uniform: no counts are told
    told = spec_of("fd", weighting="samples")
    _, up = device.run(first_step({}, job(told, 0)))
    assert device.kinds[0] == "fit private: cross-entropy"
    assert up == {"predictions": MEANS}


def test_rows_that_are_no_distributions_are_refused() -> None:
    slots = FD().exchanges[0].up
    for rows, message in (([[0.5, 0.2, 0.1]], "sum to 1"), ([[1.5, -0.5, 0]], "negative"), ([[0.5, 0.5]], "of shape")):
        with pytest.raises(RemoteProtocolError, match=message):
            check_roles({"predictions": rows_of([0], rows)}, slots, expectation(SPEC))
    check_roles({"predictions": MEANS}, slots, expectation(spec_of("fd", feature_dim=64)))  # no features here


# -- lg_fedavg ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("weighting", "expected"), [("samples", [1.8, 0.8]), ("uniform", [2, 1])])
def test_the_mean_of_last_layers(weighting: str, expected: list[float]) -> None:
    """methods.md F.7: rows (1, 0) from 12 samples and (3, 2) from 8."""
    spec = spec_of("lg_fedavg", weighting=weighting, feature_dim=1)
    ups = (rows_of([0, 1], [[1, 0]] * 2), rows_of([0, 1], [[3, 2]] * 2))
    state = reduced("header", spec, *ups, samples=(12, 8))
    np.testing.assert_allclose(state.header.rows, [expected] * 2, rtol=1e-7)


def test_an_exchange_of_lg_fedavg() -> None:
    spec = spec_of("lg_fedavg", feature_dim=2)
    device = FakeDevice()
    header = rows_of([0, 1, 2], np.full((3, 3), 7.0))
    _, up = device.run(first_step({"header": header}, job(spec, 1)))
    assert device.kinds == ["write head [0, 1, 2]", "fit private: cross-entropy", "read head", "evaluate 2"]
    assert up == {"header": rows_of([0, 1, 2], np.full((3, 3), 8.0))}  # the fake fit adds 1
    assert up["header"].rows.nbytes == 4 * 3 * 3
    assert payload_bytes(up["header"]) == 4 * 3 * (3 + 2)
