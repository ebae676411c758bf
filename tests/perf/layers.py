"""Layers of a target as its draft, as the product chooses them: what they foresee, and what they bring.

    python -m tests.perf.layers TARGET --counts 9 7 [--chats] [--tries 300] [--serve] [--write FOLDER]

For each number of layers: how often a draft of the chosen ones says what the target said, in the cache of the
target, and with `own_cache` in one of its own; as many layers spread evenly; and the best of as many random
sets, as SWIFT draws them (Xia et al. 2024, arXiv 2410.06916). `best` is the K that pays best, if a token of
the draft costs what it reads of the target's weights and a round nothing else, and its speed-up.

`by_text` is for SWIFT's choice for each text: layers are chosen by the first half of a text's answer and held
against those of the first halves of all, on the second half; a choice for each request brings no more.
`--serve` builds the first number of layers and measures tokens a second over those of plain decoding, prompt
by prompt in turns, on one thread. `--write` writes those layers as a model of their own. JSON on stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.perf.chats import OTHER, QUOTING
from tests.perf.pair import Run, machine, measure, rate, ratio, run_build
from trtspec.base.own_prompts import OWN
from trtspec.checkpoint.calibrate.model import load_model, quiet_transformers
from trtspec.checkpoint.calibrate.texts import Encoder
from trtspec.checkpoint.layers.choose import Said, Skipping, search
from trtspec.checkpoint.layers.chosen import best_round, write_model
from trtspec.models.layers import of_layers, spread
from trtspec.models.source import Source, read_source
from trtspec.serving.adaptive.policy import Policy
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import NO_END, Completion, CompletionRequest
from trtspec.serving.executors.torch.torch_executor import load_engines
from trtspec.serving.tokenizer import Tokenizer

SEED, LONGEST_PROMPT = 1, 160
LENGTHS = (1, 2, 4)
Prompts = list[list[int]]


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    quiet_transformers()
    source = read_source(options.target)
    prompts = asked(source, options.texts, chats=options.chats)
    model = load_model(source, "float32", LONGEST_PROMPT + options.tokens)
    found: dict[str, Any] = {"machine": machine(), "texts": len(prompts), "chosen": []}
    inside, apart = (Skipping(model, shares_cache=shares_cache) for shares_cache in (True, False))
    for prompt in prompts:
        inside.answer(prompt, options.tokens)
    for said in inside.answers:
        apart.add(said)
    for count in options.counts:
        row = chosen(inside, source, count, options.tries)
        row["own_cache"] = round(apart.agreement(row["layers"]), 3)
        found["chosen"].append(row)
        print(row, file=sys.stderr)
    layers = found["chosen"][0]["layers"]
    found["by_text"] = by_text(model, inside.answers, len(layers), options.tries)
    if options.write:
        write_model(of_layers(source, layers), options.write)
    if options.serve:
        found["served"] = served(options.target, layers, prompts, options.tokens)
    json.dump(found, sys.stdout, indent=2)
    print()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    parser.add_argument("--counts", type=int, nargs="+", required=True)
    parser.add_argument("--chats", action="store_true", help="ask what `chats.py` has, as a user")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--tries", type=int, default=300)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--serve", action="store_true")
    return parser.parse_args()


def asked(source: Source, count: int, *, chats: bool) -> Prompts:
    """Returns prompts of every kind: of chats, or the product's own."""
    kinds = [list(kind.values()) for kind in (QUOTING, OTHER)] if chats else list(map(list, OWN.values()))
    texts = [kind[at] for at in range(count) for kind in kinds if at < len(kind)][:count]
    encode = Encoder(source.folder, Path("texts"), LONGEST_PROMPT, chat_template=chats)
    return [encode(text) for text in texts]


def chosen(skipping: Skipping, source: Source, count: int, tries: int) -> dict[str, Any]:
    """Returns what the search finds, beside layers that are spread evenly and SWIFT's random sets."""
    of = source.num_hidden_layers
    found = search(of, count, skipping.agreement, tries, SEED)
    chance = random.Random(SEED)
    sets = [sorted((0, *chance.sample(range(1, of - 1), count - 2), of - 1)) for _ in range(found.tried)]
    whole, part = (model.parameters - embedding(model) for model in (source, of_layers(source, found.layers)))
    length, gain = best_round(found.agreement, part / whole)
    return {
        "layers": found.layers,
        "agreement": round(found.agreement, 3),
        "spread": round(skipping.agreement(spread(count, of)), 3),
        "random": round(max(map(skipping.agreement, sets)), 3),
        "tried": found.tried,
        "weights": round(part / whole, 2),
        "best": {"K": length, "speed-up": round(gain, 2)},
    }


