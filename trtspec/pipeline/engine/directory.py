"""Engine directories: `config.json` with TensorRT-LLM's keys, and for each rank an engine or its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.backends.backend import Backend
from trtspec.backends.table import backend_named
from trtspec.base.errors import EngineError
from trtspec.serving.executors.limits import DRAFT_TOKENS_EXTERNAL, EAGLE, LOOKAHEAD, MEDUSA, TORCH_VERSION

NO_DRAFTS = 1  # `SpeculativeDecodingMode` of TensorRT-LLM, as `DRAFT_TOKENS_EXTERNAL`
EXTERNAL = "draft_tokens_external"
MODES = {EXTERNAL: DRAFT_TOKENS_EXTERNAL, "medusa": MEDUSA, "lookahead_decoding": LOOKAHEAD, "eagle": EAGLE}
"""What an engine with a `max_draft_len` does with drafts, as `trtllm-build` calls it, and as it writes it."""
_REBUILD = "build the engine again"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The configuration of an engine, read from its directory. Lengths are in tokens."""

    version: str
    architecture: str
    dtype: str
    quant_algo: str | None
    """The format that its linear layers are quantized to, such as FP8; None if they are not."""
    vocab_size: int
    world_size: int
    max_batch_size: int
    max_beam_width: int
    max_input_len: int
    max_seq_len: int
    """Includes `max_draft_len`."""
    max_num_tokens: int
    max_draft_len: int
    num_eagle_layers: int
    """The number of copies of EAGLE's head in the engine; `max_seq_len` includes this too."""
    speculative_decoding_mode: int
    kv_cache_type: str
    remove_input_padding: bool
    use_paged_context_fmha: bool
    gather_generation_logits: bool

    @property
    def longest(self) -> int:
        """The longest sequence: the part of `max_seq_len` for a prompt and its answer."""
        return self.max_seq_len - self.max_draft_len - self.num_eagle_layers

    @property
    def mode(self) -> str | None:
        """The name in `MODES` of what the engine does with drafts; None for a mode that trtspec does not
        serve.
        """
        return next((name for name, found in MODES.items() if found == self.speculative_decoding_mode), None)

    @property
    def drafts_inside(self) -> bool:
        """True if the engine has its draft inside, and verifies no other."""
        return self.mode not in (None, EXTERNAL)

    @property
    def backend(self) -> str:
        return maker_of(self.version)

    @property
    def runner(self) -> Backend:
        """The backend."""
        return backend_named(self.backend)

    @property
    def num_processes(self) -> int:
        """The number of processes that run it: one for each rank, or one that holds all ranks."""
        return self.world_size if self.runner.compiles else 1


def maker_of(version: str) -> str:
    """Returns the backend that built an engine, by the version in its `config.json`."""
    return "torch" if version.startswith(TORCH_VERSION) else "tensorrt_llm"


def write_config(folder: Path, version: str, pretrained: Mapping[str, Any], build: Mapping[str, Any]) -> None:
    """Writes `config.json`; its bytes depend on nothing but the values."""
    content = {"version": version, "pretrained_config": dict(pretrained), "build_config": dict(build)}
    (folder / "config.json").write_text(json.dumps(content, indent=4) + "\n", encoding="utf-8")


def read_engine(folder: Path) -> EngineConfig:
    """Reads a directory that either builder made; raises EngineError for an incomplete one.

    Keys that trtspec does not use may be there or not.
    """
    file = folder / "config.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        pretrained, build = content["pretrained_config"], content["build_config"]
        plugins = build["plugin_config"]
        config = EngineConfig(
            version=str(content["version"]),
            architecture=pretrained["architecture"],
            dtype=pretrained["dtype"],
            quant_algo=(pretrained.get("quantization") or {}).get("quant_algo"),
            vocab_size=_whole(pretrained, "vocab_size"),
            world_size=_whole(pretrained["mapping"], "world_size"),
            max_batch_size=_whole(build, "max_batch_size"),
            max_beam_width=_whole({"max_beam_width": 1, **build}, "max_beam_width"),
            max_input_len=_whole(build, "max_input_len"),
            max_seq_len=_whole(build, "max_seq_len"),
            max_num_tokens=_whole(build, "max_num_tokens"),
            max_draft_len=_whole(build, "max_draft_len"),
            num_eagle_layers=_whole({"num_eagle_layers": 0, **pretrained}, "num_eagle_layers"),
            speculative_decoding_mode=int(build["speculative_decoding_mode"]),
            kv_cache_type=str(build.get("kv_cache_type", "paged")).lower(),
            remove_input_padding=bool(plugins.get("remove_input_padding", True)),
            use_paged_context_fmha=bool(plugins["use_paged_context_fmha"]),
            gather_generation_logits=bool(build["gather_generation_logits"]),
        )
    except FileNotFoundError as error:
        raise EngineError(folder, "is not an engine: it has no config.json", "trtspec build") from error
    except KeyError as error:
        raise EngineError(file, f"has no {error.args[0]}", _REBUILD) from error
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise EngineError(file, f"is not an engine's config: {error}", _REBUILD) from error
    return config


def _whole(values: Mapping[str, Any], key: str) -> int:
    if type(value := values[key]) is not int or value < 0:
        raise ValueError(f"{key} is {value!r:.20}, which is not a whole number")
    return value


def check_engine(
    folder: Path, max_draft_len: int, release: str | None = None, mode: str = EXTERNAL
) -> EngineConfig:
    """Reads an engine, and raises EngineError for one that would fail to load or could not reuse KV blocks.

    `max_draft_len` is 0 for an engine that proposes, and `mode` is what another does with drafts. `release`
    is the TensorRT-LLM that should have built it; None allows any.
    """
    config = read_engine(folder)
    if release and config.version != release:
        problem = f"was built by TensorRT-LLM {config.version}, but the recipe's release is {release}"
        raise EngineError(
            folder, problem, f"write release: {config.version}, or build in the image of {release}"
        )
    suffix = "engine" if config.runner.compiles else "safetensors"
    for rank in range(config.world_size):
        if not (folder / f"rank{rank}.{suffix}").is_file():
            raise EngineError(folder, f"has no rank{rank}.{suffix}", _REBUILD)
    number = MODES[mode] if max_draft_len else NO_DRAFTS
    if (config.speculative_decoding_mode, config.max_draft_len) != (number, max_draft_len):
        found = f"mode {config.speculative_decoding_mode} with max_draft_len {config.max_draft_len}"
        problem = f"was built for {found}, not for mode {number} with {max_draft_len}"
        raise EngineError(folder, problem, _REBUILD)
    for flaw in _flaws(config):
        raise EngineError(folder, flaw, _REBUILD)
    return config


def _flaws(config: EngineConfig) -> list[str]:
    flaws = {
        "was built without use_paged_context_fmha, so it cannot reuse KV blocks": (
            not config.use_paged_context_fmha
        ),
        f"has a KV cache that is {config.kv_cache_type}, not paged": config.kv_cache_type != "paged",
        "was built without remove_input_padding, so it cannot batch in flight": (
            not config.remove_input_padding
        ),
        "was built for beam search, which does not work with drafts": config.max_beam_width > 1,
    }
    return [flaw for flaw, found in flaws.items() if found]
