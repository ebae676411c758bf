"""One engine with one way of speculating, which answers blocks of prompts that `peers.py` sends it.

    python tests/perf/peer.py trtspec|vllm plain|draft|ngram MODEL DTYPE fixed|adaptive [http]

`MODEL` is a build for trtspec, beside its recipe, and a folder with `target` and `draft` for vLLM, which has
an environment of its own and so nothing of trtspec. A line on stdin is a list of prompts in token ids; the
line that answers has their texts, of `TOKENS` each, and the seconds from the first request to the last token.
`adaptive` is how trtspec chooses K by default; vLLM has one K. With `http` the engine is a server of the
peer's own, which is asked by OpenAI's API and streams; texts are words then, and token ids otherwise.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

TOKENS, PLACES, MAX_LEN, K = 128, 16, 1000, 4
LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 8}
Policy = Literal["fixed", "adaptive"]
Texts = list[list[int]] | list[str]
Answer = Callable[[list[list[int]]], Texts]


def trtspec(way: str, build: Path, policy: Policy) -> Answer:
    """The engines of a build, in process, as `trtspec deploy` has them: one thread makes all steps."""
    from trtspec.serving.assembly import assemble
    from trtspec.serving.completion import NO_END, CompletionRequest
    from trtspec.serving.drafters.source import Drafting
    from trtspec.serving.executors.torch.device_thread import DeviceThread
    from trtspec.serving.executors.torch.torch_executor import TorchExecutor
    from trtspec.serving.tokenizer import Tokenizer

    device_thread, loop = DeviceThread(), asyncio.new_event_loop()
    roles = ("draft", "target") if way == "draft" else ("target",)
    *draft, target = (TorchExecutor(build / role / "engine", device_thread=device_thread) for role in roles)
    coordinator = assemble(
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

    options: dict[str, Any] = {} if way == "plain" else {"speculative_config": drafts_of_vllm(way, models)}
    engine = LLM(str(models / "target"), dtype=dtype, max_model_len=MAX_LEN, max_num_seqs=PLACES, **options)
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)

    def answer(prompts: list[list[int]]) -> list[list[int]]:
        asked = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts]
        return [list(said.outputs[0].token_ids) for said in engine.generate(asked, sampling, use_tqdm=False)]

    return answer


def drafts_of_vllm(way: str, models: Path) -> dict[str, Any]:
    source = {"method": "draft_model", "model": str(models / "draft")}
    return {"num_speculative_tokens": K} | (source if way == "draft" else {"method": "ngram", **LOOKUP})


def trtspec_served(way: str, build: Path, policy: Policy) -> Answer:
    """`trtspec deploy`, on ports that nobody has."""
    ports = {name: free_port() for name in ("http", "grpc", "metrics", "openai")}
    options = [text for name, port in ports.items() for text in (f"--{name}-port", str(port))]
    recipe = build.parent / "recipe.yaml"
    command = [sys.executable, "-m", "trtspec", "deploy", str(recipe), "--output", str(build), *options]
    drafts = {"num_draft_tokens": 0 if way == "plain" else K}
    return served(command, ports["openai"], {} if way != "plain" and policy == "adaptive" else drafts)


def vllm_served(way: str, models: Path, dtype: str) -> Answer:
    """`vllm serve`, with the options of `vllm`."""
    port = free_port()
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(models / "target"),
        "--dtype", dtype, "--max-model-len", str(MAX_LEN), "--max-num-seqs", str(PLACES), "--port", str(port),
    ]  # fmt: skip
    if way != "plain":
        command += ["--speculative-config", json.dumps(drafts_of_vllm(way, models))]
    os.environ.update({"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"})
    return served(command, port, {})


def served(command: list[str], port: int, options: dict[str, Any]) -> Answer:
    """A server of OpenAI's API, and a client of it that is the same for all of them."""
    import aiohttp

    process, loop = subprocess.Popen(command, stdout=sys.stderr), asyncio.new_event_loop()
    atexit.register(process.wait)
    atexit.register(process.terminate)
    url = f"http://127.0.0.1:{port}"
    body = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 0, "stream": True, **options}

    async def model() -> str:
        """Its name, once it is ready."""
        async with aiohttp.ClientSession() as session:
            while process.poll() is None:
                try:
                    async with session.get(f"{url}/health") as health:
                        health.raise_for_status()
                    async with session.get(f"{url}/v1/models") as models:
                        return str((await models.json())["data"][0]["id"])
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.5)
        raise RuntimeError(f"{command[:3]} ended with status {process.returncode}")

    async def text(session: aiohttp.ClientSession, prompt: list[int]) -> str:
        said = ""
        async with session.post(f"{url}/v1/completions", json={**body, "prompt": prompt}) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    said += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
        return said

    async def texts(prompts: list[list[int]]) -> list[str]:
        async with aiohttp.ClientSession() as session:
            return list(await asyncio.gather(*(text(session, prompt) for prompt in prompts)))

    body["model"] = loop.run_until_complete(model())
    return lambda prompts: loop.run_until_complete(texts(prompts))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def main() -> None:
    kind, way, model, dtype, policy, *transport = sys.argv[1:]
    # Whatever else is printed goes to stderr, as do the programs that the engine starts.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    of_vllm, ours = (vllm_served, trtspec_served) if transport else (vllm, trtspec)
    if kind == "vllm":
        answer = of_vllm(way, Path(model), dtype)
    else:
        answer = ours(way, Path(model), "adaptive" if policy == "adaptive" else "fixed")
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        prompts = json.loads(line)
        start = time.perf_counter()
        texts = answer(prompts)
        result = {"seconds": time.perf_counter() - start, "texts": texts}
        print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main()
