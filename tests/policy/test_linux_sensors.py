"""Sensors from trees of files that are laid out as Linux does on boards and laptops."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from edge_sdk.policy.sensors import FAILED_AGAIN_S, KEPT_S, LinuxSensors

CORES = 4


def laid_out(root: Path, files: Mapping[str, object]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def sensors(root: Path, files: Mapping[str, object], told: list[str] | None = None) -> LinuxSensors:
    warned: list[str] = [] if told is None else told
    return LinuxSensors(laid_out(root, files), warned.append, ask=lambda _command: None)


def zone(number: int, kind: str, millidegrees: object) -> dict[str, object]:
    folder = f"sys/class/thermal/thermal_zone{number}"
    return {f"{folder}/type": kind, f"{folder}/temp": millidegrees}


def supply(name: str, **entries: object) -> dict[str, object]:
    return {f"sys/class/power_supply/{name}/{entry}": text for entry, text in entries.items()}


# -- temperature --


def test_the_hottest_zone_counts(tmp_path) -> None:
    files = {**zone(0, "cpu-thermal", 48_312), **zone(1, "gpu-thermal", 52_500)}
    assert sensors(tmp_path, files).temperature_c() == 52.5


def test_an_absurd_zone_is_ignored_with_one_warning(tmp_path) -> None:
    told: list[str] = []
    found = sensors(tmp_path, {**zone(0, "cpu-thermal", 48_000), **zone(1, "soc", 200_000)}, told)
    assert [found.temperature_c(), found.temperature_c()] == [48.0, 48.0]
    assert len(told) == 1
    assert "thermal_zone1" in told[0]
    assert "200" in told[0]


@pytest.mark.parametrize("rubbish", ["", "hot", "-200000", "1e5"])
def test_zones_without_a_temperature_give_none(tmp_path, rubbish) -> None:
    assert sensors(tmp_path, zone(0, "cpu-thermal", rubbish)).temperature_c() is None


@pytest.mark.parametrize("kind", ["PMIC-Die", "iwlwifi_1"])
def test_zones_that_do_not_measure_the_board_are_left_out(tmp_path, kind) -> None:
    assert sensors(tmp_path, {**zone(0, kind, 100_000), **zone(1, "CPU-therm", 41_000)}).temperature_c() == 41.0


# -- power supply --


@pytest.mark.parametrize(
    ("files", "charging"),
    [
        ({}, True),
        ({**supply("BAT0", type="Battery", status="Discharging"), **supply("AC", type="Mains", online=0)}, False),
        ({**supply("BAT0", type="Battery", status="Not charging"), **supply("AC", type="Mains", online=1)}, True),
        ({**supply("BAT0", type="Battery", status="Charging")}, True),
        ({**supply("BAT0", type="Battery", status="Discharging")}, False),
        ({**supply("BAT0", type="Battery", status="Unknown")}, None),
        ({**supply("bat", type="Battery", status="Full"), **supply("usb", type="USB_C", online=1)}, True),
        ({**supply("bat", type="Battery", status="Charging"), **supply("usb", type="USB", online=2)}, True),
        ({**supply("mouse", type="Battery", status="Discharging", scope="Device")}, True),
    ],
)
def test_charging_is_mains_or_usb_power(tmp_path, files, charging) -> None:
    assert sensors(tmp_path, files).charging() is charging


# -- throttling, memory, link --


@pytest.mark.parametrize(("bits", "throttled"), [("0", False), ("50000", False), ("50005", True), ("8", True)])
def test_throttling_of_a_raspberry_pi_is_that_of_now(tmp_path, bits, throttled) -> None:
    files = {"sys/devices/platform/soc/soc:firmware/get_throttled": bits}
    assert sensors(tmp_path, files).throttled() is throttled


def test_vcgencmd_is_asked_where_the_file_is_missing(tmp_path) -> None:
    asked: list[str] = []
    now_s = 0.0

    def ask(command) -> str:
        asked.append(command[0])
        return "throttled=0x4"

    found = LinuxSensors(tmp_path, ask=ask, clock=lambda: now_s)
    assert [found.throttled() for _ in range(5)] == [True] * 5
    assert asked == ["vcgencmd"]
    now_s = 11.0
    found.throttled()
    assert asked == ["vcgencmd"] * 2


def test_a_program_that_does_not_answer_is_asked_again_after_a_minute(tmp_path) -> None:
    asked: list[str] = []
    now_s = 0.0
    found = LinuxSensors(tmp_path, ask=lambda command: asked.append(command[0]), clock=lambda: now_s)
    for at_s in (0.0, 1.0, FAILED_AGAIN_S - 1, FAILED_AGAIN_S, FAILED_AGAIN_S + 1):
        now_s = at_s
        assert found.throttled() is None
    assert asked == ["vcgencmd"] * 2


def test_an_answer_holds_for_a_while_where_the_next_ones_fail(tmp_path) -> None:
    answers = {0.0: "u 1", 15.0: None, 80.0: "u 1", 100.0: None, KEPT_S: None, KEPT_S + 80: None}
    now_s, metered = 0.0, []
    found = LinuxSensors(tmp_path, ask=lambda _command: answers[now_s], clock=lambda: now_s)
    for at_s in answers:
        now_s = at_s
        metered.append(found.metered())
    assert metered == [True, True, True, True, True, None]


def test_available_memory(tmp_path) -> None:
    files = {"proc/meminfo": "MemTotal:  3884412 kB\nMemFree: 91000 kB\nMemAvailable:   2048 kB"}
    assert sensors(tmp_path, files).available_bytes() == 2**21
    assert sensors(tmp_path / "none", {}).available_bytes() is None
    assert sensors(tmp_path / "rubbish", {"proc/meminfo": "MemAvailable: much"}).available_bytes() is None


@pytest.mark.parametrize(
    ("answer", "metered"), [("u 1", True), ("u 2", False), ("u 3", True), ("u 4", False), ("u 0", None), (None, None)]
)
def test_network_manager_says_whether_the_link_is_metered(tmp_path, answer, metered) -> None:
    assert LinuxSensors(tmp_path, ask=lambda _command: answer).metered() is metered


@pytest.mark.parametrize(("interface", "metered"), [("wwan0", True), ("eth0", False), ("ppp0", True)])
def test_without_network_manager_a_cellular_route_is_metered(tmp_path, interface, metered) -> None:
    rows = f"Iface Destination Gateway\n{interface} 00000000 010200C0\nwwan1 000200C0 00000000"
    assert sensors(tmp_path, {"proc/net/route": rows}).metered() is metered


# -- energy --


def test_rapl_counters_are_added_and_wrap(tmp_path) -> None:
    rapl = "sys/class/powercap/intel-rapl:{}/energy_uj"
    ranges = "sys/class/powercap/intel-rapl:{}/max_energy_range_uj"
    files = {rapl.format(0): 900_000, ranges.format(0): 1_000_000, rapl.format(1): 0, ranges.format(1): 1_000_000}
    found = sensors(tmp_path, files)
    before = found.energy_j()
    laid_out(tmp_path, {rapl.format(0): 100_000, rapl.format(1): 300_000})
    after = found.energy_j()
    assert before is not None
    assert after is not None
    assert after - before == pytest.approx(0.2 + 0.3)


@pytest.mark.parametrize(
    "files",
    [
        {
            "sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon3/in1_label": "VDD_IN",
            "sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon3/in1_input": 5_000,
            "sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon3/curr1_input": 1_500,
            "sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon3/in2_label": "VDD_CPU_GPU_CV",
            "sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon3/in2_input": 5_000,
            "sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon3/curr2_input": 100,
        },
        {
            "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0/rail_name_0": "POM_5V_IN",
            "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0/in_power0_input": 7_500,
        },
    ],
)
def test_the_input_rail_of_a_jetson_gives_its_power(tmp_path, files) -> None:
    assert sensors(tmp_path, files).power_w() == pytest.approx(7.5)


def test_absurd_power_is_ignored(tmp_path) -> None:
    folder = "sys/bus/i2c/drivers/ina3221x/6-0040/iio:device0"
    files = {f"{folder}/rail_name_0": "POM_5V_IN", f"{folder}/in_power0_input": 10**9}
    assert sensors(tmp_path, files).power_w() is None


# -- load --


def ticks(busy: int, idle: int, own: int) -> dict[str, object]:
    columns = " ".join(["0"] * 11)
    return {
        "proc/stat": f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3 4",
        "proc/self/stat": f"77 (a (strange) name) S {columns.removeprefix('0 ')} {own} 0 0",
        "proc/loadavg": "2.00 1.00 0.50 3/120 99",
    }


@pytest.fixture
def _four_cores(monkeypatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: CORES)


@pytest.mark.usefixtures("_four_cores")
def test_the_load_is_that_of_other_processes(tmp_path) -> None:
    found = sensors(tmp_path, ticks(busy=1000, idle=1000, own=500))
    laid_out(tmp_path, ticks(busy=1300, idle=1100, own=600))  # a second of 4 cores
    assert found.load() == pytest.approx((300 - 100) / 400)


@pytest.mark.usefixtures("_four_cores")
def test_before_half_a_second_has_passed_the_load_average_stands_in(tmp_path) -> None:
    found = sensors(tmp_path, ticks(busy=1000, idle=1000, own=500))
    laid_out(tmp_path, ticks(busy=1010, idle=1000, own=500))
    assert found.load() == pytest.approx(2.0 / CORES)


def test_an_empty_machine_tells_nothing_and_nothing_fails(tmp_path) -> None:
    found = sensors(tmp_path, {})
    assert [found.load(), found.temperature_c(), found.throttled(), found.metered()] == [None] * 4
    assert [found.energy_j(), found.power_w(), found.available_bytes()] == [None] * 3
    assert found.charging() is True
    assert 0 <= found.minute_of_day() < 24 * 60
