"""The stand-in is as strict as the bindings: names, order and defaults of NVIDIA's nanobind sources.

They are `cpp/tensorrt_llm/nanobind/executor/{request,executorConfig,executor}.cpp` of 1.0 to 1.2.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import pytest

ARGUMENTS = {
    "ExecutorConfig": "max_beam_width=1 scheduler_config kv_cache_config enable_chunked_context=True "
    "normalize_log_probs=True iter_stats_max_iterations=1000 request_stats_max_iterations=0 "
    "batching_type=BatchingType.INFLIGHT max_batch_size=None max_num_tokens=None parallel_config=None "
    "peft_cache_config=None logits_post_processor_config=None decoding_config=None "
    "use_gpu_direct_storage=False gpu_weights_percent=1.0 max_queue_size=None "
    "extended_runtime_perf_knob_config debug_config=None recv_poll_period_ms=0 "
    "max_seq_idle_microseconds=180000000 spec_dec_config=None guided_decoding_config=None "
    "additional_model_outputs=None cache_transceiver_config=None gather_generation_logits=False "
    "prompt_table_offloading=False enable_trt_overlap=False fail_fast_on_attention_window_too_large=False",
    "KvCacheConfig": "enable_block_reuse=True max_tokens=None max_attention_window=None "
    "sink_token_length=None free_gpu_memory_fraction=None host_cache_size=None onboard_blocks=True "
    "cross_kv_cache_fraction=None secondary_offload_min_priority=None event_buffer_max_size=0 "
    "enable_partial_reuse=True copy_on_partial_reuse=True use_uvm=False "
    "attention_dp_events_gather_period_ms=5 runtime_defaults=None max_gpu_total_bytes=0",
    "ParallelConfig": "communication_type=CommunicationType.MPI communication_mode=CommunicationMode.LEADER "
    "device_ids=None participant_ids=None orchestrator_config=None num_nodes=None",
    "Request": "input_token_ids max_tokens streaming=False sampling_config output_config end_id=None "
    "pad_id=None position_ids=None bad_words=None stop_words=None embedding_bias=None "
    "external_draft_tokens_config=None prompt_tuning_config=None multimodal_input=None "
    "multimodal_embedding=None mrope_config=None lora_config=None lookahead_config=None "
    "kv_cache_retention_config=None logits_post_processor_name=None logits_post_processor=None "
    "encoder_input_token_ids=None client_id=None return_all_generated_tokens=False priority=0.5 "
    "type=RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION context_phase_params=None "
    "encoder_input_features=None encoder_output_length=None cross_attention_mask=None "
    "num_return_sequences=1 eagle_config=None skip_cross_attn_blocks=None guided_decoding_params=None "
    "language_adapter_uid=None allotted_time_ms=None cache_salt_id=None",
    "SamplingConfig": "beam_width=1 top_k=None top_p=None top_p_min=None top_p_reset_ids=None "
    "top_p_decay=None seed=None temperature=None min_tokens=None beam_search_diversity_rate=None "
    "repetition_penalty=None presence_penalty=None frequency_penalty=None length_penalty=None "
    "early_stopping=None no_repeat_ngram_size=None num_return_sequences=None min_p=None "
    "beam_width_array=None",
    "OutputConfig": "return_log_probs=False return_context_logits=False return_generation_logits=False "
    "exclude_input_from_output=False return_encoder_output=False return_perf_metrics=False "
    "additional_model_outputs=None",
    "ExternalDraftTokensConfig": "tokens logits=None acceptance_threshold=None fast_logits=None",
    "DecodingConfig": "decoding_mode=None lookahead_decoding_config=None medusa_choices=None "
    "eagle_config=None",
    "GuidedDecodingConfig": "backend encoded_vocab=None tokenizer_str=None stop_token_ids=None",
    "GuidedDecodingParams": "guide_type guide=None",
}
RIGHT: dict[str, dict[str, Any]] = {
    "Request": {"input_token_ids": [1], "max_tokens": 1},
    "ExternalDraftTokensConfig": {"tokens": [1]},
}


@pytest.fixture(autouse=True)
def right_enums(trtllm: Any) -> None:
    RIGHT["GuidedDecodingParams"] = {"guide_type": trtllm.GuidedDecodingParams.GuideType.JSON}
    backend = trtllm.GuidedDecodingConfig.GuidedDecodingBackend.XGRAMMAR
    RIGHT["GuidedDecodingConfig"] = {"backend": backend, "encoded_vocab": ["a"]}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(trtllm: Any, name: str) -> None:
    found = []
    for argument in fields(getattr(trtllm, name)):
        default = "" if argument.default is MISSING else f"={argument.default}"
        found.append(f"{argument.name}{default}")
    assert found == ARGUMENTS[name].split()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_that_nobody_knows(trtllm: Any, name: str) -> None:
    getattr(trtllm, name)(**RIGHT.get(name, {}))
    with pytest.raises(TypeError, match="no_such_argument"):
        getattr(trtllm, name)(**RIGHT.get(name, {}), no_such_argument=1)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Request", {"input_token_ids": [1.5], "max_tokens": 1}),
        ("Request", {"input_token_ids": [1], "max_tokens": "1"}),
        ("Request", {"input_token_ids": [1], "max_tokens": 1, "streaming": 1}),
        ("Request", {"input_token_ids": [2**31], "max_tokens": 1}),
        ("SamplingConfig", {"seed": -1}),
        ("KvCacheConfig", {"max_attention_window": 16}),
        ("ParallelConfig", {"device_ids": 0}),
        ("ExecutorConfig", {"kv_cache_config": {}}),
    ],
)
def test_values_of_another_type(trtllm: Any, name: str, values: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="incompatible function arguments"):
        getattr(trtllm, name)(**values)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Request", {"input_token_ids": [], "max_tokens": 1}),
        ("Request", {"input_token_ids": [1], "max_tokens": 0}),
        ("ExternalDraftTokensConfig", {"tokens": []}),
        ("ExternalDraftTokensConfig", {"tokens": [1], "acceptance_threshold": 1.5}),
        ("SamplingConfig", {"top_p": 0.0}),
        ("KvCacheConfig", {"free_gpu_memory_fraction": 1.0}),
    ],
)
def test_values_that_make_no_sense(trtllm: Any, name: str, values: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="Assertion failed"):
        getattr(trtllm, name)(**values)


def test_guides_that_make_no_sense(trtllm: Any) -> None:
    with pytest.raises(RuntimeError, match="The guide string must be provided"):
        trtllm.GuidedDecodingParams(trtllm.GuidedDecodingParams.GuideType.REGEX)
    with pytest.raises(RuntimeError, match="EncodedVocab is not set"):
        trtllm.GuidedDecodingConfig(trtllm.GuidedDecodingConfig.GuidedDecodingBackend.XGRAMMAR)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        trtllm.GuidedDecodingParams("regex", "a")


def test_choices_without_their_mode_make_no_sense(trtllm: Any) -> None:
    """A mode is made by its static methods alone, and one of Medusa is not set afterwards."""
    medusa = trtllm.DecodingMode.Medusa()
    assert (medusa.isMedusa(), medusa.isAuto(), medusa.name) == (True, False, "Medusa")
    with pytest.raises(TypeError, match="no constructor defined"):
        trtllm.DecodingMode()
    with pytest.raises(RuntimeError, match=r"MedusaChoices are set, but DecodingMode is not set \("):
        trtllm.DecodingConfig(medusa_choices=[[0]])
    with pytest.raises(RuntimeError, match="DecodingMode is not set to Medusa"):
        trtllm.DecodingConfig(trtllm.DecodingMode.Auto(), medusa_choices=[[0]])
    config = trtllm.DecodingConfig()
    with pytest.raises(RuntimeError, match="must not be set with `setDecodingMode`"):
        config.decoding_mode = medusa
    config.medusa_choices = [[0], [0, 0]]
    assert config.decoding_mode.isMedusa()


def test_attributes(trtllm: Any) -> None:
    """`ExecutorConfig` and `Request` keep what they do not know, the others refuse it."""
    config = trtllm.ExecutorConfig()
    config.of_another_release = True
    with pytest.raises(AttributeError, match="of_another_release"):
        config.kv_cache_config.of_another_release = True
    request = trtllm.Request([1], 1)
    with pytest.raises(AttributeError, match="no setter"):
        request.max_tokens = 2
    with pytest.raises(TypeError):
        trtllm.Request([1], 1, True)


def test_an_engine_that_verifies_needs_reuse(trtllm: Any, write: Any) -> None:
    config = trtllm.ExecutorConfig(kv_cache_config=trtllm.KvCacheConfig(enable_block_reuse=False))
    with pytest.raises(RuntimeError, match="block reuse must be enabled for speculative decoding target"):
        trtllm.Executor(write(), trtllm.ModelType.DECODER_ONLY, config)
