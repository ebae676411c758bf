"""Which rows of which sequences go through the model in one step. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trtspec.serving.executors.torch.sequence import Sequence

# The most rows of one sequence in one step: bounds the table of masks, and how long others wait for a token.
CHUNK = 512


@dataclass(frozen=True, slots=True)
class Work:
    """`rows` new rows of a sequence: the next tokens that the cache lacks, then the draft.

    The logits of the last `choices` of them are wanted: one for each prefix of the draft, 0 for a prompt in
    progress.
    """

    sequence: Sequence
    rows: int
    choices: int


def schedule(running: Iterable[Sequence], max_num_tokens: int) -> list[Work]:
    """Each sequence that decodes gets its row; prompts share the rest in chunks, first come, first served.

    The result is in the order of rows: sequences with as many rows each go through attention together.
    """
    running, budget, works = list(running), max_num_tokens, []
    for decoding in (True, False):
        for sequence in running:
            if sequence.is_decoding is decoding and budget:
                work = _work(sequence, min(budget, CHUNK))
                budget -= work.rows
                if work.rows:
                    works.append(work)
    return sorted(works, key=lambda work: work.rows)


def _work(sequence: Sequence, budget: int) -> Work:
    choices = len(sequence.draft) + 1
    if sequence.missing <= budget:
        return Work(sequence, sequence.missing, choices)
    # The rows whose logits decide a draft stay together, in the step that finishes the prompt.
    return Work(sequence, min(budget, sequence.missing - choices), 0)
