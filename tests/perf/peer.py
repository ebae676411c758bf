"""One engine with one way of speculating, which answers blocks of prompts that `peers.py` sends it.

    python tests/perf/peer.py trtspec|vllm plain|draft|ngram MODEL DTYPE fixed|adaptive

`MODEL` is a build for trtspec, and a folder with `target` and `draft` for vLLM, which has an environment of
its own and so nothing of trtspec. A line on stdin is a list of prompts in token ids; the line that answers
has their texts, of `TOKENS` each, and the seconds from the first request to the last token. `adaptive` is
how trtspec chooses K by default; vLLM has one K.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

TOKENS, PLACES, MAX_LEN, K = 128, 16, 1000, 4
LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 8}
Policy = Literal["fixed", "adaptive"]
Answer = Callable[[list[list[int]]], list[list[int]]]


def trtspec(way: str, build: Path, policy: Policy) -> Answer:
    """The engines of a build, in process, as `trtspec deploy` has them: one thread makes all steps."""
    from trtspec.serving.completion import NO_END, CompletionRequest
    from trtspec.serving.coordinator import Coordinator
    from trtspec.serving.drafters.source import Drafting
    from trtspec.serving.executors.torch.device_thread import DeviceThread
    from trtspec.serving.executors.torch.torch_executor import TorchExecutor
    from trtspec.serving.tokenizer import Tokenizer

    device_thread, loop = DeviceThread(), asyncio.new_event_loop()
    roles = ("draft", "target") if way == "draft" else ("target",)
    *draft, target = (TorchExecutor(build / role / "engine", device_thread=device_thread) for role in roles)
    coordinator = Coordinator(
        target,
        draft[0] if draft else None,
        Tokenizer.load(build / "tokenizer"),
        num_draft_tokens=0 if way == "plain" else None if policy == "adaptive" else K,
        policy=policy,
        drafting=Drafting("ngram", LOOKUP) if way == "ngram" else None,
    )

    async def complete(prompts: list[list[int]]) -> list[list[int]]:
        requests = (
            CompletionRequest(prompt_token_ids=prompt, max_tokens=TOKENS, end_id=NO_END) for prompt in prompts
        )
        return [delta.token_ids for delta in await asyncio.gather(*map(coordinator.complete, requests))]

    return lambda prompts: loop.run_until_complete(complete(prompts))


def vllm(way: str, models: Path, dtype: str) -> Answer:
    """vLLM's own `LLM`, compiled as it compiles by itself."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    # By itself it leaves a processor to what is around the model.
    os.environ.setdefault("VLLM_CPU_NUM_OF_RESERVED_CPU", "0")
    from vllm import LLM, SamplingParams, TokensPrompt

    options: dict[str, Any] = {}
    if way != "plain":
        options["speculative_config"] = {"num_speculative_tokens": K} | (
            {"method": "draft_model", "model": str(models / "draft")}
            if way == "draft"
            else {"method": "ngram", **LOOKUP}
        )
    engine = LLM(str(models / "target"), dtype=dtype, max_model_len=MAX_LEN, max_num_seqs=PLACES, **options)
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)

    def answer(prompts: list[list[int]]) -> list[list[int]]:
        asked = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
        return [list(said.outputs[0].token_ids) for said in engine.generate(asked, sampling, use_tqdm=False)]

    return answer


def main() -> None:
    kind, way, model, dtype, policy = sys.argv[1:]
    # Whatever else is printed goes to stderr, as do the programs that the engine starts.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if kind == "vllm":
        answer = vllm(way, Path(model), dtype)
    else:
        answer = trtspec(way, Path(model), "adaptive" if policy == "adaptive" else "fixed")
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        prompts = json.loads(line)
        start = time.perf_counter()
        texts = answer(prompts)
        result = {"seconds": time.perf_counter() - start, "texts": texts}
        print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main()
