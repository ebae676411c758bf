from __future__ import annotations

from typing import Any

import pytest

from trtspec.backends.table import contradictions
from trtspec.recipe.build_options import option_problem
from trtspec.recipe.schema import Recipe


def found(**changes: Any) -> dict[str, tuple[str, str | None]]:
    """Key to problem and repair, for a valid recipe with these sections changed."""
    values: dict[str, Any] = {
        "name": "pair",
        "target": {"model": "a/big"},
        "draft": {"model": "a/small"},
        "hardware": {"gpu": "h100"},
    }
    for section, keys in changes.items():
        values[section] = keys if keys is None else {**(values.get(section) or {}), **keys}
    findings = contradictions(Recipe.model_validate(values))
    return {finding.subject: (finding.problem, finding.repair) for finding in findings}


FP8 = {"weights": "fp8", "kv_cache": "fp8"}


def lookup(kind: str, least: int, most: int) -> dict[str, Any]:
    return {"kind": kind, "prompt_lookup_min": least, "prompt_lookup_max": most}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"engine": {"max_input_len": 10, "max_seq_len": 11}},
        {"engine": {"max_num_tokens": 144}, "speculation": {"max_draft_len": 8}},
        {"engine": {"max_num_tokens": 32}},
        {"engine": {"backend": "torch"}, "target": {"dtype": "float32"}},
        {"engine": {"backend": "vllm", "release": "0.32.0"}, "speculation": {"method": "medusa"}},
        {"engine": {"backend": "torch"}, "hardware": {"gpu": "none"}, "target": {"quantization": FP8}},
        {"hardware": {"count": 4}, "target": {"parallel": {"tensor": 2, "pipeline": 2}}},
        {"hardware": {"gpu": "l40s"}, "target": {"quantization": FP8}, "draft": {"quantization": FP8}},
        {"serving": {"layout": "bls"}, "hardware": {"count": 2}, "target": {"parallel": {"tensor": 2}}},
        {"serving": {"layout": "in_process", "model_name": "tensorrt_llm"}},
        {"serving": {"max_queue_delay_microseconds": 600_000_000}},
        {"draft": None, "speculation": {"method": "ngram"}},
        {"engine": {"backend": "vllm"}},
        {"engine": {"backend": "vllm"}, "serving": {"layout": "triton"}},
        {"engine": {"backend": "vllm", "release": "0.32.0"}, "hardware": {"gpu": "none"}},
        {"engine": {"backend": "sglang", "release": "0.5.23"}},
        {"engine": {"backend": "tensorrt_llm_pytorch", "release": "1.2.0"}},
        {"draft": {"device": "cuda:0"}},
        {"draft": {"device": "cuda:3"}, "hardware": {"count": 4}, "target": {"parallel": {"tensor": 4}}},
        {"draft": {"device": "cpu", "dtype": "float32", "build": {"max_batch_size": 8}}},
        {"draft": {"device": "cpu"}, "hardware": {"gpu": "none"}},
        {"draft": {"device": "cpu"}, "hardware": {"gpu": "a100"}, "target": {"parallel": {"tensor": 1}}},
        {"draft": {"device": "cpu", "build": {"gemm_plugin": "auto"}}, "engine": {"backend": "torch"}},
        {"draft": {"device": "cpu"}, "speculation": {"method": "hybrid"}, "serving": {"layout": "bls"}},
        {"draft": None, "speculation": {"method": lookup("ngram", 3, 3)}},
        {"speculation": {"method": lookup("hybrid", 3, 4)}},
        {"serving": {"default_timeout_microseconds": 2_000, "draft_timeout_microseconds": 1_999}},
        {"target": {"build": {"gemm_plugin": "auto", "use_paged_context_fmha": "enable", "workers": 2}}},
    ],
)
def test_a_consistent_recipe_has_no_findings(changes: dict[str, Any]) -> None:
    assert found(**changes) == {}


