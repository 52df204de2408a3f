"""MODULE:FUNCTION, by which users name their own code: `--app`, `federation.nets`, a fleet's models and attacks."""

from __future__ import annotations

import functools
import importlib
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge_sdk.errors import UsageError
from edge_sdk.protocol.frames.leaves import one_line


def load_function(name: str, where: str, example: str) -> Callable[..., Any]:
    """Return the object that MODULE:FUNCTION names; errors begin with `where` and show `example`.

    From the first call on, the working directory stands first on `sys.path`, as the script's folder does in
    `python script.py`.  It is not taken away again: functions of that module may import their neighbours when they run,
    and processes that are given this process's `sys.path` must find the same modules.

    Raises UsageError, in one line, for a name of another form, a module that does not import, and for
    anything but a function.
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
        if module_name.endswith(".py") and (Path(here) / module_name).is_file():
            meant = f"{module_name.removesuffix('.py')}:{function_name}"
            raise UsageError(f"{where}{name!r}: expected MODULE:FUNCTION; write {meant}") from None
        why = f"no module {error.name}{user_place(error)} (looked in {here} and the environment)"
        raise UsageError(f"{where}{name!r} does not import: {why}") from error
    except (Exception, SystemExit) as error:  # a module of the user's may raise anything
        raise UsageError(f"{where}{name!r} does not import: {error_text(error)}") from error
    if not callable(found):
        raise UsageError(f"{where}{name!r} is not a function; expected MODULE:FUNCTION, such as {example}")
    function: Callable[..., Any] = found
    return function


def error_text(error: BaseException) -> str:
    """An error of the user's own code, on one line, with the last line of that code that led to it."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {one_line(' '.join(text.split()))}{user_place(error)}"


def user_place(error: BaseException) -> str:
    """Return ` at FILE:LINE` for the last line of the user's own code that led to an error, or empty without one.

    The user's own code is what lies neither in this project, nor in an installed package, nor in Python itself.
    """
    frames = traceback.extract_tb(error.__traceback__)
    places = [(frame.filename, frame.lineno) for frame in frames]
    if isinstance(error, SyntaxError) and error.filename is not None:
        places.append((error.filename, error.lineno))
    own = [f" at {Path(file).name}:{line}" for file, line in places if not is_foreign(file)]
    return own[-1] if own else ""


def is_foreign(file: str) -> bool:
    """Whether a file is of this project, of an installed package or of Python itself, and not the user's own."""
    path = Path(file).resolve()
    return file.startswith("<") or any(folder in path.parents for folder in _foreign_folders())


@functools.cache
def _foreign_folders() -> frozenset[Path]:
    """Return the folders of this project's packages, of installed packages and of Python's library."""
    project = Path(__file__).resolve().parents[1]
    ours = [project / name for name in ("edge_sdk", "coordinator", "edge_sim", "firmware_profiles")]
    library = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    folders = [*ours, *library, *site.getsitepackages(), site.getusersitepackages()]
    return frozenset(Path(str(folder)).resolve() for folder in folders)
