"""The flags of vLLM that have no value, and those that have several; any other has one.

They are what the parser of release 0.32 says, written by `tests/servers/write_switches.py`, and some that
0.6 to 0.8 had.
"""

from __future__ import annotations

from trtspec.recipe.migration.command import names_in

SWITCHES = names_in("""
    --aggregate-engine-logging --allow-credentials --allow-deprecated-quantization --async-scheduling
    --calculate-kv-scales --cohere-is-reasoning-model --cudagraph-metrics --data-parallel-external-lb
    --data-parallel-hybrid-lb --data-parallel-multi-port-external-lb --dcp-q-replicate
    --disable-async-output-proc --disable-cascade-attn --disable-chunked-mm-input --disable-custom-all-reduce
    --disable-fastapi-docs --disable-frontend-multiprocessing --disable-hybrid-kv-cache-manager
    --disable-log-requests --disable-log-stats --disable-logprobs-during-spec-decoding
    --disable-mm-preprocessor-cache --disable-nccl-for-dp-synchronization --disable-sliding-window
    --disable-uvicorn-access-log --enable-auto-tool-choice --enable-batch-sharded-sampling
    --enable-chunked-prefill --enable-cumem-allocator --enable-dbo --enable-elastic-ep
    --enable-ep-weight-filter --enable-eplb --enable-expert-parallel --enable-fault-tolerance
    --enable-flash-late-interaction --enable-flashinfer-autotune --enable-force-include-usage --enable-hc-sp
    --enable-layerwise-nvtx-tracing --enable-log-deltas --enable-log-outputs --enable-log-requests
    --enable-logging-iteration-details --enable-lora --enable-mamba-cache-stochastic-rounding
    --enable-mamba-shared-prefix-checkpoint --enable-mfu-metrics --enable-mixed-moe-lora-format
    --enable-mm-embeds --enable-moe-shared-loras --enable-nccl-comm-suspend --enable-offline-docs
    --enable-per-request-metrics --enable-prefix-caching --enable-prompt-embeds --enable-prompt-tokens-details
    --enable-reasoning --enable-request-id-headers --enable-return-routed-experts --enable-scale-out
    --enable-server-load-tracking --enable-shm-tensor-arena --enable-sleep-mode --enable-ssl-refresh
    --enable-tokenizer-info-endpoint --enable-tower-connector-lora --enable-trace-replay --enforce-eager
    --exclude-tools-when-tool-choice-none --fail-on-environ-validation --fully-sharded-loras --grpc --headless
    --interleave-mm-strings --jit-monitor-verbose --kv-cache-metrics --kv-sharing-fast-prefill
    --language-model-only --log-error-stack --long-prefill-token-threshold-adaptive --mm-device-do-normalize
    --mm-encoder-only --multi-step-stream-outputs --numa-bind --ray-workers-use-nsight --return-sampling-mask
    --return-tokens-as-token-ids --scheduler-reserve-full-isl --skip-mm-profiling --skip-tokenizer-init
    --sleep-mode-offload-cudagraph --specialize-active-lora --speculative-disable-mqa-scorer
    --swa-bounded-replay --tokens-only --trust-remote-code --trust-request-chat-template
    --trust-request-mm-kwargs --use-fp64-gumbel --use-replayssm --use-tqdm-on-load --use-v2-block-manager -O0
    -O1 -O2 -O3
""")
"""The flags without a value."""

ONE_WAY = names_in("""
    --aggregate-engine-logging --calculate-kv-scales --data-parallel-multi-port-external-lb
    --disable-async-output-proc --disable-frontend-multiprocessing --disable-log-requests --disable-log-stats
    --disable-logprobs-during-spec-decoding --disable-mm-preprocessor-cache --enable-reasoning --grpc
    --headless --multi-step-stream-outputs --speculative-disable-mqa-scorer --use-v2-block-manager -O0 -O1 -O2
    -O3
""")
"""Those of them that have no `--no-` form."""

LISTS = names_in("""
    --allowed-media-domains --api-key --collect-detailed-traces --cpu-offload-params --cudagraph-capture-sizes
    --hf-token --ignore-patterns --kv-cache-dtype-skip-layers --logits-processors --lora-modules
    --lora-target-modules --numa-bind-cpus --numa-bind-nodes --offload-params --served-model-name
    --sleep-preserve-parameter-names
""")
"""The flags with as many values as words follow."""
