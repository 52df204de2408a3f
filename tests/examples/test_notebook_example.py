"""examples/notebook: every cell runs, in order, in a kernel of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook" / "study.ipynb"


@pytest.mark.costly
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("ipykernel", "sklearn", "matplotlib"):
        pytest.importorskip(package)
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    book = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in book.cells)
    nbclient.NotebookClient(book, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    printed = "".join(output.get("text", "") for output in outputs)
    found = {name: float(share) for name, share in re.findall(r"^(\w+) +([\d.]+)%, [\d.]+ kB", printed, re.MULTILINE)}
    assert found["FedMD"] > found["alone"] + 10
    assert found["FedAvg"] > found["alone"] + 10
