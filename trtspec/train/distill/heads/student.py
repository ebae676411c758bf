"""Trains a head on what its target computes, batch by batch; the target stays fixed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig

from trtspec.base.errors import ModelError
from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.models.families import longrope
from trtspec.models.heads.eagle3 import default_aux_layers
from trtspec.models.heads.reading import read_head
from trtspec.models.source import Source
from trtspec.train.distill.examples import Example
from trtspec.train.distill.heads.eagle3 import Eagle3Student
from trtspec.train.distill.heads.folder import write_eagle3, write_medusa
from trtspec.train.distill.heads.medusa import MedusaStudent
from trtspec.train.distill.model import Taught, Teacher
from trtspec.train.distill.pair import TrainingPair
from trtspec.train.distill.settings import HeadSettings
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.forced import chosen_of
from trtspec.train.tune.replay import SILENCE, Choices

Net = Eagle3Student | MedusaStudent


class Learner(nn.Module):
    """The module that the trainer calls with a batch of examples for the loss. The target is no part of
    it."""

    def __init__(self, head: Net, teach: Callable[[Tensor, Tensor], Taught], depth: int) -> None:
        super().__init__()
        self.head, self._teach, self._depth = head, teach, depth

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {
            "loss": self.head.loss(self._teach(input_ids, attention_mask), input_ids, labels, self._depth)
        }


class HeadStudent:
    """A new head for the target of a pair, which will learn these examples; raises ModelError."""

    def __init__(
        self, pair: TrainingPair, settings: HeadSettings, examples: Sequence[Example], seed: int
    ) -> None:
        self._pair, self._settings, self._seed = pair, settings, seed
        self._known = most_frequent(examples, pair.target.vocab_size, settings.draft_vocab_size)
        self._aux_layers = aux_layers(pair.target) if settings.method == "eagle3" else ()
        self._teacher = Teacher(pair.target)

    @property
    def files(self) -> Sequence[Path]:
        return self._pair.target.files

    @property
    def longest(self) -> int:
        wanted = self._pair.num_draft_tokens
        return wanted if self._settings.method == "eagle3" else min(wanted, self._settings.medusa_heads)

    def module(self) -> nn.Module:
        is_medusa = self._settings.method == "medusa"
        depth = self._settings.medusa_heads if is_medusa else self._settings.ttt_steps
        return Learner(self._new(), self._teacher.teach, depth)

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
        assert isinstance(module, Learner)
        tensors, pair = module.head.state_dict(), self._pair
        location = pair.loaded.locations[Role.TARGET]
        verifier = str(location.resolve()) if isinstance(location, Path) else location
        if self._settings.method == "medusa":
            count = self._settings.medusa_heads
            write_medusa(tensors, folder, count=count, target=pair.target, verifier=verifier)
            return
        write_eagle3(
            tensors,
            folder,
            layer=layer_of(pair.target),
            aux_layers=self._aux_layers,
            target=pair.target,
            verifier=verifier,
            num_draft_tokens=pair.num_draft_tokens,
        )

    def _new(self) -> Net:
        """Returns the head before the training, the same each time."""
        target = self._pair.target
        with torch.random.fork_rng():
            torch.manual_seed(self._seed)
            net: Net
            if self._settings.method == "medusa":
                net = MedusaStudent(target.hidden_size, target.vocab_size, self._settings.medusa_heads)
            else:
                net = Eagle3Student(layer_of(target), self._aux_layers, self._known)
        net.begin(self._teacher.embedding, self._teacher.head)
        return net

    @torch.no_grad()
    def _choices(self, net: Net, answer: RecordedAnswer) -> Sequence[Choices]:
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
        raise ModelError(target.folder, problem, "use --method medusa, or train a draft model")
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
