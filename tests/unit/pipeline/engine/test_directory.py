from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trtspec.backends.torch.builder import build_config
from trtspec.base.errors import EngineError
from trtspec.pipeline.engine.directory import check_engine, read_engine, write_config
from trtspec.pipeline.engine.engine_options import BuildOptions

PRETRAINED = {
    "architecture": "LlamaForCausalLM",
    "dtype": "bfloat16",
    "vocab_size": 100,
    "mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1},
}


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A directory as trtllm-build makes it, of two ranks, with a key that trtspec does not know."""
    config = build_config(BuildOptions(4, 255, 256, 8192, max_draft_len=8), "bfloat16") | {"newer": 1}
    write_config(tmp_path, "1.2.1", PRETRAINED, config)
    for rank in range(2):
        (tmp_path / f"rank{rank}.engine").write_bytes(b"plan")
    return tmp_path


def edit(engine: Path, **values: Any) -> None:
    content = json.loads((engine / "config.json").read_text())
    content["build_config"] |= values
    (engine / "config.json").write_text(json.dumps(content))


def test_reading_an_engine_of_tensorrt(engine: Path) -> None:
    config = check_engine(engine, 8)
    assert (config.backend, config.version, config.world_size, config.max_seq_len) == (
        "tensorrt_llm",
        "1.2.1",
        2,
        264,
    )


def test_the_draft_mode_of_an_engine_is_read_or_unknown(engine: Path) -> None:
    edit(engine, speculative_decoding_mode=4)
    assert check_engine(engine, 8, mode="medusa").mode == "medusa"
    edit(engine, speculative_decoding_mode=16)  # ReDrafter's
    assert read_engine(engine).mode is None


def test_an_engine_that_would_fail_when_loaded_is_refused(engine: Path) -> None:
    with pytest.raises(EngineError, match=r"built for mode 2 with max_draft_len 8, not for mode 1 with 0"):
        check_engine(engine, 0)
    with pytest.raises(EngineError, match=r"built for mode 2 with .* 8, not for mode 4 with 8"):
        check_engine(engine, 8, mode="medusa")
    edit(engine, plugin_config={"use_paged_context_fmha": False})
    with pytest.raises(EngineError, match="without use_paged_context_fmha"):
        check_engine(engine, 8)
    (engine / "rank1.engine").unlink()
    with pytest.raises(EngineError, match=r"has no rank1\.engine"):
        check_engine(engine, 8)


def test_directories_that_are_no_engines(engine: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"has no config\.json"):
        read_engine(tmp_path / "nowhere")
    (engine / "config.json").write_text('{"version": "1.2.1", "pretrained_config": {"architecture": "x"}}')
    with pytest.raises(EngineError, match="has no build_config"):
        read_engine(engine)
    (engine / "config.json").write_text("[]")
    with pytest.raises(EngineError, match="is not an engine's config"):
        read_engine(engine)


def test_an_engine_of_an_image_whose_wheel_is_a_candidate_of_the_release_is_accepted(engine: Path) -> None:
    """NVIDIA's image 26.03 has a TensorRT-LLM that calls itself 1.2.0rc8."""
    content = json.loads((engine / "config.json").read_text())
    (engine / "config.json").write_text(json.dumps({**content, "version": "1.2.0rc8"}))
    assert check_engine(engine, 8, "1.2.0").version == "1.2.0rc8"
    with pytest.raises(EngineError, match=r"built by TensorRT-LLM 1\.2\.0rc8"):
        check_engine(engine, 8, "1.2.1")
