"""Checks the names and signatures in `tensorrt_llm.bindings.executor` that trtspec uses.

Python cannot inspect nanobind's signatures. So each class is created with every argument that the executor
passes, and each attribute is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trtspec.measure.selftest.trial import LAYOUT, Outcome, Ruling
from trtspec.serving.executor import GuideType
from trtspec.serving.executors.tensorrt_llm.runtime_draft import EagleTree, LookaheadSizes, MedusaTree

_REQUEST: Mapping[str, Mapping[str, Any]] = {
    "SamplingConfig": {
        "top_k": 4,
        "top_p": 0.9,
        "min_p": 0.1,
        "temperature": 0.7,
        "seed": 2**63,
        "min_tokens": 1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
    },
    "OutputConfig": {"exclude_input_from_output": True, "return_perf_metrics": True},
    "ExternalDraftTokensConfig": {"tokens": [1, 2], "logits": None},
    "Request": {
        "input_token_ids": [1],
        "max_tokens": 2,
        "streaming": False,
        "end_id": 0,
        "bad_words": [[1]],
        "embedding_bias": None,
        "external_draft_tokens_config": None,
        "guided_decoding_params": None,
    },
}
_CONFIG: Mapping[str, Mapping[str, Any]] = {
    "KvCacheConfig": {
        "enable_block_reuse": True,
        "max_tokens": 64,
        "max_attention_window": [64],
        "free_gpu_memory_fraction": 0.5,
    },
    "ParallelConfig": {"device_ids": [0]},
    "ExecutorConfig": {"enable_chunked_context": True, "iter_stats_max_iterations": 64},
}
_MEMBERS = {
    "Executor": "enqueue_request cancel_request await_responses get_latest_iteration_stats shutdown",
    "Response": "request_id has_error error_msg result",
    "Result": "output_token_ids is_final finish_reasons request_perf_metrics",
    "RequestPerfMetrics": "speculative_decoding kv_cache_metrics",
    "KvCacheMetrics": "num_reused_blocks",
    "FinishReason": "NOT_FINISHED END_ID STOP_WORDS LENGTH TIMED_OUT CANCELLED",
    "IterationStats": "kv_cache_stats",
    "KvCacheStats": "used_num_blocks max_num_blocks tokens_per_block reused_blocks missed_blocks",
    "ModelType": "DECODER_ONLY",
}
_MADE_FOR_MEMBERS = ("Result", "RequestPerfMetrics", "KvCacheMetrics", "IterationStats", "KvCacheStats")
_SOURCE = "cpp/tensorrt_llm/nanobind/executor"


def names(trtllm: Any, release: str, build: str) -> list[Outcome]:
    """Returns the outcomes of the module's release, arguments and attributes."""
    found = trtllm.__version__
    # The wheel of an image may call itself a candidate of the release: 1.2.0rc8 of 26.03.
    is_of_release = found == release or found.startswith(f"{release}rc")
    version = [] if is_of_release else [f"the bindings are of {found}, and the recipe's release is {release}"]
    takes = "{} take every argument that trtspec gives them."
    rows = (
        ("release", "The bindings have the release that builds.", "recipe/releases.py", version),
        ("requests", takes.format("Requests"), f"§6.3: {_SOURCE}/request.cpp", _refused(trtllm, _REQUEST)),
        (
            "configuration",
            takes.format("Configurations"),
            f"§6.2: {_SOURCE}/executorConfig.cpp",
            [*_refused(trtllm, _CONFIG), *_line(lambda: _enumerations(trtllm))],
        ),
        (
            "responses",
            "Executors, answers and statistics have every attribute that trtspec reads.",
            f"§6.1, §6.4: {_SOURCE}/executor.cpp",
            [wrong for name in _MEMBERS for wrong in _missing(trtllm, name)],
        ),
    )
    states = {True: Ruling.DIFFERS, False: Ruling.OK}
    return [
        Outcome(build, name, rule, source, LAYOUT, states[bool(wrong)], "; ".join(wrong) or found)
        for name, rule, source, wrong in rows
    ]


def signatures(trtllm: Any) -> dict[str, str]:
    """Returns the signature of each class as the module documents it, for a report."""
    return {
        name: str(getattr(getattr(trtllm, name, None), "__init__", None).__doc__)
        for name in sorted({*_REQUEST, *_CONFIG, *_MEMBERS, "GuidedDecodingConfig", "GuidedDecodingParams"})
    }


def _refused(trtllm: Any, classes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Creates each class with all its arguments, and returns a line for each failure."""
    return [
        f"{name}: {line}"
        for name, arguments in classes.items()
        for line in _line(lambda name=name, arguments=arguments: getattr(trtllm, name)(**arguments))  # type: ignore[misc]
    ]


def _enumerations(trtllm: Any) -> None:
    """Checks calls that take an enumeration, and attributes that are set."""
    config = trtllm.ExecutorConfig(decoding_config=MedusaTree(((0,), (0, 0))).decoding(trtllm))
    config.decoding_config = EagleTree(((0,), (0, 0))).decoding(trtllm)
    config.decoding_config = LookaheadSizes(7, 7, 7).decoding(trtllm)
    config.fail_fast_on_attention_window_too_large = True
    for kind in GuideType:
        trtllm.GuidedDecodingParams(getattr(trtllm.GuidedDecodingParams.GuideType, kind.name), "{}")
    guided = trtllm.GuidedDecodingConfig
    words = {"encoded_vocab": ["a"], "tokenizer_str": "{}", "stop_token_ids": [0]}
    config.guided_decoding_config = guided(backend=guided.GuidedDecodingBackend.XGRAMMAR, **words)


def _missing(trtllm: Any, name: str) -> list[str]:
    kind = getattr(trtllm, name, None)
    known = kind() if kind is not None and name in _MADE_FOR_MEMBERS else kind
    return [f"{name} has no {member}" for member in _MEMBERS[name].split() if not hasattr(known, member)]


def _line(act: Callable[[], Any]) -> list[str]:
    """Returns the first line of the error that an act raises, or nothing."""
    try:
        act()
    except Exception as error:
        return [(str(error).strip().splitlines() or [type(error).__name__])[0]]
    return []
