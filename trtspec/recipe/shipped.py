"""The recipes that trtspec ships, a link to the repository's `recipes/`, and the one to start from."""

from __future__ import annotations

from pathlib import Path

from trtspec.base.errors import UnavailableError

_FOLDER = Path(__file__).with_name("recipes")
TINY = _FOLDER / "tiny"
"""The folder of the tiny pair: `recipe.yaml`, `target` and `draft`."""


def shipped(name: str) -> Path:
    """Returns the file of a recipe by its name; raises `UnavailableError` that lists them."""
    known = {file.stem: file for file in sorted(_FOLDER.glob("*.yaml"))}
    if name not in known:
        raise UnavailableError(name, "trtspec ships no such recipe", f"it has {', '.join(known)}")
    return known[name]


STARTER = """\
# A trtspec recipe: one target, where its drafts come from, and where all that will run.
# `trtspec schema > recipe.schema.json` lets an editor complete and check it:
# yaml-language-server: $schema=recipe.schema.json

version: 1
name: llama-3.1-8b-h100                     # the build goes to build/<name>

target:                                     # the large model, whose text is served
  model: meta-llama/Llama-3.1-8B-Instruct   # Hub id, or a folder relative to this file: ./models/target
  # revision: <commit>                      # pin one in production
  # dtype: auto                             # or float32, float16, bfloat16
  # quantization: {weights: fp8, kv_cache: fp8, calibration: {dataset: calibration.jsonl, samples: 512}}
  # parallel: {tensor: 1, pipeline: 1}      # ranks; a product of up to hardware.count
  # build: {gemm_plugin: auto}              # any further trtllm-build option

draft:                                      # the small model that proposes tokens; same tokenizer
  model: meta-llama/Llama-3.2-1B-Instruct
  # device: cpu                             # or a GPU by its number, cuda:1; the plan chooses one if left out

speculation:
  # method: draft_model                     # or hybrid: the text proposes, else the draft; or ngram: no draft
  max_draft_len: 8                          # the longest draft that the target can verify
  # num_draft_tokens: 8                     # K of a request that names none

engine:
  # backend: tensorrt_llm                   # or torch: no TensorRT-LLM needed, on a CPU or one GPU
  # release: 1.2.1                          # TensorRT-LLM release
  max_batch_size: 16                        # requests in flight at once
  max_seq_len: 8192                         # prompt and answer together, in tokens

hardware:
  gpu: h100                                 # none for a machine without a GPU; the backend is then torch
  count: 1

serving:
  model_name: speculative_llm               # the Triton model that clients call
  # max_queue_size: 256                     # completions that wait for a slot; more are refused at once
  # default_timeout_microseconds: 600000000 # time limit of a request that names none
"""
"""The recipe of `trtspec init`: it is valid as it stands, and explains every choice."""
