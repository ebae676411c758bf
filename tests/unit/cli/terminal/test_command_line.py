"""The command line, shown again."""

from __future__ import annotations

import sys

import pytest

from trtspec.cli.terminal.options import typed


def test_nothing_secret_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["bench", "--url=https://me:secret@host:9000/v1?token=secret", "--baseline", "http://a:b@c/v1"]
    monkeypatch.setattr(sys, "argv", ["/usr/bin/trtspec", *words, "--workload", "my prompts.jsonl"])
    assert typed() == (
        "trtspec bench --url=https://host:9000/v1 --baseline http://c/v1 --workload 'my prompts.jsonl'"
    )


def test_options_are_left_out_with_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["verify", "a.yaml", "--draws", "3", "--prompt=x", "--seed", "3", "--draws=4"]
    monkeypatch.setattr(sys, "argv", ["trtspec", *words])
    assert typed(("--draws", "--prompt")) == "trtspec verify a.yaml --seed 3"
