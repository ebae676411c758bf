"""Trains an EAGLE-3 head on what its target computes, and writes its folder; the target stays fixed.

The folder has Speculators' format, which Speculators 0.9 and vLLM 0.32 read
(`trtspec.models.heads.reading`). The modules are transformers' Llama.

The head trains on all rounds of a text at once, each with several tokens. The round at position t of a text
knows the target's states after token t and earlier ones, and token t + 1. Its first token is t + 2; it
proposes the next ones from states of its own. In training-time test (arXiv 2503.01840, section 3.2) the
tokens before are the text's own. So the rounds at all positions compute their second token at once, then
their third, and so on: depth by depth. Keys of depth 0 are the text's; of each later depth a round sees only
its own key.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama

from trtspec.base.errors import ModelError
from trtspec.base.progress import Advance
from trtspec.base.roles import Role
from trtspec.models.families import longrope
from trtspec.models.heads.eagle3 import default_aux_layers
from trtspec.models.heads.reading import read_head
from trtspec.models.source import SINGLE, Source
from trtspec.train.distill.examples import IGNORED, Example
from trtspec.train.distill.model import Taught, Teacher
from trtspec.train.distill.pair import TrainingPair
from trtspec.train.distill.settings import DECAY, HeadSettings
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.replay import SILENCE, Choices
from trtspec.train.tune.teacher_forcing import chosen_of

llama: Any = modeling_llama  # transformers' functions have no types.
Cache = list[tuple[Tensor, Tensor]]
"""Keys and values `[texts, heads, length, head_dim]` of each depth."""


class Eagle3Attention(nn.Module):
    """Attends to the text that a round knows, and to the round's own tokens after it."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width, head = 2 * config.hidden_size, config.head_dim
        keys = config.num_key_value_heads * head
        self._head, self._groups = head, config.num_attention_heads // config.num_key_value_heads
        self.q_proj = nn.Linear(width, config.num_attention_heads * head, bias=False)
        self.k_proj = nn.Linear(width, keys, bias=False)
        self.v_proj = nn.Linear(width, keys, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * head, config.hidden_size, bias=False)

    def forward(self, states: Tensor, positions: tuple[Tensor, Tensor], cache: Cache) -> Tensor:
        texts, length, _ = states.shape
        queries, keys, values = (
            proj(states).view(texts, length, -1, self._head).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        queries, keys = llama.apply_rotary_pos_emb(queries, keys, *positions)
        cache.append((llama.repeat_kv(keys, self._groups), llama.repeat_kv(values, self._groups)))
        (text_keys, text_values), *own = cache
        scores = queries @ text_keys.transpose(2, 3)
        future = torch.ones(length, length, dtype=torch.bool, device=states.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
        scores = torch.cat([scores, *((queries * key).sum(-1, keepdim=True) for key, _ in own)], -1)
        shares = F.softmax(scores / self._head**0.5, dim=-1, dtype=torch.float32).to(values.dtype)
        found = shares[..., :length] @ text_values
        for depth, (_, value) in enumerate(own):
            found = found + shares[..., length + depth, None] * value
        return self.o_proj(found.transpose(1, 2).reshape(texts, length, -1))  # type: ignore[no-any-return]


class Eagle3Layer(nn.Module):
    """A decoder layer that reads the embedding of a token and a state."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn, self.mlp = Eagle3Attention(config), llama.LlamaMLP(config)

    def forward(
        self, embedded: Tensor, states: Tensor, positions: tuple[Tensor, Tensor], cache: Cache
    ) -> Tensor:
        both = torch.cat([self.input_layernorm(embedded), self.hidden_norm(states)], -1)
        states = states + self.self_attn(both, positions, cache)
        return states + self.mlp(self.post_attention_layernorm(states))  # type: ignore[no-any-return]


class TrainableEagle3(nn.Module):
    """A head of one layer that reads the target's states after `aux_layers`.

    `known` are the target's tokens that it can propose, ascending; None for all.
    """

    def __init__(self, config: LlamaConfig, aux_layers: tuple[int, ...], known: Tensor | None) -> None:
        super().__init__()
        hidden, count = config.hidden_size, config.vocab_size if known is None else len(known)
        self._aux_layers, self.known = aux_layers, known
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        self.embed_tokens.weight.requires_grad_(False)
        self.fc = nn.Linear(len(aux_layers) * hidden, hidden, bias=False)
        self.layers = nn.ModuleList([Eagle3Layer(config)])
        self.norm = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, count, bias=False)
        self._rotary = llama.LlamaRotaryEmbedding(config)
        if known is not None:
            self.register_buffer("d2t", known - torch.arange(count))
            self.register_buffer(
                "t2d", torch.zeros(config.vocab_size, dtype=torch.bool).index_fill(0, known, True)
            )

    @torch.no_grad()
    def begin(self, embedding: Tensor, head: Tensor) -> None:
        """Starts from the target's embedding, which stays fixed, and its output matrix."""
        self.embed_tokens.weight.copy_(embedding)
        self.lm_head.weight.copy_(head if self.known is None else head[self.known])

    def forward(self, taught: Taught, token_ids: Tensor, depth: int) -> Iterator[Tensor]:
        """Yields the logits of this many tokens of each round, `[texts, length, own vocabulary]` each.

        Entry d at position t is for token t + 2 + d; the last 1 + d positions have no target, and are noise.
        """
        states = self.fc(torch.cat([taught.states[number] for number in self._aux_layers], -1))
        places = torch.arange(token_ids.shape[1], device=token_ids.device)[None]
        cache: Cache = []
        for done in range(depth):
            embedded = self.embed_tokens(F.pad(token_ids, (0, 1 + done))[:, 1 + done :])
            states = self.layers[0](embedded, states, self._rotary(states, places + done), cache)
            yield self.lm_head(self.norm(states))

    def loss(self, taught: Taught, token_ids: Tensor, labels: Tensor, depth: int) -> Tensor:
        """Returns the distance of the head's probabilities from the target's, in nats per answer token.

        It is their cross entropy over the tokens that the head can propose; each depth counts `DECAY` of the
        one before. It leaves out prompts, and positions where the head lacks the target's first choice.
        """
        total, weights = taught.logits.new_zeros(()), 0.0
        first = taught.logits.argmax(-1)
        for done, logits in enumerate(self(taught, token_ids, depth)):
            wanted, own = taught.logits[:, 1 + done : -1], logits[:, : -2 - done]
            counts = labels[:, 2 + done :] != IGNORED
            if self.known is not None:
                known = self.known.to(logits.device)
                wanted, counts = wanted[..., known], counts & torch.isin(first[:, 1 + done : -1], known)
            crossed = -(F.softmax(wanted, -1) * F.log_softmax(own.float(), -1)).sum(-1)
            total = total + DECAY**done * (crossed * counts).sum() / counts.sum().clamp(min=1)
            weights += DECAY**done
        return total / weights


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
