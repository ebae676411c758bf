"""Makes training examples: a prompt with the target's answer. Only the answer counts for the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trtspec.serving.tokenizer import Tokenizer
from trtspec.train.tune.answer import RecordedAnswer

IGNORED = -100  # the label that the losses of PyTorch and transformers ignore


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and its answer."""

    token_ids: tuple[int, ...]
    """The prompt followed by the answer."""
    num_prompt: int
    """The number of tokens of the prompt."""


def examples_of(answers: Sequence[RecordedAnswer], tokenizer: Tokenizer, max_length: int) -> list[Example]:
    """Returns the examples of answers whose prompts leave room for them.

    An end token follows the answers that it ended. Prompt and answer together are cut at `max_length` tokens.
    """
    examples = []
    for answer in answers:
        end = tokenizer.end_ids[:1] if answer.stopped else ()
        token_ids = (*answer.prompt, *answer.tokens, *end)[:max_length]
        examples.append(Example(token_ids, len(answer.prompt)))
    return examples


def collate(examples: Sequence[Example]) -> dict[str, torch.Tensor]:
    """Returns a batch for transformers' causal models: tensors [examples, longest] int64.

    Rows are padded after their ends; padding is neither attended to nor learned.
    """
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
