"""`trtspec verify` on a server, over both of its APIs, in both layouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import BLS, TINY, Deploy
from tests.support.command_line import trtspec

FEW = ("--prompt", "code-1", "--prompt", "list-1", "--max-tokens", "24", "--concurrency", "4")
NOT_SAMPLED = ("--draws", "0")
Verify = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def verify() -> Verify:
    def run(*arguments: object) -> tuple[int, dict[str, Any]]:
        done = trtspec("verify", *arguments, *FEW, "--json")
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    return run


@BLS
def test_a_server_is_lossless(verify: Verify, server: Deploy, tiny_recipe: Path, tiny_build: Path) -> None:
    """Where engines are models of their own, no likeliest tokens are told, and margins are asked by bias."""
    url = f"http://127.0.0.1:{server.ports[0]}"
    lengths = ("--num-draft-tokens", 1, "--num-draft-tokens", 4)
    status, found = verify(tiny_recipe, "--output", tiny_build, "--url", url, *lengths, "--draws", 40)
    assert (status, found["lossless"], found["reasons"]) == (0, True, [])
    ways = found["comparisons"]
    assert [(way["num_draft_tokens"], way["concurrency"]) for way in ways] == [(1, 4), (4, 4), (1, 1)]
    assert all(way["drafted"] > way["accepted"] > 0 and way["tokens"] == 48 for way in ways)
    assert found["tolerance"]["dtype"] == "float32"
    assert {view["of"] for view in found["sampling"]["views"]} == {"text", "repeats"}


@pytest.mark.parametrize("tiny_recipe", ["in_process"], indirect=True)
def test_openais_api_tells_the_same(verify: Verify, server: Deploy, tiny_build: Path) -> None:
    place = ("--url", server.api, "--tokenizer", tiny_build / "tokenizer", "--dtype", "float32")
    status, found = verify(*place, *NOT_SAMPLED)
    assert (status, found["reasons"]) == (0, [])
    assert all(0 <= way["moved"] < 1e-4 and way["drafted"] for way in found["comparisons"])


@pytest.mark.sweep
@pytest.mark.parametrize("tiny_recipe", ["bls"], indirect=True)
def test_an_engine_without_likeliest_tokens_is_verified_by_openais_api(
    verify: Verify, server: Deploy, tiny_build: Path
) -> None:
    """It names the tokens of a text, and margins are asked by bias."""
    place = ("--url", server.api, "--tokenizer", tiny_build / "tokenizer", "--dtype", "float32")
    status, found = verify(*place, *NOT_SAMPLED)
    assert (status, found["reasons"]) == (0, [])
    assert all(way["drafted"] and way["tokens"] for way in found["comparisons"])


@pytest.mark.parametrize("tiny_recipe", ["in_process"], indirect=True)
def test_a_server_with_another_tokenizer_is_a_fault(
    verify: Verify, server: Deploy, tiny_recipe: Path, tiny_build: Path, tmp_path: Path
) -> None:
    """The one that is named begins every text, and the server's does not."""
    tokenizer = json.loads((tiny_build / "tokenizer/tokenizer.json").read_text())
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "B", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"B": {"id": "B", "ids": [0], "tokens": ["<|endoftext|>"]}},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    place = (tiny_recipe, "--output", tiny_build, "--url", f"http://127.0.0.1:{server.ports[0]}")
    status, found = verify(*place, "--tokenizer", tmp_path, *NOT_SAMPLED, "--num-draft-tokens", 2)
    assert status == 1
    assert "2 of the prompts" in found["reasons"][0]
    assert [difference["what"] for difference in found["prompts"]] == ["prompt", "prompt"]


def test_a_server_that_is_not_there_is_told() -> None:
    done = trtspec("verify", "--url", "http://127.0.0.1:9", "--tokenizer", TINY / "target")
    assert done.returncode == 1
    assert "does not answer" in done.stderr
