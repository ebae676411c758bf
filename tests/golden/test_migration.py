"""Commands as manuals and articles show them, and the recipe and the lines that come of each, to the letter.

UPDATE_GOLDEN=1 writes them anew.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trtspec.backends.importing import recipe_of
from trtspec.backends.table import loads

GOLDEN = Path(__file__).with_name("migration")
PAIR = "--model meta-llama/Llama-3.1-70B-Instruct --speculative-model meta-llama/Llama-3.2-1B-Instruct"
CASES = {
    "vllm-draft": (
        "vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 4 --max-model-len 8192 \\\n"
        """  --speculative-config '{"model": "meta-llama/Llama-3.2-1B-Instruct", """
        """"num_speculative_tokens": 5, "draft_tensor_parallel_size": 1}' \\\n"""
        "  --gpu-memory-utilization 0.9 --port 8000"
    ),
    "vllm-ngram": (
        "vllm serve Qwen/Qwen3-8B -sc.method ngram -sc.prompt_lookup_max 4 -sc.num_speculative_tokens=4 "
        "--no-enable-chunked-prefill --enforce-eager"
    ),
    "vllm-eagle3": (
        "vllm serve Qwen/Qwen3-8B --spec-method eagle3 --spec-model RedHatAI/Qwen3-8B-speculator.eagle3 "
        "--spec-tokens 3 --quantization fp8 --kv-cache-dtype fp8 --served-model-name qwen qwen3"
    ),
    "vllm-suffix": """vllm serve Qwen/Qwen3-8B -sc '{"method": "suffix", "num_speculative_tokens": 16}'""",
    "vllm-0.6-draft": (
        f"python -m vllm.entrypoints.openai.api_server --host 0.0.0.0 --port 8000 {PAIR} --seed 42 -tp 4 "
        "--use-v2-block-manager --num_speculative_tokens 5 --speculative-draft-tensor-parallel-size 1 "
        "--speculative-disable-by-batch-size 16 --gpu_memory_utilization 0.8"
    ),
    "vllm-0.6-ngram": (
        "vllm serve facebook/opt-6.7b --speculative-model [ngram] --num-speculative-tokens 5 "
        "--ngram-prompt-lookup-max 4 --ngram-prompt-lookup-min 1"
    ),
    "vllm-docker": (
        "docker run --runtime nvidia --gpus all -v ~/.cache/huggingface:/root/.cache/huggingface "
        '--env "HF_TOKEN=$HF_TOKEN" -p 8000:8000 --ipc=host vllm/vllm-openai:latest '
        "--model mistralai/Mistral-7B-v0.1 --api-key $KEY"
    ),
    "sglang-standalone": (
        "python3 -m sglang.launch_server --model-path Qwen/Qwen2.5-7B-Instruct --tp 2 "
        "--speculative-algorithm STANDALONE --speculative-draft-model-path Qwen/Qwen2.5-1.5B-Instruct "
        "--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5 "
        "--max-running-requests 8 --mem-fraction-static 0.7"
    ),
    "sglang-eagle3": (
        "python3 -m sglang.launch_server --model meta-llama/Llama-3.1-8B-Instruct --dtype float16 "
        "--speculative-algorithm EAGLE3 --speculative-num-steps 5 --speculative-eagle-topk 8 "
        "--speculative-draft-model-path jamesliu1/sglang-EAGLE3-Llama-3.1-Instruct-8B "
        "--speculative-num-draft-tokens 32 --cuda-graph-max-bs 2"
    ),
    "sglang-ngram": (
        "sglang serve --model-path Qwen/Qwen2.5-7B-Instruct --speculative-algorithm NGRAM "
        "--speculative-num-draft-tokens 16 --context-length 8192"
    ),
    "trtllm-build": (
        "trtllm-build --checkpoint_dir ./ckpt/draft --output_dir ./engines/draft --gemm_plugin bfloat16 "
        "--max_batch_size 256 --max_seq_len 4096 && \\\n"
        "trtllm-build --checkpoint_dir ./ckpt/target --output_dir ./engines/target --gemm_plugin bfloat16 "
        "--speculative_decoding_mode draft_tokens_external --max_draft_len 10 --max_batch_size 4 "
        "--max_seq_len 4096 --use_paged_context_fmha enable"
    ),
    "trtllm-convert-and-build": (
        "python examples/quantization/quantize.py --model_dir meta-llama/Llama-3.1-405B --dtype bfloat16 "
        "--qformat fp8 --kv_cache_dtype fp8 --calib_size 512 --tp_size 4 --output_dir ./ckpt/target\n"
        "python convert_checkpoint.py --model_dir=meta-llama/Llama-3.2-3B --dtype=bfloat16 "
        "--output_dir=./ckpt/draft  # the small one\n"
        "trtllm-build --checkpoint_dir=./ckpt/target --output_dir=./engines/target --max_num_tokens 8192 "
        "--speculative_decoding_mode=draft_tokens_external --max_draft_len=10 --gather_generation_logits\n"
        "trtllm-build --checkpoint_dir=./ckpt/draft --output_dir=./engines/draft --max_num_tokens 8192"
    ),
    "trtllm-medusa": (
        "python convert_checkpoint.py --model_dir mistralai/Mistral-7B-Instruct-v0.2 --dtype float16 "
        "--medusa_model_dir text-generation-inference/Mistral-7B-Instruct-v0.2-medusa --num_medusa_heads 3 "
        "--output_dir ./ckpt\n"
        "trtllm-build --checkpoint_dir ./ckpt --output_dir ./engine --gemm_plugin float16 "
        "--speculative_decoding_mode medusa --max_batch_size 4"
    ),
    # NVIDIA's examples/eagle/README.md.
    "trtllm-eagle": (
        "python convert_checkpoint.py --model_dir ./vicuna-7b-v1.3 --eagle_model_dir EAGLE-Vicuna-7B-v1.3 "
        "--output_dir ./tllm_checkpoint_1gpu_eagle --dtype float16 --max_draft_len 63 --num_eagle_layers 4 "
        "--max_non_leaves_per_layer 10\n"
        "trtllm-build --checkpoint_dir ./tllm_checkpoint_1gpu_eagle --output_dir ./tmp/eagle/7B "
        "--gemm_plugin float16 --use_paged_context_fmha enable --speculative_decoding_mode eagle "
        "--max_batch_size 4"
    ),
    # NVIDIA's examples/lookahead/README.md, as it builds the engine.
    "trtllm-lookahead": (
        "python3 examples/models/core/llama/convert_checkpoint.py --model_dir=/path/to/vicuna-7b-v1.3 "
        "--output_dir=tmp/engine/ckpt --dtype=float16 --tp_size=1 --pp_size=1\n"
        "trtllm-build --checkpoint_dir=tmp/engine/ckpt --output_dir=tmp/engine "
        "--gpt_attention_plugin=float16 --gemm_plugin=float16 --max_batch_size=32 --max_input_len=1024 "
        "--max_seq_len=2048 --max_beam_width=1 --log_level=error --max_draft_len=83 "
        "--speculative_decoding_mode=lookahead_decoding"
    ),
    "trtllm-serve": (
        "trtllm-serve nvidia/Llama-3.1-8B-Instruct-FP8 --tp_size 2 --max_batch_size 8 --config FILE"
    ),
}
FILE = """\
max_seq_len: 8192
disable_overlap_scheduler: true
kv_cache_config:
  free_gpu_memory_fraction: 0.8
  enable_block_reuse: true
speculative_config:
  decoding_type: Eagle3
  max_draft_len: 3
  speculative_model_dir: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B
  eagle3_one_model: true
"""


@pytest.mark.parametrize("case", CASES)
def test_a_command_becomes_a_recipe(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("extra.yaml").write_text(FILE)
    command = CASES[case].replace("FILE", "extra.yaml")
    found = recipe_of(command, Path("recipe.yaml"))
    loads(found.text.encode(), Path("recipe.yaml"))
    told = "".join(f"{line.subject}: {line.fate}\n" for line in found.notes)
    written = f"{command}\n\n{found.text}\n{told}"
    golden = GOLDEN / f"{case}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(written)
    assert written == golden.read_text()
