"""The plan of a recipe that another engine's server serves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.heads import TARGET, write_head
from tests.fakes.mtp import DEEPSEEK, make_mtp
from tests.unit.pipeline.plan.conftest import Planned
from trtspec.backends.launch import ServerLaunch
from trtspec.base.errors import RecipeError
from trtspec.base.roles import Role
from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.plan.memory import budget
from trtspec.pipeline.plan.outlook import look_ahead
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.serving.executors.torch.host import ProcessShare

METHOD = "speculation.method"
INSIDE = "{method: medusa, share: 0.5}"
MEDUSA = {"draft": "{model: ./head}", "engine": "{backend: vllm, release: 0.32.0}"}


@pytest.fixture
def own(planned: Planned, tmp_path: Path) -> Planned:
    """Plans a target with layers for multi-token prediction, of such keys; keywords replace sections."""

    def plan(config: dict[str, Any], **sections: str) -> Resolved:
        def change() -> None:
            names = ("model.layers.2.enorm.weight", "model.layers.3.enorm.weight")
            make_mtp(tmp_path / "target", *names, **{**DEEPSEEK, "num_nextn_predict_layers": 2, **config})

        return planned(change=change, **{**OWN, **sections})

    return plan


def option(launch: ServerLaunch | None, name: str) -> str:
    assert launch
    return launch.arguments[launch.arguments.index(name) + 1]


@pytest.mark.parametrize(
    ("speculation", "length"),
    [("{}", 4), ("{max_draft_len: 6}", 6), ("{max_draft_len: 6, num_draft_tokens: 2}", 2)],
)
def test_k_is_that_of_every_round(planned: Planned, speculation: str, length: int) -> None:
    found = planned(speculation=speculation)
    assert found.num_draft_tokens == length
    configuration = json.loads(option(found.launch, "--speculative-config"))
    assert configuration["num_speculative_tokens"] == length


@pytest.mark.parametrize(("speculation", "length"), [("", 3), (", num_draft_tokens: 2", 2)])
def test_heads_of_medusa_say_a_token_each(
    planned: Planned, llama_folder: Callable[..., Path], tmp_path: Path, speculation: str, length: int
) -> None:
    write_head(tmp_path / "head", "medusa")
    speaks = f"{{method: medusa{speculation}}}"
    found = planned(**MEDUSA, speculation=speaks, change=lambda: llama_folder("target", **TARGET))
    assert found.num_draft_tokens == length


@pytest.mark.parametrize("key", ["num_draft_tokens", "max_draft_len"])
def test_vllm_would_make_up_the_tokens_that_no_head_says(planned: Planned, tmp_path: Path, key: str) -> None:
    write_head(tmp_path / "head", "medusa")
    with pytest.raises(RecipeError) as refused:
        planned(**MEDUSA, speculation=f"{{method: medusa, {key}: 4}}")
    (found,) = refused.value.findings
    assert (found.subject, found.problem, found.repair) == (
        f"speculation.{key}", "4 is more than the 3 tokens that the head proposes in one step", "at most 3",
    )  # fmt: skip


OWN = {"draft": "null", "speculation": "{method: mtp}"}


@pytest.mark.parametrize(
    ("backend", "layers", "length"),
    [("vllm", 1, 1), ("vllm", 2, 2), ("sglang", 2, 2), ("tensorrt_llm_pytorch", 1, 1)],
)
def test_each_layer_of_the_target_proposes_a_token(
    own: Planned, backend: str, layers: int, length: int
) -> None:
    found = own({"num_nextn_predict_layers": layers}, engine=f"{{backend: {backend}}}")
    assert found.num_draft_tokens == length
    assert list(found.engines) == [Role.TARGET]


@pytest.mark.parametrize(
    ("config", "backend", "speculation", "problem"),
    [
        ({"num_nextn_predict_layers": 0}, "vllm", "{method: mtp}", "the target has none"),
        ({}, "vllm", "{method: mtp, num_draft_tokens: 3}", "is not a multiple of the target's 2 layers"),
        (
            {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
            "sglang",
            "{method: mtp}",
            "cannot draft with those of",
        ),
        ({"model_type": "glm4_moe"}, "tensorrt_llm_pytorch", "{method: mtp}", "TensorRT-LLM 1.0 to 1.2"),
    ],
)
def test_a_target_whose_layers_a_server_does_not_draft_with(
    own: Planned, config: dict[str, Any], backend: str, speculation: str, problem: str
) -> None:
    with pytest.raises(RecipeError) as refused:
        own(config, engine=f"{{backend: {backend}}}", speculation=speculation)
    (found,) = refused.value.findings
    assert found.subject == METHOD
    assert problem in found.problem


def test_a_copy_that_lost_the_layers_weights(planned: Planned, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"config\.json says 1, and their weights are missing"):
        planned(change=lambda: make_mtp(tmp_path / "target", **DEEPSEEK), **OWN)


def test_a_cache_on_a_cpu_holds_the_layers_for_multi_token_prediction_too(own: Planned) -> None:
    sizes = {"hardware": "{gpu: none}", "engine": "{backend: vllm, max_batch_size: 2, max_seq_len: 300}"}
    found = own({"num_nextn_predict_layers": 2}, **sizes)
    token = 2 * 2 * (2 + 2) * 2 * 16
    assert option(found.launch, "--kv-cache-memory-bytes") == str(2 * 3 * 128 * token)


@pytest.mark.parametrize(("name", "length"), [("dflash", 15), ("dspark", 7)])
def test_a_head_that_fills_a_block_says_it_whole(
    llama_folder: Callable[..., Path], tmp_path: Path, name: str, length: int
) -> None:
    llama_folder("target", **TARGET)
    write_head(tmp_path / "head", name)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"name: block\ntarget: {{model: ./target}}\ndraft: {{model: ./head}}\n"
        f"speculation: {{method: {name}}}\nengine: {{backend: vllm}}\nhardware: {{gpu: h100}}\n"
    )
    assert make_plan(recipe).resolved.num_draft_tokens == length


def test_a_draft_model_that_was_not_trained_to_propose_all_at_once(planned: Planned) -> None:
    with pytest.raises(RecipeError, match="names no mask token"):
        planned(speculation="{method: {kind: draft_model, parallel_drafting: true}}")


def test_ngrams_of_a_gpu_need_one(planned: Planned) -> None:
    with pytest.raises(RecipeError, match="in a kernel of a GPU"):
        planned(draft="null", speculation="{method: ngram_gpu}", hardware="{gpu: none}")


def test_a_server_plan_chooses_and_shows_settings_that_the_recipe_omits(planned: Planned) -> None:
    found = planned()
    chosen = {choice.key: choice.value for choice in found.choices}
    assert chosen["engine.release"] == "0.33.0"
    assert (chosen["engine.max_seq_len"], chosen["engine.max_num_tokens"]) == (16384, 8192)
    assert option(found.launch, "--max-model-len") == "16384"
    assert found.launch
    assert found.launch.models == (
        str(found.loaded.path.parent / "target"),
        str(found.loaded.path.parent / "draft"),
    )


def test_on_a_cpu_the_cache_holds_the_longest_texts(planned: Planned) -> None:
    found = planned(hardware="{gpu: none}", engine="{backend: vllm, max_batch_size: 2, max_seq_len: 300}")
    # In bfloat16 keys and values of 2 heads of 16 and of 8 numbers, in 2 layers and in 1; blocks of 128.
    token = 2 * 2 * (2 * 2 * 16 + 1 * 2 * 8)
    assert option(found.launch, "--kv-cache-memory-bytes") == str(2 * 3 * 128 * token)
    assert found.launch
    assert "cpu" in found.launch.image
    assert budget(found) is None
    outlook = look_ahead(found, ProcessShare(2, None, 8 << 30))
    assert (outlook.memory, outlook.on_cpu, outlook.speed) == (None, None, None)
    assert "no data sheet" in (outlook.no_speed or "")
    numbers = {rule.rule: (rule.verdict, rule.number) for rule in outlook.advice.rules}
    assert numbers["memory for the whole batch"] == ("yes", "2 requests at full length, max_batch_size 2")
    assert "deploy --plain" in outlook.advice.checklist[-1].then


def test_both_models_share_the_gpus_of_the_target(planned: Planned) -> None:
    found = planned(
        target="{model: ./target, parallel: {tensor: 2}}",
        hardware="{gpu: h100, count: 4}",
    )
    assert (found.placement.target, found.placement.draft) == ((0, 1), (0, 1))
    assert found.engines[Role.DRAFT].checkpoint.mapping.tp_size == 2
    memory = budget(found)
    assert memory
    assert set(memory.engines) == set(Role)
    assert memory.problem is None
    assert look_ahead(found, ProcessShare(2, None, 8 << 30)).speed


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ({"engine": "{backend: vllm, max_seq_len: 20000}"}, "20000 is more than the target supports"),
        (
            {"engine": "{backend: vllm, max_num_tokens: 4096, enable_chunked_context: false}"},
            "4096 is less than the longest sequence, which is read in one iteration",
        ),
        (
            {"target": "{model: ./target, parallel: {tensor: 3}}", "hardware": "{gpu: h100, count: 3}"},
            "the 4 attention heads of the target do not divide among 3 ranks",
        ),
        (
            {
                "target": "{model: ./target, quantization: {weights: fp8}}",
                "engine": "{backend: tensorrt_llm_pytorch}",
            },
            "tensorrt_llm_pytorch quantizes nothing, and the model is not FP8",
        ),
    ],
)
def test_a_server_plan_refuses_settings_that_the_models_do_not_allow(
    planned: Planned, sections: dict[str, str], problem: str
) -> None:
    with pytest.raises(RecipeError, match=problem):
        planned(**sections)


class TestAnotherBackend:
    """`--backend` and the environment, over what the recipe says."""

    def test_a_recipe_of_engines_on_a_server(self, planned: Planned) -> None:
        found = planned(engine="{max_batch_size: 8}", flag="sglang")
        assert option(found.launch, "--max-running-requests") == "8"

    @pytest.mark.parametrize(
        ("sections", "flag", "key"),
        [
            ({"engine": "{}", "serving": "{layout: bls}"}, "vllm", "serving.layout"),
            ({"engine": "{release: 1.2.1}"}, "vllm", "engine.release"),
            ({"engine": "{backend: vllm, release: 0.33.0}"}, "tensorrt_llm", "engine.release"),
            ({"engine": "{backend: vllm}", "hardware": "{gpu: none}"}, "sglang", "engine.backend"),
            ({"engine": "{}"}, "triton", "engine.backend"),
            ({"engine": "{}", "speculation": "{method: hybrid}"}, "vllm", METHOD),
            ({"engine": "{backend: torch}", "speculation": "{method: eagle3}"}, "tensorrt_llm", METHOD),
            (
                {"engine": "{backend: torch}", "speculation": "{method: eagle, share: 0.5}"},
                "tensorrt_llm",
                "speculation.share",
            ),
            ({"engine": "{backend: torch}", "speculation": INSIDE}, "tensorrt_llm", "speculation.share"),
        ],
    )
    def test_a_recipe_key_that_the_chosen_backend_lacks_is_refused(
        self, planned: Planned, sections: dict[str, str], flag: str, key: str
    ) -> None:
        with pytest.raises(RecipeError) as refused:
            planned(flag=flag, **sections)
        (found,) = refused.value.findings
        assert found.subject == key
        assert found.repair
        assert ("trtspec migrate" in found.repair) == (key != "engine.backend")

    def test_a_recipe_of_a_server_on_the_torch_backend(self, planned: Planned) -> None:
        found = planned(engine="{backend: vllm, release: 0.33.0}", flag="torch")
        assert (found.backend, found.launch) == ("torch", None)
