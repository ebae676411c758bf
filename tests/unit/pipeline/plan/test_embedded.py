from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trtspec.cli.app import app
from trtspec.serving.executors.torch import host

MIB = 1 << 20


@pytest.fixture
def plan(
    llama_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """What `trtspec plan` says of a pair of one model on the torch backend, on a machine like this."""

    def run(machine: host.ProcessShare, *flags: str, method: str = "draft_model") -> str:
        monkeypatch.setattr(host, "look", lambda: machine)
        model, recipe = llama_folder(), tmp_path / "recipe.yaml"
        draft = "" if method == "ngram" else f"draft: {{model: {model}, dtype: float32}}\n"
        recipe.write_text(
            f"name: pair\ntarget: {{model: {model}, dtype: float32}}\n{draft}"
            f"speculation: {{method: {method}}}\n"
            "engine: {max_batch_size: 4, max_seq_len: 100}\nhardware: {gpu: none}\n"
        )
        return CliRunner().invoke(app, ["plan", "-v", str(recipe), *flags]).output

    return run


def test_all_that_requests_can_ask_for(plan: Callable[..., str]) -> None:
    found = json.loads(plan(host.ProcessShare(8, None, 1000 * MIB), "--json"))["memory"]
    # 2 layers of 2 heads of 8 keys and values, in float32, in each of the two.
    assert found["kv_per_token"] == 2 * (2 * 2 * 2 * 8 * 4)
    assert found["tokens"] == found["asked"] == 2 * 4 * 100
    assert (found["threads"], found["problem"]) == (8, None)
    printed = plan(host.ProcessShare(8, 2.5, 1000 * MIB))
    assert "in each of the two, all 800 that requests can ask for" in " ".join(printed.split())
    assert "the control group allows 2.5 processors" in " ".join(printed.split())


def test_the_plan_counts_weights_that_target_and_draft_share_once(plan: Callable[..., str]) -> None:
    """Target and draft are one model here, but for its norms."""
    machine = host.ProcessShare(8, None, 1000 * MIB)
    alone = json.loads(plan(machine, "--json", method="ngram"))["memory"]
    found = json.loads(plan(machine, "--json"))["memory"]
    assert found["weights"] + found["shared"] == 2 * alone["weights"]
    assert 0.9 * alone["weights"] < found["shared"] < alone["weights"]
    assert alone["shared"] == 0
    assert re.search(r"of both models, [\d.]+ [KM]iB in common", " ".join(plan(machine).split()))


def test_the_plan_of_an_embedded_target_alone_tells_its_cache_for_tokens(plan: Callable[..., str]) -> None:
    machine = host.ProcessShare(8, None, 1000 * MIB)
    found = json.loads(plan(machine, "--json", method="ngram"))["memory"]
    assert found["kv_per_token"] == 2 * 2 * 2 * 8 * 4
    printed = " ".join(plan(machine, method="ngram").split())
    assert "iB of the target a token 256 B of KV cache KV cache 800 tokens all 800 that requests" in printed


def test_the_plan_bounds_the_cached_tokens_by_the_free_memory(plan: Callable[..., str]) -> None:
    weights = json.loads(plan(host.ProcessShare(8, None, 1000 * MIB), "--json"))["memory"]["weights"]
    found = json.loads(plan(host.ProcessShare(8, None, weights + 200 * 3072), "--json"))["memory"]
    assert found["tokens"] == int(0.5 * 200 * 3072 / (1.5 * 512))


def test_too_little_for_one_text(plan: Callable[..., str]) -> None:
    said = " ".join(plan(host.ProcessShare(8, None, 1000)).split())
    assert "the KV cache holds 0 tokens, less than one sequence of 100" in said
