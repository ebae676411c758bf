"""Engine directories: `config.json` with TensorRT-LLM's keys, and for each rank an engine or its weights.

Before a server starts it is checked that engines will load there and work together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.base.errors import EngineError
from trtspec.base.roles import Role
from trtspec.pipeline.engine.manifest import Manifest
from trtspec.recipe.releases import RELEASES, is_of
from trtspec.serving.executors.validation import (
    DRAFT_TOKENS_EXTERNAL,
    EAGLE,
    LOOKAHEAD,
    MEDUSA,
    TORCH_VERSION,
)

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
    def has_engine_draft(self) -> bool:
        """True if a draft is built into the engine, which verifies no other."""
        return self.mode not in (None, EXTERNAL)

    @property
    def backend(self) -> str:
        return maker_of(self.version)

    @property
    def is_compiled(self) -> bool:
        """True for an engine of TensorRT, which runs on the GPUs that it was built for."""
        return not self.version.startswith(TORCH_VERSION)

    @property
    def num_processes(self) -> int:
        """The number of processes that run it: one for each rank, or one that holds all ranks."""
        return self.world_size if self.is_compiled else 1


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
    if release and not is_of(config.version, release):
        problem = f"was built by TensorRT-LLM {config.version}, but the recipe's release is {release}"
        raise EngineError(
            folder, problem, f"write release: {config.version}, or build in the image of {release}"
        )
    suffix = "engine" if config.is_compiled else "safetensors"
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


def fits_sm(built_for: int | None, sm: int) -> bool:
    """Returns True if an engine that was built for one SM runs on a GPU of another; also if the first is
    unknown.
    """
    return built_for in (None, sm)


def fits_tensorrt(built_by: str | None, found: str | None) -> bool:
    """Returns True if an engine that one TensorRT built loads in another; also if either version is
    unknown.
    """
    return not built_by or not found or base_version(built_by) == base_version(found)


def base_version(tensorrt: str) -> str:
    """A version without what a package adds to it: 10.14.1.48.post1 is TensorRT 10.14.1.48."""
    return ".".join(tensorrt.split(".")[:4])


@dataclass(frozen=True, slots=True)
class Runtime:
    """The software and GPUs that will load the engines."""

    tensorrt_llm: str | None
    """The version; None if it is not installed."""
    tensorrt: str | None
    """The version; None if it is not known."""
    sms: tuple[int, ...]
    """The SM of each GPU, in CUDA's order."""


@dataclass(frozen=True, slots=True)
class BuiltWith:
    """The versions that only the manifest records of an engine; None for what it does not record."""

    tensorrt: str | None = None
    sm: int | None = None


def built_with(manifest: Manifest | None, role: Role) -> BuiltWith:
    """Returns the versions that built an engine, by the build's manifest if there is one.

    For an engine that was pulled from a store the manifest says what built it elsewhere.
    """
    if manifest is None:
        return BuiltWith()
    tools, gpu = manifest.tools, manifest.gpu
    if made := manifest.pulled.get(role):
        tools, gpu = made.get("tools") or {}, made.get("gpu")
    return BuiltWith(tools.get("tensorrt"), (gpu or {}).get("sm"))


@dataclass(frozen=True, slots=True)
class PlacedEngine:
    """An engine directory on its GPUs."""

    folder: Path
    gpus: tuple[int, ...]
    """The GPU of each rank, by CUDA's numbers."""
    built: BuiltWith
    """The versions that made the engine."""


