"""The tiny pair, with a draft whose ids are shuffled: built, checked and asked; the text is the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.fakes.vocabularies import shuffled_model
from tests.perf.pair import heldout
from tests.support.command_line import trtspec
from tests.support.draft_failures import draft_failures
from trtspec.measure.verify.opening import load_build
from trtspec.serving.completion import CompletionRequest
from trtspec.serving.executor import SamplingConfig
from trtspec.serving.executors.torch.device_thread import DeviceThread
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.stats import SpeculationCounts
from trtspec.serving.triton.engines import EnginePair

TINY = Path(__file__).parents[2] / "recipes" / "tiny"
METHOD = "method: {kind: draft_model, use_heterogeneous_vocab: true}"
PROMPTS, MOST = 8, 32


@pytest.fixture(scope="module")
def shuffled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe of the tiny pair with such a draft, without the key that allows it."""
    folder = tmp_path_factory.mktemp("shuffled")
    shuffled_model(TINY / "draft", folder / "draft")
    text = (TINY / "recipe.yaml").read_text().replace("./target", str(TINY / "target"))
    (folder / "recipe.yaml").write_text(text)
    return folder / "recipe.yaml"


@pytest.fixture(scope="module")
def recipe(shuffled: Path) -> Path:
    path = shuffled.with_name("translated.yaml")
    path.write_text(shuffled.read_text().replace("speculation:\n", f"speculation:\n  {METHOD}\n"))
    return path


@pytest.fixture(scope="module")
def build(recipe: Path) -> Path:
    result = trtspec("build", recipe, "--output", recipe.with_name("build"))
    assert result.returncode == 0, result.stderr
    return recipe.with_name("build")


@pytest.fixture(scope="module")
def pair(build: Path) -> Iterator[EnginePair]:
    async def load() -> EnginePair:
        return load_build(build, "speculative_llm")

    loaded = asyncio.run(load())
    yield loaded
    loaded.shutdown()


@pytest.fixture(scope="module")
def same_ids(pair: EnginePair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnginePair]:
    """The same target with the draft as it is."""
    folder = tmp_path_factory.mktemp("own") / "build"
    result = trtspec("build", TINY / "recipe.yaml", "--output", folder)
    assert result.returncode == 0, result.stderr
    draft = TorchExecutor(folder / "draft/engine", device_thread=DeviceThread(lambda: 1))
    yield EnginePair(pair.target, draft, pair.tokenizer)
    draft.shutdown()


def said(
    pair: EnginePair, number: int = PROMPTS, sampling: SamplingConfig | None = None
) -> tuple[list[list[int]], SpeculationCounts]:
    """The tokens of each answer, and what was accepted in all."""
    request = CompletionRequest(
        prompt="", max_tokens=MOST, num_draft_tokens=4, sampling=sampling or SamplingConfig()
    )

    async def main() -> tuple[list[list[int]], SpeculationCounts]:
        coordinator = pair.coordinator()
        asked = [replace(request, prompt=prompt) for prompt in heldout(number)]
        answers = await asyncio.gather(*map(coordinator.complete, asked))
        assert draft_failures(coordinator.stats) == 0
        return [answer.token_ids for answer in answers], coordinator.stats.by_origin["engine"]

    return asyncio.run(main())


def test_without_the_key_the_refusal_names_it(shuffled: Path) -> None:
    result = trtspec("check", shuffled)
    assert result.returncode == 1
    assert METHOD in result.stderr


def test_with_it_the_cost_is_told(recipe: Path) -> None:
    result = trtspec("check", recipe, "--json")
    assert result.returncode == 0, result.stderr
    found = {finding["subject"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert found["vocabularies"]["problem"] == "2048 of the target's 2048 tokens are among the draft's 2048"
    assert "translated" in found["vocabularies"]["effect"]
    assert {finding["severity"] for finding in found.values()} == {"note"}


@pytest.mark.parametrize("command", ["tune", "distill"])
def test_tune_and_distill_refuse_a_draft_with_another_vocabulary(recipe: Path, command: str) -> None:
    prompts = recipe.with_name("prompts.jsonl")
    prompts.write_text("".join(f'{{"prompt": "{prompt}"}}\n' for prompt in "abc"))
    result = trtspec(command, recipe, "--workload", prompts)
    assert result.returncode == 1
    assert "speculation.method.use_heterogeneous_vocab" in result.stderr


def test_the_build_has_both_tokenizers(build: Path, recipe: Path) -> None:
    for tokenizer, model in (("tokenizer", TINY / "target"), ("draft/tokenizer", recipe.parent / "draft")):
        assert (build / tokenizer / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    config = (build / "model_repository/speculative_llm/config.pbtxt").read_text()
    assert '"../../draft/tokenizer"' in config
    assert "draft/tokenizer/tokenizer.json" in json.loads((build / "manifest.json").read_text())["outputs"]


@pytest.mark.sweep
def test_acceptance_and_text_are_those_of_the_same_ids(pair: EnginePair, same_ids: EnginePair) -> None:
    (own, expected), (text, found) = said(same_ids), said(pair)
    assert text == own
    assert expected.num_draft_tokens > 100
    assert abs(found.draft_acceptance_rate - expected.draft_acceptance_rate) <= 0.01


@pytest.mark.sweep
def test_a_sampled_text_is_the_targets_own(pair: EnginePair, same_ids: EnginePair) -> None:
    """And as much of it is accepted: both draw alike, whatever the ids."""
    sampling = SamplingConfig(temperature=0.8, top_p=0.95, seed=5)
    (own, expected), (text, found) = said(same_ids, 4, sampling), said(pair, 4, sampling)
    assert text == own
    assert expected.draft_acceptance_rate > 0.2
    assert abs(found.draft_acceptance_rate - expected.draft_acceptance_rate) <= 0.02


def test_transformers_says_the_same_of_two_tokenizers(pair: EnginePair, recipe: Path) -> None:
    """Its assisted generation translates too; both say what the target says alone."""
    text, _ = said(pair, 2)
    folders = {"target": TINY / "target", "draft": recipe.parent / "draft"}
    models = {name: AutoModelForCausalLM.from_pretrained(folder) for name, folder in folders.items()}
    tokenizers = {name: AutoTokenizer.from_pretrained(folder) for name, folder in folders.items()}
    for prompt, ours in zip(heldout(2), text, strict=True):
        ids = tokenizers["target"](prompt, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            theirs = (
                models["target"]
                .float()
                .generate(
                    ids,
                    assistant_model=models["draft"].float(),
                    tokenizer=tokenizers["target"],
                    assistant_tokenizer=tokenizers["draft"],
                    max_new_tokens=MOST,
                    do_sample=False,
                )
            )
        assert theirs[0, ids.shape[1] :].tolist()[: len(ours)] == ours
