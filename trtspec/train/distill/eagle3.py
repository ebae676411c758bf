"""Trains an EAGLE-3 head on all rounds of a text at once, each with several tokens.

The round at position t of a text knows the target's states after token t and earlier ones, and token t + 1.
Its first token is t + 2; it proposes the next ones from states of its own. In training-time test (arXiv
2503.01840, section 3.2) the tokens before are the text's own. So the rounds at all positions compute their
second token at once, then their third, and so on: depth by depth. Keys of depth 0 are the text's; of each
later depth a round sees only its own key.

The weights have Speculators' names. The modules are transformers' Llama.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama

from trtspec.train.distill.examples import IGNORED
from trtspec.train.distill.model import Taught
from trtspec.train.distill.settings import DECAY

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
