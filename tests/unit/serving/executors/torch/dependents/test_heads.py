"""What heads propose in their target is what plain modules of transformers propose over its hidden states."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from tests.fakes.drafting import random_head, reference, said, tiny_target, trained_head
from tests.fakes.engine_dir import write_engine
from tests.support.families import GEMMAS, case
from trtspec.backends.torch.builder import build_head
from trtspec.models.heads.reading import read_head
from trtspec.serving.async_executor import AsyncExecutor
from trtspec.serving.executor import Executor, Request
from trtspec.serving.executors.torch.torch_executor import load_engines
from trtspec.serving.text import Text

K = 5
ROUNDS = 8
FORMATS = ("speculators", "speculators_qwen3", "specforge", "eagle3", "eagle", "medusa")
OFTEN = (("gemma2", "eagle"), ("gemma3_text", "eagle3"))
PROMPTS = ([5, 3, 17, 9, 20, 2, 11], [7, 1], [4, 4, 19, 8, 3, 22, 6, 10, 13, 1, 2])


def engines(folder: Path, target: PreTrainedModel, head: Path, **build: Any) -> list[Path]:
    found = read_head(head)
    engine = write_engine(
        folder / "target",
        target,
        plugin_config={"use_paged_context_fmha": True},
        gather_generation_logits=False,
        **build,
    )
    build_head(found, engine, folder / "draft")
    return [engine, folder / "draft"]


async def rounds(
    pair: Sequence[Executor], prompt: list[int], count: int = K
) -> list[tuple[list[int], list[int]]]:
    """The text before each round and what is proposed for it, until the rounds are over."""
    target, draft = (AsyncExecutor(engine) for engine in pair)
    text, seen = Text(prompt), []
    for _ in range(ROUNDS):
        proposed = (await draft.answer(Request(text, count), 1e9)).token_ids
        seen.append((list(text), proposed))
        verified = Request(text, len(proposed) + 1, draft_token_ids=proposed)
        text.extend((await target.answer(verified, 1e9)).token_ids)
    return seen


@pytest.mark.parametrize(
    ("family", "name"),
    [("llama", name) for name in FORMATS]
    + [case(family, name, often=(family, name) in OFTEN) for family in GEMMAS for name in FORMATS],
)
def test_heads_propose_the_same_tokens_as_transformers_modules(
    tmp_path: Path, family: str, name: str
) -> None:
    """For three texts at once, from round to round; nothing before the target has read the prompt.

    A Gemma scales its embedding, which the head reads as it is stored, and bounds its logits, here so that
    those of a random head are still apart.
    """
    target = tiny_target(family, **({"final_logit_softcapping": 60.0} if family in GEMMAS else {}))
    head = random_head(tmp_path / "head", name)
    theirs = reference(name, head, target)

    async def main() -> list[list[tuple[list[int], list[int]]]]:
        pair = load_engines(engines(tmp_path, target, head))
        found = await asyncio.gather(*(rounds(pair, prompt) for prompt in PROMPTS))
        for engine in reversed(pair):
            engine.shutdown()
        return found

    said = set()
    for first, *others in asyncio.run(main()):
        assert first[1] == []
        assert [ours for _, ours in others] == [theirs.propose(text, K) for text, _ in others]
        said |= {token for _, ours in others for token in ours}
    assert len(said) > 3


def test_a_head_that_has_learnt_is_accepted(tmp_path: Path) -> None:
    """Mostly, so that the target keeps what it has computed of a draft, and the head what it has read."""
    target = tiny_target()
    texts = [[*prompt, *said(target, prompt, 40)] for prompt in PROMPTS]
    head = trained_head(tmp_path / "head", target, texts, steps=60)
    theirs = reference("speculators", head, target)

    async def main() -> list[list[tuple[list[int], list[int]]]]:
        pair = load_engines(engines(tmp_path, target, head))
        found = await asyncio.gather(*(rounds(pair, prompt) for prompt in PROMPTS))
        for engine in reversed(pair):
            engine.shutdown()
        return found

    seen = [round_ for found in asyncio.run(main()) for round_ in found[1:]]
    assert [ours for _, ours in seen] == [theirs.propose(text, K) for text, _ in seen]
    gained = [len(after) - len(before) for (before, _), (after, _) in pairwise(seen)]
    assert sum(tokens for tokens in gained if tokens > 0) > 2 * len(gained)
