"""Checks the plug-ins: the methods, terms, requests and payloads of other packages must load."""

from __future__ import annotations

from functools import partial

from edge_sdk.plugins import PlugIn, installed_plugins
from edge_sdk.tools.doctor.finding import Check, CheckTarget, Finding, fail, ok


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
