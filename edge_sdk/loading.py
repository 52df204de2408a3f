"""MODULE:FUNCTION, by which users name their own code: `--app`, `federation.nets`, a fleet's models and attacks."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge_sdk.errors import UsageError
from edge_sdk.protocol.leaves import one_line


def load_function(name: str, where: str, example: str) -> Callable[..., Any]:
    """What MODULE:FUNCTION names; errors begin with `where` and show `example`.

    From the first call on, the working directory stands first on `sys.path`, as the script's folder does in
    `python script.py`.  It is not taken away again: functions of that module may import their neighbours when they run,
    and processes that are given this process's `sys.path` must find the same modules.

    Raises UsageError, in one line, for a name of another form, a module that does not import, and what is no function.
    """
    module_name, _, function_name = name.partition(":")
    if not (function_name.isidentifier() and all(part.isidentifier() for part in module_name.split("."))):
        raise UsageError(f"{where}{name!r}: expected MODULE:FUNCTION, such as {example}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module_name), function_name)
    except ModuleNotFoundError as error:
        why = f"no module {error.name} (looked in {here} and the environment)"
        raise UsageError(f"{where}{name!r} does not import: {why}") from error
    except (Exception, SystemExit) as error:  # a module of the user's may raise anything
        raise UsageError(f"{where}{name!r} does not import: {error_text(error)}") from error
    if not callable(found):
        raise UsageError(f"{where}{name!r} is not a function; expected MODULE:FUNCTION, such as {example}")
    function: Callable[..., Any] = found
    return function


def error_text(error: BaseException) -> str:
    """An error of the user's own code, on one line, with the file and line where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {one_line(' '.join(str(error).split()))}{place}"
