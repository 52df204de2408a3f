"""What several folders of tests share; being here puts this folder on the path, so that they can import `fleets`."""

from __future__ import annotations

from pathlib import Path

import fleets
import pytest


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set of four classes."""
    return fleets.write_pictures(tmp_path_factory.mktemp("pictures") / "pictures.npz")
