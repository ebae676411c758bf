"""Reads prompts, with their token ids by a reference tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers

from trtspec.base.errors import ModelError
from trtspec.base.own_prompts import OWN
from trtspec.measure.workloads.workload import Prompt
from trtspec.serving.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class VerifyPrompt:
    """A prompt by its name, as text and as the token ids that it has."""

    name: str
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokenizer of the target.

    It is read independently of the server's, to check how the server tokenizes text.
    """

    inner: tokenizers.Tokenizer
    words: Tokenizer
    begin_ids: tuple[int, ...]
    """The token ids that the tokenizer puts before every text."""

    @classmethod
    def load(cls, folder: Path) -> Vocabulary:
        """Reads a tokenizer's folder; raises `TokenizerError`."""
        words = Tokenizer.load(folder)
        inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        inner.no_truncation()
        inner.no_padding()
        bare, begun = inner.encode("a", add_special_tokens=False).ids, inner.encode("a").ids
        at = next((i for i in range(len(begun)) if begun[i : i + len(bare)] == bare), 0)
        return cls(inner, words, tuple(begun[:at]))

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The token ids that end a text."""
        return self.words.end_ids

    def encode(self, text: str) -> tuple[int, ...]:
        """Returns the token ids of a prompt with one begin token, even if the text contains it literally."""
        ids = tuple(self.inner.encode(text).ids)
        begin = self.begin_ids
        return ids[len(begin) :] if begin and ids[: 2 * len(begin)] == begin * 2 else ids

    def text(self, token_ids: Sequence[int]) -> str:
        """Returns the text of tokens in the middle of a text; special tokens have none."""
        detokenizer = self.words.detokenizer()
        return "".join(map(detokenizer.push, token_ids)) + detokenizer.flush()

    def name(self, token_id: int) -> str:
        """Returns a token for people: its text in quotes, or its name if it has no text."""
        text = self.text([token_id])
        return repr(text) if text else self.words.name_of(token_id) or f"token {token_id}"

    @property
    def beginning(self) -> str:
        """The begin token as text in prompts; empty if the tokenizer has none."""
        return "".join(map(self.words.name_of, self.begin_ids))


def asked(prompts: Sequence[Prompt], vocabulary: Vocabulary, names: Sequence[str] = ()) -> list[VerifyPrompt]:
    """Returns the prompts with these `names`, or all; raises `ModelError` for an unknown name."""
    known = {prompt.name: prompt for prompt in prompts}
    for name in names:
        if name not in known:
            raise ModelError(name, "no prompt has this name", f"they are {', '.join(known)}")
    chosen = [known[name] for name in names] or list(prompts)
    return [VerifyPrompt(prompt.name, prompt.text, vocabulary.encode(prompt.text)) for prompt in chosen]


def built_in(vocabulary: Vocabulary) -> list[Prompt]:
    """Returns trtspec's own prompts; one of them contains the begin token as text, if there is one."""
    prompts = [
        Prompt(f"{kind}-{number}", (text,), kind)
        for kind, texts in OWN.items()
        for number, text in enumerate(texts, 1)
    ]
    if beginning := vocabulary.beginning:
        prompts.append(Prompt("begun-1", (beginning + prompts[0].text,), "begun"))
    return prompts
