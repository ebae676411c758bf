"""One-hot draft logits, with which TensorRT-LLM verifies sampled drafts exactly.

It is rule 4 of `trtspec.serving.executor`. `acceptDraftTokens` of `layers/externalDraftTokensLayer.cpp`
takes the softmax of the draft logits without temperature and masks, by `addBiasSoftMax` of
`kernels/decodingCommon.cu`. That computes in float32 and adds 1e-6 to the sum (1e-3 for float16 logits, which
changes acceptance by up to a thousandth). `acceptDraftTokensKernel` of
`kernels/speculativeDecoding/externalDraftTokensKernels.cu` compares p / q with a random number, and draws
from max(p - q, 0) if it is smaller. `newRequestDraftTokensExternal` of
`batch_manager/createNewDecoderRequests.cpp` copies the logits unchecked: another dtype or width fails every
running request. `retrieveDraftLogits` there copies them to its own pinned memory first, so pinned memory here
would save nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trtspec.serving.executor import Limits, LogitsFormat, Request
from trtspec.serving.executors.validation import Valid

Rows = npt.NDArray[Any]

HOT = 1000.0
"""The logit of the draft's token; all others are 0. exp(-1000) is 0 in float32, and float16 holds 1000."""


class DraftLogits:
    """Lends one-hot rows for drafts of up to `longest` tokens.

    An engine reads the rows some time between a request and its response, so each running verification has
    its own buffer. Returned buffers are reused, since only one number of each row changes.
    """

    def __init__(self, longest: int, form: LogitsFormat) -> None:
        self._shape, self._dtype = (longest, form.width), np.dtype(form.dtype)
        self._free: list[Rows] = []

    def lend(self, draft: list[int]) -> Rows:
        """Returns rows `[len(draft), width]`: row i is 1000 at token i of the draft and 0 elsewhere."""
        buffer = self._free.pop() if self._free else np.zeros(self._shape, self._dtype)
        buffer[range(len(draft)), draft] = HOT
        return buffer[: len(draft)]

    def take_back(self, rows: Rows, draft: list[int]) -> None:
        """Takes back rows that no engine reads any more. Those of a cancelled request must not come back."""
        rows[range(len(draft)), draft] = 0
        assert rows.base is not None
        self._free.append(rows.base)


def most_bytes(limits: Limits) -> int:
    """Returns the bytes of the rows of all drafts that an engine verifies at once; 0 if it takes none."""
    form = limits.draft_logits
    row = form.width * np.dtype(form.dtype).itemsize if form else 0
    return limits.max_batch_size * limits.max_draft_len * row


def needs_logits(request: Request, valid: Valid) -> bool:
    """Says whether a request verifies a sampled draft. Greedy verification is exact without logits."""
    return bool(valid.draft_token_ids) and not request.sampling.is_greedy
