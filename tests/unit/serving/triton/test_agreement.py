"""The names of requests, which whoever has the secret of the deployment gives, and nobody else."""

from __future__ import annotations

import pytest

from trtspec.serving.triton.agreement import LEFT, NAMING, REQUEST, Departures, read_parameters

SECRET = "0123abcd"


class Client:
    """Knows whether it was told to leave."""

    is_named = has_left = False

    def leave(self) -> None:
        self.has_left = True


def test_who_has_the_secret_names_a_request_and_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAMING, SECRET)
    departures, client = Departures(), Client()
    parameters = {REQUEST: f"{SECRET}1", "timeout": 3}
    departures.arrive(parameters, client)
    assert client.is_named
    assert parameters == {"timeout": 3}
    assert departures.leave({LEFT: f"{SECRET}2"})
    assert not client.has_left
    assert departures.leave({LEFT: f"{SECRET}1"})
    assert client.has_left


@pytest.mark.parametrize("secret", [SECRET, "", None])
@pytest.mark.parametrize("name", ["mine", "", SECRET[:-1], f"x{SECRET}", 3, None, ["a"]])
def test_the_names_of_others_stay_parameters_that_nobody_knows(
    secret: str | None, name: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(NAMING, raising=False)
    if secret is not None:
        monkeypatch.setenv(NAMING, secret)
    departures, client = Departures(), Client()
    parameters = {REQUEST: name}
    departures.arrive(parameters, client)
    assert parameters == {REQUEST: name}
    assert not client.is_named
    assert not departures.leave({LEFT: name})


def test_a_name_that_is_given_before_that_of_the_front_is_seen() -> None:
    assert read_parameters(f'{{"{REQUEST}": "mine", "a": 1, "{REQUEST}": "{SECRET}1"}}') == {
        REQUEST: "mine",
        "a": 1,
    }
    assert read_parameters("") == {}
