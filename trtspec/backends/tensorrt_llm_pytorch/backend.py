"""TensorRT-LLM's PyTorch backend, which `trtllm-serve` serves: its releases, what it runs, what it is like.

Read in 1.0 to 1.2 (`llmapi/llm_args.py`, `commands/serve.py`); images as NGC names them
(tensorrt-llm/release). What Prometheus reads is at `/prometheus/metrics` from 1.1 on; `/metrics` are JSON
(NVIDIA/TensorRT-LLM#5785, `serve/openai_server.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from trtspec.backends.backend import Unsupported
from trtspec.backends.shared.servers import ONE_SOURCE, LaunchInputs, MtpSupport, ServerBackend, ServerRelease
from trtspec.backends.tensorrt_llm_pytorch.flags import FLAGS, TOOL
from trtspec.base import yaml11
from trtspec.base.roles import Role
from trtspec.methods.method import AT_ONCE, TRANSLATES
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.migration.command import as_words, names_in
from trtspec.recipe.migration.tool import MigrationTool
from trtspec.recipe.schema import Recipe

METHODS = {"draft_model": "DraftTarget", "ngram": "NGram", "eagle3": "Eagle", "mtp": "MTP"}
"""The `decoding_type` of each method (`DecodingBaseConfig.from_dict`)."""
FILE = "llm_api_options.yaml"


def configuration(wanted: LaunchInputs) -> dict[str, Any]:
    """Returns the file: fields of `LlmArgs`."""
    values: dict[str, Any] = {
        "revision": wanted.target.revision,
        "dtype": wanted.checkpoint.dtype,
        "enable_chunked_prefill": wanted.enable_chunked_context,
        "kv_cache_config": {"dtype": "fp8"} if wanted.checkpoint.fp8_kv_cache else None,
        # Without this it has no metrics for Prometheus.
        "return_perf_metrics": bool(wanted.release.metrics_path) or None,
        # Only a draft that is part of the target's model is run beside the scheduler's next step.
        "disable_overlap_scheduler": not wanted.method.is_head or None,
        "speculative_config": speculation(wanted),
    }
    return {key: value for key, value in values.items() if value is not None}


def speculation(wanted: LaunchInputs) -> dict[str, Any]:
    """Returns `speculative_config`; n-grams are looked up within the request, and the latest match counts."""
    method, draft = wanted.method, wanted.draft
    if method.in_target:
        return {"decoding_type": METHODS[method.kind], "num_nextn_predict_layers": wanted.num_draft_tokens}
    values: dict[str, Any] = {"decoding_type": METHODS[method.kind], "max_draft_len": wanted.num_draft_tokens}
    if wanted.schedule:
        values["draft_len_schedule"] = dict(wanted.schedule)
    if draft is None:
        ngrams = {"max_matching_ngram_size": method.options["prompt_lookup_max"]}
        return {**values, **ngrams, "is_use_oldest": False, "is_public_pool": False}
    return {**values, "speculative_model_dir": draft.place}


MTP = MtpSupport(
    names_in("deepseek_v3 deepseek_v32"),
    "TensorRT-LLM 1.0 to 1.2, docs/source/features/speculative-decoding.md: MTP is for DeepSeek",
)
"""The targets with whose own layers it can draft.

