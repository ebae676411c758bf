"""TensorRT-LLM: engines that `trtllm-build` makes, which NVIDIA's runtime runs under Triton."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from trtspec.backends.backend import MachineNeed, Unsupported
from trtspec.backends.shared.engines import EngineBackend
from trtspec.backends.tensorrt_llm import flags
from trtspec.backends.tensorrt_llm.engine_step import engine_step
from trtspec.backends.tensorrt_llm.heads import EagleEngineDraft, MedusaEngineDraft
from trtspec.backends.tensorrt_llm.lookahead import LookaheadEngineDraft
from trtspec.base.errors import TrtspecError
from trtspec.base.findings import Finding
from trtspec.base.roles import Role
from trtspec.checkpoint.engine_draft import EngineDraft
from trtspec.models.families import FAMILIES, family_of, longrope
from trtspec.models.source import Source
from trtspec.pipeline.engine.engine_options import Default, EngineKind
from trtspec.pipeline.machine.host import Host
from trtspec.pipeline.plan.facts import PlanFacts
from trtspec.pipeline.plan.obstacles import recipe_obstacle
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.run.step import Step
from trtspec.recipe import devices
from trtspec.recipe.build_options import FIXED, SIZES, Value, is_on
from trtspec.recipe.gpus import HOPPER
from trtspec.recipe.migration.tool import MigrationTool
from trtspec.recipe.releases import Release, release_of
from trtspec.recipe.schema import Recipe

_MODES = "TensorRT-LLM 1.2, tensorrt_llm/models/modeling_utils.py: SpeculativeDecodingMode"


class TensorRtLlmBackend(EngineBackend):
    """TensorRT-LLM's engines."""

    name = "tensorrt_llm"
    title = "TensorRT-LLM"
    engine_drafts: ClassVar[Mapping[str, type[EngineDraft]]] = {
        "medusa": MedusaEngineDraft,
        "lookahead": LookaheadEngineDraft,
        "eagle": EagleEngineDraft,
    }
    copies = 2
    rank_suffix = ".engine"
    packages = ("tensorrt_llm",)
    triton_backend = "tensorrtllm"
    needs_gpu = "TensorRT-LLM engines need a GPU"
    float32_flaw = "TensorRT-LLM has no paged context FMHA for float32, which speculation needs"
    emulates_fp8 = False
    methods: ClassVar[Mapping[str, Unsupported | None]] = {
        "draft_model": None,
        "ngram": None,
        "hybrid": None,
        "suffix": None,
        "eagle3": Unsupported(
            "TensorRT-LLM reads EAGLE-3 heads in its PyTorch backend alone, not in engines",
            "TensorRT-LLM 1.2, docs/source/features/speculative-decoding.md",
        ),
        "eagle": None,
        "medusa": None,
        "mtp": Unsupported(
            "engines of TensorRT-LLM have no MTP; its PyTorch backend has: tensorrt_llm_pytorch",
            "TensorRT-LLM 1.2, tensorrt_llm/llmapi/llm_args.py: MTPDecodingConfig.supports_backend",
        ),
        "dflash": Unsupported("engines of TensorRT-LLM have no DFlash", _MODES),
        "dspark": Unsupported("engines of TensorRT-LLM have no DSpark", _MODES),
        "ngram_gpu": Unsupported(
            "trtspec looks n-grams up on the CPU while the engine works: method ngram",
            "trtspec/serving/drafters/lookup.py",
        ),
        "lookahead": None,
    }

    def num_tokens(self, gpu: str) -> str:
        return f"{super().num_tokens(gpu)}, or more where memory allows"

    def engine_release(self, recipe: Recipe) -> Release:
        return release_of(recipe.engine.release)

    def machine_needs(self, recipe: Recipe) -> tuple[MachineNeed, ...]:
        usual: tuple[MachineNeed, ...] = ("gpus", "builder", "containers", "triton_image")
        return (*usual[:-1], "torch_draft", usual[-1]) if recipe.draft_gpus == () else usual

    def host_obstacle(self, host: Host, recipe: Recipe) -> TrtspecError | None:
        return recipe_obstacle(host, recipe, max(self.ranks(recipe).values()))

    def engine_step(self, resolved: Resolved, facts: PlanFacts, role: Role, gpus: tuple[str, ...]) -> Step:
        return engine_step(resolved, facts, role, gpus)

    def defaults(self, kind: EngineKind, written: Mapping[str, Value]) -> Iterator[Default]:
        return defaults(kind, written)

    def longest(self, source: Source, role: Role) -> Iterator[tuple[int, str]]:
        """Yields the lengths beyond which its runtime cannot reuse the KV cache.

        It accepts windows that differ by layer, but 1.0 does not reuse their KV cache, which each round needs
        (NVIDIA Dynamo's guide to Gemma 3 with variable sliding window attention). And a long sequence has
        cached keys with other rotary factors than those that the next round, whose new part is short, would
        use (`families/longrope.py`).
        """
        family = family_of(source)
        window, original = family.window(source) if family.alternates else None, longrope.original(source)
        if window is not None:
            yield (
                window,
                f"some layers of the {role} see {window} tokens,"
                " and TensorRT-LLM reuses no KV cache of these",
            )
        if original is not None:
            yield (
                original,
                f"beyond {original} tokens the {role} has other rotary factors, which TensorRT-LLM chooses"
                " by the new part of a sequence, not by its KV cache",
            )

    def contradictions(self, recipe: Recipe) -> Iterator[Finding]:
        yield from super().contradictions(recipe)
        yield from _overlap(self.ranks(recipe), recipe.hardware.count)
        yield from _draft_on_cpu(recipe)
        if self.has_engine_draft(recipe):
            yield from _of_engine_draft(recipe)

    def tools(self) -> tuple[MigrationTool, ...]:
        return flags.tools()