def embedding(source: Source) -> int:
    return 0 if source.tie_word_embeddings else source.vocab_size * source.hidden_size


def by_text(model: Any, answers: Sequence[Said], count: int, tries: int) -> dict[str, Any]:
    """Returns how often drafts are right on second halves, by layers chosen for each text and for all."""
    first = [Said(said.prompt, said.answer[: len(said.answer) // 2]) for said in answers]
    second = [
        Said([*said.prompt, *half.answer], said.answer[len(half.answer) :])
        for said, half in zip(answers, first, strict=True)
    ]
    of = model.config.num_hidden_layers

    def layers(halves: Sequence[Said]) -> tuple[int, ...]:
        skipping = Skipping(model, shares_cache=True)
        for half in halves:
            skipping.add(half)
        return search(of, count, skipping.agreement, tries, SEED).layers

    def agreement(half: Said, kept: Sequence[int]) -> float:
        skipping = Skipping(model, shares_cache=True)
        skipping.add(half)
        return skipping.agreement(kept)

    of_all = layers(first)
    alone = [agreement(half, layers([own])) for own, half in zip(first, second, strict=True)]
    common = [agreement(half, of_all) for half in second]
    return {
        "layers": count,
        "for each": round(sum(alone) / len(alone), 3),
        "for all": round(sum(common) / len(common), 3),
        "texts": [[round(one, 2), round(other, 2)] for one, other in zip(alone, common, strict=True)],
    }


def served(target: Path, layers: Sequence[int], prompts: Prompts, tokens: int) -> dict[str, Any]:
    """Returns the speed-ups of fixed K and of the adaptive policy, through the product's whole path."""
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.yaml"
        recipe.write_text(
            f"name: layers\ntarget: {{model: {target.resolve()}, dtype: float32}}\n"
            f"draft: {{layers_of_target: {list(layers)}}}\nspeculation: {{max_draft_len: 8}}\n"
            f"engine: {{max_batch_size: 1, max_seq_len: {LONGEST_PROMPT + tokens + 1}}}\n"
            "hardware: {gpu: none}\n"
        )
        build = run_build(recipe, Path(folder) / "build")
        spoken: dict[str, list[Completion]] = {f"K = {length}": [] for length in LENGTHS}
        spoken |= {"adaptive": [], "plain": []}
        lengths = {**dict(zip(spoken, LENGTHS, strict=False)), "adaptive": None, "plain": 0}
        ways = {name: way(build, lengths[name], tokens, told) for name, told in spoken.items()}
        for run in ways.values():
            run(prompts[0])
        for told in spoken.values():
            told.clear()
        seconds, same = measure(ways, prompts)
    return {
        "same_text": same,
        **{
            name: ratio(times, seconds["plain"]) | {"accepted": rate(spoken[name], "draft_acceptance_rate")}
            for name, times in seconds.items()
            if name != "plain"
        },
    }


def way(build: Path, length: int | None, tokens: int, told: list[Completion]) -> Run:
    """Returns what answers with drafts of `length`, None for the policy's, by engines of its own."""
    loop = asyncio.new_event_loop()
    target, draft = load_engines([build / "target/engine", build / "draft/engine"])
    policy: Policy = "adaptive" if length is None else "fixed"
    coordinator = assemble(target, draft, Tokenizer.load(build / "tokenizer"), policy=policy)

    def run(prompt: list[int]) -> list[int]:
        request = CompletionRequest(
            prompt_token_ids=prompt, max_tokens=tokens, num_draft_tokens=length, end_id=NO_END
        )
        delta = loop.run_until_complete(coordinator.complete(request))
        assert delta.completion is not None
        told.append(delta.completion)
        return delta.token_ids

    return run


if __name__ == "__main__":
    main()
