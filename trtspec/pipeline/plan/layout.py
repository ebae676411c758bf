"""The Triton models of a build: one with the engines inside, or one for each engine and one in front;
pure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

from trtspec.base.roles import Role
from trtspec.models.families import family_of
from trtspec.pipeline.plan.memory import KV_FRACTION, budget
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.pipeline.repository.guided_vocabulary import vocabulary_path
from trtspec.pipeline.repository.spec import EngineModel, RepositorySpec, TensorRtLlm
from trtspec.recipe.serving import BLS_MODELS


def repository_spec(resolved: Resolved) -> RepositorySpec:
    serving = resolved.coordination
    assert serving is not None, "another engine's server has no model repository"
    engines: tuple[EngineModel, ...] = ()
    in_process = None
    admission = serving.admission
    if serving.layout == "bls":
        engines = tuple(_engine(resolved, role, engine) for role, engine in resolved.engines.items())
        admission = replace(admission, kv_tokens=_kv_tokens(resolved))
    elif resolved.release:
        in_process = TensorRtLlm(
            resolved.release.image,
            resolved.placement,
            KV_FRACTION,
            {
                role: engine.enable_chunked_context
                for role, engine in resolved.engines.items()
                if engine.runner.compiles
            },
        )
    draft = resolved.engines.get(Role.DRAFT)
    is_embedded = draft is not None and draft.runner.is_embedded
    return RepositorySpec(
        model_name=resolved.model_name,
        draft_engine_dir="../../draft/engine" if draft else None,
        draft_tokenizer_dir="../../draft/tokenizer" if resolved.translates else None,
        draft_device=draft.device if draft and is_embedded and not engines else None,
        num_draft_tokens=resolved.num_draft_tokens,
        policy=serving.policy,
        share=serving.share,
        drafting=serving.drafting,
        tensorrt_llm=in_process,
        admission=admission,
        engines=engines,
        inside=_parameters(resolved.target, of_engine=False),
    )


def _engine(resolved: Resolved, role: Role, engine: EnginePlan) -> EngineModel:
    """Returns the model of an engine; the target's follows guides, unless it drafts by itself."""
    name, folder, batch = BLS_MODELS[role], f"{role}/engine", engine.options.max_batch_size
    is_guided = role is Role.TARGET and bool(engine.model.source.end_ids) and not engine.inside
    if engine.runner.is_embedded:
        folder, tokenizer = str(PurePosixPath("../..", folder)), "../../tokenizer" if is_guided else None
        return EngineModel(name, engine.backend, folder, batch, device=engine.device, tokenizer=tokenizer)
    return EngineModel(
        name,
        engine.backend,
        folder,
        batch,
        _kv_tokens(resolved),
        resolved.placement.of(role),
        engine.enable_chunked_context,
        _window(engine),
        tokenizer=vocabulary_path(name) if is_guided else None,
        inside=_parameters(engine, of_engine=True),
    )


def _parameters(engine: EnginePlan, *, of_engine: bool) -> dict[str, str]:
    """Returns the parameters of the draft that the engine has inside, if it has one."""
    return engine.inside.draft.parameters(of_engine=of_engine) if engine.inside else {}


def _window(engine: EnginePlan) -> int | None:
    """Returns the attention window in tokens; None if a token sees the whole sequence.

    An engine directory does not hold it, so the engine's Triton model must; in process `trtspec.serving`
    tells the runtime.
    """
    source, options = engine.model.source, engine.options
    window = family_of(source).window(source)
    longest = options.max_seq_len + options.max_draft_len
    return None if window is None or window >= longest else window


def _kv_tokens(resolved: Resolved) -> int | None:
    """Returns the tokens that each KV cache may hold where the engines share a GPU; None if they do not.

    Each cache holds at least a request of full length.
    """
    memory = budget(resolved)
    if memory is None or not resolved.placement.is_shared:
        return None
    return max(memory.tokens, memory.tokens_per_request)
