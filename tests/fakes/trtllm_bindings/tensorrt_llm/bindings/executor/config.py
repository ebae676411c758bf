"""What an `Executor` is made with (`executorConfig.cpp`)."""

from __future__ import annotations

import enum
from dataclasses import KW_ONLY, field
from typing import Any, ClassVar

from tensorrt_llm.bindings.executor.decoding import DecodingConfig
from tensorrt_llm.bindings.executor.strict import Bound, Int32, Size, UInt64, Unsupported, check

SOURCE = "executor/executorConfig.cpp"


class ModelType(enum.Enum):
    DECODER_ONLY = 0
    ENCODER_ONLY = 1
    ENCODER_DECODER = 2


class BatchingType(enum.Enum):
    STATIC = 0
    INFLIGHT = 1


class CapacitySchedulerPolicy(enum.Enum):
    MAX_UTILIZATION = 0
    GUARANTEED_NO_EVICT = 1
    STATIC_BATCH = 2


class ContextChunkingPolicy(enum.Enum):
    FIRST_COME_FIRST_SERVED = 0
    EQUAL_PROGRESS = 1


class CommunicationType(enum.Enum):
    MPI = 0


class CommunicationMode(enum.Enum):
    LEADER = 0
    ORCHESTRATOR = 1


class SchedulerConfig(Bound):
    READ_ONLY = ("capacity_scheduler_policy", "context_chunking_policy", "dynamic_batch_config")

    capacity_scheduler_policy: CapacitySchedulerPolicy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    context_chunking_policy: ContextChunkingPolicy | None = None
    dynamic_batch_config: Unsupported | None = None


class KvCacheConfig(Bound):
    enable_block_reuse: bool = True
    max_tokens: Int32 | None = None
    max_attention_window: list[Int32] | None = None
    sink_token_length: Int32 | None = None
    free_gpu_memory_fraction: float | None = None
    host_cache_size: Size | None = None
    onboard_blocks: bool = True
    cross_kv_cache_fraction: Unsupported | None = None
    secondary_offload_min_priority: Unsupported | None = None
    event_buffer_max_size: Size = 0
    _: KW_ONLY
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    use_uvm: bool = False
    attention_dp_events_gather_period_ms: Int32 = 5
    runtime_defaults: Unsupported | None = None
    max_gpu_total_bytes: UInt64 = 0

    def checks(self, name: str, value: Any) -> None:
        if value is None:
            return
        source = "executor/kvCacheConfig.cpp"
        if name == "max_tokens":
            check(value > 0, "maxTokens > 0", source)
        if name == "free_gpu_memory_fraction":
            check(value > 0, "freeGpuMemoryFraction > 0.F", source)
            check(value < 1, "freeGpuMemoryFraction < 1.F", source)


class OrchestratorConfig(Bound):
    is_orchestrator: bool = True
    worker_executable_path: str = ""
    orch_leader_comm: Unsupported | None = None
    spawn_processes: bool = True


class ParallelConfig(Bound):
    communication_type: CommunicationType = CommunicationType.MPI
    communication_mode: CommunicationMode = CommunicationMode.LEADER
    device_ids: list[Int32] | None = None
    participant_ids: list[Int32] | None = None
    orchestrator_config: OrchestratorConfig | None = None
    num_nodes: Int32 | None = None


class SpeculativeDecodingConfig(Bound):
    fast_logits: bool = False


class _GuidedDecodingBackend(enum.Enum):
    XGRAMMAR = 0
    LLGUIDANCE = 1


class GuidedDecodingConfig(Bound):
    GuidedDecodingBackend: ClassVar[type[_GuidedDecodingBackend]] = _GuidedDecodingBackend

    backend: _GuidedDecodingBackend
    encoded_vocab: list[str] | None = None
    tokenizer_str: str | None = None
    stop_token_ids: list[Int32] | None = None

    def checks(self, name: str, value: Any) -> None:
        if name == "encoded_vocab" and self.backend is _GuidedDecodingBackend.XGRAMMAR:
            message = "Guided decoding is enabled with xgrammar, but EncodedVocab is not set"
            check(value is not None, message, "executor/guidedDecodingConfig.cpp")


class ExtendedRuntimePerfKnobConfig(Bound):
    multi_block_mode: bool = True
    enable_context_fmha_fp32_acc: bool = False
    cuda_graph_mode: bool = field(default=False, init=False)
    cuda_graph_cache_size: Int32 = field(default=0, init=False)


class ExecutorConfig(Bound):
    DYNAMIC = True

    max_beam_width: Int32 = 1
    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)
    kv_cache_config: KvCacheConfig = field(default_factory=KvCacheConfig)
    enable_chunked_context: bool = True
    normalize_log_probs: bool = True
    iter_stats_max_iterations: Int32 = 1000
    request_stats_max_iterations: Int32 = 0
    batching_type: BatchingType = BatchingType.INFLIGHT
    max_batch_size: Int32 | None = None
    max_num_tokens: Int32 | None = None
    parallel_config: ParallelConfig | None = None
    peft_cache_config: Unsupported | None = None
    logits_post_processor_config: Unsupported | None = None
    decoding_config: DecodingConfig | None = None
    use_gpu_direct_storage: bool = False
    gpu_weights_percent: float = 1.0
    max_queue_size: Int32 | None = None
    extended_runtime_perf_knob_config: ExtendedRuntimePerfKnobConfig = field(
        default_factory=ExtendedRuntimePerfKnobConfig
    )
    debug_config: Unsupported | None = None
    recv_poll_period_ms: Int32 = 0
    max_seq_idle_microseconds: UInt64 = 180000000
    spec_dec_config: SpeculativeDecodingConfig | None = None
    guided_decoding_config: GuidedDecodingConfig | None = None
    additional_model_outputs: Unsupported | None = None
    cache_transceiver_config: Unsupported | None = None
    gather_generation_logits: bool = False
    prompt_table_offloading: bool = False
    enable_trt_overlap: bool = False
    fail_fast_on_attention_window_too_large: bool = False

    def checks(self, name: str, value: Any) -> None:
        if name == "max_beam_width":
            check(value > 0, "mMaxBeamWidth > 0", SOURCE)
        if name in ("iter_stats_max_iterations", "request_stats_max_iterations"):
            check(value >= 0, f"{name} >= 0", SOURCE)
