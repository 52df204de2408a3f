"""Errors that a user's own net raises are told from those of our own code."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from edge_sdk.errors import ModelError, NoSamples
from edge_sdk.methods.contract.brought_code import as_model_error

HERE = ("test_brought_code:make",)


def test_what_the_module_of_a_net_raises_is_a_model_error() -> None:
    said = (
        r"^model test_brought_code:make in round 3: KeyError: 'a name' \(test_brought_code\.py:\d+\); fix the net; .*"
    )
    with pytest.raises(ModelError, match=said) as found, as_model_error(HERE, " in round 3"):
        raise KeyError("a name")
    assert isinstance(found.value.__cause__, KeyError)


def test_what_our_own_code_raises_stays_as_it_is() -> None:
    with pytest.raises(np.linalg.LinAlgError), as_model_error(("odd_nets:failing",)):
        np.linalg.svd(np.full((2, 2), np.nan))


def test_errors_with_words_of_their_own_stay_as_they_are() -> None:
    with pytest.raises(NoSamples, match=r"^none$"), as_model_error(HERE):
        raise NoSamples("none")
    with pytest.raises(MemoryError), as_model_error(HERE):
        raise MemoryError


def test_an_interrupt_stays_one() -> None:
    with pytest.raises(KeyboardInterrupt), as_model_error(HERE):
        raise KeyboardInterrupt


def test_an_exit_that_no_net_asked_for_stays_one() -> None:
    with pytest.raises(SystemExit, match=r"^3$"), as_model_error(("odd_nets:exiting",)):
        sys.exit(3)


def test_no_net_of_the_users_is_blamed_where_there_is_none() -> None:
    with pytest.raises(KeyError), as_model_error(()):
        raise KeyError("of a family of ours")
