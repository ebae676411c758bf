"""The scheduler, which chooses the rows of sequences that the model computes in a step. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trtspec.serving.executors.torch.sequence import Sequence

# The rows of a step with prompts, which all others wait for. All rows of a step share one reading of the
# weights. With enough rows the products take longer than the reading. Then each row costs the same, and
# larger steps only delay others. Enough is half the operations that the device makes while it reads a byte,
# times the bytes of a weight: 16 to 70 rows on CPUs (2 cores to 100, float32), 300 on an H100 (990 TFLOP/s
# and 3.35 TB/s, bfloat16). These are several times that.
MAX_ROWS = {"cpu": 256, "cuda": 2048}

# The largest number of rows of one sequence in one step, which bounds its mask: each row has all positions.
CHUNK = 512


@dataclass(frozen=True, slots=True)
class Work:
    """The new rows of a sequence in a step."""

    sequence: Sequence
    rows: int
    """The number of new rows: tokens that the cache lacks, then the draft."""
    choices: int
    """The number of last rows with logits, one for each prefix of the draft.

    0 for a chunk of a prompt that is not the last one.
    """


@dataclass(frozen=True, slots=True)
class StepScheduler:
    """Fills each step with rows, those of decoding sequences first.

    A decoding sequence has one row or a verification. All of these are in the step, since they are few.
    Prompts share the remaining rows, in chunks, first come, first served. They get at least a quarter of
    `max_rows`, and at least as many as the decoding sequences, so that long drafts of many sequences do not
    delay the first tokens of others.
    """

    max_rows: int
    """The number of rows that fill a step. A step has more if prompts would get too few."""
    short: int
    """A sequence that lacks at most this many tokens is decoding."""

    def schedule(self, running: Iterable[Sequence]) -> list[Work]:
        """Returns the work of a step, sorted by rows and then by length: neighbours share attention."""
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
    # The rows with logits stay together, in the step that finishes the prompt.
    return Work(sequence, min(budget, sequence.missing - choices), 0)
