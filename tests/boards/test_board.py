"""Boards and links: the shipped profiles are sound, and a wrong one is named by file, key and what is allowed."""

import dataclasses
import json

import pytest

from edge_sdk.boards import profiles as board_module
from edge_sdk.boards.profiles import (
    Effort,
    board_here,
    boards,
    detect,
    links,
    load_board,
    load_link,
    parse_board,
    parse_link,
)
from edge_sdk.errors import UsageError
from edge_sdk.tools.boards_command import render_boards

BOARD = """
name = "tiny"
title = "A tiny board"
arch = "aarch64"
ram_bytes = 1000
cpu_hz = 10
cores = 1
train_flops_per_s = 100
infer_flops_per_s = 400.0
memory_bytes_per_s = 10
call_s = 0.25
disk_bytes_per_s = 5
throttles_after_s = 60
throttled_share = 0.5
idle_w = 0.5
busy_w = 2
runtimes = ["numpy"]
link = "wifi"
source_url = "https://example.org/tiny"
verified = { memory = "datasheet", cpu = "datasheet", speed = "estimate", storage = "estimate", power = "measured", thermal = "estimate" }
"""
LINK = """
name = "string"
title = "Two cups and a string"
latency_s = 0.5
up_bytes_per_s = 100
down_bytes_per_s = 400
packet_bytes = 80
packet_overhead_bytes = 20
message_overhead_bytes = 40
loss = 0.2
resend_s = 2
radio_w = 1
source_url = "https://example.org/string"
verified = { rate = "estimate", latency = "estimate", packets = "estimate", loss = "estimate", power = "estimate" }
"""


def test_the_shipped_profiles_are_sound():
    jetsons = ("jetson-nano", "jetson-orin-nano", "jetson-xavier-nx")
    assert boards() == ("generic", *jetsons, "mini-pc", "rpi-zero-2w", "rpi3", "rpi4", "rpi5", "x86")
    assert links() == ("ethernet", "lte-cat1", "wifi")
    for name in boards():
        board = load_board(name)
        assert board.name == name
        assert board.link in links()
        assert board.idle_w < board.busy_w
        assert board.train_flops_per_s <= board.infer_flops_per_s
        # a NEON or AVX core does at most 32 f32 operations per cycle: no profile may promise more
        assert board.infer_flops_per_s < 32 * board.cores * board.cpu_hz
    for name in links():
        assert load_link(name).name == name


def test_boards_differ_as_people_expect():
    zero, four, orin = (load_board(name) for name in ("rpi-zero-2w", "rpi4", "jetson-orin-nano"))
    assert zero.ram_bytes < four.ram_bytes < orin.ram_bytes
    work = Effort(1e9, 1e8, 100)
    assert zero.compute_s(work, work) > four.compute_s(work, work) > orin.compute_s(work, work)


def test_seconds_by_hand():
    board, link = parse_board(BOARD, "tiny.toml"), parse_link(LINK, "string.toml")
    assert board.compute_s(Effort(flops=200, bytes=10), Effort(flops=800, bytes=10)) == 2.0 + 2.0
    assert board.compute_s(Effort(flops=200, bytes=50, calls=4), Effort(bytes=10)) == 5.0 + 1.0 + 1.0
    assert board.compute_s(Effort()) == 0.0
    # 160 bytes and 40 of the message are 3 packets of 80: 260 bytes on the air, of which a fifth goes out again
    assert link.air_s(160, up=True) == pytest.approx(260 / (100 * 0.8))
    assert link.transfer_s(160, up=True) == pytest.approx(0.5 + 260 / 80 + 3 * 0.25 * 2)
    assert link.transfer_s(160, up=False) == pytest.approx(0.5 + 260 / 320 + 3 * 0.25 * 2)
    assert link.transfer_s(0, up=True) == pytest.approx(0.5 + 60 / 80 + 0.25 * 2)


def test_a_profile_of_ones_own_is_a_file(tmp_path):
    (tmp_path / "tiny.toml").write_text(BOARD)
    assert load_board(str(tmp_path / "tiny.toml")).title == "A tiny board"
    (tmp_path / "string.toml").write_text(LINK.replace("latency_s", "latency"))
    with pytest.raises(UsageError, match=r"string\.toml: latency: .*unit.* latency_s$"):
        load_link(str(tmp_path / "string.toml"))


