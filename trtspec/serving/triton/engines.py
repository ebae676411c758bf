"""From a model's `config.pbtxt` parameters to its loaded engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from trtspec.serving.coordinator import Coordinator
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Executor
from trtspec.serving.executors.limits import read_limits
from trtspec.serving.tokenizer import Tokenizer
from trtspec.serving.triton.parameters import Parameters


@dataclass(frozen=True, slots=True)
class Pair:
    """What a coordinator is made of; `draft` None decodes with the target alone.

    Engines that are not `in_process` are models of their own, which need not be loaded yet.
    """

    target: Executor
    draft: Executor | None
    tokenizer: Tokenizer
    num_draft_tokens: int | None = None
    in_process: bool = True

    def coordinator(self) -> Coordinator:
        return Coordinator(self.target, self.draft, self.tokenizer, self.num_draft_tokens)

    def shutdown(self) -> None:
        for executor in (self.draft, self.target):
            if executor is not None:
                executor.shutdown()


def load(values: Mapping[str, str], folder: Path) -> Pair:
    """Loads both engines, or names the models that have them; paths in `values` are relative to `folder`, the
    model's.

    Called on the loop that the executors will live on. Raises `EngineLoadError` or `TokenizerError`.
    """
    parameters = Parameters(values, folder)
    backend = parameters.text("engine_backend")
    if backend not in _LOADERS:
        raise EngineLoadError("engine_backend", f"{backend!r} is none of {', '.join(_LOADERS)}")
    longest = parameters.number("num_draft_tokens") if "num_draft_tokens" in values else None
    tokenizer = Tokenizer.load(parameters.path("tokenizer_dir"))
    target, draft = _LOADERS[backend](parameters)
    return Pair(target, draft, tokenizer, longest, in_process=backend != "bls")


def _bls(parameters: Parameters) -> tuple[Executor, Executor]:
    """Tensors do not say what engines were built for, so their directories do."""
    from trtspec.serving.executors.bls.executor import BlsExecutor
    from trtspec.serving.triton.bls import TritonModel

    target, draft = (
        BlsExecutor(TritonModel(parameters.text(name)), read_limits(parameters.path(folder)))
        for name, folder in (
            ("tensorrt_llm_model_name", "target_engine_dir"),
            ("tensorrt_llm_draft_model_name", "draft_engine_dir"),
        )
    )
    return target, draft


def _tensorrt_llm(parameters: Parameters) -> tuple[Executor, Executor]:
    from trtspec.serving.executors.tensorrt_llm.bindings import load_bindings
    from trtspec.serving.executors.tensorrt_llm.pair import Place, load_pair

    target, draft = (
        Place(parameters.path(f"{role}_engine_dir"), parameters.number(f"{role}_gpu_device_id"))
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
