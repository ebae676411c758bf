"""The demo pair, built in float32 and bfloat16, and verified in this process."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import trtspec
from trtspec.measure.verify.opening import InProcess, load_build
from trtspec.measure.verify.prompts import Vocabulary, asked, built_in
from trtspec.measure.verify.result import VerifyResult
from trtspec.measure.verify.sides import Sides, VerificationSettings
from trtspec.measure.verify.verification import verify
from trtspec.serving.triton.engines import EnginePair

TINY = Path(__file__).parents[4] / "recipes" / "tiny"
MODEL = "speculative_llm"
Verified = Callable[..., VerifyResult]


def build(folder: Path, dtype: str) -> Path:
    """Builds the pair with a tokenizer that begins every text, as most do."""
    for role in ("target", "draft"):
        shutil.copytree(TINY / role, folder / role)
        file = folder / role / "tokenizer.json"
        tokenizer = json.loads(file.read_text())
        end = tokenizer["added_tokens"][0]
        tokenizer["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": end["content"], "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                end["content"]: {"id": end["content"], "ids": [end["id"]], "tokens": [end["content"]]}
            },
        }
        file.write_text(json.dumps(tokenizer))
    recipe = folder / "recipe.yaml"
    recipe.write_text((TINY / "recipe.yaml").read_text().replace("dtype: float32", f"dtype: {dtype}"))
    made = trtspec("build", recipe, "--output", folder / "build")
    assert made.returncode == 0, made.stderr
    return folder / "build"


@pytest.fixture(scope="session")
def float32_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("float32"), "float32")


@pytest.fixture(scope="session")
def bfloat16_build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("bfloat16"), "bfloat16")


@pytest.fixture
def verified() -> Verified:
    """Verifies a build, with what `change` makes of its engines."""

    def run(
        folder: Path,
        settings: VerificationSettings,
        names: tuple[str, ...],
        change: Callable[[EnginePair], EnginePair] = lambda pair: pair,
    ) -> VerifyResult:
        async def main() -> VerifyResult:
            vocabulary = Vocabulary.load(folder / "tokenizer")
            prompts = asked(built_in(vocabulary), vocabulary, names)
            subject = InProcess("the pair", change(load_build(folder, MODEL)))
            try:
                sides = Sides(subject, subject)
                return await verify(sides, vocabulary, prompts, settings, lambda number: None)
            finally:
                await subject.close()

        return asyncio.run(main())

    return run
