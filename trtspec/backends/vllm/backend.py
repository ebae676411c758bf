"""vLLM: its releases, what it runs, and what its server is like.

Read in 0.32.0 and 0.33.0 (`vllm/config/speculative.py`, `entrypoints/launchers/launcher.py`,
`entrypoints/serve/middleware/register.py`); images as `docs/deployment/docker.md` names them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from trtspec.backends.backend import Unsupported
from trtspec.backends.shared.servers import ONE_SOURCE, LaunchInputs, MtpSupport, ServerBackend, ServerRelease
from trtspec.backends.vllm import triton
from trtspec.backends.vllm.flags import FLAGS, LONGER, PER_BATCH_SIZE, TOOL
from trtspec.base.findings import Finding
from trtspec.base.roles import Role
from trtspec.methods.method import HETEROGENEOUS, PARALLEL
from trtspec.pipeline.plan.facts import PlanFacts
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.run.step import Step
from trtspec.recipe import gpus
from trtspec.recipe.migration.command import as_words, names_in
from trtspec.recipe.migration.tool import MigrationTool
from trtspec.recipe.schema import Recipe

MTP = MtpSupport(
    names_in(
        "BailingMoeV2_5ForCausalLM BailingMoeV3ForCausalLM BailingMoeV3VLForConditionalGeneration "
        "Glm4MoeForCausalLM Glm4MoeLiteForCausalLM GlmOcrForConditionalGeneration MiMoForCausalLM "
        "MiMoV2FlashForCausalLM MiMoV2ForCausalLM MiMoV2OmniForCausalLM "
        "MiniMaxM3SparseForConditionalGeneration NemotronH_Omni_Reasoning_V3 "
        "NemotronH_Super_Omni_Reasoning_V3 Step3p5ForCausalLM Step3p7ForConditionalGeneration bailing_hybrid "
        "deepseek_v3 deepseek_v32 deepseek_v4 dots3_note ernie4_5_moe exaone4_5 exaone_moe glm5_next "
        "glm_moe_dsa hy_v3 hy_v4 inkling_mm_model inkling_model intern_s2_preview interns2_mobius kimi_k3 "
        "longcat_flash minimax_m3_vl nemotron_h nemotron_h_puzzle pangu_ultra_moe qwen3_5 qwen3_5_moe "
        "qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp qwen4_exp_text step3p5 step3p7"
    ),
    "vLLM 0.32.0 and 0.33.0, vllm/config/speculative.py: SpeculativeConfig.hf_config_override",
    in_whole_turns=True,
)
"""The targets with whose own layers it can draft."""


def _release(version: str) -> ServerRelease:
    cpu = f"public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v{version}"
    return ServerRelease(version, f"vllm/vllm-openai:v{version}", cpu)


class VllmBackend(ServerBackend):
    """vLLM's OpenAI server, or vLLM under Triton."""

    name = "vllm"
    title = "vLLM"
    packages = ("vllm", "vllm-cpu")
    drain_option = "--shutdown-timeout"
    key_variable = "VLLM_API_KEY"
    module = "vllm.entrypoints.openai.api_server"
    module_words = ("--model",)
    program = ("vllm", "serve")
    releases = (_release("0.33.0"), _release("0.32.0"))
    layouts = ("triton",)
    mtp = MTP
    flags = FLAGS
    data_parallel = ("--data-parallel-size", "")
    override = LONGER.override
    methods: ClassVar[Mapping[str, Unsupported | None]] = {
        "draft_model": None,
        "ngram": None,
        "hybrid": Unsupported(
            ONE_SOURCE, "vLLM 0.33.0, vllm/config/speculative.py: SpeculativeConfig.method"
        ),
        "suffix": None,
        "eagle3": None,
        "eagle": None,
        "medusa": Unsupported(
            "vLLM has Medusa up to 0.32.0, but not in 0.33.0",
            "vLLM 0.32.0 and 0.33.0, vllm/config/speculative.py: SpeculativeMethod",
            releases=("0.32.0",),
        ),
        "mtp": None,
        "dflash": None,
        "dspark": None,
        "ngram_gpu": None,
        "lookahead": Unsupported(
            "vLLM has no lookahead decoding", "vLLM 0.33.0, vllm/config/speculative.py: SpeculativeMethod"
        ),
    }

    def contradictions(self, recipe: Recipe) -> Iterator[Finding]:
        """Finds further names of a model of Triton too, which has one, and n-grams of a GPU without any.

        Those are `NgramSpeculator` of v1/worker/gpu/spec_decode/ngram.
        """
        yield from super().contradictions(recipe)
        if recipe.serving.layout and recipe.serving.aliases:
            yield Finding("serving.aliases", "a model of Triton has one name", "remove this line")
        if recipe.speculation.method.kind == "ngram_gpu" and recipe.hardware.gpu == gpus.NONE:
            problem = "gpu is none, and vLLM looks these n-grams up in a kernel of a GPU"
            yield Finding("speculation.method", problem, "write method: ngram")

    def schedule_flaw(self, recipe: Recipe) -> str | None:
        """Returns that two proposers of vllm/v1/spec_decode, of 0.32.0, assert that K stays the same.

        From data parallel ranks `_maybe_disable_dynamic_sd_for_data_parallel` of vllm/config takes it.
        """
        if (ranks := self.data_ranks(recipe.engine.extra_args)) > 1:
            return f"vLLM ignores it with {self.data_parallel[0]} {ranks} of engine.extra_args"
        method = recipe.speculation.method.kind
        return f"vLLM ends where K of {method} changes" if method in ("suffix", "medusa") else None

    def doubt(self, gpu: str) -> str | None:
        """Returns a defect on a CPU: vllm-project/vllm#55005, open, and seen in 0.32.0 by `verify`."""
        if gpu != gpus.NONE:
            return None
        wrong = "sampled text with drafts does not have the request's temperature (vllm-project/vllm#55005)"
        return f"on a CPU vLLM's {wrong}; greedy text is the target's own"

    def image(self, recipe: Recipe) -> str:
        return triton.IMAGE if recipe.serving.layout == "triton" else super().image(recipe)

    def steps(self, resolved: Resolved, facts: PlanFacts, only: Role | None) -> list[Step]:
        steps = super().steps(resolved, facts, only)
        if resolved.launch and resolved.loaded.recipe.serving.layout == "triton":
            steps.append(triton.write_repository_step(resolved.launch))
        return steps

    def arguments(self, wanted: LaunchInputs) -> tuple[str, ...]:
        """Returns the arguments of `vllm serve`: those of `EngineArgs` and of `SpeculativeConfig`."""
        target, pipeline = wanted.target, wanted.checkpoint.mapping.pp_size
        options = {
            "--revision": target.revision,
            "--tokenizer-revision": target.revision,
            "--served-model-name": wanted.names,
            "--load-format": "safetensors",
            "--dtype": wanted.checkpoint.dtype,
            "--quantization": "fp8" if target.quantize else None,
            "--kv-cache-dtype": "fp8" if wanted.checkpoint.fp8_kv_cache else None,
            "--kv-cache-memory-bytes": wanted.kv_bytes,
            "--tensor-parallel-size": wanted.checkpoint.mapping.tp_size,
            "--pipeline-parallel-size": pipeline if pipeline > 1 else None,
            "--max-num-seqs": wanted.options.max_batch_size,
            "--max-model-len": wanted.options.max_seq_len,
            "--max-num-batched-tokens": wanted.options.max_num_tokens,
            "--no-enable-chunked-prefill": not wanted.enable_chunked_context,
            "--speculative-config": json.dumps(speculation(wanted)),
        }
        return (target.place, *as_words(options))

    def tools(self) -> tuple[MigrationTool, ...]:
        return (TOOL,)


def speculation(wanted: LaunchInputs) -> dict[str, Any]:
    """Returns `--speculative-config`, which has the methods by the same names as a recipe.

    A draft has the target's ranks, dtype and KV cache, which vLLM asks for or gives it by itself.
    """
    draft, method = wanted.draft, wanted.method
    values: dict[str, Any] = {
        "method": method.kind,
        "num_speculative_tokens": wanted.num_draft_tokens,
        "model": draft.place if draft else None,
        "revision": draft.revision if draft else None,
        "quantization": "fp8" if draft and draft.quantize else None,
        HETEROGENEOUS: method.translates or None,
        PARALLEL: method.is_at_once or None,
        PER_BATCH_SIZE: _ranges(wanted.schedule, wanted.options.max_batch_size) or None,
        **method.options,
    }
    return {key: value for key, value in values.items() if value is not None}


def _ranges(schedule: Mapping[int, int], most: int) -> list[tuple[int, int, int]]:
    """Returns the first and the last number of requests of each K; beyond the last vLLM keeps the last K."""
    lasts = [*(least - 1 for least in schedule), max(most, *schedule, 1)][1:]
    return [(first, last, length) for (first, length), last in zip(schedule.items(), lasts, strict=True)]


BACKEND = VllmBackend()
