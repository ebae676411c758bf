"""API keys from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtspec.gateway.openai.errors import ApiError
from trtspec.gateway.openai.keys import Keys


def test_a_key_names_its_tenant_without_telling_the_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# two\n sk-a \n\nsk-b\n")
    keys = Keys.load(file)

    first, second = keys.tenant("Bearer sk-a"), keys.tenant("bearer  sk-b")
    assert first
    assert first != second
    assert "sk-" not in first + repr(vars(keys))


@pytest.mark.parametrize(
    "said", [None, "", "Bearer", "Bearer ", "Bearer sk-", "Basic sk-a", "sk-a", "Bearer # two"]
)
def test_anything_else_is_refused(said: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        Keys(["sk-a"]).tenant(said)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    assert "sk-a" not in caught.value.message


def test_without_keys_everybody_may_ask() -> None:
    assert Keys([]).tenant(None) == ""


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n"])
def test_a_file_without_keys_is_a_mistake(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ValueError, match="no key"):
        Keys.load(file)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("sk-a\n# für alle\nsk-é\n".encode(), "line 3 has a key with characters"),
        (b"sk-a\xff\n", "line 1 has a key with characters"),
        (b"sk-a\x00\n", "line 1 has a key with characters"),
        (b"\xef\xbb\xbfsk-a\n", "begins with a byte order mark"),
        ("\ufeffsk-a\n".encode("utf-16-le"), "begins with a byte order mark"),
    ],
)
def test_a_key_that_no_client_could_send_is_a_mistake(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=problem) as caught:
        Keys.load(file)
    assert "sk-" not in str(caught.value)
