"""Gives greedy answers of plain decoding as a second opinion, in an interpreter with vLLM.

    python vllm_worker.py QUESTIONS ANSWERS

It imports nothing of trtspec, since that interpreter may lack it. QUESTIONS is a JSON file with `model` (a
folder or a name of the Hub), `revision`, `dtype`, `prompts` (token ids), `max_tokens`, `max_model_len` and
`top`; ANSWERS becomes one with `version` and, for each prompt, `token_ids` and `rows` (pairs of a token id
and its log-probability).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    questions, answers = map(Path, sys.argv[1:])
    asked = json.loads(questions.read_text(encoding="utf-8"))
    answers.write_text(json.dumps(answer(asked)), encoding="utf-8")


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    import vllm

    model = vllm.LLM(
        asked["model"],
        revision=asked["revision"],
        dtype=asked["dtype"],
        max_model_len=asked["max_model_len"],
        max_num_seqs=len(asked["prompts"]),
        # Compiling would take minutes, for a few hundred tokens.
        enforce_eager=True,
    )
    sampling = vllm.SamplingParams(temperature=0.0, max_tokens=asked["max_tokens"], logprobs=asked["top"])
    prompts = [{"prompt_token_ids": token_ids} for token_ids in asked["prompts"]]
    said = [output.outputs[0] for output in model.generate(prompts, sampling, use_tqdm=False)]
    return {"version": vllm.__version__, "answers": [_plain(each) for each in said]}


def _plain(said: Any) -> dict[str, Any]:
    rows = [[(token, place[token].logprob) for token in place] for place in said.logprobs]
    return {"token_ids": list(said.token_ids), "rows": rows}


if __name__ == "__main__":
    main()
