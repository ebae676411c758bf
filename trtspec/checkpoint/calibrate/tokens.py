"""Turns texts into token ids with the model's own tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtspec.base.errors import DatasetError, ModelError
from trtspec.checkpoint.calibrate.texts import Text

if TYPE_CHECKING:
    import torch


class Encoder:
    """Turns a text into token ids.

    `chat_template` wraps each text, as a user's message, in the model's template; transformers renders it in
    Jinja's sandbox. Raises ModelError for a model without a template. Errors name `dataset`.
    """

    def __init__(self, folder: Path, dataset: Path, max_length: int, *, chat_template: bool) -> None:
        from transformers import PreTrainedTokenizerFast

        self._tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        self._dataset, self._max_length, self._chat_template = dataset, max_length, chat_template
        if chat_template and not self._tokenizer.chat_template:
            problem = "the tokenizer has no chat template"
            raise ModelError(folder, problem, "remove chat_template, or use the instruct model")

    def __call__(self, text: Text) -> list[int]:
        """At most `max_length` token ids. Raises DatasetError for messages that cannot be rendered."""
        if self._chat_template:
            ids = self._tokenizer(self._render(text), add_special_tokens=False)["input_ids"]
        elif isinstance(text, str):
            ids = self._tokenizer(text)["input_ids"]
        else:
            problem = "holds messages, which need a chat template"
            raise DatasetError(self._dataset, problem, "write chat_template: true")
        return list(ids[: self._max_length])

    def _render(self, text: Text) -> str:
        from jinja2 import TemplateError

        messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
        answered = messages[-1]["role"] == "assistant"
        try:
            rendered: str = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=not answered
            )
        except TemplateError as error:
            problem = f"the chat template refuses a conversation: {error}"
            raise DatasetError(
                self._dataset, problem, "use a dataset with roles that the template supports"
            ) from None
        return rendered


def batches(texts: Sequence[Sequence[int]], size: int) -> Iterator[torch.Tensor]:
    """Yields tensors [<= size, length] int64, one text a row, repeated up to the longest of its batch.

    Nothing is padded, because padding would affect the scales.
    """
    import torch

    for first in range(0, len(texts), size):
        together = texts[first : first + size]
        length = max(map(len, together))
        yield torch.tensor([_repeated(text, length) for text in together])


def _repeated(text: Sequence[int], length: int) -> list[int]:
    return [text[place % len(text)] for place in range(length)]


def encode(texts: Iterable[Text], encoder: Encoder) -> list[list[int]]:
    """The token ids of each text, without texts that have none."""
    return [ids for ids in map(encoder, texts) if ids]
