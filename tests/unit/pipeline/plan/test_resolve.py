from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from trtspec.backends.table import load
from trtspec.base.errors import ModelError, RecipeError
from trtspec.base.roles import Role
from trtspec.checkpoint.convert_options import Mapping as RankMapping
from trtspec.models.families import FAMILIES
from trtspec.models.source import read_source
from trtspec.pipeline.build.plan import resolve
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.machine.host import Host
from trtspec.pipeline.plan.facts import ModelFacts, PlanFacts
from trtspec.pipeline.plan.memory import budget
from trtspec.pipeline.plan.outlook import advice
from trtspec.pipeline.plan.resolved import Choice, Resolved, asked_backend
from trtspec.pipeline.repository.spec import Placement

Resolve = Callable[..., Resolved]


@pytest.fixture
def resolved(llama_folder: Callable[..., Path], tmp_path: Path) -> Resolve:
    """Resolves a recipe of these further lines; the facts say of both models how long a text may be."""

    def make(
        *lines: str,
        gpu: str = "h200",
        longest: tuple[int, int] = (131072, 131072),
        architecture: str = "LlamaForCausalLM",
        flags: Mapping[str, str | None] | None = None,
        environment: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Resolved:
        sources = [
            read_source(llama_folder(name, max_position_embeddings=length, **config or {}))
            for name, length in zip(("target", "draft"), longest, strict=True)
        ]
        family = FAMILIES.get(architecture, FAMILIES["LlamaForCausalLM"])
        models = [
            ModelFacts(name, None, replace(source, architecture=architecture, model_type=family.name))
            for name, source in zip(("target", "draft"), sources, strict=True)
        ]
        facts = PlanFacts(dict(zip(Role, models, strict=True)), Host({}))
        recipe = tmp_path / "recipe.yaml"
        usual = ("name: x", f"hardware: {{gpu: {gpu}}}", "target: {model: ./t}", "draft: {model: ./d}")
        given = [line.split(":")[0] for line in lines]
        start = tuple(line for line in usual if line.split(":")[0] not in given)
        recipe.write_text("\n".join((*start, *lines)))
        asked, around = flags or {}, environment or {}
        return resolve(load(recipe, asked_backend(asked, around)), facts, asked, around)

    return make


def choice(resolved: Resolved, key: str) -> Choice:
    return next(choice for choice in resolved.choices if choice.key == key)


def test_defaults_for_a_gpu(resolved: Resolve) -> None:
    found = resolved()
    options = found.target.options
    assert (found.backend, found.release and found.release.version) == ("tensorrt_llm", "1.2.1")
    assert (options.max_batch_size, options.max_draft_len) == (16, 8)
    assert (found.target.enable_chunked_context, found.engines[Role.DRAFT].enable_chunked_context) == (
        False,
        True,
    )
    assert (options.max_seq_len, options.max_input_len, options.max_num_tokens) == (8192, 8191, 16384)
    assert found.engines[Role.DRAFT].options.max_draft_len == 0
    assert str(found.output) == "build/x"
    assert (found.target.checkpoint.dtype, choice(found, "target.dtype").origin) == ("bfloat16", "model")
    assert all(choice.reason for choice in found.choices)


def test_defaults_for_a_laptop(resolved: Resolve) -> None:
    found = resolved("engine: {backend: torch}", gpu="none", longest=(2048, 1024))
    assert found.release is None
    assert found.target.options.max_draft_len == 4
    assert found.target.options.max_seq_len == 1024
    assert choice(found, "engine.max_seq_len") == Choice(
        "engine.max_seq_len", 1024, "model", "the longest sequence that the draft supports"
    )


def test_an_architecture_that_trtspec_does_not_convert_is_refused(resolved: Resolve) -> None:
    with pytest.raises(ModelError, match="architecture Olmo2ForCausalLM is not supported; known: Gemma2"):
        resolved(architecture="Olmo2ForCausalLM")


@pytest.mark.parametrize("backend", ["vllm", "sglang"])
def test_vllm_and_sglang_are_planned_for_models_that_our_engines_refuse(
    resolved: Resolve, backend: str
) -> None:
    """A Llama 4, and a model in NVFP4."""
    make = partial(resolved, architecture="Llama4ForConditionalGeneration")
    planned = make(f"engine: {{backend: {backend}}}")
    assert planned.backend == backend
    assert advice(planned, None, None, None, None, None).rules
    for engines in ("tensorrt_llm", "torch"):
        with pytest.raises(ModelError, match="architecture Llama4ForConditionalGeneration is not supported"):
            make(f"engine: {{backend: {engines}}}")
    nvfp4 = {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    assert budget(resolved(f"engine: {{backend: {backend}}}", config=nvfp4)) is None
    with pytest.raises(ModelError, match="is quantized to NVFP4: "):
        resolved("engine: {backend: tensorrt_llm}", config=nvfp4)
    target = "target: {model: ./t, quantization: {weights: fp8}}"
    with pytest.raises(RecipeError, match=r"weights: the model is quantized to NVFP4 already"):
        resolved(f"engine: {{backend: {backend}}}", target, config=nvfp4)


def test_texts_of_a_gemma_stay_within_its_window_on_engines(resolved: Resolve) -> None:
    gemma = {
        "hidden_activation": "gelu_pytorch_tanh", "head_dim": 8, "query_pre_attn_scalar": 8,
        "rope_theta": 1e4, "rms_norm_eps": 1e-6, "sliding_window": 100,
    }  # fmt: skip
    make = partial(resolved, architecture="Gemma2ForCausalLM", config=gemma)
    assert make("engine: {max_seq_len: 92}").target.options.max_seq_len == 92
    with pytest.raises(RecipeError, match=r"max_seq_len: some layers of the target see 100 tokens") as caught:
        make("engine: {max_seq_len: 93}")
    assert caught.value.repair == "at most 92, drafts included"
    assert make("engine: {backend: torch, max_seq_len: 8192}").target.options.max_seq_len == 8192


def test_texts_of_a_long_phi_stay_within_its_first_factors_on_engines(resolved: Resolve) -> None:
    """Of the server's backends no engine is asked; the first factors are for 100 tokens."""
    phi = {
        "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5, "original_max_position_embeddings": 100,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 2, "long_factor": [9.0] * 2},
    }  # fmt: skip
    make = partial(resolved, architecture="Phi3ForCausalLM", config=phi)
    assert make("engine: {max_seq_len: 92}").target.options.max_seq_len == 92
    with pytest.raises(RecipeError, match=r"beyond 100 tokens the target has other rotary factors") as caught:
        make("engine: {max_seq_len: 93}")
    assert caught.value.repair == "at most 92, drafts included"
    for backend in ("torch", "vllm", "sglang"):
        assert make(f"engine: {{backend: {backend}, max_seq_len: 8192}}").backend == backend


def test_flag_before_environment_before_recipe_before_default(resolved: Resolve) -> None:
    recipe, environment = "engine: {backend: tensorrt_llm}", {"TRTSPEC_BACKEND": "torch"}
    assert choice(resolved(), "engine.backend").origin == "default"
    assert choice(resolved(recipe), "engine.backend").origin == "recipe"
    found = choice(resolved(recipe, environment=environment), "engine.backend")
    assert (found.value, found.origin) == ("torch", "environment")
    flags = {"engine.backend": "tensorrt_llm", "output": None}
    found = choice(resolved(recipe, environment=environment, flags=flags), "engine.backend")
    assert (found.value, found.origin) == ("tensorrt_llm", "flag")
    found = choice(resolved(environment={"TRTSPEC_OUTPUT": "/x"}, flags={"output": "y"}), "output")
    assert (found.value, found.origin) == ("y", "flag")


def test_an_iteration_is_as_wide_as_the_gpu_can_spare(resolved: Resolve) -> None:
    """With short texts all of them; where memory is scarce, or no GPU is, `trtllm-build`'s default."""
    found = resolved("engine: {max_seq_len: 1000}")
    assert (
        found.target.options.max_num_tokens
        == found.engines[Role.DRAFT].options.max_num_tokens
        == 16 * (1000 + 8)
    )
    assert choice(found, "engine.max_num_tokens").reason == "every request at its longest"
    narrow = resolved("engine: {max_batch_size: 170000}", "speculation: {max_draft_len: 1}", gpu="l4")
    assert narrow.target.options.max_num_tokens == 170000 * 2
    laptop = resolved("engine: {backend: torch}", gpu="none")
    assert laptop.target.options.max_num_tokens == 8192
    assert "engine.enable_chunked_context" not in [choice.key for choice in laptop.choices]


def test_drafts_are_discarded_only_where_a_text_outgrows_an_iteration(resolved: Resolve) -> None:
    found = resolved("engine: {max_num_tokens: 8192}")
    assert found.target.enable_chunked_context
    assert choice(found, "engine.enable_chunked_context").reason == (
        "sequences may exceed an iteration; 16 requests lose drafts from 504 tokens each"
    )
    assert not resolved("engine: {max_num_tokens: 8200}").target.enable_chunked_context
    asked = resolved("engine: {enable_chunked_context: true}")
    assert asked.target.enable_chunked_context
    assert choice(asked, "engine.enable_chunked_context").origin == "recipe"


def test_without_chunked_context_each_text_must_fit_an_iteration(resolved: Resolve) -> None:
    with pytest.raises(RecipeError, match="max_num_tokens 8199 must hold the longest sequence") as caught:
        resolved("engine: {max_num_tokens: 8199, enable_chunked_context: false}")
    assert caught.value.findings[0].subject == "engine.enable_chunked_context"
    assert caught.value.findings[0].repair == "write true, or set max_num_tokens: 8200"


def test_max_num_tokens_covers_a_verification_of_every_request(resolved: Resolve) -> None:
    found = resolved("engine: {max_batch_size: 1024}", "speculation: {max_draft_len: 15}")
    assert found.target.options.max_num_tokens == 1024 * 16
    assert choice(found, "engine.max_num_tokens").reason == "one verification of every request"


def test_dtype_auto_is_the_models_own(resolved: Resolve) -> None:
    found = resolved("target: {model: ./t, dtype: auto}", "draft: {model: ./d, dtype: float16}")
    assert (found.target.checkpoint.dtype, choice(found, "target.dtype").origin) == ("bfloat16", "model")
    assert (found.engines[Role.DRAFT].checkpoint.dtype, choice(found, "draft.dtype").origin) == (
        "float16",
        "recipe",
    )


def test_options_of_one_engine_are_its_own(resolved: Resolve) -> None:
    found = resolved("draft: {model: ./d, build: {gemm_plugin: bfloat16}}")
    target, draft = (engine.options.extra["gemm_plugin"] for engine in found.engines.values())
    assert (target, draft) == ("auto", "bfloat16")
    assert choice(found, "target.build.gemm_plugin").origin == "default"
    assert choice(found, "draft.build.gemm_plugin").origin == "recipe"


def test_the_torch_backend_has_the_recipes_options_alone(resolved: Resolve) -> None:
    found = resolved(
        "engine: {backend: torch}",
        "target: {model: ./t, build: {gather_generation_logits: true}}",
        gpu="none",
    )
    assert found.target.options.extra == {"gather_generation_logits": True}
    assert found.engines[Role.DRAFT].options.extra == {}


def test_a_build_option_that_trtllm_build_would_switch_off_is_refused(resolved: Resolve) -> None:
    two = "hardware: {gpu: h200, count: 2}"
    target = "target: {model: ./t, parallel: {tensor: 2}, build: {reduce_fusion: enable}}"
    assert resolved(two, target).target.options.extra["reduce_fusion"] == "enable"
    with pytest.raises(RecipeError, match="switches it off for MistralForCausalLM"):
        resolved(two, target, architecture="MistralForCausalLM")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("engine: {max_input_len: 8192}", r"engine.max_input_len: 8192 leaves no room for an answer"),
        (
            "engine: {max_num_tokens: 143}",
            r"143 is too small: 16 requests of 8 draft tokens and one more need 144",
        ),
        (
            "target: {model: ./t, quantization: {weights: fp8}}",
            r"target.quantization.calibration: fp8 needs texts to calibrate with",
        ),
    ],
)
def test_sizes_and_quantizations_that_cannot_work_are_refused_with_line_and_repair(
    resolved: Resolve, line: str, said: str
) -> None:
    with pytest.raises(RecipeError, match=said) as caught:
        resolved(line)
    assert caught.value.findings[0].line
    assert caught.value.findings[0].repair


