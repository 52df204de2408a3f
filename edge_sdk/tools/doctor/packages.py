"""Which packages are installed, and whether their versions are those that edge-sdk asks for in its own metadata."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgpack

from edge_sdk.tools.doctor.finding import Finding, fail, ok, warn

EXTRAS = ("torch", "onnx", "coordinator", "sim")
"""Extras for users; `dev` is for those who work on edge-sdk itself."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package, the extra that it belongs to (empty: the base install), and what its version must be."""

    name: str
    extra: str
    bounds: tuple[tuple[str, tuple[int, ...]], ...]
    """(`>=` or `<`, version)."""


def parse_requirement(text: str) -> Requirement | None:
    """A line of metadata, such as `torch>=2.1; extra == "torch"`; None for one that is not ours to check."""
    wanted, _, marker = text.partition(";")
    name = re.match(r"[A-Za-z0-9._-]+", wanted.strip())
    extra = re.search(r"""extra\s*==\s*['"]([a-z]+)['"]""", marker)
    if name is None or name[0] == "edge-sdk" or "python_version" in marker:
        return None
    bounds = re.findall(r"(>=|<)\s*([0-9.]+)", wanted)
    return Requirement(name[0], extra[1] if extra else "", tuple((sign, parse_version(text)) for sign, text in bounds))


def parse_version(text: str) -> tuple[int, ...]:
    """The release numbers at the beginning: 2.13.0+cpu -> (2, 13, 0)."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def fits(version: tuple[int, ...], requirement: Requirement) -> bool:
    """Whether a version is within all bounds."""
    return all(version >= bound if sign == ">=" else version < bound for sign, bound in requirement.bounds)


def requirements(lines: Iterable[str] | None = None) -> tuple[Requirement, ...]:
    """What the base install and the users' extras ask for, each package once."""
    lines = importlib.metadata.requires("edge-sdk") or () if lines is None else lines
    parsed = [each for each in map(parse_requirement, lines) if each is not None and each.extra in ("", *EXTRAS)]
    return tuple({each.name: each for each in reversed(parsed)}.values())[::-1]


def installed(name: str) -> str | None:
    """The version of an installed package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def judge(requirement: Requirement, version: str | None) -> Finding:
    """A package of the base install must be there and fit; one of an extra may be missing."""
    wanted = ", ".join(f"{sign} {'.'.join(map(str, bound))}" for sign, bound in requirement.bounds)
    extra = f"[{requirement.extra}]" if requirement.extra else ""
    install = f"pip install --upgrade 'edge-sdk{extra}'"
    if version is None and requirement.extra:
        return ok(f"not installed; edge-sdk{extra} would bring it")
    if version is None:
        return fail("not installed, and nothing runs without it", install)
    if fits(parse_version(version), requirement):
        return ok(version)
    say = warn if requirement.extra else fail
    return say(f"{version}, but edge-sdk{extra} wants {wanted}", install)


def judge_msgpack(packer_module: str) -> Finding:
    """Whether msgpack has its C extension: the protocol works without, only slower."""
    if "fallback" not in packer_module:
        return ok("with its C extension")
    return warn(
        "pure Python: works, and packs and unpacks slower",
        "install a wheel of msgpack that was built for this machine, or a C compiler and `pip install --no-binary "
        "msgpack --force-reinstall msgpack`; without either, leave it: frames are small",
    )


def msgpack_packer() -> str:
    """The module that packs."""
    return str(msgpack.Packer.__module__)
