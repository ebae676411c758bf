"""Checks, before a server starts, that engines will load there and work together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtspec.base.errors import EngineError
from trtspec.base.roles import Role
from trtspec.pipeline.engine.directory import EXTERNAL, EngineConfig, check_engine, read_engine
from trtspec.pipeline.engine.manifest import Manifest
from trtspec.recipe.releases import RELEASES


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
        if configs[role].runner.compiles:
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
    if found != config.version:
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
