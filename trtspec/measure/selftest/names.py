"""Checks of the names and signatures of `tensorrt_llm.bindings.executor`, as far as trtspec uses them.

nanobind has no signatures that Python could inspect, so each class is made with every argument that the
executor gives it, and each attribute is read.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from trtspec.measure.selftest.outcome import Outcome, State

_SOURCE = "cpp/tensorrt_llm/nanobind/executor/{}.cpp"

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
    "ExternalDraftTokensConfig": {"tokens": [1, 2]},
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
    "DecodingConfig": {"decoding_mode": None, "medusa_choices": [[0], [0, 0]]},
    "ExecutorConfig": {
        "enable_chunked_context": True,
        "iter_stats_max_iterations": 64,
        "decoding_config": None,
    },
}
_MEMBERS: Mapping[str, tuple[str, ...]] = {
    "Executor": (
        *("enqueue_request", "cancel_request", "await_responses"),
        *("get_latest_iteration_stats", "shutdown"),
    ),
    "Response": ("request_id", "has_error", "error_msg", "result"),
    "Result": ("output_token_ids", "is_final", "finish_reasons", "request_perf_metrics"),
    "FinishReason": ("NOT_FINISHED", "END_ID", "STOP_WORDS", "LENGTH", "TIMED_OUT", "CANCELLED"),
    "IterationStats": ("kv_cache_stats",),
    "KvCacheStats": (
        *("used_num_blocks", "max_num_blocks", "tokens_per_block"),
        *("reused_blocks", "missed_blocks"),
    ),
    "ModelType": ("DECODER_ONLY",),
    "DecodingMode": ("Medusa",),
}


def names(trtllm: Any, release: str, build: str) -> list[Outcome]:
    """Returns the outcomes of the module's release, arguments and attributes."""
    found = trtllm.__version__
    version = [] if found == release else [f"it is {found}, and the recipe's release is {release}"]
    config = [*_arguments(trtllm, _CONFIG), *_assigned(trtllm), *_guided(trtllm)]
    rows = (
        ("release", "The bindings are of the release that builds.", "recipe/releases.py", version, found),
        (
            "requests",
            "Requests take every argument that trtspec gives them.",
            f"§6.3: {_SOURCE.format('request')}",
            _arguments(trtllm, _REQUEST),
            f"{sum(map(len, _REQUEST.values()))} arguments",
        ),
        (
            "configuration",
            "An executor's configuration takes every argument that trtspec gives it.",
            f"§6.2: {_SOURCE.format('executorConfig')}",
            config,
            f"{sum(map(len, _CONFIG.values()))} arguments",
        ),
        (
            "responses",
            "Executors, answers and statistics have every attribute that trtspec reads.",
            f"§6.1, §6.4: {_SOURCE.format('executor')}",
            _members(trtllm),
            f"{sum(map(len, _MEMBERS.values()))} attributes",
        ),
    )
    return [
        Outcome(build, name, rule, source, State.DIFFERS if wrong else State.OK, "; ".join(wrong) or right)
        for name, rule, source, wrong, right in rows
    ]


def signatures(trtllm: Any) -> dict[str, str]:
    """Returns the signature of each class as the module documents it, for a report."""
    known = {}
    for name in sorted({*_REQUEST, *_CONFIG, *_MEMBERS, "GuidedDecodingConfig", "GuidedDecodingParams"}):
        kind = getattr(trtllm, name, None)
        text = getattr(getattr(kind, "__init__", None), "__doc__", None) or ""
        known[name] = text if "(" in text else _inspected(kind)
    return known


def _inspected(kind: Any) -> str:
    try:
        return str(inspect.signature(kind))
    except (TypeError, ValueError) as error:
        return str(error)


def _arguments(trtllm: Any, classes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Makes each class with all arguments, and if that fails with each alone to name the one."""
    wrong = []
    for name, arguments in classes.items():
        try:
            getattr(trtllm, name)(**arguments)
        except Exception as error:
            wrong.append(f"{name}({', '.join(arguments)}): {_line(error)}")
    return wrong


def _assigned(trtllm: Any) -> list[str]:
    """Tries what is set as an attribute, and what takes an enumeration."""
    try:
        config = trtllm.ExecutorConfig(decoding_config=trtllm.DecodingConfig(trtllm.DecodingMode.Medusa()))
        config.fail_fast_on_attention_window_too_large = True
        config.guided_decoding_config = None
    except Exception as error:
        return [f"ExecutorConfig: {_line(error)}"]
    return []


def _guided(trtllm: Any) -> list[str]:
    try:
        kinds, backends = trtllm.GuidedDecodingParams.GuideType, trtllm.GuidedDecodingConfig
        for name in ("JSON", "JSON_SCHEMA", "REGEX", "EBNF_GRAMMAR", "STRUCTURAL_TAG"):
            trtllm.GuidedDecodingParams(getattr(kinds, name), "{}")
        trtllm.GuidedDecodingConfig(
            backend=backends.GuidedDecodingBackend.XGRAMMAR, encoded_vocab=["a"], tokenizer_str="{}",
            stop_token_ids=[0],
        )  # fmt: skip
    except Exception as error:
        return [f"guided decoding: {_line(error)}"]
    return []


def _members(trtllm: Any) -> list[str]:
    wrong = []
    for name, members in _MEMBERS.items():
        kind = getattr(trtllm, name, None)
        try:
            instance = kind() if name in ("Result", "IterationStats", "KvCacheStats") else kind  # type: ignore[misc]
        except TypeError:
            instance = kind
        wrong += [f"{name} has no {member}" for member in members if not hasattr(instance, member)]
    return wrong


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