def test_the_ranks_of_an_engine(resolved: Resolve) -> None:
    found = resolved("hardware: {gpu: h200, count: 4}", "target: {model: ./t, parallel: {tensor: 4}}")
    assert found.target.checkpoint.mapping == RankMapping(tp_size=4)
    assert found.engines[Role.DRAFT].checkpoint.mapping == RankMapping()


@pytest.mark.parametrize(
    ("parallel", "said"),
    [
        ("tensor: 8", r"target\.parallel\.tensor: 4 attention heads cannot be divided among 8 ranks"),
        ("pipeline: 3", r"target\.parallel\.pipeline: 3 pipeline ranks exceed the model's 2 layers"),
    ],
)
def test_ranks_that_a_model_does_not_divide_among(resolved: Resolve, parallel: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said) as caught:
        resolved("hardware: {gpu: h200, count: 8}", f"target: {{model: ./t, parallel: {{{parallel}}}}}")
    assert caught.value.findings[0].repair in ("use 1, 2 or 4", "at most 2")


def test_a_stretched_rope_makes_room(resolved: Resolve) -> None:
    assert resolved("engine: {max_seq_len: 4096}", longest=(4096, 4096)).target.options.max_seq_len == 4096


def test_a_text_longer_than_the_target_knows(resolved: Resolve) -> None:
    with pytest.raises(RecipeError, match=r"max_seq_len: 4096 is more than the target supports: 2048"):
        resolved("engine: {max_seq_len: 4096}", longest=(2048, 8192))


