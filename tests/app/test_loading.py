"""MODULE:FUNCTION as users name their own code, from the folder that they work in."""

import sys
from pathlib import Path

import pytest

from edge_sdk.agent.app import load_app
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
    (tmp_path / "own_typo.py").write_text("a = 1\nb = = 2\n", encoding="utf-8")
    (tmp_path / "own_import.py").write_text("\n\nimport no_such_code\n", encoding="utf-8")
    (tmp_path / "own_device.py").write_text(
        "import json\n"
        "import numpy as np\n"
        "import edge_sdk\n"
        "def ours():\n    return edge_sdk.Samples(np.zeros(3), np.zeros(4, int))\n"
        "def library():\n    return json.loads('{')\n"
        "def package():\n    return np.zeros((2, 3)) @ np.zeros((2, 3))\n"
        "def consents():\n    return edge_sdk.App(model=None, data=None, share_weights='no')\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("own_code", "own_neighbour", "own_device"):
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
        ("own_exit:make", ("SystemExit", "own_exit.py:1")),
        ("own_typo:make", ("SyntaxError", "own_typo.py:2")),
        ("own_import:make", ("no module no_such_code", "own_import.py:3")),
        ("own_code.py:make", ("own_code:make",)),
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


@pytest.mark.parametrize(("function", "line"), [("ours", 5), ("library", 7), ("package", 9)])
def test_an_error_in_a_factory_names_the_line_of_the_users_own_file(function: str, line: int) -> None:
    with pytest.raises(UsageError) as caught:
        load_app(f"own_device:{function}")
    message = str(caught.value)
    assert f" at own_device.py:{line}" in message
    assert "\n" not in message
    assert message.count(".py:") == 1


def test_an_app_whose_consent_is_a_text_is_refused_at_its_line() -> None:
    with pytest.raises(UsageError, match=r" at own_device.py:11: share_weights: found str: give True or False$"):
        load_app("own_device:consents")
