"""A stand-in for vLLM's server: `python -m tests.fakes.openai_server OPTIONS`, and as a program `vllm serve`.

It takes a few options of vLLM 0.32 and no others, has an engine's process as that has, and says of itself
what `GET /told` asks for. `FAKE_SERVER` in its environment is how it fails: `crashes` at once, `lacks` a
package, `never` is ready, `dies` when it is asked for a completion, `stays` when it is told to end. With
drafts it `dies_of_top_k`, `differs` in its third token, `breaks_calls` of tools, or `answers_early`: within
its reasoning. Token ids are told where that is asked for, in the way of `FAKE_OWNER`, vLLM if it is not set:
`sglang`, or `tensorrt_llm`, which refuses what it does not know, and tells a text or ids.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOW = os.environ.get("FAKE_SERVER", "")
OWNER = os.environ.get("FAKE_OWNER", "vllm")
KEY = os.environ.get("VLLM_API_KEY")
# Of TensorRT-LLM's `CompletionRequest` (serve/openai_protocol.py).
KNOWN = {"model", "prompt", "max_tokens", "temperature", "seed", "stream", "stream_options", "logit_bias"}
KNOWN |= {"ignore_eos", "detokenize", "logprobs", "stop", "top_k", "top_p"}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--shutdown-timeout", type=int, default=0)
    parser.add_argument("--speculative-config", type=json.loads)
    parser.add_argument("--max-model-len", type=int)
    words = sys.argv[1:]
    return parser.parse_args(words[1:] if words[:1] == ["serve"] else words)


class Api(BaseHTTPRequestHandler):
    asked: argparse.Namespace
    at_work = steps = 0

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(503 if HOW == "never" else 200, {})
        elif KEY and self.headers["Authorization"] != f"Bearer {KEY}" and self.path.startswith("/v1"):
            self.answer(401, {"error": "Unauthorized"})
        elif self.path == "/v1/models":
            self.answer(200, {"data": [{"id": self.asked.served_model_name, "owned_by": OWNER}]})
        elif self.path == "/metrics" and self.asked.speculative_config:
            self.answer(200, self.counters())
        elif self.path == "/told":
            told = {"argv": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()}
            self.answer(200, {**told, "at_work": Api.at_work})
        else:
            self.answer(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["model"] == self.asked.served_model_name
        if OWNER == "tensorrt_llm" and body.keys() - KNOWN:
            self.answer(400, {"message": f"Extra inputs are not permitted: {sorted(body.keys() - KNOWN)}"})
            return
        if HOW == "dies" or (HOW == "dies_of_top_k" and "top_k" in body and self.asked.speculative_config):
            os.kill(os.getpid(), signal.SIGKILL)
        Api.at_work += 1
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        if "messages" in body:
            self.chat(body)
            return
        begun = len(body["prompt"]) if isinstance(body["prompt"], list) else self.count(body["prompt"])
        for number in range(body["max_tokens"]):
            reason = "length" if number + 1 == body["max_tokens"] else None
            said = {"text": f" {number}", **self.told(body, begun + number)}
            self.say({"choices": [{**said, "finish_reason": reason}]})
            time.sleep(0 if len(said) > 1 else 0.02)
        if body.get("return_spec_tokens_details"):
            self.say({"choices": [], "sglext": {"spec_tokens_details": self.details(body["max_tokens"])}})
        self.say({"choices": [], "usage": {"prompt_tokens": begun, "completion_tokens": body["max_tokens"]}})
        self.wfile.write(b"data: [DONE]\n\n")
        Api.at_work -= 1
        Api.steps += body["max_tokens"] // 2

    def chat(self, body: dict[str, Any]) -> None:
        """One call of a tool, or an answer of the schema of `measure/verify/cases.py` after reasoning."""
        broken = HOW if self.asked.speculative_config else ""
        said = '{"colour": "red", "even": true}'
        deltas: list[dict[str, Any]] = [{"reasoning_content": "It is even."}, {"content": said}]
        if broken == "answers_early":
            deltas[1] = {"content": f"</think>{said}"}
        if tools := body.get("tools"):
            given = said[:-4] if broken == "breaks_calls" else said
            called = {"name": tools[0]["function"]["name"], "arguments": given}
            deltas = [{"tool_calls": [{"index": 0, "function": called}]}]
        for delta in deltas:
            self.say({"choices": [{"delta": delta, "finish_reason": None}]})
        self.wfile.write(b"data: [DONE]\n\n")
        Api.at_work -= 1

    def counters(self) -> str:
        """vLLM's counters of drafts, as `details` counts them."""
        counts = {"drafts": 1, "draft_tokens": 4, "accepted_tokens": 1}
        names = (f"vllm:spec_decode_num_{name}_total" for name in counts)
        return "".join(f"{name} {n * self.steps}.0\n" for name, n in zip(names, counts.values(), strict=True))

    def details(self, tokens: int) -> dict[str, Any]:
        """SGLang's counts of verifications of 4 draft tokens, of which one was accepted each time."""
        steps = tokens // 2
        drafts = {"spec_num_proposed_drafts": 4 * steps, "spec_num_correct_drafts": steps}
        return {"spec_verify_ct": steps, **drafts, "spec_correct_drafts_histogram": [0, steps]}

    def count(self, prompt: str) -> int:
        """How many tokens the model's tokenizer makes of a prompt."""
        return len(tokenizer(f"{self.asked.model}/tokenizer.json").encode(prompt).ids)

    def told(self, body: dict[str, Any], place: int) -> dict[str, Any]:
        """The token at a place of the text, its number; and vLLM's only other one that is thought of."""
        token = 300 + place
        if HOW == "differs" and self.asked.speculative_config and place % 3 == 2:
            token = 700
        bias = {int(other): value for other, value in (body.get("logit_bias") or {}).items()}
        token = max([token, *bias], key=lambda each: bias.get(each, 0.0) - 3.0 * (each != token))
        if OWNER == "sglang" and body.get("return_token_ids"):
            return {"token_ids": [token]}
        if OWNER == "tensorrt_llm" and body.get("detokenize") is False:
            return {"token_ids": [token], "text": ""}
        if OWNER == "vllm" and body.get("return_tokens_as_token_ids"):
            named = f"token_id:{token}"
            return {"logprobs": {"tokens": [named], "top_logprobs": [{named: -0.1, "token_id:900": -3.0}]}}
        return {}

    def say(self, event: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.flush()

    def answer(self, status: int, content: object) -> None:
        body = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@cache
def tokenizer(file: str) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(file)


class Server(ThreadingHTTPServer):
    request_queue_size = 64


def main() -> None:
    Api.asked = options()
    print("INFO loading", Api.asked.model, flush=True)
    if HOW == "crashes":
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    if HOW == "lacks":
        needed = "Arctic Inference is required for suffix decoding. Install via"
        sys.exit(f"ValueError: {needed} `pip install arctic-inference==0.1.1`.")
    # As vLLM's engine, it does not hear of the end of the server.
    waiting = "import time; time.sleep(600)"
    engine = subprocess.Popen([sys.executable, "-c", waiting, f"--port={Api.asked.port}"])
    server = Server((Api.asked.host, Api.asked.port), Api)

    def end(*_: object) -> None:
        if HOW != "stays":
            threading.Thread(target=drain).start()

    def drain() -> None:
        deadline = time.monotonic() + Api.asked.shutdown_timeout
        while Api.at_work and time.monotonic() < deadline:
            time.sleep(0.02)
        engine.kill()
        engine.wait()
        server.shutdown()

    signal.signal(signal.SIGTERM, end)
    server.serve_forever()


if __name__ == "__main__":
    main()