def test_types_are_kept_exactly():
    board = parse_board(BOARD, "tiny.toml")
    assert isinstance(board.train_flops_per_s, float)
    assert board.runtimes == ("numpy",)
    with pytest.raises(dataclasses.FrozenInstanceError):
        board.cores = 2


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("ram_bytes = 1000", "ram = 1000", ("ram:", "unit", "ram_bytes")),
        ("cores = 1", "cores = 1\ncolour = 'red'", ("colour:", "unknown key", "cpu_hz")),
        ("cores = 1", "", ("cores:", "missing")),
        ("cores = 1", "cores = 1.5", ("cores:", "an integer of at least 1", "found 1.5")),
        ("cores = 1", "cores = true", ("cores:", "an integer of at least 1")),
        ("cores = 1", "cores = 0", ("cores:", "an integer of at least 1", "found 0")),
        ("idle_w = 0.5", "idle_w = -1", ("idle_w:", "a number of at least 0", "found -1")),
        ("idle_w = 0.5", "idle_w = '0.5 W'", ("idle_w:", "a number of at least 0", "'0.5 W'")),
        ("busy_w = 2", "busy_w = nan", ("busy_w:", "a number above 0", "found nan")),
        ("busy_w = 2", "busy_w = 0.4", ("busy_w:", "at least idle_w, which is 0.5", "found 0.4")),
        ("title = ", "title = 3 #", ("title:", "a string")),
        ("throttled_share = 0.5", "throttled_share = 0.0", ("throttled_share:", "above 0 to 1", "found 0.0")),
        ("call_s = 0.25", "call = 0.25", ("call:", "unit", "call_s")),
        ("https://example.org/tiny", "", ("source_url:", "https://")),
        ('source_url = "https://example.org/tiny"', "", ("source_url:", "missing")),
        ('["numpy"]', '["numpy", "jax"]', ("runtimes[1]:", "'jax'", "numpy or onnx or torch")),
        ('["numpy"]', "[]", ("runtimes:", "0 entries", "expected 1 to 3")),
        ('["numpy"]', '"numpy"', ("runtimes:", "a list", "found 'numpy'")),
        ('speed = "estimate", ', "", ("verified:", "memory, cpu, speed, storage, power, thermal")),
        (
            'speed = "estimate"',
            'speed = "hearsay"',
            ("verified.speed:", "measured or datasheet or estimate", "'hearsay'"),
        ),
        ('speed = "estimate"', "speed = 1", ("verified.speed:", "measured or datasheet or estimate", "found 1")),
        ("cores = 1", "cores = ", ("not valid TOML",)),
    ],
)
def test_a_wrong_board_is_named(old, new, words):
    assert old in BOARD
    with pytest.raises(UsageError) as caught:
        parse_board(BOARD.replace(old, new), "boards/tiny.toml")
    message = str(caught.value)
    assert message.startswith("boards/tiny.toml: ")
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("loss = 0.2", "loss = 1.0", ("loss:", "from 0 to below 1", "found 1.0")),
        ("packet_bytes = 80", "packet = 80", ("packet:", "unit", "packet_bytes")),
        ("packet_bytes = 80", "packet_bytes = 0", ("packet_bytes:", "of at least 1", "found 0")),
        ("https://example.org/string", "a test", ("source_url:", "'a test'")),
        ("latency_s = 0.5", "latency = 0.5", ("latency:", "unit", "latency_s")),
        ("latency_s = 0.5", "latency_s = -0.1", ("latency_s:", "of at least 0", "found -0.1")),
        ("up_bytes_per_s = 100", "up_bytes_per_s = 0", ("up_bytes_per_s:", "above 0")),
    ],
)
def test_a_wrong_link_is_named(old, new, words):
    with pytest.raises(UsageError) as caught:
        parse_link(LINK.replace(old, new), "links/string.toml")
    for word in ("links/string.toml: ", *words):
        assert word in str(caught.value)


@pytest.mark.parametrize("name", ["pi6", "", "../boards/rpi4", "rpi4.toml"])
def test_an_unknown_name_is_answered_with_the_known_ones(name):
    with pytest.raises(UsageError, match=rf"^board '{name}': .*, rpi4, rpi5, x86"):
        load_board(name)
    with pytest.raises(UsageError, match=rf"^link '{name}': .*ethernet, lte-cat1, wifi"):
        load_link(name)


@pytest.mark.parametrize(
    ("model", "machine", "expected"),
    [
        (b"Raspberry Pi 4 Model B Rev 1.5\x00", "aarch64", "rpi4"),
        (b"Raspberry Pi Zero 2 W Rev 1.0\x00", "aarch64", "rpi-zero-2w"),
        (b"NVIDIA Jetson Orin Nano Developer Kit\x00", "aarch64", "jetson-orin-nano"),
        (b"NVIDIA Jetson Nano Developer Kit\x00", "aarch64", "jetson-nano"),
        (b"NVIDIA Jetson Xavier NX Developer Kit\x00", "aarch64", "jetson-xavier-nx"),
        (b"Raspberry Pi 5 Model B Rev 1.0\x00", "aarch64", "rpi5"),
        (b"Raspberry Pi 3 Model B Plus Rev 1.3\x00", "aarch64", "rpi3"),
        (b"Raspberry Pi 2 Model B Rev 1.1\x00", "aarch64", "aarch64"),
        (b"\xff\xfe", "armv7l", "armv7l"),
        (None, "x86_64", "x86"),
        (None, "AMD64", "x86"),
        (None, "riscv64", "riscv64"),
        (None, "", "unknown"),
    ],
)
def test_detection(tmp_path, model, machine, expected):
    file = tmp_path / "model"
    if model is not None:
        file.write_bytes(model)
    assert detect(file, machine) == expected


def test_detection_here_starts_no_process(monkeypatch):
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a process was started"))
    monkeypatch.setattr(board_module.platform, "machine", lambda: "x86_64")
    assert detect(board_module.Path("/nonexistent")) == "x86"


def test_rendered_for_people_and_for_scripts():
    text = render_boards(as_json=False)
    table = json.loads(render_boards(as_json=True))
    for name in (*boards(), *links()):
        assert name in text
    assert [entry["name"] for entry in table["boards"]] == list(boards())
    assert [entry["name"] for entry in table["links"]] == list(links())
    assert {entry["name"]: entry["ram_bytes"] for entry in table["boards"]}["rpi4"] == 4 * 2**30
    assert all(line == line.rstrip() for line in text.splitlines())


def test_a_board_without_a_profile_is_the_generic_one_and_said_once(monkeypatch):
    said = []
    monkeypatch.setattr(board_module, "detect", lambda: "riscv64")
    assert board_here(said.append).name == "generic"
    (line,) = said
    assert "riscv64" in line
    assert "--measure" in line
    assert board_here(said.append, "rpi4").name == "rpi4"
    assert len(said) == 1