1.3.0rc3 has those of GLM-4, EXAONE and Nemotron-H too (`MTPForCausalLM` of
`_torch/models/modeling_speculative.py`).
"""


_ARGS = "TensorRT-LLM 1.2, tensorrt_llm/llmapi/llm_args.py"
_ONE_NAME = "up to 1.2 clients call a model by its Hub id, or by its folder's name"


def _release(version: str) -> ServerRelease:
    metrics = "/prometheus/metrics" if version != "1.0.0" else None
    return ServerRelease(version, f"nvcr.io/nvidia/tensorrt-llm/release:{version}", metrics_path=metrics)


class TensorRtLlmPyTorchBackend(ServerBackend):
    """TensorRT-LLM's OpenAI server without engines."""

    name = "tensorrt_llm_pytorch"
    title = "trtllm-serve"
    packages = ("tensorrt_llm",)
    needs_gpu = "TensorRT-LLM needs a GPU"
    float32_flaw = "TensorRT-LLM has no paged context FMHA for float32, which speculation needs"
    emulates_fp8 = False
    fp8 = "only a model that is published in FP8 is: name one, as ModelOpt exports it"
    quantizes = False  # it ignores what it is told (`CachedModelLoader` in llmapi/llm_utils.py)
    pins_drafts = False  # it would take the latest: `speculative_model_dir` has no revision
    module = "tensorrt_llm.commands.serve"
    program = ("trtllm-serve",)
    releases = tuple(map(_release, ("1.2.1", "1.2.0", "1.1.0", "1.0.0")))
    flags = FLAGS
    methods: ClassVar[Mapping[str, Unsupported | None]] = {
        "draft_model": None,
        "ngram": None,
        "hybrid": Unsupported(ONE_SOURCE, _ARGS),
        "suffix": Unsupported("its PyTorch backend has no suffix decoding", f"{_ARGS}: SpeculativeConfig"),
        "eagle3": None,
        "eagle": Unsupported(
            "its PyTorch backend reads only EAGLE-3 of EAGLE's heads",
            f"{_ARGS}: EagleDecodingConfig.spec_dec_mode",
        ),
        "medusa": Unsupported(
            "engines of TensorRT-LLM have Medusa, its PyTorch backend does not",
            f"{_ARGS}: MedusaDecodingConfig.supports_backend",
        ),
        "mtp": None,
        "dflash": Unsupported("its PyTorch backend has DFlash from 1.3 on", f"{_ARGS}: SpeculativeConfig"),
        "dspark": Unsupported("its PyTorch backend has no DSpark", f"{_ARGS}: SpeculativeConfig"),
        "ngram_gpu": Unsupported(
            "its PyTorch backend looks up n-grams only on the CPU: method ngram",
            "TensorRT-LLM 1.2, tensorrt_llm/_torch/speculative/ngram.py",
        ),
        "lookahead": Unsupported(
            "engines of TensorRT-LLM have lookahead decoding, its PyTorch backend does not",
            f"{_ARGS}: LookaheadDecodingConfig.supports_backend",
        ),
    }
    mtp = MTP
    lacking: ClassVar[Mapping[str, str]] = {
        AT_ONCE: "it has parallel drafts (PARD) from 1.3 on (llmapi/llm_args.py of 1.2)",
        TRANSLATES: "its drafts have the target's vocabulary (features/speculative-decoding.md of 1.2)",
        "speculation.method.prompt_lookup_min": "its n-grams are of any length up to the longest",
        "serving.model_name": _ONE_NAME,
        "serving.aliases": _ONE_NAME,
    }

    def schedule_flaw(self, recipe: Recipe) -> str | None:
        """Returns what 1.2 refuses or ignores. Heads follow one from 1.3 on (NVIDIA/TensorRT-LLM#10860)."""
        speculation, schedule = recipe.speculation, recipe.speculation.schedule or {}
        if recipe.engine.release in ("1.0.0", "1.1.0"):
            return f"TensorRT-LLM has it from 1.2 on, and engine.release is {recipe.engine.release}"
        if speculation.method.is_head or speculation.method.in_target:
            return "up to 1.2 TensorRT-LLM changes K only of draft models and n-grams"
        longest = speculation.num_draft_tokens or speculation.max_draft_len or speculation.largest
        short = f"TensorRT-LLM begins with the longest draft, which has {longest} tokens"
        return short if schedule[1] < longest else None

    def served_name(self, loaded: LoadedRecipe) -> str:
        location = loaded.locations[Role.TARGET]
        return location.name if isinstance(location, Path) else location

    def overrides(self, recipe: Recipe) -> Mapping[str, Any]:
        """Returns that no `model_max_length` counts: `infer_max_seq_len` (modeling_utils.py) reads none."""
        return {"model_max_length": None}

    def arguments(self, wanted: LaunchInputs) -> tuple[str, ...]:
        """Returns what `commands/serve.py` and `llmapi/llm_args.py` of TensorRT-LLM 1.0 to 1.2 accept.

        Its sizes are options, since not all of these releases take them from a file of configuration, where
        the rest is.
        """
        options = {
            "--backend": "pytorch",
            "--tp_size": wanted.checkpoint.mapping.tp_size,
            "--pp_size": wanted.checkpoint.mapping.pp_size,
            "--max_batch_size": wanted.options.max_batch_size,
            "--max_seq_len": wanted.options.max_seq_len,
            "--max_num_tokens": wanted.options.max_num_tokens,
            "--extra_llm_api_options": f"{{build}}/{FILE}",
        }
        return ("serve", wanted.target.place, *as_words(options))

    def files(self, wanted: LaunchInputs) -> Mapping[str, str]:
        return {FILE: yaml11.dump(configuration(wanted))}

    def tools(self) -> tuple[MigrationTool, ...]:
        return (TOOL,)


BACKEND = TensorRtLlmPyTorchBackend()
