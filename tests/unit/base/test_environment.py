"""What is secret in an environment, and in a command line that is shown."""

from __future__ import annotations

import pytest

from trtspec.base.environment import without_keys


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("vllm serve ./m --api-key s3cr3t --port 1", "vllm serve ./m --api-key ... --port 1"),
        ("vllm serve ./m --api-key=s3cr3t", "vllm serve ./m --api-key=..."),
        ("vllm serve ./m --api-key one two --port 1", "vllm serve ./m --api-key ... ... --port 1"),
        ("env VLLM_API_KEY=s3cr3t vllm serve ./m", "env VLLM_API_KEY=... vllm serve ./m"),
        ("vllm serve ./m --hf-token hf_abcdefghij", "vllm serve ./m --hf-token ..."),
        ("vllm serve http://me:s3cr3t@host/m", "vllm serve ..."),
        ("vllm serve './my model' --max-tokens 16 --tokenizer ./t", None),
        ("vllm serve it's", None),
    ],
)
def test_a_command_is_shown_without_its_keys(command: str, shown: str | None) -> None:
    assert without_keys(command) == (shown or command)
    assert "s3cr3t" not in without_keys(command)
