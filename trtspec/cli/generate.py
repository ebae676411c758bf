"""`trtspec generate`: one completion from a server that is up."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.terminal.options import JsonOption
from trtspec.terminal.output import out

if TYPE_CHECKING:
    from trtspec.deploy.client import GrpcClient

# The largest values that the tensors can hold.
_INT32, _UINT64 = 2**31 - 1, 2**64 - 1

EXAMPLES = (
    "trtspec generate 'def fib('",
    "trtspec generate --max-tokens 200 --temperature 0.7 --seed 1 'class Stack:'",
    "trtspec generate --num-draft-tokens 0 'def fib('    # the target alone",
)


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to go on from.", show_default=False)],
    stream: Annotated[bool, typer.Option(help="Print the text as it comes, or at the end.")] = True,
    max_tokens: Annotated[int, typer.Option(min=1, max=_INT32, help="The most tokens to generate.")] = 128,
    num_draft_tokens: Annotated[
        int | None,
        typer.Option(
            min=0, max=_INT32, help="Draft tokens a round; 0 is the target alone.", show_default="engine's"
        ),
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, show_default="greedy")] = None,
    top_k: Annotated[int | None, typer.Option(min=0, max=_INT32)] = None,
    top_p: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=_UINT64)] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="A string to end before; may be given often.")
    ] = None,
    url: Annotated[str, typer.Option(metavar="HOST:PORT", help="Triton's gRPC port.")] = "127.0.0.1:8001",
    model_name: Annotated[str, typer.Option(help="The recipe's serving.model_name.")] = "speculative_llm",
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the server to be ready.")] = 0,
    json: JsonOption = False,
) -> None:
    """Complete a prompt; acceptance and speed on stderr."""
    from trtspec.deploy.client import GrpcClient

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
    with closing(GrpcClient(url, model_name)) as client:
        client.wait(wait)
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
        if not drafted:
            return f"{speed}, nothing drafted"
        return f"{speed}, {accepted} of {drafted} draft tokens accepted ({accepted / drafted:.0%})"


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
