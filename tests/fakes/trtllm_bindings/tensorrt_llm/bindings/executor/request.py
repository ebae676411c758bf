"""What is asked of an `Executor` (`request.cpp`)."""

from __future__ import annotations

import enum
from dataclasses import KW_ONLY, field
from typing import Any, ClassVar

from torch import Tensor

from tensorrt_llm.bindings.executor.strict import Bound, Int32, UInt64, Unsupported, check


class RequestType(enum.Enum):
    REQUEST_TYPE_CONTEXT_AND_GENERATION = 0
    REQUEST_TYPE_CONTEXT_ONLY = 1
    REQUEST_TYPE_GENERATION_ONLY = 2


class SamplingConfig(Bound):
    beam_width: Int32 = 1
    _: KW_ONLY
    top_k: Int32 | None = None
    top_p: float | None = None
    top_p_min: float | None = None
    top_p_reset_ids: Int32 | None = None
    top_p_decay: float | None = None
    seed: UInt64 | None = None
    temperature: float | None = None
    min_tokens: Int32 | None = None
    beam_search_diversity_rate: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    early_stopping: Int32 | None = None
    no_repeat_ngram_size: Int32 | None = None
    num_return_sequences: Int32 | None = None
    min_p: float | None = None
    beam_width_array: list[Int32] | None = None

    def checks(self, name: str, value: Any) -> None:
        """NaN fails these, infinity does not."""
        source = "executor/samplingConfig.cpp"
        if name == "beam_width":
            check(0 < value <= 1024, "beamWidth > 0 && beamWidth <= kMaxBeamWidth", source)
        if value is None:
            return
        if name in ("top_k", "temperature", "min_tokens"):
            check(value >= 0, f"{_camel(name)}.value() >= 0", source)
        if name == "repetition_penalty":
            check(value > 0, "repetitionpenalty.value() > 0.f", source)
        if name == "top_p":
            check(value > 0, "topP.value() > 0.f", source)
            check(value <= 1, "topP.value() <= 1.f", source)


class OutputConfig(Bound):
    return_log_probs: bool = False
    return_context_logits: bool = False
    return_generation_logits: bool = False
    exclude_input_from_output: bool = False
    return_encoder_output: bool = False
    return_perf_metrics: bool = False
    additional_model_outputs: Unsupported | None = None


class ExternalDraftTokensConfig(Bound):
    READ_ONLY = ("tokens", "logits", "acceptance_threshold", "fast_logits")

    tokens: list[Int32]
    logits: Tensor | None = None
    acceptance_threshold: float | None = None
    fast_logits: bool | None = None

    def checks(self, name: str, value: Any) -> None:
        source = "executor/externalDraftTokensConfig.cpp"
        if name == "tokens":
            check(len(value) > 0, "!mTokens.empty()", source)
        if name == "logits" and value is not None:
            check(value.dim() == 2, "mLogits->getShape().size() == 2", source)
            check(value.shape[0] == len(self.tokens), "mLogits->getShape()[0] == mTokens.size()", source)
            check(value.is_contiguous(), "Tensor is not contiguous", "runtime/torchView.h")
        if name == "acceptance_threshold" and value is not None:
            check(0 < value <= 1, "mAcceptanceThreshold > 0.f && mAcceptanceThreshold <= 1.f", source)


class _GuideType(enum.Enum):
    JSON = 0
    JSON_SCHEMA = 1
    REGEX = 2
    EBNF_GRAMMAR = 3
    STRUCTURAL_TAG = 4


class GuidedDecodingParams(Bound):
    READ_ONLY = ("guide_type", "guide")
    GuideType: ClassVar[type[_GuideType]] = _GuideType

    guide_type: _GuideType
    guide: str | None = None

    def checks(self, name: str, value: Any) -> None:
        if name == "guide" and self.guide_type is not _GuideType.JSON:
            message = "The guide string must be provided unless using GuideType::kJSON."
            check(value is not None, message, "executor/guidedDecodingParams.cpp")


class LookaheadDecodingConfig(Bound):
    READ_ONLY = ("max_window_size", "max_ngram_size", "max_verification_set_size")

    max_window_size: Int32
    max_ngram_size: Int32
    max_verification_set_size: Int32

    def __post_init__(self) -> None:
        super().__post_init__()
        window, size, verified = self.max_window_size, self.max_ngram_size, self.max_verification_set_size
        source = "executor/decodingConfig.cpp"
        check(size >= 1, "ngramSize requires >= 1", source)
        check(window >= 1, "windowSize requires >= 1", source)
        check(size > 1 or verified == 0, "ngramSize=1 requires verificationSetSize=0", source)
        check(size > 1 or window == 1, "ngramSize=1 requires windowSize=1", source)
        check(verified >= 0, "verificationSetSize requires >=0", source)


class Request(Bound):
    DYNAMIC = True
    READ_ONLY = ("input_token_ids", "max_tokens")

    input_token_ids: list[Int32]
    max_tokens: Int32
    _: KW_ONLY
    streaming: bool = False
    sampling_config: SamplingConfig = field(default_factory=SamplingConfig)
    output_config: OutputConfig = field(default_factory=OutputConfig)
    end_id: Int32 | None = None
    pad_id: Int32 | None = None
    position_ids: Unsupported | None = None
    bad_words: list[list[Int32]] | None = None
    stop_words: Unsupported | None = None
    embedding_bias: Tensor | None = None
    external_draft_tokens_config: ExternalDraftTokensConfig | None = None
    prompt_tuning_config: Unsupported | None = None
    multimodal_input: Unsupported | None = None
    multimodal_embedding: Unsupported | None = None
    mrope_config: Unsupported | None = None
    lora_config: Unsupported | None = None
    lookahead_config: LookaheadDecodingConfig | None = None
    kv_cache_retention_config: Unsupported | None = None
    logits_post_processor_name: Unsupported | None = None
    logits_post_processor: Unsupported | None = None
    encoder_input_token_ids: Unsupported | None = None
    client_id: UInt64 | None = None
    return_all_generated_tokens: bool = False
    priority: float = 0.5
    type: RequestType = RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION
    context_phase_params: Unsupported | None = None
    encoder_input_features: Unsupported | None = None
    encoder_output_length: Int32 | None = None
    cross_attention_mask: Unsupported | None = None
    num_return_sequences: Int32 = 1
    eagle_config: Unsupported | None = None
    skip_cross_attn_blocks: Unsupported | None = None
    guided_decoding_params: GuidedDecodingParams | None = None
    language_adapter_uid: Int32 | None = None
    allotted_time_ms: Unsupported | None = None
    cache_salt_id: UInt64 | None = None

    def checks(self, name: str, value: Any) -> None:
        source = "executor/requestImpl.h"
        if name == "input_token_ids":
            check(len(value) > 0, "!mInputTokenIds.empty()", source)
        if name == "max_tokens":
            check(value > 0, "mMaxNewTokens > 0", source)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)
