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
from transformers import PreTrainedModel

from tests.fakes.engine_dir import write_engine

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
    plugins = {"use_paged_context_fmha": True, "remove_input_padding": True, "paged_kv_cache": True}
    write_engine(directory, model, plugin_config=plugins, kv_cache_type="PAGED", **build)
    (directory / "rank0.safetensors").rename(directory / "rank0.engine")
    return directory


def change_config(directory: Path, section: str, **values: Any) -> None:
    """Overrides keys of one section of `config.json`, or of the document for an empty one."""
    path = directory / "config.json"
    document = json.loads(path.read_text())
    (document[section] if section else document).update(values)
    path.write_text(json.dumps(document))
