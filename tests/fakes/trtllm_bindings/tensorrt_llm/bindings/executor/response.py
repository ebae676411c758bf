"""What an `Executor` answers (`request.cpp`)."""

from __future__ import annotations

import enum
from dataclasses import field

from tensorrt_llm.bindings.executor.errors import check
from tensorrt_llm.bindings.executor.strict import Bound, Int32, UInt64, Unsupported


class FinishReason(enum.Enum):
    NOT_FINISHED = 0
    END_ID = 1
    STOP_WORDS = 2
    LENGTH = 3
    TIMED_OUT = 4
    CANCELLED = 5


class SpeculativeDecodingMetrics(Bound):
    acceptance_rate: float = field(default=0.0, init=False)
    total_accepted_draft_tokens: Int32 = field(default=0, init=False)
    total_draft_tokens: Int32 = field(default=0, init=False)


class KvCacheMetrics(Bound):
    num_total_allocated_blocks: Int32 = field(default=0, init=False)
    num_new_allocated_blocks: Int32 = field(default=0, init=False)
    num_reused_blocks: Int32 = field(default=0, init=False)
    num_missed_blocks: Int32 = field(default=0, init=False)
    kv_cache_hit_rate: float = field(default=0.0, init=False)


class RequestPerfMetrics(Bound):
    kv_cache_metrics: KvCacheMetrics = field(default_factory=KvCacheMetrics, init=False)
    speculative_decoding: SpeculativeDecodingMetrics = field(
        default_factory=SpeculativeDecodingMetrics, init=False
    )


class Result(Bound):
    is_final: bool = field(default=False, init=False)
    output_token_ids: list[list[Int32]] = field(default_factory=list, init=False)
    cum_log_probs: list[float] | None = field(default=None, init=False)
    log_probs: list[list[float]] | None = field(default=None, init=False)
    context_logits: Unsupported | None = field(default=None, init=False)
    generation_logits: Unsupported | None = field(default=None, init=False)
    spec_dec_fast_logits_info: Unsupported | None = field(default=None, init=False)
    encoder_output: Unsupported | None = field(default=None, init=False)
    finish_reasons: list[FinishReason] = field(default_factory=list, init=False)
    sequence_index: Int32 = field(default=0, init=False)
    is_sequence_final: bool = field(default=False, init=False)
    decoding_iter: Int32 = field(default=0, init=False)
    context_phase_params: Unsupported | None = field(default=None, init=False)
    request_perf_metrics: RequestPerfMetrics | None = field(default=None, init=False)


class Response:
    """Has either an error or a result."""

    def __init__(
        self,
        request_id: int,
        error_msg: str | None = None,
        client_id: int | None = None,
        *,
        result: Result | None = None,
    ) -> None:
        self._request_id, self._client_id = request_id, client_id
        self._error_msg, self._result = error_msg, result

    @property
    def request_id(self) -> UInt64:
        return self._request_id

    @property
    def client_id(self) -> UInt64 | None:
        return self._client_id

    def has_error(self) -> bool:
        return self._error_msg is not None

    @property
    def error_msg(self) -> str:
        check(self._error_msg is not None, "hasError()", "executor/response.cpp")
        assert self._error_msg is not None
        return self._error_msg

    @property
    def result(self) -> Result:
        check(self._result is not None, "!hasError()", "executor/response.cpp")
        assert self._result is not None
        return self._result

    def clear_context_logits(self) -> None: ...

    def clear_generation_logits(self) -> None: ...
