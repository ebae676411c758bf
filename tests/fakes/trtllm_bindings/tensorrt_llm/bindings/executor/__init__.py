"""Names, arguments, defaults and errors of `tensorrt_llm.bindings.executor` 1.2.

From `cpp/tensorrt_llm/nanobind/executor/{bindings,request,executorConfig,executor}.cpp`. What the real one
has and the torch executor cannot do is a NotImplementedError, never silence.
"""

from tensorrt_llm import __version__
from tensorrt_llm.bindings.executor.config import (
    BatchingType,
    CapacitySchedulerPolicy,
    CommunicationMode,
    CommunicationType,
    ContextChunkingPolicy,
    ExecutorConfig,
    ExtendedRuntimePerfKnobConfig,
    GuidedDecodingConfig,
    KvCacheConfig,
    ModelType,
    OrchestratorConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeDecodingConfig,
)
from tensorrt_llm.bindings.executor.decoding import DecodingConfig, DecodingMode, EagleConfig
from tensorrt_llm.bindings.executor.executor import Executor
from tensorrt_llm.bindings.executor.request import (
    ExternalDraftTokensConfig,
    GuidedDecodingParams,
    LookaheadDecodingConfig,
    OutputConfig,
    Request,
    RequestType,
    SamplingConfig,
)
from tensorrt_llm.bindings.executor.response import (
    FinishReason,
    KvCacheMetrics,
    RequestPerfMetrics,
    Response,
    Result,
)
from tensorrt_llm.bindings.executor.statistics import IterationStats, KvCacheStats

__all__ = [
    "BatchingType",
    "CapacitySchedulerPolicy",
    "CommunicationMode",
    "CommunicationType",
    "ContextChunkingPolicy",
    "DecodingConfig",
    "DecodingMode",
    "EagleConfig",
    "Executor",
    "ExecutorConfig",
    "ExtendedRuntimePerfKnobConfig",
    "ExternalDraftTokensConfig",
    "FinishReason",
    "GuidedDecodingConfig",
    "GuidedDecodingParams",
    "IterationStats",
    "KvCacheConfig",
    "KvCacheMetrics",
    "KvCacheStats",
    "LookaheadDecodingConfig",
    "ModelType",
    "OrchestratorConfig",
    "OutputConfig",
    "ParallelConfig",
    "Request",
    "RequestPerfMetrics",
    "RequestType",
    "Response",
    "Result",
    "SamplingConfig",
    "SchedulerConfig",
    "SpeculativeDecodingConfig",
    "__version__",
]
