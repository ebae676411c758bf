"""Which names and pages may use a server that listens on the loopback."""

from __future__ import annotations

import pytest

from trtspec.gateway.origins import Origins

LOCAL = ["localhost", "LOCALHOST:8000", "127.0.0.1", "127.9.9.9:80", "[::1]", "[::1]:9000"]
FOREIGN = [
    *("evil.example", "127.evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil:8000"),
    *("10.0.0.1", "[::2]", "0.0.0.0", "[", "localhost@evil.example", "xn--localhost-9", "null", ":8000"),
]


@pytest.mark.parametrize("listens_on", ["127.0.0.1", "localhost", "::1", "127.0.0.2"])
def test_this_machine_may_always(listens_on: str) -> None:
    origins = Origins(listens_on)
    for name in LOCAL:
        assert origins.problem(name, None) is None
        assert origins.problem(name, f"http://{name}") is None
        assert origins.problem(name, f"https://{name}") is None
    # A tool of this machine sends no Origin, and HTTP/1.0 has no Host.
    assert origins.problem(None, None) is None


@pytest.mark.parametrize("name", FOREIGN)
def test_another_name_or_page_may_not(name: str) -> None:
    origins = Origins("127.0.0.1")
    assert "Host" in (origins.problem(name, None) or "")
    for origin in (name, f"http://{name}", f"https://{name}"):
        assert "Origin" in (origins.problem("localhost", origin) or "")


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize(
    "origins", [Origins("0.0.0.0"), Origins("10.0.0.5"), Origins("::1", ("*",)), Origins()]
)
def test_a_server_for_others_is_for_all(origins: Origins, name: str) -> None:
    assert origins.problem(name, f"http://{name}") is None
    assert origins.type_problem("text/plain") is None


@pytest.mark.parametrize("given", ["chat.example", "https://Chat.example", "chat.example:8443"])
def test_one_that_is_allowed_may_and_no_other(given: str) -> None:
    origins = Origins("127.0.0.1", (given, "ui.example"))
    assert origins.problem("chat.example", "https://ui.example") is None
    assert origins.problem("CHAT.example:99", "http://chat.example:8443") is None
    assert origins.problem("chat.example.evil", None)
    assert origins.problem("localhost", "https://evil.example")


def test_a_name_that_is_none_allows_nobody() -> None:
    for given in ("", "//", ":80", "http://"):
        assert Origins("127.0.0.1", (given,)).problem("localhost", "null")
        assert Origins("127.0.0.1", (given,)).problem(":80", None)


def test_content_types_that_a_page_sends_without_asking_are_refused() -> None:
    origins = Origins("127.0.0.1")
    for kind in ("text/plain", "TEXT/PLAIN; charset=utf-8", "multipart/form-data; boundary=x"):
        assert origins.type_problem(kind)
    assert origins.type_problem("application/x-www-form-urlencoded")
    for kind in ("", "application/json", "application/json; charset=utf-8", "application/octet-stream"):
        assert origins.type_problem(kind) is None
