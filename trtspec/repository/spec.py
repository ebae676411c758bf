"""What a model repository is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RepositorySpec:
    """The facts that `config.pbtxt` is made from.

    The folders are POSIX paths relative to the model's folder (the one that holds `config.pbtxt`), so that a
    build directory can be mounted anywhere; the defaults are the layout of a build directory. The engines'
    limits are not here: each engine's own `config.json` holds them. `num_draft_tokens` is the K of a request
    that names none; None stands for the target's `max_draft_len`.
    """

    model_name: str = "speculative_llm"
    backend: str = "torch"
    target_engine_dir: str = "../../target/engine"
    draft_engine_dir: str = "../../draft/engine"
    tokenizer_dir: str = "../../tokenizer"
    num_draft_tokens: int | None = None
