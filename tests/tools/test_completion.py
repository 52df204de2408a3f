"""`edge-sdk completion`: the script for bash completes commands, options and their values."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from edge_sdk.cli import main
from edge_sdk.tools.completion import completion_script

pytest.importorskip("shtab")
ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
$(complete -p edge-sdk | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["sim"], {"simulate"}),
        (["simulate", "--res"], {"--resume"}),
        (["simulate", "--stack", ""], {"true", "false", "auto"}),
        (["lab", "cl"], {"claim"}),
    ],
)
def test_bash_completes(tmp_path: Path, typed: list[str], offered: set[str]) -> None:
    script = tmp_path / "script.bash"
    script.write_text(completion_script("bash"), encoding="utf-8")
    command = ["bash", "--norc", "-c", ASK, "bash", str(script), "edge-sdk", *typed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert set(done.stdout.split()) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_names_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in ("simulate", "methods", "lab-device", "completion"))
