"""Measures how often a draft made of some of a model's layers agrees with the model.

That is SWIFT's matchness (Xia et al. 2024, arXiv 2410.06916, section 4.1): the model's own answers are the
truth, and one pass computes every position of an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtspec.checkpoint.calibrate.model import keep_layers

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Said:
    """A prompt and the model's answer: token ids."""

    prompt: Sequence[int]
    answer: Sequence[int]


class Skipping:
    """A transformers model whose layers can be left out.

    With `shares_cache` a draft reads the model's own keys and values for all tokens before its last one, like
    a draft that shares the cache. Otherwise it computes all of them itself.
    """

    def __init__(self, model: Any, *, shares_cache: bool) -> None:
        self.model, self._decoder, self._shares = model, model.get_decoder(), shares_cache
        self._layers = self._decoder.layers
        self._said: list[tuple[Said, list[tuple[torch.Tensor, torch.Tensor]]]] = []

    @property
    def tokens(self) -> int:
        """Returns the number of answer tokens on which each set of layers is compared."""
        return sum(len(said.answer) for said, _ in self._said)

    @property
    def answers(self) -> list[Said]:
        return [said for said, _ in self._said]

    def answer(self, prompt: Sequence[int], max_tokens: int) -> None:
        """Lets the whole model answer greedily, and keeps the answer."""
        import torch

        ids = torch.tensor([prompt], device=self.model.device)
        with torch.inference_mode():
            text = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=0,
            )[0].tolist()
        self.add(Said(prompt, text[len(prompt) :]))

    def add(self, said: Said) -> None:
        """Keeps an answer; one of no tokens is left out."""
        if said.answer:
            self._said.append((said, self._cached([*said.prompt, *said.answer]) if self._shares else []))

    def agreement(self, layers: Sequence[int]) -> float:
        """Returns the share of all answer tokens that a draft of these layers would have proposed."""
        import torch

        keep_layers(self.model, layers)
        try:
            with torch.inference_mode():
                return sum(self._right(layers, *said) for said in self._said) / self.tokens
        finally:
            self._decoder.layers = self._layers
            keep_layers(self.model, range(len(self._layers)))

    def _right(
        self, layers: Sequence[int], said: Said, cached: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> int:
        import torch

        device, text = self.model.device, [*said.prompt, *said.answer]
        first, end = len(said.prompt) - 1, len(text) - 1
        if self._shares:
            states = self._behind(layers, text, range(first, end), cached)
        else:
            ids = torch.tensor([text[:end]], device=device)
            states = self._decoder(ids, use_cache=False).last_hidden_state[:, first:]
        chosen = self.model.lm_head(states)[0].argmax(-1)
        return int((chosen == torch.tensor(said.answer, device=chosen.device)).sum())

    def _behind(
        self,
        layers: Sequence[int],
        text: Sequence[int],
        places: range,
        cached: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        """Returns the output of the layers at each position, with the model's own keys and values of the
        tokens before it.

        The tokens of all positions are one batch of rows over a cache of the whole sequence. Each row sees
        the tokens before its own, and itself, and no other row of the batch.
        """
        import torch
        from transformers import DynamicCache

        rows, held, device = len(places), cached[0][0].shape[2], self.model.device
        before = torch.arange(held, device=device)[None] < torch.tensor(places, device=device)[:, None]
        seen = torch.cat([before, torch.eye(rows, dtype=torch.bool, device=device)], dim=1)
        dtype = self.model.dtype
        mask = torch.zeros(seen.shape, dtype=dtype, device=device)
        mask.masked_fill_(~seen, torch.finfo(dtype).min)
        cache = DynamicCache()
        for place, layer in enumerate(layers):
            cache.update(*cached[layer], place)
        ids = torch.tensor([[text[place] for place in places]], device=device)
        positions = torch.tensor([list(places)], device=device)
        found: torch.Tensor = self._decoder(
            ids, attention_mask=mask[None, None], position_ids=positions, past_key_values=cache
        ).last_hidden_state
        return found

    def _cached(self, text: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Returns keys and values `[1, heads, tokens, head_size]` of the whole model, layer by layer."""
        import torch
        from transformers import DynamicCache

        cache: Any = DynamicCache()
        ids = torch.tensor([text[:-1]], device=self.model.device)
        with torch.inference_mode():
            self._decoder(ids, past_key_values=cache, use_cache=True)
        return [(layer.keys, layer.values) for layer in cache.layers]
