"""The machine's readings that a policy needs: their interface, and Linux's files, vcgencmd and busctl."""

from __future__ import annotations

import logging
import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

MOST_W = 10_000.0
"""A sensor or meter that reports more watts is considered broken, and ignored."""


class Sensors(Protocol):
    """The state of the machine.  Methods may be called ten times a second, and return None without a sensor."""

    def charging(self) -> bool | None:
        """Return whether the machine has mains or USB power, or no battery at all."""

    def load(self) -> float | None:
        """Return the share of all cores that other processes use, in [0, 1]."""

    def temperature_c(self) -> float | None:
        """Return the temperature of the hottest thermal zone in degrees Celsius."""

    def throttled(self) -> bool | None:
        """Return whether the board throttles itself because of heat or low voltage."""

    def available_bytes(self) -> int | None:
        """Return the memory that new programs could use."""

    def metered(self) -> bool | None:
        """Return whether the link is paid by volume."""

    def minute_of_day(self) -> int:
        """Return the minutes since midnight, in local time."""

    def energy_j(self) -> float | None:
        """Return a counter of the joules that the machine has drawn; only differences are meaningful."""

    def power_w(self) -> float | None:
        """Return the watts that the machine draws now."""


class FakeSensors:
    """Sensors whose values are set by hand, for tests of apps and of this package."""

    def __init__(self) -> None:
        self.is_charging: bool | None = True
        self.load_share: float | None = 0.0
        self.celsius: float | None = 40.0
        self.is_throttled: bool | None = False
        self.memory_bytes: int | None = 2**32
        self.is_metered: bool | None = False
        self.minute = 12 * 60
        self.joules: float | None = None
        self.watts: float | None = None

    def charging(self) -> bool | None:
        """Return what was set."""
        return self.is_charging

    def load(self) -> float | None:
        """Return what was set."""
        return self.load_share

    def temperature_c(self) -> float | None:
        """Return what was set."""
        return self.celsius

    def throttled(self) -> bool | None:
        """Return what was set."""
        return self.is_throttled

    def available_bytes(self) -> int | None:
        """Return what was set."""
        return self.memory_bytes

    def metered(self) -> bool | None:
        """Return what was set."""
        return self.is_metered

    def minute_of_day(self) -> int:
        """Return what was set."""
        return self.minute

    def energy_j(self) -> float | None:
        """Return what was set."""
        return self.joules

    def power_w(self) -> float | None:
        """Return what was set."""
        return self.watts


log = logging.getLogger(__name__)

COLDEST_C, HOTTEST_C = -40.0, 150.0
"""A zone that reports a temperature outside this range is considered broken, and ignored."""
ASK_AGAIN_S = 10.0
"""Seconds for which a program's answer is cached."""
PROGRAM_S = 0.5
"""Seconds that a program may take to answer."""
FAILED_AGAIN_S = 60.0
"""Seconds after which a program that was missing, too slow or failed is run again."""
KEPT_S = 600.0
"""Seconds for which the last answer of a program that now fails is still used."""
_NOT_THE_CHIP = ("pmic-die", "iwlwifi")
"""Prefixes of zone types that do not measure the board's temperature: a Jetson's PMIC always reports 50 or 100 C, and a
wireless card cannot be read while it is off."""
_THROTTLED_NOW = 0b1111
"""The bits of get_throttled for the current state: low voltage, capped clock, throttled, soft temperature limit."""
_NETWORK_MANAGER = "org.freedesktop.NetworkManager"
_BUSCTL = (
    *("busctl", "--system", "get-property", _NETWORK_MANAGER, "/org/freedesktop/NetworkManager"),
    *(_NETWORK_MANAGER, "Metered"),
)
_METERED = {"u 1": True, "u 3": True, "u 2": False, "u 4": False}
"""NetworkManager's answers: yes, guessed yes, no, guessed no.  0 is unknown."""
_CELLULAR = ("wwan", "ppp", "rmnet", "ccmni")
"""Prefixes of interface names that are most likely paid by volume."""
_MICRO = 1e-6
_MILLI = 1e-3


