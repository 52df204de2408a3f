"""docs/how-to/public-set.md: its files, options and words are those of the code; and what an app and a file may say."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest

from coordinator import config, deploy
from edge_sdk import cli
from edge_sdk.agent.agent import Agent
from edge_sdk.data import LocalData, Preprocess, Samples
from edge_sdk.device.store import MemoryStore
from edge_sdk.errors import UsageError
from edge_sdk.models.base import ModelSpec
from edge_sdk.protocol.frames import codec
from edge_sdk.protocol.messages import PUBLIC_BLOCK_BYTES, Hello
from edge_sdk.public_set.fetch import MAX_PUBLIC_BYTES
from edge_sdk.public_set.samples import PublicSet
from edge_sdk.public_set.transfer import WINDOW
from edge_sdk.transport.base import Connected
from edge_sdk.transport.memory.hub import Hub, MemoryTransport

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = (Path(__file__).parents[2] / "docs/how-to/public-set.md").read_text(encoding="utf-8")
SET = PublicSet(np.arange(48, dtype=np.uint8).reshape(12, 2, 2))
BASE = '[federation]\nname = "lab"\nmethod = "{}"\nrounds = 2\ndevices = 2\nclasses = 2\n'


def agent(state: Path | MemoryStore | None = None, public: PublicSet | None = None, cache: Path | None = None) -> Agent:
    data = LocalData(train=Samples(np.zeros((4, 2, 2), np.uint8), np.arange(4) % 2))
    model = SimpleNamespace(
        spec=ModelSpec(name="m", runtime="numpy", classes=2, preprocess=Preprocess()),
        logits=lambda x: np.zeros((len(x), 2), np.float32),
        state_bytes=lambda: b"",
    )
    return Agent(
        federation="lab",
        broker=Hub().link("x"),
        identity="cam-7",
        model=model,  # type: ignore[arg-type]  # as much of one as is asked here
        data=data,
        public=public,
        state=state,
        public_cache=cache,
    )


def said_by(agent: Agent) -> Hello:
    """What an agent says of itself once it is connected."""
    sent: list[bytes] = []
    with patch.object(MemoryTransport, "send", lambda _self, _topic, frame, **_: sent.append(frame)):  # nobody listens
        agent.participant.handle(Connected(), 0.0)
    messages = [codec.decode(frame).message for frame in sent]
    return next(message for message in messages if isinstance(message, Hello))


def test_an_agent_fetches_unless_it_has_a_set_or_a_store_without_a_folder(tmp_path: Path) -> None:
    assert said_by(agent()).fetches_public  # into a temporary folder
    assert not said_by(agent(state=MemoryStore())).fetches_public
    assert said_by(agent(cache=tmp_path)).fetches_public
    durable = agent(state=tmp_path)
    assert said_by(durable).fetches_public
    durable.participant.context.store.close()
    given = said_by(agent(cache=tmp_path, public=SET))
    assert (given.fetches_public, given.public_sha256) == (False, SET.spec.sha256)


@pytest.mark.parametrize(
    ("method", "more", "served"), [("fedmd", "", True), ("fedmd", "serve = false", False), ("local", "", False)]
)
def test_what_a_coordinator_serves(tmp_path: Path, method: str, more: str, served: bool) -> None:
    np.savez(tmp_path / "public.npz", SET.samples)
    file = tmp_path / "lab.toml"
    file.write_text(f'{BASE.format(method)}[public]\npath = "public.npz"\n{more}\n', encoding="utf-8")
    settings = config.read_settings(config.load_toml(file), file)
    public_server = deploy.public_set_server(config.federation(settings), settings, tmp_path / "run")
    assert (public_server is not None) == served
    if public_server is not None:
        assert public_server.sha256 == SET.spec.sha256
        public_server.close()


def test_a_coordinator_without_a_set_serves_none(tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    file.write_text(BASE.format("local"), encoding="utf-8")
    assert config.public_to_serve(config.read_settings(config.load_toml(file), file)) is None


def test_serve_is_yes_or_no(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"lab\.toml: public\.serve: .*, found 'maybe'"):
        config.read_section(config.PublicTable, {"path": "a", "serve": "maybe"}, "public", tmp_path / "lab.toml")


def test_the_page_says_what_the_code_does(capsys: pytest.CaptureFixture[str]) -> None:
    for example in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL):
        config.read_section(config.PublicTable, tomllib.loads(example)["public"], "public", Path("x.toml"))
    with pytest.raises(SystemExit):
        cli.main(["device", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for command in re.findall(r"^    edge-sdk device (.*)$", PAGE, re.MULTILINE):
        assert set(re.findall(r"--\w+", command)) <= set(re.findall(r"--\w+", said))
    assert re.search(r"--public FILE\.npz .*fetched once", said)
    assert {"public_cache", "max_public_bytes", "public", "state"} <= set(inspect.signature(Agent.__init__).parameters)
    largest_mib, block_kib = MAX_PUBLIC_BYTES >> 20, PUBLIC_BLOCK_BYTES >> 10
    assert f"{largest_mib} MiB by default" in PAGE
    assert f"blocks of {block_kib} KiB" in PAGE
    assert WINDOW == 8
