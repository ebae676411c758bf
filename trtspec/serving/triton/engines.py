"""The engines of a model, loaded as the parameters of its `config.pbtxt` say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtspec.serving.bounds import Bounds
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Executor
from trtspec.serving.executors.limits import read_limits
from trtspec.serving.tokenizer import Tokenizer
from trtspec.serving.triton.parameters import Parameters


@dataclass(frozen=True, slots=True)
class Pair:
    """The parts of a coordinator; with `draft` None the target decodes alone.

    Engines that are not `in_process` are models of their own, which need not be loaded yet.
    """

    target: Executor
    draft: Executor | None
    tokenizer: Tokenizer
    num_draft_tokens: int | None = None
    in_process: bool = True
    bounds: Bounds | None = None

    def coordinator(self) -> Coordinator:
        return Coordinator(self.target, self.draft, self.tokenizer, self.num_draft_tokens, self.bounds)

    def shutdown(self) -> None:
        for executor in (self.draft, self.target):
            if executor is not None:
                executor.shutdown()


def load(values: Mapping[str, str], folder: Path) -> Pair:
    """Loads both engines, or connects to the models that run them.

    Paths in `values` are relative to `folder`, the model's. It is called on the loop that the executors will
    use. Raises `EngineLoadError` or `TokenizerError`.
    """
    parameters = Parameters(values, folder)
    backend = parameters.text("engine_backend")
    if backend not in _LOADERS:
        raise EngineLoadError("engine_backend", f"{backend!r} is none of {', '.join(_LOADERS)}")
    longest = parameters.number("num_draft_tokens") if "num_draft_tokens" in values else None
    tokenizer = Tokenizer.load(parameters.path("tokenizer_dir"))
    target, draft = _LOADERS[backend](parameters)
    bounds = _bounds(parameters, target, draft)
    return Pair(target, draft, tokenizer, longest, backend != "bls", bounds)


def _bounds(parameters: Parameters, target: Executor, draft: Executor) -> Bounds:
    """Returns the bounds that the plan has chosen, with the KV cache size of the loaded engines."""
    engines = (target, draft)
    caches = [executor.kv_tokens for executor in engines if executor.kv_tokens is not None]
    usual = Bounds(min(executor.limits.max_batch_size for executor in engines))
    has, number = parameters.values.keys(), parameters.number
    return Bounds(
        max_places=number("max_places") if "max_places" in has else usual.max_places,
        kv_tokens=min(caches, default=None),
        max_queue_size=number("max_queue_size") if "max_queue_size" in has else usual.max_queue_size,
        max_queue_delay_s=parameters.seconds("max_queue_delay_microseconds", usual.max_queue_delay_s),
        default_timeout_s=parameters.seconds("default_timeout_microseconds", usual.default_timeout_s),
        draft_timeout_s=parameters.seconds("draft_timeout_microseconds", usual.draft_timeout_s),
        target_timeout_s=parameters.seconds("target_timeout_microseconds", usual.target_timeout_s),
    )


def _bls(parameters: Parameters) -> tuple[Executor, Executor]:
    """Connects to both models; limits come from the engine directories, the cache size from the plan."""
    from trtspec.serving.executors.bls.bls_executor import BlsExecutor
    from trtspec.serving.triton.bls import TritonModel

    kv_tokens = parameters.number("kv_tokens") if "kv_tokens" in parameters.values else None
    target, draft = (
        BlsExecutor(TritonModel(parameters.text(name)), read_limits(parameters.path(folder)), kv_tokens)
        for name, folder in (
            ("tensorrt_llm_model_name", "target_engine_dir"),
            ("tensorrt_llm_draft_model_name", "draft_engine_dir"),
        )
    )
    return target, draft


def _tensorrt_llm(parameters: Parameters) -> tuple[Executor, Executor]:
    from trtspec.serving.executors.tensorrt_llm.bindings import load_bindings
    from trtspec.serving.executors.tensorrt_llm.pair import EngineLocation, load_pair

    target, draft = (
        EngineLocation(
            parameters.path(f"{role}_engine_dir"),
            parameters.number(f"{role}_gpu_device_id"),
            parameters.flag(f"{role}_enable_chunked_context"),
        )
        for role in ("target", "draft")
    )
    fraction = parameters.fraction("kv_cache_free_gpu_mem_fraction")
    return load_pair(load_bindings(parameters.text("image")), target, draft, fraction)


def _torch(parameters: Parameters) -> tuple[Executor, Executor]:
    from trtspec.serving.executors.torch.pair import load_pair

    return load_pair(parameters.path("target_engine_dir"), parameters.path("draft_engine_dir"))


_LOADERS: Mapping[str, Callable[[Parameters], tuple[Executor, Executor]]] = {
    "bls": _bls,
    "tensorrt_llm": _tensorrt_llm,
    "torch": _torch,
}
