"""Checks that ONNX Runtime and torch, if they are installed, load on this processor.

A build for another or a newer processor ends the whole process with a signal, so each is loaded in a separate process.
"""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from functools import partial

from edge_sdk.plugins import PlugIn, installed_plugins
from edge_sdk.tools.doctor.finding import Check, CheckTarget, Finding, fail, ok

LOADED_WITHIN_S = 120.0
RUNTIMES = {"onnxruntime": "onnx", "torch": "torch"}
"""Packages, and the extras that bring them."""


def judge_runtimes(faults: dict[str, str]) -> Finding:
    """Judge the result of loading each installed runtime: empty if it loads, or else the reason."""
    broken = {name: why for name, why in faults.items() if why}
    if not broken:
        return ok(", ".join(["numpy", *faults]))
    name = next(iter(broken))
    return fail(
        "; ".join(f"{each} does not load: {text}" for each, text in broken.items()),
        f"pip install --force-reinstall 'edge-sdk[{RUNTIMES[name]}]', or a version that was tried on such boards: "
        f"edge-sdk boards; where no app needs it: pip uninstall {name}",
    )


def load_faults() -> dict[str, str]:
    """Load each installed runtime in a process of its own; return why it fails, or an empty text."""
    return {name: _fault(name) for name in RUNTIMES if importlib.util.find_spec(name) is not None}


def _fault(name: str) -> str:
    command = [sys.executable, "-c", f"import {name}"]
    try:
        ended = subprocess.run(  # noqa: S603  # this very interpreter
            command, capture_output=True, text=True, check=False, timeout=LOADED_WITHIN_S
        )
    except subprocess.TimeoutExpired:
        return f"not within {LOADED_WITHIN_S:g} s"
    except OSError as error:
        return f"{sys.executable} does not start: {error.strerror}"
    if ended.returncode < 0:
        return f"ended by {signal.Signals(-ended.returncode).name}"
    return "" if ended.returncode == 0 else ended.stderr.strip().rpartition("\n")[2][:200]


# -- Checks the plug-ins: the methods, terms, requests and payloads of other packages must load -----------------------


def plugin_checks() -> tuple[Check, ...]:
    """Return a check for each plug-in, or one that says that there is none."""
    found = installed_plugins()
    if not found:
        return (Check("plug-ins", lambda _: ok("none installed")),)
    return tuple(Check(f"{_short(each.group)} {each.name}", partial(_judged, each)) for each in found)


def _judged(plugin: PlugIn, _target: CheckTarget) -> Finding:
    return judge_plugin(plugin)


def judge_plugin(plugin: PlugIn) -> Finding:
    """Judge a plug-in: a fault if it does not load, because what needs it cannot run."""
    what = f"plug-in {plugin.target} of the package {plugin.package}"
    if not plugin.fault:
        return ok(what)
    cause, _, remedy = plugin.fault.rpartition("; ")
    return fail(f"{what} does not work: {cause}", remedy) if cause else fail(what, plugin.fault)


def _short(group: str) -> str:
    return group.removeprefix("edge_sdk.")
