"""What Speculators makes of an EAGLE-3 head's folder; run by a Python that has it.

Reads a JSON list on stdin, each `{"folder": "...", "token_ids": [...], "depth": 3}`, and writes as the last
line of stdout what its own model says at each place of the text, depth by depth, in the target's tokens.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from speculators.models import Eagle3DraftModel, Eagle3SpeculatorConfig
from transformers import AutoModelForCausalLM


@torch.no_grad()
def asked(folder: str, token_ids: list[int], depth: int) -> dict[str, Any]:
    config = Eagle3SpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel.from_pretrained(folder, config=config, dtype=torch.float32)
    verifier = config.speculators_config.verifier
    target = AutoModelForCausalLM.from_pretrained(verifier.name_or_path, dtype=torch.float32)
    ids = torch.tensor([token_ids])
    states = target(ids, output_hidden_states=True).hidden_states
    read = torch.cat([states[number] for number in config.eagle_aux_hidden_state_layer_ids], -1)
    said = model(read[:, :-1], ids[:, 1:], document_ids=torch.zeros_like(ids[:, 1:]), ttt_steps=depth)
    mapping = model.d2t if model.d2t is not None else torch.zeros(config.draft_vocab_size, dtype=torch.int64)
    return {
        "architectures": verifier.architectures,
        "said": [(tokens + mapping[tokens])[0].tolist() for tokens in said],
    }


def main() -> None:
    found = []
    for head in json.load(sys.stdin):
        try:
            found.append(asked(**head))
        except Exception as error:
            found.append({"error": f"{type(error).__name__}: {error}"})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
