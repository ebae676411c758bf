"""From a model's `config.pbtxt` parameters to its loaded engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtspec.serving.coordinator import Coordinator
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Executor
from trtspec.serving.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Pair:
    """What a coordinator is made of; `draft` None decodes with the target alone."""

    target: Executor
    draft: Executor | None
    tokenizer: Tokenizer
    num_draft_tokens: int | None = None

    def coordinator(self) -> Coordinator:
        return Coordinator(self.target, self.draft, self.tokenizer, self.num_draft_tokens)

    def shutdown(self) -> None:
        for executor in (self.draft, self.target):
            if executor is not None:
                executor.shutdown()


def load(parameters: Mapping[str, str], folder: Path) -> Pair:
    """Loads both engines; paths in `parameters` are relative to `folder`, the model's.

    Called on the loop that the executors will live on. Raises `EngineLoadError` or `TokenizerError`.
    """

    def path(key: str) -> Path:
        if not parameters.get(key):
            raise EngineLoadError(key, "missing from the parameters of config.pbtxt")
        return (folder / parameters[key]).resolve()

    backend = parameters.get("engine_backend")
    if backend != "torch":
        raise EngineLoadError("engine_backend", f"{backend!r} cannot be served in process, only torch")
    import torch

    from trtspec.serving.executors.torch.executor import TorchExecutor
    from trtspec.serving.executors.torch.turns import Turns

    device, turns = "cuda" if torch.cuda.is_available() else "cpu", Turns()
    tokenizer = Tokenizer.load(path("tokenizer_dir"))
    draft = TorchExecutor(path("draft_engine_dir"), device=device, turns=turns)
    target = TorchExecutor(path("target_engine_dir"), device=device, turns=turns)
    return Pair(target, draft, tokenizer, _number(parameters, "num_draft_tokens"))


def _number(parameters: Mapping[str, str], key: str) -> int | None:
    text = parameters.get(key)
    if text is None or text.isdecimal():
        return None if text is None else int(text)
    raise EngineLoadError(key, f"{text!r} in the parameters of config.pbtxt is not a number")
