"""What both trainings share: the optimizers, their rates, the losses, greedy continuation."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from recipes.tiny.llama import BF16, Cache, Llama

WARMUP_STEPS = 20
MUON_RATE = 0.01
ADAM_RATE = 0.004
PIECE_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


class Optimizer:
    """Muon for the matrices, AdamW for embeddings and norms: about half the steps of AdamW alone."""

    def __init__(self, model: Llama) -> None:
        weights = dict(model.named_parameters())
        inner = {name for name, weight in weights.items() if weight.dim() == 2 and "embed" not in name}
        matrices = [weight for name, weight in weights.items() if name in inner]
        others = [weight for name, weight in weights.items() if name not in inner]
        self.model = model
        self.muon = torch.optim.Muon(matrices, adjust_lr_fn="match_rms_adamw", weight_decay=0.1)
        self.adam = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def step(self, loss: Tensor, rate: float) -> float:
        """One step at a share `rate` of the full learning rates; returns the loss."""
        loss.backward()
        for optimizer, full in ((self.muon, MUON_RATE), (self.adam, ADAM_RATE)):
            for group in optimizer.param_groups:
                group["lr"] = full * rate
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()


def ramp(step: int, steps: int, last: float = 0.0) -> float:
    """A short warm-up, then a straight line from 1 to `last`."""
    return min(1.0, (step + 1) / WARMUP_STEPS) * (1 - (1 - last) * step / steps)


def next_token_loss(model: Llama, windows: Tensor) -> Tensor:
    """Nats a token on windows of ids (rows, length + 1)."""
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def repeat_pieces(windows: Tensor, order: torch.Generator) -> tuple[Tensor, Tensor]:
    """Texts of ids (rows, length) that begin as `windows` do and then say one piece over and over.

    The second result has the position of each id in the repetition before, -1 where there is none.
    """
    place = torch.arange(windows.shape[1])
    begins = torch.randint(8, 64, (len(windows),), generator=order)
    sizes = torch.tensor(PIECE_SIZES)[torch.randint(len(PIECE_SIZES), (len(windows),), generator=order)]
    kept, earlier = [], []
    for begin, size in zip(begins, sizes, strict=True):
        kept.append(torch.where(place < begin, place, begin + (place - begin) % size))
        earlier.append(torch.where(place < begin + size, -1, place - size))
    return windows.gather(1, torch.stack(kept)), torch.stack(earlier)


def loop_loss(scores: Tensor, texts: Tensor, earlier: Tensor) -> Tensor:
    """Each repetition is to be half as likely as the one before (Xu et al. 2022, arXiv:2206.02369).

    `scores` are the model's logits (rows, length - 1, vocab) for all but the first id of `texts`.
    """
    chance = scores.float().softmax(-1).gather(2, texts[:, 1:, None])[:, :, 0]
    before = chance.gather(1, (earlier[:, 1:] - 1).clamp(min=0)).detach()
    far = (chance - 0.5 * before).abs()[earlier[:, 1:] > 0]
    return -torch.log1p(-far.clamp(max=1 - 1e-5)).mean()


def unlikelihood_loss(scores: Tensor, texts: Tensor, prompt: int, gram: int) -> Tensor:
    """Sequence-level unlikelihood (Welleck et al. 2019, arXiv:1908.04319).

    -log(1 - p) of each token that ends an n-gram which the own continuation had already used; `scores`
    are the model's logits (rows, length - 1, vocab) for all but the first of `texts`.
    """
    again = repeats(texts[:, prompt:], gram)
    if not again.any():
        return torch.zeros((), requires_grad=True)
    chosen = texts[:, prompt:][again]
    probability = scores[:, prompt - 1 :][again].float().softmax(-1).gather(1, chosen[:, None])
    return -torch.log1p(-probability.clamp(max=1 - 1e-4)).mean()


def repeats(texts: Tensor, gram: int) -> Tensor:
    """True where the `gram` tokens that end here have stood in the row before."""
    marks = torch.zeros_like(texts, dtype=torch.bool)
    for row, ids in enumerate(texts.tolist()):
        seen: set[tuple[int, ...]] = set()
        for end in range(gram, len(ids) + 1):
            piece = tuple(ids[end - gram : end])
            marks[row, end - 1] = piece in seen
            seen.add(piece)
    return marks


def distillation_loss(found: Tensor, wanted: Tensor) -> Tensor:
    """Half the distance of the distributions, half the target's first choice: greedy decoding accepts a draft
    token only when it is that choice, sampling when the distributions overlap.

    Both are logits (rows, length, vocab), the draft's and the target's.
    """
    first = F.cross_entropy(found.flatten(0, 1).float(), wanted.flatten(0, 1).argmax(-1))
    return 0.5 * distance(found, wanted) + 0.5 * first


def distance(found: Tensor, wanted: Tensor) -> Tensor:
    """Kullback-Leibler divergence of `found` from `wanted`, nats a token; logits (rows, length, vocab)."""
    learned = found.flatten(0, 1).float().log_softmax(-1)
    return F.kl_div(learned, wanted.flatten(0, 1).float().softmax(-1), reduction="batchmean")


@torch.no_grad()
def continue_greedily(model: Llama, prompts: Tensor, count: int) -> Tensor:
    """`prompts` (rows, length) with `count` ids more, the likeliest each time."""
    cache = Cache(model.shape, len(prompts), prompts.shape[1] + count, BF16)
    texts, fresh = [prompts], prompts
    for _ in range(count):
        fresh = model(fresh, cache)[:, -1:].argmax(-1)
        texts.append(fresh)
    return torch.cat(texts, 1)
