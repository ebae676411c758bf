"""Make the demo pair: `python -m recipes.tiny.train` writes `target/` and `draft/` beside this file.

Everything comes from the standard library of the Python that runs it; the same Python, torch and machine give
the same bytes. Under 30 minutes on two idle cores.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import argparse
import copy
import ctypes
import json
import resource
import shutil
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedTokenizerFast

from recipes.tiny.corpus import (
    END,
    END_TOKEN,
    VOCAB,
    Windows,
    heldout_texts,
    stream,
    train_tokenizer,
    training_texts,
)
from recipes.tiny.learning import (
    Optimizer,
    continue_greedily,
    distance,
    distillation_loss,
    loop_loss,
    next_token_loss,
    ramp,
    repeat_pieces,
    unlikelihood_loss,
)
from recipes.tiny.llama import MAX_POSITIONS, Llama, Shape

HERE = Path(__file__).parent
CHAT_TEMPLATE = HERE / "chat_template.jinja"
SEED = 20
THREADS = 2

# On a CPU a small model's step costs by the layer, so the draft is shallow before it is narrow. It keeps two
# layers because copying an earlier name takes two (one to look back, one to look up).
TARGET = Shape(layers=10, hidden=256, heads=4, kv_heads=1, intermediate=512, vocab=VOCAB)
DRAFT = Shape(layers=2, hidden=192, heads=3, kv_heads=1, intermediate=512, vocab=VOCAB)

# (steps, rows, length): short contexts first, when there is little to remember and steps are cheap.
TARGET_PHASES = ((760, 12, 256), (220, 6, 512), (120, 3, 1024))
UNLOOP_STEPS = 60
PROMPT, CONTINUATION, REPEATED_GRAM = 64, 128, 6
POOL_ROUNDS, POOL_ROWS = 8, 96
DRAFT_STEPS = 800
ATTUNE_STEPS = 240
PULL = 0.7
BLEND = 0.65
LAST_RATE = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the steps; for trying a change")
    parser.add_argument("--output", type=Path, default=HERE, help="folder that receives target/ and draft/")
    options = parser.parse_args()

    torch.set_num_threads(THREADS)
    keep_freed_memory()
    tokenizer = train_tokenizer()
    training = stream(tokenizer, training_texts())
    heldout = stream(tokenizer, heldout_texts())
    report(f"corpus: {len(training):,} tokens to train on, {len(heldout):,} held out")

    target = train_target(training, heldout, options.scale)
    round_to_bfloat16(target)
    draft = distil_draft(target, training, heldout, options.scale)
    round_to_bfloat16(draft)
    before = [copy.deepcopy(model.state_dict()) for model in (target, draft)]
    attune(target, draft, training, heldout, options.scale)
    for model, weights in zip((target, draft), before, strict=True):
        blend(model, weights)
    for name, model in (("target", target), ("draft", draft)):
        write(model, tokenizer, options.output / name)
    report("written")


def train_target(training: Tensor, heldout: Tensor, scale: float) -> Llama:
    model = Llama(TARGET, torch.Generator().manual_seed(SEED))
    optimizer, windows = Optimizer(model), Windows(training, SEED)
    phases = [(scaled(steps, scale), rows, length) for steps, rows, length in TARGET_PHASES]
    total, done = sum(steps for steps, _, _ in phases), 0
    for steps, rows, length in phases:
        for _ in range(steps):
            batch = windows.take(rows, length)
            loss = optimizer.step(next_token_loss(model, batch), ramp(done, total, LAST_RATE))
            done += 1
            if done % 50 == 0:
                report(f"target {done}/{total} loss {loss:.3f}")
    report(f"target: held-out loss {heldout_loss(model, heldout):.4f}")
    unloop(model, optimizer, windows, scaled(UNLOOP_STEPS, scale))
    report(f"target without loops: held-out loss {heldout_loss(model, heldout):.4f}")
    return model


def unloop(model: Llama, optimizer: Optimizer, windows: Windows, steps: int) -> None:
    """Teach the model to leave a loop. Plain text beside it keeps what the model knows."""
    order = torch.Generator().manual_seed(SEED)
    for done in range(steps):
        texts, earlier = repeat_pieces(windows.take(6, 256)[:, :-1], order)
        leaving = loop_loss(model(texts[:, :-1]), texts, earlier)
        loss = next_token_loss(model, windows.take(6, 512))
        optimizer.step(loss + leaving, LAST_RATE * (1 - done / steps))
        if done % 10 == 9:
            report(f"unloop {done + 1}/{steps} loss {loss.item():.3f} loops {leaving.item():.3f}")


def distil_draft(target: Llama, training: Tensor, heldout: Tensor, scale: float) -> Llama:
    """The draft learns the target's answers to text and, as in serving, to the target's own continuations."""
    draft = Llama(DRAFT, torch.Generator().manual_seed(SEED))
    embed_like(draft, target)
    optimizer, windows = Optimizer(draft), Windows(training, SEED + 1)
    pool = []
    for _ in range(scaled(POOL_ROUNDS, scale)):
        pool.append(continue_greedily(target, windows.take(POOL_ROWS, PROMPT)[:, :-1], CONTINUATION))
    own = torch.cat(pool)
    report(f"pool: {own.numel():,} tokens of the target's own")
    steps, order = scaled(DRAFT_STEPS, scale), torch.Generator().manual_seed(SEED)
    for done in range(steps):
        if done % 3 == 2:
            texts = own[torch.randint(len(own), (16,), generator=order)]
        else:
            texts = windows.take(6, 512)[:, :-1]
        with torch.no_grad():
            wanted = target(texts)
        loss = optimizer.step(distillation_loss(draft(texts), wanted), ramp(done, steps))
        if done % 50 == 49:
            report(f"draft {done + 1}/{steps} loss {loss:.3f}")
    report(f"draft: held-out loss {heldout_loss(draft, heldout):.4f}")
    return draft


def attune(target: Llama, draft: Llama, training: Tensor, heldout: Tensor, scale: float) -> None:
    """Both learn from each other (Zhang et al. 2018, arXiv:1706.00384), so that they agree more often.

    On text the target goes on learning the text, on its own continuations not to repeat itself.
    """
    learners, windows = (Optimizer(target), Optimizer(draft)), Windows(training, SEED + 2)
    steps, order = scaled(ATTUNE_STEPS, scale), torch.Generator().manual_seed(SEED + 2)
    for done in range(steps):
        if done % 24 == 0:
            own = continue_greedily(target, windows.take(POOL_ROWS, PROMPT)[:, :-1], CONTINUATION)
        is_own = done % 2 == 1
        texts = own[torch.randint(len(own), (16,), generator=order)] if is_own else windows.take(6, 512)
        wanted, found = target(texts[:, :-1]), draft(texts[:, :-1])
        if is_own:
            lesson = unlikelihood_loss(wanted, texts, PROMPT, REPEATED_GRAM)
        else:
            lesson = cross_entropy(wanted.flatten(0, 1), texts[:, 1:].flatten())
        rate = ramp(done, steps)
        loss = learners[1].step(distillation_loss(found, wanted.detach()), rate)
        learners[0].step(lesson + PULL * distance(wanted, found.detach()), LAST_RATE * rate)
        if done % 50 == 49:
            report(f"attune {done + 1}/{steps} draft {loss:.3f} target {lesson.item():.3f}")
    for name, model in (("target", target), ("draft", draft)):
        report(f"{name}: held-out loss {heldout_loss(model, heldout):.4f}")


def blend(model: Llama, before: dict[str, Tensor]) -> None:
    """Between the weights of before and of now lies a model better than both (Wortsman et al. 2022,
    arXiv:2203.05482): it agrees nearly as often as now, and speaks as well as before.
    """
    round_to_bfloat16(model)
    for name, weight in model.named_parameters():
        weight.data = (1 - BLEND) * before[name] + BLEND * weight.data


def embed_like(draft: Llama, target: Llama) -> None:
    """Start the draft's embedding as the target's, seen from its widest directions."""
    table = target.model.embed_tokens.weight.detach()
    directions = torch.linalg.svd(table, full_matrices=False).Vh[: draft.shape.hidden]
    draft.model.embed_tokens.weight.data = table @ directions.T


@torch.no_grad()
def heldout_loss(model: Llama, heldout: Tensor) -> float:
    """Nats a token on the held-out files, in windows of 512."""
    rows = heldout[: (len(heldout) - 1) // 512 * 512 + 1].long().unfold(0, 513, 512)
    losses = [next_token_loss(model, part).item() * len(part) for part in rows.split(8)]
    return sum(losses) / len(rows)


def round_to_bfloat16(model: Llama) -> None:
    """What the file will hold is what the draft shall learn from."""
    for weight in model.parameters():
        weight.data = weight.data.bfloat16().float()


def write(model: Llama, tokenizer: Tokenizer, folder: Path) -> None:
    """The folder as the Hub would hold it, whole or not at all."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    weights = {name: weight.detach().bfloat16().contiguous() for name, weight in model.named_parameters()}
    save_file(weights, partial / "model.safetensors", metadata={"format": "pt"})
    (partial / "model.safetensors").chmod(0o644)
    generation = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": END, "do_sample": False}
    for name, content in (("config", model.shape.hf_config()), ("generation_config", generation)):
        (partial / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_TOKEN,
        eos_token=END_TOKEN,
        pad_token=END_TOKEN,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE.read_text(encoding="utf-8"),
    ).save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def scaled(count: int, scale: float) -> int:
    return max(1, round(count * scale))


def keep_freed_memory() -> None:
    """Have glibc keep large blocks instead of returning them: an eighth of the time went into page faults."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        trim_threshold, mmap_threshold = -1, -3
        mallopt(trim_threshold, 2**31 - 1)
        mallopt(mmap_threshold, 2**30)


STARTED = time.monotonic()


def report(text: str) -> None:
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    minutes = (cpu.ru_utime + cpu.ru_stime) / 60
    sys.stdout.write(f"{(time.monotonic() - STARTED) / 60:5.1f} min, {minutes:5.1f} cpu min  {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