def check_loading(
    engines: Mapping[Role, PlacedEngine],
    num_draft_tokens: int,
    tokenizer_sizes: Mapping[Role, int],
    runtime: Runtime,
) -> None:
    """Raises EngineError for the first thing that would fail, with the image or the rebuild that repairs it.

    `num_draft_tokens` is the longest draft that will be sent, `tokenizer_sizes` one more than the highest
    token id of the texts that each engine is given.
    """
    configs = {role: read_engine(engine.folder) for role, engine in engines.items()}
    for role, engine in engines.items():
        if configs[role].is_compiled:
            _check_versions(engine.folder, configs[role], engine.built, runtime)
            _check_gpus(engine.folder, configs[role], engine.gpus, engine.built, runtime)
    target = configs[Role.TARGET]
    _check_mode(engines[Role.TARGET].folder, target, num_draft_tokens)
    for role, engine in engines.items():
        drafts = target.max_draft_len if role is Role.TARGET else 0
        check_engine(engine.folder, drafts, mode=target.mode or EXTERNAL)
        size, known = configs[role].vocab_size, tokenizer_sizes[role]
        if known > size:
            problem = f"has a vocabulary of {size}, but the tokenizer has ids up to {known - 1}"
            raise EngineError(engine.folder, problem, "build the engines and the tokenizer from one recipe")
    for role, engine in engines.items():
        # Each engine reads the whole sequence.
        if (longest := configs[role].max_seq_len) < target.longest:
            problem = f"reads sequences of {longest} tokens, but the target's may have {target.longest}"
            raise EngineError(engine.folder, problem, "build both engines from one recipe")


def _check_versions(folder: Path, config: EngineConfig, built: BuiltWith, runtime: Runtime) -> None:
    found, release = runtime.tensorrt_llm, RELEASES.get(config.version)
    serve = f"serve it with {release.image}" if release else "serve it with the image that built it"
    if found is None:
        problem = f"needs TensorRT-LLM {config.version}, which is not installed here"
        raise EngineError(folder, problem, f"{serve}: trtspec deploy --container" if release else serve)
    if found != config.version and not is_of(config.version, found):
        problem = f"was built by TensorRT-LLM {config.version}, but this is {found}"
        again = f", or build it again with release: {found}" if found in RELEASES else ""
        raise EngineError(folder, problem, serve + again)
    if not fits_tensorrt(built.tensorrt, runtime.tensorrt):
        problem = (
            f"was built by TensorRT {built.tensorrt}, but this is {runtime.tensorrt}; an engine loads only "
            "in its own version"
        )
        raise EngineError(folder, problem, f"{serve}, or build it again here")


def _check_gpus(
    folder: Path, config: EngineConfig, gpus: tuple[int, ...], built: BuiltWith, runtime: Runtime
) -> None:
    if config.world_size != len(gpus):
        ranks = f"{config.world_size} rank{'s' * (config.world_size > 1)}"
        raise EngineError(folder, f"has {ranks}, but its recipe has {len(gpus)}", "build it again")
    found = len(runtime.sms)
    if found <= max(gpus):
        numbers = f"GPU{'s' * (len(gpus) > 1)} {', '.join(map(str, gpus))}"
        problem = f"runs on {numbers} of its server, and {found} {'is' if found == 1 else 'are'} visible here"
        repair = "start the container with --gpus all, or write this number in hardware.count and build again"
        raise EngineError(folder, problem, repair)
    others = [sm for sm in (runtime.sms[gpu] for gpu in gpus) if not fits_sm(built.sm, sm)]
    if others:
        problem = (
            f"was built for SM {built.sm}, but this GPU has SM {others[0]}; an engine runs only on the kind "
            "of GPU that built it"
        )
        raise EngineError(folder, problem, "serve it on the GPU of its recipe, or build it again on this one")


def _check_mode(folder: Path, config: EngineConfig, num_draft_tokens: int) -> None:
    if config.mode is None or config.max_draft_len < 1:
        problem = "verifies no drafts: it was built without speculative_decoding_mode draft_tokens_external"
        raise EngineError(folder, problem, "trtspec build makes a target that verifies drafts")
    if num_draft_tokens > config.max_draft_len:
        problem = (
            f"verifies drafts of up to {config.max_draft_len} tokens, but num_draft_tokens is "
            f"{num_draft_tokens}"
        )
        repair = (
            f"write num_draft_tokens: {config.max_draft_len}, or build it again with a larger max_draft_len"
        )
        raise EngineError(folder, problem, repair)
