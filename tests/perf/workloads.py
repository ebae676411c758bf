"""What the tiny pair and a real model are asked, by what the answers are like."""

from __future__ import annotations

import random
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import AutoTokenizer

from tests.perf.chats import OTHER, QUOTING, RANDOM, SHORT, STRUCTURED, letters
from tests.perf.pair import TINY
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.executor import SamplingConfig
from trtspec.serving.tokenizer import Tokenizer

KINDS = ("quoting", "structured", "short", "random", "other")
GREEDY, HOT = SamplingConfig(), 2.0
"""The temperature at which a draft can guess little."""
SHORT_TOKENS = 8
MORE_SHORT = 4
"""How many times as many short answers there are, since each says little."""
SOME_CODE, MOST_CODE = 300, 600
"""How many characters of code are given, to be gone on with and to be said again."""


@dataclass(frozen=True)
class Question:
    """A request; `dictated` is what the target is to say, where that is not left to it."""

    name: str
    request: CompletionRequest
    dictated: Sequence[int] = ()


Questions = dict[str, list[Question]]


def of_tiny(build: Path, number: int, tokens: int) -> Questions:
    """Returns `number` questions of each kind for the tiny pair.

    Its target was taught not to repeat itself and quotes nothing. So where it is to quote, it is dictated the
    code that it was given with one name changed.
    """
    tokenizer = Tokenizer.load(build / "tokenizer")

    def ask(
        name: str, prompt: str, most: int = tokens, sampling: SamplingConfig = GREEDY, said: str = ""
    ) -> Question:
        dictated = tokenizer.encode(said)[:most]
        request = CompletionRequest(
            prompt_token_ids=tokenizer.encode(prompt),
            max_tokens=len(dictated) or most,
            end_id=NO_END,
            sampling=sampling,
        )
        return Question(name, request, dictated)

    def quoting(index: int) -> Question:
        given, edited = edit(index)
        return ask(f"edit {index}", given, said=edited)

    makers: Mapping[str, Callable[[int], Question]] = {
        "quoting": quoting,
        "structured": lambda index: ask(f"rows {index}", rows(index)),
        "short": lambda index: ask(f"short {index}", code(number + index, SOME_CODE), SHORT_TOKENS),
        "random": lambda index: ask(
            f"random {index}",
            letters(index) if index % 2 else code(index, SOME_CODE),
            sampling=SamplingConfig(temperature=HOT, seed=index),
        ),
        "other": lambda index: ask(f"code {index}", code(index, SOME_CODE)),
    }
    return {
        kind: [make(index) for index in range(MORE_SHORT * number if kind == "short" else number)]
        for kind, make in makers.items()
    }


def edit(index: int) -> tuple[str, str]:
    """Returns a piece of code, and the same with another name in it."""
    piece = code(index, MOST_CODE)
    name, _ = Counter(re.findall(r"\b[a-z_]{4,}\b", piece)).most_common(6)[-1]
    return piece + "\n", re.sub(rf"\b{name}\b", "renamed", piece)


def code(index: int, least: int) -> str:
    """Returns lines of code that the pair was not trained on, at least so many characters."""
    names = (TINY / "heldout.txt").read_text().split()
    text = (Path(sysconfig.get_paths()["stdlib"]) / names[index % len(names)]).read_text(encoding="utf-8")
    begin = text.index("\n", len(text) // (3 + index // len(names))) + 1
    return text[begin : text.index("\n", begin + least) + 1]


def rows(index: int) -> str:
    """Returns the beginning of a table or of JSON, of 8 rows."""
    dice = random.Random(index)
    words = ["apple", "table", "letter", "window", "paper", "number", "garden", "silver"]
    dice.shuffle(words)
    head, row = (
        ("rows = [\n", '    {{"name": "{}", "size": {}, "count": {}}},\n'),
        ("# | name | size | count |\n", "# | {} | {} | {} |\n"),
        ("SIZES = {\n", "    '{}': ({}, {}),\n"),
    )[index % 3]
    return head + "".join(row.format(word, dice.randrange(100), dice.randrange(100)) for word in words)


def of_chat(model: Path, number: int, tokens: int) -> Questions:
    """Returns at most `number` questions of each kind for a chat model, greedy but for the random texts."""
    tokenizer = AutoTokenizer.from_pretrained(model)

    def ask(name: str, text: str, sampling: SamplingConfig) -> Question:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True
        )
        return Question(
            name, CompletionRequest(prompt_token_ids=prompt, max_tokens=tokens, sampling=sampling)
        )

    asked = dict(zip(KINDS, (QUOTING, STRUCTURED, SHORT, RANDOM, OTHER), strict=True))
    return {
        kind: [
            ask(name, text, SamplingConfig(temperature=HOT, seed=index) if kind == "random" else GREEDY)
            for index, (name, text) in enumerate(list(texts.items())[:number])
        ]
        for kind, texts in asked.items()
    }
