"""The names and the longest sequence that another engine's server has where its recipe says nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.heads import TARGET, write_head
from tests.unit.pipeline.plan.conftest import Planned
from trtspec.base.errors import RecipeError
from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.plan.memory import budget
from trtspec.pipeline.plan.outlook import look_ahead
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.serving.executors.torch.host import ProcessShare


def length(found: Resolved) -> tuple[object, str, str]:
    (choice,) = (choice for choice in found.choices if choice.key == "engine.max_seq_len")
    return choice.value, choice.origin, choice.reason


LLAMA_3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 2048,
}


class TestTheLongestText:
    """What a server takes where the recipe names no length."""

    @pytest.mark.parametrize(
        ("keys", "longest"),
        [
            ({"max_position_embeddings": 32768}, 32768),
            ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, 32768),
            ({"rope_scaling": LLAMA_3}, 16384),
            (
                {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}},
                16384,
            ),
            (
                {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16384}},
                16384,
            ),
        ],
    )
    def test_is_the_models_own(
        self, planned: Planned, llama_folder: Callable[..., Path], keys: dict[str, Any], longest: int
    ) -> None:
        made = {"hidden_size": 64, "max_position_embeddings": 16384, **keys}
        found = planned(change=lambda: llama_folder("target", **made), **ALONE)
        assert length(found) == (longest, "model", "the longest sequence that the target supports")
        with pytest.raises(RecipeError, match=f"than the target supports: {longest} tokens"):
            planned(
                change=lambda: llama_folder("target", **made),
                **{**ALONE, "engine": f"{{backend: vllm, max_seq_len: {longest + 1}}}"},
            )

    @pytest.mark.parametrize(
        ("backend", "longest"), [("vllm", 65536), ("sglang", 65536), ("tensorrt_llm_pytorch", 16384)]
    )
    def test_is_that_of_command_r_where_the_server_knows_its_key(
        self, planned: Planned, llama_folder: Callable[..., Path], backend: str, longest: int
    ) -> None:
        made = {"hidden_size": 64, "max_position_embeddings": 16384, "model_max_length": 65536}
        found = planned(
            change=lambda: llama_folder("target", **made), **ALONE, engine=f"{{backend: {backend}}}"
        )
        assert length(found)[0] == longest

    @pytest.mark.parametrize(
        "flag",
        [
            """vllm, extra_args: [--hf_overrides, '{"max_position_embeddings": 32768}']""",
            """vllm, extra_args: ['--hf-overrides={"rope_scaling": {"rope_type": "linear", "factor": 2}}']""",
            "vllm, extra_args: [--hf-overrides.rope_scaling.rope_type, linear, "
            "--hf-overrides.rope_scaling.factor, '2.0']",
            """sglang, extra_args: [--json-model-override-args, '{"model_max_length": 32768}']""",
        ],
    )
    def test_is_the_one_that_the_server_is_told(self, planned: Planned, flag: str) -> None:
        found = planned(**ALONE, engine=f"{{backend: {flag}}}")
        assert length(found) == (32768, "model", "the longest sequence that the target supports")
        assert length(planned(engine=f"{{backend: {flag}}}"))[0] == 16384  # The draft's own.

    def test_is_that_of_a_draft_that_has_less(
        self, planned: Planned, llama_folder: Callable[..., Path]
    ) -> None:
        found = planned(change=lambda: llama_folder("draft", max_position_embeddings=512))
        assert length(found) == (512, "model", "the longest sequence that the draft supports")

    def test_is_what_the_memory_of_the_gpus_holds(
        self, planned: Planned, llama_folder: Callable[..., Path]
    ) -> None:
        huge = {"hidden_size": 64, "max_position_embeddings": 2**30}
        found = planned(change=lambda: llama_folder("target", **huge), **{**ALONE, "hardware": "{gpu: l4}"})
        longest, origin, reason = length(found)
        assert origin == "default"
        assert reason == f"what the KV cache of NVIDIA L4 holds, of {2**30:,} that the target was made for"
        memory = budget(found)
        assert memory
        assert memory.requests == 1
        assert isinstance(longest, int)
        assert found.num_draft_tokens
        assert longest <= memory.tokens - found.num_draft_tokens < longest + 256

    def test_is_bounded_on_a_cpu(self, planned: Planned) -> None:
        found = planned(hardware="{gpu: none}")
        assert length(found) == (
            8192,
            "default",
            "the server reserves the host's memory for all requests at once",
        )

    def test_is_bounded_by_a_head_where_the_server_starts_for_no_more(
        self, llama_folder: Callable[..., Path], tmp_path: Path
    ) -> None:
        llama_folder("target", **{**TARGET, "max_position_embeddings": 4096})
        write_head(tmp_path / "head", "speculators")
        recipe, found = tmp_path / "recipe.yaml", {}
        variable = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
        unset, is_set = (f"sglang, environment: {{{variable}: '{value}'}}" for value in ("0", "Yes"))
        for backend in ("vllm", "sglang", unset, is_set):
            recipe.write_text(
                f"name: x\ntarget: {{model: ./target}}\ndraft: {{model: ./head}}\nhardware: {{gpu: h100}}\n"
                f"speculation: {{method: eagle3}}\nengine: {{backend: {backend}}}\n"
            )
            found[backend] = length(make_plan(recipe).resolved)[0]
        assert list(found.values()) == [4096, 64, 64, 4096]

    def test_is_no_promise_to_every_request(self, planned: Planned) -> None:
        """So the rule on memory is not held against it, as it is against a length that the recipe names."""
        numbers = {}
        for engine in (
            "{backend: vllm, max_batch_size: 8}",
            "{backend: vllm, max_batch_size: 8, max_seq_len: 99}",
        ):
            outlook = look_ahead(planned(engine=engine), ProcessShare(2, None, 8 << 30))
            (rule,) = (rule for rule in outlook.advice.rules if rule.rule == "memory for the whole batch")
            numbers[engine] = rule.verdict
        assert list(numbers.values()) == ["unmeasured", "yes"]


ALONE = {"draft": "null", "speculation": "{method: ngram}"}


@pytest.mark.parametrize(
    ("backend", "serving", "names"),
    [
        ("vllm", "{}", ["./target"]),
        ("vllm", "{model_name: org/llama, aliases: [llama, org/llama]}", ["org/llama", "llama"]),
        ("vllm", "{aliases: [llama]}", ["./target", "llama"]),
        ("sglang", "{}", ["./target"]),
        ("sglang", "{model_name: org/llama}", ["org/llama"]),
    ],
)
def test_the_names_of_a_model(planned: Planned, backend: str, serving: str, names: list[str]) -> None:
    found = planned(engine=f"{{backend: {backend}}}", serving=serving)
    assert found.launch
    words = found.launch.arguments
    first = words.index("--served-model-name") + 1
    assert list(words[first : words.index("--load-format")]) == names
    assert found.launch.served_model_name == found.model_name == names[0]
    chosen = {choice.key: choice.value for choice in found.choices}
    assert chosen["serving.model_name"] == names[0]


def test_a_model_of_triton_has_tritons_name(planned: Planned) -> None:
    assert planned(serving="{layout: triton}").model_name == "speculative_llm"


def test_trtllm_serve_calls_a_folder_by_its_last_part(planned: Planned) -> None:
    found = planned(engine="{backend: tensorrt_llm_pytorch}")
    assert found.launch
    assert found.launch.served_model_name == found.model_name == "target"
    assert "--served-model-name" not in found.launch.arguments
