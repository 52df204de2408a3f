"""Checks the versions of installed packages against the metadata of edge-sdk."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgpack

from edge_sdk.tools.doctor.finding import Finding, fail, ok, warn

EXTRAS = ("torch", "onnx", "coordinator", "sim")
"""The extras for users; the extra `dev` is for work on edge-sdk itself."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package that edge-sdk needs."""

    name: str
    extra: str
    """The extra that needs it, or empty for the base install."""
    bounds: tuple[tuple[str, tuple[int, ...]], ...]
    """Bounds on its version, each `>=` or `<` with a version."""


def parse_requirement(text: str) -> Requirement | None:
    """Parse a line of metadata, such as `torch>=2.1; extra == "torch"`; returns None for lines that are not checked."""
    wanted, _, marker = text.partition(";")
    name = re.match(r"[A-Za-z0-9._-]+", wanted.strip())
    extra = re.search(r"""extra\s*==\s*['"]([a-z]+)['"]""", marker)
    if name is None or name[0] == "edge-sdk" or "python_version" in marker:
        return None
    bounds = re.findall(r"(>=|<)\s*([0-9.]+)", wanted)
    return Requirement(name[0], extra[1] if extra else "", tuple((sign, parse_version(text)) for sign, text in bounds))


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version: (2, 13, 0) for "2.13.0+cpu"."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def fits(version: tuple[int, ...], requirement: Requirement) -> bool:
    """Whether a version is within all bounds."""
    return all(version >= bound if sign == ">=" else version < bound for sign, bound in requirement.bounds)


def requirements(lines: Iterable[str] | None = None) -> tuple[Requirement, ...]:
    """Return the requirements of the base install and of the users' extras, each package once.

    lines: metadata, by default that of the installed edge-sdk.
    """
    lines = importlib.metadata.requires("edge-sdk") or () if lines is None else lines
    parsed = [each for each in map(parse_requirement, lines) if each is not None and each.extra in ("", *EXTRAS)]
    return tuple({each.name: each for each in reversed(parsed)}.values())[::-1]


def installed(name: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def judge(requirement: Requirement, version: str | None) -> Finding:
    """Judge the version of a package, None if it is not installed, which is a fault only in the base install."""
    wanted = ", ".join(f"{sign} {'.'.join(map(str, bound))}" for sign, bound in requirement.bounds)
    extra = f"[{requirement.extra}]" if requirement.extra else ""
    install = f"pip install --upgrade 'edge-sdk{extra}'"
    if version is None and requirement.extra:
        return ok(f"not installed; edge-sdk{extra} would install it")
    if version is None:
        return fail("not installed, but required", install)
    if fits(parse_version(version), requirement):
        return ok(version)
    say = warn if requirement.extra else fail
    return say(f"{version}, but edge-sdk{extra} wants {wanted}", install)


def judge_msgpack(packer_module: str) -> Finding:
    """Judge whether msgpack has its C extension; packer_module: the module of its Packer."""
    if "fallback" not in packer_module:
        return ok("with its C extension")
    return warn(
        "pure Python: works, but packs and unpacks slower",
        "install a wheel of msgpack that was built for this machine, or install a C compiler and run `pip install "
        "--no-binary msgpack --force-reinstall msgpack`; if neither is possible, it only costs some time",
    )


def msgpack_packer() -> str:
    """The module that packs."""
    return str(msgpack.Packer.__module__)
