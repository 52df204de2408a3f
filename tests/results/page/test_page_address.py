"""Where the page is served, and who may see it."""

import socket
from contextlib import closing

import pytest

from coordinator.address import ListenAddress, bind, parse_address
from coordinator.results.page.guard import TOKEN_VARIABLE, WINDOW_S, WRONG, Guard, PageVerdict
from coordinator.results.page.serving import page_token, page_url
from edge_sdk.errors import UsageError

TOKEN = "a-token-of-the-lab"


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:8421", "127.0.0.1", 8421, True),
        ("localhost:80", "localhost", 80, True),
        (":8421", "127.0.0.1", 8421, True),
        ("8421", "127.0.0.1", 8421, True),
        ("[::1]:8421", "::1", 8421, True),
        ("0.0.0.0:8421", "0.0.0.0", 8421, False),
        ("lab:8421", "lab", 8421, False),
    ],
)
def test_addresses_are_read(text, host, port, loopback):
    found = parse_address(text, "--page", 8421)
    assert (found.host, found.port, found.loopback) == (host, port, loopback)


@pytest.mark.parametrize("text", ["", "lab", "lab:", "lab:http", "lab:70000", "lab:-1", "lab:\u0664"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_address(text, "--page", 8421)


def test_a_port_in_use_is_named_and_a_free_one_suggested():
    with closing(bind(ListenAddress("127.0.0.1", 0), "--page")) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError) as caught:
            bind(ListenAddress("127.0.0.1", port), "--page")
    said = str(caught.value)
    free = int(said.rpartition(":")[2])
    assert f"port {port}" in said
    assert free != port
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", free))


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(UsageError, match=r"192\.0\.2\.1"):
        bind(ListenAddress("192.0.2.1", 8421), "--page")


def test_only_the_token_opens_the_page():
    guard = Guard(TOKEN, clock=lambda: 0.0)
    assert guard.verdict("1.2.3.4", TOKEN) is PageVerdict.ALLOWED
    assert guard.verdict("1.2.3.4", None) is PageVerdict.NO_TOKEN
    assert guard.verdict("1.2.3.4", TOKEN + "x") is PageVerdict.NO_TOKEN
    assert guard.verdict("1.2.3.4", "\u00fc") is PageVerdict.NO_TOKEN


def test_wrong_tokens_are_limited_by_address_and_forgotten():
    now = [0.0]
    guard = Guard(TOKEN, clock=lambda: now[0])
    for _ in range(WRONG):
        assert guard.verdict("1.2.3.4", "guess") is PageVerdict.NO_TOKEN
    assert guard.verdict("1.2.3.4", TOKEN) is PageVerdict.TOO_MANY
    assert guard.verdict("5.6.7.8", TOKEN) is PageVerdict.ALLOWED
    now[0] = WINDOW_S
    assert guard.verdict("1.2.3.4", TOKEN) is PageVerdict.ALLOWED


def test_requests_without_a_token_are_not_counted():
    guard = Guard(TOKEN, clock=lambda: 0.0)
    for _ in range(2 * WRONG):
        guard.verdict("1.2.3.4", None)
    assert guard.verdict("1.2.3.4", TOKEN) is PageVerdict.ALLOWED


def test_a_token_is_drawn_or_taken_from_the_environment(monkeypatch):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert page_token() != page_token()
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert page_token() == TOKEN
    assert page_url(ListenAddress("::1", 8421), TOKEN) == f"http://[::1]:8421/?token={TOKEN}"
    assert page_url(ListenAddress("0.0.0.0", 8421), None) == f"http://{socket.gethostname()}:8421/"
    monkeypatch.setenv(TOKEN_VARIABLE, "short")
    with pytest.raises(UsageError, match=TOKEN_VARIABLE):
        page_token()
