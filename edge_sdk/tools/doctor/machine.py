"""Checks the machine: its Python and packages, its limits, its board, its broker software and its model runtimes."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgpack

from edge_sdk.boards import profiles
from edge_sdk.plugins import PlugIn, installed_plugins
from edge_sdk.policy.sensors import Sensors
from edge_sdk.tools.doctor.finding import Check, CheckTarget, Finding, fail, ok, warn

if sys.platform != "win32":
    import resource

OLDEST_PYTHON = (3, 10)
FEWEST_FILES, GOOD_FILES = 64, 1024
"""Open files that a process may have: a device uses about a dozen, a coordinator some dozens."""
GOOD_MOSQUITTO = ((2, 0, 23), (2, 1, 2))
"""The first good releases of the series 2.0 and 2.1; older ones lose queued messages, or have known security faults."""


def judge_python(version: tuple[int, ...]) -> Finding:
    """Judge the version of Python."""
    shown = ".".join(map(str, version[:3]))
    if version[:2] >= OLDEST_PYTHON:
        return ok(shown)
    wanted = ".".join(map(str, OLDEST_PYTHON))
    return fail(
        f"{shown}, but {wanted} or newer is needed",
        f"make a virtual environment with Python {wanted} or newer; the lines for each system: edge-sdk boards",
    )


def judge_files(soft: int | None) -> Finding:
    """Judge how many files a process may open; soft: the soft limit, or None if unlimited or unknown."""
    if soft is None or soft >= GOOD_FILES:
        return ok("no limit known" if soft is None else f"{soft} open files")
    found, remedy = (
        f"{soft} open files at most",
        f"`ulimit -n {GOOD_FILES}` in the shell, or LimitNOFILE= in the service",
    )
    if soft < FEWEST_FILES:
        return fail(f"{found}: too few for a link and a store", remedy)
    return warn(f"{found}: enough for a device, not for a fleet on one machine", remedy)


def files_limit() -> int | None:
    """The soft limit of open files, or None if unlimited or unknown."""
    if sys.platform == "win32":
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def judge_mosquitto(version: str | None, *, amqtt: bool) -> Finding:
    """Judge the broker that `edge-sdk broker` and `--broker embedded` use.

    version: of mosquitto, None if it is not on PATH, empty if unknown.  amqtt: whether amqtt is installed.
    """
    if version is None:
        if amqtt:
            return ok("not on PATH; the embedded broker is amqtt, good for trials and simulations")
        return ok("not on PATH, nor is amqtt installed: fine on a device; to run a broker here, install mosquitto")
    numbers = parse_version(version)
    line_20, line_21 = GOOD_MOSQUITTO
    if numbers >= line_21 or line_20 <= numbers < (2, 1):
        return ok(version)
    wanted = f"{'.'.join(map(str, line_20))} or later, or {'.'.join(map(str, line_21))} or later"
    return warn(
        f"{version or 'unknown version'}: older ones lose messages or have known security faults",
        f"install mosquitto {wanted}, from mosquitto.org where the distribution is behind",
    )


def mosquitto_version() -> str | None:
    """Return the version of mosquitto on PATH, empty if unknown, or None if it is not on PATH."""
    program = shutil.which("mosquitto")
    if program is None:
        return None
    try:
        shown = subprocess.run([program, "-h"], capture_output=True, text=True, check=False, timeout=10)  # noqa: S603  # found on PATH
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r"version ([\w.]+)", shown.stdout)
    return found[1] if found else ""


def has_amqtt() -> bool:
    """Whether amqtt, the broker of the extra `coordinator`, is installed."""
    return importlib.util.find_spec("amqtt") is not None


def judge_board(name: str) -> Finding:
    """Judge whether this board has a profile, and which runtimes install on it."""
    if name not in profiles.boards():
        return warn(
            f"{name}: it has no profile, so the figures of {profiles.GENERIC} are used",
            "edge-sdk boards --measure --name this-board --write .",
        )
    profile = profiles.load_board(name)
    assumed = f"{profile.cores} cores, {profile.ram_bytes / 2**30:g} GiB, {', '.join(profile.runtimes)}"
    return ok(f"{profile.name}; its profile is {profile.title}: {assumed}")


def python_version() -> tuple[int, ...]:
    """Return the version of this Python as (major, minor, micro)."""
    return tuple(sys.version_info[:3])


# -- Checks the clock: whether it is synchronised, and whether the year is possible -----------------------------------

SANE_YEAR = 2025
SYNCHRONIZED = Path("/run/systemd/timesync/synchronized")
"""A file that systemd's time service creates once the clock is right."""
_NEEDS = "only certificates and Policy(hours) depend on it"


def judge_clock(year: int, synchronized: bool | None) -> Finding:
    """Judge the clock.  synchronized: None if unknown."""
    if year < SANE_YEAR:
        return warn(f"the year is {year}; {_NEEDS}", "sudo timedatectl set-ntp true, or wait for the network at boot")
    if synchronized is False:
        return warn(
            f"not synchronised; {_NEEDS}",
            "sudo timedatectl set-ntp true; where there is no time service: sudo apt install systemd-timesyncd",
        )
    return ok(f"synchronised, {year}" if synchronized else f"{year}; whether it is synchronised is not known; {_NEEDS}")


def is_synchronized(file: Path = SYNCHRONIZED) -> bool | None:
    """Return whether the clock is synchronised over the network, or None if unknown."""
    if file.exists():
        return True
    program = shutil.which("timedatectl")
    if program is None:
        return None
    try:
        answer = subprocess.run(  # noqa: S603  # found on PATH
            [program, "show", "--property=NTPSynchronized", "--value"],
            capture_output=True,
            text=True,
            check=False,
            timeout=5,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"yes": True, "no": False}.get(answer.stdout.strip())


# -- Checks the temperature of the board, and whether it slows itself down --------------------------------------------

HOT_C = 75.0
"""A little below the 80 degrees at which a Raspberry Pi begins to slow down."""
_COOLER = (
    "cool it with a heat sink or a fan, or let it train only while it is cooler: max_temperature_c = 70 in a file for "
    "`edge-sdk device --policy`"
)


def judge_heat(temperature_c: float | None, throttled: bool | None) -> Finding:
    """Judge the temperature of the hottest zone in degrees Celsius, or None without a sensor."""
    shown = "no sensor" if temperature_c is None else f"{temperature_c:.0f} degrees"
    if throttled:
        return warn(
            f"{shown}; the board throttles itself now, because of heat or low voltage",
            f"vcgencmd get_throttled; bit 0 is low voltage: use the board's own power supply; else {_COOLER}",
        )
    if temperature_c is not None and temperature_c >= HOT_C:
        return warn(f"{shown}: hot", _COOLER)
    return ok(shown)


def check_heat(sensors: Sensors) -> Finding:
    """Read the sensors of this machine and judge them."""
    return judge_heat(sensors.temperature_c(), sensors.throttled())


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
    """Return a check for each plug-in, or one that reports none."""
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