def test_a_flag_for_tensorrt_does_not_get_around_its_limits(resolved: Resolve) -> None:
    flags = {"engine.backend": "tensorrt_llm"}
    with pytest.raises(RecipeError, match="gpu is none"):
        resolved("engine: {backend: torch}", gpu="none", flags=flags)
    with pytest.raises(RecipeError, match=r"draft\.dtype: TensorRT-LLM has no paged context FMHA"):
        resolved("engine: {backend: torch}", "draft: {model: ./d, dtype: float32}", flags=flags)


class TestSizesOfOneEngine:
    def test_they_are_its_alone(self, resolved: Resolve) -> None:
        found = resolved("draft: {model: ./d, build: {max_batch_size: 256, max_num_tokens: 4096}}")
        target, draft = found.target.options, found.engines[Role.DRAFT].options
        assert (target.max_batch_size, draft.max_batch_size) == (16, 256)
        assert (target.max_num_tokens, draft.max_num_tokens) == (16384, 4096)
        assert "max_batch_size" not in draft.extra
        assert found.coordination
        assert found.coordination.admission.max_places == 16
        assert choice(found, "draft.build.max_batch_size").origin == "recipe"

    @pytest.mark.parametrize(
        ("build", "problem"),
        [
            ("max_seq_len: 4096", "4096 is too few: every engine reads the whole text"),
            ("max_batch_size: 1024, max_num_tokens: 1000", "1000 is too few: one iteration verifies"),
            ("max_input_len: 9000", "9000 leaves no room for an answer: max_seq_len is 8192"),
        ],
    )
    def test_a_draft_engine_too_small_for_the_pair_is_refused(
        self, resolved: Resolve, build: str, problem: str
    ) -> None:
        with pytest.raises(RecipeError, match=problem):
            resolved(f"draft: {{model: ./d, build: {{{build}}}}}")


