"""Command lines of public pages, each with where it stands and what it becomes, to the letter."""

# ruff: noqa: E501

from __future__ import annotations

from dataclasses import dataclass

VLLM, SGLANG, SERVE = "vllm", "sglang", "tensorrt_llm_pytorch"


@dataclass(frozen=True)
class Case:
    kind: str
    source: str
    command: str
    backend: str
    target: str
    method: str
    draft: str | None = None
    longest: int | None = None
    option: tuple[str, object] | None = None
    """An option of the method that the command has too."""
    passed: tuple[str, ...] = ()
    """The words on drafts that the server gets as they are."""


_VLLM_DOCS = "https://github.com/vllm-project/vllm/blob/main/docs/features/speculative_decoding"
_SGLANG_DOCS = "https://docs.sglang.io"

VERBATIM = (
    Case(
        "a model's own layers, keys behind dots",
        "https://huggingface.co/zai-org/GLM-4.7/commit/26f32ade25482d46a9cbfc253f1c04f718d3245f",
        r"""vllm serve zai-org/GLM-4.7-FP8 \
     --tensor-parallel-size 4 \
     --speculative-config.method mtp \
     --speculative-config.num_speculative_tokens 1 \
     --tool-call-parser glm47 \
     --reasoning-parser glm45 \
     --enable-auto-tool-choice \
     --served-model-name glm-4.7-fp8
""",
        VLLM,
        "zai-org/GLM-4.7-FP8",
        "mtp",
        longest=1,
    ),
    Case(
        "a model's own layers, by the family's name",
        "https://github.com/vllm-project/recipes/blob/main/Qwen/Qwen3-Next.md",
        r"""vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct  \
--tokenizer-mode auto  --gpu-memory-utilization 0.8 \
--speculative-config '{"method": "qwen3_next_mtp", "num_speculative_tokens": 2}' \
--tensor-parallel-size 4 --no-enable-chunked-prefill
""",
        VLLM,
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "mtp",
        longest=2,
    ),
    Case(
        "underscores in a flag",
        f"{_VLLM_DOCS}/mtp.md",
        r"""vllm serve XiaomiMiMo/MiMo-7B-Base \
    --tensor-parallel-size 1 \
    --speculative_config '{"method":"mtp","num_speculative_tokens":1}'
""",
        VLLM,
        "XiaomiMiMo/MiMo-7B-Base",
        "mtp",
        longest=1,
    ),
    Case(
        "an assistant as the draft of mtp",
        f"{_VLLM_DOCS}/mtp.md",
        r"""vllm serve google/gemma-4-E2B-it \
    --tensor-parallel-size 1 \
    --max-model-len 8192 \
    --speculative-config '{"method":"mtp","model":"gg-hf-am/gemma-4-E2B-it-assistant","num_speculative_tokens":1}'
""",
        VLLM,
        "google/gemma-4-E2B-it",
        "mtp",
        draft="gg-hf-am/gemma-4-E2B-it-assistant",
        longest=1,
    ),
    Case(
        "a small model as the draft",
        f"{_VLLM_DOCS}/draft_model.md",
        r"""vllm serve Qwen/Qwen3-4B-Thinking-2507 \
    --host 0.0.0.0 \
    --port 8000 \
    --seed 42 \
    -tp 1 \
    --max-model-len 2048 \
    --gpu-memory-utilization 0.8 \
    --speculative-config '{"model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 5, "method": "draft_model"}'
""",
        VLLM,
        "Qwen/Qwen3-4B-Thinking-2507",
        "draft_model",
        draft="Qwen/Qwen3-0.6B",
        longest=5,
    ),
    Case(
        "a draft model that drafts in parallel",
        f"{_VLLM_DOCS}/parallel_draft_model.md",
        r"""vllm serve Qwen/Qwen3-4B \
    --host 0.0.0.0 \
    --port 8000 \
    --seed 42 \
    -tp 1 \
    --max_model_len 2048 \
    --gpu_memory_utilization 0.8 \
    --speculative_config '{"model": "amd/PARD-Qwen3-0.6B", "num_speculative_tokens": 12, "method": "draft_model", "parallel_drafting": true}'
""",
        VLLM,
        "Qwen/Qwen3-4B",
        "draft_model",
        draft="amd/PARD-Qwen3-0.6B",
        longest=12,
        option=("parallel_drafting", True),
    ),
    Case(
        "flags of vLLM before 0.9",
        "https://docs.vllm.ai/en/v0.7.1/features/spec_decode.html",
        r"""python -m vllm.entrypoints.openai.api_server --host 0.0.0.0 --port 8000 --model facebook/opt-6.7b \
    --seed 42 -tp 1 --speculative_model facebook/opt-125m --use-v2-block-manager \
    --num_speculative_tokens 5 --gpu_memory_utilization 0.8
""",
        VLLM,
        "facebook/opt-6.7b",
        "draft_model",
        draft="facebook/opt-125m",
        longest=5,
    ),
    Case(
        "the module, and no method",
        "https://raw.githubusercontent.com/vllm-project/vllm/v0.10.0/docs/features/spec_decode.md",
        r"""python -m vllm.entrypoints.openai.api_server \
    --host 0.0.0.0 \
    --port 8000 \
    --model facebook/opt-6.7b \
    --seed 42 \
    -tp 1 \
    --gpu_memory_utilization 0.8 \
    --speculative_config '{"model": "facebook/opt-125m", "num_speculative_tokens": 5}'
""",
        VLLM,
        "facebook/opt-6.7b",
        "draft_model",
        draft="facebook/opt-125m",
        longest=5,
    ),
    Case(
        "JSON on several lines",
        "https://docs.vllm.ai/projects/speculators/en/stable/user_guide/tutorials/serve_vllm/",
        r"""vllm serve Qwen/Qwen3-8B \
  -tp 1 \
  --speculative-config '{
    "model": "RedHatAI/Qwen3-8B-speculator.eagle3",
    "num_speculative_tokens": 3,
    "method": "eagle3"
  }'
""",
        VLLM,
        "Qwen/Qwen3-8B",
        "eagle3",
        draft="RedHatAI/Qwen3-8B-speculator.eagle3",
        longest=3,
    ),
    Case(
        "a draft of Speculators by its own name, a variable before the command",
        "https://github.com/vllm-project/speculators/blob/main/README.md",
        "VLLM_USE_V1=1 vllm serve RedHatAI/Qwen3-8B-speculator.eagle3\n",
        VLLM,
        "Qwen/Qwen3-8B",
        "eagle3",
        draft="RedHatAI/Qwen3-8B-speculator.eagle3",
        longest=3,
    ),
    Case(
        "docker run, and a method of blocks",
        "https://github.com/z-lab/dflash",
        r"""docker run --rm -it \
  --gpus all \
  --ipc=host \
  --shm-size=16g \
  -p 8000:8000 \
  -v ~/.cache/huggingface:/root/.cache/huggingface \
  ghcr.io/z-lab/vllm-openai:gemma4-dflash-cu130 \
  google/gemma-4-26B-A4B-it \
  --host 0.0.0.0 \
  --port 8000 \
  --speculative-config '{"method": "dflash", "model": "z-lab/gemma-4-26B-A4B-it-DFlash", "num_speculative_tokens": 15, "attention_backend": "flash_attn"}' \
  --attention-backend triton_attn \
  --max-num-batched-tokens 32768 \
  --trust-remote-code
""",
        VLLM,
        "google/gemma-4-26B-A4B-it",
        "dflash",
        draft="z-lab/gemma-4-26B-A4B-it-DFlash",
        longest=15,
    ),
    Case(
        "another script before the command",
        "https://github.com/eugr/spark-vllm-docker/issues/111",
        "./launch-cluster.sh --solo -t vllm-node-tf5   --apply-mod mods/fix-qwen3.5-chat-template   "
        "-e VLLM_MARLIN_USE_ATOMIC_ADD=1   exec vllm serve Qwen/Qwen3.5-27B-FP8   --port 32651 --host 0.0.0.0   "
        "--gpu-memory-utilization 0.93   --enable-auto-tool-choice   --tool-call-parser qwen3_coder   "
        "--reasoning-parser qwen3   -O3   --max-num-batched-tokens 8192   --performance-mode throughput   "
        "--enable-prefix-caching   --trust-remote-code   --enable-chunked-prefill   --async-scheduling   "
        "--language-model-only   --chat-template unsloth.jinja   --speculative-config "
        """'{"method":"qwen3_next_mtp","num_speculative_tokens":2}'   --load-format fastsafetensors\n""",
        VLLM,
        "Qwen/Qwen3.5-27B-FP8",
        "mtp",
        longest=2,
    ),
    Case(
        "further JSON beside that of drafts",
        "https://github.com/thomas9120/LLama-GUI/issues/165",
        r"""vllm serve Qwen/Qwen3-4B-Instruct-2507 \
  --port 8000 \
  --host 127.0.0.1 \
  --max-model-len 32768 \
  --enable-auto-tool-choice \
  --tool-call-parser qwen3_coder \
  --default-chat-template-kwargs '{"enable_thinking":false}' \
  --speculative-config '{"method":"qwen3_next_mtp","num_speculative_tokens":1}'
""",
        VLLM,
        "Qwen/Qwen3-4B-Instruct-2507",
        "mtp",
        longest=1,
    ),
    Case(
        "EAGLE without a draft",
        f"{_SGLANG_DOCS}/basic_usage/glm45.html",
        r"""python3 -m sglang.launch_server \
  --model-path zai-org/GLM-4.6-FP8 \
  --tp-size 8 \
  --tool-call-parser glm45  \
  --reasoning-parser glm45  \
  --speculative-algorithm EAGLE \
  --speculative-num-steps 3  \
  --speculative-eagle-topk 1  \
  --speculative-num-draft-tokens 4 \
  --mem-fraction-static 0.9 \
  --served-model-name glm-4.6-fp8 \
  --enable-custom-logit-processor
""",
        SGLANG,
        "zai-org/GLM-4.6-FP8",
        "mtp",
        longest=3,
    ),
    Case(
        "EAGLE without a draft, and without lengths",
        "https://github.com/sgl-project/sglang/blob/main/docs/basic_usage/deepseek_v3.md",
        r"""python3 -m sglang.launch_server \
  --model-path deepseek-ai/DeepSeek-V3-0324 \
  --speculative-algorithm EAGLE \
  --trust-remote-code \
  --tp 8
""",
        SGLANG,
        "deepseek-ai/DeepSeek-V3-0324",
        "mtp",
    ),
    Case(
        "variables assigned above, one by an argument's default",
        "https://huggingface.co/FasterDFlash/Hanrui/blob/main/test/start_server_dflash.sh",
        r"""# Launch SGLang server with DFLASH speculative decoding.
set -e
TP=${1:-2}
BASE_MODEL=/workspace/models/Qwen3-8B
DRAFT_MODEL=/workspace/models/Qwen3-8B-DFlash-b16
INTRANET_IP=10.1.1.22
PORT=30000
echo " target : $BASE_MODEL"
export SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1
/workspace/miniconda3/envs/dflash/bin/python -m sglang.launch_server \
    --model-path $BASE_MODEL \
    --speculative-algorithm DFLASH \
    --speculative-draft-model-path $DRAFT_MODEL \
    --tp-size $TP \
    --dtype bfloat16 \
    --attention-backend fa3 \
    --mem-fraction-static 0.30 \
    --trust-remote-code \
    --host $INTRANET_IP \
    --port $PORT
""",
        SGLANG,
        "/workspace/models/Qwen3-8B",
        "dflash",
        draft="/workspace/models/Qwen3-8B-DFlash-b16",
    ),
    Case(
        "flags by their beginnings, a tree",
        "https://huggingface.co/lmsys/DeepSeek-V3-NextN",
        "python3 -m sglang.launch_server --model deepseek-ai/DeepSeek-V3 --speculative-algo EAGLE "
        "--speculative-draft lmsys/DeepSeek-V3-NextN --speculative-num-steps 2 --speculative-eagle-topk 4 "
        "--speculative-num-draft-tokens 4 --trust-remote --tp 8\n",
        SGLANG,
        "deepseek-ai/DeepSeek-V3",
        "eagle",
        draft="lmsys/DeepSeek-V3-NextN",
        longest=2,
        passed=("--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "4"),
    ),
    Case(
        "a file that the script writes, a variable before the command",
        "https://nvidia.github.io/TensorRT-LLM/blogs/tech_blog/blog11_GPT_OSS_Eagle3.html",
        r"""mkdir -p /config/models/eagle
cat > /config/models/eagle/eagle.yaml << 'EOF'
trust_remote_code: true
kv_cache_config:
  enable_block_reuse: false
  free_gpu_memory_fraction: 0.8
speculative_config:
  decoding_type: Eagle
  max_draft_len: 3
  speculative_model_dir: /config/models/eagle/
cuda_graph_config:
  max_batch_size: 10
use_torch_sampler: true
moe_config:
  backend: TRTLLM
EOF
TRTLLM_ENABLE_PDL=1 trtllm-serve /config/models/gpt-oss-120b --host 0.0.0.0 --port 8000 --backend pytorch --max_batch_size 10  --tp_size 8 --ep_size 4 --trust_remote_code --extra_llm_api_options /config/models/eagle/eagle.yaml --max_num_tokens 131072 --max_seq_len 131072
""",
        SERVE,
        "/config/models/gpt-oss-120b",
        "eagle3",
        draft="/config/models/eagle/",
        longest=3,
    ),
)
