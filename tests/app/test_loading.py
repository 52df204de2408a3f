"""MODULE:FUNCTION as users name their own code, from the folder that they work in."""

import sys
from pathlib import Path

import pytest

from edge_sdk.errors import UsageError
from edge_sdk.loading import load_function


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a module in it; `sys.path` is put back afterwards."""
    (tmp_path / "own_code.py").write_text(
        "constant = 1\ndef make():\n    import own_neighbour\n    return own_neighbour.VALUE\n", encoding="utf-8"
    )
    (tmp_path / "own_neighbour.py").write_text("VALUE = 3\n", encoding="utf-8")
    (tmp_path / "own_fault.py").write_text("\n1 / 0\n", encoding="utf-8")
    (tmp_path / "own_exit.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("own_code", "own_neighbour"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_a_function_finds_its_neighbours_when_it_runs(folder: Path) -> None:
    assert load_function("own_code:make", "", "a:b")() == 3
    load_function("own_code:make", "", "a:b")
    assert sys.path.count(str(folder)) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own_code", ("expected MODULE:FUNCTION", "my_app:make")),
        (":make", ("expected MODULE:FUNCTION",)),
        ("../own_code:make", ("expected MODULE:FUNCTION",)),
        ("no_such_code:make", ("no module no_such_code",)),
        ("own_code:nobody", ("does not import", "nobody")),
        ("own_code:constant", ("is not a function",)),
        ("own_fault:make", ("ZeroDivisionError", "own_fault.py:2")),
        ("own_exit:make", ("SystemExit",)),
    ],
)
def test_what_cannot_be_loaded_is_one_line(name: str, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        load_function(name, "--app ", example="my_app:make")
    message = str(caught.value)
    assert message.startswith(f"--app {name!r}")
    assert "\n" not in message
    for word in words:
        assert word in message