class TestDevice:
    """`draft.device`: where the draft runs, whatever the plan would choose."""

    CPU = "draft: {model: ./d, device: cpu}"

    def test_a_draft_on_the_cpu_is_of_the_torch_backend(self, resolved: Resolve) -> None:
        found = resolved(self.CPU)
        target, draft = found.engines.values()
        names = (found.backend, target.runner.name, draft.runner.name)
        assert names == ("tensorrt_llm", "tensorrt_llm", "torch")
        assert found.coordination
        assert (found.coordination.layout, found.placement) == ("in_process", Placement((0,), ()))
        assert choice(found, "draft.device") == Choice("draft.device", "cpu", "recipe", "as written")
        assert not [
            written.key
            for written in found.choices
            if written.key.startswith(("draft.build", "target.device"))
        ]
        assert choice(found, "target.build.use_paged_context_fmha")

    def test_a_draft_on_the_cpu_may_be_float32_and_one_on_a_gpu_may_not(self, resolved: Resolve) -> None:
        draft = resolved("draft: {model: ./d, device: cpu, dtype: float32}").engines[Role.DRAFT]
        assert draft.checkpoint.dtype == "float32"
        with pytest.raises(RecipeError, match="no paged context FMHA"):
            resolved("draft: {model: ./d, device: 'cuda:0', dtype: float32}")

    @pytest.mark.parametrize("gpu", ["l4", "h200"])
    def test_sizes_of_a_draft_on_the_cpu_do_not_depend_on_the_gpu(self, resolved: Resolve, gpu: str) -> None:
        """The target's iterations are as wide as the GPU has room for."""
        found = resolved(self.CPU, gpu=gpu)
        assert found.engines[Role.DRAFT].options == BuildOptions(16, 8191, 8192, 8192, 0)
        assert found.target.options.max_num_tokens == 16384
        assert resolved(self.CPU, "engine: {max_num_tokens: 4096}", gpu=gpu).engines[
            Role.DRAFT
        ].options == BuildOptions(16, 8191, 8192, 4096, 0)

    def test_fp8_is_for_a_draft_on_a_gpu(self, resolved: Resolve) -> None:
        quantization = "quantization: {weights: fp8, calibration: {dataset: x.jsonl}}"
        with pytest.raises(RecipeError) as caught:
            resolved(f"draft: {{model: ./d, device: cpu, {quantization}}}")
        (finding,) = caught.value.findings
        assert finding.subject == "draft.quantization.weights"
        assert finding.problem == "fp8 is no gain on a CPU, which computes it in the model's dtype"
        assert finding.repair == "remove quantization from the draft"

    @pytest.mark.parametrize(
        ("count", "device", "gpus"), [(2, None, (1,)), (2, "cuda:0", (0,)), (4, "cuda:3", (3,))]
    )
    def test_a_gpu_of_its_own_or_the_targets(
        self, resolved: Resolve, count: int, device: str | None, gpus: tuple[int, ...]
    ) -> None:
        draft = f"draft: {{model: ./d, device: '{device}'}}" if device else "draft: {model: ./d}"
        found = resolved(f"hardware: {{gpu: h200, count: {count}}}", draft)
        assert found.placement == Placement((0,), gpus)
        assert {engine.runner.name for engine in found.engines.values()} == {"tensorrt_llm"}

    def test_a_gpu_that_is_too_small_for_both(self, resolved: Resolve) -> None:
        """Where the plan puts them apart."""
        hardware = "hardware: {gpu: l4, count: 2}"
        sizes = "engine: {max_batch_size: 600000, max_seq_len: 64}"
        apart = resolved(hardware, sizes)
        assert apart.placement == Placement((0,), (1,))
        with pytest.raises(RecipeError) as caught:
            resolved(hardware, sizes, "draft: {model: ./d, device: 'cuda:0'}")
        (finding,) = caught.value.findings
        assert (finding.subject, finding.repair) == ("draft.device", "write another GPU, or cpu")
        assert re.match("cuda:0 has ranks of the target too: the engines need .* of a GPU", finding.problem)

    def test_torch_runs_any_recipe(self, resolved: Resolve) -> None:
        found = resolved(self.CPU, flags={"engine.backend": "torch"})
        assert {engine.runner.name for engine in found.engines.values()} == {"torch"}
        assert found.release is None
