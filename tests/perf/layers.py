"""A draft of some of a target's own layers, for a model that has no smaller sibling.

    python -m tests.perf.layers TARGET DRAFT [--count 6]

Layers leave one by one: of the six whose loss hurt least when it was last tried, the one without which the
greedy choice agrees most with the target's. `agreement` is the share of tokens, in answers of the target, at
which it does. The weights stay as they are. JSON on stdout.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from tests.perf.chats import OTHER, QUOTING

TOKENS, TRIED = 40, 6
Answer = tuple[list[int], int]
"""The tokens of a prompt and its answer, and how many are the prompt's."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--count", type=int, default=6, help="how many layers the draft has")
    options = parser.parse_args()
    model = LlamaForCausalLM.from_pretrained(options.target, dtype=torch.float32)
    layers = list(model.model.layers)
    said = answers(model, options.target)
    kept, found = list(range(len(layers))), []

    def without(index: int) -> float:
        return agreement(model, layers, [layer for layer in kept if layer != index], said)

    agreements = {index: without(index) for index in kept}
    while len(kept) > options.count:
        tried = sorted(kept, key=agreements.__getitem__)[-TRIED:]
        agreements |= {index: without(index) for index in tried}
        kept.remove(max(tried, key=agreements.__getitem__))
        found.append({"layers": list(kept), "agreement": round(agreement(model, layers, kept, said), 3)})
        print(found[-1], file=sys.stderr)
    keep(model, layers, kept)
    model.config.num_hidden_layers = len(kept)
    model.bfloat16().save_pretrained(options.draft)
    for path in (*options.target.glob("*token*"), *options.target.glob("*.jinja")):
        shutil.copy(path, options.draft)
    json.dump(found, sys.stdout, indent=2)
    print()


def answers(model: LlamaForCausalLM, folder: Path) -> list[Answer]:
    """Returns what the target says to a text that it quotes and to two others."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    said = []
    for text in (QUOTING["rename"], OTHER["story"], OTHER["explanation"]):
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True
        )
        answer = model.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False)
        said.append((answer[0].tolist(), len(prompt)))
    return said


def keep(model: LlamaForCausalLM, layers: list[torch.nn.Module], kept: list[int]) -> None:
    model.model.layers = torch.nn.ModuleList(layers[index] for index in kept)
    for place, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = place


@torch.inference_mode()
def agreement(
    model: LlamaForCausalLM, layers: list[torch.nn.Module], kept: list[int], said: list[Answer]
) -> float:
    """Returns the share of the answers' tokens that the model of these layers would say there too."""
    keep(model, layers, kept)
    same = total = 0
    for tokens, prompt_len in said:
        states = model.model(torch.tensor([tokens]), use_cache=False).last_hidden_state[
            0, prompt_len - 1 : -1
        ]
        chosen = model.lm_head(states).argmax(-1).tolist()
        same += sum(a == b for a, b in zip(chosen, tokens[prompt_len:], strict=True))
        total += len(tokens) - prompt_len
    return same / total


if __name__ == "__main__":
    main()
