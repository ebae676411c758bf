"""The step that writes the Triton model repository.

Its models are one with the engines inside, or one for each engine and one in front. For NVIDIA's C++
backend it has a file with the vocabulary by which guides are followed: its keys are those that
`getGuidedDecodingConfigFromParams` reads (`src/model_instance_state.cc`), its name is that of NVIDIA's
`generate_xgrammar_tokenizer_info.py`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from trtspec.backends.backend import PYTHON
from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.models.families import family_of
from trtspec.pipeline.plan.facts import PlanFacts
from trtspec.pipeline.plan.memory import KV_FRACTION, budget
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.pipeline.repository.spec import EngineModel, RepositorySpec, TensorRtLlm
from trtspec.pipeline.run.step import Digested, Step
from trtspec.pipeline.steps import build, copy_tokenizer
from trtspec.recipe.devices import CPU
from trtspec.recipe.schema import BLS_MODELS
from trtspec.serving.executors.tensorrt_llm.guided import guided_vocabulary
from trtspec.serving.tokenizer import Tokenizer

_REPOSITORY = "model_repository"


def vocabulary_path(model: str) -> str:
    """Returns the file's path, relative to the build directory."""
    return f"{_REPOSITORY}/{model}/1/xgrammar_tokenizer_info.json"


def vocabularies(spec: RepositorySpec) -> list[str]:
    """Returns the paths of all such files of a repository."""
    engines = (engine for engine in spec.engines if engine.triton_backend != PYTHON)
    return [engine.tokenizer for engine in engines if engine.tokenizer]


def write_vocabularies(repository: Path, spec: RepositorySpec, tokenizer: Path) -> None:
    """Writes the files of a `repository`; `tokenizer` is the build's folder of it.

    Raises `TokenizerError` for one that cannot be served.
    """
    for place in vocabularies(spec):
        read = Tokenizer.load(tokenizer)
        told = guided_vocabulary(read, read.size)
        if told is None:
            continue
        content = {
            "encoded_vocab": told.encoded_vocab,
            "tokenizer_str": told.tokenizer_str,
            "stop_token_ids": [told.stop_token_id],
        }
        path = repository / Path(place).relative_to(_REPOSITORY)
        path.write_text(json.dumps(content), encoding="utf-8")


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
                if engine.device != CPU
            },
        )
    draft = resolved.engines.get(Role.DRAFT)
    return RepositorySpec(
        model_name=resolved.model_name,
        draft_engine_dir="../../draft/engine" if draft else None,
        draft_tokenizer_dir="../../draft/tokenizer" if resolved.translates else None,
        draft_device=draft.runner.device(draft.device) if draft and not engines else None,
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
    is_guided = role is Role.TARGET and bool(engine.model.source.end_ids) and not engine.engine_draft
    own = EngineModel(
        name,
        engine.runner.triton_backend,
        folder,
        batch,
        _kv_tokens(resolved),
        resolved.placement.of(role),
        engine.enable_chunked_context,
        _window(engine),
        engine.runner.device(engine.device),
        vocabulary_path(name) if is_guided else None,
        _parameters(engine, of_engine=True),
    )
    return engine.runner.triton_model(own)


def _parameters(engine: EnginePlan, *, of_engine: bool) -> dict[str, str]:
    """Returns the parameters of the draft that is built into the engine, if there is one."""
    return engine.engine_draft.parameters(of_engine=of_engine) if engine.engine_draft else {}


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


KIND = "write repository"
OUTPUT = "model_repository"


def step(resolved: Resolved, facts: PlanFacts) -> Step:
    spec = repository_spec(resolved)
    names = [resolved.model_name, *(engine.name for engine in spec.engines)]
    return Step(
        kind=KIND,
        summary=f"the Triton model{'s' * (len(names) > 1)} {', '.join(names)}",
        inputs=(*copy_tokenizer.outputs(resolved), *map(build.engine, resolved.engines)),
        output=OUTPUT,
        command=(),
        made_of=[asdict(spec), Digested([[file.name, file] for file in facts.serving_code])],
        action=partial(run, spec),
        after=(copy_tokenizer.KIND,) if vocabularies(spec) else (),
    )


def run(spec: RepositorySpec, output: Path, advance: Advance) -> None:
    from trtspec.pipeline.repository.writer import write_repository

    write_repository(output, spec)
    write_vocabularies(output, spec, output.parent / copy_tokenizer.OUTPUT)
