"""Processes that tests start, and of which no picture is looked at: they find no matplotlib, and say so."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

NO_PICTURES = Path(__file__).parent / "no_pictures"


def undrawn() -> Mapping[str, str]:
    """The environment of a process that draws nothing."""
    paths = (str(NO_PICTURES), os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