@pytest.mark.parametrize(
    ("changes", "key", "problem", "repair"),
    [
        ({"serving": {"layout": "triton"}}, "serving.layout", "which has no engines", "in_process or bls"),
        (
            {"serving": {"layout": "triton"}, "engine": {"backend": "sglang"}},
            "serving.layout",
            "Triton has a backend of vLLM alone",
            "remove this line",
        ),
        (
            {"serving": {"layout": "bls"}, "engine": {"backend": "vllm"}},
            "serving.layout",
            "only trtspec's own coordinator has it",
            "remove this line",
        ),
        (
            {"draft": {"device": "cuda:1"}},
            "draft.device",
            "there is no cuda:1: hardware.count is 1",
            "write cuda:0, or hardware: {count: 2}",
        ),
        (
            {"draft": {"device": "cuda:0"}, "hardware": {"gpu": "none"}},
            "draft.device",
            "cuda:0 is a GPU, and hardware.gpu is none",
            "write cpu",
        ),
        (
            {"draft": {"device": "cpu", "parallel": {"tensor": 2}}, "hardware": {"count": 2}},
            "draft.parallel",
            "2 ranks, and draft.device names one place for all, cpu",
            "remove this line, or draft.device",
        ),
        (
            {"draft": {"device": "cuda:0", "parallel": {"pipeline": 2}}, "hardware": {"count": 2}},
            "draft.parallel",
            "names one place for all, cuda:0",
            "remove this line, or draft.device",
        ),
        (
            {"draft": {"device": "cpu", "build": {"gemm_plugin": "auto"}}},
            "draft.build.gemm_plugin",
            "trtllm-build does not build this engine: draft.device is cpu",
            "remove this line",
        ),
        (
            {"draft": {"device": "cpu"}, "speculation": {"method": "ngram"}},
            "draft",
            "proposes nothing",
            "remove this section",
        ),
        (
            {"engine": {"backend": "vllm"}, "speculation": {"method": "hybrid"}},
            "speculation.method",
            "vllm does not run hybrid: drafts come from one source",
            "another method, or another engine.backend",
        ),
        (
            {"engine": {"backend": "vllm", "release": "1.2.1"}},
            "engine.release",
            "found '1.2.1': no release of vllm that was tried",
            "known are 0.33.0, 0.32.0",
        ),
        (
            {"engine": {"backend": "vllm"}, "speculation": {"method": "medusa"}},
            "engine.release",
            "vllm 0.33.0 does not run medusa: vLLM has Medusa up to 0.32.0",
            "write release: 0.32.0, or another method",
        ),
        (
            {"engine": {"backend": "vllm", "release": "0.31.0"}, "speculation": {"method": "medusa"}},
            "engine.release",
            "found '0.31.0': no release of vllm that was tried",
            "known are 0.33.0, 0.32.0",
        ),
        (
            {"engine": {"backend": "tensorrt_llm", "release": "0.33.0"}},
            "engine.release",
            "releases before 1.0 are not supported",
            "known releases are 1.2.1",
        ),
        (
            {"engine": {"backend": "sglang"}, "hardware": {"gpu": "none"}},
            "engine.backend",
            "gpu is none, but SGLang's releases for a CPU are built from source",
            "write backend: torch",
        ),
        (
            {"engine": {"backend": "tensorrt_llm"}, "hardware": {"gpu": "none"}},
            "engine.backend",
            "need a GPU",
            "write backend: torch",
        ),
        (
            {"engine": {"max_input_len": 64, "max_seq_len": 64}},
            "engine.max_input_len",
            "no room",
            "at most 63",
        ),
        (
            {"engine": {"max_num_tokens": 143}, "speculation": {"max_draft_len": 8}},
            "engine.max_num_tokens",
            "16 requests with max_draft_len 8",
            "at least 144",
        ),
        (
            {"engine": {"max_num_tokens": 31, "max_batch_size": 1}},
            "engine.max_num_tokens",
            "block",
            "at least 32",
        ),
        (
            {"engine": {"max_seq_len": 8}, "speculation": {"max_draft_len": 8}},
            "speculation.max_draft_len",
            "never fits",
            "at most 7",
        ),
        (
            {"speculation": {"max_draft_len": 4, "num_draft_tokens": 5}},
            "speculation.num_draft_tokens",
            "max_draft_len is 4",
            "at most 4",
        ),
        (
            {"hardware": {"count": 2}, "target": {"parallel": {"tensor": 2, "pipeline": 2}}},
            "target.parallel",
            "4 ranks",
            "count: 4",
        ),
        (
            {
                "hardware": {"count": 3},
                "target": {"parallel": {"tensor": 2}},
                "draft": {"parallel": {"tensor": 2}},
            },
            "draft.parallel",
            "hangs with two requests",
            "count: 4",
        ),
        (
            {"draft": {"quantization": {"kv_cache": "fp8"}}},
            "draft.quantization.kv_cache",
            "needs fp8 weights",
            "weights",
        ),
        (
            {"target": {"quantization": {"calibration": {"dataset": "x"}}}},
            "target.quantization.calibration",
            "nothing to calibrate",
            "fp8",
        ),
        (
            {
                "engine": {"backend": "sglang"},
                "speculation": {"method": {"kind": "draft_model", "use_heterogeneous_vocab": True}},
            },
            "speculation.method.use_heterogeneous_vocab",
            "have the target's vocabulary",
            "remove this line",
        ),
        ({"draft": {"dtype": "float32"}}, "draft.dtype", "no paged context FMHA", "bfloat16"),
        (
            {"hardware": {"gpu": "a100"}, "target": {"quantization": FP8}},
            "target.quantization.weights",
            "has no FP8",
            "none",
        ),
        (
            {"serving": {"max_queue_delay_microseconds": 600_000_001}},
            "serving.max_queue_delay_microseconds",
            "default_timeout_microseconds is 600000000",
            "at most 600000000",
        ),
        (
            {"serving": {"default_timeout_microseconds": 2_000, "draft_timeout_microseconds": 2_000}},
            "serving.draft_timeout_microseconds",
            "leaves the target no time",
            "at most 1999",
        ),
        (
            {"speculation": {"method": "ngram"}},
            "draft",
            "proposes nothing: speculation.method is ngram",
            "remove this section, or write method: draft_model",
        ),
        (
            {"draft": None, "speculation": {"method": "hybrid"}},
            "draft",
            "is missing: the small model",
            "speculation: {method: ngram}",
        ),
        (
            {
                "draft": None,
                "speculation": {"method": "ngram"},
                "serving": {"draft_timeout_microseconds": 5_000},
            },
            "serving.draft_timeout_microseconds",
            "the server waits for no draft: speculation.method is ngram",
            "remove this line",
        ),
        (
            {"draft": None, "speculation": {"method": lookup("ngram", 5, 4)}},
            "speculation.method.prompt_lookup_min",
            "5 is more than prompt_lookup_max, which is 4",
            "at most 4",
        ),
        (
            {"speculation": {"method": {"kind": "hybrid", "prompt_lookup_max": 3}}},
            "speculation.method.prompt_lookup_min",
            "4 is more than prompt_lookup_max, which is 3",
            "at most 3",
        ),
        (
            {"serving": {"model_name": "tensorrt_llm_draft"}},
            "serving.model_name",
            "bls layout",
            "another name",
        ),
        (
            {
                "serving": {"layout": "in_process"},
                "hardware": {"count": 2},
                "draft": {"parallel": {"tensor": 2}},
            },
            "serving.layout",
            "the draft has 2",
            "bls",
        ),
    ],
)
def test_a_contradiction_in_a_recipe_is_found_with_its_key_and_repair(
    changes: dict[str, Any], key: str, problem: str, repair: str
) -> None:
    findings = found(**changes)
    assert list(findings) == [key]
    assert problem in findings[key][0]
    assert repair in str(findings[key][1])


