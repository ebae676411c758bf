"""What `init --from` takes for a server's flags, held against the server's own parser."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.servers.judges import PYTHON, read_by
from tests.servers.write_switches import own_parser, path_of, rewritten
from trtspec.backends.importing import recipe_of
from trtspec.backends.sglang import flags as sglang
from trtspec.backends.table import loads
from trtspec.backends.vllm import flags as vllm
from trtspec.pipeline.machine.host import flags_of
from trtspec.recipe.migration.reading import FlagTable
from trtspec.recipe.schema import Recipe

pytestmark = pytest.mark.vllm

PATH = Path("recipe.yaml")
VLLM = [
    "--model org/big -tp 4 --max-model-len 8k --max_num_seqs 12 --dtype half --no-enable-chunked-prefill "
    "--enforce-eager --max-num-batched-tokens 2K -q fp8 --kv-cache-dtype fp8 --served-model-name a b "
    """-sc '{"method": "ngram", "num-speculative-tokens": 5, "prompt_lookup_max": 6}'""",
    "--trust-remote --model=org/big --pipeline 2 --speculative_config.model org/small "
    "--speculative-config.num_speculative_tokens=3 --speculative-config.method draft_model --revision abc",
]
SGLANG = [
    "--model org/big --tp 4 --context-length 8192 --max-running-requests 12 --dtype half --trust-remote-code "
    "--quantization fp8 --kv-cache-dtype fp8_e4m3 --speculative-algorithm STANDALONE --revision abc "
    "--speculative-draft-model org/small --speculative-num-steps 3 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 4 --chunked-prefill-size 2048 --served-model-name a",
]
# Flags of their own that SGLang's `arg_groups/speculative_hook.py` puts in another's place, by this line.
BLOCKS = {
    "--speculative-dflash-block-size": "speculative_num_draft_tokens=int(cfg.speculative_dflash_block_size),",
    "--speculative-dspark-block-size": "gamma = int(cfg.speculative_dspark_block_size)",
}


def read_and_check(server: str, table: FlagTable, commands: list[str]) -> list[dict[str, Any]]:
    """The lists of flags are what is written of the server's own parser, and aliases are its own."""
    written, own, syntax = path_of(server).read_text(), flags_of(PYTHON, own_parser(server)), table.syntax
    assert rewritten(written, own, table) == written
    known = syntax.begun[0]
    for name in own.keys() - known:
        assert not any(flag.startswith(name) for flag in known), f"{name} would be read as another flag"
    for name, (first, _) in own.items():
        if name in syntax.aliases.keys() - BLOCKS.keys():
            assert own[syntax.name(name)][0] == first, name
    return read_by(own_parser(server), list(map(shlex.split, commands)))


def recipe(command: str) -> Recipe:
    return loads(recipe_of(command, PATH).text.encode(), PATH).recipe


def test_flags_of_vllm_are_read_as_its_own_parser_reads_them() -> None:
    read = read_and_check("vllm", vllm.FLAGS, VLLM)
    for command, theirs in zip(VLLM, read, strict=True):
        ours = recipe(f"python -m vllm.entrypoints.openai.api_server {command}")
        speculation = {key.replace("-", "_"): value for key, value in theirs["speculative_config"].items()}
        assert ours.target.model == theirs["model"]
        assert ours.target.revision == theirs["revision"]
        assert ours.target.parallel.tensor == theirs["tensor_parallel_size"]
        assert ours.target.parallel.pipeline == theirs["pipeline_parallel_size"]
        assert ours.engine.max_seq_len == theirs["max_model_len"]
        assert ours.engine.max_batch_size == (theirs["max_num_seqs"] or 16)
        assert ours.engine.max_num_tokens == theirs["max_num_batched_tokens"]
        assert ours.engine.enable_chunked_context == theirs["enable_chunked_prefill"]
        assert ours.target.quantization.weights == (theirs["quantization"] or "none")
        assert ours.speculation.max_draft_len == speculation["num_speculative_tokens"]
        assert ours.speculation.method.kind == speculation["method"]
        assert (ours.draft.model if ours.draft else None) == speculation.get("model")
        if theirs["served_model_name"]:
            assert ours.serving.model_name == theirs["served_model_name"][0]


def test_flags_of_sglang_are_read_as_its_own_parser_reads_them() -> None:
    read = read_and_check("sglang", sglang.FLAGS, SGLANG)
    (hook,) = Path(PYTHON).parents[1].glob("lib/*/site-packages/sglang/srt/arg_groups/speculative_hook.py")
    assert all(line in hook.read_text() for line in BLOCKS.values())
    for command, theirs in zip(SGLANG, read, strict=True):
        ours = recipe(f"python -m sglang.launch_server {command}")
        assert ours.target.model == theirs["model_path"]
        assert ours.target.revision == theirs["revision"]
        assert ours.target.parallel.tensor == theirs["tp_size"]
        assert ours.engine.max_seq_len == theirs["context_length"]
        assert ours.engine.max_batch_size == theirs["max_running_requests"]
        assert ours.engine.max_num_tokens == theirs["chunked_prefill_size"]
        assert ours.target.quantization.weights == theirs["quantization"]
        assert ours.speculation.max_draft_len == theirs["speculative_num_steps"]
        assert ours.draft
        assert ours.draft.model == theirs["speculative_draft_model_path"]
        assert ours.serving.model_name == theirs["served_model_name"]
