"""Trains an EAGLE-3 head on what its target computes, and writes its folder; the target stays fixed.

The folder has Speculators' format, which Speculators 0.9 and vLLM 0.32 read
(`trtspec.models.heads.speculators`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig

from trtspec.base.errors import ModelError
from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.models.families import longrope
from trtspec.models.heads.eagle3 import default_aux_layers
from trtspec.models.heads.reading import read_head
from trtspec.models.source import Source
from trtspec.models.tensors import SINGLE
from trtspec.train.distill.eagle3 import TrainableEagle3
from trtspec.train.distill.examples import Example
from trtspec.train.distill.model import Taught, Teacher
from trtspec.train.distill.pair import TrainingPair
from trtspec.train.distill.settings import HeadSettings
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.replay import SILENCE, Choices
from trtspec.train.tune.teacher_forcing import chosen_of

SPECULATORS = "0.9.0"


class HeadTraining(nn.Module):
    """The module that the trainer calls with a batch of examples for the loss. The target is no part of
    it."""

    def __init__(self, head: TrainableEagle3, teach: Callable[[Tensor, Tensor], Taught], depth: int) -> None:
        super().__init__()
        self.head, self._teach, self._depth = head, teach, depth

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {
            "loss": self.head.loss(self._teach(input_ids, attention_mask), input_ids, labels, self._depth)
        }


class TrainedHead:
    """A new head for the target of a pair, which will learn these examples; raises ModelError."""

    def __init__(
        self, pair: TrainingPair, settings: HeadSettings, examples: Sequence[Example], seed: int
    ) -> None:
        self._pair, self._settings, self._seed = pair, settings, seed
        self._known = most_frequent(examples, pair.target.vocab_size, settings.draft_vocab_size)
        self._aux_layers = aux_layers(pair.target)
        self._teacher = Teacher(pair.target)

    @property
    def files(self) -> Sequence[Path]:
        return self._pair.target.files

    @property
    def longest(self) -> int:
        return self._pair.num_draft_tokens

    def module(self) -> nn.Module:
        return HeadTraining(self._new(), self._teacher.teach, self._settings.ttt_steps)

    def choices(
        self, folder: Path | None, answers: Sequence[RecordedAnswer], advance: Advance
    ) -> list[Sequence[Choices]]:
        net = self._new()
        if folder:
            (file,) = {tensor.file for tensor in read_head(folder).tensors.values()}
            net.load_state_dict(load_file(file))
        net.eval().to(self._teacher.device)
        said = []
        for answer in answers:
            said.append(self._choices(net, answer))
            advance(1)
        return said

    def write(self, module: nn.Module, folder: Path) -> None:
        assert isinstance(module, HeadTraining)
        tensors, pair = module.head.state_dict(), self._pair
        location = pair.loaded.locations[Role.TARGET]
        verifier = str(location.resolve()) if isinstance(location, Path) else location
        write_eagle3(
            tensors,
            folder,
            layer=layer_of(pair.target),
            aux_layers=self._aux_layers,
            target=pair.target,
            verifier=verifier,
            num_draft_tokens=pair.num_draft_tokens,
        )

    def _new(self) -> TrainableEagle3:
        """Returns the head before the training, the same each time."""
        with torch.random.fork_rng():
            torch.manual_seed(self._seed)
            net = TrainableEagle3(layer_of(self._pair.target), self._aux_layers, self._known)
        net.begin(self._teacher.embedding, self._teacher.head)
        return net

    @torch.no_grad()
    def _choices(self, net: TrainableEagle3, answer: RecordedAnswer) -> Sequence[Choices]:
        """Returns the head's choices for an answer, one entry for each depth.

        In the round before the answer's first token the target has computed nothing, so the head proposes
        nothing.
        """
        text, begin = [*answer.prompt, *answer.tokens], len(answer.prompt)
        token_ids = torch.tensor([text], device=self._teacher.device)
        ends, vocab_size = set(self._pair.tokenizer.end_ids[:1]), self._pair.target.vocab_size
        said: list[Choices] = []
        for depth, logits in enumerate(net(self._teacher.teach(token_ids), token_ids, self.longest)):
            last = len(text) - 2 - depth + (1 if answer.stopped else 0)
            rows = logits[0, begin - 1 : last].float()
            if self._known is not None:
                known = self._known.to(rows.device)
                rows = rows.new_full((len(rows), vocab_size), -torch.inf).index_copy(1, known, rows)
            chosen = chosen_of(rows, answer, 1 + depth) if len(rows) else []
            own = [SILENCE if token in ends else token for token in chosen]
            said.append([SILENCE] * (1 + depth) + own)
        return said


def most_frequent(examples: Sequence[Example], vocab_size: int, count: int | None) -> Tensor | None:
    """Returns the most frequent tokens of answers, ascending, int64; None for all.

    If answers have fewer different tokens, those with the lowest ids are added, as SpecForge does.
    """
    if count is None or count >= vocab_size:
        return None
    seen = Counter(token for example in examples for token in example.token_ids[example.num_prompt :])
    ranked = sorted(range(vocab_size), key=lambda token: (-seen[token], token))
    return torch.tensor(sorted(ranked[:count]))


def aux_layers(target: Source) -> tuple[int, ...]:
    """Returns the states that a new EAGLE-3 head reads: the default ones, or others for a small target."""
    count = target.num_hidden_layers
    found = default_aux_layers(count)
    if len(set(found)) < len(found) or max(found) >= count:
        found = 1, count // 2, count - 1
    if len(set(found)) < len(found):
        problem = f"has {count} layers, but an EAGLE-3 head reads the states after three of them"
        raise ModelError(target.folder, problem, "train a draft model")
    return found


def layer_of(target: Source) -> LlamaConfig:
    """Returns the configuration of a head's layer: a Llama's of the target's size.

    Its rotary positions are the target's, without factors that were fitted to the target's own pairs.
    """
    make: Any = LlamaConfig
    scaling = target.rotary_scaling or {}
    is_searched = scaling.get("rope_type", scaling.get("type")) == longrope.KIND
    config: LlamaConfig = make(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=target.num_key_value_heads,
        head_dim=target.head_size,
        hidden_act="silu",
        rms_norm_eps=target.norm_epsilon,
        max_position_embeddings=target.max_position_embeddings,
        rope_theta=target.rotary_base,
        rope_scaling=dict(scaling) if scaling and not is_searched else None,
    )
    return config


def write_eagle3(
    tensors: dict[str, Tensor],
    folder: Path,
    *,
    layer: LlamaConfig,
    aux_layers: tuple[int, ...],
    target: Source,
    verifier: str,
    num_draft_tokens: int,
) -> None:
    """Writes an EAGLE-3 head into a new folder, in its target's dtype; `verifier` is the target's name."""
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": SPECULATORS,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": num_draft_tokens,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": verifier, "architectures": [target.architecture]},
        },
        "transformer_layer_config": _layer_section(layer),
        "draft_vocab_size": len(tensors["lm_head.weight"]),
        "eagle_aux_hidden_state_layer_ids": list(aux_layers),
        "target_hidden_size": None,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "dtype": target.dtype,
    }
    _write(folder, config, tensors, target.dtype)


def _layer_section(layer: LlamaConfig) -> dict[str, Any]:
    """Returns the configuration of the head's one layer in transformers' keys."""
    return {
        "model_type": "llama",
        "vocab_size": layer.vocab_size,
        "hidden_size": layer.hidden_size,
        "intermediate_size": layer.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": layer.num_attention_heads,
        "num_key_value_heads": layer.num_key_value_heads,
        "head_dim": layer.head_dim,
        "hidden_act": layer.hidden_act,
        "rms_norm_eps": layer.rms_norm_eps,
        "max_position_embeddings": layer.max_position_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        # The first is transformers 4's key, the second transformers 5's.
        "rope_theta": layer.rope_theta,
        "rope_scaling": layer.rope_scaling,
        "rope_parameters": {
            **(layer.rope_scaling or {"rope_type": "default"}),
            "rope_theta": layer.rope_theta,
        },
    }


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], dtype: str) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    own = getattr(torch, dtype)
    stored = {
        name: tensor.detach().to("cpu", own if tensor.is_floating_point() else None).contiguous()
        for name, tensor in tensors.items()
    }
    save_file(stored, folder / SINGLE, metadata={"format": "pt"})
