"""The Triton models that a build has: one with both engines inside, or one for each; pure."""

from __future__ import annotations

from pathlib import PurePosixPath

from trtspec.plan.memory import KV_FRACTION, budget
from trtspec.plan.resolve import EnginePlan, Resolved
from trtspec.repository.spec import DRAFT, TARGET, EngineModel, RepositorySpec, TensorRtLlm


def repository_spec(resolved: Resolved) -> RepositorySpec:
    engines: tuple[EngineModel, ...] = ()
    in_process = None
    if resolved.layout == "bls":
        placement = resolved.placement
        engines = (
            _engine(resolved, TARGET, "target/engine", resolved.target, placement.target),
            _engine(resolved, DRAFT, "draft/engine", resolved.draft, placement.draft),
        )
    elif resolved.release:
        in_process = TensorRtLlm(resolved.release.image, resolved.placement, KV_FRACTION)
    return RepositorySpec(
        model_name=resolved.model_name,
        num_draft_tokens=resolved.num_draft_tokens,
        tensorrt_llm=in_process,
        engines=engines,
    )


def _engine(
    resolved: Resolved, name: str, folder: str, engine: EnginePlan, gpus: tuple[int, ...]
) -> EngineModel:
    backend, batch = resolved.backend, engine.options.max_batch_size
    if resolved.release is None:
        return EngineModel(name, backend, str(PurePosixPath("../..", folder)), batch)
    return EngineModel(name, backend, folder, batch, _kv_tokens(resolved), gpus)


def _kv_tokens(resolved: Resolved) -> int | None:
    """What each KV cache may hold where they share a GPU: both, a request of full length at least."""
    memory = budget(resolved)
    if memory is None or not resolved.placement.is_shared:
        return None
    return max(memory.tokens, memory.tokens_per_request)
