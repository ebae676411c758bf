"""Lists the targets with whose own layers TensorRT-LLM's PyTorch backend can draft.

1.3.0rc3 has those of GLM-4, EXAONE and Nemotron-H too (`MTPForCausalLM` of
`_torch/models/modeling_speculative.py`).
"""

from __future__ import annotations

from trtspec.backends.served.mtp import MtpSupport

MTP = MtpSupport(
    frozenset(("deepseek_v3", "deepseek_v32")),
    "TensorRT-LLM 1.0 to 1.2, docs/source/features/speculative-decoding.md: MTP is for DeepSeek",
)
