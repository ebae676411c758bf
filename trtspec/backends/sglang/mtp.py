"""Lists the targets with whose own layers SGLang can draft."""

from __future__ import annotations

from trtspec.backends.served.mtp import MtpSupport

MTP = MtpSupport(
    frozenset(
        [
            "BailingMoeForCausalLM",
            "BailingMoeV2ForCausalLM",
            "BailingMoeV2_5ForCausalLM",
            "BailingMoeV3ForCausalLM",
            "DeepseekV32ForCausalLM",
            "DeepseekV3ForCausalLM",
            "DeepseekV4ForCausalLM",
            "Ernie4_5_MoeForCausalLM",
            "ExaoneMoEForCausalLM",
            "ExaoneMoeForCausalLM",
            "GigaChat35ForCausalLM",
            "Glm4MoeForCausalLM",
            "Glm4MoeLiteForCausalLM",
            "Glm5NextForConditionalGeneration",
            "GlmMoeDsaForCausalLM",
            "GlmOcrForConditionalGeneration",
            "HYV3ForCausalLM",
            "HYV4ForCausalLM",
            "InklingForConditionalGeneration",
            "InternS2MobiusForConditionalGeneration",
            "InternS2PreviewForConditionalGeneration",
            "LongcatFlashForCausalLM",
            "MiMoForCausalLM",
            "MiMoV2FlashForCausalLM",
            "MiMoV2ForCausalLM",
            "NemotronHForCausalLM",
            "NemotronHPuzzleForCausalLM",
            "NemotronH_Omni_Reasoning_V3",
            "Qwen3MoeForCausalLM",
            "Qwen3NextForCausalLM",
            "Qwen3_5ForCausalLM",
            "Qwen3_5ForConditionalGeneration",
            "Qwen3_5MoeForCausalLM",
            "Qwen3_5MoeForConditionalGeneration",
            "Qwen4ExpForConditionalGeneration",
            "Step3p5ForCausalLM",
            "Step3p7ForConditionalGeneration",
        ]
    ),
    "SGLang 0.5.23, sglang/srt/configs/model_config.py: ModelConfig._config_draft_model",
)