def _overlap(ranks: Mapping[Role, int], count: int) -> Iterator[Finding]:
    """Finds two engines of several ranks on the same of `count` GPUs, which wait for each other forever.

    This is issue #3499 of TensorRT-LLM.
    """
    target, draft = ranks[Role.TARGET], ranks.get(Role.DRAFT, 0)
    if 1 < target <= count and 1 < draft <= count < target + draft:
        problem = (
            f"{draft} ranks on GPUs that have ranks of the target too: TensorRT-LLM hangs with two requests"
        )
        yield Finding(
            "draft.parallel",
            problem,
            f"write tensor: 1 for the draft, or hardware: {{count: {target + draft}}}",
        )


def _draft_on_cpu(recipe: Recipe) -> Iterator[Finding]:
    """Finds options of a draft that trtllm-build does not build: on a CPU it is of the torch backend."""
    draft = recipe.draft
    if draft and draft.device == devices.CPU:
        for name in draft.build:
            if name not in SIZES:
                problem = "trtllm-build does not build this engine: draft.device is cpu"
                yield Finding(f"draft.build.{name}", problem, "remove this line")


def _of_engine_draft(recipe: Recipe) -> Iterator[Finding]:
    """Finds keys that an engine with a draft in it does not have."""
    speculation = recipe.speculation
    for key, reason in speculation.method.lacking_inside.items():
        if recipe.written(key) is not None:
            yield Finding(key, reason, "remove this line")
    longest, most = speculation.max_draft_len, speculation.method.most_inside
    if longest is not None and most is not None and longest > most:
        problem = f"is the size of the tree, which has {most} nodes at most"
        yield Finding("speculation.max_draft_len", problem, f"at most {most}")
    if recipe.target.parallel.pipeline > 1:
        problem = f"an engine of TensorRT-LLM with {speculation.method.kind} inside has no pipeline ranks"
        yield Finding("target.parallel.pipeline", problem, "write tensor ranks instead")


_FEW_ROWS = 64
"""The rows with which TensorRT-LLM tests its low-latency kernels; `trtspec selftest` compares both ways."""


def defaults(kind: EngineKind, written: Mapping[str, Value]) -> Iterator[Default]:
    """Yields every default beside the sizes; `written` are the options that the recipe itself sets.

    The reasons are from TensorRT-LLM's performance tuning guide (useful-build-time-flags.md,
    fp8-quantization.md) and from `tensorrt_llm/builder.py`, releases 1.0 to 1.2.
    """
    for option, (value, reason) in FIXED.items():
        yield Default(option, value, reason)
    yield from _attention(kind)
    yield from _products(kind, written)
    if "opt_num_tokens" not in written:
        reason = "kernels for a few draft tokens and for long prompts alike; the build takes longer"
        yield Default("multiple_profiles", "enable", reason)
    yield from _ranks(kind)


def _attention(kind: EngineKind) -> Iterator[Default]:
    fp8 = kind.fp8_weights and kind.fp8_kv_cache
    reason = "paged attention reads an FP8 KV cache in FP8 only" if fp8 else "it needs an FP8 KV cache"
    yield Default("use_fp8_context_fmha", "enable" if fp8 else "disable", reason)


def _products(kind: EngineKind, written: Mapping[str, Value]) -> Iterator[Default]:
    """Yields options for matrix products, which have few rows in a round: one for each token of a draft."""
    if not kind.fp8_weights:
        yield Default("gemm_plugin", "auto", "cuBLASLt: faster in float16 and bfloat16, and less memory")
        return
    yield Default("gemm_plugin", "disable", "NVIDIA advises against it for FP8")
    if kind.sm != HOPPER:
        return
    if kind.rows > _FEW_ROWS:
        reason = f"NVIDIA tests its kernels with {_FEW_ROWS} rows, and a round here may have {kind.rows}"
        yield Default("low_latency_gemm_plugin", "disable", reason)
        return
    yield Default("low_latency_gemm_plugin", "fp8", "Hopper's FP8 kernels for the few rows of a round")
    if not FAMILIES[kind.architecture].swiglu or FAMILIES[kind.architecture].fused_gate:
        return
    if not is_on(written.get("gemm_swiglu_plugin")) and is_on(written.get("use_fused_mlp", "enable")):
        reason = "one kernel for gate, up and SwiGLU; they share a scale, so nothing is lost"
        yield Default("low_latency_gemm_swiglu_plugin", "fp8", reason)


def _ranks(kind: EngineKind) -> Iterator[Default]:
    fuses = kind.reduce_fusion and FAMILIES[kind.architecture].reduce_fusion
    if fuses and kind.tensor > 1 and kind.pipeline == 1:
        yield Default(
            "reduce_fusion", "enable", "one kernel for the sum over the ranks and the norm after it"
        )
    if ranks := kind.tensor * kind.pipeline - 1:
        yield Default("workers", ranks + 1, "every rank is built at once, each on a GPU of its own")


BACKEND = TensorRtLlmBackend()
