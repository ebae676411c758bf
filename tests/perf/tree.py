"""Whether a tree of drafts would pay on the torch backend, where EAGLE-3's head drafts a chain: on paper.

    python -m tests.perf.distill --method eagle3 --domain numpy --epochs 3 --output FOLDER
    python -m tests.perf.tree FOLDER [--sizes 3 7 15 31] [--blocks 40]

A node of a static tree is a path of ranks: (0, 2) is the head's third choice behind its first one. Whether
it is accepted depends on the ranks alone that the recorded answer's own tokens have, and one pass over the
answer tells these for all rounds. The tree of n nodes is that of the n paths that were most frequent in the
answers that the head has learned (Medusa chooses its trees so, arXiv 2401.10774), held against others.

A round costs a step of the target over all nodes, and one of the head for each depth, over the nodes there
that have others below them. Both are measured here, on one thread, in turns; masks and what else a tree needs
cost nothing. For an H100 they are those of `trtspec.forecast`, of Llama 3.1 8B in bfloat16 and a head of one
layer over 32,000 tokens, with the acceptance of the head that was measured. JSON on stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.perf.pair import TINY, built, machine
from trtspec.backends.torch.builder import build_head
from trtspec.forecast.roofline import BatchLoad, Chip, Network, step
from trtspec.models.heads.reading import read_head
from trtspec.models.source import read_source
from trtspec.pipeline.plan.speed import chip
from trtspec.recipe.gpus import GPUS
from trtspec.serving.executors.torch.cache import Cache
from trtspec.serving.executors.torch.cache_slots import CacheSlots
from trtspec.serving.executors.torch.dependents.home import Home
from trtspec.serving.executors.torch.dependents.loading import METHODS, dependent_forms
from trtspec.serving.executors.torch.engine import read_config
from trtspec.serving.executors.torch.model import Decoder, StepModel
from trtspec.serving.executors.torch.spans import Span
from trtspec.serving.executors.torch.weights import read_rank, read_tensors
from trtspec.train.distill.head import TrainableEagle3, aux_layers, layer_of
from trtspec.train.distill.model import Teacher

DEPTH, WIDTH, CONTEXT = 8, 10, 192
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
Branch = tuple[int, ...]
Ranks = Sequence[Sequence[int]]
"""For each place of an answer, the ranks of its next tokens in what the head says of them."""
Cost = Callable[[int], float]
"""Seconds of a step over so many rows."""
LAYER, VOCABULARY, HIDDEN = 218_103_808, 128_256, 4096
LLAMA = Network(
    weight_bytes=2 * (32 * LAYER + VOCABULARY * HIDDEN),
    kv_bytes=2 * 2 * 32 * 1024,
    flops_8=0,
    flops_16=2 * (32 * LAYER + VOCABULARY * HIDDEN),
    attention_flops=4 * 32 * HIDDEN,
    layers=32,
    row_bytes=2 * HIDDEN,
)
OF_HEAD = LAYER + HIDDEN * 6144 + 32_000 * HIDDEN
"""Its layer reads two vectors, and it says 32,000 tokens."""
HEAD = replace(
    LLAMA,
    weight_bytes=2 * OF_HEAD,
    kv_bytes=2 * 2 * 1024,
    flops_16=2 * OF_HEAD,
    attention_flops=4 * HIDDEN,
    layers=1,
)


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    folder = options.folder / "distilled" / "eagle3"
    learned, kept = (
        ranks_of(folder, *options.folder.glob(f"distilled/answers/*_{name}-*.jsonl"))
        for name in ("learned", "held_out")
    )
    costs: dict[str, tuple[Cost, Cost]] = {"here, one text": measured(options.folder, folder, options)}
    for texts in (1, 8, 32):
        costs[f"H100, {texts} texts"] = on_paper(chip(GPUS["h100"]), BatchLoad(texts, 1024))
    ordered = sorted(kept, key=lambda ranks: per_round([ranks], chain(4)))
    middle = len(ordered) // 2
    found = {"machine": machine()} | {
        name: {
            "rank_of_the_token": first_ranks(own),
            "tokens_per_round": {size: gains(learned, own, size) for size in options.sizes},
            "best": {where: best(learned, own, options.sizes, *pair) for where, pair in costs.items()},
        }
        for name, own in (("all", kept), ("worse half", ordered[:middle]), ("better half", ordered[middle:]))
    }
    json.dump(found, sys.stdout, indent=2)
    print()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="what `tests.perf.distill --output` has left")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 3, 4, 5, 7, 11, 15, 23, 31, 47, 63])
    parser.add_argument("--blocks", type=int, default=40)
    return parser.parse_args()


@torch.no_grad()
def ranks_of(folder: Path, answers: Path) -> list[Ranks]:
    """Returns the ranks for each answer, whose first place is behind its first token."""
    target = read_source(TINY / "target")
    tensors = load_file(folder / "model.safetensors")
    known = tensors["d2t"] + torch.arange(len(tensors["d2t"])) if "d2t" in tensors else None
    net, teacher = TrainableEagle3(layer_of(target), aux_layers(target), known), Teacher(target)
    found: list[Ranks] = []
    net.load_state_dict(tensors)
    for line in answers.read_text().splitlines():
        row = json.loads(line)
        prompt, text = row["prompt_token_ids"], [*row["prompt_token_ids"], *row["answer_token_ids"]]
        ids, places = torch.tensor([text]), range(len(prompt) - 1, len(text) - 2)
        said = net(teacher.teach(ids), ids, DEPTH)
        depths = [_ranks(logits[0], ids[0, 2 + depth :], known) for depth, logits in enumerate(said)]
        found.append([[own[place] for own in depths if place < len(own)] for place in places])
    return found


def _ranks(logits: torch.Tensor, tokens: torch.Tensor, known: torch.Tensor | None) -> list[int]:
    """Returns the rank of each token in the logits of its place, WIDTH for all that are behind."""
    best = logits[: len(tokens)].topk(WIDTH).indices
    best = best if known is None else known[best]
    is_it = best == tokens[:, None]
    return torch.where(is_it.any(1), is_it.int().argmax(1), WIDTH).tolist()


def first_ranks(answers: Sequence[Ranks]) -> list[float]:
    """Returns how often the first token of a round has each rank."""
    counts = Counter(place[0] for ranks in answers for place in ranks)
    return [round(counts[rank] / counts.total(), 3) for rank in range(WIDTH)]


def tree_of(answers: Sequence[Ranks], size: int) -> set[Branch]:
    """Returns the `size` paths that answers took most often; each comes behind those that it goes on from."""
    counts: Counter[Branch] = Counter()
    for ranks in answers:
        for place in ranks:
            depth = next((depth for depth, rank in enumerate(place) if rank == WIDTH), len(place))
            counts.update(tuple(place[:end]) for end in range(1, depth + 1))
    return set(sorted(counts, key=lambda path: (-counts[path], len(path), path))[:size])


def chain(length: int) -> set[Branch]:
    return {(0,) * end for end in range(1, length + 1)}


def per_round(answers: Sequence[Ranks], tree: set[Branch]) -> float:
    """Returns the tokens of a round: what is accepted of the tree, and the target's own."""
    rounds = tokens = 0
    for ranks in answers:
        place = 0
        while place < len(ranks):
            own = ranks[place]
            accepted = next((end for end in range(len(own)) if tuple(own[: end + 1]) not in tree), len(own))
            place, rounds, tokens = place + accepted + 1, rounds + 1, tokens + accepted + 1
    return tokens / rounds


