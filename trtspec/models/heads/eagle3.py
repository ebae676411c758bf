"""Defines the tensors of an EAGLE-3 head, whoever wrote it (https://arxiv.org/abs/2503.01840).

Names are Speculators'. `fc` brings the target's states, one beside the other, to the head's width. The first
decoder layer reads the embedding of a token beside that, so that its attention is twice as wide; `norm` and
`lm_head` make logits of what comes out. `d2t` is what must be added to a token of the head for that of the
target, `t2d` says which tokens of the target the head has. A head without `embed_tokens` or `lm_head` takes
its target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtspec.models.heads.head import Form, HeadDescription
from trtspec.models.heads.layer import layer_shapes
from trtspec.models.heads.weights import check_count, check_shapes
from trtspec.models.tensors import Tensor

NUM_AUX = 3
"""How many states of the target a head reads that does not say which."""
NORMS = ("norm_before_fc", "fc_norm", "norm_output")
MAPPING = {"d2t": "I64", "t2d": "BOOL"}


def eagle3_head(
    folder: Path,
    form: Form,
    layer: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    hidden_size: int | None,
    vocab_size: int,
    draft_vocab_size: int,
    aux_layers: tuple[int, ...] | None,
    norm_before_residual: bool = False,
    extra_norms: tuple[str, ...] = (),
    verifier: str | None = None,
) -> HeadDescription:
    """Returns the head whose weights are `tensors`; raises ModelError for one that is not as it must be."""
    head = HeadDescription(
        folder=folder,
        method="eagle3",
        form=form,
        hidden_size=hidden_size or layer["hidden_size"],
        vocab_size=vocab_size,
        draft_vocab_size=draft_vocab_size,
        parameters=sum(tensor.elements for name, tensor in tensors.items() if name not in MAPPING),
        aux_layers=aux_layers,
        norm_before_residual=norm_before_residual,
        extra_norms=extra_norms,
        layer=layer,
        verifier=verifier,
    )
    check_count(folder, "num_hidden_layers", layer["num_hidden_layers"], tensors)
    optional = {"embed_tokens.weight"}
    if draft_vocab_size == vocab_size:
        optional |= {*MAPPING, "lm_head.weight"}
    check_shapes(folder, tensors, _shapes(head), optional, MAPPING)
    return head


def _shapes(head: HeadDescription) -> dict[str, tuple[int, ...]]:
    assert head.layer is not None
    hidden, count = head.layer["hidden_size"], len(head.aux_layers or ()) or NUM_AUX
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, count * head.hidden_size),
        "norm.weight": (hidden,),
        "lm_head.weight": (head.draft_vocab_size, hidden),
        "embed_tokens.weight": (head.vocab_size, hidden),
        "d2t": (head.draft_vocab_size,),
        "t2d": (head.vocab_size,),
        "layers.0.hidden_norm.weight": (hidden,),
    }
    for number in range(head.layer["num_hidden_layers"]):
        shapes |= layer_shapes(head.layer, number, hidden if number else 2 * hidden)
        shapes[f"layers.{number}.input_layernorm.weight"] = (hidden,)
    if "norm_before_fc" in head.extra_norms:
        shapes["input_norm.weight"] = (count * head.hidden_size,)
    if "fc_norm" in head.extra_norms:
        shapes |= {f"fc_norm.{number}.weight": (head.hidden_size,) for number in range(count)}
    return shapes