@pytest.mark.parametrize(
    ("option", "value", "problem", "repair"),
    [
        ("max_draft_len", 8, "not for the recipe", "set speculation.max_draft_len"),
        ("--max-decoder-seq-len", 8, "not for the recipe", "set engine.max_seq_len"),
        ("checkpoint_dir", "x", "not for the recipe", "trtspec sets it"),
        ("output_dir", "x", "not for the recipe", "trtspec sets it"),
        ("max_draft_len", 4, "not for the recipe", "set speculation.max_draft_len"),
        ("speculative_decoding_mode", "eagle", "not for the recipe", "set speculation.mode"),
        ("model_cls_file", "x.py", "not for the recipe", "runs no code"),
        ("use_paged_context_fmha", "disable", "cannot be 'disable'", "remove this line"),
        ("use_paged_context_fmha", False, "cannot be false", "remove this line"),
        ("max_beam_width", 4, "cannot be 4", "remove this line"),
        ("kv_cache_type", "continuous", "cannot be 'continuous'", "remove this line"),
        ("gather_context_logits", True, "cannot be true", "remove this line"),
        ("gpt_attention_plugin", False, "cannot be false", "write auto, float16"),
        ("gemm_plugn", "auto", "unknown option", "did you mean gemm_plugin?"),
        ("gemm-plugin", "auto", "unknown option", "did you mean gemm_plugin?"),
        ("gemm_plugin", "fp9", "cannot be 'fp9'", "write auto, float16"),
        ("gemm_plugin", True, "cannot be true", "write auto"),
        ("workers", "2", "cannot be '2'", "a whole number"),
        ("workers", 0, "cannot be 0", "a whole number"),
        ("fast_build", "enable", "cannot be 'enable'", "true or false"),
        ("log_level", 3, "cannot be 3", "write internal_error"),
    ],
)
def test_build_options_that_may_not_stand_in_a_recipe(
    option: str, value: Any, problem: str, repair: str
) -> None:
    found = option_problem(option, value)
    assert found is not None
    assert found.subject == option
    assert problem in found.problem
    assert repair in str(found.repair)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("gemm_plugin", "bfloat16"),
        ("gemm_plugin", "disable"),
        ("gemm_plugin", False),
        ("use_fused_mlp", True),
        ("use_fused_mlp", "disable"),
        ("fast_build", True),
        ("workers", 8),
        ("context_fmha", True),
        ("gather_context_logits", False),
        ("max_beam_width", 1),
        ("lora_dir", "./lora"),
    ],
)
def test_build_options_that_may(option: str, value: Any) -> None:
    assert option_problem(option, value) is None


def test_a_build_option_is_found_with_its_key() -> None:
    assert list(found(draft={"build": {"max_draft_len": 3}})) == ["draft.build.max_draft_len"]


@pytest.mark.parametrize(("gpu", "backend"), [("none", "torch"), ("h100", "tensorrt_llm")])
def test_a_backend_that_is_left_out_suits_the_hardware(gpu: str, backend: str) -> None:
    recipe = Recipe.model_validate(
        {"name": "a", "target": {"model": "t"}, "draft": {"model": "d"}, "hardware": {"gpu": gpu}}
    )
    assert recipe.backend == backend
