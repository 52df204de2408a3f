"""The names of methods as their papers write them, for tables and pictures that go into a paper."""

from __future__ import annotations

from coordinator.results.comparison.compare import ALONE
from edge_sdk.errors import UsageError
from edge_sdk.methods.contract.registry import load_method

_OWN = {ALONE: "Local", "local": "Local training"}
"""The names of lines that no paper has introduced."""


def paper_name(line: str) -> str:
    """The name of a line: `FedAvg` of `fedavg`, `FedKF, ACA` of `fedkf, ACA`; unchanged where no method has it.

    A method's title begins with its name, and continues after a colon.
    """
    method, comma, rest = line.partition(",")
    if method in _OWN:
        return _OWN[method] + comma + rest
    try:
        title: str = load_method(method).title
    except UsageError:
        return line
    return title.partition(":")[0] + comma + rest
