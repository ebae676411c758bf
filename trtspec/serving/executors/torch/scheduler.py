"""The scheduler: it decides which rows of which sequences go through the model in a step. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trtspec.serving.executors.torch.sequence import Sequence

# The rows of prompts in one step, which everything else waits for. All rows of a step share one reading of
# the weights. With enough rows the products take longer than the reading; then each row costs the same, and
# larger steps only make others wait longer. Enough is half the operations that the device makes while it
# reads a byte, times the bytes of a weight: 16 to 70 rows on CPUs (2 cores to 100, float32), 300 on an H100
# (990 TFLOP/s and 3.35 TB/s, bfloat16). These are several times that.
MAX_ROWS = {"cpu": 256, "cuda": 2048}

# The most rows of one sequence in one step: bounds its mask, which has its whole text in each row.
CHUNK = 512


@dataclass(frozen=True, slots=True)
class Work:
    """The new rows of a sequence in a step."""

    sequence: Sequence
    rows: int
    """The number of new rows: the next tokens that the cache lacks, then the draft."""
    choices: int
    """The number of rows, the last ones, whose logits are wanted: one for each prefix of the draft.

    0 for a prompt of which more is to come.
    """


@dataclass(frozen=True, slots=True)
class StepScheduler:
    """Fills each step with rows, those of sequences that are decoding first.

    Sequences that are decoding have a row or a verification each. All of them come first, since a batch of
    them is small. Prompts share the remaining rows, in chunks, first come, first served. They get at least a
    quarter of `max_rows`, and as many as those that are decoding have, so that long drafts of many sequences
    do not keep others waiting for their first token.
    """

    max_rows: int
    """The number of rows that fill a step; it has more where these would leave prompts too few."""
    short: int
    """A sequence that lacks at most this many tokens is decoding."""

    def schedule(self, running: Iterable[Sequence]) -> list[Work]:
        """Returns the work of a step by number of rows and then by length: neighbours share attention."""
        works, prompts = [], []
        for sequence in running:
            if sequence.missing <= self.short:
                works.append(Work(sequence, sequence.missing, len(sequence.draft) + 1))
            else:
                prompts.append(sequence)
        decoding = sum(work.rows for work in works)
        budget = max(self.max_rows - decoding, self.max_rows // 4, decoding)
        for sequence in prompts:
            work = _chunk(sequence, min(budget, CHUNK))
            budget -= work.rows
            if work.rows:
                works.append(work)
        return sorted(works, key=lambda work: (work.rows, work.sequence.computed))


def _chunk(sequence: Sequence, budget: int) -> Work:
    choices = len(sequence.draft) + 1
    if sequence.missing <= budget:
        return Work(sequence, sequence.missing, choices)
    # The rows whose logits decide a draft stay together, in the step that finishes the prompt.
    return Work(sequence, min(budget, sequence.missing - choices), 0)
