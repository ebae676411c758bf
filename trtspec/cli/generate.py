"""`trtspec generate`: one completion from a server that is up."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.base.errors import ServerError, UnavailableError
from trtspec.cli.terminal.api_key import read_key
from trtspec.cli.terminal.options import JsonOption
from trtspec.cli.terminal.output import out
from trtspec.cli.terminal.server_options import ApiKeyEnvOption, ApiKeyFileOption, ServedModelOption
from trtspec.gateway.addresses import LOOPBACK
from trtspec.gateway.ports import GRPC, HTTP, OPENAI

if TYPE_CHECKING:
    from trtspec.client.endpoint import DraftCounts, Endpoint, EndpointRequest, TimedAnswer
    from trtspec.client.grpc import GrpcClient
    from trtspec.deploy.monitoring.scrape import Scrape

# The largest values that the tensors can hold.
_INT32, _UINT64 = 2**31 - 1, 2**64 - 1
_LOOK_S = 0.2
_OF_VLLM = "sampling_parameters"
_API = f"http://{LOOPBACK}:{OPENAI}/v1"

EXAMPLES = (
    "trtspec generate 'def fib('",
    "trtspec generate --max-tokens 200 --temperature 0.7 --seed 1 'class Stack:'",
    "trtspec generate - < prompt.txt",
    "trtspec generate --num-draft-tokens 0 'def fib('    # the target alone",
    "trtspec generate --url http://host:9000/v1 'def fib('    # vLLM's server, or any of OpenAI's API",
)


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to go on from; - for stdin.", show_default=False)],
    stream: Annotated[bool, typer.Option(help="Print the text as it comes, or at the end.")] = True,
    max_tokens: Annotated[int, typer.Option(min=1, max=_INT32, help="The most tokens to generate.")] = 128,
    num_draft_tokens: Annotated[
        int | None,
        typer.Option(
            min=0, max=_INT32, help="Draft tokens a round; 0 is the target alone.", show_default="engine's"
        ),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Above 0 tokens are drawn.", show_default="greedy")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=0, max=_INT32, help="Draw from the K likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(min=0, max=1, help="Draw from the likeliest tokens of this probability.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=_UINT64, help="Draw the same text again.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="A string to end before; may be given often.")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Triton's gRPC, HOST:PORT; or OpenAI's API, http://HOST:PORT/v1.",
            show_default=f"what deploy serves here: port {GRPC}, or {OPENAI}",
        ),
    ] = None,
    model_name: ServedModelOption = None,
    api_key_file: ApiKeyFileOption = None,
    api_key_env: ApiKeyEnvOption = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the server to be ready.")] = 0,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds after which an answer that is not whole is given up.")
    ] = 600,
    json: JsonOption = False,
) -> None:
    """Complete a prompt; acceptance and speed on stderr."""
    from trtspec.client.endpoint import ChatMessage, EndpointRequest
    from trtspec.client.grpc import GrpcClient

    key = read_key(api_key_file, api_key_env)
    if prompt == "-":
        prompt = sys.stdin.read()
    if url is None:
        url = _API if key else asyncio.run(_found(model_name, wait, timeout))
    if "://" in url:
        question = EndpointRequest(
            (ChatMessage("user", prompt),),
            max_tokens,
            num_draft_tokens,
            temperature or 0.0,
            seed,
            top_k=top_k,
            top_p=top_p,
            stop=tuple(stop or ()),
        )
        asking = _ask(url, model_name, key, question, wait, timeout, show=stream and not json)
        answer = asyncio.run(asking)
        _tell_answer(answer, shown=stream, as_json=json)
        return
    if key:
        raise typer.BadParameter("Triton's gRPC asks for none", param_hint="--api-key-file, --api-key-env")
    options = {
        "num_draft_tokens": num_draft_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "stop_words": stop,
    }
    values = {
        "text_input": prompt,
        "max_tokens": max_tokens,
        "stream": stream,
        "return_perf_metrics": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        **{name: value for name, value in options.items() if value not in (None, [])},
    }
    with closing(GrpcClient(url, model_name or "speculative_llm", timeout)) as client:
        client.wait(wait)
        if _OF_VLLM in client.inputs():
            problem = "the model is of Triton's vLLM backend, which is asked otherwise"
            raise ServerError(url, problem, f"name Triton's HTTP port: --url http://{LOOPBACK}:{HTTP}")
        completion = _complete(client, values, show=not json)
    if json:
        out.json(completion.as_dict())
    else:
        out.status(completion.summary())


@dataclass
class _Completion:
    """The text and the counts that have come; times are seconds since the request was sent."""

    text: str = ""
    first_text_s: float = 0.0
    seconds: float = 0.0
    counts: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        return float(self.counts["num_output_tokens"] / self.seconds)

    def as_dict(self) -> dict[str, Any]:
        speed = {"first_text_s": self.first_text_s, "seconds": self.seconds}
        return {"text": self.text, **self.counts, **speed, "tokens_per_second": self.tokens_per_second}

    def summary(self) -> str:
        drafted, accepted = self.counts["total_draft_tokens"], self.counts["total_accepted_draft_tokens"]
        speed = f"{self.counts['num_output_tokens']} tokens, {self.tokens_per_second:.0f} tokens/s"
        return f"{speed}, {_accepted(drafted, accepted)}"


def _complete(client: GrpcClient, values: dict[str, Any], *, show: bool) -> _Completion:
    completion, start = _Completion(), time.monotonic()
    for response in client.generate(values):
        text = response.pop("text_output")
        completion.seconds = time.monotonic() - start
        completion.first_text_s = completion.first_text_s or completion.seconds
        completion.text += text
        completion.counts |= response
        if show:
            out.data(text)
    if show:
        out.data("\n")
    return completion


async def _found(model: str | None, wait: float, timeout: float) -> str:
    """Returns where this machine serves by `trtspec deploy`: Triton's gRPC, or the server of another engine.

    While Triton starts, OpenAI's API stands before it already. Raises `ServerError` where nobody listens.
    """
    from trtspec.client.finding import find
    from trtspec.gateway.ports import listens

    deadline = time.monotonic() + wait
    while not listens(LOOPBACK, GRPC):
        is_over, is_theirs = time.monotonic() >= deadline, False
        with suppress(UnavailableError):
            endpoint = (await find(_API, model, chat=False, timeout_s=timeout)).endpoint
            await endpoint.close()
            is_theirs = not endpoint.plain_per_request
        if is_theirs or (is_over and listens(LOOPBACK, OPENAI)):
            return _API
        if is_over:
            problem = f"nobody listens on port {GRPC}, Triton's gRPC, or {OPENAI}, OpenAI's API"
            raise ServerError(LOOPBACK, problem, "trtspec deploy RECIPE starts a server; --url names another")
        await asyncio.sleep(_LOOK_S)
    return f"{LOOPBACK}:{GRPC}"


async def _ask(
    url: str,
    model: str | None,
    key: str | None,
    question: EndpointRequest,
    wait: float,
    timeout: float,
    *,
    show: bool,
) -> TimedAnswer:
    """Asks an API over HTTP; raises `ServerError` for what it answers with, and for K where it has none."""
    from trtspec.client.endpoint import AskError, unheard
    from trtspec.client.finding import find
    from trtspec.client.grpc import overdue

    deadline = time.monotonic() + wait
    while True:
        try:
            endpoint = (await find(url, model, chat=False, timeout_s=timeout, key=key)).endpoint
            break
        except UnavailableError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(_LOOK_S)
    try:
        if question.num_draft_tokens is not None and not endpoint.plain_per_request:
            problem = "drafts as it was started to, whatever a request says"
            repair = "leave --num-draft-tokens out; trtspec deploy RECIPE --plain serves the target alone"
            raise ServerError(endpoint.url, problem, repair)
        before = None if endpoint.plain_per_request else _looked(endpoint)
        answer = await endpoint.ask(question, out.data if show else unheard)
        if before and answer.counts is None:
            answer.counts = _meanwhile(before, _looked(endpoint))
        return answer
    except AskError as error:
        if error.kind == "timed_out":
            raise overdue(endpoint.url, timeout) from error
        raise ServerError(endpoint.url, error.problem) from error
    finally:
        await endpoint.close()


def _looked(endpoint: Endpoint) -> Scrape | None:
    """Returns the metrics beside an API, as vLLM has them; None where there are none."""
    from trtspec.deploy.monitoring.scrape import parse, read
    from trtspec.measure.bench.session import metrics_beside

    with suppress(UnavailableError):
        if url := metrics_beside(endpoint):
            return parse(read(url), time.monotonic())
    return None


def _meanwhile(before: Scrape, after: Scrape | None) -> DraftCounts | None:
    """Returns what became of drafts between two looks, of this request as of any other at the time."""
    from trtspec.client.endpoint import DraftCounts
    from trtspec.measure.bench.inside import Meanwhile

    drafts = Meanwhile(before, after).drafts if after else None
    if drafts is None:
        return None
    seen = drafts.acceptance
    return DraftCounts(seen.verifications, seen.drafted, seen.accepted, ())


def _tell_answer(answer: TimedAnswer, *, shown: bool, as_json: bool) -> None:
    seconds, number = answer.ended - answer.sent, answer.output_tokens
    counts = answer.counts
    speed = f"{number} tokens, {number / seconds:.0f} tokens/s" if number else f"{seconds:.1f} s"
    if as_json:
        drafts = {}
        if counts:
            drafts = {"total_draft_tokens": counts.drafted, "total_accepted_draft_tokens": counts.accepted}
        out.json(
            {
                "text": answer.text,
                "num_input_tokens": answer.input_tokens,
                "num_output_tokens": number,
                "finish_reason": answer.finish_reason,
                "first_text_s": answer.times[0] - answer.sent if answer.times else None,
                "seconds": seconds,
                "tokens_per_second": number / seconds if number else None,
                **drafts,
            }
        )
        return
    out.data("\n" if shown else f"{answer.text}\n")
    if counts is None:
        out.status(f"{speed}; of drafts this server says nothing")
    else:
        out.status(f"{speed}, {_accepted(counts.drafted, counts.accepted)}")


def _accepted(drafted: int, accepted: int) -> str:
    if not drafted:
        return "nothing drafted"
    return f"{accepted} of {drafted} draft tokens accepted ({accepted / drafted:.0%})"
