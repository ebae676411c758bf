"""SGLang: its release, what it runs, and what its server is like.

Read in 0.5.23 (`srt/managers/tokenizer_manager.py`, `srt/server_args.py`); the image is as
`docs/get_started/install.md` names it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import ClassVar

from trtspec.backends.backend import Unsupported
from trtspec.backends.sglang.flags import (
    ADAPTIVE,
    ADAPTIVE_FILE,
    FILE,
    FLAGS,
    LONGER,
    TOOL,
    TOPK,
    arguments,
    misplaced,
    tree_of,
)
from trtspec.backends.shared.servers import ONE_SOURCE, LaunchInputs, MtpSupport, ServerBackend, ServerRelease
from trtspec.base.findings import Finding
from trtspec.methods.method import AT_ONCE, TRANSLATES
from trtspec.pipeline.plan.resolved import Chooser
from trtspec.recipe.migration.command import names_in
from trtspec.recipe.migration.tool import MigrationTool
from trtspec.recipe.schema import Recipe

MTP = MtpSupport(
    names_in(
        "BailingMoeForCausalLM BailingMoeV2ForCausalLM BailingMoeV2_5ForCausalLM BailingMoeV3ForCausalLM "
        "DeepseekV32ForCausalLM DeepseekV3ForCausalLM DeepseekV4ForCausalLM Ernie4_5_MoeForCausalLM "
        "ExaoneMoEForCausalLM ExaoneMoeForCausalLM GigaChat35ForCausalLM Glm4MoeForCausalLM "
        "Glm4MoeLiteForCausalLM Glm5NextForConditionalGeneration GlmMoeDsaForCausalLM "
        "GlmOcrForConditionalGeneration HYV3ForCausalLM HYV4ForCausalLM InklingForConditionalGeneration "
        "InternS2MobiusForConditionalGeneration InternS2PreviewForConditionalGeneration "
        "LongcatFlashForCausalLM MiMoForCausalLM MiMoV2FlashForCausalLM MiMoV2ForCausalLM "
        "NemotronHForCausalLM NemotronHPuzzleForCausalLM NemotronH_Omni_Reasoning_V3 Qwen3MoeForCausalLM "
        "Qwen3NextForCausalLM Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration Qwen3_5MoeForCausalLM "
        "Qwen3_5MoeForConditionalGeneration Qwen4ExpForConditionalGeneration Step3p5ForCausalLM "
        "Step3p7ForConditionalGeneration"
    ),
    "SGLang 0.5.23, sglang/srt/configs/model_config.py: ModelConfig._config_draft_model",
)
"""The targets with whose own layers it can draft."""
_ALGORITHMS = "SGLang 0.5.23, sglang/srt/speculative/spec_info.py: SpeculativeAlgorithm"


_STATIC = names_in(
    f"{TOPK} {ADAPTIVE} {ADAPTIVE_FILE} --enable-dp-attention --enable-multi-layer-eagle --enable-pdmux "
    "--enable-two-batch-overlap"
)


class SglangBackend(ServerBackend):
    """SGLang's OpenAI server."""

    name = "sglang"
    title = "SGLang"
    packages = ("sglang",)
    needs_gpu = "SGLang's releases for a CPU are built from source"
    module = "sglang.launch_server"
    program = ("python3", "-m", "sglang.launch_server")
    releases = (ServerRelease("0.5.23", "lmsysorg/sglang:v0.5.23"),)
    flags = FLAGS
    data_parallel = ("--dp-size", "--enable-dp-attention")
    override = LONGER.override
    longer_than_head = LONGER  # srt/configs/model_config.py
    methods: ClassVar[Mapping[str, Unsupported | None]] = {
        "draft_model": None,
        "ngram": None,
        "hybrid": Unsupported(ONE_SOURCE, "SGLang 0.5.23, sglang/srt/arg_groups/fields/spec.py"),
        "suffix": Unsupported("SGLang has no suffix decoding", _ALGORITHMS),
        "eagle3": None,
        "eagle": None,
        "medusa": Unsupported("SGLang has no Medusa", _ALGORITHMS),
        "mtp": None,
        "dflash": None,
        "dspark": None,
        "ngram_gpu": Unsupported(
            "SGLang looks up n-grams only on the CPU: method ngram",
            "SGLang 0.5.23, sglang/srt/speculative/ngram_worker.py",
        ),
        "lookahead": Unsupported("SGLang has no lookahead decoding", _ALGORITHMS),
    }
    mtp = MTP
    lacking: ClassVar[Mapping[str, str]] = {
        "speculation.method.prompt_lookup_min": "its n-grams are of any length up to the longest",
        "serving.aliases": "it has one name (`served_model_name` of 0.5.23)",
        AT_ONCE: "its draft models propose one token per step (SGLang 0.5.23, STANDALONE)",
        TRANSLATES: "its drafts have the target's vocabulary (0.5.23; sgl-project/sglang#22883 is open)",
    }

    def contradictions(self, recipe: Recipe) -> Iterator[Finding]:
        """Finds pipeline ranks too, because SGLang does not draft with them.

        That is `check_pipeline_parallel_compat` of 0.5.23: only EAGLE's, and of servers that read prompts
        alone.
        """
        yield from super().contradictions(recipe)
        yield from misplaced(recipe, self.flags.syntax)
        if recipe.target.parallel.pipeline > 1:
            problem = "SGLang has no drafts beside pipeline ranks"
            yield Finding("target.parallel.pipeline", problem, "write tensor ranks instead")

    def schedule_flaw(self, recipe: Recipe) -> str | None:
        """Returns what `adaptive_unsupported_reason` of 0.5.23 says, and refuses `mtp`, of several layers."""
        if recipe.speculation.method.kind not in ("eagle", "eagle3"):
            return "SGLang changes only the steps of EAGLE's heads by the number of requests"
        names = (self.flags.syntax.name(word.partition("=")[0]) for word in recipe.engine.extra_args)
        found = next((name for name in names if name in _STATIC), None)
        return f"SGLang does not follow it with {found} of engine.extra_args" if found else None

    def num_nodes(self, choose: Chooser, longest: int) -> int:
        tree = tree_of(choose.loaded.recipe, self.flags.syntax)
        if tree is None:
            return longest
        tree.check(choose, longest)
        return tree.num_nodes(longest)

    def arguments(self, wanted: LaunchInputs) -> tuple[str, ...]:
        return arguments(wanted)

    def files(self, wanted: LaunchInputs) -> Mapping[str, str]:
        # From each number of requests on there is one number of steps to choose from.
        slots = {str(least): {"candidate_steps": [length]} for least, length in wanted.schedule.items()}
        return {FILE: json.dumps(slots) + "\n"} if slots else {}

    def tools(self) -> tuple[MigrationTool, ...]:
        return (TOOL,)


BACKEND = SglangBackend()