def seconds(tree: set[Branch], target: Cost, head: Cost) -> float:
    """Returns what a round costs: the head is asked behind the text, and behind each node that has others."""
    parents = Counter(len(path) for path in {path[:-1] for path in tree})
    return target(len(tree) + 1) + sum(head(rows) for rows in parents.values())


def gains(learned: Sequence[Ranks], kept: Sequence[Ranks], size: int) -> dict[str, Any]:
    tree = tree_of(learned, size)
    return {
        "chain": round(per_round(kept, chain(min(size, DEPTH))), 3),
        "tree": round(per_round(kept, tree), 3),
        "depth": max(map(len, tree)),
    }


def best(
    learned: Sequence[Ranks], kept: Sequence[Ranks], sizes: Sequence[int], target: Cost, head: Cost
) -> dict[str, Any]:
    """Returns the chain and the tree that pay best, over plain decoding, and over each other."""

    def paying(trees: Mapping[int, set[Branch]]) -> tuple[float, int]:
        return max(
            (per_round(kept, tree) / seconds(tree, target, head) * target(1), size)
            for size, tree in trees.items()
        )

    chains = paying({length: chain(length) for length in range(1, DEPTH + 1)})
    trees = paying({size: tree_of(learned, size) for size in sizes})
    return {
        "chain": {"num_draft_tokens": chains[1], "speedup": round(chains[0], 3)},
        "tree": {"nodes": trees[1], "speedup": round(trees[0], 3)},
        "tree / chain": round(trees[0] / chains[0], 3),
        "a row more": round((target(16) / target(1) - 1) / 15, 4),
        "the head": round(head(1) / target(1), 3),
    }


def on_paper(gpu: Chip, load: BatchLoad) -> tuple[Cost, Cost]:
    def cost(network: Network) -> Cost:
        return lambda rows: step(network, gpu, load, rows).seconds

    return cost(LLAMA), cost(HEAD)


def measured(folder: Path, head_folder: Path, options: argparse.Namespace) -> tuple[Cost, Cost]:
    """Returns the costs of steps of the tiny target and the head, behind CONTEXT tokens."""
    head, cpu = read_head(head_folder), torch.device("cpu")
    engine, draft = built(folder, "float32") / "target/engine", folder / "build/head"
    if not draft.exists():
        build_head(head, engine, draft)
    config, own = read_config(engine), read_config(draft)
    cache = Cache(config, cpu)
    target = Decoder(config, read_tensors(engine, config, cpu), cache, cpu)
    home = Home(config, target, cache, CacheSlots(2 * CONTEXT))
    asked = METHODS["eagle3"].load(own, read_rank(draft, dependent_forms(own), cpu), home)
    target.forward([1] * CONTEXT, [Span(0, 0, CONTEXT, CONTEXT)], [])
    asked.forward([1] * (CONTEXT - 1), [Span(0, 1, CONTEXT - 1, CONTEXT)], [])
    return _line(target, options.blocks), _line(asked, options.blocks)


@torch.inference_mode()
def _line(model: StepModel, blocks: int) -> Cost:
    """Returns the seconds of steps by their rows, of which the shortest count, and lines between them."""
    times: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for _ in range(blocks):
        for width, own in times.items():
            for _ in range(5):
                begin = time.perf_counter()
                model.forward([1] * width, [Span(0, CONTEXT, width, CONTEXT)], list(range(width)))
                own.append(time.perf_counter() - begin)
    known = {width: min(own) for width, own in times.items()}

    def cost(rows: int) -> float:
        low = max(width for width in WIDTHS if width <= rows)
        high = min(width for width in WIDTHS if width >= rows)
        share = (rows - low) / (high - low) if high > low else 0.0
        return known[low] + share * (known[high] - known[low])

    return cost


if __name__ == "__main__":
    main()
