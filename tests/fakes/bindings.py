"""NVIDIA's image, as far as `tensorrt_llm.bindings.executor` goes: a stand-in that can be imported."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from tests.fakes.engine_dir import write_engine
from trtspec.serving.executors.tensorrt_llm.runtime_draft import Choices

BINDINGS = Path(__file__).with_name("trtllm_bindings")


@contextmanager
def stand_in() -> Iterator[Any]:
    """The module; afterwards all executors are shut down and it cannot be imported any more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BINDINGS)
        patch.setattr(torch.cuda, "mem_get_info", torch.cuda.mem_get_info)
        module = import_module("tensorrt_llm.bindings.executor")
        try:
            yield module
        finally:
            for executor in module.Executor.MADE:
                executor.shutdown()
            for name in [name for name in sys.modules if name.partition(".")[0] == "tensorrt_llm"]:
                del sys.modules[name]


def write_trtllm_engine(directory: Path, model: PreTrainedModel, **build: Any) -> Path:
    """An engine directory as `trtllm-build` leaves it; `build` overrides keys of `build_config`."""
    plugins: dict[str, int] = {"use_paged_context_fmha": True, "remove_input_padding": True}
    plugins |= {"paged_kv_cache": True, "tokens_per_block": 32}
    write_engine(directory, model, plugin_config=plugins, kv_cache_type="PAGED", **build)
    (directory / "rank0.safetensors").rename(directory / "rank0.engine")
    return directory


def write_medusa_engine(directory: Path, model: PreTrainedModel, heads: int, **build: Any) -> Path:
    """The same with so many heads of Medusa inside, whose tree has `max_draft_len` nodes."""
    write_trtllm_engine(directory, model, **{"speculative_decoding_mode": 4, "max_draft_len": 63, **build})
    engine, size = directory / "rank0.engine", (model.config.vocab_size, model.config.hidden_size)
    weights = {f"medusa_heads.{head}.lm_head.weight": torch.zeros(size) for head in range(heads)}
    save_file(load_file(engine) | weights, engine)
    nodes = json.loads((directory / "config.json").read_text())["build_config"]["max_draft_len"]
    own = {"num_medusa_heads": heads, "num_medusa_layers": 0, "max_draft_len": nodes}
    change_config(directory, "pretrained_config", architecture="MedusaForCausalLM", **own)
    return directory


def write_eagle_engine(directory: Path, model: PreTrainedModel, tree: Choices, **build: Any) -> Path:
    """The same with a head of EAGLE inside, built for this tree."""
    drafts = {"speculative_decoding_mode": 32, "max_draft_len": len(tree)}
    write_trtllm_engine(directory, model, **{**drafts, **build})
    engine, depth = directory / "rank0.engine", max(map(len, tree))
    weights = {f"eagle_nets.{net}.drafter.fc.bias": torch.zeros(1) for net in range(depth)}
    save_file(load_file(engine) | weights, engine)
    own = {"num_eagle_layers": depth, "max_non_leaves_per_layer": len(tree), "max_draft_len": len(tree)}
    net = {"num_hidden_layers": 1}
    change_config(
        directory, "pretrained_config", architecture="EagleForCausalLM", eagle_net_config=net, **own
    )
    return directory


def change_config(directory: Path, section: str, **values: Any) -> None:
    """Overrides keys of one section of `config.json`, or of the document for an empty one."""
    path = directory / "config.json"
    document = json.loads(path.read_text())
    (document[section] if section else document).update(values)
    path.write_text(json.dumps(document))
