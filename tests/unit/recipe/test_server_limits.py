from __future__ import annotations

from typing import Any

import pytest

from tests.unit.recipe.test_limits import found
from trtspec.backends.table import runner_of
from trtspec.base.roles import Role
from trtspec.recipe.schema import Recipe


def served(backend: str, **changes: Any) -> dict[str, tuple[str, str | None]]:
    engine = {"backend": backend, **changes.pop("engine", {})}
    return found(engine=engine, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"speculation": {"policy": "fixed", "num_draft_tokens": 4, "max_draft_len": 8}},
        {"target": {"quantization": {"weights": "fp8"}}},
        {"target": {"quantization": {"kv_cache": "fp8"}}},
        {"hardware": {"count": 2}, "target": {"parallel": {"tensor": 2}}},
        {
            "hardware": {"count": 2},
            "target": {"parallel": {"tensor": 2}},
            "draft": {"parallel": {"tensor": 2}},
        },
        {"draft": {"dtype": "float16"}, "target": {"dtype": "float16"}},
        {"engine": {"max_num_tokens": 4096, "enable_chunked_context": False}},
    ],
)
@pytest.mark.parametrize("backend", ["vllm", "sglang", "tensorrt_llm_pytorch"])
def test_settings_that_every_server_supports_have_no_findings(backend: str, changes: dict[str, Any]) -> None:
    assert served(backend, **changes) == {}


@pytest.mark.parametrize(
    ("changes", "key", "problem"),
    [
        ({"serving": {"layout": "bls"}}, "serving.layout", "only trtspec's own coordinator has it"),
        ({"serving": {"draft_timeout_microseconds": 5000}}, "serving.draft_timeout_microseconds", "coord"),
        ({"serving": {"max_queue_size": 64}}, "serving.max_queue_size", "coordinator"),
        ({"speculation": {"share": 0.5}}, "speculation.share", "coordinator"),
        ({"speculation": {"share": 0}}, "speculation.share", "coordinator"),
        ({"speculation": {"policy": "adaptive"}}, "speculation.policy", "drafts as much in every round"),
        ({"engine": {"max_input_len": 100}}, "engine.max_input_len", "prompt and answer together alone"),
        ({"target": {"build": {"gemm_plugin": "auto"}}}, "target.build", "options of trtllm-build"),
        ({"draft": {"device": "cpu"}}, "draft.device", "on the target's GPUs"),
        ({"draft": {"dtype": "float16"}}, "draft.dtype", "loads the draft like the target, whose dtype is"),
        (
            {"hardware": {"count": 2}, "draft": {"parallel": {"tensor": 2}}},
            "draft.parallel",
            "loads the draft like the target, on 1 tensor ranks",
        ),
        (
            {"draft": {"quantization": {"weights": "fp8", "kv_cache": "fp8"}}},
            "draft.quantization.kv_cache",
            "whose KV cache is none",
        ),
        (
            {"target": {"quantization": {"weights": "fp8", "calibration": {"dataset": "texts.jsonl"}}}},
            "target.quantization.calibration",
            "takes scales from the weights as it loads them",
        ),
        (
            {"draft": None, "speculation": {"method": {"kind": "ngram", "earlier_answers": 1000}}},
            "speculation.method.earlier_answers",
            "keeps no answers by tenant",
        ),
    ],
)
@pytest.mark.parametrize("backend", ["vllm", "tensorrt_llm_pytorch"])
def test_settings_that_no_other_server_supports_are_reported(
    backend: str, changes: dict[str, Any], key: str, problem: str
) -> None:
    findings = served(backend, **changes)
    assert list(findings) == [key]
    assert problem in findings[key][0]


@pytest.mark.parametrize(
    ("backend", "changes", "key"),
    [
        (
            "sglang",
            {"draft": None, "speculation": {"method": {"kind": "ngram", "prompt_lookup_min": 3}}},
            "speculation.method.prompt_lookup_min",
        ),
        (
            "tensorrt_llm_pytorch",
            {"draft": None, "speculation": {"method": {"kind": "ngram", "prompt_lookup_min": 3}}},
            "speculation.method.prompt_lookup_min",
        ),
        ("tensorrt_llm_pytorch", {"serving": {"model_name": "llama"}}, "serving.model_name"),
        ("tensorrt_llm_pytorch", {"serving": {"aliases": ["llama"]}}, "serving.aliases"),
        ("sglang", {"serving": {"aliases": ["org/llama"]}}, "serving.aliases"),
        ("tensorrt_llm_pytorch", {"target": {"dtype": "float32"}}, "target.dtype"),
        (
            "sglang",
            {"hardware": {"count": 2}, "target": {"parallel": {"pipeline": 2}}},
            "target.parallel.pipeline",
        ),
    ],
)
def test_settings_that_vllm_supports_are_reported_for_servers_that_do_not(
    backend: str, changes: dict[str, Any], key: str
) -> None:
    assert list(served(backend, **changes)) == [key]
    assert served("vllm", **changes) == {}


def test_a_model_of_triton_has_one_name() -> None:
    found = served("vllm", serving={"layout": "triton", "aliases": ["llama"]})
    assert found == {"serving.aliases": ("a model of Triton has one name", "remove this line")}


def test_a_draft_has_the_ranks_of_its_target() -> None:
    recipe = {
        "name": "x",
        "hardware": {"gpu": "h100", "count": 4},
        "target": {"model": "a/b", "parallel": {"tensor": 2, "pipeline": 2}},
        "draft": {"model": "a/c"},
    }
    served_by = {
        backend: runner_of(Recipe.model_validate({**recipe, "engine": {"backend": backend}})).ranks(
            Recipe.model_validate({**recipe, "engine": {"backend": backend}})
        )[Role.DRAFT]
        for backend in ("tensorrt_llm", "vllm")
    }
    assert served_by == {"tensorrt_llm": 1, "vllm": 2}
