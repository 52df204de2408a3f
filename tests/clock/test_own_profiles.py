"""A fleet on a board and a link of one's own, as files beside the federation's."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

import fleets
import pytest

from edge_sdk.errors import UsageError
from edge_sim.config import settings
from edge_sim.runs.runner import run

SHIPPED = importlib.resources.files("firmware_profiles")


def test_files_are_read_and_named_by_what_they_hold(pictures: Path, tmp_path: Path) -> None:
    board = SHIPPED.joinpath("boards/rpi4.toml").read_text().replace('"rpi4"', '"my-pi"')
    (tmp_path / "mine.toml").write_text(board)
    (tmp_path / "link.toml").write_text(SHIPPED.joinpath("links/wifi.toml").read_text().replace('"wifi"', '"my-wifi"'))
    tables = fleets.tables(pictures, "local", 2, rounds=1)
    tables["fleet"] = [{"count": 2, "model": "softmax", "board": "mine.toml", "link": "link.toml"}]
    config = settings.parse(tables, tmp_path / "f.toml")
    assert config.tables["fleet"][0]["board"] == str(tmp_path / "mine.toml")  # holds in the run directory, too
    assert {(each.board, each.link) for each in run(config).devices} == {("my-pi", "my-wifi")}


def test_the_link_of_an_own_board_lies_beside_the_board(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "boards").mkdir()
    board = SHIPPED.joinpath("boards/rpi4.toml").read_text().replace('link = "wifi"', 'link = "link.toml"')
    (tmp_path / "boards" / "mine.toml").write_text(board)
    tables = fleets.tables(pictures, "local", 2, rounds=1)
    tables["fleet"] = [{"count": 2, "model": "softmax", "board": "boards/mine.toml"}]
    with pytest.raises(UsageError, match=r"fleet\[0\]\.board: .*boards/mine\.toml: link: .*cannot") as caught:
        settings.parse(tables, tmp_path / "f.toml")
    assert str(tmp_path / "boards" / "link.toml") in str(caught.value)
    link = SHIPPED.joinpath("links/wifi.toml").read_text().replace('"wifi"', '"my-wifi"')
    (tmp_path / "boards" / "link.toml").write_text(link)
    assert [each.link for each in run(settings.parse(tables, tmp_path / "f.toml")).devices] == ["my-wifi"] * 2


def test_an_own_board_with_an_unknown_link_is_named(pictures: Path, tmp_path: Path) -> None:
    board = SHIPPED.joinpath("boards/rpi4.toml").read_text().replace('link = "wifi"', 'link = "5g"')
    (tmp_path / "mine.toml").write_text(board)
    tables = fleets.tables(pictures, "local", 1)
    tables["fleet"] = [{"model": "softmax", "board": "mine.toml"}]
    with pytest.raises(UsageError, match=r"fleet\[0\]\.board: .*mine\.toml: link: .*'5g'"):
        settings.parse(tables, tmp_path / "f.toml")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("board", "pi6", "fleet[0].board: board 'pi6': no such name"),
        ("link", "5g", "fleet[0].link: link '5g': no such name"),
        ("board", "none.toml", "none.toml': cannot be read"),
    ],
)
def test_an_unknown_one_is_named(pictures: Path, key: str, value: str, words: str) -> None:
    tables = fleets.tables(pictures, "local", 1)
    tables["fleet"] = [{"model": "softmax", key: value}]
    with pytest.raises(UsageError) as caught:
        settings.parse(tables, Path("f.toml"))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
