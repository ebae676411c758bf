"""Prompts, and what the target alone says to each, as another implementation confirms."""

from __future__ import annotations

import asyncio
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
from transformers import AutoModelForCausalLM

from trtspec.serving.assembly import assemble
from trtspec.serving.completion import CompletionRequest
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.tokenizer import Tokenizer

TINY = Path(__file__).parents[2] / "recipes" / "tiny"
SHORT, LONG = 25, 5
WHOLE = 40
ANSWERS = ((4, ()), (16, ("\n\n", "return")), (WHOLE, ()))
NEAR_TIE = 1e-3
"""Logits closer than this may change places with the shape of a batch."""


@dataclass(frozen=True)
class Case:
    """`text` is the target's own greedy continuation of the prompt, cut at `max_tokens` or a stop string."""

    prompt: str
    max_tokens: int
    stop: tuple[str, ...]
    text: str


def make_cases(build: Path) -> list[Case]:
    """Of prompts whose text no rounding can change, so that every difference is a fault of the server."""
    prompts = _prompts(build)
    asked = [(prompt, max_tokens, stop) for prompt in prompts for max_tokens, stop in ANSWERS]
    requests = [
        CompletionRequest(prompt, max_tokens=max_tokens, stop=stop) for prompt, max_tokens, stop in asked
    ]
    answers = asyncio.run(_complete(build, requests))
    stable = {
        prompt
        for (prompt, max_tokens, _), (_, tokens) in zip(asked, answers, strict=True)
        if max_tokens == WHOLE and _is_stable(build, prompt, tokens)
    }
    assert len(stable) > 0.7 * len(prompts), "the target's text is not what transformers says"
    return [
        Case(prompt, max_tokens, stop, text)
        for (prompt, max_tokens, stop), (text, _) in zip(asked, answers, strict=True)
        if prompt in stable
    ]


def _prompts(build: Path) -> list[str]:
    """Cuts from files that the pair was not trained on."""
    library = Path(sysconfig.get_paths()["stdlib"])
    names = (TINY / "heldout.txt").read_text().split()
    tokenizer = tokenizers.Tokenizer.from_file(str(build / "tokenizer/tokenizer.json"))
    lengths = [10 + 4 * number for number in range(SHORT)] + [500 + 90 * number for number in range(LONG)]
    cuts = []
    for number, length in enumerate(lengths):
        ids = tokenizer.encode((library / names[number % len(names)]).read_text("utf-8")).ids
        start = len(ids) // 3
        cuts.append(tokenizer.decode(ids[start : start + length]))
    return cuts


async def _complete(build: Path, requests: list[CompletionRequest]) -> list[tuple[str, list[int]]]:
    target = TorchExecutor(build / "target" / "engine")
    coordinator = assemble(target, None, Tokenizer.load(build / "tokenizer"))
    answers = await asyncio.gather(*(coordinator.complete(request) for request in requests))
    target.shutdown()
    return [(answer.text, answer.token_ids) for answer in answers]


def _is_stable(build: Path, prompt: str, tokens: list[int]) -> bool:
    """Whether transformers chooses each of the tokens, and none of them narrowly."""
    tokenizer = tokenizers.Tokenizer.from_file(str(build / "tokenizer/tokenizer.json"))
    ids = tokenizer.encode(prompt).ids
    with torch.inference_mode():
        logits = _transformers()(torch.tensor([[*ids, *tokens]])).logits[0, len(ids) - 1 : -1]
    best = logits.topk(2)
    chosen = best.indices[:, 0].tolist() == tokens
    return chosen and bool(((best.values[:, 0] - best.values[:, 1]) > NEAR_TIE).all())


_LOADED: list[torch.nn.Module] = []


def _transformers() -> torch.nn.Module:
    if not _LOADED:
        _LOADED.append(AutoModelForCausalLM.from_pretrained(TINY / "target", dtype=torch.float32))
    return _LOADED[0]
