"""A build in the bls layout whose engines run under a model of the tests, not under NVIDIA's C++ backend."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import decoders, models

from trtspec.pipeline.repository.spec import EngineModel, RepositorySpec
from trtspec.pipeline.repository.writer import VERSION, write_repository
from trtspec.recipe.schema import BLS_MODELS
from trtspec.serving.drafters.source import Drafting

MODEL = Path(__file__).with_name("cpp_backend_model.py")
LETTERS = "abcdefgh"
"""Token i is the letter i."""


def write_build(
    folder: Path, roles: tuple[str, ...], max_batch_size: int, drafting: Drafting | None, model: Path = MODEL
) -> Path:
    """Writes the repository and the tokenizer beside `<role>/engine`, which are there; returns `folder`.

    K is fixed at what the target was built for.
    """
    engines = tuple(
        EngineModel(name, "tensorrtllm", f"{role}/engine", max_batch_size)
        for role, name in BLS_MODELS.items()
        if role in roles
    )
    draft = "../../draft/engine" if "draft" in roles else None
    repository = folder / "model_repository"
    write_repository(repository, RepositorySpec(draft_engine_dir=draft, drafting=drafting, engines=engines))
    for engine in engines:
        config = repository / engine.name / "config.pbtxt"
        config.write_text(config.read_text().replace('"tensorrtllm"', '"python"'))
        (repository / engine.name / VERSION / "model.py").write_bytes(model.read_bytes())
    # Triton's Python looks for packages in the working folder.
    (folder / "tests").symlink_to(Path(__file__).parents[1])
    inner = tokenizers.Tokenizer(models.BPE({letter: i for i, letter in enumerate(LETTERS)}, []))
    inner.decoder = decoders.ByteLevel()
    (folder / "tokenizer").mkdir()
    inner.save(str(folder / "tokenizer" / "tokenizer.json"))
    return folder
