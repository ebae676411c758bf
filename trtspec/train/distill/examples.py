"""Makes training examples: a prompt with the target's answer, of which only the answer counts for the
loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtspec.serving.tokenizer import Tokenizer
from trtspec.train.tune.answer import RecordedAnswer

if TYPE_CHECKING:
    import torch

IGNORED = -100  # the label that the losses of PyTorch and transformers leave out


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and its answer."""

    token_ids: tuple[int, ...]
    """The prompt and behind it the answer."""
    num_prompt: int
    """The number of tokens of the prompt."""


def examples_of(answers: Sequence[RecordedAnswer], tokenizer: Tokenizer, max_length: int) -> list[Example]:
    """Returns what is learned of answers whose prompts leave room for them.

    The end token is behind those that it ended. All are cut at `max_length` tokens with their prompts.
    """
    examples = []
    for answer in answers:
        end = tokenizer.end_ids[:1] if answer.stopped else ()
        token_ids = (*answer.prompt, *answer.tokens, *end)[:max_length]
        examples.append(Example(token_ids, len(answer.prompt)))
    return examples


def collate(examples: Sequence[Example]) -> dict[str, torch.Tensor]:
    """Returns a batch as transformers' causal models take it: tensors [examples, longest] int64.

    Rows are filled up behind their ends, where no token attends and none is learned.
    """
    import torch

    shape = len(examples), max(len(example.token_ids) for example in examples)
    batch = {
        "input_ids": torch.zeros(shape, dtype=torch.int64),
        "attention_mask": torch.zeros(shape, dtype=torch.int64),
        "labels": torch.full(shape, IGNORED),
    }
    for row, example in enumerate(examples):
        ids, length = torch.tensor(example.token_ids), len(example.token_ids)
        batch["input_ids"][row, :length] = ids
        batch["attention_mask"][row, :length] = 1
        batch["labels"][row, example.num_prompt : length] = ids[example.num_prompt :]
    return batch
