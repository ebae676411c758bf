"""The file with the vocabulary by which NVIDIA's C++ backend follows guides.

Its keys are those that `getGuidedDecodingConfigFromParams` reads (`src/model_instance_state.cc`), its name is
that of NVIDIA's `generate_xgrammar_tokenizer_info.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

from trtspec.backends.table import backend_named
from trtspec.pipeline.repository.spec import RepositorySpec
from trtspec.serving.executors.tensorrt_llm.guided import guided_vocabulary
from trtspec.serving.tokenizer import Tokenizer

_REPOSITORY = "model_repository"


def vocabulary_path(model: str) -> str:
    """Returns the file's path, relative to the build directory."""
    return f"{_REPOSITORY}/{model}/1/xgrammar_tokenizer_info.json"


def vocabularies(spec: RepositorySpec) -> list[str]:
    """Returns the paths of all such files of a repository."""
    engines = (engine for engine in spec.engines if backend_named(engine.backend).compiles)
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