def _answer(command: Sequence[str]) -> str | None:
    """Return a program's output, or None if it is missing or failed."""
    if shutil.which(command[0]) is None:
        return None
    try:
        ran = subprocess.run(  # noqa: S603  # a fixed command
            command, capture_output=True, text=True, timeout=PROGRAM_S, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip()


class LinuxSensors:
    """Reads sysfs and procfs below `root`."""

    def __init__(
        self,
        root: Path = Path("/"),
        warn: Callable[[str], None] = log.warning,
        ask: Callable[[Sequence[str]], str | None] = _answer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """root: a folder that holds `sys` and `proc`, for tests.  warn: receives one line for each broken sensor.

        ask: runs a program and returns its output, or None if it is missing or failed.
        """
        self._sys, self._proc, self._warn, self._ask, self._clock = root / "sys", root / "proc", warn, ask, clock
        self._warned: set[str] = set()
        self._answers: dict[str, str] = {}
        """Each program's last answer."""
        self._ask_again_s: dict[str, float] = {}
        """When each program may be run again."""
        self._kept_until_s: dict[str, float] = {}
        """Until when each program's last answer is used if the program fails."""
        self._load = CpuLoad(self._proc)
        self._zones = sorted(self._sys.glob("class/thermal/thermal_zone*"))
        self._rapl = sorted(self._sys.glob("class/powercap/intel-rapl:?/energy_uj"))
        self._rails = [*_ina_rails(self._sys)]
        self._counted: dict[Path, tuple[int, int]] = {}
        """Each RAPL counter's last value, and the sum of its increments, in microjoules."""

    def charging(self) -> bool | None:
        """Return whether a mains or USB supply is online, or a battery is not discharging; True without a battery."""
        supplies = sorted(self._sys.glob("class/power_supply/*"))
        kinds = {supply: _text(supply / "type") for supply in supplies}
        batteries = [each for each, kind in kinds.items() if kind == "Battery" and _text(each / "scope") != "Device"]
        if not batteries:
            return True
        plugs = [_text(each / "online") for each, kind in kinds.items() if kind and kind.startswith(("Mains", "USB"))]
        if any(plugs):
            return bool({"1", "2"}.intersection(plugs))  # 2: a charger whose voltage the board sets
        states = {_text(each / "status") for each in batteries} - {None, "Unknown"}
        return "Discharging" not in states if states else None

    def load(self) -> float | None:
        """Return the mean over the last half second or more."""
        return self._load.others()

    def temperature_c(self) -> float | None:
        """Return the hottest zone; zones without a plausible temperature are ignored."""
        found = [celsius for zone in self._zones if (celsius := self._zone_c(zone)) is not None]
        return max(found, default=None)

    def throttled(self) -> bool | None:
        """Return the state from a Raspberry Pi's firmware, by its file or by vcgencmd."""
        text = _text(self._sys / "devices/platform/soc/soc:firmware/get_throttled")
        if text is None:
            text = (self._asked(("vcgencmd", "get_throttled")) or "").removeprefix("throttled=").removeprefix("0x")
        try:
            return bool(int(text, 16) & _THROTTLED_NOW)
        except ValueError:
            return None

    def available_bytes(self) -> int | None:
        """Return MemAvailable of /proc/meminfo."""
        for line in (_text(self._proc / "meminfo") or "").splitlines():
            name, _, value = line.partition(":")
            kib = value.removesuffix("kB").strip()
            if name == "MemAvailable" and kib.isdecimal():
                return 1024 * int(kib)
        return None

    def metered(self) -> bool | None:
        """Return NetworkManager's answer, or without it whether the default route is over a cellular interface."""
        answer = _METERED.get(self._asked(_BUSCTL) or "")
        if answer is not None:
            return answer
        rows = [line.split() for line in (_text(self._proc / "net/route") or "").splitlines()[1:]]
        routes = [row[0] for row in rows if len(row) > 1 and row[1] == "00000000"]
        return any(name.startswith(_CELLULAR) for name in routes) if routes else None

    def minute_of_day(self) -> int:
        """Return the minutes since midnight by the machine's clock and time zone."""
        now = time.localtime()
        return 60 * now.tm_hour + now.tm_min

    def energy_j(self) -> float | None:
        """Return the sum of the RAPL counters, which wrap at their range; most are readable only by root."""
        total_uj = 0
        for file in self._rapl:
            value = _number(file)
            if value is None:
                return None
            last, counted = self._counted.get(file, (value, 0))
            range_uj = _number(file.with_name("max_energy_range_uj")) or 0
            counted += value - last if value >= last else value - last + range_uj
            self._counted[file] = value, counted
            total_uj += counted
        return _MICRO * total_uj if self._rapl else None

    def power_w(self) -> float | None:
        """Return the input power of a Jetson in watts: the rail VDD_IN or POM_5V_IN, as in tegrastats."""
        for rail in self._rails:
            watts = rail()
            if watts is not None and 0.0 <= watts <= MOST_W:
                return watts
        return None

    def _zone_c(self, zone: Path) -> float | None:
        if (_text(zone / "type") or "").lower().startswith(_NOT_THE_CHIP):
            return None
        value = _number(zone / "temp")
        if value is None:
            return None
        celsius = _MILLI * value
        if COLDEST_C <= celsius <= HOTTEST_C:
            return celsius
        self._warn_once(f"{zone / 'temp'}: {celsius:g} C is implausible for a board; the zone is ignored")
        return None

    def _asked(self, command: Sequence[str]) -> str | None:
        name, now_s = command[0], self._clock()
        if now_s >= self._ask_again_s.get(name, now_s):
            answer = self._ask(command)
            if answer is not None:
                self._answers[name], self._kept_until_s[name] = answer, now_s + KEPT_S
            self._ask_again_s[name] = now_s + (FAILED_AGAIN_S if answer is None else ASK_AGAIN_S)
        return self._answers.get(name) if now_s < self._kept_until_s.get(name, now_s) else None

    def _warn_once(self, line: str) -> None:
        if line not in self._warned and not self._warned & {line.partition(":")[0]}:
            self._warned.add(line.partition(":")[0])
            self._warn(line)


def _ina_rails(sys: Path) -> Iterator[Callable[[], float | None]]:
    """Return readers of the rails that feed a whole Jetson: JetPack 5 and later as hwmon, JetPack 4 as iio."""
    for label in sorted(sys.glob("bus/i2c/drivers/ina3221/*/hwmon/hwmon*/in*_label")):
        if _text(label) in ("VDD_IN", "POM_5V_IN"):
            number = label.name.removeprefix("in").removesuffix("_label")
            yield _product(label.with_name(f"in{number}_input"), label.with_name(f"curr{number}_input"))
    for label in sorted(sys.glob("bus/i2c/drivers/ina3221x/*/iio:device*/rail_name_*")):
        if _text(label) in ("VDD_IN", "POM_5V_IN"):
            yield _milliwatts(label.with_name(f"in_power{label.name[-1]}_input"))


def _product(millivolts: Path, milliamperes: Path) -> Callable[[], float | None]:
    def watts() -> float | None:
        found = _number(millivolts), _number(milliamperes)
        return None if None in found else _MICRO * math.prod(found)  # type: ignore[arg-type]  # None is excluded

    return watts


def _milliwatts(file: Path) -> Callable[[], float | None]:
    def watts() -> float | None:
        found = _number(file)
        return None if found is None else _MILLI * found

    return watts


def _text(file: Path) -> str | None:
    """Return a file's text, or None if it cannot be read now."""
    try:
        return file.read_bytes().decode("utf-8", "replace").strip()
    except OSError:
        return None


def _number(file: Path) -> int | None:
    try:
        return int(_text(file) or "")
    except ValueError:
        return None


# -- The processor load of other processes, from the kernel's counters ------------------------------------------------
# The load average would include the training itself, and is a mean over a minute.

WINDOW_S = 0.5
"""The minimum averaging time in seconds; the counters advance in steps of a hundredth of a second."""
_IDLE, _IOWAIT, _STEAL = 3, 4, 7
_UTIME, _STIME = 11, 12
"""Columns of /proc/self/stat after the program's name: ticks in user and in kernel mode."""


class CpuLoad:
    """The share of all cores that processes other than this one use."""

    def __init__(self, proc: Path) -> None:
        """proc: the folder /proc, or one that a test laid out."""
        self._proc = proc
        self._last: tuple[int, int, int] | None = self._counters()
        self._share: float | None = None

    def others(self) -> float | None:
        """Return the share in [0, 1] since an earlier call, or None without the kernel's counters.

        For the first half second it returns the load average of the last minute.
        """
        now = self._counters()
        if now is None or self._last is None:
            self._last = now
            return None
        busy, total, own = (new - old for new, old in zip(now, self._last, strict=True))
        if total >= WINDOW_S * _ticks_per_s() * self._cores():
            self._last, self._share = now, min(1.0, max(0.0, (busy - own) / total))
        return self._average() if self._share is None else self._share

    def _counters(self) -> tuple[int, int, int] | None:
        """Return three counts of ticks: all cores busy, all cores, and this process."""
        try:
            first = (self._proc / "stat").read_text(encoding="ascii").splitlines()[0]
            ticks = [int(each) for each in first.split()[1:9]]
            own = (self._proc / "self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            total = sum(ticks) - ticks[_STEAL]
            return total - ticks[_IDLE] - ticks[_IOWAIT], total, int(own[_UTIME]) + int(own[_STIME])
        except (OSError, ValueError, IndexError):
            return None

    def _average(self) -> float | None:
        try:
            return min(1.0, float((self._proc / "loadavg").read_text(encoding="ascii").split()[0]) / self._cores())
        except (OSError, ValueError, IndexError):
            return None

    def _cores(self) -> int:
        return os.cpu_count() or 1


def _ticks_per_s() -> int:
    return os.sysconf("SC_CLK_TCK")
