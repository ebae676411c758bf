"""Some layers of the target as the draft, without the others.

Draft & Verify (Zhang et al. 2023, arXiv 2309.08168) and SWIFT (Xia et al. 2024, arXiv 2410.06916) draft so.
The draft has no weights of its own. For the prompt it reads the keys and values that the target has computed
with all its layers. Its own keys and values follow them only while it drafts.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executors.torch.dependents.home import Home
from trtspec.serving.executors.torch.engine import TorchEngineConfig
from trtspec.serving.executors.torch.model import Decoder
from trtspec.serving.executors.torch.weights import Form


def forms(config: TorchEngineConfig) -> dict[str, Form]:
    """Returns the tensors that the draft must have: none."""
    return {}


def load(config: TorchEngineConfig, tensors: Mapping[str, Tensor], home: Home) -> Decoder:
    """Returns the target without its other layers; raises `EngineLoadError` for layers that it lacks."""
    assert config.draft is not None
    layers = config.draft["layers"]
    if wrong := [layer for layer in layers if not 0 <= layer < home.config.num_layers]:
        problem = f"names layer {wrong[0]} of a target of {home.config.num_layers}"
        raise EngineLoadError("draft.layers", problem)
    return home.model.only(layers)
