"""The loading of a draft that lives in its target."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Response
from trtspec.serving.executors.torch.dependents import eagle, eagle3, layers, medusa
from trtspec.serving.executors.torch.dependents.home import Home
from trtspec.serving.executors.torch.dependents.runner import DependentRunner
from trtspec.serving.executors.torch.engine import TorchEngineConfig
from trtspec.serving.executors.torch.model import StepModel
from trtspec.serving.executors.torch.scheduler import MAX_ROWS, StepScheduler
from trtspec.serving.executors.torch.weights import Form, read_rank


class DrafterKind(Protocol):
    """A kind of draft."""

    def forms(self, config: TorchEngineConfig) -> dict[str, Form]:
        """Returns the tensors that its engine must have."""
        ...

    def load(self, config: TorchEngineConfig, tensors: Mapping[str, Tensor], home: Home) -> StepModel:
        """Returns it with its weights in the target."""
        ...


METHODS: Mapping[str, DrafterKind] = {"eagle3": eagle3, "eagle": eagle, "medusa": medusa, "layers": layers}
"""By what `draft.method` of an engine's configuration says."""


def dependent_forms(config: TorchEngineConfig) -> dict[str, Form]:
    """Returns the tensors that the draft's engine must have."""
    assert config.draft is not None
    return METHODS[config.draft["method"]].forms(config)


def load_dependent(
    engine_dir: Path, config: TorchEngineConfig, home: Home, say: Callable[[Response], None]
) -> DependentRunner:
    """Returns the runner of the draft in a target that is loaded; raises `EngineLoadError`."""
    assert config.draft is not None
    own, theirs = (config.dtype, config.vocab_size), (home.config.dtype, home.config.vocab_size)
    if own != theirs:
        problem = f"is for a target of {_said(*own)}, and this one is of {_said(*theirs)}; build it again"
        raise EngineLoadError(engine_dir, problem)
    device, limits = home.model.embedding.device, config.limits
    tensors = read_rank(engine_dir, dependent_forms(config), device)
    model = METHODS[config.draft["method"]].load(config, tensors, home)
    # From round to round a head lacks what the target has accepted.
    short = home.config.limits.max_draft_len + 2
    scheduler = StepScheduler(max(MAX_ROWS[device.type], 4 * short), short)
    longest = config.draft.get("count", limits.max_seq_len)
    return DependentRunner(limits, scheduler, model, home, longest, say)


def _said(dtype: torch.dtype, vocab_size: int) -> str:
    return f"{dtype} and {vocab_size} tokens"
