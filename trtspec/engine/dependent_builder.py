"""Engine directories of drafts that live in their target, for the torch backend: heads, and layers of it.

`config.json` has the keys of every engine directory (`torch_builder.py`), and `pretrained_config.method` says
what it is: `eagle3`, `eagle`, `medusa` or `layers`. A head's tensors are in `rank0.safetensors` under
Speculators' names, in the target's dtype; layers have none of their own. Limits are the target's, which must
be built before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from trtspec.models.heads.head import Head
from trtspec.models.tensors import Tensor


def build_head(head: Head, tensors: Mapping[str, Tensor], target_engine: Path, output: Path) -> None:
    """Makes the engine directory `output`, which must not exist, of a head and its tensors.

    `eagle3` has `fc.weight`, `layers.0.*`, `norm.weight`, `lm_head.weight`, `d2t` if its vocabulary is
    smaller, and `embed_tokens.weight` if that is not the target's. `eagle` has `fc.weight`, perhaps
    `fc.bias`, and `layers.0.*`. `medusa` has `blocks.<head>.layers.<layer>.weight`, perhaps `.bias`, and
    `lm_heads.<head>.weight` or none, which stands for the target's. Raises EngineError for a head that does
    not fit the target.
    """
    raise NotImplementedError


def build_layers(layers: Sequence[int], target_engine: Path, output: Path) -> None:
    """Makes the engine directory `output`, which must not exist, of a draft of these layers of the target.

    They are counted from 0, and rise. Raises EngineError for layers that the target lacks.
    """
    raise NotImplementedError
