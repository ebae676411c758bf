"""What a command says of how much is drafted, and when, is in its recipe, or the command is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from trtspec.backends.importing import Imported, recipe_of
from trtspec.backends.moving import move
from trtspec.backends.table import load, loads
from trtspec.cli.app import app
from trtspec.recipe.schema import Recipe

PATH = Path("recipe.yaml")
KEY = "num_speculative_tokens_per_batch_size"
PAIR = {"model": "org/small", "num_speculative_tokens": 4}


def vllm(**keys: Any) -> Imported:
    return recipe_of(f"vllm serve org/big --speculative-config '{json.dumps({**PAIR, **keys})}'", PATH)


def trtllm(folder: Path, **keys: Any) -> Imported:
    config = {"decoding_type": "DraftTarget", "max_draft_len": 4, "speculative_model_dir": "org/small"}
    (folder / "llm.yaml").write_text(yaml.safe_dump({"speculative_config": {**config, **keys}}))
    return recipe_of(f"trtllm-serve org/big --config {folder}/llm.yaml", PATH)


def recipe(found: Imported) -> Recipe:
    return loads(found.text.encode(), PATH).recipe


@pytest.mark.parametrize(
    ("keys", "schedule"),
    [
        ({KEY: [[1, 8, 4], [9, 64, 0]]}, {1: 4, 9: 0}),
        ({KEY: [[9, 64, 0], [1, 8, 4]]}, {1: 4, 9: 0}),  # vLLM sorts them.
        ({KEY: [[1, 4, 4], [17, 64, 2]]}, {1: 4, 17: 2}),  # K of the first holds in the gap.
        ({KEY: [[1, 8, 9], [9, 64, 1]]}, {1: 4, 9: 1}),  # K is num_speculative_tokens at most.
        ({"disable_by_batch_size": 32}, {1: 4, 32: 0}),
    ],
)
def test_vllms_ranges_are_in_the_recipe(keys: dict[str, Any], schedule: dict[int, int]) -> None:
    found = vllm(**keys)
    assert recipe(found).speculation.schedule == schedule
    assert not found.missing


@pytest.mark.parametrize(
    "command",
    [
        f"--speculative-config.{KEY} '[[1,8,4],[9,64,0]]' --spec-model org/small --spec-tokens 4",
        "--speculative-model org/small --num-speculative-tokens 4 --speculative-disable-by-batch-size 9",
    ],
)
def test_other_ways_to_write_it(command: str) -> None:
    found = recipe_of(f"vllm serve org/big {command}", PATH)
    assert recipe(found).speculation.schedule == {1: 4, 9: 0}
    assert not found.missing


@pytest.mark.parametrize(
    ("keys", "schedule"),
    [
        # Up to 1.2 a key is the least number of requests, from 1.3 on the largest; 1 is among those of 1.2.
        ({"draft_len_schedule": {1: 4, 4: 2, 8: 0}}, {1: 4, 4: 2, 8: 0}),
        ({"draft_len_schedule": {4: 4, 8: 2, 32: 1}}, {1: 4, 5: 2, 9: 1, 33: 0}),
        ({"max_concurrency": 8}, {1: 4, 9: 0}),
    ],
)
def test_the_schedule_of_tensorrt_llm_is_in_the_recipe(
    keys: dict[str, Any], schedule: dict[int, int], tmp_path: Path
) -> None:
    found = trtllm(tmp_path, **keys)
    assert recipe(found).speculation.schedule == schedule
    assert not found.missing
    told = [note.fate for note in found.notes if "draft_len_schedule" in note.subject]
    assert [("1.3 it is up to" in fate) for fate in told] == [True] * (
        1 in keys.get("draft_len_schedule", {})
    )


@pytest.mark.parametrize(
    "keys",
    [
        {KEY: [[1, 8, 1, 4096, 4], [9, 64, 1, 4096, 0]]},  # by the length of texts too
        {KEY: "[[1, 8"},
        {KEY: []},
        {KEY: [[2, 8, 4]]},
        {KEY: [[1, 8, 0]]},
        {"max_model_len": 2048},
        {"enable_adaptive_verification": True},
        {"speculative_token_tree": "[(0,), (0, 0)]"},
        {"a_key_of_tomorrow": 3},
    ],
    ids=str,
)
def test_draft_settings_of_vllm_that_no_recipe_can_express_are_refused(keys: dict[str, Any]) -> None:
    assert vllm(**keys).missing


@pytest.mark.parametrize(
    "keys",
    [
        {"draft_len_schedule": {"few": 4}},
        {"draft_len_schedule": [4]},
        {"acceptance_window": 64},
        {"acceptance_length_threshold": 1.5},
        {"max_total_draft_tokens": 60},
        {"decoding_type": "Eagle", "max_concurrency": 8},  # Its heads draft at any load in 1.2.
        {"use_dynamic_tree": True},
        {"sa_config": {"max_matching_ngram_size": 3}},
        {"a_key_of_tomorrow": 3},
    ],
    ids=str,
)
def test_draft_settings_of_tensorrt_llm_that_no_recipe_can_express_are_refused(
    keys: dict[str, Any], tmp_path: Path
) -> None:
    assert trtllm(tmp_path, **keys).missing


def test_keys_that_change_no_length_are_told_alone(tmp_path: Path) -> None:
    found = vllm(enforce_eager=True, attention_backend="FLASH_ATTN", moe_backend="auto")
    assert (found.missing, len([note for note in found.notes if "no key for it" in note.fate])) == ((), 3)
    assert not trtllm(tmp_path, load_format="auto", is_keep_all=True, is_public_pool=False).missing


def test_a_schedule_without_a_k_to_change() -> None:
    assert vllm(num_speculative_tokens=None, disable_by_batch_size=8).missing


SGLANG = "python -m sglang.launch_server --model-path org/big --speculative-draft-model-path org/EAGLE3"


def test_sglangs_adaptive_steps_go_on_to_sglang_and_to_no_other() -> None:
    flags = "--speculative-adaptive --speculative-adaptive-config steps.json"
    command = f"{SGLANG} --speculative-algorithm EAGLE3 --speculative-num-steps 3 {flags}"
    found = recipe_of(command, PATH)
    assert recipe(found).engine.extra_args == flags.split()
    assert not found.missing
    there = recipe_of(command, PATH, backend="vllm")
    assert [note.subject for note in there.missing] == [flags.split()[0], flags.split()[1]]


@pytest.mark.parametrize(
    ("flags", "method", "length"),
    [
        ("--speculative-algorithm DFLASH --speculative-dflash-block-size 8", "dflash", 7),
        ("--speculative-algorithm DSPARK --speculative-dspark-block-size 5", "dspark", 5),
    ],
)
def test_the_size_of_a_block_is_k(flags: str, method: str, length: int) -> None:
    """`--speculative-dflash-block-size` is another name of --speculative-num-draft-tokens in 0.5.23."""
    found = recipe_of(f"{SGLANG} {flags}", PATH)
    speculation = recipe(found).speculation
    assert (speculation.method.kind, speculation.max_draft_len) == (method, length)
    assert recipe(found).engine.extra_args == []


@pytest.mark.parametrize(
    ("backend", "kept"),
    [("tensorrt_llm_pytorch", True), ("torch", True), ("tensorrt_llm", True), ("sglang", False)],
)
def test_a_draft_schedule_moves_to_every_backend_that_can_follow_it(
    backend: str, kept: bool, tmp_path: Path
) -> None:
    path, text = tmp_path / "recipe.yaml", vllm(**{KEY: [[1, 8, 4], [9, 64, 0]]}).text
    path.write_text(text)
    found = move(text, load(path), backend, tmp_path / "moved.yaml")
    assert found.recipe.speculation.schedule == ({1: 4, 9: 0} if kept else None)
    told = {change.key: change for change in found.changes}
    assert ("speculation.schedule" in told) is not kept
    assert kept or "EAGLE's heads" in told["speculation.schedule"].reason
    back = move(found.text, loads(found.text.encode(), path), "vllm", tmp_path / "back.yaml").recipe
    assert back.speculation.schedule == found.recipe.speculation.schedule


def test_to_a_server_without_it_the_command_is_refused_unless_the_loss_is_allowed(tmp_path: Path) -> None:
    command = (
        f"vllm serve org/big --speculative-config '{json.dumps({**PAIR, KEY: [[1, 8, 4], [9, 64, 0]]})}'"
    )
    words = ["init", str(tmp_path / "r.yaml"), "--from", command, "--gpu", "h100", "--backend", "sglang"]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 1
    assert KEY in refused.output
    assert CliRunner().invoke(app, [*words, "--allow-loss"]).exit_code == 0
