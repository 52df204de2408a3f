"""How long a device trains is resolved in one place: a method that reads the settings itself could miss one of them."""

import ast

from imports import ROOT

METHODS = ROOT / "edge_sdk" / "methods"
SETTINGS = {"local_steps", "local_epochs"}


def reads(source: str) -> set[str]:
    """The training settings that code reads from something else than a job."""
    return {
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and node.attr in SETTINGS
        and ast.unparse(node.value) not in ("job", "self.job", "device.job")
    }


def test_the_reader_sees_what_it_should():
    assert reads("def f(job): return job.spec.train.local_steps + job.local_steps") == {"local_steps"}
    assert reads("train = self.spec.train\nif train.local_epochs: pass") == {"local_epochs"}


def test_methods_see_only_the_resolved_number_of_steps():
    assert {path.name: reads(path.read_text()) for path in METHODS.rglob("*.py") if reads(path.read_text())} == {}
