"""Ids past a model's embedding, which published models have: noted at build, and no fault of the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from tests.fakes.broken_recipes import ALONE, add, edit
from tests.support.command_line import trtspec
from trtspec.deployment.build import find_build
from trtspec.pipeline.engine.directory import Runtime
from trtspec.serving.completion import CompletionRequest
from trtspec.serving.errors import RequestError
from trtspec.serving.triton.engines import EnginePair, load


@pytest.fixture(params=[{}, ALONE], ids=["pair", "alone"])
def recipe(request: pytest.FixtureRequest, pair_recipe: Path) -> Path:
    lines: Mapping[str, str] = request.param
    text = pair_recipe.read_text()
    for old, new in lines.items():
        text = text.replace(old, new)
    pair_recipe.write_text(text)
    return pair_recipe


def loaded(build: Path) -> EnginePair:
    """Loads what was built, once `deploy` would have passed it."""
    model = build / "model_repository/speculative_llm"
    config = text_format.Parse((model / "config.pbtxt").read_text(), pb.ModelConfig())
    return load({key: value.string_value for key, value in config.parameters.items()}, model)


def built(recipe: Path) -> str:
    """Builds it, and returns what was said."""
    done = trtspec("build", recipe, "--output", recipe.parent / "out", folder=recipe.parent)
    assert done.returncode == 0, done.stderr
    find_build(recipe, recipe.parent / "out").check(Runtime(None, None, ()))
    return done.stderr


def test_a_marker_that_no_prompt_needs_is_a_note_and_a_prompt_with_it_is_refused(recipe: Path) -> None:
    for folder in recipe.parent.glob("*/tokenizer.json"):
        add(str(folder.relative_to(recipe.parent)), special=True)(recipe.parent)
    for command in ("check", "plan", "doctor"):
        done = trtspec(command, recipe, folder=recipe.parent)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "264 (b'<image_soft_token>'), past its own embedding of 264 rows" in done.stdout + done.stderr
    said = built(recipe)
    assert "warning: vocabulary: 1 id of the target's tokenizer, such as 264 (b'<image_soft_token>')" in said

    async def ask() -> None:
        pair = loaded(recipe.parent / "out")
        try:
            coordinator = pair.coordinator()
            await coordinator.complete(CompletionRequest("def add", max_tokens=8))
            with pytest.raises(RequestError, match="prompt is text with the token '<image_soft_token>'"):
                await coordinator.complete(CompletionRequest("see <image_soft_token>", max_tokens=8))
        finally:
            pair.shutdown()

    asyncio.run(ask())


@pytest.mark.parametrize(("named", "kept"), [([1, 9999], [1]), (9999, [1])])
def test_an_end_that_the_model_cannot_say_is_left_out_with_a_note(
    recipe: Path, named: object, kept: list[int]
) -> None:
    edit("target/generation_config.json", eos_token_id=named)(recipe.parent)
    said = built(recipe)
    assert "warning: end tokens: 9999 in the target's configuration, past its embedding of 264 rows" in said
    config = json.loads((recipe.parent / "out/tokenizer/generation_config.json").read_text())
    assert config["eos_token_id"] == kept

    async def ask() -> None:
        pair = loaded(recipe.parent / "out")
        try:
            await pair.coordinator().complete(CompletionRequest("def add", max_tokens=8))
        finally:
            pair.shutdown()

    asyncio.run(ask())


def test_no_end_at_all_is_copied_as_none(recipe: Path) -> None:
    edit("target/generation_config.json", eos_token_id=9999)(recipe.parent)
    edit("target/config.json", eos_token_id=None)(recipe.parent)
    built(recipe)
    config = json.loads((recipe.parent / "out/tokenizer/generation_config.json").read_text())
    assert "eos_token_id" not in config
